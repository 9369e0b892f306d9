//! The developers' own commands: `cargo xtask VERB`. One file or folder a verb.

use std::process::ExitCode;

mod bench;
mod bogo;
mod chaos;
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
  bogo [PATTERN...]       BoringSSL's test runner against the handshake and the records;
                          it is fetched, or BORINGSSL names a checkout; needs Go
  chaos --minutes N       agents and runs under load while everything is killed and exchanged:
                          [--seed N] draws the same events in the same order
  dependencies            licences, bans, sources and known weaknesses of what is linked
                          (cargo-deny, deny.toml)
  samples DIR             imports every file of a directory elsewhere: [--map FILE]
                          [--findings]
  fuzz NAME               inputs for one parser that reach more and more of it:
                          [--seconds N | --input FILE]; `fuzz list` lists them
  fuzz replay [NAME...]   the committed inputs, and whether they reach what they did
  fuzz cover [NAME...]    what the inputs reach; --update: keep what was found
  fuzz canary             whether the fuzzer finds a fault that is there";

fn main() -> ExitCode {
    if fuzz::is_compiler() {
        return fuzz::compile();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", rest @ ..] => bench::run(rest),
        ["bogo", rest @ ..] => bogo::run(rest),
        ["chaos", rest @ ..] => chaos::run(rest),
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
