//! `cargo xtask chaos`: agents and runs under load while everything that can be killed is killed.
//!
//! The work is done by `scripts/chaos`, in network and process namespaces that nothing else is in.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::workspace::{Outcome, cargo, root, status, target_folder};

/// Builds tacit, and runs the script with it; the words are the script's own.
///
/// # Errors
/// The build fails, or the script has found a fault, which it has named.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let built = status(cargo().args(["build", "--locked", "--release", "--package", "tacit"]))?;
    if !built.success() {
        return Err(format!("chaos: cargo build: {built}"));
    }
    let mut script = Command::new("unshare");
    // Process numbers of its own: none that it kills is another's, and all end with it.
    script.args(["--net", "--mount", "--pid", "--fork", "--mount-proc"]);
    if !is_root() {
        // In a user namespace of its own, an ordinary user may make the others too.
        script.args(["--user", "--map-root-user"]);
    }
    script.args(["/usr/bin/python3", "-B", "scripts/chaos", "--tacit"]);
    script.arg(target_folder().join("release/tacit")).args(words).current_dir(root());
    let status = script.status().map_err(|error| format!("chaos: unshare: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("chaos: {status}")) }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
