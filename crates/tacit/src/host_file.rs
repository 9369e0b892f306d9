//! Reads a file of the host, such as `/etc/hosts`, and reads the file again after each change.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A file, and its state when it was last read.
#[derive(Debug)]
pub struct HostFile {
    path: PathBuf,
    seen: Option<Stamp>,
}

/// Metadata that changes when the file is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_s: i64,
    /// The nanoseconds of the modification time.
    modified_ns: i64,
}

impl HostFile {
    /// A file that has not been read yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), seen: None }
    }

    /// The text of the file if it has changed since the last call. A file that cannot be read
    /// counts as unchanged, because another process may be replacing it.
    pub fn news(&mut self) -> Option<String> {
        let stamp = self.new_stamp()?;
        let bytes = std::fs::read(&self.path).ok()?;
        self.seen = Some(stamp);
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether the file has changed since the last call of [`Self::news`]. Does not open the file.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.new_stamp().is_some()
    }

    /// The current metadata, if it differs from the last one.
    fn new_stamp(&self) -> Option<Stamp> {
        let data = std::fs::metadata(&self.path).ok()?;
        let stamp = Stamp {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.len(),
            modified_s: data.mtime(),
            modified_ns: data.mtime_nsec(),
        };
        (self.seen != Some(stamp)).then_some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_has_changed() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("tacit-host-file-{}", std::process::id()));
        let mut file = HostFile::new(&path);
        assert_eq!(file.news(), None, "the file does not exist");
        std::fs::write(&path, "one").unwrap();
        assert_eq!(file.news().as_deref(), Some("one"));
        assert_eq!(file.news(), None);
        std::fs::write(&path, "other").unwrap();
        assert_eq!(file.news().as_deref(), Some("other"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.news(), None, "a missing file counts as unchanged");
    }
}
