//! Connects clients to a run (a program under `tacit run`) that has no network, but listens through
//! a link. The link server on another kernel (the *network server*) has a network. It binds a
//! socket to the run's listening address, and accepts the clients. The link server on the run's
//! kernel (*this server*) connects each accepted client to the run:
//!
//! ```text
//! 1.  network server ── Arrived ──> this server   a client has connected; contains its address
//! 2.  this server ── connection ──> run           comes from the address of the client
//! 3.  this server ── Take ──> network server      on a new stream, for the bytes of the client
//! ```
//!
//! This server also forwards requests of the run about the socket to the network server.
//!
//! A faulty network server could send any number of `Arrived` messages. So this server counts a
//! client as a socket of the link as soon as the message arrives. `Arrived` also contains the local
//! address of the connection. This server ignores the message if the local address does not belong
//! to the bound socket.
//!
//! Limits for each listening address: the run may have [`ORDERS_MAX`] unanswered requests. At most
//! [`TAKES_MAX`] clients are being connected to the run at the same time, each for at most
//! [`TAKE_WAIT_MAX`]. Further `Arrived` messages wait in the stream. The key `sockets` of the link
//! limits the total number of clients.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_sys::socket::{self, StreamOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::dial::{PendingOrder, Remote};
use super::session::{CountedSocket, RunEnd, admit_client, count, spawn_until};
use super::{ServedLink, Server};
use crate::link::wire::LinkStream;
use crate::link::wire::transfer::{self, StreamFate};
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::run::link::protocol::{ArrivedClient, BoundEvent, LinkAnswer, LinkRequest, TakeRequest};

/// The orders for one bound socket that wait.
pub(super) const ORDERS_MAX: usize = 8;
/// The clients of one bound socket that are being connected to the run at the same time.
const TAKES_MAX: usize = 64;
/// How long that may take. The other server does not keep a client longer.
const TAKE_WAIT_MAX: Duration = super::tickets::TICKET_WAIT_MAX;

/// A socket at which a run listens, and the stream to the socket at which its clients arrive.
pub(super) struct MirroredListener {
    pub(super) server: Rc<Server>,
    pub(super) link: Rc<ServedLink>,
    pub(super) remote: Rc<Remote>,
    /// The session, and the address that the run has requested.
    pub(super) key: (u64, SocketAddr),
    /// The address of the socket.
    pub(super) local: SocketAddr,
    pub(super) far_session: u64,
    pub(super) far: LinkStream,
    pub(super) over: RunEnd,
}

impl Drop for MirroredListener {
    fn drop(&mut self) {
        self.remote.forget_bound(self.key);
    }
}

impl MirroredListener {
    /// Sends orders on, and takes clients, until the stream ends.
    pub(super) async fn serve(mut self, mut orders: mpsc::Receiver<PendingOrder>) {
        let mut sent: VecDeque<oneshot::Sender<LinkAnswer>> = VecDeque::new();
        let takes = Arc::new(Semaphore::new(TAKES_MAX));
        let mut permit: Option<OwnedSemaphorePermit> = None;
        loop {
            tokio::select! {
                order = orders.recv(), if sent.len() < ORDERS_MAX => {
                    let Some((order, back)) = order else { return };
                    if self.far.send_message(&order).await.is_err() {
                        return;
                    }
                    sent.push_back(back);
                }
                free = Arc::clone(&takes).acquire_owned(), if permit.is_none() => {
                    permit = free.ok();
                }
                event = self.far.receive_message::<BoundEvent>(), if permit.is_some() => {
                    let answer = match event {
                        Ok(Some(BoundEvent::Arrived(client))) => {
                            self.take(client, permit.take());
                            continue;
                        }
                        Ok(Some(BoundEvent::Done)) => LinkAnswer::Done,
                        Ok(Some(BoundEvent::Failed(errno))) => LinkAnswer::Failed(errno),
                        Ok(None) | Err(_) => return,
                    };
                    if let Some(back) = sent.pop_front() {
                        // The agent may have stopped waiting.
                        let _ = back.send(answer);
                    }
                }
            }
        }
    }

    /// Connects a client to the run, in a task. If this fails, the other server drops the client.
    fn take(&self, client: ArrivedClient, permit: Option<OwnedSemaphorePermit>) {
        let (session, _) = self.key;
        // Another socket of this link could be bound at another address.
        if !is_at(client.local, self.local) {
            return;
        }
        let Some(pending) = admit_client(&self.server, &self.link, session) else { return };
        let link = Rc::clone(&self.link);
        let remote = Rc::clone(&self.remote);
        let request = TakeRequest { session: self.far_session, ticket: client.ticket };
        let mut over = self.over.clone();
        tokio::task::spawn_local(async move {
            let taking = tokio::time::timeout(TAKE_WAIT_MAX, connect(&remote, client, request));
            let taken = tokio::select! {
                taken = taking => taken,
                () = over.wait() => return,
            };
            let Ok(Ok((far, socket))) = taken else { return };
            let Ok(counted) = CountedSocket::new(&link, socket.fd(), session) else { return };
            drop((pending, permit));
            spawn_until(over, counted, moved(link, session, far, socket));
        });
    }
}

/// Connects a client to the run, and requests its bytes.
async fn connect(
    remote: &Remote,
    client: ArrivedClient,
    request: TakeRequest,
) -> io::Result<(LinkStream, StreamSocket)> {
    let ArrivedClient { peer, local, .. } = client;
    let socket = adopted(remote.mirror.client(peer, local).await?)?;
    socket.wait_connected().await?;
    match remote.ask(&LinkRequest::Take(request)).await? {
        (far, LinkAnswer::Connected(_)) => Ok((far, socket)),
        _ => Err(io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Moves the bytes of a connection, and counts it if its stream fails.
pub(super) async fn moved(
    link: Rc<ServedLink>,
    session: u64,
    far: LinkStream,
    socket: StreamSocket,
) {
    if transfer::run(far, socket).await == StreamFate::Lost {
        count(&link, session, |run| run.lost += 1);
    }
}

/// The server's end of a mirrored connection.
pub(super) fn adopted(socket: OwnedFd) -> io::Result<StreamSocket> {
    socket::adopt(socket.as_fd(), &StreamOptions::default())?;
    StreamSocket::new(socket, Security::Clear)
}

/// Whether a client with this local address can arrive at a socket that is bound there.
fn is_at(local: SocketAddr, bound: SocketAddr) -> bool {
    local.port() == bound.port()
        && (bound.ip().is_unspecified() || is_same_address(local.ip(), bound.ip()))
}

/// Whether the other server has bound the address that was requested.
pub(super) fn is_bound_as_requested(bound: SocketAddr, requested: SocketAddr) -> bool {
    let is_same_port = requested.port() == 0 || bound.port() == requested.port();
    is_same_port && is_same_address(bound.ip(), requested.ip())
}

fn is_same_address(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_arrive_only_at_the_address_of_the_bound_socket() {
        for (local, bound, arrives) in [
            ("10.9.8.7:80", "10.9.8.7:80", true),
            ("10.9.8.7:80", "0.0.0.0:80", true),
            ("[::ffff:10.9.8.7]:80", "10.9.8.7:80", true),
            ("[2001:db8::7]:80", "[::]:80", true),
            ("10.9.8.7:81", "10.9.8.7:80", false),
            ("10.9.8.7:81", "0.0.0.0:80", false),
            ("10.9.8.8:80", "10.9.8.7:80", false),
            ("[2001:db8::7]:80", "[2001:db8::8]:80", false),
        ] {
            let at = |text: &str| text.parse().unwrap();
            assert_eq!(is_at(at(local), at(bound)), arrives, "{local} at {bound}");
        }
    }

    #[test]
    fn another_server_binds_the_requested_address_only() {
        for (bound, requested, is_same) in [
            ("10.9.8.7:80", "10.9.8.7:80", true),
            ("10.9.8.7:4711", "10.9.8.7:0", true),
            ("10.9.8.7:80", "[::ffff:10.9.8.7]:80", true),
            ("10.9.8.7:80", "0.0.0.0:80", false),
            ("0.0.0.0:80", "10.9.8.7:80", false),
            ("10.9.8.7:81", "10.9.8.7:80", false),
        ] {
            let at = |text: &str| text.parse().unwrap();
            assert_eq!(
                is_bound_as_requested(at(bound), at(requested)),
                is_same,
                "{bound} for {requested}"
            );
        }
    }
}
