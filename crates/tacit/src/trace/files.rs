//! The files of a trace: they show what passes through connections, so only their owner may read
//! them.

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tacit_core::message_id::MessageId;

/// The mode of the files: read and written by their owner.
const MODE: u32 = 0o600;

/// What happens to a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overwrite {
    /// It stays, and the trace is not started.
    Refuse,
    /// It loses its content, and gets the mode of a new file. A symbolic link is not followed.
    Replace,
}

/// A file that a trace writes.
#[derive(Debug)]
pub(super) enum OutputFile {
    /// One that is new.
    New(File, PathBuf),
    /// One that existed.
    Replaced(File),
    StandardOutput(io::Stdout),
}

/// Why a file cannot be opened.
#[derive(Debug)]
pub(super) struct FileError {
    path: PathBuf,
    error: io::Error,
}

impl FileError {
    /// The identifier of the message.
    pub(super) fn id(&self) -> MessageId {
        match self.error.kind() {
            io::ErrorKind::AlreadyExists => MessageId("file-exists"),
            _ => MessageId("file-failed"),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.error.kind() {
            io::ErrorKind::AlreadyExists => write!(
                f,
                "the file {path} exists\n    \
                 fix: name a new file, or replace its content with --overwrite"
            ),
            _ => write!(f, "cannot open {path} for writing: {}", self.error),
        }
    }
}

impl OutputFile {
    /// Opens a file that only its owner may read; `-` is standard output.
    ///
    /// # Errors
    /// It exists, and may not be replaced; or the kernel refuses.
    pub(super) fn open(path: &Path, overwrite: Overwrite) -> Result<Self, FileError> {
        if path.as_os_str() == "-" {
            return Ok(Self::StandardOutput(io::stdout()));
        }
        let opened = match overwrite {
            Overwrite::Refuse => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(MODE)
                .open(path)
                .map(|file| Self::New(file, path.to_owned())),
            Overwrite::Replace => replace(path).map(Self::Replaced),
        };
        opened.map_err(|error| FileError { path: path.to_owned(), error })
    }

    /// Removes it again if it is new: there is no trace.
    pub(super) fn discard(self) {
        if let Self::New(_, path) = self {
            // It holds nothing.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The mode is set before the content. A process that has the file open, and the owner of the file,
/// can still read what is written.
fn replace(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).mode(MODE).custom_flags(flags);
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.set_len(0)?;
    }
    Ok(file)
}

impl AsFd for OutputFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::New(file, _) | Self::Replaced(file) => file.as_fd(),
            Self::StandardOutput(output) => output.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn directory(name: &str) -> PathBuf {
        let name = format!("tacit-trace-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_that_exists_stays_unless_it_may_be_replaced() {
        let directory = directory("files");
        let path = directory.join("old");
        std::fs::write(&path, "old and long").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = OutputFile::open(&path, Overwrite::Refuse).unwrap_err();
        assert!(refused.to_string().contains("--overwrite"), "{refused}");
        let Ok(OutputFile::Replaced(mut file)) = OutputFile::open(&path, Overwrite::Replace) else {
            panic!("a file")
        };
        file.write_all(b"new").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), mode(&path)), (b"new".to_vec(), 0o600));
        let new = directory.join("new");
        let opened = OutputFile::open(&new, Overwrite::Refuse).unwrap();
        assert_eq!(mode(&new), 0o600);
        opened.discard();
        assert!(!new.exists());
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(OutputFile::open(&link, Overwrite::Replace).is_err());
        assert!(OutputFile::open(&link, Overwrite::Refuse).is_err());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
