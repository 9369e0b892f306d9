//! Finds the control sockets of private agents. A private agent serves only one `tacit run`.
//!
//! Each private agent has its own directory, in `$XDG_RUNTIME_DIR` or in the directory for
//! temporary files. Limit: this module tries at most `LISTED_MAX` sockets.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tacit_core::printable::printable;

use super::directory;

/// The prefix of the name of a private agent's directory; the process ID of the launcher follows.
pub const DIRECTORY_PREFIX: &str = "tacit-run-";
/// The name of the control socket in this directory.
pub const SOCKET_NAME: &str = "agent.sock";
/// The maximum number of sockets that are tried.
const LISTED_MAX: usize = 32;

/// The maximum number of characters of a command that are shown.
const COMMAND_CHARS_MAX: usize = 100;

/// A private agent, as shown to a user who must choose one.
#[derive(Debug)]
pub struct PrivateAgent {
    socket: PathBuf,
    /// The command line of `tacit run`; `None` if it cannot be read.
    command: Option<String>,
}

impl fmt::Display for PrivateAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.socket.display())?;
        match &self.command {
            Some(command) => write!(f, " ({command})"),
            None => Ok(()),
        }
    }
}

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

/// The agents of [`answering`], each with the command that started its run.
#[must_use]
pub fn answering_with_commands() -> Vec<PrivateAgent> {
    let agent = |socket: PathBuf| PrivateAgent { command: command_of(&socket), socket };
    answering().into_iter().map(agent).collect()
}

/// The command line of the launcher, whose process ID is in the name of the socket's directory.
fn command_of(socket: &Path) -> Option<String> {
    let directory = socket.parent()?.file_name()?.to_str()?;
    let launcher: u32 = directory.strip_prefix(DIRECTORY_PREFIX)?.parse().ok()?;
    let words = std::fs::read(format!("/proc/{launcher}/cmdline")).ok()?;
    let words = String::from_utf8_lossy(words.strip_suffix(b"\0")?).replace('\0', " ");
    let shown = printable(&words);
    if shown.chars().count() <= COMMAND_CHARS_MAX {
        return Some(shown.into_owned());
    }
    let start: String = shown.chars().take(COMMAND_CHARS_MAX).collect();
    Some(start + "...")
}

/// Returns the control socket for a display or a trace: the given one, or the default one. If no
/// process listens at the default one and exactly one private agent exists, returns the socket of
/// that agent. An agent that was killed leaves its socket.
#[must_use]
pub fn for_display(given: Option<&Path>) -> PathBuf {
    let default = given.map_or_else(super::default_path, Path::to_owned);
    if given.is_some() || !is_absent(&default) {
        return default;
    }
    only_one(default, answering())
}

/// Returns the only private agent's socket; the default one if there is none, or more than one.
fn only_one(default: PathBuf, mut private: Vec<PathBuf>) -> PathBuf {
    match private.as_mut_slice() {
        [only] => std::mem::take(only),
        _ => default,
    }
}

/// Whether no process listens at a socket. After another error, such as a missing permission, an
/// agent may do so.
fn is_absent(socket: &Path) -> bool {
    let error = UnixStream::connect(socket).err().map(|error| error.kind());
    matches!(error, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_a_killed_agent_left_counts_as_absent() {
        let name = format!("tacit-left-{}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        assert!(is_absent(&socket));
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(!is_absent(&socket));
        drop(listener);
        assert!(socket.exists() && is_absent(&socket));
        std::fs::remove_file(socket).unwrap();
    }

    #[test]
    fn displays_choose_a_private_agent_only_if_there_is_one() {
        let [default, a, b] = ["default", "a", "b"].map(PathBuf::from);
        assert_eq!(only_one(default.clone(), vec![a.clone()]), a);
        assert_eq!(only_one(default.clone(), vec![a, b]), default);
        assert_eq!(only_one(default.clone(), Vec::new()), default);
    }
}
