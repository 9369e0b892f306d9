//! `cargo xtask bench`: builds and runs the benchmarks (the crate `bench`, release build). `bench
//! packets` measures tunnels: instead of the benchmarks, it runs the example `packet_path`.

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
