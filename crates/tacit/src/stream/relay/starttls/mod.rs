//! Dialogues that go on after the handshake, or instead of it: until the relay takes over, or to
//! the end of the connection.
//!
//! ```text
//!   peer <──(TLS)──> StarttlsDriver <──in clear──> program
//!                     │ StarttlsStep::Listen
//!                     v
//!                   door: one data connection, from one address ──> Job
//! ```
//!
//! A door is open for one connection from the address of its control connection's end, for
//! `ARRIVAL_WAIT_MAX`, until the next is asked for or the control connection ends. What came
//! through goes on to its own end, as a connection of its own. Limits: `DATA_CONNECTIONS_MAX` of
//! one control connection, doors included.

mod data_listeners;

use tacit_core::meter::Component;
use tacit_core::record::AlertDescription;
use tacit_core::starttls::{StarttlsSide, StarttlsStep};

use crate::ledger::meter;
use crate::net::stream_socket::StreamSocket;
use crate::session::{BrokenSocket, Connection, End};
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, NextRelay, SealedRelay, StarttlsRelay};
use crate::stream::starttls_driver::{
    ClearTransport, ExchangeError, ExchangeOutcome, PeerTransport, StarttlsDriver, TlsTransport,
    UnsentBytes,
};
use tacit_tls::Session;

use super::{Delivery, Left, clear, deliver, sealed};
use data_listeners::Doors;

/// Holds the dialogue until there is nothing more to look at, then relays.
pub(super) async fn run(
    lane: &StreamLane,
    relay: Box<StarttlsRelay>,
    connection: &Connection,
) -> Left {
    match Box::pin(driver(lane, relay, connection)).await {
        Ok(NextRelay::Sealed(relay)) => sealed::run(lane, relay, connection).await,
        Ok(NextRelay::Clear(relay)) => clear::run(lane, relay, connection).await,
        Err(end) => Left::Ended(end),
    }
}

/// `Err`: that was all.
async fn driver(
    lane: &StreamLane,
    relay: Box<StarttlsRelay>,
    connection: &Connection,
) -> Result<NextRelay, End> {
    let StarttlsRelay { next, dialogue, family } = *relay;
    let doors = Doors::new(lane, connection.record(), family, dialogue.uploads());
    match next {
        NextRelay::Sealed(mut relay) => {
            let SealedRelay { clear, tls, session, incomplete, initial } = &mut *relay;
            let mut driver = StarttlsDriver::with_initial(dialogue, std::mem::take(initial));
            let mut transport = TlsTransport::new(tls, session, incomplete, connection);
            match hold(&mut driver, &mut transport, clear, doors).await {
                Ok(()) => Ok(NextRelay::Sealed(relay)),
                Err(end) => Err(part(driver, end, tls, Some(session), clear).await),
            }
        }
        NextRelay::Clear(relay) => {
            let ClearRelay { downstream, upstream, .. } = &*relay;
            let mut driver = StarttlsDriver::new(dialogue);
            let mut transport = ClearTransport { socket: downstream, counted: Some(connection) };
            match hold(&mut driver, &mut transport, upstream, doors).await {
                Ok(()) => Ok(NextRelay::Clear(relay)),
                Err(end) => Err(part(driver, end, downstream, None, upstream).await),
            }
        }
    }
}

/// `Ok`: there is nothing more to look at.
async fn hold<W: PeerTransport>(
    driver: &mut StarttlsDriver,
    transport: &mut W,
    program: &StreamSocket,
    mut doors: Doors<'_>,
) -> Result<(), End> {
    meter::switch(Component::Receive);
    loop {
        return Err(match driver.run(transport, Some(program)).await {
            Ok(ExchangeOutcome::Step(StarttlsStep::Listen(request))) => {
                let socket = match request.connects {
                    StarttlsSide::Peer => transport.socket(),
                    StarttlsSide::Program => program,
                };
                let at = doors.open(request, socket).await;
                driver.dialogue.listens(at);
                continue;
            }
            Ok(ExchangeOutcome::Step(StarttlsStep::Relay)) if driver.dialogue.is_over() => {
                End::Orderly
            }
            Ok(ExchangeOutcome::Step(StarttlsStep::Relay)) => return Ok(()),
            Ok(ExchangeOutcome::Step(StarttlsStep::Refuse(refusal))) => {
                End::Refused(Box::new(refusal))
            }
            Ok(ExchangeOutcome::Step(_) | ExchangeOutcome::Over) => End::Orderly,
            // Many programs say no more in TLS when they have said it in their own words.
            Err(ExchangeError::Truncated) if driver.dialogue.is_over() => End::Orderly,
            Err(ExchangeError::Truncated) => End::Truncated,
            Err(ExchangeError::Session(error)) => End::Session(error),
            Err(ExchangeError::Broken(StarttlsSide::Program, error)) => {
                End::Broken { socket: BrokenSocket::Clear, error }
            }
            Err(ExchangeError::Broken(StarttlsSide::Peer, error)) => {
                End::Broken { socket: BrokenSocket::Far, error }
            }
        });
    }
}

/// Ends both sockets as the end wants it, after what was said last. `session` is the peer's.
async fn part(
    driver: StarttlsDriver,
    end: End,
    peer: &StreamSocket,
    session: Option<&mut Session>,
    program: &StreamSocket,
) -> End {
    let is_over = driver.dialogue.is_over();
    let UnsentBytes { mut to_peer, mut to_program } = driver.into_unsent();
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
