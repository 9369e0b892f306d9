//! `cargo xtask bench`: what a proxy costs, tacit's beside its peers'.
//!
//! ```text
//! bench              builds release, enters a network namespace of its own if it may, becomes:
//! bench driver       load client -> client proxy == mutual TLS 1.3 ==> server proxy -> load server
//!                    for each round, each workload, each peer: one sample
//! bench room         a network for some peers
//! bench compare      one tacit beside an older one, in turns
//! bench projection   what `tacit project` foretells, beside a later run
//! bench sockets      locks around the agent's connection table; no network
//! ```
//! The load client and the load server are `tacit workload`, processes of their own (`load`).
//! Everybody runs from beginning to end, and one at a time is loaded. A sample is the CPU time of
//! the four processes, the rate and the latency; `docs/benchmarks.md` says how to read them. There
//! are proxies, programs with TLS in them (`bench/inprocess`), and programs under two `tacit run`s
//! (`peers`); afterwards programs under `tacit run`, beside other ways to give a program a network
//! (`runs`).
//!
//! Not done: traffic between hosts. It reports and passes no judgement: slower is not a failure,
//! but a peer that loses bytes is. One that cannot be started is left out, and told.

mod certs;
mod compare;
mod driver;
mod inprocess;
mod load;
mod measure;
mod memory;
mod network;
mod options;
mod peers;
mod place;
mod process;
mod progress;
mod projection;
mod report;
mod room;
mod runs;
mod sections;
mod sockets;
mod terms;
mod workload;
mod workspace;

use std::process::ExitCode;

use self::options::Options;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["--help" | "-h"] => {
            println!("{}", options::USAGE);
            Ok(())
        }
        ["compare", rest @ ..] => compare::run(rest),
        ["compare-driver", rest @ ..] => compare::drive(rest),
        ["projection", rest @ ..] => projection::run(rest),
        ["sockets", rest @ ..] => sockets::run(rest),
        ["driver", rest @ ..] => Options::parse(rest).and_then(|options| driver::drive(&options)),
        ["room", congestion] => room::hold(congestion),
        words => Options::parse(words).and_then(|options| driver::launch(&options, words)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}
