//! Reads and writes the inputs of a fuzz target, and the files that contain them.
//!
//! ```text
//!   fuzz/seeds/NAME/          written by hand, readable
//!   fuzz/corpus/NAME.tar.gz   found by fuzzing, reduced to inputs that reach different code
//!   target/fuzz/NAME/         not committed: new inputs, and inputs that fail
//! ```

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{root, target_folder};

/// The largest permitted archive.
const ARCHIVE_BYTES_MAX: u64 = 256 * 1024;

/// The files of one target.
pub(crate) struct Corpus {
    /// The directory for files that are not committed.
    pub(crate) folder: PathBuf,
    name: &'static str,
}

impl Corpus {
    pub(crate) fn of(name: &'static str) -> Result<Self, String> {
        let folder = target_folder().join("fuzz").join(name);
        make(&folder)?;
        Ok(Self { folder, name })
    }

    /// The committed inputs: the unpacked archive and the seeds.
    pub(crate) fn committed(&self) -> Result<Vec<PathBuf>, String> {
        let unpacked = self.empty("committed")?;
        let archive = self.archive();
        if archive.exists() {
            tar(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked))?;
        }
        let seeds = root().join("fuzz/seeds").join(self.name);
        Ok([unpacked, seeds].into_iter().filter(|folder| folder.exists()).collect())
    }

    /// The directory for new inputs.
    pub(crate) fn found(&self) -> Result<PathBuf, String> {
        let folder = self.folder.join("corpus");
        make(&folder)?;
        Ok(folder)
    }

    /// Creates an empty directory.
    pub(crate) fn empty(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(|error| wrong(&folder, &error))?;
        }
        make(&folder)?;
        Ok(folder)
    }

    /// Packs the inputs of a directory into the archive. The same inputs give the same archive.
    pub(crate) fn pack(&self, inputs: &Path) -> Result<u64, String> {
        let archive = self.archive();
        let sorted = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];
        let mut command = Command::new("tar");
        command.args(sorted).args(["--mode=u=rw,go=r", "--format=ustar", "-I", "gzip -9n"]);
        let mut names = file_names(inputs)?;
        names.sort();
        if names.is_empty() {
            return Err(format!("fuzz {}: there is no input to pack into the archive", self.name));
        }
        make(&root().join("fuzz/corpus"))?;
        tar(command.arg("-cf").arg(&archive).arg("-C").arg(inputs).args(names))?;
        let bytes = fs::metadata(&archive).map_err(|error| wrong(&archive, &error))?.len();
        match bytes <= ARCHIVE_BYTES_MAX {
            true => Ok(bytes),
            false => Err(format!(
                "{}: the archive has {bytes} bytes; the limit is {ARCHIVE_BYTES_MAX}: lower the \
                 input length limit of the target in xtask/src/fuzz/target.rs",
                archive.display()
            )),
        }
    }

    /// Keeps a failing input, under a name that depends on its content.
    pub(crate) fn keep_failing(&self, input: &Path) -> Result<PathBuf, String> {
        let bytes = fs::read(input).map_err(|error| wrong(input, &error))?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let kept = self.folder.join(format!("failing-{:016x}.bin", hasher.finish()));
        fs::write(&kept, bytes).map_err(|error| wrong(&kept, &error))?;
        Ok(kept)
    }

    fn archive(&self) -> PathBuf {
        root().join("fuzz/corpus").join(format!("{}.tar.gz", self.name))
    }
}

fn file_names(folder: &Path) -> Result<Vec<std::ffi::OsString>, String> {
    let entries = fs::read_dir(folder).map_err(|error| wrong(folder, &error))?;
    entries.map(|entry| Ok(entry.map_err(|error| wrong(folder, &error))?.file_name())).collect()
}

fn tar(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run tar: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("tar failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| wrong(folder, &error))
}

fn wrong(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
