//! Finds the source directory and the build directory. Creates the directory to which benchmarks
//! write files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory with the workspace's `Cargo.toml`. cargo's variable is preferred to the path at
/// compile time, which may be another checkout with the same target directory.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// Builds the programs in `dir` for release.
pub(crate) fn build(dir: &Path, words: &[&str], target: &Path) -> Result<(), String> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--locked", "--release", "--bins"]).args(words);
    build.arg("--target-dir").arg(target).current_dir(dir);
    let status = build.status().map_err(|error| format!("cannot run cargo build: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo build --release failed: {status}")) }
}

/// The build directory of this program.
pub(crate) fn target_dir() -> Result<PathBuf, String> {
    let here = own_program()?;
    let target = here.ancestors().nth(2).filter(|_| here.file_name() == Some(OsStr::new("bench")));
    target.map(Path::to_path_buf).ok_or_else(|| {
        format!(
            "the benchmark program {} is not in `target/bench`: start the benchmark with `cargo \
             xtask bench`",
            here.display()
        )
    })
}

/// The path of this program.
pub(crate) fn own_program() -> Result<PathBuf, String> {
    std::env::current_exe()
        .map_err(|error| format!("cannot determine the path of this program: {error}"))
}

/// Locks the directory: concurrent benchmarks would disturb each other.
pub(crate) fn lock(bench: &Path) -> Result<File, String> {
    let path = bench.join("lock");
    let locked = fs::create_dir_all(bench).and_then(|()| File::create(&path)).map(|file| {
        let held = file.try_lock();
        (file, held)
    });
    match locked {
        Ok((file, Ok(()))) => Ok(file),
        Ok((_, Err(error))) => Err(format!("another benchmark is running: {error}")),
        Err(error) => Err(format!("cannot lock {}: {error}", path.display())),
    }
}

/// The directory for certificates, configurations and logs of this run; kept until the next run.
pub(crate) fn fresh_dir(bench: &Path) -> Result<PathBuf, String> {
    let dir = bench.join("run");
    let fresh = || {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)
    };
    fresh().map_err(|error| format!("cannot create {}: {error}", dir.display()))?;
    Ok(dir)
}
