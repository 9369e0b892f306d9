//! The program `tacit`: calls [`tacit::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tacit::cli::run(std::env::args_os().collect())
}
