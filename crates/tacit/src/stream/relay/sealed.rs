//! Relays bytes between a clear socket and a TLS socket, and encrypts and decrypts them.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tacit_core::meter::Component;
use tacit_core::record::{PAYLOAD_BYTES_MAX, RecordProtection, begins_client_hello};
use tacit_sys::socket;
use tokio::time::Sleep;

use crate::ledger::meter;
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{BrokenSocket, Connection, account};
use crate::stream::bulk::BulkTurn;
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{OwnTlsRelay, RelayKind, SealedRelay};
use tacit_tls::{KeyUse, OpenedBatch, Session, SessionError};

use super::follow::{CpuFollower, TransferDirection, poll_here};
use super::{
    BATCH_RECORDS_MAX, Broken, Buffers, CHACHA_BATCH_RECORDS_MAX, ConnectionEnd, Delivery,
    HeldBytes, Left, Scratch, deliver, own_tls, written,
};

/// Near the limit of a key, the direction of the program is closed when it has not written for this
/// time.
const KEY_PAUSE: Duration = Duration::from_millis(100);

/// The first payload of a TLS connection.
pub(super) struct FirstMessage {
    pub(super) payload: Vec<u8>,
    /// Whether the peer has ended its direction after it.
    pub(super) is_last: bool,
}

/// Runs the transfer to the end, then ends both sockets accordingly. If the program starts TLS
/// itself, [`own_tls`] continues. If the program is on another CPU, the worker on that CPU
/// continues.
pub(super) fn run<'a>(
    lane: &'a StreamLane,
    relay: Box<SealedRelay>,
    connection: &'a Connection,
) -> impl Future<Output = Left> {
    // Created here, so that the future stores each of them only once.
    let mut transfer = SealedTransfer::new(&lane.scratch, relay, connection);
    transfer.follow = CpuFollower::of(lane, connection);
    run_transfer(lane, transfer)
}

/// The same for a connection whose first message was opened before the socket in clear existed.
pub(super) fn run_after<'a>(
    lane: &'a StreamLane,
    relay: Box<SealedRelay>,
    first: FirstMessage,
    connection: &'a Connection,
) -> impl Future<Output = Left> {
    let mut transfer = SealedTransfer::new(&lane.scratch, relay, connection);
    transfer.follow = CpuFollower::of(lane, connection);
    transfer.unexamined = false;
    transfer.to_clear = Outgoing::new(first.payload);
    if first.is_last {
        transfer.opening = Direction::Ending;
    }
    run_transfer(lane, transfer)
}

fn run_transfer<'a>(
    lane: &'a StreamLane,
    transfer: SealedTransfer<'a>,
) -> impl Future<Output = Left> {
    let mut transfer = transfer;
    async move {
        let Some(end) = poll_fn(|cx| poll_here(&mut transfer, SealedTransfer::leaves, cx)).await
        else {
            return transfer.leave();
        };
        let conclusion = match end_or_conclude(lane, transfer, end) {
            Ok(end) => return Left::Ended(end),
            Err(conclusion) => conclusion,
        };
        Left::Ended(conclusion.await)
    }
}

/// Closes both sockets. If something must be delivered before, returns the last steps; they are
/// boxed together with the transfer, because they need no memory while bytes are relayed.
fn end_or_conclude<'a>(
    lane: &'a StreamLane,
    mut transfer: SealedTransfer<'a>,
    end: ConnectionEnd,
) -> Result<ConnectionEnd, Pin<Box<impl Future<Output = ConnectionEnd> + 'a>>> {
    if transfer.may_deliver(&end) {
        return Err(Box::pin(conclude(lane, transfer, end)));
    }
    transfer.end_both(&end);
    Ok(end)
}

/// Delivers remaining bytes and alerts when a connection has failed, and closes both sockets.
async fn conclude(
    lane: &StreamLane,
    mut transfer: SealedTransfer<'_>,
    end: ConnectionEnd,
) -> ConnectionEnd {
    if matches!(end, ConnectionEnd::OwnTls(_)) {
        let connection = transfer.at.connection;
        return own_tls::run(lane, transfer.into_own_tls(end), connection).await;
    }
    transfer.deliver().await;
    transfer.end_both(&end);
    end
}

/// The state of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// More bytes may arrive.
    Open,
    /// The TLS peer has sent `close_notify` on a connection whose program may continue in clear. It
    /// is not known yet whether the stream ends here.
    Closed,
    /// The source has ended; its last bytes and the end of file must still be written.
    Ending,
    /// No more bytes will be written.
    Done,
}

/// The buffers and the keys of a transfer, and the connection to which they belong. The keys are
/// removed from the cache with it.
#[derive(Debug)]
pub(super) struct TransferContext<'a> {
    held: HeldBytes<'a>,
    connection: &'a Connection,
}

impl Drop for TransferContext<'_> {
    fn drop(&mut self) {
        self.held.scratch.buffers.borrow_mut().keys.forget(self.connection.record().id);
    }
}

/// Moves bytes both ways until both directions are done or something breaks.
#[derive(Debug)]
pub(super) struct SealedTransfer<'a> {
    pub(super) at: TransferContext<'a>,
    pub(super) clear: StreamSocket,
    pub(super) tls: StreamSocket,
    pub(super) session: Session,
    pub(super) to_tls: Outgoing,
    pub(super) to_clear: Outgoing,
    /// The beginning of a record that has not arrived completely; in a closed direction, the bytes
    /// that arrived after `close_notify`.
    pub(super) incomplete: Vec<u8>,
    /// Whether `incomplete` may contain complete records, because it came from the handshake.
    unexamined: bool,
    /// Whether the next read of clear bytes is for a whole batch, because the last one filled a
    /// record. A read into one buffer takes 0.25 us less than into many, which matters for small
    /// messages.
    reads_much: bool,
    /// Whether the next bytes of the program are its first, and may be the start of its own TLS.
    looks_for_tls: bool,
    pub(super) sealing: Direction,
    pub(super) opening: Direction,
    /// The error of one socket, while bytes are still delivered to the other.
    pub(super) broken: Option<Box<Broken>>,
    /// Whether waiting bytes cannot be delivered, or were not delivered in time.
    gave_up: bool,
    /// The use of the sending key at the last check.
    key_use: KeyUse,
    /// Measures how long the program has not written while its key is near its limit.
    pause: Option<Pin<Box<Sleep>>>,
    follow: Option<CpuFollower<'a>>,
    bulk: BulkTurn,
}

impl Future for SealedTransfer<'_> {
    type Output = ConnectionEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let transfer = self.get_mut();
        meter::resume(Component::Receive);
        ready!(transfer.bulk.poll(&transfer.at.held.scratch.bulk, cx));
        let before = transfer.at.connection.record().moved_bytes();
        let polled = transfer.poll_both(cx);
        let moved = transfer.at.connection.record().moved_bytes() - before;
        transfer.bulk.moved(&transfer.at.held.scratch.bulk, moved, transfer.batch_records());
        transfer.at.held.set(transfer.held_bytes());
        if polled.is_pending() {
            ready!(transfer.poll_broken(cx));
            transfer.gave_up = true;
        }
        Poll::Ready(match (transfer.broken.take(), polled) {
            (Some(broken), _) => broken.end,
            (None, Poll::Ready(Err(end))) => end,
            (None, _) if transfer.key_use >= KeyUse::Last => ConnectionEnd::KeyLimit,
            (None, _) => ConnectionEnd::Orderly,
        })
    }
}

impl<'a> SealedTransfer<'a> {
    /// The box is freed here; in the future it would live as long as the connection.
    pub(super) fn new(
        scratch: &'a Scratch,
        relay: Box<SealedRelay>,
        connection: &'a Connection,
    ) -> Self {
        let SealedRelay { clear, tls, session, incomplete, initial } = *relay;
        let nothing_sent = connection.record().sent_bytes() == 0;
        Self {
            at: TransferContext { held: HeldBytes::new(scratch), connection },
            clear,
            tls,
            session,
            to_tls: Outgoing::new(initial),
            to_clear: Outgoing::default(),
            unexamined: !incomplete.is_empty(),
            incomplete,
            reads_much: false,
            looks_for_tls: connection.record().rule.own_tls().is_some() && nothing_sent,
            sealing: Direction::Open,
            opening: Direction::Open,
            broken: None,
            gave_up: false,
            key_use: KeyUse::Low,
            pause: None,
            follow: None,
            bulk: BulkTurn::default(),
        }
    }

    /// Whether the connection should and can move to another thread: no bytes wait, and both
    /// directions are open.
    fn leaves(&self) -> bool {
        let is_open = || self.is_whole() && self.opening == Direction::Open;
        let is_quiet = || self.to_tls.is_empty() && self.to_clear.is_empty();
        self.follow.as_ref().is_some_and(CpuFollower::leaves) && is_open() && is_quiet()
    }

    /// The state with which another thread continues.
    fn leave(self) -> Left {
        let Self { at, clear, tls, session, incomplete, follow, .. } = self;
        let program_cpu = follow.and_then(|follow| follow.leave(at.connection));
        let relay = SealedRelay { clear, tls, session, incomplete, initial: Vec::new() };
        Left::Leaves { relay: RelayKind::Sealed(Box::new(relay)), program_cpu }
    }

    /// The state for [`own_tls`], after the program has started TLS itself.
    fn into_own_tls(self, end: ConnectionEnd) -> Box<OwnTlsRelay> {
        let Self { clear: program, tls: upstream, session, to_tls, .. } = self;
        let waiting = to_tls.unwritten().to_vec();
        let first = match end {
            ConnectionEnd::OwnTls(first) => first.into_vec(),
            _ => Vec::new(),
        };
        Box::new(OwnTlsRelay { program, upstream, session, waiting, first })
    }

    /// Whether both directions are open (or only TLS has ended in one), and no socket has failed.
    pub(super) fn is_whole(&self) -> bool {
        let may_come = matches!(self.opening, Direction::Open | Direction::Closed);
        may_come && self.sealing == Direction::Open && self.broken.is_none()
    }

    /// Seals the alert for this end of the connection. Returns whether there are bytes to deliver.
    pub(super) fn may_deliver(&mut self, end: &ConnectionEnd) -> bool {
        if let ConnectionEnd::Session(error) = end
            && let Some(alert) = error.alert()
        {
            // A key at its limit cannot seal the alert.
            let _ = self.session.seal_alert(alert, self.to_tls.tail());
        }
        !matches!(end, ConnectionEnd::Orderly | ConnectionEnd::KeyLimit) && !self.gave_up
    }

    /// See [`deliver`].
    pub(super) fn deliver(&mut self) -> Pin<Box<impl Future<Output = ()>>> {
        let to_tls = Delivery { waiting: &mut self.to_tls, socket: &self.tls };
        let to_clear = Delivery { waiting: &mut self.to_clear, socket: &self.clear };
        deliver(to_tls, to_clear)
    }

    /// Ends both sockets as the transfer ended.
    pub(super) fn end_both(&self, end: &ConnectionEnd) {
        match end {
            ConnectionEnd::Orderly | ConnectionEnd::KeyLimit => self.clear.end_in_order(),
            // A reset of one socket resets the other, as it would without a relay.
            ConnectionEnd::Broken { .. } => {
                self.clear.reset();
                self.tls.reset();
            }
            _ => self.clear.reset(),
        }
    }

    fn batch_records(&self) -> usize {
        self.at.held.scratch.batch_records(match self.session.protection() {
            RecordProtection::Tls13Gcm | RecordProtection::Tls12Gcm => BATCH_RECORDS_MAX,
            RecordProtection::Tls13ChaCha | RecordProtection::Tls12ChaCha => {
                CHACHA_BATCH_RECORDS_MAX
            }
        })
    }

    fn held_bytes(&self) -> usize {
        self.to_tls.len() + self.to_clear.len() + self.incomplete.len()
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        let sealing = self.poll_sealing(cx);
        let opening = self.poll_opening(cx);
        // A failed write ends its own direction. The other direction may still have bytes to
        // deliver, and ends with the same error afterwards.
        let sealing = self.outlive(sealing)?;
        let opening = self.outlive(opening)?;
        if sealing.is_pending() || opening.is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Stores the error of a failed write for later; returns everything else.
    fn outlive(&mut self, polled: Poll<Result<(), Stop>>) -> Result<Poll<()>, ConnectionEnd> {
        match polled {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(Stop::Write { socket, error })) => {
                self.broken.get_or_insert_with(|| Broken::new(socket, error));
                Ok(Poll::Ready(()))
            }
            Poll::Ready(Err(Stop::Now(end))) => Err(end),
        }
    }

    /// Detects the reset of a socket that is not being read. Ready if nothing more can be
    /// delivered, or was not delivered in time.
    fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(broken) = &mut self.broken {
            let moved = self.at.connection.record().moved_bytes();
            return broken.poll_give_up(moved.wrapping_sub(self.at.held.bytes as u64), cx);
        }
        let stalled =
            |direction, waiting: &Outgoing| direction != Direction::Open || !waiting.is_empty();
        if stalled(self.sealing, &self.to_tls)
            && let Poll::Ready(error) = self.clear.poll_reset(cx)
        {
            self.broken = Some(Broken::new(BrokenSocket::Clear, error));
            self.stop_opening();
        } else if stalled(self.opening, &self.to_clear)
            && let Poll::Ready(error) = self.tls.poll_reset(cx)
        {
            self.broken = Some(Broken::new(BrokenSocket::Far, error));
            self.stop_sealing();
        } else {
            return Poll::Pending;
        }
        if self.sealing == Direction::Done && self.opening == Direction::Done {
            return Poll::Ready(());
        }
        self.poll_broken(cx)
    }

    /// Relays from the socket in clear to the TLS socket.
    fn poll_sealing(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.sealing == Direction::Done {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !self.to_tls.is_empty() {
                meter::switch(Component::Send);
            }
            // `close_notify` and FIN are sent in one segment.
            let is_last = self.sealing == Direction::Ending && self.broken.is_none();
            let flushed = match is_last {
                true => self.to_tls.poll_flush_last(&self.tls, cx),
                false => self.to_tls.poll_flush(&self.tls, cx),
            };
            if let Err(error) = ready!(flushed) {
                self.stop_sealing();
                return Poll::Ready(Err(Stop::Write { socket: BrokenSocket::Far, error }));
            }
            if self.sealing == Direction::Ending {
                self.sealing = Direction::Done;
                if self.opening != Direction::Done {
                    // The other direction reports a failure.
                    let _ = self.tls.shutdown_write();
                }
                return Poll::Ready(Ok(()));
            }
            if self.seal_due()? {
                continue;
            }
            self.look_at_key();
            if self.key_use == KeyUse::Full {
                self.end_sealing()?;
                continue;
            }
            match self.poll_seal_batch(cx)? {
                Poll::Ready(false) => self.pause = None,
                Poll::Ready(true) => {
                    self.pause = None;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Pending => {
                    ready!(self.poll_pause(cx));
                    self.end_sealing()?;
                }
            }
        }
    }

    /// Logs once that the key of a TLS 1.2 connection is near its limit.
    fn look_at_key(&mut self) {
        let key_use = self.session.key_use();
        if key_use > self.key_use {
            if self.key_use == KeyUse::Low {
                account::key_limit_near(&self.at.held.scratch.log, self.at.connection);
            }
            self.key_use = key_use;
        }
    }

    /// Ready if the key is near its limit and the program has not written for a while, so that a
    /// large write is not cut in the middle.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.key_use < KeyUse::Last {
            return Poll::Pending;
        }
        let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(KEY_PAUSE)));
        pause.as_mut().poll(cx)
    }

    /// Stops reading from the program, and sends `close_notify` after the bytes that were read.
    fn end_sealing(&mut self) -> Result<(), Stop> {
        self.sealing = Direction::Ending;
        self.session.seal_close(self.to_tls.tail()).map_err(Stop::session)
    }

    /// Reads, seals and writes once. `true`: the read filled a batch.
    fn poll_seal_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Stop>> {
        let protection = self.session.protection();
        let probes = !self.reads_much;
        let records = if probes { 1 } else { self.batch_records() };
        let mut buffers = self.at.held.scratch.buffers.borrow_mut();
        let requested = records * PAYLOAD_BYTES_MAX;
        let read = ready!(self.clear.poll_read(cx, requested, |fd| {
            meter::switch(Component::Receive);
            if records == 1 {
                let at = protection.prefix_bytes();
                return socket::read(fd, &mut buffers.bytes[at..at + PAYLOAD_BYTES_MAX]);
            }
            let mut slots = slots(&mut buffers.bytes, protection);
            socket::read_vectored(fd, &mut slots[..records])
        }));
        let count = match read {
            Ok(0)
                if self
                    .broken
                    .as_ref()
                    .is_some_and(|broken| broken.hides_reset(BrokenSocket::Clear)) =>
            {
                // No end of file: `close_notify` would make a truncated stream look complete.
                return Poll::Ready(Err(Stop::Now(ConnectionEnd::Truncated)));
            }
            Ok(0) => {
                drop(buffers);
                self.end_sealing()?;
                return Poll::Ready(Ok(false));
            }
            Ok(count) => count,
            Err(error) => {
                return Poll::Ready(Err(Stop::Now(ConnectionEnd::Broken {
                    socket: BrokenSocket::Clear,
                    error,
                })));
            }
        };
        if std::mem::take(&mut self.looks_for_tls) {
            let at = protection.prefix_bytes();
            let first = &buffers.bytes[at..at + count.min(PAYLOAD_BYTES_MAX)];
            if begins_client_hello(first) {
                return Poll::Ready(Err(Stop::Now(ConnectionEnd::OwnTls(first.into()))));
            }
        }
        meter::switch(Component::Seal);
        let pieces = || payloads(&buffers.bytes, protection, count);
        self.at.connection.note_sent_pieces(count, pieces);
        if let Some(follow) = &mut self.follow {
            follow.passed(self.at.connection, TransferDirection::FromProgram, self.clear.fd());
        }
        let Buffers { bytes, keys, .. } = &mut *buffers;
        let hot = keys.of(self.at.connection.record().id);
        let sealed = self.session.seal_slots(hot, bytes, count).map_err(Stop::session)?;
        let bytes = &buffers.bytes[..sealed];
        meter::switch(Component::Send);
        match written(socket::write(self.tls.fd(), bytes)) {
            Ok(taken) if taken < sealed => self.to_tls.append(&bytes[taken..]),
            Ok(_) => {}
            Err(error) => {
                drop(buffers);
                self.stop_sealing();
                return Poll::Ready(Err(Stop::Write { socket: BrokenSocket::Far, error }));
            }
        }
        self.reads_much = count >= PAYLOAD_BYTES_MAX;
        Poll::Ready(Ok(count == requested && !probes))
    }

    /// Stops this direction, because the TLS socket cannot be written any more.
    fn stop_sealing(&mut self) {
        self.sealing = Direction::Done;
        self.to_tls = Outgoing::default();
    }

    /// Relays from the TLS socket to the socket in clear.
    pub(super) fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if self.opening == Direction::Done {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !self.to_clear.is_empty() {
                meter::switch(Component::Send);
            }
            if let Err(error) = ready!(self.to_clear.poll_flush(&self.clear, cx)) {
                self.stop_opening();
                return Poll::Ready(Err(Stop::Write { socket: BrokenSocket::Clear, error }));
            }
            if self.opening == Direction::Closed {
                ready!(self.poll_end(cx))?;
            }
            if self.opening == Direction::Ending {
                self.opening = Direction::Done;
                if self.sealing != Direction::Done {
                    let _ = self.clear.shutdown_write();
                }
                return Poll::Ready(Ok(()));
            }
            let filled = ready!(self.poll_open_batch(cx))?;
            // If bytes wait, the other direction sends it after them.
            if self.to_tls.is_empty() && self.seal_due()? {
                let polled = self.poll_sealing(cx);
                let _still_pending = self.outlive(polled).map_err(Stop::Now)?;
            }
            if filled {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Waits for the end of the stream after TLS has ended. If more bytes arrive, they are clear
    /// text for a program that requested `stop`.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Stop>> {
        if !self.incomplete.is_empty() {
            return Poll::Pending;
        }
        match ready!(self.tls.poll_read(cx, 1, |fd| socket::peek(fd, &mut [0]))) {
            Ok(0) => self.opening = Direction::Ending,
            Ok(_) => return Poll::Pending,
            Err(error) => {
                return Poll::Ready(Err(Stop::Now(ConnectionEnd::Broken {
                    socket: BrokenSocket::Far,
                    error,
                })));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads, opens and writes once. `true`: the read filled the buffer.
    fn poll_open_batch(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Stop>> {
        let mut buffers = self.at.held.scratch.buffers.borrow_mut();
        let buffers = &mut *buffers;
        let held = self.incomplete.len();
        buffers.bytes[..held].copy_from_slice(&self.incomplete);
        let (total, filled) = if std::mem::take(&mut self.unexamined) {
            (held, false)
        } else {
            let protection = self.session.protection();
            let overhead = protection.slot_bytes() - PAYLOAD_BYTES_MAX;
            let records = self.batch_records();
            // A multiple of full records, so that no incomplete record has to be copied if the
            // peer fills its records.
            let end = (records * (PAYLOAD_BYTES_MAX + overhead)).max(held + PAYLOAD_BYTES_MAX);
            let requested = end - held;
            let read = ready!(self.tls.poll_read(cx, requested, |fd| {
                meter::switch(Component::Receive);
                socket::read(fd, &mut buffers.bytes[held..end])
            }));
            match read {
                Ok(0) => return Poll::Ready(Err(Stop::Now(ConnectionEnd::Truncated))),
                Ok(count) => (held + count, count == requested),
                Err(error) => {
                    return Poll::Ready(Err(Stop::Now(ConnectionEnd::Broken {
                        socket: BrokenSocket::Far,
                        error,
                    })));
                }
            }
        };
        self.take_records(buffers, total)?;
        Poll::Ready(Ok(filled))
    }

    /// Stops this direction, because the socket in clear cannot be written any more.
    fn stop_opening(&mut self) {
        self.opening = Direction::Done;
        self.to_clear = Outgoing::default();
    }

    /// Opens the first `total` bytes of the buffer, writes the payloads, and keeps an incomplete
    /// record.
    fn take_records(&mut self, buffers: &mut Buffers, total: usize) -> Result<(), Stop> {
        let Buffers { bytes, payloads, keys, spares } = buffers;
        payloads.clear();
        meter::switch(Component::Open);
        let hot = keys.of(self.at.connection.record().id);
        let opened = self.session.open_batch(hot, &mut bytes[..total], payloads);
        let count = payloads.iter().map(Range::len).sum();
        if count > 0 {
            let pieces = || payloads.iter().map(|range| &bytes[range.clone()]);
            self.at.connection.note_received_pieces(count, pieces);
            meter::switch(Component::Send);
            let mut taken = match written(write_payloads(&self.clear, bytes, payloads)) {
                Ok(taken) => taken,
                Err(error) => {
                    self.stop_opening();
                    return Err(Stop::Write { socket: BrokenSocket::Clear, error });
                }
            };
            if let Some(follow) = &mut self.follow {
                follow.passed(self.at.connection, TransferDirection::ToProgram, self.clear.fd());
            }
            for range in payloads.iter() {
                let skip = taken.min(range.len());
                taken -= skip;
                self.to_clear.append(&bytes[range.start + skip..range.end]);
            }
        }
        let OpenedBatch { mut consumed, closed } = opened.map_err(Stop::session)?;
        if closed && self.at.connection.record().tls_control().is_some() {
            self.opening = Direction::Closed;
        } else if closed {
            self.opening = Direction::Ending;
            consumed = total;
        }
        Buffers::keep(spares, &bytes[consumed..total], &mut self.incomplete);
        Ok(())
    }

    /// Appends messages of the session that must precede more data, such as KeyUpdate, if there may
    /// be more data.
    fn seal_due(&mut self) -> Result<bool, Stop> {
        if self.sealing != Direction::Open {
            return Ok(false);
        }
        let due = self.to_tls.append_by(|out| self.session.seal_due(Instant::now, out));
        let due = due.map_err(Stop::session)?;
        if due {
            self.at.connection.count_rekeys(self.session.rekeys());
        }
        Ok(due)
    }
}

/// Why a direction stops.
pub(super) enum Stop {
    /// A write failed; the other direction may continue.
    Write { socket: BrokenSocket, error: io::Error },
    /// Neither direction can continue.
    Now(ConnectionEnd),
}

impl Stop {
    fn session(error: SessionError) -> Self {
        Self::Now(ConnectionEnd::Session(error))
    }
}

/// The parts of `bytes` that hold the payloads of the records.
fn slots(
    bytes: &mut [u8],
    protection: RecordProtection,
) -> [io::IoSliceMut<'_>; BATCH_RECORDS_MAX] {
    let mut slots = bytes.chunks_exact_mut(protection.slot_bytes());
    std::array::from_fn(|_| {
        let slot = slots.next().unwrap_or_default();
        let payload = slot.get_mut(protection.prefix_bytes()..).unwrap_or_default();
        let length = payload.len().min(PAYLOAD_BYTES_MAX);
        io::IoSliceMut::new(&mut payload[..length])
    })
}

/// Returns the payload in each slot of `bytes`, for this number of payload bytes.
fn payloads(
    bytes: &[u8],
    protection: RecordProtection,
    count: usize,
) -> impl Iterator<Item = &[u8]> {
    let slots = bytes.chunks(protection.slot_bytes());
    let lengths = (0..count).step_by(PAYLOAD_BYTES_MAX).map(move |begin| count - begin);
    slots.zip(lengths).map(move |(slot, left)| {
        let payload = slot.get(protection.prefix_bytes()..).unwrap_or_default();
        &payload[..left.min(PAYLOAD_BYTES_MAX).min(payload.len())]
    })
}

/// Writes as many of the payloads in `bytes` as the socket accepts. If there are more payloads than
/// in a batch, because records are small, not all are written in one call.
fn write_payloads(
    socket: &StreamSocket,
    bytes: &[u8],
    payloads: &[Range<usize>],
) -> io::Result<usize> {
    if let [payload] = payloads {
        return socket::write(socket.fd(), &bytes[payload.clone()]);
    }
    let mut slices = [io::IoSlice::new(&[]); BATCH_RECORDS_MAX];
    for (slice, payload) in slices.iter_mut().zip(payloads) {
        *slice = io::IoSlice::new(&bytes[payload.clone()]);
    }
    socket::write_vectored(socket.fd(), &slices[..payloads.len().min(BATCH_RECORDS_MAX)])
}
