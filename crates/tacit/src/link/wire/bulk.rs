//! Moves bytes in batches between TCP sockets and the streams of a link. A stream connects the link
//! servers of two kernels, and sends the bytes of one TCP socket in frames.
//!
//! ```text
//!   socket ── read ───────> frames ── encrypt in place ──> one write ──> stream
//!   socket <── one write ── frames <── decrypt in place ── one read <─── stream
//! ```
//!
//! All streams of a thread use the same buffers, so an idle stream needs no buffers of its own. A
//! stream stores only bytes that could not be written yet.
//!
//! Limits: a batch has at most [`BATCH_FRAMES_MAX`] frames. A stream stores at most one batch in
//! each direction, and the beginning of the next frame.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tacit_core::link_frame::{self, DATA_BYTES_MAX, HEADER_BYTES, LinkFrame, ParsedFrame};
use tacit_core::record::PAYLOAD_BYTES_MAX;
use tacit_sys::socket;

use super::{LinkStream, TlsState, broken, invalid};
use crate::net::stream_socket::{Outgoing, StreamSocket};

/// The maximum number of frames that are read from a socket, or written to it, at once.
pub(super) const BATCH_FRAMES_MAX: usize = 4;
/// The bytes of a stream that are read at once: a batch with the overhead of its records.
pub(super) const READ_BYTES: usize = BATCH_FRAMES_MAX * SLOT_BYTES_MAX;
/// A frame with the longest overhead of a record.
const SLOT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 256;
/// The maximum number of unused buffers that a thread keeps.
const SPARES_MAX: usize = 16;

// A frame of data fills one record.
const _: () = assert!(HEADER_BYTES + DATA_BYTES_MAX == PAYLOAD_BYTES_MAX);

thread_local! {
    /// The buffer in which records are sealed and opened.
    static BATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Empty buffers for received frames.
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Which side of a transfer has failed.
#[derive(Debug)]
pub(super) enum BulkError {
    /// The TCP socket.
    Socket(io::Error),
    /// The stream.
    Stream,
}

/// What has arrived on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// This number of bytes for the socket.
    Bytes(usize),
    /// The end of the other side's direction.
    End,
    /// A reset, or a frame that may not be there.
    Reset,
}

/// Where the frames of a batch are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slots {
    /// The bytes of a record before a frame.
    prefix: usize,
    /// The bytes of a slot.
    bytes: usize,
}

impl Slots {
    /// The part of each slot for the data of a frame.
    fn data<'b>(&self, batch: &'b mut [u8]) -> [io::IoSliceMut<'b>; BATCH_FRAMES_MAX] {
        let at = self.prefix + HEADER_BYTES;
        let mut slots = batch.chunks_exact_mut(self.bytes);
        std::array::from_fn(|_| {
            let slot = slots.next().unwrap_or_default();
            io::IoSliceMut::new(slot.get_mut(at..at + DATA_BYTES_MAX).unwrap_or_default())
        })
    }

    /// Writes the headers of frames with this number of bytes of data; returns their length.
    fn add_headers(&self, batch: &mut [u8], count: usize) -> usize {
        let mut left = count;
        let mut bytes = 0;
        for slot in batch.chunks_exact_mut(self.bytes) {
            let data = left.min(DATA_BYTES_MAX);
            if data == 0 {
                break;
            }
            if let Some(header) = slot.get_mut(self.prefix..self.prefix + HEADER_BYTES) {
                header.copy_from_slice(&link_frame::data_header(data));
            }
            left -= data;
            bytes += HEADER_BYTES + data;
        }
        bytes
    }
}

impl LinkStream {
    fn slots(&self) -> Slots {
        match &self.tls {
            None => Slots { prefix: 0, bytes: PAYLOAD_BYTES_MAX },
            Some(tls) => {
                let protection = tls.session.protection();
                Slots { prefix: protection.prefix_bytes(), bytes: protection.slot_bytes() }
            }
        }
    }

    /// Reads once from a socket, and sends what it has in at most `frames` frames. Returns the
    /// number of bytes, 0 at the end of the socket's stream. Earlier bytes are sent first.
    pub(super) fn poll_send_from(
        &mut self,
        cx: &mut Context<'_>,
        from: &StreamSocket,
        frames: usize,
    ) -> Poll<Result<usize, BulkError>> {
        if let Some(tls) = &mut self.tls {
            let due = self.outgoing.append_by(|out| tls.session.seal_due(Instant::now, out));
            due.map_err(|_| BulkError::Stream)?;
        }
        ready!(self.poll_flush(cx)).map_err(|_| BulkError::Stream)?;
        let slots = self.slots();
        BATCH.with_borrow_mut(|batch| {
            batch.resize(batch.len().max(READ_BYTES), 0);
            let frames = frames.min(BATCH_FRAMES_MAX);
            let read = from.poll_read(cx, frames * DATA_BYTES_MAX, |fd| {
                let mut data = slots.data(batch);
                socket::read_vectored(fd, data.get_mut(..frames).unwrap_or_default())
            });
            let count = ready!(read).map_err(BulkError::Socket)?;
            if count > 0 {
                let bytes = slots.add_headers(batch, count);
                self.send_batch(batch, bytes).map_err(|_| BulkError::Stream)?;
            }
            Poll::Ready(Ok(count))
        })
    }

    /// Protects and writes the frames of a batch. What the stream does not take waits.
    fn send_batch(&mut self, batch: &mut [u8], frames_bytes: usize) -> io::Result<()> {
        let bytes = match self.tls.as_deref_mut() {
            None => frames_bytes,
            Some(TlsState { session, keys, .. }) => {
                session.seal_slots(keys, batch, frames_bytes).map_err(broken)?
            }
        };
        let mut left = batch.get(..bytes).unwrap_or_default();
        while !left.is_empty() {
            match self.write(left) {
                Ok(count) => left = left.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.append(left);
        Ok(())
    }

    /// Writes the data that has arrived to a socket, or returns the next other frame; `None` if the
    /// other side has ended the stream. What the socket does not take is appended to `waiting`,
    /// which must be empty.
    pub(super) fn poll_deliver(
        &mut self,
        cx: &mut Context<'_>,
        to: &StreamSocket,
        waiting: &mut Outgoing,
    ) -> Poll<Result<Option<Received>, BulkError>> {
        if !ready!(self.poll_arrived(cx)).map_err(|_| BulkError::Stream)? {
            return Poll::Ready(Ok(None));
        }
        let arrived = self.received.get(self.taken..).unwrap_or_default();
        let mut parts = [io::IoSlice::new(&[]); BATCH_FRAMES_MAX];
        let mut frames = 0;
        let mut taken = 0;
        for part in &mut parts {
            let rest = arrived.get(taken..).unwrap_or_default();
            // An error is reported after the data before it.
            let Ok(Some(ParsedFrame { frame: LinkFrame::Data(data), bytes })) =
                link_frame::parse(rest)
            else {
                break;
            };
            *part = io::IoSlice::new(data);
            frames += 1;
            taken += bytes;
        }
        let parts = parts.get(..frames).unwrap_or_default();
        if parts.is_empty() {
            let other = |frame: LinkFrame<'_>| match frame {
                LinkFrame::End => Received::End,
                _ => Received::Reset,
            };
            return self.poll_frame(cx, other).map_err(|_| BulkError::Stream);
        }
        let mut written = match socket::write_vectored(to.fd(), parts) {
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                0
            }
            Err(error) => return Poll::Ready(Err(BulkError::Socket(error))),
        };
        for part in parts {
            let skipped = written.min(part.len());
            written -= skipped;
            waiting.append(part.get(skipped..).unwrap_or_default());
        }
        let count = parts.iter().map(|part| part.len()).sum();
        self.take(taken);
        Poll::Ready(Ok(Some(Received::Bytes(count))))
    }

    /// Waits until a complete frame has arrived; `false` if the other side has ended the stream.
    pub(super) fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let waiting = self.received.get(self.taken..).unwrap_or_default();
            match link_frame::parse(waiting).map_err(invalid)? {
                Some(_) => return Poll::Ready(Ok(true)),
                None if self.has_ended && waiting.is_empty() => return Poll::Ready(Ok(false)),
                None if self.has_ended => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                None => {}
            }
            self.received.drain(..std::mem::take(&mut self.taken));
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Removes the bytes of frames that were taken.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken == self.received.len() {
            self.taken = 0;
            self.received.clear();
            give_back(&mut self.received);
        }
    }

    /// Appends bytes to `received`, or sees the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.received.capacity() == 0 {
            self.received = SPARES.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        let filled = match &mut self.tls {
            None => {
                self.received.reserve(READ_BYTES);
                let received = &mut self.received;
                let read =
                    self.socket.poll_read(cx, READ_BYTES, |fd| socket::read_onto(fd, received));
                read.map_ok(|count| self.has_ended = count == 0)
            }
            Some(tls) => {
                let opened = tls.poll_open(cx, &self.socket, &mut self.received);
                opened.map_ok(|has_ended| self.has_ended = has_ended)
            }
        };
        if self.received.is_empty() {
            give_back(&mut self.received);
        }
        filled
    }
}

impl TlsState {
    /// Appends the content of complete records to `out`: at least one byte, unless the other side
    /// has ended its direction. Returns whether it has.
    fn poll_open(
        &mut self,
        cx: &mut Context<'_>,
        from: &StreamSocket,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<bool>> {
        BATCH.with_borrow_mut(|batch| {
            loop {
                let held = self.records.len();
                let end = READ_BYTES.max(held + PAYLOAD_BYTES_MAX);
                batch.resize(batch.len().max(end), 0);
                let total = if std::mem::take(&mut self.unexamined) {
                    held
                } else {
                    let read = from.poll_read(cx, end - held, |fd| {
                        socket::read(fd, batch.get_mut(held..end).unwrap_or_default())
                    });
                    match ready!(read)? {
                        // Without `close_notify` the stream may have been cut off.
                        0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                        count => held + count,
                    }
                };
                let before = out.len();
                if let Some(start) = batch.get_mut(..held) {
                    start.copy_from_slice(&self.records);
                }
                self.records.clear();
                let has_ended = self.open(batch.get_mut(..total).unwrap_or_default(), out)?;
                if has_ended || out.len() > before {
                    return Poll::Ready(Ok(has_ended));
                }
            }
        })
    }

    /// Opens complete records in place, appends their content to `out`, and keeps the incomplete
    /// record. Returns whether the other side has ended its direction.
    fn open(&mut self, batch: &mut [u8], out: &mut Vec<u8>) -> io::Result<bool> {
        let Self { session, keys, records, payloads, .. } = self;
        payloads.clear();
        let opened = session.open_batch(keys, batch, payloads);
        for payload in payloads.drain(..) {
            out.extend_from_slice(batch.get(payload).unwrap_or_default());
        }
        let opened = opened.map_err(broken)?;
        let incomplete = batch.get(opened.consumed..).unwrap_or_default();
        if incomplete.is_empty() {
            *records = Vec::new();
        } else {
            records.extend_from_slice(incomplete);
        }
        Ok(opened.closed)
    }
}

/// Keeps an empty buffer for other streams.
fn give_back(buffer: &mut Vec<u8>) {
    let spare = std::mem::take(buffer);
    if (1..=2 * READ_BYTES).contains(&spare.capacity()) {
        SPARES.with_borrow_mut(|spares| {
            if spares.len() < SPARES_MAX {
                spares.push(spare);
            }
        });
    }
}
