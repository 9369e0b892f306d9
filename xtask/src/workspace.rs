//! Provides functions for all commands of xtask. These functions return paths of the workspace, and
//! run cargo.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// The result of a command: success, or an error message.
pub(crate) type Outcome = Result<(), String>;

/// The directory with the workspace's `Cargo.toml`. cargo's variable is preferred to the path at
/// compile time, which may be another checkout with the same target directory.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// A command for the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(env!("CARGO"))
}

/// Runs cargo without capturing its output.
pub(crate) fn status(cargo: &mut Command) -> Result<ExitStatus, String> {
    cargo.status().map_err(|error| format!("cannot run cargo: {error}"))
}

/// The target directory.
pub(crate) fn target_folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}
