//! Runs the STARTTLS exchange of a connection before the TLS handshake, and rejects the connection
//! if the exchange fails.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::meter::Component;
use tacit_core::starttls::ftp::ControlAddresses;
use tacit_core::starttls::{StarttlsError, StarttlsSide, StarttlsStep};
use tacit_sys::socket;

use crate::address;
use crate::ledger::meter;
use crate::live::LiveTls;
use crate::net::stream_socket::StreamSocket;
use crate::session::Failure;
use crate::stream::relay_kind::{ClearRelay, NextRelay, RelayKind, SealedRelay, StarttlsRelay};
use crate::stream::starttls_driver::{ClearTransport, ExchangeOutcome, StarttlsDriver};

use super::deadline::within;
use super::ending::DRAIN_WAIT_MAX;

/// The result of a successful exchange before TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreed {
    /// The handshake is next.
    Tls,
    /// No TLS follows, and the rule allows that.
    Clear,
    /// No TLS follows, and only one message is sent to the program.
    Delivery,
}

/// Runs the exchange before TLS.
pub(super) async fn hold(
    driver: &mut StarttlsDriver,
    peer: &StreamSocket,
    program: Option<&StreamSocket>,
    timeout: Duration,
    deadline: Instant,
) -> Result<Agreed, Failure> {
    meter::switch(Component::Handshake);
    let mut transport = ClearTransport { socket: peer, counted: None };
    let work = async { Ok(driver.run(&mut transport, program).await?) };
    match within(deadline, || Failure::Silence(timeout), work).await? {
        ExchangeOutcome::Step(StarttlsStep::Handshake) => Ok(Agreed::Tls),
        ExchangeOutcome::Step(StarttlsStep::Deliver) => Ok(Agreed::Delivery),
        ExchangeOutcome::Step(StarttlsStep::Reject(refusal)) => Err(Failure::Starttls(refusal)),
        // A data connection before TLS would be in clear.
        ExchangeOutcome::Step(StarttlsStep::Listen(_)) => {
            Err(Failure::Starttls(StarttlsError::InClear))
        }
        ExchangeOutcome::Step(
            StarttlsStep::Relay | StarttlsStep::ContinueInClear | StarttlsStep::Wait,
        )
        | ExchangeOutcome::Over => Ok(Agreed::Clear),
    }
}

/// Sends the program an error in its own protocol.
pub(super) async fn send_refusal(
    driver: &mut StarttlsDriver,
    peer: &StreamSocket,
    program: &StreamSocket,
) {
    driver.exchange.handshake_failed();
    let mut transport = ClearTransport { socket: peer, counted: None };
    let sent = driver.flush(&mut transport, Some(program));
    let _ = tokio::time::timeout(DRAIN_WAIT_MAX, sent).await;
}

/// The relay of a connection on which the client did not request TLS.
pub(super) fn relay_in_clear(
    mut driver: StarttlsDriver,
    downstream: StreamSocket,
    upstream: StreamSocket,
) -> RelayKind {
    let initial = driver.exchange.take_output(StarttlsSide::Program);
    let ends = ends(&downstream, &upstream);
    let relay = Box::new(ClearRelay { downstream, upstream, initial });
    if !driver.exchange.is_persistent() {
        return RelayKind::Clear(relay);
    }
    let mut exchange = driver.exchange;
    exchange.continue_in_clear();
    exchange.set_addresses(ends);
    RelayKind::Starttls(Box::new(StarttlsRelay {
        next: NextRelay::Clear(relay),
        exchange,
        data_tls: None,
    }))
}

/// The delivery of the one message that a client may send in clear.
pub(super) fn deliver_in_clear(
    mut driver: StarttlsDriver,
    downstream: StreamSocket,
    upstream: StreamSocket,
) -> RelayKind {
    let initial = driver.exchange.take_output(StarttlsSide::Program);
    RelayKind::Delivery(Box::new(ClearRelay { downstream, upstream, initial }))
}

/// The relay of a connection with TLS after a STARTTLS exchange.
pub(super) fn relay_under_tls(
    relay: SealedRelay,
    driver: StarttlsDriver,
    data_tls: Option<Arc<LiveTls>>,
) -> RelayKind {
    let mut exchange = driver.exchange;
    exchange.set_addresses(ends(&relay.tls, &relay.clear));
    exchange.handshake_succeeded();
    let next = NextRelay::Sealed(Box::new(relay));
    RelayKind::Starttls(Box::new(StarttlsRelay { next, exchange, data_tls }))
}

/// The addresses of both ends of an exchange.
fn ends(peer: &StreamSocket, program: &StreamSocket) -> ControlAddresses {
    ControlAddresses { peer: remote_ip(peer), program: remote_ip(program) }
}

/// The IP address of the other end of a socket.
pub fn remote_ip(socket: &StreamSocket) -> Option<IpAddr> {
    address::from_socket(&socket::peer_address(socket.fd()).ok()??).ip()
}
