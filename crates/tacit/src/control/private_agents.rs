//! Finds the control sockets of private agents. A private agent serves only one `tacit run`.
//!
//! Each private agent has its own directory, in the same place as the directory of the default
//! control socket. Limit: at most `LISTED_MAX` sockets are tried.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::directory;

/// The prefix of the name of a private agent's directory; the process ID of the launcher follows.
pub const DIRECTORY_PREFIX: &str = "tacit-run-";
/// The name of the control socket in this directory.
pub const SOCKET_NAME: &str = "agent.sock";
/// The maximum number of sockets that are tried.
const LISTED_MAX: usize = 32;

/// The directory that contains the directories of private agents.
#[must_use]
pub fn base() -> PathBuf {
    super::runtime_directory().unwrap_or_else(std::env::temp_dir)
}

/// The sockets of this user's runs at which an agent answers, in the order of their names.
#[must_use]
pub fn answering() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(base()) else { return Vec::new() };
    let is_run = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(DIRECTORY_PREFIX))
    };
    let paths = entries.flatten().map(|entry| entry.path()).filter(is_run);
    let mut sockets: Vec<_> = paths
        .filter(|path| directory::is_private(path))
        .take(LISTED_MAX)
        .map(|path| path.join(SOCKET_NAME))
        .filter(|socket| UnixStream::connect(socket).is_ok())
        .collect();
    sockets.sort();
    sockets
}

/// Returns the control socket for a display or a trace: the given one, or the default one. If no
/// agent answers at the default one and exactly one private agent exists, returns the socket of
/// that agent.
#[must_use]
pub fn for_display(given: Option<&Path>) -> PathBuf {
    let default = || super::default_path();
    if let Some(given) = given {
        return given.to_owned();
    }
    if default().exists() {
        return default();
    }
    match answering().as_mut_slice() {
        [only] => std::mem::take(only),
        _ => default(),
    }
}
