//! Performs the TLS handshake on one socket of a connection.
//!
//! The handshake limiter restricts the number of concurrent handshakes. The timeout
//! `handshake-timeout` includes the time in which a handshake waits for a permit of the limiter.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tacit_core::meter::Component;

use crate::clock;
use crate::ledger::{Count, meter};
use crate::live::{LiveTls, TlsRole};
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::trace::Traces;
use crate::session::{ConnectionRecord, Failure, RecentTls, TlsFacts};
use crate::stream::limiter::{Displaced, HandshakeLimiter, HandshakePermit, Initiator};
use crate::stream::scratch::Scratch;
use tacit_tls::{
    CompletedHandshake, FinishError, Handshake, HandshakeFailure, HandshakeProgress, HandshakeRole,
    INCOMING_BYTES_MAX, Session,
};

use super::deadline::within;

/// The result of a handshake.
#[derive(Debug)]
pub struct HandshakeResult {
    /// The session.
    pub session: Session,
    /// Records that came with the handshake and are not opened yet.
    pub incomplete: Vec<u8>,
    /// The bytes that must be sent to the peer first.
    pub last_flight: Vec<u8>,
}

/// When the agent's last flight is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastFlight {
    /// At once.
    Sent,
    /// Together with the first data.
    Kept,
}

/// One handshake on one socket.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeIo<'a> {
    /// The connection, which stores the result.
    pub record: &'a ConnectionRecord,
    /// The connection with the peer's name and address: for a data connection, its control
    /// connection.
    pub peer_of: &'a ConnectionRecord,
    /// The socket.
    pub socket: &'a StreamSocket,
    /// The settings.
    pub tls: &'a LiveTls,
    /// The time at which it must be complete, including the wait for a permit.
    pub deadline: Instant,
    /// When the agent's last flight is sent.
    pub last_flight: LastFlight,
    /// The application protocol that both sides must agree on, if any.
    pub required_alpn: Option<&'static str>,
    /// The traces that get the keys, if they log keys.
    pub traces: &'a Traces,
    /// The buffers of the thread.
    pub scratch: &'a Scratch,
    /// The results of the thread's last handshakes.
    pub recent: &'a RecentTls,
}

impl HandshakeIo<'_> {
    /// Waits for a permit, then does the handshake. `incoming` was read before.
    ///
    /// # Errors
    /// See [`Failure`]; the alert has been sent to the peer.
    pub async fn run(
        self,
        limiter: &HandshakeLimiter,
        incoming: Vec<u8>,
    ) -> Result<HandshakeResult, Failure> {
        meter::switch(Component::Handshake);
        let begun = Instant::now();
        let handshaken = self.run_within_limits(limiter, incoming).await?;
        self.record.rule.counters.handshakes.add(begun.elapsed());
        Ok(handshaken)
    }

    /// Waits for a permit, then for the first bytes of a client; none if it closes its connection.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn first_bytes(&self, limiter: &HandshakeLimiter) -> Result<Vec<u8>, Failure> {
        let permit = self.acquire_permit(limiter).await?;
        let reading = async { Ok(first_bytes(self.scratch, self.socket).await?) };
        let reading = within(self.deadline, || stalled(self.tls), reading);
        tokio::select! {
            biased;
            read = reading => read,
            Displaced = permit.displaced() => Err(Failure::Displaced),
        }
    }

    async fn run_within_limits(
        &self,
        limiter: &HandshakeLimiter,
        incoming: Vec<u8>,
    ) -> Result<HandshakeResult, Failure> {
        let permit = self.acquire_permit(limiter).await?;
        let work = async {
            let mut handshaken = self.exchange(self.begin()?, incoming, &permit).await?;
            if self.last_flight == LastFlight::Sent {
                let last_flight = std::mem::take(&mut handshaken.last_flight);
                Outgoing::new(last_flight).flush(self.socket).await?;
            }
            Ok(handshaken)
        };
        let work = within(self.deadline, || stalled(self.tls), work);
        tokio::select! {
            biased;
            done = work => done,
            Displaced = permit.displaced() => Err(Failure::Displaced),
        }
    }

    /// Waits for a permit. The source is the client that a trusted proxy names; without a proxy,
    /// the address that connected.
    async fn acquire_permit<'g>(
        &self,
        limiter: &'g HandshakeLimiter,
    ) -> Result<HandshakePermit<'g>, Failure> {
        let initiator = match self.tls.role() {
            TlsRole::Server(_) => Initiator::Peer,
            TlsRole::Client(_) => Initiator::Agent,
        };
        let acquire = async {
            let of_rule = &self.record.rule.handshakes;
            let permit = limiter.acquire(of_rule, self.record.client(), initiator).await;
            permit.map_err(|Displaced| Failure::Displaced)
        };
        within(self.deadline, || Failure::NoHandshakePermit, acquire).await
    }

    fn begin(&self) -> Result<Handshake, HandshakeFailure> {
        let handshake = match self.tls.role() {
            TlsRole::Server(settings) => {
                Handshake::server(settings)?.with_peer_address(tls_peer(self.peer_of))
            }
            TlsRole::Client(settings) => Handshake::client(settings, &wanted_names(self.peer_of))?,
        };
        let handshake = handshake.with_required_alpn(self.required_alpn);
        let has_key_log = self.record.is_traced() && self.traces.want_keys(self.record);
        Ok(if has_key_log { handshake.with_key_log() } else { handshake })
    }

    async fn exchange(
        &self,
        mut handshake: Handshake,
        mut incoming: Vec<u8>,
        permit: &HandshakePermit<'_>,
    ) -> Result<HandshakeResult, Failure> {
        let mut last_flight = Vec::new();
        loop {
            let progress = handshake.advance(&mut incoming, &mut last_flight);
            self.traces.give_keys(self.record, &handshake.take_key_log());
            if matches!(progress, Ok(HandshakeProgress::Done)) {
                break;
            }
            if !last_flight.is_empty() {
                permit.note_answer();
            }
            let flushed = Outgoing::new(std::mem::take(&mut last_flight)).flush(self.socket).await;
            progress?;
            flushed?;
            if self.scratch.read_onto(self.socket, &mut incoming).await? == 0 {
                return Err(handshake.cut_off().into());
            }
            if incoming.len() > INCOMING_BYTES_MAX {
                let failure = handshake.too_long(&mut incoming, &mut last_flight);
                Outgoing::new(last_flight).flush(self.socket).await?;
                return Err(failure.into());
            }
        }
        // The connection keeps this buffer to its end, and it is nearly always empty.
        incoming.shrink_to_fit();
        match handshake.finish(self.tls.common().rekey, Instant::now(), clock::now()) {
            Ok(CompletedHandshake { session, negotiated, check, mapped, peer, trusted }) => {
                let facts = TlsFacts { agreed: negotiated, check, named: mapped, peer, trusted };
                // A connection that can have several handshakes has results of its own, so that
                // those of another handshake are recognised as such.
                let facts = match self.record.tls_control() {
                    Some(_) => Arc::new(facts),
                    None => self.recent.share(facts),
                };
                self.record.tls.set(facts);
                Ok(HandshakeResult { session, incomplete: incoming, last_flight })
            }
            Err(FinishError { failure, mut alert }) => {
                last_flight.append(&mut alert);
                Outgoing::new(last_flight).flush(self.socket).await?;
                Err(failure.into())
            }
        }
    }
}

/// The peer did not complete the handshake in time.
pub(super) fn stalled(tls: &LiveTls) -> Failure {
    let role = match tls.role() {
        TlsRole::Server(_) => HandshakeRole::Server,
        TlsRole::Client(_) => HandshakeRole::Client,
    };
    HandshakeFailure::timed_out(role, tls.common().handshake_timeout).into()
}

/// Counts the handshake of a connection for its rule, if there was one.
pub fn count_handshake(record: &ConnectionRecord) {
    if let Some(tls) = record.tls.get() {
        let resumed = u64::from(tls.agreed.resumed);
        meter::count(record.account(), [(Count::Handshakes, 1), (Count::Resumed, resumed)]);
    }
}

/// Returns the names that the server's certificate must match: the names that the program resolved,
/// or the address itself. For a forwarding rule with several targets, the name of the dialled
/// target.
fn wanted_names(record: &ConnectionRecord) -> Vec<String> {
    match &record.scope {
        None => record.dialled_host().into_iter().collect(),
        Some(facts) if facts.names.is_empty() => {
            record.remote.ip().map(|ip| ip.to_string()).into_iter().collect()
        }
        Some(facts) => facts.names.clone(),
    }
}

/// The IP address of the TLS peer.
fn tls_peer(record: &ConnectionRecord) -> Option<IpAddr> {
    if record.rule.rule.tls_arrives() {
        record.client().ip()
    } else {
        record.sockets.get().and_then(|sockets| sockets.target.ip())
    }
}

/// The first bytes of a TLS client.
///
/// # Errors
/// See [`Scratch::read_onto`].
pub(super) async fn first_bytes(scratch: &Scratch, socket: &StreamSocket) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // At the end of the stream this reads nothing, and the handshake reports that.
    scratch.read_onto(socket, &mut bytes).await?;
    Ok(bytes)
}
