//! Asks the link servers on this host for their state.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::directory;
use crate::run::link::choice::SOCKET_SUFFIX;
use crate::run::link::client::ask;
use crate::run::link::protocol::{LinkAnswer, LinkRequest, LinkStatus};

/// How long a server may take for its answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// The maximum number of links in the directory of links.
const LISTED_MAX: usize = 256;

/// The sockets in the directory of links, in the order of their names.
pub(super) fn paths() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory()) else { return Vec::new() };
    let is_socket = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(SOCKET_SUFFIX))
    };
    let mut all: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(is_socket).take(LISTED_MAX).collect();
    all.sort();
    all
}

/// The name of the link with this socket, if no server reports it.
pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.strip_suffix(SOCKET_SUFFIX).unwrap_or(&name).to_owned()
}

/// Asks the server of a link for its state.
///
/// # Errors
/// No server answers.
pub(super) fn status(path: &Path) -> io::Result<LinkStatus> {
    match request(path, &LinkRequest::Status)? {
        LinkAnswer::Status(status) => Ok(*status),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends a request to the server of a link, and returns the answer.
///
/// # Errors
/// No server answers, or it refuses the request.
pub(super) fn request(path: &Path, request: &LinkRequest) -> io::Result<LinkAnswer> {
    let runtime = crate::runtime::builder()?.enable_all().build()?;
    let requested =
        runtime.block_on(async { tokio::time::timeout(ANSWER_WAIT_MAX, ask(path, request)).await });
    match requested.map_err(|_| io::ErrorKind::TimedOut)??.1.message {
        LinkAnswer::Refused(reason) => Err(io::Error::other(reason)),
        answer => Ok(answer),
    }
}
