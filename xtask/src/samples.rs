//! `cargo xtask samples`: hands over to the example `samples` of the crate that imports.

use std::process::Command;

use crate::workspace::{Outcome, root};

/// Runs it with the words behind the verb. Paths are the caller's: the folder is not changed.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--locked", "--quiet", "--package", "tacit-import", "--example", "samples"])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .arg("--")
        .args(words)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("samples: see above".to_owned()) }
}
