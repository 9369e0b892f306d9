//! Reads key, certificate and trust files, and detects when they change.
//!
//! A file is opened once, and its type and mode are checked on the open file. A [`FileStamp`]
//! detects that a file has changed, and also that a symbolic link now leads to another file.
//! Container platforms replace a secret by changing a symbolic link.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tacit_sys::{input_file, process};

/// The largest size of a certificate, key or trust file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// The identity of the file at a path, and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The path that was opened.
    pub path: PathBuf,
    /// `None` if the file did not exist or could not be examined.
    state: Option<FileState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    dev: u64,
    ino: u64,
    size_bytes: u64,
    modified: FileTime,
    status_changed: FileTime,
}

/// A timestamp of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileTime {
    seconds: i64,
    nanoseconds: i64,
}

impl FileStamp {
    /// Examines a path now. A missing file has a stamp too, which differs from the stamp after the
    /// file is created.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let state = std::fs::metadata(path).ok().map(|metadata| FileState::of(&metadata));
        Self { path: path.to_owned(), state }
    }

    /// Whether another file is at the path now, or the same file with other content or another
    /// mode.
    #[must_use]
    pub fn changed(&self) -> bool {
        Self::of(&self.path) != *self
    }
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size_bytes: metadata.size(),
            modified: FileTime { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() },
            status_changed: FileTime {
                seconds: metadata.ctime(),
                nanoseconds: metadata.ctime_nsec(),
            },
        }
    }
}

/// The content of a file, with its state when it was opened.
pub(super) struct FileContent {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    /// The user number of the owner.
    owner: u32,
    pub(super) stamp: FileStamp,
}

/// Why a file with a secret is not used.
#[derive(Debug)]
pub enum SecretFileFault {
    /// It could not be opened or read.
    Io(io::Error),
    /// It is a directory, a pipe or a device.
    NotRegular,
    /// It is larger than [`FILE_BYTES_MAX`].
    TooLarge,
    /// Its owner, who can read and replace it, is neither the user of this process nor root.
    Owner {
        /// The user number of the owner.
        uid: u32,
    },
    /// Group or others can access it.
    Exposed {
        /// The mode of the file.
        mode: u32,
    },
}

impl fmt::Display for SecretFileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::NotRegular => f.write_str("the file is not a regular file"),
            Self::TooLarge => write!(f, "the file is larger than {FILE_BYTES_MAX} bytes"),
            Self::Owner { uid } => {
                write!(
                    f,
                    "the file belongs to user {uid}, but must belong to the agent's user or to root"
                )
            }
            Self::Exposed { mode } => {
                write!(f, "the group or other users can access the file (mode {mode:04o})")
            }
        }
    }
}

impl std::error::Error for SecretFileFault {}

/// Reads a file with a secret that no other user may know or replace: a regular file of the user of
/// this process or of root, which group and others cannot access.
///
/// # Errors
/// The file is another one, or cannot be read.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, SecretFileFault> {
    let FileContent { bytes, mode, owner, .. } = read(path).map_err(|error| match error {
        ReadError::Io(error) => SecretFileFault::Io(error),
        ReadError::NotRegular => SecretFileFault::NotRegular,
        ReadError::TooLarge => SecretFileFault::TooLarge,
    })?;
    if ![ROOT, process::effective_user()].contains(&owner) {
        return Err(SecretFileFault::Owner { uid: owner });
    }
    if is_exposed(mode) { Err(SecretFileFault::Exposed { mode }) } else { Ok(bytes) }
}

/// Whether group or others can access a file with this mode.
pub(super) fn is_exposed(mode: u32) -> bool {
    mode & 0o077 != 0
}

const ROOT: u32 = 0;

/// The reason why a file could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(io::Error),
    NotRegular,
    TooLarge,
}

/// Reads a complete file.
///
/// The stamp is taken before the content is read. So a change between the two is detected later.
pub(super) fn read(path: &Path) -> Result<FileContent, ReadError> {
    let file = input_file::open_at_once(path).map_err(ReadError::Io)?;
    let metadata = file.metadata().map_err(ReadError::Io)?;
    if !metadata.is_file() {
        return Err(ReadError::NotRegular);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(ReadError::Io)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge);
    }
    let stamp = FileStamp { path: path.to_owned(), state: Some(FileState::of(&metadata)) };
    Ok(FileContent { bytes, mode: metadata.mode() & 0o7777, owner: metadata.uid(), stamp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_certificates::Directory;
    use std::fs::File;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_stamp_changes_with_the_file() {
        let directory = Directory::new();
        let path = directory.path().join("file");
        let missing = FileStamp::of(&path);
        assert!(!missing.changed());

        directory.write("file", "one", 0o600);
        assert!(missing.changed());
        let stamp = read(&path).ok().unwrap().stamp;
        assert!(!stamp.changed());

        directory.write("other", "two", 0o600);
        std::fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(stamp.changed(), "another file of the same size");

        let stamp = FileStamp::of(&path);
        directory.write("file", "two", 0o640);
        assert!(stamp.changed(), "only the mode differs");
        std::fs::remove_file(&path).unwrap();
        assert!(stamp.changed());
    }

    #[test]
    fn a_swapped_directory_link_is_a_change() {
        let directory = Directory::new();
        let at = |name: &str| directory.path().join(name);
        for version in ["v1", "v2"] {
            std::fs::create_dir(at(version)).unwrap();
            directory.write(&format!("{version}/cert"), "same", 0o600);
        }
        symlink("v1", at("..data")).unwrap();
        symlink("..data/cert", at("cert")).unwrap();
        let stamp = read(&at("cert")).ok().unwrap().stamp;
        assert!(!stamp.changed());
        symlink("v2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(stamp.changed());
    }

    #[test]
    fn only_regular_files_of_a_sane_size_are_read() {
        let directory = Directory::new();
        assert!(matches!(read(directory.path()), Err(ReadError::NotRegular)));
        assert!(matches!(read(Path::new("/dev/zero")), Err(ReadError::NotRegular)));
        let large = directory.path().join("large");
        File::create(&large).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(matches!(read(&large), Err(ReadError::TooLarge)));
        let missing = directory.path().join("missing");
        assert!(matches!(read(&missing), Err(ReadError::Io(_))));
    }
}
