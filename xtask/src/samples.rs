//! `cargo xtask samples`: hands over to the example `samples` of the crate that imports.

use crate::workspace::{Outcome, cargo, root, status};

/// Runs it with the words behind the verb. Paths are the caller's: the folder is not changed.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let mut cargo = cargo();
    cargo
        .args(["run", "--locked", "--quiet", "--package", "tacit-import", "--example", "samples"])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .arg("--")
        .args(words);
    if status(&mut cargo)?.success() { Ok(()) } else { Err("samples: see above".to_owned()) }
}
