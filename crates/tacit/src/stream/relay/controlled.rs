//! Relays a connection whose program decides when TLS begins and ends (`start = "controlled"`).
//!
//! ```text
//!            start                       stop
//!   clear ──────────> handshake ──> TLS ──────> clear ──> …
//! ```
//!
//! Programs send the requests `start` and `stop` to the query socket (`$TACIT_QUERY`). Between two
//! requests, an ordinary relay moves the bytes.
//!
//! When the program requests `start`, the agent may already have relayed the first bytes of the
//! peer's handshake to the program. So the relay reads back the bytes that the program has not read
//! yet, and passes them to the handshake.
//!
//! Limits: each start or stop takes at most the `handshake-timeout` of the rule. The relay reads
//! back at most [`INCOMING_BYTES_MAX`].

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tacit_core::meter::Component;
use tacit_core::query::QueryError;
use tacit_sys::query;

use crate::ledger::meter;
use crate::live::LiveTls;
use crate::net::stream_socket::StreamSocket;
use crate::net::{Position, Security};
use crate::session::tls_control::{PendingTlsRequest, TlsRequest, TlsRequestError, TlsRequests};
use crate::session::{BrokenSocket, Connection, ConnectionEnd, account};
use crate::stream::establish::{
    HandshakeIo, HandshakeResult, LastFlight, count_handshake, drain_after_alert,
};
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, ControlledRelay, SealedRelay};
use crate::stream::scratch::Scratch;
use tacit_tls::{INCOMING_BYTES_MAX, NoRekey};

use super::sealed::{Direction, Stop};
use super::{clear, sealed};

/// The interval of checks for bytes that are in transit within this machine.
const UNDER_WAY_POLL: Duration = Duration::from_millis(1);
/// The size of a read during these checks.
const READ_BYTES: usize = 16 * 1024;

/// A connection in clear.
#[derive(Debug)]
struct ClearPhase {
    relay: ClearRelay,
    /// The socket that gets TLS.
    tls_on: Position,
    requests: TlsRequests,
    tls: Arc<LiveTls>,
    /// Bytes for the program that the peer sent in clear after the end of TLS.
    to_program: Vec<u8>,
}

/// A connection whose program has requested TLS. All bytes in clear were delivered.
#[derive(Debug)]
struct UpgradePhase {
    /// The socket to the program.
    program: StreamSocket,
    /// The socket that gets TLS.
    outside: StreamSocket,
    /// Bytes that the peer has sent and the program has not read.
    incoming: Vec<u8>,
    change: TlsChange,
}

/// A connection whose handshake is complete.
struct TlsPhase {
    relay: SealedRelay,
    /// The socket that has TLS.
    tls_on: Position,
    requests: TlsRequests,
    tls: Arc<LiveTls>,
}

impl From<ControlledRelay> for ClearPhase {
    fn from(relay: ControlledRelay) -> Self {
        let ControlledRelay { clear: relay, tls_on, requests, tls } = relay;
        Self { relay, tls_on, requests, tls, to_program: Vec::new() }
    }
}

/// Relays a connection until it ends, alternately in clear and under TLS. `None`: a handshake
/// failed, and its failure was logged and counted.
pub(super) async fn run(
    lane: &StreamLane,
    relay: ControlledRelay,
    connection: &Connection,
) -> Option<ConnectionEnd> {
    let mut clear_phase = ClearPhase::from(relay);
    loop {
        let upgrade = match in_clear(&lane.scratch, connection, clear_phase).await {
            Ok(upgrade) => upgrade,
            Err(end) => return Some(end),
        };
        let tls_phase = upgrade_to_tls(lane, connection, upgrade).await?;
        meter::switch(Component::Receive);
        clear_phase = match under_tls(&lane.scratch, connection, tls_phase).await {
            Ok(clear_phase) => clear_phase,
            Err(end) => return Some(end),
        };
    }
}

/// Does the handshake that the program requests. `None`: it failed, and its failure was logged and
/// counted.
async fn upgrade_to_tls(
    lane: &StreamLane,
    connection: &Connection,
    upgrade: UpgradePhase,
) -> Option<TlsPhase> {
    let UpgradePhase { program, mut outside, incoming, change } = upgrade;
    let TlsChange { tls_on, pending, requests, tls } = change;
    let record = connection.record();
    let io = HandshakeIo {
        record,
        peer_of: record,
        socket: &outside,
        tls: &tls,
        deadline: Instant::now() + tls.common().handshake_timeout,
        last_flight: LastFlight::Kept,
        required_alpn: None,
        traces: lane.shared.table.traces(),
        scratch: &lane.scratch,
        recent: &lane.recent_tls,
    };
    let tls_control = record.tls_control();
    if let Some(tls_control) = tls_control {
        tls_control.begin_handshake();
    }
    let handshaken = io.run(&lane.shared.limiter, incoming).await;
    if let Some(tls_control) = tls_control {
        tls_control.end_handshake();
    }
    outside.set_security(Security::Tls);
    let HandshakeResult { session, incomplete, last_flight: initial } = match handshaken {
        Ok(handshaken) => handshaken,
        Err(failure) => {
            // This resets the program's socket before the program has the answer.
            drop(program);
            answer(pending, Err(failed(&failure)));
            drain_after_alert(outside).await;
            account::failed(&lane.shared.log, connection, &failure);
            meter::switch(Component::Accept);
            return None;
        }
    };
    count_handshake(record);
    connection.note_peer();
    lane.load.count_handshake();
    account::secured(&lane.shared.log, connection);
    answer(pending, Ok(()));
    let relay = SealedRelay { clear: program, tls: outside, session, incomplete, initial };
    Some(TlsPhase { relay, tls_on, requests, tls })
}

/// Relays clear bytes until the program requests TLS.
///
/// # Errors
/// The connection has ended.
async fn in_clear(
    scratch: &Scratch,
    connection: &Connection,
    phase: ClearPhase,
) -> Result<UpgradePhase, ConnectionEnd> {
    let ClearPhase { relay, tls_on, mut requests, tls, to_program } = phase;
    let mut transfer = clear::ClearTransfer::new(scratch, Box::new(relay), connection);
    transfer.way_in(tls_on).waiting.append(&to_program);
    loop {
        let pending = match next_event(&mut transfer, &mut requests).await {
            NextEvent::Ended(end) => {
                if transfer.may_deliver(&end) {
                    transfer.deliver().await;
                }
                transfer.end_both(&end);
                return Err(end);
            }
            NextEvent::Request(pending) => pending,
        };
        match pending.request {
            TlsRequest::Start if transfer.is_whole() => {
                let change = TlsChange { tls_on, pending, requests, tls };
                return start(transfer, connection, change).await;
            }
            TlsRequest::Start => answer(pending, Err(QueryError::Ended.into())),
            TlsRequest::Stop => answer(pending, Err(QueryError::Already.into())),
            TlsRequest::Rekey => answer(pending, Err(QueryError::NotPossible.into())),
        }
    }
}

/// Relays bytes under TLS until the program requests its end.
///
/// # Errors
/// The connection has ended.
async fn under_tls(
    scratch: &Scratch,
    connection: &Connection,
    phase: TlsPhase,
) -> Result<ClearPhase, ConnectionEnd> {
    let TlsPhase { relay, tls_on, mut requests, tls } = phase;
    let mut transfer = sealed::SealedTransfer::new(scratch, Box::new(relay), connection);
    loop {
        let pending = match next_event(&mut transfer, &mut requests).await {
            NextEvent::Ended(end) => {
                finish(&mut transfer, &end).await;
                return Err(end);
            }
            NextEvent::Request(pending) => pending,
        };
        match pending.request {
            TlsRequest::Start => answer(pending, Err(QueryError::Already.into())),
            TlsRequest::Rekey => {
                let done = rekey(&mut transfer, connection);
                answer(pending, done);
            }
            TlsRequest::Stop if transfer.is_whole() => {
                let change = TlsChange { tls_on, pending, requests, tls };
                return stop(transfer, connection, change).await;
            }
            TlsRequest::Stop => answer(pending, Err(QueryError::Ended.into())),
        }
    }
}

/// Answers a request. The requester may have ended.
fn answer(pending: PendingTlsRequest, answer: Result<(), TlsRequestError>) {
    let PendingTlsRequest { program, back, .. } = pending;
    // The socket is dropped before the answer, so that the requester is the last to hold it, and
    // closes it.
    drop(program);
    let _ = back.send(answer);
}

/// A change between clear and TLS, with the state that continues after it.
#[derive(Debug)]
struct TlsChange {
    tls_on: Position,
    pending: PendingTlsRequest,
    requests: TlsRequests,
    tls: Arc<LiveTls>,
}

/// The next event: the relay ends, or it handles a request.
enum NextEvent {
    Ended(ConnectionEnd),
    Request(PendingTlsRequest),
}

async fn next_event(
    transfer: &mut (impl Future<Output = ConnectionEnd> + Unpin),
    requests: &mut TlsRequests,
) -> NextEvent {
    poll_fn(|cx| {
        if let Poll::Ready(Some(pending)) = requests.poll_recv(cx) {
            return Poll::Ready(NextEvent::Request(pending));
        }
        Pin::new(&mut *transfer).poll(cx).map(NextEvent::Ended)
    })
    .await
}

/// Waits until all bytes of the program have been sent in clear, and takes back the bytes that the
/// program has not read.
async fn start(
    transfer: clear::ClearTransfer<'_>,
    connection: &Connection,
    change: TlsChange,
) -> Result<UpgradePhase, ConnectionEnd> {
    let pending = &change.pending;
    let clear::Parts { program, outside, to_program, mut to_outside } =
        transfer.into_parts(change.tls_on);
    let work = async {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            to_outside.flush(&outside).await.map_err(broken(BrokenSocket::Far))?;
            match next_of_program(&program, pending, &mut bytes).await? {
                None => break,
                Some(count) => {
                    connection.note_sent(&bytes[..count]);
                    to_outside.append(&bytes[..count]);
                }
            }
        }
        take_back(&program, pending, &mut bytes).await
    };
    let taken = tokio::time::timeout(change.tls.common().handshake_timeout, work).await;
    match taken.unwrap_or(Err(ConnectionEnd::ControlFailed(
        "the peer did not receive the program's last unencrypted bytes within `handshake-timeout`",
    ))) {
        Ok(mut incoming) => {
            incoming.extend_from_slice(to_program.unwritten());
            Ok(UpgradePhase { program, outside, incoming, change })
        }
        Err(end) => {
            program.reset();
            outside.reset();
            drop(program);
            drop(outside);
            answer(change.pending, Err(failed(&end)));
            Err(end)
        }
    }
}

/// The next bytes that the program wrote before its request; `None` if there are no more.
async fn next_of_program(
    program: &StreamSocket,
    pending: &PendingTlsRequest,
    bytes: &mut [u8],
) -> Result<Option<usize>, ConnectionEnd> {
    loop {
        // This is checked before the read, so that the read finds all bytes that were delivered by
        // then.
        let all_here = is_delivered(pending);
        match program.read_now(bytes).map_err(broken(BrokenSocket::Clear))? {
            Some(0) => {
                return Err(ConnectionEnd::ControlFailed(
                    "the program requested to start or stop TLS, but closed its side of the \
                     connection before tacit had finished",
                ));
            }
            Some(count) => return Ok(Some(count)),
            None if all_here => return Ok(None),
            None => tokio::time::sleep(UNDER_WAY_POLL).await,
        }
    }
}

/// Takes the bytes that the program has not read from its socket. Nothing is written to the socket
/// during this time.
async fn take_back(
    program: &StreamSocket,
    pending: &PendingTlsRequest,
    bytes: &mut [u8],
) -> Result<Vec<u8>, ConnectionEnd> {
    let mut taken = Vec::new();
    loop {
        let all_there = program.is_delivered();
        match query::take_unread(pending.program.as_fd(), bytes) {
            Ok(0) => {
                return Err(ConnectionEnd::ControlFailed(
                    "the peer closed the connection before TLS could begin",
                ));
            }
            Ok(count) => taken.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && all_there => {
                return Ok(taken);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(UNDER_WAY_POLL).await;
            }
            Err(error) => return Err(ConnectionEnd::Broken { socket: BrokenSocket::Clear, error }),
        }
        if taken.len() > INCOMING_BYTES_MAX {
            return Err(ConnectionEnd::ControlFailed(
                "the program requested TLS, but its socket contains too many unread bytes from the \
                 peer: read the unencrypted bytes first",
            ));
        }
    }
}

/// Whether all that the program wrote has arrived at the agent's socket.
fn is_delivered(pending: &PendingTlsRequest) -> bool {
    tacit_sys::socket::unacknowledged_bytes(pending.program.as_fd()).unwrap_or(0) == 0
}

/// Replaces the keys. The bytes that the program writes from now on are sealed with new keys. The
/// peer replaces its own key before it sends the next data (RFC 8446 section 4.6.3), which may be
/// much later, so this does not wait for it.
fn rekey(
    transfer: &mut sealed::SealedTransfer<'_>,
    connection: &Connection,
) -> Result<(), TlsRequestError> {
    if transfer.sealing != Direction::Open {
        return Err(QueryError::Ended.into());
    }
    let refused = |reason: &str| TlsRequestError {
        fault: QueryError::NotPossible,
        reason: Some(reason.to_owned()),
    };
    transfer.session.rekey(Instant::now(), transfer.to_tls.tail()).map_err(|why| match why {
        NoRekey::OldVersion => refused("TLS 1.2 cannot replace the keys of a connection"),
        NoRekey::TooOften => refused(
            "tacit does not replace the keys of this connection again so soon: send data first, \
             and then request new keys",
        ),
        NoRekey::Closed => QueryError::Ended.into(),
        NoRekey::Session(error) => refused(&error.to_string()),
    })?;
    connection.count_rekeys(transfer.session.rekeys());
    Ok(())
}

/// Sends all that the program wrote under TLS, ends TLS, and waits for the peer to end it.
async fn stop(
    mut transfer: sealed::SealedTransfer<'_>,
    connection: &Connection,
    change: TlsChange,
) -> Result<ClearPhase, ConnectionEnd> {
    let TlsChange { tls_on, pending, requests, tls } = change;
    let work = async {
        let mut bytes = vec![0; READ_BYTES];
        while let Some(count) = next_of_program(&transfer.clear, &pending, &mut bytes).await? {
            connection.note_sent(&bytes[..count]);
            let sealed = transfer.session.seal(&bytes[..count]).map_err(ConnectionEnd::Session)?;
            transfer.to_tls.append(&sealed);
            transfer.to_tls.flush(&transfer.tls).await.map_err(broken(BrokenSocket::Far))?;
        }
        transfer.session.seal_close(transfer.to_tls.tail()).map_err(ConnectionEnd::Session)?;
        transfer.to_tls.flush(&transfer.tls).await.map_err(broken(BrokenSocket::Far))?;
        poll_fn(|cx| {
            let polled = transfer.poll_opening(cx);
            match polled {
                Poll::Ready(Ok(())) => Poll::Ready(Err(ConnectionEnd::Orderly)),
                Poll::Ready(Err(Stop::Now(end))) => Poll::Ready(Err(end)),
                Poll::Ready(Err(Stop::Write { socket, error })) => {
                    Poll::Ready(Err(ConnectionEnd::Broken { socket, error }))
                }
                Poll::Pending
                    if transfer.opening == Direction::Closed && transfer.to_clear.is_empty() =>
                {
                    Poll::Ready(Ok(()))
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    };
    let stopped = tokio::time::timeout(tls.common().handshake_timeout, work).await;
    if let Err(end) = stopped.unwrap_or(Err(ConnectionEnd::ControlFailed(
        "the peer did not answer close_notify within `handshake-timeout`",
    ))) {
        let refusal = match &end {
            ConnectionEnd::Orderly | ConnectionEnd::KeyLimit => QueryError::Ended.into(),
            end => failed(end),
        };
        finish(&mut transfer, &end).await;
        answer(pending, Err(refusal));
        return Err(end);
    }
    let sealed::SealedTransfer { clear: program, tls: mut outside, incomplete: to_program, .. } =
        transfer;
    outside.set_security(Security::Clear);
    connection.record().tls.clear();
    answer(pending, Ok(()));
    connection.note_received(&to_program);
    let initial = Vec::new();
    let relay = match tls_on {
        Position::Downstream => ClearRelay { downstream: outside, upstream: program, initial },
        Position::Upstream => ClearRelay { downstream: program, upstream: outside, initial },
    };
    Ok(ClearPhase { relay, tls_on, requests, tls, to_program })
}

/// Ends both sockets as the transfer ended.
async fn finish(transfer: &mut sealed::SealedTransfer<'_>, end: &ConnectionEnd) {
    if transfer.may_deliver(end) {
        transfer.deliver().await;
    }
    transfer.end_both(end);
}

/// Returns the answer to a request that made the connection fail.
fn failed(why: &impl Display) -> TlsRequestError {
    TlsRequestError { fault: QueryError::Failed, reason: Some(why.to_string()) }
}

fn broken(socket: BrokenSocket) -> impl Fn(io::Error) -> ConnectionEnd {
    move |error| ConnectionEnd::Broken { socket, error }
}
