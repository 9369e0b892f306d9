//! Runs a test script of `scripts/` in its own network namespace and process namespace. The script
//! tests a release build of tacit, which this module builds first.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::workspace::{Outcome, cargo, root, status, target_folder};

/// Builds tacit, and runs the script of this name with these arguments.
///
/// # Errors
/// The build failed, or the script found a fault, which it has printed.
pub(crate) fn run(name: &str, words: &[&str]) -> Outcome {
    let built = status(cargo().args(["build", "--locked", "--release", "--package", "tacit"]))?;
    if !built.success() {
        return Err(format!("{name}: cargo build failed: {built}"));
    }
    let mut script = Command::new("unshare");
    // A process namespace: the script cannot kill other processes, and all of its own end with it.
    script.args(["--net", "--mount", "--pid", "--fork", "--mount-proc"]);
    if !is_root() {
        // Without root, a user namespace is needed to make the others.
        script.args(["--user", "--map-root-user"]);
    }
    script.args(["/usr/bin/python3", "-B"]).arg(format!("scripts/{name}")).arg("--tacit");
    script.arg(target_folder().join("release/tacit")).args(words).current_dir(root());
    let status = script.status().map_err(|error| format!("{name}: cannot run unshare: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}")) }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
