//! The relay of a connection whose program says when TLS begins and ends.
//!
//! ```text
//!            start                       stop
//!   clear ──────────> handshake ──> TLS ──────> clear ──> …
//! ```
//!
//! Between two requests it is one of the other relays, at their speed. A request comes through the
//! socket of its own, beside the bytes; what the program wrote before it asked is waited for, what
//! it writes after the answer comes after the change. On the way in, the border is what the program
//! has read: what it has not read when it asks for `start` is taken back from its socket, and is
//! the beginning of the handshake. So a peer that begins TLS at once is understood, and clear bytes
//! that somebody slips in behind the last answer in clear are no TLS and end the connection.
//!
//! Limits: the rule's `handshake-timeout` for each request; what is taken back is
//! [`INCOMING_BYTES_MAX`] at most.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tacit_core::query::Fault;
use tacit_sys::query;

use super::sealed::{Direction, Stop};
use super::{End, Scratch, clear, sealed};
use crate::stream::asked::{Asked, Refusal, Wish, Wishes};
use crate::stream::connection::Connection;
use crate::stream::leg::Leg;
use crate::stream::secure::{ClearPath, ControlledPath, SealedPath, Shaken, handshake_timeout};
use tacit_tls::{INCOMING_BYTES_MAX, NoRekey};

/// How often is looked for bytes that are on their way within this machine.
const UNDER_WAY_POLL: Duration = Duration::from_millis(1);
/// Bytes read at once meanwhile.
const READ_BYTES: usize = 16 * 1024;

/// A connection in clear.
#[derive(Debug)]
pub struct Calm {
    path: ClearPath,
    arrives: bool,
    wishes: Wishes,
    /// What came in clear behind the end of TLS, for the program.
    to_program: Vec<u8>,
}

/// A connection whose program has asked for TLS: nothing of it is under way any more.
#[derive(Debug)]
pub struct Starting {
    /// The leg to the program.
    pub program: Leg,
    /// The leg that gets TLS.
    pub outside: Leg,
    /// Whether that is the one that was accepted.
    pub arrives: bool,
    /// What the peer sent and the program has not read.
    pub incoming: Vec<u8>,
    /// The request, to be answered.
    pub asked: Asked,
    /// Those that will follow it.
    pub wishes: Wishes,
}

impl From<ControlledPath> for Calm {
    fn from(path: ControlledPath) -> Self {
        let ControlledPath { clear: path, arrives, wishes } = path;
        Self { path, arrives, wishes, to_program: Vec::new() }
    }
}

/// Carries clear bytes until the program asks for TLS.
///
/// # Errors
/// The connection has ended.
pub async fn in_clear(
    scratch: &Scratch,
    connection: &Connection,
    calm: Calm,
) -> Result<Starting, End> {
    let Calm { path, arrives, mut wishes, to_program } = calm;
    let mut pump = clear::Pump::new(scratch, Box::new(path), connection);
    pump.way_in(arrives).waiting.tail().extend_from_slice(&to_program);
    loop {
        let asked = match turn(&mut pump, &mut wishes).await {
            Turn::Ended(end) => {
                if pump.may_deliver(&end) {
                    pump.deliver().await;
                }
                pump.part(&end);
                return Err(end);
            }
            Turn::Asked(asked) => asked,
        };
        match asked.wish {
            Wish::Start if pump.is_whole() => {
                return start(pump, connection, Request { arrives, asked, wishes }).await;
            }
            Wish::Start => answer(asked, Err(Fault::Ended.into())),
            Wish::Stop => answer(asked, Err(Fault::Already.into())),
            Wish::Rekey => answer(asked, Err(Fault::NotPossible.into())),
        }
    }
}

/// Carries bytes under TLS until the program asks for its end.
///
/// # Errors
/// The connection has ended.
pub async fn under_tls(
    scratch: &Scratch,
    connection: &Connection,
    legs: (Leg, Leg),
    shaken: Shaken,
    (arrives, mut wishes): (bool, Wishes),
) -> Result<Calm, End> {
    let ((clear, tls), Shaken { session, incomplete, last_flight: initial }) = (legs, shaken);
    let path = SealedPath { clear, tls, session, incomplete, initial };
    let mut pump = sealed::Pump::new(scratch, Box::new(path), connection);
    loop {
        let asked = match turn(&mut pump, &mut wishes).await {
            Turn::Ended(end) => {
                finish(&mut pump, &end).await;
                return Err(end);
            }
            Turn::Asked(asked) => asked,
        };
        match asked.wish {
            Wish::Start => answer(asked, Err(Fault::Already.into())),
            Wish::Rekey => {
                let done = rekey(&mut pump, connection);
                answer(asked, done);
            }
            Wish::Stop if pump.is_whole() => {
                return stop(pump, connection, Request { arrives, asked, wishes }).await;
            }
            Wish::Stop => answer(asked, Err(Fault::Ended.into())),
        }
    }
}

/// Answers a request. Who asked may be gone.
pub fn answer(asked: Asked, answer: Result<(), Refusal>) {
    let Asked { program, back, .. } = asked;
    // Before the answer: who asked is the last to have it, and closes it.
    drop(program);
    let _ = back.send(answer);
}

/// A request with all that survives it.
struct Request {
    arrives: bool,
    asked: Asked,
    wishes: Wishes,
}

/// What comes next: the relay ends, or is asked for something.
enum Turn {
    Ended(End),
    Asked(Asked),
}

async fn turn(pump: &mut (impl Future<Output = End> + Unpin), wishes: &mut Wishes) -> Turn {
    poll_fn(|cx| {
        if let Poll::Ready(Some(asked)) = wishes.poll_recv(cx) {
            return Poll::Ready(Turn::Asked(asked));
        }
        Pin::new(&mut *pump).poll(cx).map(Turn::Ended)
    })
    .await
}

/// Sees all that the program wrote leave in clear, and takes back what it has not read.
async fn start(
    pump: clear::Pump<'_>,
    connection: &Connection,
    request: Request,
) -> Result<Starting, End> {
    let Request { arrives, asked, wishes } = request;
    let (way_in, way_out, accepted, dialled) = pump.into_parts(arrives);
    let (program, outside) = if arrives { (dialled, accepted) } else { (accepted, dialled) };
    let mut leaving = way_out;
    let work = async {
        let mut bytes = vec![0; READ_BYTES];
        loop {
            leaving.flush(&outside).await.map_err(broken(false))?;
            match next_of_program(&program, &asked, &mut bytes).await? {
                None => break,
                Some(count) => {
                    connection.count_sent(count);
                    leaving.tail().extend_from_slice(&bytes[..count]);
                }
            }
        }
        take_back(&program, &asked, &mut bytes).await
    };
    let taken = tokio::time::timeout(handshake_timeout(connection.record()), work).await;
    match taken.unwrap_or(Err(End::Asked("the peer did not take what the program sent in clear"))) {
        Ok(mut incoming) => {
            incoming.extend_from_slice(way_in.unwritten());
            Ok(Starting { program, outside, arrives, incoming, asked, wishes })
        }
        Err(end) => {
            program.reset();
            outside.reset();
            drop((program, outside));
            answer(asked, Err(failed(&end)));
            Err(end)
        }
    }
}

/// The next bytes that the program wrote before it asked; `None`: there are no more.
async fn next_of_program(
    program: &Leg,
    asked: &Asked,
    bytes: &mut [u8],
) -> Result<Option<usize>, End> {
    loop {
        // First this, then the read: what it says is here is found by the read.
        let all_here = is_delivered(asked);
        match program.read_now(bytes).map_err(broken(true))? {
            Some(0) => return Err(End::Asked("the program ended its side of what it asked for")),
            Some(count) => return Ok(Some(count)),
            None if all_here => return Ok(None),
            None => tokio::time::sleep(UNDER_WAY_POLL).await,
        }
    }
}

/// Takes from the program's socket what it has not read. Nothing is written to it meanwhile.
async fn take_back(program: &Leg, asked: &Asked, bytes: &mut [u8]) -> Result<Vec<u8>, End> {
    let mut taken = Vec::new();
    loop {
        let all_there = program.is_delivered();
        match query::take_unread(asked.program.as_fd(), bytes) {
            Ok(0) => return Err(End::Asked("the peer ended before TLS could begin")),
            Ok(count) => taken.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && all_there => {
                return Ok(taken);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(UNDER_WAY_POLL).await;
            }
            Err(error) => return Err(End::Broken { clear: true, error }),
        }
        if taken.len() > INCOMING_BYTES_MAX {
            return Err(End::Asked("the program left too much unread before it asked for TLS"));
        }
    }
}

/// Whether all that the program wrote has arrived at our leg.
fn is_delivered(asked: &Asked) -> bool {
    tacit_sys::socket::unacknowledged_bytes(asked.program.as_fd()).unwrap_or(0) == 0
}

/// Makes new keys: what the program writes from now on is under them, and the peer changes its own
/// before it sends the next data (RFC 8446 section 4.6.3). It may have none to send for long, and
/// is not waited for.
fn rekey(pump: &mut sealed::Pump<'_>, connection: &Connection) -> Result<(), Refusal> {
    if pump.sealing != Direction::Open {
        return Err(Fault::Ended.into());
    }
    let refused =
        |reason: &str| Refusal { fault: Fault::NotPossible, reason: Some(reason.to_owned()) };
    pump.session.rekey(Instant::now(), pump.to_tls.tail()).map_err(|why| match why {
        NoRekey::OldVersion => refused("TLS 1.2 has no new keys within a connection"),
        NoRekey::TooOften => refused("send data before you ask for new keys again"),
        NoRekey::Closed => Fault::Ended.into(),
        NoRekey::Session(error) => refused(&error.to_string()),
    })?;
    connection.count_rekeys(pump.session.rekeys());
    Ok(())
}

/// Sees all that the program wrote leave under TLS, ends TLS, and waits for the peer to end it.
async fn stop(
    mut pump: sealed::Pump<'_>,
    connection: &Connection,
    request: Request,
) -> Result<Calm, End> {
    let Request { arrives, asked, wishes } = request;
    let stopped = async {
        let mut bytes = vec![0; READ_BYTES];
        while let Some(count) = next_of_program(&pump.clear, &asked, &mut bytes).await? {
            connection.count_sent(count);
            let sealed = pump.session.seal(&bytes[..count]).map_err(End::Session)?;
            pump.to_tls.tail().extend_from_slice(&sealed);
            pump.to_tls.flush(&pump.tls).await.map_err(broken(false))?;
        }
        pump.session.seal_close(pump.to_tls.tail()).map_err(End::Session)?;
        pump.to_tls.flush(&pump.tls).await.map_err(broken(false))?;
        poll_fn(|cx| {
            let polled = pump.poll_opening(cx);
            match polled {
                Poll::Ready(Ok(())) => Poll::Ready(Err(End::Orderly)),
                Poll::Ready(Err(Stop::Now(end))) => Poll::Ready(Err(end)),
                Poll::Ready(Err(Stop::Write { clear, error })) => {
                    Poll::Ready(Err(End::Broken { clear, error }))
                }
                Poll::Pending if pump.opening == Direction::Closed && pump.to_clear.is_empty() => {
                    Poll::Ready(Ok(()))
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    };
    let stopped = tokio::time::timeout(handshake_timeout(connection.record()), stopped).await;
    if let Err(end) = stopped.unwrap_or(Err(End::Asked("the peer did not end TLS in time"))) {
        let refusal = match &end {
            End::Orderly => Fault::Ended.into(),
            end => failed(end),
        };
        finish(&mut pump, &end).await;
        answer(asked, Err(refusal));
        return Err(end);
    }
    let sealed::Pump { clear: program, tls: mut outside, incomplete: to_program, .. } = pump;
    outside.set_clear(true);
    connection.record().tls.clear();
    answer(asked, Ok(()));
    let (accepted, dialled) = if arrives { (outside, program) } else { (program, outside) };
    connection.count_received(to_program.len());
    let path = ClearPath { accepted, dialled, initial: Vec::new() };
    Ok(Calm { path, arrives, wishes, to_program })
}

/// Ends both legs as the pump ended.
async fn finish(pump: &mut sealed::Pump<'_>, end: &End) {
    if pump.may_deliver(end) {
        pump.deliver().await;
    }
    pump.part(end);
}

/// What is answered where the connection ends by what was asked for.
pub fn failed(why: &impl Display) -> Refusal {
    Refusal { fault: Fault::Failed, reason: Some(why.to_string()) }
}

fn broken(clear: bool) -> impl Fn(io::Error) -> End {
    move |error| End::Broken { clear, error }
}
