//! The program `tacit`: calls [`tacit::cli`].

use std::process::ExitCode;

use tacit_sys::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    tacit::cli::run(std::env::args_os().collect())
}
