//! Writes a file under a temporary name, and then renames the file to its final name. Both names
//! are in the same directory. So other programs read either the older file or the complete new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file under its temporary name. It is removed when dropped, unless it was renamed.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    path: PathBuf,
    file: File,
    is_renamed: bool,
}

impl TemporaryFile {
    /// Creates the file.
    ///
    /// # Errors
    /// The error of a system call, for example because the name exists.
    pub(crate) fn create(path: PathBuf, mode: u32) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        Ok(Self { path, file, is_renamed: false })
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Appends text.
    ///
    /// # Errors
    /// The error of a system call.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        (&self.file).write_all(text.as_bytes())
    }

    /// Gives the file this name, and replaces a file that has it.
    ///
    /// # Errors
    /// The error of a system call.
    pub(crate) fn replace(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_renamed = true;
        Ok(())
    }

    /// Gives the file this name, if no file has it.
    ///
    /// # Errors
    /// The error of a system call; `AlreadyExists`: another file has the name.
    pub(crate) fn publish_new(self, path: &Path) -> io::Result<()> {
        fs::hard_link(&self.path, path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            // A file that is left is harmless.
            drop(fs::remove_file(&self.path));
        }
    }
}
