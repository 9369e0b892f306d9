//! The developers' own commands: `cargo xtask VERB`. One file or folder a verb.

use std::process::ExitCode;

mod bench;
mod ci;
mod dependencies;
mod fuzz;
mod samples;
mod tidy;
mod workspace;

const USAGE: &str = "\
usage: cargo xtask VERB
  ci                      everything that must pass before a merge, in order
  tidy                    the style rules that no lint knows
  bench                   the crate `bench`, built for release; `bench --help`
  dependencies            licences, bans, sources and known weaknesses of what is linked
                          (cargo-deny, deny.toml)
  samples DIR             imports every file of a directory elsewhere: [--map FILE]
                          [--findings]
  fuzz NAME|smoke|canary  throw mutated input at a parser:
                          [--seed N] [--runs N | --seconds N] [--input FILE]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
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

const EXIT_USAGE: u8 = 64;
