//! Where the policy of an import is written.
//!
//! ```text
//!   no file, or a regular one     a new file takes its place in one step, with its mode and owner
//!   a symbolic link               the same at what it points to; the link stays
//!   a FIFO, a device              is opened and written
//!   a descriptor, /dev/stdout     is written where it stands, whatever it leads to
//! ```
//!
//! A file that the import has read is refused. Access control lists and other extended attributes
//! of a replaced file are not kept.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Which file a name leads to, whatever the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// A file, which another program can read by that name.
    File,
    /// A descriptor, a FIFO or a device.
    Stream,
}

/// Writes the text there, unless the file is one of the `inputs`.
///
/// # Errors
/// What failed and what to do, in one line without the name of the file.
pub(super) fn write(
    path: &Path,
    text: &str,
    inputs: &[FileId],
) -> std::result::Result<Written, String> {
    let found = match std::fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(cannot_write(&error)),
    };
    if found.as_ref().is_some_and(|metadata| inputs.contains(&FileId::of(metadata))) {
        let fix = "name another file with --output";
        return Err(format!("this import reads the file, so it is not overwritten: {fix}"));
    }
    let written = match &found {
        None => create(path, text).map(|()| Written::File),
        Some(_) if is_descriptor(path) => append(path, text).map(|()| Written::Stream),
        Some(old) if old.is_file() => replace(path, old, text).map(|()| Written::File),
        Some(_) => write_through(path, text).map(|()| Written::Stream),
    };
    written.map_err(|error| cannot_write(&error))
}

/// Whether the name is one of a descriptor of this process.
fn is_descriptor(path: &Path) -> bool {
    const NAMES: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd"];
    NAMES.iter().any(|name| path.starts_with(name))
}

/// The shell has opened the file, and decided what stays of it.
fn append(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())
}

fn cannot_write(error: &Error) -> String {
    format!("cannot write the policy: {error}; name a file that can be written with --output")
}

/// A new file, or what a link without a target points to.
fn create(path: &Path, text: &str) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return std::fs::write(path, text);
    }
    let beside = Beside::new(path, 0o666)?;
    beside.fill(text)?;
    beside.rename_to(path)
}

/// A file with the same mode and owner takes the place of a regular file. An agent that reloads
/// sees the old text or the new.
fn replace(path: &Path, old: &Metadata, text: &str) -> Result<()> {
    // What a link points to is replaced, not the link.
    let target = std::fs::canonicalize(path)?;
    let is_denied = |error: &Error| error.kind() == ErrorKind::PermissionDenied;
    let beside = match Beside::new(&target, 0o600) {
        Ok(beside) => beside,
        // The directory is closed, but the file may be open.
        Err(error) if is_denied(&error) => return write_in_place(&target, text),
        Err(error) => return Err(error),
    };
    match beside.take_owner(old) {
        Ok(()) => {}
        // Only root may give a file to another user, and only to a user of its namespace.
        Err(error) if is_denied(&error) || error.kind() == ErrorKind::InvalidInput => {
            drop(beside);
            return write_in_place(&target, text);
        }
        Err(error) => return Err(error),
    }
    beside.fill(text)?;
    // The mode comes last: owners and writes clear bits of it.
    beside.file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    beside.rename_to(&target)
}

fn write_in_place(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// A FIFO, a device or the like is written and stays what it is.
fn write_through(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// A file beside another one, removed unless it takes the place of that one.
struct Beside {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl Beside {
    /// Makes it; a file or link of that name is never followed.
    fn new(path: &Path, mode: u32) -> Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let path = PathBuf::from(beside);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        Ok(Self { path, file, is_renamed: false })
    }

    /// Gives it the owner of a file.
    fn take_owner(&self, old: &Metadata) -> Result<()> {
        let new = self.file.metadata()?;
        if new.uid() != old.uid() || new.gid() != old.gid() {
            fchown(&self.file, Some(old.uid()), Some(old.gid()))?;
        }
        Ok(())
    }

    fn fill(&self, text: &str) -> Result<()> {
        (&self.file).write_all(text.as_bytes())
    }

    fn rename_to(mut self, path: &Path) -> Result<()> {
        std::fs::rename(&self.path, path)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
