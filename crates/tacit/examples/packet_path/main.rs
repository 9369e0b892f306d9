//! Compares the throughput of tunnels in user space with that of a plain connection. The tunnels
//! are the IPsec tunnels of tacit, kernel-libipsec of strongSwan, wireguard-go and GotaTun.
//!
//! ```text
//! scripts/install-bench.sh; cargo xtask bench packets --rounds 5
//! ```
//!
//! A pair of interfaces connects two network namespaces. All tunnels exist during the whole
//! measurement, but only one at a time transfers data. The keys of tacit's tunnel come from this
//! example. The other programs negotiate their keys. The example skips programs that are not
//! installed, and does not need root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement stops at the first unexpected result"
)]

#[path = "../../tests/packet/driver.rs"]
mod driver;
#[path = "../../tests/packet/keys.rs"]
mod keys;
mod load;
mod rounds;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    if let Ok(end) = std::env::var("PACKET_DRIVER") {
        driver::run(&end);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let texts: Vec<_> = arguments.iter().map(String::as_str).collect();
    match texts.as_slice() {
        ["serve"] => load::serve(),
        ["measure", rest @ ..] => rounds::measure(rest),
        options => return begin(options),
    }
    ExitCode::SUCCESS
}

/// Runs the script in new namespaces.
fn begin(options: &[&str]) -> ExitCode {
    let mut rounds = "3";
    // As programs under `tacit run` have it: the first that the host allows.
    let mut congestion = "cubic reno";
    for option in options.chunks(2) {
        match option {
            ["--rounds", number] => rounds = number,
            ["--congestion", name] => congestion = name,
            _ => {
                eprintln!("usage: cargo xtask bench packets [--rounds N] [--congestion NAME]");
                return ExitCode::from(64);
            }
        }
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rnm", "bash", "-c", include_str!("measure.sh")]);
    command.env("ROUNDS", rounds).env("CONGESTION", congestion);
    command.env("PACKET_CIPHER", "gcm").env("TOOLS", tools());
    let status = command.env("PROGRAM", program).status().unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Where `scripts/install-bench.sh` installs programs.
fn tools() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    // <target>/<profile>/examples/packet_path
    program.ancestors().nth(3).unwrap().join("tools/bin")
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}
