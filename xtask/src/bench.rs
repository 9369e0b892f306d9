//! `cargo xtask bench`: builds the crate `bench` for release and runs it.

use crate::workspace::{Outcome, cargo, status};

/// Runs it with these arguments.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let mut cargo = cargo();
    cargo.args(["run", "--locked", "--quiet", "--release", "--package", "bench", "--"]).args(words);
    let status = status(&mut cargo)?;
    if status.success() { Ok(()) } else { Err(format!("bench failed: {status}")) }
}
