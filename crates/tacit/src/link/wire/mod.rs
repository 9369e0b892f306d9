//! Sends and receives the frames of a link between two kernels ([`tacit_core::link_frame`]).
//! Between hosts, a link uses TCP with TLS. For a virtual machine, a link uses a UNIX socket or
//! vsock, without TLS.
//!
//! ```text
//!   handshake    does the TLS handshake; both hosts send a certificate
//!   LinkStream   reads and writes frames, in TLS records or in clear
//!   transfer     moves bytes:      TCP socket <──> frames Data, End, Reset
//!   datagrams    moves datagrams:  UDP socket <──> frames Datagram, Notice
//! ```
//!
//! Limits: if a write blocks, the stream stores the bytes that are left, at most one batch of
//! frames in each direction. The stream also stores the beginning of the next frame that it
//! receives (`bulk`).

mod bulk;
pub(super) mod datagrams;
pub(super) mod handshake;
pub(super) mod transfer;

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_core::link_frame::{self, LinkFrame, ParsedFrame};
use tacit_sys::socket;
use tacit_tls::{HotKeys, Session, SessionError};

use crate::net::stream_socket::{Outgoing, StreamSocket};

/// The longest write without TLS, because implementations of vsock lose longer ones.
const WRITE_BYTES_MAX: usize = 16 * 1024;
/// How long the last bytes of a stream may take.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(5);

/// A stream of frames to another kernel.
#[derive(Debug)]
pub(super) struct LinkStream {
    socket: StreamSocket,
    tls: Option<Box<TlsState>>,
    /// Received bytes; without TLS those of the socket, otherwise the opened ones.
    received: Vec<u8>,
    /// The bytes of complete frames at the beginning of `received` that were taken.
    taken: usize,
    outgoing: Outgoing,
    /// A frame before it is protected.
    scratch: Vec<u8>,
    /// The other side has ended its direction.
    has_ended: bool,
}

/// The TLS of a stream.
#[derive(Debug)]
struct TlsState {
    session: Session,
    keys: HotKeys,
    /// Records that are not opened yet.
    records: Vec<u8>,
    /// Whether `records` may contain complete records.
    unexamined: bool,
    payloads: Vec<Range<usize>>,
}

impl LinkStream {
    /// A stream without TLS. `received` was read before.
    pub(super) fn clear(socket: StreamSocket, received: Vec<u8>) -> Self {
        Self::new(socket, None, received, Vec::new())
    }

    fn new(
        socket: StreamSocket,
        tls: Option<Box<TlsState>>,
        received: Vec<u8>,
        outgoing: Vec<u8>,
    ) -> Self {
        Self {
            socket,
            tls,
            received,
            taken: 0,
            outgoing: Outgoing::new(outgoing),
            scratch: Vec::new(),
            has_ended: false,
        }
    }

    /// The socket of the stream.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Takes the next frame; `None` if the other side has ended the stream.
    ///
    /// # Errors
    /// The stream has failed, or contains bytes that are no frame.
    pub(super) fn poll_frame<R>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(LinkFrame<'_>) -> R,
    ) -> Poll<io::Result<Option<R>>> {
        if !ready!(self.poll_arrived(cx))? {
            return Poll::Ready(Ok(None));
        }
        let arrived = self.received.get(self.taken..).unwrap_or_default();
        let parsed = link_frame::parse(arrived).map_err(invalid)?;
        let ParsedFrame { frame, bytes } = parsed.ok_or(io::ErrorKind::UnexpectedEof)?;
        let taken = take(frame);
        self.take(bytes);
        Poll::Ready(Ok(Some(taken)))
    }

    /// Adds a frame to the bytes to send.
    ///
    /// # Errors
    /// The frame is too long, or the key cannot be used any more.
    pub(super) fn push(&mut self, frame: LinkFrame<'_>) -> io::Result<()> {
        self.scratch.clear();
        if !link_frame::append(frame, &mut self.scratch) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let out = self.outgoing.tail();
        match &mut self.tls {
            None => out.extend_from_slice(&self.scratch),
            Some(tls) => {
                tls.session.seal_due(Instant::now, out).map_err(broken)?;
                out.append(&mut tls.session.seal(&self.scratch).map_err(broken)?);
            }
        }
        Ok(())
    }

    /// Whether all bytes were written.
    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The bytes that were not written yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// Writes the bytes to send.
    ///
    /// # Errors
    /// The stream has failed.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let longest = self.write_bytes_max();
        self.outgoing.poll_flush_by(&self.socket, cx, |socket: BorrowedFd<'_>, bytes: &[u8]| {
            socket::write(socket, bytes.get(..longest).unwrap_or(bytes))
        })
    }

    fn write_bytes_max(&self) -> usize {
        // TLS is for TCP, which takes writes of any length.
        if self.tls.is_some() { usize::MAX } else { WRITE_BYTES_MAX }
    }

    /// Writes bytes, as many as the stream takes now. No earlier bytes may wait.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        socket::write(self.socket.fd(), bytes.get(..self.write_bytes_max()).unwrap_or(bytes))
    }

    /// Sends a frame, and waits until it was written.
    ///
    /// # Errors
    /// The stream has failed.
    pub(super) async fn send(&mut self, frame: LinkFrame<'_>) -> io::Result<()> {
        self.push(frame)?;
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The stream has failed, or the message is too long.
    pub(super) async fn send_message(&mut self, message: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        self.send(LinkFrame::Message(&text)).await
    }

    /// Receives a message; `None` if the other side has ended the stream. Skips the frames by which
    /// the other side shows that it exists.
    ///
    /// # Errors
    /// The stream has failed, or contains another frame or message.
    pub(super) async fn receive_message<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let parse = |frame: LinkFrame<'_>| -> io::Result<Option<T>> {
            match frame {
                LinkFrame::Message(text) => Ok(Some(serde_json::from_slice(text)?)),
                LinkFrame::Alive => Ok(None),
                _ => Err(io::ErrorKind::InvalidData.into()),
            }
        };
        loop {
            match poll_fn(|cx| self.poll_frame(cx, parse)).await? {
                None => return Ok(None),
                Some(Ok(None)) => {}
                Some(received) => return received,
            }
        }
    }

    /// Waits until the other side shows that it exists, and answers.
    ///
    /// # Errors
    /// The stream has ended or failed.
    pub(super) async fn answer_alive(&mut self) -> io::Result<()> {
        self.receive_alive().await?;
        self.send(LinkFrame::Alive).await
    }

    /// Waits until the other side shows that it exists.
    ///
    /// # Errors
    /// The stream has ended or failed.
    pub(super) async fn receive_alive(&mut self) -> io::Result<()> {
        let received = poll_fn(|cx| self.poll_frame(cx, |frame| frame == LinkFrame::Alive));
        match received.await? {
            Some(true) => Ok(()),
            Some(false) => Err(io::ErrorKind::InvalidData.into()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Ends our direction, and waits a moment until everything was written.
    pub(super) async fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            // A key at its limit cannot end the stream: the other side sees a failure.
            let _ = tls.session.seal_close(self.outgoing.tail());
        }
        let flushed = poll_fn(|cx| self.poll_flush(cx));
        let _ = tokio::time::timeout(CLOSE_WAIT_MAX, flushed).await;
        // The other side may have closed already.
        let _ = self.socket.shutdown_write();
    }
}

fn invalid(error: link_frame::FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn broken(error: SessionError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
