//! Relays a connection whose STARTTLS exchange continues after the handshake, such as an FTP
//! control connection.
//!
//! ```text
//!   peer <──(TLS)──> StarttlsDriver <──in clear──> program
//!                     │ StarttlsStep::Listen
//!                     v
//!                   DataListener: one connection from one address ──> PendingDataConnection
//! ```
//!
//! The agent opens a data listener for each FTP data connection. The listener accepts one
//! connection, and only from the remote address of the control connection. The agent closes the
//! listener after `ARRIVAL_WAIT_MAX`, when the exchange requests the next listener, or when the
//! control connection ends.
//!
//! Limit: `DATA_CONNECTIONS_MAX` data connections and listeners for each control connection.

mod data_listeners;

use tacit_core::meter::Component;
use tacit_core::record::AlertDescription;
use tacit_core::starttls::{StarttlsSide, StarttlsStep};

use crate::ledger::meter;
use crate::net::stream_socket::StreamSocket;
use crate::session::{BrokenSocket, Connection, ConnectionEnd};
use crate::stream::lane::StreamLane;
use crate::stream::relay_kind::{ClearRelay, NextRelay, SealedRelay, StarttlsRelay};
use crate::stream::starttls_driver::{
    ClearTransport, ExchangeError, ExchangeOutcome, PeerTransport, StarttlsDriver, TlsTransport,
    UnsentBytes,
};
use tacit_tls::Session;

use super::{Delivery, Left, clear, deliver, sealed};
use data_listeners::DataListeners;

/// Runs the exchange until it needs to parse no further message, then relays.
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

/// Runs the exchange; `Err`: the connection has ended.
async fn driver(
    lane: &StreamLane,
    relay: Box<StarttlsRelay>,
    connection: &Connection,
) -> Result<NextRelay, ConnectionEnd> {
    let StarttlsRelay { next, exchange, data_tls } = *relay;
    let listeners = DataListeners::new(lane, connection.record(), data_tls, exchange.upload_flag());
    match next {
        NextRelay::Sealed(mut relay) => {
            let SealedRelay { clear, tls, session, incomplete, initial } = &mut *relay;
            let mut driver = StarttlsDriver::with_initial(exchange, std::mem::take(initial));
            let mut transport = TlsTransport::new(tls, session, incomplete, connection);
            match hold(&mut driver, &mut transport, clear, listeners).await {
                Ok(()) => Ok(NextRelay::Sealed(relay)),
                Err(end) => Err(close_both(driver, end, tls, Some(session), clear).await),
            }
        }
        NextRelay::Clear(relay) => {
            let ClearRelay { downstream, upstream, .. } = &*relay;
            let mut driver = StarttlsDriver::new(exchange);
            let mut transport = ClearTransport { socket: downstream, counted: Some(connection) };
            match hold(&mut driver, &mut transport, upstream, listeners).await {
                Ok(()) => Ok(NextRelay::Clear(relay)),
                Err(end) => Err(close_both(driver, end, downstream, None, upstream).await),
            }
        }
    }
}

/// Returns `Ok` when no further message must be parsed.
async fn hold<W: PeerTransport>(
    driver: &mut StarttlsDriver,
    transport: &mut W,
    program: &StreamSocket,
    mut listeners: DataListeners<'_>,
) -> Result<(), ConnectionEnd> {
    meter::switch(Component::Receive);
    loop {
        return Err(match driver.run(transport, Some(program)).await {
            Ok(ExchangeOutcome::Step(StarttlsStep::Listen(request))) => {
                let socket = match request.connects {
                    StarttlsSide::Peer => transport.socket(),
                    StarttlsSide::Program => program,
                };
                let at = listeners.open(request, socket).await;
                driver.exchange.set_data_listener(at);
                continue;
            }
            Ok(ExchangeOutcome::Step(StarttlsStep::Relay))
                if driver.exchange.has_closed_orderly() =>
            {
                ConnectionEnd::Orderly
            }
            Ok(ExchangeOutcome::Step(StarttlsStep::Relay)) => return Ok(()),
            Ok(ExchangeOutcome::Step(StarttlsStep::Reject(refusal))) => {
                ConnectionEnd::Refused(Box::new(refusal))
            }
            Ok(ExchangeOutcome::Step(_) | ExchangeOutcome::Over) => ConnectionEnd::Orderly,
            // Many programs send no `close_notify` after they ended the session in their protocol.
            Err(ExchangeError::Truncated) if driver.exchange.has_closed_orderly() => {
                ConnectionEnd::Orderly
            }
            Err(ExchangeError::Truncated) => ConnectionEnd::Truncated,
            Err(ExchangeError::Session(error)) => ConnectionEnd::Session(error),
            Err(ExchangeError::Broken(StarttlsSide::Program, error)) => {
                ConnectionEnd::Broken { socket: BrokenSocket::Clear, error }
            }
            Err(ExchangeError::Broken(StarttlsSide::Peer, error)) => {
                ConnectionEnd::Broken { socket: BrokenSocket::Far, error }
            }
        });
    }
}

/// Sends the remaining output, and an alert if there is one, and closes both sockets. `session`
/// belongs to the peer.
async fn close_both(
    driver: StarttlsDriver,
    end: ConnectionEnd,
    peer: &StreamSocket,
    session: Option<&mut Session>,
    program: &StreamSocket,
) -> ConnectionEnd {
    let is_over = driver.exchange.has_closed_orderly();
    let UnsentBytes { mut to_peer, mut to_program } = driver.into_unsent();
    let alert = match &end {
        ConnectionEnd::Session(error) => error.alert(),
        ConnectionEnd::Orderly if is_over => Some(AlertDescription::CLOSE_NOTIFY),
        _ => None,
    };
    if let (Some(session), Some(alert)) = (session, alert) {
        // A key at its limit cannot seal the alert.
        let _ = session.seal_alert(alert, to_peer.tail());
    }
    let to_peer = Delivery { waiting: &mut to_peer, socket: peer };
    let to_program = Delivery { waiting: &mut to_program, socket: program };
    deliver(to_peer, to_program).await;
    match &end {
        // Both ends have received why it ends.
        ConnectionEnd::Orderly | ConnectionEnd::KeyLimit | ConnectionEnd::Refused(_) => {
            program.end_in_order()
        }
        ConnectionEnd::Truncated
        | ConnectionEnd::Session(_)
        | ConnectionEnd::ControlFailed(_)
        | ConnectionEnd::OwnTls(_)
        | ConnectionEnd::NotStarted(_)
        | ConnectionEnd::NotPassed(_) => program.reset(),
        ConnectionEnd::Broken { .. } => {
            program.reset();
            peer.reset();
        }
    }
    end
}
