//! Opens the files that `tacit trace` writes. The files contain decrypted bytes or keys, so only
//! the owner of the files may read them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use tacit_core::message_id::MessageId;

use crate::address;

/// The mode of the files: read and written by their owner.
const MODE: u32 = 0o600;

/// What happens to a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overwrite {
    /// The file is kept, and the trace is not started.
    Refuse,
    /// A new file takes its place. A FIFO or a device is written to.
    Replace,
}

/// A file that a trace writes.
#[derive(Debug)]
pub(super) enum OutputFile {
    /// A new file.
    New(File, PathBuf),
    /// A FIFO or a device.
    Special(File),
    StandardOutput(io::Stdout),
}

/// A file that cannot be opened.
#[derive(Debug)]
pub(super) struct FileError {
    path: PathBuf,
    reason: Reason,
}

/// Why a file cannot be opened.
#[derive(Debug)]
enum Reason {
    Exists,
    /// The path is a symbolic link, through which another file would be written.
    Link,
    /// The file belongs to this other user, who could read the trace.
    OtherOwner(u32),
    Kernel(io::Error),
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists,
            _ => Self::Kernel(error),
        }
    }
}

impl FileError {
    /// The identifier of the message.
    pub(super) fn id(&self) -> MessageId {
        match self.reason {
            Reason::Exists => MessageId("file-exists"),
            Reason::Link | Reason::OtherOwner(_) | Reason::Kernel(_) => MessageId("file-failed"),
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.reason {
            Reason::Exists => write!(
                f,
                "the file {path} already exists\n    fix: use the name of a new file, or replace \
                 this file with --overwrite"
            ),
            Reason::Link => write!(
                f,
                "{path} is a symbolic link, and `tacit trace` does not write through symbolic \
                 links\n    fix: use the path of the file itself"
            ),
            Reason::OtherOwner(owner) => write!(
                f,
                "the file {path} belongs to {owner}, who could read the trace\n    \
                 fix: write the trace to a new file in a directory that belongs to you",
                owner = address::user_name(*owner)
            ),
            Reason::Kernel(error) => write!(f, "cannot open {path} for writing: {error}"),
        }
    }
}

impl OutputFile {
    /// Opens a file that only its owner may read; `-` is standard output.
    ///
    /// # Errors
    /// The file exists and may not be replaced, or the kernel refuses.
    pub(super) fn open(path: &Path, overwrite: Overwrite) -> Result<Self, FileError> {
        if path.as_os_str() == "-" {
            return Ok(Self::StandardOutput(io::stdout()));
        }
        let opened = match overwrite {
            Overwrite::Refuse => create(path),
            Overwrite::Replace => replace(path),
        };
        opened.map_err(|reason| FileError { path: path.to_owned(), reason })
    }

    /// Removes the file again if it is new, because there is no trace.
    pub(super) fn discard(self) {
        if let Self::New(_, path) = self {
            // The file is empty.
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a file. An existing one, also behind a symbolic link, is an error.
fn create(path: &Path) -> Result<OutputFile, Reason> {
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    Ok(OutputFile::New(file, path.to_owned()))
}

/// Makes a file in place of one that exists. The old file is removed, not written to: a process
/// that has it open, or another name of it, does not read the trace.
fn replace(path: &Path) -> Result<OutputFile, Reason> {
    let old = match fs::symlink_metadata(path) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return create(path),
        Err(error) => return Err(error.into()),
    };
    if old.is_symlink() {
        return Err(Reason::Link);
    }
    if old.uid() != rustix::process::geteuid().as_raw() {
        return Err(Reason::OtherOwner(old.uid()));
    }
    if old.is_file() {
        fs::remove_file(path)?;
        return create(path);
    }
    Ok(OutputFile::Special(OpenOptions::new().write(true).open(path)?))
}

impl AsFd for OutputFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::New(file, _) | Self::Special(file) => file.as_fd(),
            Self::StandardOutput(output) => output.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    fn directory(name: &str) -> PathBuf {
        let name = format!("tacit-trace-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_that_exists_stays_unless_it_may_be_replaced() {
        let directory = directory("files");
        let path = directory.join("old");
        fs::write(&path, "old and long").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = OutputFile::open(&path, Overwrite::Refuse).unwrap_err();
        assert!(refused.to_string().contains("--overwrite"), "{refused}");
        let mut before = File::open(&path).unwrap();
        let Ok(OutputFile::New(mut file, _)) = OutputFile::open(&path, Overwrite::Replace) else {
            panic!("a file")
        };
        file.write_all(b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"new".to_vec(), 0o600));
        let mut read = String::new();
        before.read_to_string(&mut read).unwrap();
        assert_eq!(read, "old and long", "a process with the old file reads nothing of the new");
        let new = directory.join("new");
        let opened = OutputFile::open(&new, Overwrite::Refuse).unwrap();
        assert_eq!(mode(&new), 0o600);
        opened.discard();
        assert!(!new.exists());
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(OutputFile::open(&link, Overwrite::Replace).is_err());
        assert!(OutputFile::open(&link, Overwrite::Refuse).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_of_another_user_is_not_replaced() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a file of another user needs root");
            return;
        }
        let directory = directory("owner");
        let path = directory.join("theirs");
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let refused = OutputFile::open(&path, Overwrite::Replace).unwrap_err().to_string();
        assert!(refused.contains("belongs to nobody") && refused.contains("fix: "), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::remove_dir_all(&directory).unwrap();
    }
}
