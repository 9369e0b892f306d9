//! Where the sources and the build are, and the one directory that benchmarks write to.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the workspace's `Cargo.toml`. cargo says where this run's sources are; what was
/// true at compile time may be another checkout that shares the target folder.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// Builds for release what is in `dir`.
pub(crate) fn build(dir: &Path, words: &[&str], target: &Path) -> Result<(), String> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--locked", "--release", "--bins"]).args(words);
    build.arg("--target-dir").arg(target).current_dir(dir);
    let status = build.status().map_err(|error| format!("cargo build: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo build --release: {status}")) }
}

/// The build directory that this program is in.
pub(crate) fn target_dir() -> Result<PathBuf, String> {
    let here = own_program()?;
    let target = here.ancestors().nth(2).filter(|_| here.file_name() == Some(OsStr::new("bench")));
    target.map(Path::to_path_buf).ok_or_else(|| format!("{} has moved", here.display()))
}

/// This program.
pub(crate) fn own_program() -> Result<PathBuf, String> {
    std::env::current_exe()
        .map_err(|error| format!("cannot find the file of this program: {error}"))
}

/// Two benchmarks at a time would measure each other.
pub(crate) fn lock(bench: &Path) -> Result<File, String> {
    let path = bench.join("lock");
    let locked = fs::create_dir_all(bench).and_then(|()| File::create(&path)).map(|file| {
        let held = file.try_lock();
        (file, held)
    });
    match locked {
        Ok((file, Ok(()))) => Ok(file),
        Ok((_, Err(error))) => Err(format!("another benchmark runs here: {error}")),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Certificates, configurations and logs of this run; they stay for a look until the next.
pub(crate) fn fresh_dir(bench: &Path) -> Result<PathBuf, String> {
    let dir = bench.join("run");
    let fresh = || {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)
    };
    fresh().map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}
