//! Writes certificates and private keys atomically. A private key has mode 0600 from the start.
//!
//! This module first writes a file under a hidden temporary name, in the directory of the final
//! file. When the file is complete, it gets its final name. To replace a file, this module renames
//! the temporary file. To create a file, this module makes a hard link, which fails if the name
//! exists. So creating a file never replaces another file.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::error::CaError;
use crate::temporary_file::TemporaryFile;

/// The files of the CA.
pub(super) const CA_CERT: &str = "ca.pem";
pub(super) const CA_KEY: &str = "ca.key";

/// The largest PEM file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

const KEY_MODE: u32 = 0o600;
const CERT_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o700;

/// Creates the directory with mode 0700, unless it exists.
pub(super) fn make_directory(path: &Path) -> Result<(), CaError> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(path)
        .map_err(file_error("cannot create", path))
}

/// Creates a certificate and its key, or neither. Overwrites no file.
pub(super) fn create_pair(
    cert_path: &Path,
    cert: &str,
    key_path: &Path,
    key: &str,
) -> Result<(), CaError> {
    // Checks first, so that the usual error leaves no temporary files.
    if let Some(path) = [cert_path, key_path].into_iter().find(|path| path.exists()) {
        return Err(CaError::Exists(path.into()));
    }
    let key_made = write(key_path, key, KEY_MODE)?;
    let cert_made = write(cert_path, cert, CERT_MODE)?;
    publish_new(key_made, key_path)?;
    publish_new(cert_made, cert_path).inspect_err(|_| drop(fs::remove_file(key_path)))
}

/// Replaces a certificate atomically.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), CaError> {
    write(path, text, CERT_MODE)?.replace(path).map_err(file_error("cannot replace", path))
}

/// Reads a PEM file.
pub(super) fn read(path: &Path) -> Result<String, CaError> {
    read_limited(&open(path)?, path)
}

/// Opens a regular file: another, such as a FIFO, could block.
fn open(path: &Path) -> Result<File, CaError> {
    let is_file = fs::metadata(path).map(|metadata| metadata.is_file());
    let opened = match is_file {
        Ok(true) => File::open(path),
        Ok(false) => Err(io::Error::other("not a regular file")),
        Err(error) => Err(error),
    };
    opened.map_err(file_error("cannot read", path))
}

/// Reads a private key; refuses one that other users can read, because they may have copied it.
pub(super) fn read_private(path: &Path) -> Result<String, CaError> {
    let file = open(path)?;
    let metadata = file.metadata().map_err(file_error("cannot read", path))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(CaError::KeyOpenToOthers(path.into(), mode));
    }
    read_limited(&file, path)
}

fn read_limited(file: &File, path: &Path) -> Result<String, CaError> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(file_error("cannot read", path))?;
    Ok(text)
}

/// Writes a complete file under its temporary name.
fn write(final_path: &Path, text: &str, mode: u32) -> Result<TemporaryFile, CaError> {
    let name = final_path.file_name().unwrap_or_default().to_string_lossy();
    let path = final_path.with_file_name(format!(".{name}.{}", std::process::id()));
    let made = TemporaryFile::create(path.clone(), mode);
    let made = made.map_err(file_error("cannot create", &path))?;
    let written = made.write(text).and_then(|()| made.file().sync_all());
    written.map_err(file_error("cannot write", &path))?;
    Ok(made)
}

fn publish_new(made: TemporaryFile, path: &Path) -> Result<(), CaError> {
    made.publish_new(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CaError::Exists(path.into()),
        _ => file_error("cannot create", path)(source),
    })
}

fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> CaError + use<> {
    let path = path.to_path_buf();
    move |source| CaError::File { what, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = super::super::tests::scratch("open-key");
        let path = dir.join("k.key");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(read_private(&path), Err(CaError::KeyOpenToOthers(_, 0o640))));
    }

    #[test]
    fn a_fifo_is_not_read() {
        let dir = super::super::tests::scratch("fifo");
        let path = dir.join("f.pem");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        for read in [read, read_private] {
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }

    #[test]
    fn publishing_over_a_file_fails_and_leaves_it_unchanged() {
        let dir = super::super::tests::scratch("publish");
        let path = dir.join("c.pem");
        let made = write(&path, "new", CERT_MODE).unwrap();
        fs::write(&path, "old").unwrap();
        assert!(matches!(publish_new(made, &path), Err(CaError::Exists(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(&*dir).unwrap().count(), 1, "a hidden file was left behind");
    }
}
