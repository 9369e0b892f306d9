//! `cargo xtask samples`: runs the example `samples` of the crate tacit-import. This example
//! imports the sample files of a directory.

use crate::workspace::{Outcome, cargo, root, status};

/// Runs the example with these arguments. Relative paths are relative to the current directory.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let mut cargo = cargo();
    cargo
        .args(["run", "--locked", "--quiet", "--package", "tacit-import", "--example", "samples"])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .arg("--")
        .args(words);
    if status(&mut cargo)?.success() {
        Ok(())
    } else {
        Err("samples failed: see the messages above".to_owned())
    }
}
