//! `cargo xtask bench`: builds and runs the benchmarks in the crate `bench` (release build). With
//! the argument `packets`, the command instead runs the example `packet_path`, which measures IPsec
//! tunnels.

use crate::workspace::{Outcome, cargo, status};

/// Runs the command with these arguments.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let (target, rest): (&[&str], _) = match words {
        ["packets", rest @ ..] => (&["--package", "tacit", "--example", "packet_path"], rest),
        _ => (&["--package", "bench"], words),
    };
    let mut cargo = cargo();
    cargo.args(["run", "--locked", "--quiet", "--release"]).args(target).arg("--").args(rest);
    let status = status(&mut cargo)?;
    if status.success() { Ok(()) } else { Err(format!("bench failed: {status}")) }
}
