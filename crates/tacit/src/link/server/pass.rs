//! Opens sockets for a run, if the run and the link server use the same kernel. The server passes
//! each socket directly to the run's helper process. The helper connects the socket, and gives it
//! to the program. The socket does not pass through the agent. So fewer processes must wake up
//! before the program gets its socket.
//!
//! ```text
//!   agent ── Pass (request) ──> server ── Passed (numbers of the socket) ──> agent
//!                                  └───── the socket itself, Answer ───────> helper ──> program
//! ```
//!
//! The server answers the agent first, and the helper second. So the agent knows the socket before
//! the helper reports how the program uses the socket. If the server ends between the two answers,
//! the helper stops waiting. Then the kernel executes the `connect` call of the program, and the
//! agent relays the connection.
//!
//! The request contains the *channel*: a copy of the socket between the agent and the helper. The
//! server uses this copy for one answer, and then closes it. The helper detects the end of the
//! agent only when all copies are closed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use tacit_sys::handed::{self, SocketIdentity};
use tacit_sys::{IpVersion, socket};
use tokio::net::UnixStream;

use super::opened::{note_opened, write_failed, write_opened};
use super::reply::write;
use super::session::admit;
use super::state::OtherEnd;
use super::{ServedLink, Server, open};
use crate::run::link::protocol::{LinkAnswer, PassRequest};
use crate::run::protocol::send_with_socket;

/// Opens a socket, and passes it to the helper at the other end of the channel.
pub(super) async fn serve_pass(
    server: &Server,
    link: &Rc<ServedLink>,
    stream: &mut UnixStream,
    end: &OtherEnd,
    request: PassRequest,
    channel: OwnedFd,
) -> io::Result<()> {
    let opening = request.open();
    let pending = match admit(server, link, end, &opening) {
        Ok(pending) => pending,
        Err(reason) => return write(stream, &LinkAnswer::Refused(reason), None).await,
    };
    let version = IpVersion::of(request.address.ip());
    let local = server.local_for(&link.name, request.address);
    let spare = match local {
        None => server.spares.take(version),
        Some(_) => None,
    };
    let socket = match spare {
        Some(spare) => spare,
        None => match open::open(&opening, local).await {
            Ok(socket) => socket,
            Err(error) => return write_failed(server, link, stream, &opening, &error).await,
        },
    };
    let Ok(SocketIdentity { inode, cookie }) = prepare(&socket, &request) else {
        // Such as after the start of a server in another network namespace. The agent examines the
        // socket, and relays the connection if it is not usable.
        return write_opened(server, link, stream, &opening, pending, &socket).await;
    };
    note_opened(server, link, &opening, cookie);
    drop(pending);
    write(stream, &LinkAnswer::Passed { inode, cookie }, None).await?;
    let passed = send_with_socket(&channel, request.answer, socket);
    drop(channel);
    // The run may have ended during the write.
    let mut state = link.state.borrow_mut();
    if state.run(request.session).is_some_and(|run| run.ended.is_none()) {
        server.spares.fill(version);
    }
    passed
}

/// Prepares a socket as the agent does for a socket that it passes to the helper itself.
fn prepare(socket: &OwnedFd, request: &PassRequest) -> io::Result<SocketIdentity> {
    if let Some(name) = &request.congestion_control {
        socket::set_congestion_control(socket.as_fd(), name)?;
    }
    handed::adopt(socket.as_fd(), IpVersion::of(request.address.ip()), request.namespace)
}
