//! Sends DNS queries to a resolver over UDP and TCP, and receives the answers. Also provides the
//! random numbers for queries.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tacit_core::dns::framed;
use tacit_sys::watch::{READABLE_OR_ERROR, Watched, watch};
use tacit_sys::{datagram, mark};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::random;
use crate::run::Outside;
use crate::run::link::protocol::OpenKind;

/// The maximum size of an answer in one datagram.
pub(super) const DATAGRAM_BYTES_MAX: usize = 8192;
/// The size of the buffer for errors, which are dropped.
const NOTICE_BYTES: usize = 64;
/// The number of random numbers that are requested from the kernel at once.
const RANDOM_NUMBERS: usize = 64;
/// The maximum number of open TCP connections to resolvers; further queries over TCP wait.
pub(super) const STREAMS_MAX: usize = 64;

/// The maximum number of messages that wait for a socket. Further messages are lost, as on any
/// network.
const WAITING_MAX: usize = 16;

/// A socket that is connected to a resolver, or is being opened.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    socket: Option<Arc<OwnedFd>>,
    /// Messages for a socket that is being opened.
    waiting: Vec<Vec<u8>>,
    /// The task that reads the socket or opens it.
    task: Option<AbortHandle>,
}

impl Upstream {
    /// Uses a socket that was opened; returns the messages that wait for it.
    pub(super) fn connect(&mut self, socket: OwnedFd) -> Vec<Vec<u8>> {
        self.socket = Some(Arc::new(socket));
        std::mem::take(&mut self.waiting)
    }

    /// The socket for the task that reads it.
    ///
    /// # Errors
    /// The kernel cannot watch the socket.
    pub(super) fn watched(&self) -> io::Result<Watched> {
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        watch(Arc::clone(socket), READABLE_OR_ERROR)
    }

    /// Sets the task of the socket, which is aborted when the socket is dropped.
    pub(super) fn set_task(&mut self, task: AbortHandle) {
        self.task = Some(task);
    }

    /// Sends one message. If the socket has no room, the message is lost, as on any network.
    ///
    /// # Errors
    /// An error of the network, perhaps about an earlier message.
    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else {
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push(message.to_vec());
            }
            return Ok(());
        };
        match datagram::send(socket.as_fd(), message) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                drain_notices(socket);
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Receives one message; `None` if there is none now. A message that is longer than the buffer is
/// skipped.
///
/// # Errors
/// An error of the network about an earlier message.
pub(super) fn receive(socket: &Arc<OwnedFd>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match datagram::receive(socket.as_fd(), buffer) {
        Ok(count) => Ok(Some(if count <= buffer.len() { count } else { 0 })),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => {
            drain_notices(socket);
            Err(error)
        }
    }
}

/// Each error is also in the error queue of the socket, and would be reported again.
fn drain_notices(socket: &Arc<OwnedFd>) {
    while let Ok(Some(_)) = datagram::take_notice(socket.as_fd(), &mut [0; NOTICE_BYTES]) {}
}

/// Sends a query to one resolver over TCP; `None` if it does not answer in time.
pub(super) async fn ask_by_stream(
    outside: &Outside,
    limit: &Semaphore,
    server: SocketAddr,
    message: &[u8],
    time: Duration,
) -> Option<Vec<u8>> {
    let requested = async {
        let _permit = limit.acquire().await.ok()?;
        let mut stream = connect(outside, server).await.ok()?;
        stream.write_all(&framed(message)?).await.ok()?;
        let length = stream.read_u16().await.ok()?;
        let mut response = vec![0; usize::from(length)];
        stream.read_exact(&mut response).await.ok()?;
        Some(response)
    };
    tokio::time::timeout(time, requested).await.ok().flatten()
}

async fn connect(outside: &Outside, server: SocketAddr) -> io::Result<TcpStream> {
    match outside {
        Outside::Host => {
            let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            mark::apply(socket.as_fd())?;
            socket.connect(server).await
        }
        Outside::Link(link) => {
            let socket = link.socket(OpenKind::Connected, server).await?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            TcpStream::from_std(socket.into())
        }
    }
}

/// A buffer of random numbers from the kernel.
#[derive(Debug, Default)]
pub(super) struct Entropy {
    numbers: Vec<u64>,
}

impl Entropy {
    /// A number that no other host can guess.
    pub(super) fn next(&mut self) -> u64 {
        if self.numbers.is_empty() {
            self.refill();
        }
        // A kernel without random numbers could not have started any program. If it fails
        // nevertheless, the keyed hash of the standard library is no worse than its seed.
        self.numbers.pop().unwrap_or_else(|| RandomState::new().hash_one(0))
    }

    fn refill(&mut self) {
        let mut bytes = [0; RANDOM_NUMBERS * 8];
        if random::fill(&mut bytes).is_ok() {
            let (numbers, _) = bytes.as_chunks::<8>();
            self.numbers.extend(numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes)));
        }
    }
}
