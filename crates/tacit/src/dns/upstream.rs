//! Sends DNS queries to a resolver over UDP and TCP, and receives its answers. Also provides the
//! random numbers for queries.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tacit_core::dns::framed;
use tacit_sys::watch::{Watched, watch};
use tacit_sys::{datagram, mark};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpSocket;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use crate::random;

/// The maximum size of an answer in one datagram.
pub(super) const DATAGRAM_BYTES_MAX: usize = 8192;
/// The size of the buffer for errors, which are dropped.
const NOTICE_BYTES: usize = 64;
/// The number of random numbers that are requested from the kernel at once.
const RANDOM_NUMBERS: usize = 64;
/// The maximum number of open TCP connections to resolvers; further queries over TCP wait.
pub(super) const STREAMS_MAX: usize = 64;

/// A socket that is connected to a resolver.
#[derive(Debug)]
pub(super) struct Upstream {
    socket: Arc<OwnedFd>,
    reader: Option<AbortHandle>,
}

impl Upstream {
    /// Opens a socket with a port that the kernel chooses at random.
    ///
    /// # Errors
    /// An error of the kernel, such as a missing route.
    pub(super) fn open(server: SocketAddr) -> io::Result<Self> {
        Ok(Self { socket: Arc::new(datagram::dial(server)?), reader: None })
    }

    /// The socket for the task that reads it.
    ///
    /// # Errors
    /// The kernel cannot watch the socket.
    pub(super) fn watched(&self) -> io::Result<Watched> {
        watch(Arc::clone(&self.socket), Interest::READABLE)
    }

    /// Sets the reading task, which is aborted when the socket is dropped.
    pub(super) fn set_reader(&mut self, reader: AbortHandle) {
        self.reader = Some(reader);
    }

    /// Sends one message. If the socket has no room, the message is lost, as on any network.
    ///
    /// # Errors
    /// An error of the network, perhaps about an earlier message.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        match datagram::send(self.socket.as_fd(), message) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                drain_notices(&self.socket);
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
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
    limit: &Semaphore,
    server: SocketAddr,
    message: &[u8],
    time: Duration,
) -> Option<Vec<u8>> {
    let asked = async {
        let _permit = limit.acquire().await.ok()?;
        let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.ok()?;
        mark::apply(socket.as_fd()).ok()?;
        let mut stream = socket.connect(server).await.ok()?;
        stream.write_all(&framed(message)?).await.ok()?;
        let length = stream.read_u16().await.ok()?;
        let mut response = vec![0; usize::from(length)];
        stream.read_exact(&mut response).await.ok()?;
        Some(response)
    };
    tokio::time::timeout(time, asked).await.ok().flatten()
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
