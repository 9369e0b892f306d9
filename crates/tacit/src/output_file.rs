//! Writes a policy to the file that `--output` names.
//!
//! ```text
//!   a new file                    is created atomically
//!   a regular file                is replaced atomically; mode and owner are kept
//!   a symbolic link               its target is replaced; the link is kept
//!   a FIFO or a device            is opened and written
//!   a descriptor, /dev/stdout     is written at its current position
//! ```
//!
//! The file must not be an input file. A replaced file loses its extended attributes, such as
//! access control lists.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use crate::temporary_file::TemporaryFile;

/// Identifies a file independently of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// A file, which another program can read by its name.
    File,
    /// A descriptor, a FIFO or a device.
    Stream,
}

/// Writes the text to `path`, unless the file is one of the `inputs`.
///
/// # Errors
/// What failed and what to do, in one line without the file name.
pub(crate) fn write(
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
        let fix = "use --output with the name of another file";
        return Err(format!("the file is an input of this command and is not overwritten: {fix}"));
    }
    let written = match &found {
        None => create(path, text).map(|()| Written::File),
        Some(_) if is_descriptor(path) => append(path, text).map(|()| Written::Stream),
        Some(old) if old.is_file() => replace(path, old, text).map(|()| Written::File),
        Some(_) => write_through(path, text).map(|()| Written::Stream),
    };
    written.map_err(|error| cannot_write(&error))
}

/// Checks whether a new file can be created at this path, without leaving one.
///
/// # Errors
/// As [`write`].
pub(crate) fn check_new(path: &Path) -> std::result::Result<(), String> {
    temporary_for(path, 0o600).map(drop).map_err(|error| cannot_write(&error))
}

/// Whether the path names a descriptor of this process.
fn is_descriptor(path: &Path) -> bool {
    const NAMES: [&str; 4] = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc/self/fd"];
    NAMES.iter().any(|name| path.starts_with(name))
}

/// Appends the text, because the shell has opened the file and truncated it if it should.
fn append(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes())
}

fn cannot_write(error: &Error) -> String {
    format!("{error}: use --output to name a file that you can write")
}

/// Creates a new file, also as the target of a dangling link.
fn create(path: &Path, text: &str) -> Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return std::fs::write(path, text);
    }
    let temporary = temporary_for(path, 0o666)?;
    temporary.write(text)?;
    temporary.replace(path)
}

/// Replaces a regular file by one with the same mode and owner. An agent that reloads reads either
/// the old text or the new one.
fn replace(path: &Path, old: &Metadata, text: &str) -> Result<()> {
    // Replaces the target of a link, not the link.
    let target = std::fs::canonicalize(path)?;
    let is_denied = |error: &Error| error.kind() == ErrorKind::PermissionDenied;
    let temporary = match temporary_for(&target, 0o600) {
        Ok(temporary) => temporary,
        // The directory is not writable, but the file may be.
        Err(error) if is_denied(&error) => return write_in_place(&target, text),
        Err(error) => return Err(error),
    };
    match take_owner(temporary.file(), old) {
        Ok(()) => {}
        // Only root may change the owner, and only to a user of its user namespace.
        Err(error) if is_denied(&error) || error.kind() == ErrorKind::InvalidInput => {
            drop(temporary);
            return write_in_place(&target, text);
        }
        Err(error) => return Err(error),
    }
    temporary.write(text)?;
    // The mode is set last, because changing the owner and writing clear some of its bits.
    temporary.file().set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    temporary.replace(&target)
}

fn write_in_place(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Opens and writes a FIFO, a device or a similar file.
fn write_through(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

/// Creates a file with a temporary name in the same directory.
fn temporary_for(path: &Path, mode: u32) -> Result<TemporaryFile> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    TemporaryFile::create(temporary.into(), mode)
}

/// Gives a file the owner of another one.
fn take_owner(file: &File, old: &Metadata) -> Result<()> {
    let new = file.metadata()?;
    if new.uid() != old.uid() || new.gid() != old.gid() {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    Ok(())
}
