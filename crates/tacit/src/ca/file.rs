//! Writes certificates and keys atomically, and private keys with mode 0600 from the start.
//!
//! A file is first written under a hidden temporary name in the same directory. When the file is
//! complete, it gets its final name. A new file gets its name by a hard link, which fails if the
//! name exists. So a new file never replaces another file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::CaError;

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
    let key_made = TemporaryFile::write(key_path, key, KEY_MODE)?;
    let cert_made = TemporaryFile::write(cert_path, cert, CERT_MODE)?;
    key_made.publish_new(key_path)?;
    cert_made.publish_new(cert_path).inspect_err(|_| drop(fs::remove_file(key_path)))
}

/// Replaces a certificate atomically.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), CaError> {
    let made = TemporaryFile::write(path, text, CERT_MODE)?;
    fs::rename(&made.0, path).map_err(file_error("cannot replace", path))
}

/// Reads a PEM file.
pub(super) fn read(path: &Path) -> Result<String, CaError> {
    let file = File::open(path).map_err(file_error("cannot read", path))?;
    read_limited(&file, path)
}

/// Reads a private key; refuses one that other users can read, because they may have copied it.
pub(super) fn read_private(path: &Path) -> Result<String, CaError> {
    let file = File::open(path).map_err(file_error("cannot read", path))?;
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

/// A complete file under its temporary name; removed when dropped, unless it was renamed.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn write(final_path: &Path, text: &str, mode: u32) -> Result<Self, CaError> {
        let name = final_path.file_name().unwrap_or_default().to_string_lossy();
        let path = final_path.with_file_name(format!(".{name}.{}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)
            .map_err(file_error("cannot create", &path))?;
        let hidden = Self(path);
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(file_error("cannot write", &hidden.0))?;
        Ok(hidden)
    }

    fn publish_new(&self, path: &Path) -> Result<(), CaError> {
        fs::hard_link(&self.0, path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => CaError::Exists(path.into()),
            _ => file_error("cannot create", path)(source),
        })
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Fails after a rename. Otherwise a leftover file is harmless.
        drop(fs::remove_file(&self.0));
    }
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
    fn publishing_over_a_file_fails_and_leaves_it_unchanged() {
        let dir = super::super::tests::scratch("publish");
        let path = dir.join("c.pem");
        let made = TemporaryFile::write(&path, "new", CERT_MODE).unwrap();
        fs::write(&path, "old").unwrap();
        assert!(matches!(made.publish_new(&path), Err(CaError::Exists(_))));
        drop(made);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(&*dir).unwrap().count(), 1, "a hidden file was left behind");
    }
}
