//! `cargo xtask chaos`: tests agents and programs under load while processes are killed and files
//! are replaced.
//!
//! The script `scripts/chaos` does the work, in its own network and process namespaces.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::workspace::{Outcome, cargo, root, status, target_folder};

/// Builds tacit, and runs the script with these arguments.
///
/// # Errors
/// The build failed, or the script found a fault, which it has printed.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let built = status(cargo().args(["build", "--locked", "--release", "--package", "tacit"]))?;
    if !built.success() {
        return Err(format!("chaos: cargo build failed: {built}"));
    }
    let mut script = Command::new("unshare");
    // A process namespace: the script cannot kill other processes, and all of its own end with it.
    script.args(["--net", "--mount", "--pid", "--fork", "--mount-proc"]);
    if !is_root() {
        // Without root, a user namespace is needed to make the others.
        script.args(["--user", "--map-root-user"]);
    }
    script.args(["/usr/bin/python3", "-B", "scripts/chaos", "--tacit"]);
    script.arg(target_folder().join("release/tacit")).args(words).current_dir(root());
    let status = script.status().map_err(|error| format!("chaos: cannot run unshare: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("chaos failed: {status}")) }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
