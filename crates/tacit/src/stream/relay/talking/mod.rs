//! Dialogues that go on after the handshake, or instead of it: until the relay takes over, or to
//! the end of the connection.
//!
//! ```text
//!   peer <──(TLS)──> Talk <──in clear──> program
//!                     │ StarttlsStep::Listen
//!                     v
//!                   door: one data connection, from one address ──> Job
//! ```
//!
//! A door is open for one connection from the address of its control connection's end, for
//! `ARRIVAL_WAIT_MAX`, until the next is asked for or the control connection ends. What came
//! through goes on to its own end, as a connection of its own. Limits: `DATA_CONNECTIONS_MAX` of
//! one control connection, doors included.

mod doors;

use tacit_core::meter::Component;
use tacit_core::record::AlertDescription;
use tacit_core::starttls::{StarttlsSide, StarttlsStep};

use crate::ledger::meter;
use crate::net::stream_socket::StreamSocket;
use crate::session::{BrokenSocket, Connection, End};
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{Carried, ClearRelay, SealedRelay, StarttlsRelay};
use crate::stream::talk::{Cut, InClear, Outcome, Talk, UnderTls, Waiting, Wire};
use tacit_tls::Session;

use super::{Delivery, Left, clear, deliver, sealed};
use doors::Doors;

/// Holds the dialogue until there is nothing more to look at, then relays.
pub(super) async fn run(
    lane: &StreamLane,
    relay: Box<StarttlsRelay>,
    connection: &Connection,
) -> Left {
    match Box::pin(talk(lane, relay, connection)).await {
        Ok(Carried::Sealed(relay)) => sealed::run(lane, relay, connection).await,
        Ok(Carried::Clear(relay)) => clear::run(lane, relay, connection).await,
        Err(end) => Left::Ended(end),
    }
}

/// `Err`: that was all.
async fn talk(
    lane: &StreamLane,
    relay: Box<StarttlsRelay>,
    connection: &Connection,
) -> Result<Carried, End> {
    let StarttlsRelay { carried, dialogue, family } = *relay;
    let doors = Doors::new(lane, connection.record(), family, dialogue.uploads());
    match carried {
        Carried::Sealed(mut relay) => {
            let SealedRelay { clear, tls, session, incomplete, initial } = &mut *relay;
            let mut talk = Talk::with_initial(dialogue, std::mem::take(initial));
            let mut wire = UnderTls::new(tls, session, incomplete, connection);
            match hold(&mut talk, &mut wire, clear, doors).await {
                Ok(()) => Ok(Carried::Sealed(relay)),
                Err(end) => Err(part(talk, end, tls, Some(session), clear).await),
            }
        }
        Carried::Clear(relay) => {
            let ClearRelay { downstream, upstream, .. } = &*relay;
            let mut talk = Talk::new(dialogue);
            let mut wire = InClear { socket: downstream, counted: Some(connection) };
            match hold(&mut talk, &mut wire, upstream, doors).await {
                Ok(()) => Ok(Carried::Clear(relay)),
                Err(end) => Err(part(talk, end, downstream, None, upstream).await),
            }
        }
    }
}

/// `Ok`: there is nothing more to look at.
async fn hold<W: Wire>(
    talk: &mut Talk,
    wire: &mut W,
    program: &StreamSocket,
    mut doors: Doors<'_>,
) -> Result<(), End> {
    meter::switch(Component::Receive);
    loop {
        return Err(match talk.hold(wire, Some(program)).await {
            Ok(Outcome::Step(StarttlsStep::Listen(request))) => {
                let socket = match request.connects {
                    StarttlsSide::Peer => wire.socket(),
                    StarttlsSide::Program => program,
                };
                let at = doors.open(request, socket).await;
                talk.dialogue.listens(at);
                continue;
            }
            Ok(Outcome::Step(StarttlsStep::Relay)) if talk.dialogue.is_over() => End::Orderly,
            Ok(Outcome::Step(StarttlsStep::Relay)) => return Ok(()),
            Ok(Outcome::Step(StarttlsStep::Refuse(refusal))) => End::Refused(Box::new(refusal)),
            Ok(Outcome::Step(_) | Outcome::Over) => End::Orderly,
            // Many programs say no more in TLS when they have said it in their own words.
            Err(Cut::Truncated) if talk.dialogue.is_over() => End::Orderly,
            Err(Cut::Truncated) => End::Truncated,
            Err(Cut::Session(error)) => End::Session(error),
            Err(Cut::Broken(StarttlsSide::Program, error)) => {
                End::Broken { socket: BrokenSocket::Clear, error }
            }
            Err(Cut::Broken(StarttlsSide::Peer, error)) => {
                End::Broken { socket: BrokenSocket::Far, error }
            }
        });
    }
}

/// Ends both sockets as the end wants it, after what was said last. `session` is the peer's.
async fn part(
    talk: Talk,
    end: End,
    peer: &StreamSocket,
    session: Option<&mut Session>,
    program: &StreamSocket,
) -> End {
    let is_over = talk.dialogue.is_over();
    let Waiting { mut to_peer, mut to_program } = talk.into_waiting();
    let alert = match &end {
        End::Session(error) => error.alert(),
        End::Orderly if is_over => Some(AlertDescription::CLOSE_NOTIFY),
        _ => None,
    };
    if let (Some(session), Some(alert)) = (session, alert) {
        // A key that is used up has nothing to say it with.
        let _ = session.seal_alert(alert, to_peer.tail());
    }
    let to_peer = Delivery { waiting: &mut to_peer, socket: peer };
    let to_program = Delivery { waiting: &mut to_program, socket: program };
    deliver(to_peer, to_program).await;
    match &end {
        // Both know what there is to know.
        End::Orderly | End::KeyLimit | End::Refused(_) => program.end_in_order(),
        End::Truncated | End::Session(_) | End::Asked(_) | End::OwnTls(_) | End::NotPassed(_) => {
            program.reset()
        }
        End::Broken { .. } => {
            program.reset();
            peer.reset();
        }
    }
    end
}
