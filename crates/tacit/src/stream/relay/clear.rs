//! Relays bytes between two sockets without TLS, for rules with `permit`.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tacit_core::meter::Component;
use tacit_core::record::PAYLOAD_BYTES_MAX;
use tacit_sys::socket;

use crate::ledger::meter;
use crate::net::Position;
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{BrokenSocket, Connection};
use crate::stream::bulk::BulkTurn;
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, RelayKind};

use super::follow::{CpuFollower, TransferDirection, poll_here};
use super::{
    BATCH_RECORDS_MAX, Broken, ConnectionEnd, Delivery, HeldBytes, Left, Scratch, deliver, written,
};

/// Relays both directions to the end and closes both sockets, or until the connection moves to
/// another thread.
pub(super) async fn run(
    lane: &StreamLane,
    relay: Box<ClearRelay>,
    connection: &Connection,
) -> Left {
    let mut transfer = ClearTransfer::new(&lane.scratch, relay, connection);
    transfer.follow = CpuFollower::of(lane, connection);
    match poll_fn(|cx| poll_here(&mut transfer, ClearTransfer::leaves, cx)).await {
        Some(end) => {
            conclude(&mut transfer, &end).await;
            Left::Ended(end)
        }
        None => transfer.leave(),
    }
}

/// Relays on this thread to the end.
pub(super) async fn run_here(
    scratch: &Scratch,
    relay: Box<ClearRelay>,
    connection: &Connection,
) -> ConnectionEnd {
    let mut transfer = ClearTransfer::new(scratch, relay, connection);
    let end = (&mut transfer).await;
    conclude(&mut transfer, &end).await;
    end
}

/// The transfer is passed by reference, because a connection must not store it twice.
async fn conclude(transfer: &mut ClearTransfer<'_>, end: &ConnectionEnd) {
    if transfer.may_deliver(end) {
        transfer.deliver().await;
    }
    transfer.end_both(end);
}

#[derive(Debug)]
pub(super) struct ClearTransfer<'a> {
    scratch: &'a Scratch,
    connection: &'a Connection,
    pub(super) downstream: StreamSocket,
    pub(super) upstream: StreamSocket,
    pub(super) onward: Copy,
    pub(super) back: Copy,
    /// The error of one socket, while bytes are still delivered to the other.
    pub(super) broken: Option<Box<Broken>>,
    /// Whether waiting bytes cannot be delivered, or were not delivered in time.
    gave_up: bool,
    held: HeldBytes<'a>,
    follow: Option<CpuFollower<'a>>,
    bulk: BulkTurn,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Copy {
    pub(super) waiting: Outgoing,
    pub(super) ending: bool,
    pub(super) done: bool,
    /// Whether a write to the source has returned the error of its reset, so that the end of file
    /// that follows is not an orderly end.
    hides_reset: bool,
}

/// The sockets of a transfer, and the bytes that wait for them.
pub(super) struct Parts {
    /// The program-side socket.
    pub(super) program: StreamSocket,
    /// The other socket.
    pub(super) outside: StreamSocket,
    pub(super) to_program: Outgoing,
    pub(super) to_outside: Outgoing,
}

/// The operation that failed.
enum Failure {
    Read(io::Error),
    Write(io::Error),
}

impl Future for ClearTransfer<'_> {
    type Output = ConnectionEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let transfer = self.get_mut();
        meter::resume(Component::Receive);
        ready!(transfer.bulk.poll(&transfer.scratch.bulk, cx));
        let before = transfer.connection.record().moved_bytes();
        let polled = transfer.poll_both(cx);
        let moved = transfer.connection.record().moved_bytes() - before;
        transfer.bulk.moved(
            &transfer.scratch.bulk,
            moved,
            transfer.scratch.batch_records(BATCH_RECORDS_MAX),
        );
        transfer.held.set(transfer.onward.waiting.len() + transfer.back.waiting.len());
        if polled.is_pending() {
            ready!(transfer.poll_broken(cx));
            transfer.gave_up = true;
        }
        Poll::Ready(match (transfer.broken.take(), polled) {
            (Some(broken), _) => broken.end,
            (None, Poll::Ready(Err(end))) => end,
            (None, _) => ConnectionEnd::Orderly,
        })
    }
}

impl<'a> ClearTransfer<'a> {
    /// The box is freed here; in the future it would live as long as the connection.
    #[expect(clippy::boxed_local, reason = "the function frees the `Box` before the transfer ends")]
    pub(super) fn new(
        scratch: &'a Scratch,
        relay: Box<ClearRelay>,
        connection: &'a Connection,
    ) -> Self {
        let ClearRelay { downstream, upstream, initial } = *relay;
        connection.note_sent(&initial);
        Self {
            scratch,
            connection,
            downstream,
            upstream,
            onward: Copy { waiting: Outgoing::new(initial), ..Copy::default() },
            back: Copy::default(),
            broken: None,
            gave_up: false,
            held: HeldBytes::new(scratch),
            follow: None,
            bulk: BulkTurn::default(),
        }
    }

    /// Whether the connection should and can move to another thread: no bytes wait, and both
    /// directions are open.
    fn leaves(&self) -> bool {
        let is_quiet = || self.onward.waiting.is_empty() && self.back.waiting.is_empty();
        self.follow.as_ref().is_some_and(CpuFollower::leaves) && self.is_whole() && is_quiet()
    }

    /// The state with which another thread continues.
    fn leave(self) -> Left {
        let Self { connection, downstream, upstream, follow, .. } = self;
        let program_cpu = follow.and_then(|follow| follow.leave(connection));
        let relay = ClearRelay { downstream, upstream, initial: Vec::new() };
        Left::Leaves { relay: RelayKind::Clear(Box::new(relay)), program_cpu }
    }

    /// Whether there are bytes to deliver before this end of the connection.
    pub(super) fn may_deliver(&self, end: &ConnectionEnd) -> bool {
        !matches!(end, ConnectionEnd::Orderly) && !self.gave_up
    }

    /// See [`deliver`].
    pub(super) fn deliver(&mut self) -> Pin<Box<impl Future<Output = ()>>> {
        let onward = Delivery { waiting: &mut self.onward.waiting, socket: &self.upstream };
        let back = Delivery { waiting: &mut self.back.waiting, socket: &self.downstream };
        deliver(onward, back)
    }

    /// Ends both sockets as the transfer ended.
    pub(super) fn end_both(&self, end: &ConnectionEnd) {
        for socket in [&self.upstream, &self.downstream] {
            match end {
                ConnectionEnd::Orderly => socket.end_in_order(),
                _ => socket.reset(),
            }
        }
    }

    /// The direction to the program, whose socket is not the one that gets TLS.
    pub(super) fn way_in(&mut self, tls_on: Position) -> &mut Copy {
        match tls_on {
            Position::Downstream => &mut self.onward,
            Position::Upstream => &mut self.back,
        }
    }

    /// Whether both directions are open and no socket has failed.
    pub(super) fn is_whole(&self) -> bool {
        let is_open = |direction: &Copy| !(direction.ending || direction.done);
        is_open(&self.onward) && is_open(&self.back) && self.broken.is_none()
    }

    /// Returns the sockets and the waiting bytes.
    pub(super) fn into_parts(self, tls_on: Position) -> Parts {
        let Self { downstream, upstream, onward, back, .. } = self;
        match tls_on {
            Position::Downstream => Parts {
                program: upstream,
                outside: downstream,
                to_program: onward.waiting,
                to_outside: back.waiting,
            },
            Position::Upstream => Parts {
                program: downstream,
                outside: upstream,
                to_program: back.waiting,
                to_outside: onward.waiting,
            },
        }
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionEnd>> {
        let scratch = self.scratch;
        let connection = self.connection;
        let has_sent = Cell::new(false);
        let has_received = Cell::new(false);
        let onward = self.onward.poll(scratch, &self.downstream, &self.upstream, cx, |bytes| {
            connection.note_sent(bytes);
            has_sent.set(true);
        });
        // Before `back` is polled: it could read the end of file that follows a reset.
        let onward = self.outlive(BrokenSocket::Clear, onward);
        let back = self.back.poll(scratch, &self.upstream, &self.downstream, cx, |bytes| {
            connection.note_received(bytes);
            has_received.set(true);
        });
        let back = self.outlive(BrokenSocket::Far, back);
        if let Some(follow) = &mut self.follow {
            let is_inbound = connection.record().scope.as_ref().is_some_and(|at| at.is_inbound);
            let program = if is_inbound { &self.upstream } else { &self.downstream };
            let from_program = if is_inbound { &has_received } else { &has_sent };
            let to_program = if is_inbound { &has_sent } else { &has_received };
            if from_program.get() {
                follow.passed(connection, TransferDirection::FromProgram, program.fd());
            } else if to_program.get() {
                follow.passed(connection, TransferDirection::ToProgram, program.fd());
            }
        }
        match (onward, back) {
            (Poll::Ready(Err(end)), _) | (_, Poll::Ready(Err(end))) => Poll::Ready(Err(end)),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    /// Stores the error of a failed write for later; returns everything else. `source` is the
    /// socket that the direction reads.
    fn outlive(
        &mut self,
        source: BrokenSocket,
        polled: Poll<Result<(), Failure>>,
    ) -> Poll<Result<(), ConnectionEnd>> {
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(Failure::Read(error))) => {
                Poll::Ready(Err(ConnectionEnd::Broken { socket: source, error }))
            }
            Poll::Ready(Err(Failure::Write(error))) => {
                self.break_socket(source.other(), error);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Detects the reset of a socket that is not being read. Ready if nothing more can be
    /// delivered, or was not delivered in time.
    fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(broken) = &mut self.broken {
            let moved = self.connection.record().moved_bytes();
            return broken.poll_give_up(moved.wrapping_sub(self.held.bytes as u64), cx);
        }
        if self.onward.is_stalled()
            && let Poll::Ready(error) = self.downstream.poll_reset(cx)
        {
            self.break_socket(BrokenSocket::Clear, error);
        } else if self.back.is_stalled()
            && let Poll::Ready(error) = self.upstream.poll_reset(cx)
        {
            self.break_socket(BrokenSocket::Far, error);
        } else {
            return Poll::Pending;
        }
        if self.onward.done && self.back.done {
            return Poll::Ready(());
        }
        self.poll_broken(cx)
    }

    /// Marks a socket as failed. Bytes that it sent before are still delivered to the other.
    fn break_socket(&mut self, socket: BrokenSocket, error: io::Error) {
        let broken = self.broken.get_or_insert_with(|| Broken::new(socket, error));
        let hides_reset = broken.hides_reset(socket);
        let cut_off = Copy { done: true, ..Copy::default() };
        match socket {
            BrokenSocket::Clear => {
                self.back = cut_off;
                self.onward.hides_reset = hides_reset;
            }
            BrokenSocket::Far => {
                self.onward = cut_off;
                self.back.hides_reset = hides_reset;
            }
        }
    }
}

impl Copy {
    fn is_stalled(&self) -> bool {
        self.done || !self.waiting.is_empty()
    }

    fn poll(
        &mut self,
        scratch: &Scratch,
        from: &StreamSocket,
        to: &StreamSocket,
        cx: &mut Context<'_>,
        note_bytes: impl Fn(&[u8]),
    ) -> Poll<Result<(), Failure>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        loop {
            if !self.waiting.is_empty() {
                meter::switch(Component::Send);
            }
            if let Err(error) = ready!(self.waiting.poll_flush(to, cx)) {
                return Poll::Ready(Err(Failure::Write(error)));
            }
            if self.ending {
                self.done = true;
                // The other direction reports a failure.
                let _ = to.shutdown_write();
                return Poll::Ready(Ok(()));
            }
            let mut buffers = scratch.buffers.borrow_mut();
            let requested = PAYLOAD_BYTES_MAX * scratch.batch_records(BATCH_RECORDS_MAX);
            let bytes = &mut buffers.bytes[..requested];
            let read = ready!(from.poll_read(cx, requested, |fd| {
                meter::switch(Component::Receive);
                socket::read(fd, &mut *bytes)
            }));
            let count = read.map_err(Failure::Read)?;
            if count == 0 && self.hides_reset {
                // No end of file: a truncated stream must not look complete.
                return Poll::Ready(Err(Failure::Read(io::ErrorKind::ConnectionReset.into())));
            }
            if count == 0 {
                self.ending = true;
                continue;
            }
            note_bytes(&bytes[..count]);
            meter::switch(Component::Send);
            let taken = written(socket::write(to.fd(), &bytes[..count])).map_err(Failure::Write)?;
            if taken < count {
                self.waiting.append(&bytes[taken..count]);
            }
            if count == requested {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};
    use tacit_sys::socket::OnClose;

    use super::*;
    use crate::net::Security;
    use crate::stream::establish::tests::{connection, lane};

    /// A peer, and the agent's socket of its connection.
    fn pair() -> (TcpStream, StreamSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        accepted.set_nonblocking(true).unwrap();
        (peer, StreamSocket::new(accepted.into(), Security::Clear).unwrap())
    }

    #[tokio::test]
    async fn a_reset_that_a_write_returns_first_is_no_end_of_the_other_direction() {
        for reset in [BrokenSocket::Clear, BrokenSocket::Far] {
            let lane = lane("127.0.0.1:2".parse().unwrap());
            let connection = connection(&lane);
            let (program, downstream) = pair();
            let (server, upstream) = pair();
            let (mut whole, lost) = match reset {
                BrokenSocket::Clear => (server, program),
                BrokenSocket::Far => (program, server),
            };
            socket::set_on_close(lost.as_fd(), OnClose::Reset).unwrap();
            drop(lost);
            whole.write_all(b"GET /").unwrap();
            // Both have arrived before the relay reads.
            for socket in [&downstream, &upstream] {
                let fd = socket.fd();
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
            }
            let relay = Box::new(ClearRelay { downstream, upstream, initial: Vec::new() });
            let mut transfer = ClearTransfer::new(&lane.scratch, relay, &connection);
            let end = (&mut transfer).await;
            conclude(&mut transfer, &end).await;
            drop(transfer);
            assert_eq!(end.cut_by(), Some(reset), "{end:?}");
            let read = whole.read(&mut [0; 8]);
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset, "{reset:?}");
        }
    }
}
