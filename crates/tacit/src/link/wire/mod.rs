//! Sends and receives the frames of a link between two kernels ([`tacit_core::link_frame`]). They
//! use TCP with TLS between hosts, and a UNIX socket or vsock without TLS for a virtual machine.
//!
//! ```text
//!   handshake    mutual TLS: both sides present certificates
//!   LinkStream   frames, in TLS records or in clear
//!   transfer     a TCP socket  <──> Data, End, Reset
//!   datagrams    a UDP socket  <──> Datagram, Notice
//! ```
//!
//! In each direction, a stream buffers at most one frame that its receiver cannot take yet.

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

/// Bytes that are read at once.
const READ_BYTES: usize = 32 * 1024;
/// The longest write, because implementations of vsock lose longer ones.
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
        loop {
            let waiting = self.received.get(self.taken..).unwrap_or_default();
            match link_frame::parse(waiting).map_err(invalid)? {
                Some(ParsedFrame { frame, bytes }) => {
                    let taken = take(frame);
                    self.taken += bytes;
                    if self.taken == self.received.len() {
                        self.received.clear();
                        self.taken = 0;
                    }
                    return Poll::Ready(Ok(Some(taken)));
                }
                None if self.has_ended && waiting.is_empty() => return Poll::Ready(Ok(None)),
                None if self.has_ended => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                None => {}
            }
            self.received.drain(..std::mem::take(&mut self.taken));
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Appends bytes to `received`, or sees the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(tls) = &mut self.tls else {
            let count = ready!(poll_read_onto(&self.socket, cx, &mut self.received))?;
            self.has_ended = count == 0;
            return Poll::Ready(Ok(()));
        };
        loop {
            if std::mem::take(&mut tls.unexamined) {
                let before = self.received.len();
                self.has_ended = tls.open(&mut self.received).map_err(broken)?;
                if self.has_ended || self.received.len() > before {
                    return Poll::Ready(Ok(()));
                }
            }
            if ready!(poll_read_onto(&self.socket, cx, &mut tls.records))? == 0 {
                // Without `close_notify` the stream may have been cut off.
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            tls.unexamined = true;
        }
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
        self.outgoing.poll_flush_by(&self.socket, cx, |socket: BorrowedFd<'_>, bytes: &[u8]| {
            socket::write(socket, bytes.get(..WRITE_BYTES_MAX).unwrap_or(bytes))
        })
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

impl TlsState {
    /// Opens complete records, and appends their content. Returns whether the other side has ended
    /// its direction.
    fn open(&mut self, out: &mut Vec<u8>) -> Result<bool, SessionError> {
        let Self { session, keys, records, payloads, .. } = self;
        payloads.clear();
        let opened = session.open_batch(keys, records, payloads);
        for payload in payloads.drain(..) {
            out.extend_from_slice(records.get(payload).unwrap_or_default());
        }
        let opened = opened?;
        records.drain(..opened.consumed);
        Ok(opened.closed)
    }
}

fn poll_read_onto(
    socket: &StreamSocket,
    cx: &mut Context<'_>,
    buffer: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    buffer.reserve(READ_BYTES);
    socket.poll_read(cx, READ_BYTES, |fd| socket::read_onto(fd, buffer))
}

fn invalid(error: link_frame::FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn broken(error: SessionError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
