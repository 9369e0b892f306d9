//! `cargo xtask COMMAND`: runs the commands for developers. Each command has a module in this
//! crate, except `chaos` and `flood`: these two are scripts in `scripts/`.

use std::process::ExitCode;

mod bench;
mod bogo;
mod ci;
mod dependencies;
mod fuzz;
mod namespaced;
mod samples;
mod tidy;
mod workspace;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  ci                      run everything that must pass before a merge, in order
  tidy                    check the style rules that no lint covers
  bench                   build and run the benchmarks; see `bench --help`
  bench packets           compare tunnels with libipsec, wireguard-go and GotaTun: [--rounds N]
                          [--congestion NAME]
  bogo [PATTERN...]       run BoringSSL's test runner against the handshake and the record layer;
                          needs Go; downloads the runner, or uses the checkout in BORINGSSL
  chaos --minutes N       run agents under load while processes are killed and files replaced;
                          [--seed N] repeats the same events in the same order
  flood                   measure how long floods of half-open connections delay other clients,
                          and whether the agent frees its memory after a flood
  recheck                 measure the CPU time that the agent needs to check all open connections
                          again after a change of the trusted CAs
  dependencies            check licences, bans, sources and advisories of the dependencies
                          (cargo-deny, deny.toml)
  samples DIR             import every configuration file of a directory: [--map FILE]
                          [--findings]
  fuzz NAME               fuzz a parser: [--seconds N | --input FILE]; `fuzz list` lists all
  fuzz replay [NAME...]   run the committed inputs; they must reach as much code as before
  fuzz cover [NAME...]    print how much code the inputs reach; --update commits new inputs
  fuzz canary             check that the fuzzer finds a known fault";

fn main() -> ExitCode {
    if fuzz::is_compiler() {
        return fuzz::compile();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", rest @ ..] => bench::run(rest),
        ["bogo", rest @ ..] => bogo::run(rest),
        [name @ ("chaos" | "flood" | "recheck"), rest @ ..] => namespaced::run(name, rest),
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
