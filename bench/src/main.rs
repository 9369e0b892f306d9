//! `cargo xtask bench`: measures the CPU time, memory and latency of tacit and of other proxies.
//!
//! ```text
//! bench              builds for release, enters a network namespace if allowed, runs the driver
//! bench driver       load client -> client proxy == mutual TLS 1.3 ==> server proxy -> load server
//!                    takes one sample of each peer for each workload in each round
//! bench peer-network creates a network namespace with large TCP segments, for some peers
//! bench compare      compares two versions of tacit
//! bench projection   compares the estimates of `tacit project` with measurements
//! bench host         measures the cost of one policy for all programs of a host
//! bench sockets      measures what a lock around the connection table would cost the agent
//! bench relay        relays TCP connections without TLS, for the peer `relays`
//! ```
//! The load client and the load server are processes of `tacit workload` (see `load.rs`). A *peer*
//! is one of the compared pairs: two proxies, two programs with a TLS library (`bench/inprocess`),
//! or two programs under `tacit run`. The processes of all peers run during the whole benchmark.
//! Only one peer at a time has load. `docs/benchmarks.md` explains the measured values.
//!
//! The benchmark fails if a peer loses bytes. Peers that cannot be started are reported and
//! omitted. Traffic between hosts is not measured.

mod certs;
mod compare;
mod driver;
mod host;
mod inprocess;
mod links;
mod load;
mod measure;
mod memory;
mod network;
mod options;
mod peer_network;
mod peers;
mod process;
mod progress;
mod projection;
mod relay;
mod report;
mod run_directory;
mod runs;
mod sections;
mod sockets;
mod tls_settings;
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
        ["host", rest @ ..] => host::run(rest),
        ["host-driver", rest @ ..] => host::drive(rest),
        ["host-echo", address] => host::echo(address),
        ["driver", rest @ ..] => Options::parse(rest).and_then(|options| driver::drive(&options)),
        ["peer-network", congestion] => peer_network::hold(congestion),
        ["relay", listen, connect] => relay::run(listen, connect),
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
