//! Waits for the first message of a connection, then starts the program for this connection, and
//! relays the bytes.
//!
//! ```text
//!   clear   first byte (not read) ─────────┐
//!   TLS     first record with payload ─────┴─> start the program ──> relay
//!           end of the stream, close_notify ─> end, without a program
//! ```
//!
//! A waiting connection has one socket, and no buffers. TLS messages without payload, such as
//! KeyUpdate, do not start the program.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tacit_core::meter::Component;
use tacit_core::record::{AlertDescription, RECORD_BYTES_MAX};
use tacit_sys::socket;
use tacit_tls::OpenedBatch;

use crate::ledger::meter;
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{BrokenSocket, Connection, ConnectionEnd, ConnectionSockets};
use crate::stream::activated;
use crate::stream::establish::drain_after_alert;
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, SealedRelay, WaitingRelay, WaitingTls};

use super::sealed::{self, FirstMessage};
use super::{Buffers, Left, clear};

/// Runs a connection that waits for its first message.
pub(super) async fn run(
    lane: &StreamLane,
    relay: Box<WaitingRelay>,
    connection: &Connection,
) -> Left {
    let WaitingRelay { downstream, tls, initial } = *relay;
    match tls {
        None => run_clear(lane, downstream, initial, connection).await,
        Some(tls) => run_tls(lane, downstream, tls, connection).await,
    }
}

async fn run_clear(
    lane: &StreamLane,
    downstream: StreamSocket,
    initial: Vec<u8>,
    connection: &Connection,
) -> Left {
    if initial.is_empty() {
        let peeked = poll_fn(|cx| downstream.poll_read(cx, 1, |fd| socket::peek(fd, &mut [0])));
        match peeked.await {
            Ok(0) => {
                downstream.end_in_order();
                return Left::Ended(ConnectionEnd::Orderly);
            }
            Ok(_) => {}
            Err(error) => return Left::Ended(broken(BrokenSocket::Clear, error)),
        }
    }
    match start(lane, &downstream, connection).await {
        Ok(upstream) => {
            let relay = Box::new(ClearRelay { downstream, upstream, initial });
            clear::run(lane, relay, connection).await
        }
        Err(end) => Left::Ended(end),
    }
}

async fn run_tls(
    lane: &StreamLane,
    downstream: StreamSocket,
    tls: WaitingTls,
    connection: &Connection,
) -> Left {
    let mut waiting = Waiting { lane, connection, downstream, tls, unexamined: true };
    let message = match waiting.first_message().await {
        Ok(message) => message,
        Err(end) => return Left::Ended(waiting.close(end).await),
    };
    let started = start(lane, &waiting.downstream, connection).await;
    match started {
        Ok(clear) => {
            let Waiting { downstream, tls, .. } = waiting;
            let WaitingTls { session, incomplete, initial } = tls;
            let relay = SealedRelay { clear, tls: downstream, session, incomplete, initial };
            sealed::run_after(lane, Box::new(relay), message, connection).await
        }
        Err(end) => Left::Ended(waiting.close(end).await),
    }
}

/// A TLS connection that waits.
struct Waiting<'a> {
    lane: &'a StreamLane,
    connection: &'a Connection,
    downstream: StreamSocket,
    tls: WaitingTls,
    /// Whether `incomplete` may contain complete records, because it came from the handshake.
    unexamined: bool,
}

impl Waiting<'_> {
    /// Waits for payload. An end of the stream without payload is returned as an error.
    async fn first_message(&mut self) -> Result<FirstMessage, ConnectionEnd> {
        loop {
            self.flush().await?;
            let message = poll_fn(|cx| self.poll_records(cx)).await?;
            if !message.payload.is_empty() {
                return Ok(message);
            }
            if message.is_last {
                return Err(ConnectionEnd::Orderly);
            }
            let session = &mut self.tls.session;
            session
                .seal_due(Instant::now, &mut self.tls.initial)
                .map_err(ConnectionEnd::Session)?;
        }
    }

    /// Writes what must be sent to the peer.
    async fn flush(&mut self) -> Result<(), ConnectionEnd> {
        let bytes = std::mem::take(&mut self.tls.initial);
        if bytes.is_empty() {
            return Ok(());
        }
        let flushed = Outgoing::new(bytes).flush(&self.downstream).await;
        flushed.map_err(|error| broken(BrokenSocket::Far, error))
    }

    /// Reads and opens records once.
    fn poll_records(&mut self, cx: &mut Context<'_>) -> Poll<Result<FirstMessage, ConnectionEnd>> {
        let mut buffers = self.lane.scratch.buffers.borrow_mut();
        let Buffers { bytes, payloads, keys, spares } = &mut *buffers;
        let incomplete = &mut self.tls.incomplete;
        let held = incomplete.len();
        bytes[..held].copy_from_slice(incomplete);
        let total = if std::mem::take(&mut self.unexamined) {
            held
        } else {
            let end = held + RECORD_BYTES_MAX;
            let read = self.downstream.poll_read(cx, RECORD_BYTES_MAX, |fd| {
                meter::switch(Component::Receive);
                socket::read(fd, &mut bytes[held..end])
            });
            match ready!(read) {
                Ok(0) => return Poll::Ready(Err(ConnectionEnd::Truncated)),
                Ok(count) => held + count,
                Err(error) => return Poll::Ready(Err(broken(BrokenSocket::Far, error))),
            }
        };
        payloads.clear();
        meter::switch(Component::Open);
        let id = self.connection.record().id;
        let opened = self.tls.session.open_batch(keys.of(id), &mut bytes[..total], payloads);
        // A connection that waits needs no place in the cache.
        keys.forget(id);
        let count: usize = payloads.iter().map(Range::len).sum();
        let mut payload = Vec::with_capacity(count);
        payloads.iter().for_each(|range| payload.extend_from_slice(&bytes[range.clone()]));
        if count > 0 {
            let pieces = || payloads.iter().map(|range| &bytes[range.clone()]);
            self.connection.note_received_pieces(count, pieces);
        }
        let OpenedBatch { consumed, closed } = opened.map_err(ConnectionEnd::Session)?;
        let consumed = if closed { total } else { consumed };
        Buffers::keep(spares, &bytes[consumed..total], incomplete);
        Poll::Ready(Ok(FirstMessage { payload, is_last: closed }))
    }

    /// Ends the connection with the alert that fits its end.
    async fn close(self, end: ConnectionEnd) -> ConnectionEnd {
        let Self { downstream, mut tls, .. } = self;
        let alert = match &end {
            ConnectionEnd::Orderly => Some(AlertDescription::CLOSE_NOTIFY),
            ConnectionEnd::NotStarted(_) => Some(AlertDescription::INTERNAL_ERROR),
            ConnectionEnd::Session(error) => error.alert(),
            _ => None,
        };
        let Some(alert) = alert else { return end };
        // A key at its limit cannot seal the alert, and a peer that has closed cannot read it.
        let _ = tls.session.seal_alert(alert, &mut tls.initial);
        let mut bytes = Outgoing::new(tls.initial);
        let sent = tokio::time::timeout(super::DELIVERY_WAIT_MAX, bytes.flush(&downstream)).await;
        if matches!(sent, Ok(Ok(()))) && !matches!(end, ConnectionEnd::Orderly) {
            drain_after_alert(downstream).await;
        }
        end
    }
}

/// Starts the program, unless the client resets the connection before that.
async fn start(
    lane: &StreamLane,
    downstream: &StreamSocket,
    connection: &Connection,
) -> Result<StreamSocket, ConnectionEnd> {
    let record = connection.record();
    let upstream = tokio::select! {
        biased;
        error = poll_fn(|cx| downstream.poll_reset(cx)) => {
            return Err(broken(BrokenSocket::Far, error));
        }
        started = activated::start(&lane.shared, record) => started,
    };
    let upstream =
        upstream.map_err(|unreached| ConnectionEnd::NotStarted(unreached.reason.into()))?;
    let sockets = ConnectionSockets {
        downstream: downstream.downgrade(),
        upstream: upstream.socket.downgrade(),
        target: upstream.target,
    };
    let _ = record.sockets.set(sockets);
    Ok(upstream.socket)
}

fn broken(socket: BrokenSocket, error: io::Error) -> ConnectionEnd {
    ConnectionEnd::Broken { socket, error }
}
