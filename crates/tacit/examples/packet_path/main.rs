//! Measures the cost of an IPsec tunnel of tacit. For comparison, measures a plain connection and
//! kernel-libipsec of strongSwan.
//!
//! ```text
//! cargo run --release -p tacit --example packet_path -- --rounds 3
//! ```
//!
//! Each round measures all three with one stream, with ten sessions of 100-byte messages, and with
//! one session. CPU time is that of the load programs and of both ends of the tunnel. libipsec is
//! skipped if it is not installed (`scripts/install-deps.sh`). The example uses namespaces, and
//! needs neither root nor a network.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement stops at what it did not expect"
)]

#[path = "../../tests/packet/driver.rs"]
mod driver;
#[path = "../../tests/packet/keys.rs"]
mod keys;
mod load;

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
        ["stream", address] => load::stream(address),
        ["requests", address, sessions] => load::requests(address, sessions.parse().unwrap()),
        [] => return measure("3"),
        ["--rounds", rounds] => return measure(rounds),
        _ => {
            eprintln!("usage: packet_path [--rounds N]");
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

/// Runs the script in new namespaces.
fn measure(rounds: &str) -> ExitCode {
    let mut command = Command::new("unshare");
    command.args(["-rnm", "bash", "-c", include_str!("measure.sh")]);
    command.env("ROUNDS", rounds).env("PACKET_CIPHER", "gcm");
    let status = command.env("PROGRAM", std::env::current_exe().unwrap()).status().unwrap();
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}
