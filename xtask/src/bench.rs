//! `cargo xtask bench`: builds the crate `bench` for release and runs it.

use std::process::Command;

use crate::workspace::Outcome;

/// Runs it with the words behind the verb.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--locked", "--quiet", "--release", "--package", "bench", "--"])
        .args(words)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("bench: {status}")) }
}
