//! The developers' own commands: `cargo xtask VERB`. One file or folder a verb.

use std::path::PathBuf;
use std::process::ExitCode;

mod bench;
mod ci;
mod dependencies;
mod fuzz;
mod samples;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask VERB
  ci                      everything that must pass before a merge, in order
  tidy                    the style rules that no lint knows
  bench                   the crate `bench`, built for release; `bench --help`
  dependencies            licences, bans and sources of what is linked (deny.toml)
  samples DIR             imports every file of a directory elsewhere: [--map FILE]
                          [--findings]
  fuzz NAME|smoke|canary  throw mutated input at a parser:
                          [--seed N] [--runs N | --seconds N] [--input FILE]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", rest @ ..] => bench::run(rest),
        ["ci"] => ci::run(),
        ["tidy"] => tidy::run(),
        ["dependencies"] => dependencies::run(),
        ["samples", rest @ ..] => samples::run(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What a verb ends with: nothing, or a line for the developer.
type Outcome = Result<(), String>;

/// The folder with the workspace's `Cargo.toml`. cargo says where this run's sources are; what was
/// true at compile time may be another checkout that shares the target folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

const EXIT_USAGE: u8 = 64;
