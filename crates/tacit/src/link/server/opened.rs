//! Part of a link server: answers the socket requests of runs on the same kernel. Sends each result
//! to the agent of the run. Also counts the results, and logs them while `tacit link trace` is on.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tacit_sys::handed;
use tokio::net::UnixStream;

use super::open::canonical;
use super::reply::write;
use super::session::{PendingRequest, count, errno_of};
use super::{ServedLink, Server, control};
use crate::run::link::protocol::{LinkAnswer, OpenRequest};

/// Counts an opened socket, and passes it to the agent.
pub(super) async fn write_opened(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    request: &OpenRequest,
    pending: PendingRequest,
    socket: &OwnedFd,
) -> io::Result<()> {
    note_opened(server, link, request, handed::cookie(socket.as_fd())?);
    drop(pending);
    write(stream, &LinkAnswer::Socket, Some(socket.as_fd())).await
}

/// Counts a socket that could not be opened, and sends the error to the agent.
pub(super) async fn write_failed(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    request: &OpenRequest,
    error: &io::Error,
) -> io::Result<()> {
    control::trace(server, link, request, Err(error));
    count(link, request.session, |run| run.failed += 1);
    write(stream, &LinkAnswer::Failed(errno_of(error)), None).await
}

/// Counts an opened socket with this number.
pub(super) fn note_opened(server: &Server, link: &ServedLink, request: &OpenRequest, cookie: u64) {
    link.state.borrow_mut().add(cookie, request.session);
    let request = OpenRequest { address: canonical(request.address), ..*request };
    link.state.borrow_mut().describe(cookie, &request);
    control::trace(server, link, &request, Ok(()));
    count(link, request.session, |run| run.opened += 1);
}
