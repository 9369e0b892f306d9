//! What every verb uses: where the sources are, and what a verb ends with.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

/// What a verb ends with: nothing, or a line for the developer.
pub(crate) type Outcome = Result<(), String>;

/// The folder with the workspace's `Cargo.toml`. cargo says where this run's sources are; what was
/// true at compile time may be another checkout that shares the target folder.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(env!("CARGO"))
}

/// Runs a cargo with its output untouched.
pub(crate) fn status(cargo: &mut Command) -> Result<ExitStatus, String> {
    cargo.status().map_err(|error| format!("cannot run cargo: {error}"))
}

/// The folder that builds go to.
pub(crate) fn target_folder() -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    root().join(target)
}
