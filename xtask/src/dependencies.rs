//! `cargo xtask dependencies`: checks the licences, sources and security advisories of the
//! dependencies, with cargo-deny and `deny.toml`.
//!
//! The command downloads the database of advisories, or uses an earlier copy if there is no
//! network. If there is no copy either, the command reports that it skips the check of advisories.
//!
//! The command uses the cargo-deny that `scripts/install-deps.sh` has installed, or the one in
//! `PATH`. If cargo-deny is not installed, the command skips all checks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{Outcome, root, target_folder};

const PROGRAM: &str = "cargo-deny";

/// Runs the checks.
pub(crate) fn run() -> Outcome {
    let Some(program) = installed() else {
        println!(
            "skipped the check of dependencies: {PROGRAM} is not installed; \
             scripts/install-deps.sh installs it"
        );
        return Ok(());
    };
    deny(&program, &["check", "licenses", "bans", "sources"])?;
    advisories(&program)
}

fn advisories(program: &Path) -> Outcome {
    let fetched = command(program, &["fetch", "db"]).stderr(Stdio::null()).status();
    if fetched.is_ok_and(|status| status.success()) {
        return deny(program, &["check", "advisories"]);
    }
    if !databases().is_some_and(|folder| has_entry(&folder)) {
        println!(
            "skipped the check of advisories: cannot download the database, and there is no \
             earlier copy"
        );
        return Ok(());
    }
    println!("cannot download the database of advisories: the check uses an earlier copy");
    deny(program, &["--offline", "check", "advisories"])
}

fn deny(program: &Path, words: &[&str]) -> Outcome {
    let status = command(program, words)
        .status()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err("a check of the dependencies failed: see the messages above".to_owned())
    }
}

fn command(program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("--locked").args(words).current_dir(root());
    command
}

/// The program in the target directory, or the one in `PATH`.
fn installed() -> Option<PathBuf> {
    let own = target_folder().join("tools/bin").join(PROGRAM);
    let is_program = |path: &PathBuf| {
        let mut version = Command::new(path);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    [own, PathBuf::from(PROGRAM)].into_iter().find(is_program)
}

/// The directory of cargo-deny's databases.
fn databases() -> Option<PathBuf> {
    let in_home = |home: OsString| PathBuf::from(home).join(".cargo");
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(in_home))?;
    Some(cargo.join("advisory-dbs"))
}

/// Whether a directory exists and contains a directory.
fn has_entry(folder: &Path) -> bool {
    let Ok(mut entries) = folder.read_dir() else { return false };
    entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_a_directory_in_the_directory_of_databases() {
        let folder = std::env::temp_dir().join(format!("xtask-databases-{}", std::process::id()));
        assert!(!has_entry(&folder));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("db.lock"), "").unwrap();
        assert!(!has_entry(&folder), "a lock is no database");
        std::fs::create_dir(folder.join("advisory-db-3157b0e258782691")).unwrap();
        assert!(has_entry(&folder));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
