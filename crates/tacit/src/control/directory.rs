//! Creates and checks a private directory for the control socket. This directory is for users
//! without `$XDG_RUNTIME_DIR`.
//!
//! The private directory is in `/tmp` or a similar directory, where every user can create files. So
//! the agent and its clients check that no other user has created the private directory.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tacit_sys::process;

/// Permission bits of the group and of all other users.
const OTHERS: u32 = 0o077;

/// The path of the private directory, which may not exist.
pub(super) fn private() -> PathBuf {
    std::env::temp_dir().join(format!("tacit-{}", process::effective_user()))
}

/// Checks the private directory, if the control socket is in it. Sockets elsewhere are the
/// operator's choice.
///
/// # Errors
/// The directory does not exist, is a symbolic link, or another user owns it or may enter it.
pub fn check(control: &Path) -> io::Result<()> {
    let private = private();
    if control.parent() == Some(&private) { check_private(&private) } else { Ok(()) }
}

/// Creates the directory of the default control socket, if it does not exist.
///
/// # Errors
/// The directory cannot be created, or fails [`check`].
pub fn make(control: &Path) -> io::Result<()> {
    if let Some(directory) = control.parent()
        && control == super::default_path()
        && let Err(error) = std::fs::DirBuilder::new().mode(0o700).create(directory)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    check(control)
}

/// Whether this is a directory, and only this user may enter it.
pub(super) fn is_private(directory: &Path) -> bool {
    check_private(directory).is_ok()
}

fn check_private(directory: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    let is_private =
        found.is_dir() && found.uid() == process::effective_user() && found.mode() & OTHERS == 0;
    if is_private {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{directory} is not a directory of mode 0700 that this user owns: remove it, or set \
         XDG_RUNTIME_DIR to a private directory",
        directory = directory.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_directory_that_no_other_user_can_enter_is_private() {
        let base = std::env::temp_dir().join(format!("tacit-private-{}", std::process::id()));
        let at = |name: &str| base.join(name);
        let make = |name: &str, mode| {
            std::fs::DirBuilder::new().recursive(true).mode(mode).create(at(name)).unwrap();
        };
        make("private", 0o700);
        make("open", 0o755);
        symlink(at("private"), at("link")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let check = |name: &str| check_private(&at(name)).map_err(|error| error.kind());
        assert_eq!(check("private"), Ok(()));
        for name in ["open", "link", "file"] {
            assert_eq!(check(name), Err(io::ErrorKind::Other), "{name}");
        }
        assert_eq!(check("absent"), Err(io::ErrorKind::NotFound));
        std::fs::remove_dir_all(base).unwrap();
    }
}
