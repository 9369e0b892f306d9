//! Runs the exchanges of IKEv2 with one peer, as a state machine without I/O.
//!
//! ```text
//!   handle_datagram ──┐                   ┌─> poll_transmit   datagrams to send
//!   handle_timeout  ──┼─> IkeConnection ──┼─> poll_event      results, such as new keys
//!   rekey, close, … ──┘                   └─> poll_timeout    when to call handle_timeout
//! ```
//!
//! After each call of a function on the left, the caller calls `poll_transmit` and `poll_event`
//! until they return `None`. Then the caller calls `poll_timeout`.
//!
//! A connection has one current IKE SA (the keys of IKE messages). While this IKE SA is being
//! replaced, there may be up to two replacements. Child SAs (the keys of tunnels) belong to the
//! connection and not to an IKE SA (RFC 7296 section 2.8).
//!
//! Limits: [`SAS_MAX`] IKE SAs, [`CHILDREN_MAX`] child SAs. A request is repeated up to nine times
//! in two minutes. A request to delete an SA is repeated three times in 15 seconds. Forged messages
//! are ignored.

mod address;
mod answers;
mod attempts;
mod auth;
mod child;
mod event;
mod fragments;
#[cfg(any(test, feature = "fuzz"))]
pub(super) mod fuzz;
mod inform;
mod init;
mod own_address;
mod payloads;
mod rekey;
mod sa;
mod silence;
mod summary;
mod task;
mod timers;
mod traced;
mod tunnel;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Digest, SHA256, digest};

use super::codec::{ExchangeType, IkeMessage, IkePayload, NotifyPayload, notify};
use super::config::IkeConfig;
use super::crypto::{KeGroup, RandomSource};
use super::failure::IkeFailure;
use crate::child::EspSpi;
pub use event::{IkeEvent, IkeTransmit, UnansweredRequest};
use init::Opening;
pub use init::{ACCEPTED_CONFIGS_MAX, IkeRefusal};
use payloads::notifications;
pub use sa::IkeRole;
use sa::{IkeSa, Opened, Received, SaState};
pub use silence::UNANSWERED;
pub use summary::{ChildSummary, IkeSummary, IkeTraffic};
use task::{Task, Wanted};
pub use traced::IkeSaKeys;
use tunnel::Tunnel;

/// The state of the relation with one peer.
#[derive(Debug)]
pub struct IkeConnection {
    config: Arc<IkeConfig>,
    /// The configurations of other peers that the initiator may be, until AUTH. At most
    /// [`ACCEPTED_CONFIGS_MAX`].
    others: Vec<Arc<IkeConfig>>,
    path: IkePath,
    random: Box<dyn RandomSource>,
    /// The first request of an initiator, until it knows which answer is that of the peer.
    opening: Option<Opening>,
    /// The SPI and the digest of the first request of a peer that has opened the connection.
    answered: Option<(u64, Digest)>,
    /// Attempts to authenticate with other answers than that of the current IKE SA. At most
    /// [`ATTEMPTS_MAX`](attempts::ATTEMPTS_MAX).
    other_attempts: Vec<auth::Attempt>,
    /// The AUTH exchange, until it is complete.
    auth: Option<auth::AuthContext>,
    sas: Vec<IkeSa>,
    /// The own SPI of the IKE SA that this side uses for its requests.
    current: u64,
    tunnels: Vec<Tunnel>,
    /// The inbound SPI of the child SA with which packets are sent.
    active: Option<u32>,
    /// The group that the peer demanded for new keys of the tunnel.
    child_group: Option<KeGroup>,
    /// When an authentic message or packet of the peer arrived last.
    last_received_at: Instant,
    sent_at: Instant,
    /// Whether a NAT is in front of this side.
    is_behind_nat: bool,
    /// Whether a NAT is in front of the peer.
    is_peer_behind_nat: bool,
    /// Whether this side has got another address since the NAT detection. Then a NAT may be in
    /// front of this side.
    has_moved: bool,
    has_ended: bool,
    /// What was repeated or fragmented.
    traffic: IkeTraffic,
    transmits: VecDeque<IkeTransmit>,
    events: VecDeque<IkeEvent>,
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IkePath {
    /// The address from which this side sends, as it knows it.
    pub local: SocketAddr,
    /// The address of the peer.
    pub remote: SocketAddr,
}

impl IkeConnection {
    /// Begins a connection as the initiator.
    #[must_use]
    pub fn initiate(
        config: Arc<IkeConfig>,
        path: IkePath,
        random: Box<dyn RandomSource>,
        now: Instant,
    ) -> Self {
        let mut connection = Self::empty(config, path, random, now);
        if let Err(failure) = connection.start_init(now) {
            connection.fail(failure);
        }
        connection
    }

    fn empty(
        config: Arc<IkeConfig>,
        path: IkePath,
        random: Box<dyn RandomSource>,
        now: Instant,
    ) -> Self {
        Self {
            config,
            others: Vec::new(),
            path,
            random,
            opening: None,
            answered: None,
            other_attempts: Vec::new(),
            auth: None,
            sas: Vec::new(),
            current: 0,
            tunnels: Vec::new(),
            active: None,
            child_group: None,
            last_received_at: now,
            sent_at: now,
            is_behind_nat: false,
            is_peer_behind_nat: false,
            has_moved: false,
            has_ended: false,
            traffic: IkeTraffic::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Returns the configuration of the peer. A responder that knows several peers has chosen it
    /// when the connection is established.
    #[must_use]
    pub fn config(&self) -> &Arc<IkeConfig> {
        &self.config
    }

    /// Reports whether a message belongs to this connection: by its SPIs, or because it repeats the
    /// first request. Anyone can send another first request with the SPI of the peer.
    #[must_use]
    pub fn owns_datagram(&self, bytes: &[u8]) -> bool {
        let spis =
            bytes.first_chunk::<8>().zip(bytes.get(8..16).and_then(|b| b.first_chunk::<8>()));
        let Some((initiator, responder)) = spis else { return false };
        let initiator = u64::from_be_bytes(*initiator);
        let responder = u64::from_be_bytes(*responder);
        let opens = |opening: &Opening| opening.spi() == initiator;
        let is_of_sa =
            |sa: &IkeSa| (sa.spis.initiator, sa.spis.responder) == (initiator, responder);
        let is_repeated = |(spi, first): &(u64, Digest)| {
            (*spi, 0) == (initiator, responder) && digest(&SHA256, bytes).as_ref() == first.as_ref()
        };
        self.opening.as_ref().is_some_and(opens)
            || self.sas.iter().any(is_of_sa)
            || self.answered.as_ref().is_some_and(is_repeated)
    }

    /// Returns this side's SPIs of the IKE SAs, by which messages of the peer find the connection.
    pub fn own_spis(&self) -> impl Iterator<Item = u64> {
        // The IKE SAs that follow from the first request have its SPI.
        let opening = self.opening.as_ref().filter(|_| self.sas.is_empty()).map(Opening::spi);
        opening.into_iter().chain(self.sas.iter().map(IkeSa::own_spi))
    }

    /// Handles an IKE message of the peer, without the non-ESP marker. `from` is the address from
    /// which it was received.
    pub fn handle_datagram(&mut self, now: Instant, from: SocketAddr, bytes: &[u8]) {
        if self.has_ended && self.sas.is_empty() {
            return;
        }
        let Ok(message) = IkeMessage::parse(bytes) else { return };
        if message.header.exchange == ExchangeType::SaInit {
            self.receive_init(now, &message, bytes);
        } else {
            self.choose_attempt(&message, bytes);
            if let Some(index) = self.find_sa(&message) {
                self.receive(now, from, index, &message, bytes);
            }
        }
        self.send_wanted(now);
    }

    /// The IKE SA of a message: the SPIs and the direction must fit.
    fn find_sa(&self, message: &IkeMessage) -> Option<usize> {
        let header = &message.header;
        self.sas.iter().position(|sa| {
            sa.spis.initiator == header.initiator_spi
                && sa.spis.responder == header.responder_spi
                && sa.is_initiator != header.from_initiator
        })
    }

    fn receive(
        &mut self,
        now: Instant,
        from: SocketAddr,
        index: usize,
        message: &IkeMessage,
        bytes: &[u8],
    ) {
        let Some(sa) = self.sas.get_mut(index) else { return };
        let spi = sa.own_spi();
        let received = sa.receive(message, bytes);
        self.traffic.fragments_received += sa.take_fragments_received();
        // Anyone can send an old request again, or forge an answer to the first request.
        let is_new = matches!(received, Received::Request(_) | Received::Response(..));
        if is_new && !self.is_attempting() {
            self.note_peer_address(from);
        }
        match received {
            Received::Ignored => return,
            // It proves nothing about the peer: anyone can send an old request again.
            Received::Repeated(response) => {
                self.transmit(now, response);
                return;
            }
            Received::Request(opened) => self.handle_request(now, spi, &opened),
            Received::Response(task, opened) => self.handle_response(now, spi, task, &opened),
            Received::Malformed { notify: Some(notify), failure } => {
                self.refuse_malformed(now, spi, message.header.exchange, notify, failure);
            }
            // A response that cannot be read leaves both sides in different states.
            Received::Malformed { notify: None, failure } => self.end_sa(now, spi, Some(failure)),
        }
        self.last_received_at = now;
    }

    fn handle_request(&mut self, now: Instant, spi: u64, opened: &Opened) {
        let Some(sa) = self.sa(spi) else { return };
        let is_opening = sa.state == SaState::Opening;
        match (is_opening, opened.exchange) {
            // A responder requests nothing before AUTH is complete. A request that has overtaken
            // the response to AUTH is repeated.
            (true, _) if sa.is_initiator => {}
            (true, ExchangeType::Auth) => self.handle_auth_request(now, spi, opened),
            (false, ExchangeType::CreateChildSa) => self.handle_create(now, spi, opened),
            (false, ExchangeType::Informational) => self.handle_inform(now, spi, opened),
            _ => {
                let exchange = opened.exchange;
                let what = format_args!(
                    "the peer sent a request of the exchange {exchange:?}, which the current state \
                     does not allow"
                );
                let notify = NotifyPayload::new(notify::INVALID_SYNTAX, []);
                self.refuse_malformed(now, spi, exchange, notify, IkeFailure::protocol(what));
            }
        }
    }

    /// Refuses an authentic request that breaks the protocol. INVALID_SYNTAX ends the IKE SA on
    /// both sides without a deletion (RFC 7296 section 2.21.3), and every error does so before AUTH
    /// is complete (section 2.21.2). An unknown critical payload otherwise ends nothing (section
    /// 2.5).
    fn refuse_malformed(
        &mut self,
        now: Instant,
        spi: u64,
        exchange: ExchangeType,
        notify: NotifyPayload,
        failure: IkeFailure,
    ) {
        let is_opening = self.sa(spi).is_some_and(|sa| sa.state == SaState::Opening);
        let is_fatal = is_opening || notify.kind == notify::INVALID_SYNTAX;
        if self.is_attempting() {
            self.refuse_attempt(now, failure);
            return;
        }
        self.respond(now, spi, exchange, &[IkePayload::Notify(notify)]);
        if is_fatal {
            self.retire(now, spi);
            self.end_without(now, spi, Some(failure));
        }
    }

    fn handle_response(&mut self, now: Instant, spi: u64, task: Task, opened: &Opened) {
        let is_fatal =
            notifications(&opened.payloads).any(|one| one.kind == notify::INVALID_SYNTAX);
        if is_fatal && !matches!(task, Task::Auth { .. }) {
            let failure = IkeFailure::refused(notify::INVALID_SYNTAX, "a request");
            self.end_sa(now, spi, Some(failure));
            return;
        }
        match task {
            // What the peer has made is deleted with the IKE SA, or as one that does not answer.
            Task::Auth { .. } | Task::Child(_) | Task::RekeyIke(_) if self.has_ended => {}
            Task::Auth { child_spi } => self.handle_auth_response(now, spi, child_spi, opened),
            Task::Child(task) => self.handle_child_response(now, spi, task, opened),
            Task::RekeyIke(task) => self.handle_rekey_response(now, spi, task, opened),
            Task::DeleteChild { spi: child } => self.remove_tunnel(child),
            Task::DeleteIke => self.end_sa(now, spi, None),
            Task::Liveness => {}
        }
    }

    /// Handles the passing of time. The time is that of [`poll_timeout`](Self::poll_timeout) or
    /// later; an earlier call does nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pass_opening(now);
        self.repeat_attempts(now);
        self.repeat_requests(now);
        self.expire(now);
        if self.keepalive_at().is_some_and(|at| at <= now) {
            self.sent_at = now;
            self.transmits.push_back(IkeTransmit::Keepalive);
        }
        self.send_wanted(now);
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<IkeTransmit> {
        self.transmits.pop_front()
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let opening = self.init_due_at();
        let attempts = self.other_attempts.iter().filter_map(|one| one.sa.retransmit_at());
        let sas = self.sas.iter().flat_map(|sa| [sa.retransmit_at(), self.sa_expires_at(sa)]);
        let tunnels = self.tunnels.iter().filter_map(Tunnel::next_time);
        let others = [self.liveness_at(), self.keepalive_at()];
        opening
            .into_iter()
            .chain(attempts)
            .chain(sas.flatten())
            .chain(tunnels)
            .chain(others.into_iter().flatten())
            .min()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<IkeEvent> {
        self.events.pop_front()
    }

    /// Reports whether the connection has ended. It may still have datagrams to send.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Replaces the keys of the IKE SA.
    pub fn rekey(&mut self, now: Instant) {
        self.want(Wanted::RekeyIke);
        self.send_wanted(now);
    }

    /// Replaces a child SA, by its inbound SPI; the data path requests it when it has used the keys
    /// for enough packets or bytes. Nothing happens if it is being replaced already.
    pub fn rekey_child(&mut self, now: Instant, inbound: EspSpi) {
        self.want(Wanted::RekeyChild(inbound.number()));
        self.send_wanted(now);
    }

    /// Requests a child SA if there is none: the peer has deleted the last one, or has refused the
    /// first one.
    pub fn create_child(&mut self, now: Instant) {
        if self.tunnels.is_empty() && !self.has_ended {
            self.want(Wanted::CreateChild);
            self.send_wanted(now);
        }
    }

    /// Deletes the IKE SA and its child SAs. The event [`IkeEvent::Closed`] follows when the peer
    /// has confirmed it or does not answer.
    pub fn close(&mut self, now: Instant) {
        self.opening = None;
        self.other_attempts.clear();
        if self.sas.is_empty() {
            self.end(IkeEvent::Closed);
            return;
        }
        self.remove_all_tunnels();
        let current = self.current;
        if let Some(sa) = self.sa_mut(current) {
            sa.want_end();
        }
        self.send_wanted(now);
    }

    /// Ends the connection without a message to the peer, which has lost its state: it has begun
    /// another connection with [`IkeEvent::InitialContact`].
    pub fn abandon(&mut self) {
        self.sas.clear();
        self.end(IkeEvent::Closed);
    }

    /// Returns the address to which messages and packets are sent.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.path.remote
    }

    /// Reports whether the address of the peer may change: the peer is behind a NAT, which may give
    /// it another mapping. A side that is itself behind a NAT follows no change (RFC 7296 section
    /// 2.23).
    #[must_use]
    pub fn peer_may_move(&self) -> bool {
        self.is_peer_behind_nat && !self.is_behind_nat
    }

    /// Notes the address from which the newest authentic message or packet of the peer arrived. If
    /// it is another one, and the peer may move, [`IkeEvent::PeerMoved`] follows.
    pub fn note_peer_address(&mut self, from: SocketAddr) {
        if self.peer_may_move() && from != self.path.remote && !self.has_ended {
            self.path.remote = from;
            self.event(IkeEvent::PeerMoved(from));
        }
    }

    /// Notes that an authentic packet of the peer arrived by a child SA: the peer is alive.
    pub fn note_packet(&mut self, now: Instant) {
        self.last_received_at = now;
    }

    fn sa(&self, spi: u64) -> Option<&IkeSa> {
        self.sas.iter().find(|sa| sa.own_spi() == spi)
    }

    fn sa_mut(&mut self, spi: u64) -> Option<&mut IkeSa> {
        self.sas.iter_mut().find(|sa| sa.own_spi() == spi)
    }

    fn want(&mut self, wanted: Wanted) {
        let current = self.current;
        if let Some(sa) = self.sa_mut(current) {
            sa.want(wanted);
        }
    }

    /// Sends the datagrams of a message.
    fn transmit(&mut self, now: Instant, datagrams: impl IntoIterator<Item = Vec<u8>>) {
        self.sent_at = now;
        let mut sent = 0;
        for bytes in datagrams {
            sent += 1;
            // A user that does not poll loses the oldest datagrams; they are repeated.
            if self.transmits.len() == TRANSMITS_MAX {
                self.transmits.pop_front();
            }
            self.transmits.push_back(IkeTransmit::Message(bytes));
        }
        if sent > 1 {
            self.traffic.fragments_sent += sent;
        }
    }

    fn respond(&mut self, now: Instant, spi: u64, exchange: ExchangeType, payloads: &[IkePayload]) {
        let Some(sa) = self.sas.iter_mut().find(|sa| sa.own_spi() == spi) else { return };
        match sa.respond(exchange, payloads, self.random.as_mut()) {
            Ok(datagrams) => self.transmit(now, datagrams),
            Err(failed) => self.fail(failed.into()),
        }
    }

    /// Responds with a notification only.
    fn respond_notify(&mut self, now: Instant, spi: u64, exchange: ExchangeType, kind: u16) {
        let payload = IkePayload::Notify(NotifyPayload::new(kind, []));
        self.respond(now, spi, exchange, &[payload]);
    }

    fn request(
        &mut self,
        now: Instant,
        spi: u64,
        exchange: ExchangeType,
        payloads: &[IkePayload],
        task: Task,
    ) {
        let Some(sa) = self.sas.iter_mut().find(|sa| sa.own_spi() == spi) else { return };
        match sa.request(now, exchange, payloads, task, self.random.as_mut()) {
            Ok(datagrams) => self.transmit(now, datagrams),
            Err(failed) => self.fail(failed.into()),
        }
    }

    /// Sends the requests whose turn it is, on each IKE SA.
    fn send_wanted(&mut self, now: Instant) {
        for index in 0..self.sas.len() {
            while let Some(sa) = self.sas.get_mut(index)
                && let Some(wanted) = sa.take_wanted()
            {
                let spi = sa.own_spi();
                if let Err(failure) = self.send_one(now, spi, wanted) {
                    self.fail(failure);
                }
            }
        }
    }

    fn send_one(&mut self, now: Instant, spi: u64, wanted: Wanted) -> Result<(), IkeFailure> {
        match wanted {
            Wanted::RekeyChild(child) => self.send_child(now, spi, Some(child)),
            Wanted::CreateChild => self.send_child(now, spi, None),
            Wanted::RekeyIke => self.send_rekey(now, spi),
            Wanted::DeleteChild(child) => {
                self.send_delete_child(now, spi, child);
                Ok(())
            }
            Wanted::DeleteIke => {
                self.send_delete_ike(now, spi);
                Ok(())
            }
            Wanted::Liveness => {
                self.request(now, spi, ExchangeType::Informational, &[], Task::Liveness);
                Ok(())
            }
        }
    }

    fn event(&mut self, event: IkeEvent) {
        // More events than a single call can cause; a user that does not poll loses the oldest.
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Ends the connection because of a failure.
    fn fail(&mut self, failure: IkeFailure) {
        self.sas.clear();
        self.end(IkeEvent::Failed(failure));
    }

    /// Ends the connection. IKE SAs that still repeat responses remain.
    fn end(&mut self, event: IkeEvent) {
        if !self.has_ended {
            self.has_ended = true;
            self.opening = None;
            self.other_attempts.clear();
            self.auth = None;
            self.remove_all_tunnels();
            self.event(event);
        }
    }
}

/// The most IKE SAs of a connection: the current one, two replacements, and those that only repeat
/// their last response.
const SAS_MAX: usize = 6;
/// The most child SAs of a connection.
const CHILDREN_MAX: usize = 8;
/// The most datagrams that wait for the user: more than the fragments of one message.
const TRANSMITS_MAX: usize = 128;
const EVENTS_MAX: usize = 64;
/// How long a deleted IKE SA repeats its last response.
const GONE: Duration = Duration::from_secs(60);
/// After this time this side deletes an SA that the peer should have deleted.
const DELETE_OVERDUE: Duration = Duration::from_secs(60);
/// The time without a datagram after which a keepalive is sent (RFC 7296 section 2.23, RFC 3948
/// section 4).
const KEEPALIVE: Duration = Duration::from_secs(20);

#[cfg(test)]
pub(super) mod tests;
