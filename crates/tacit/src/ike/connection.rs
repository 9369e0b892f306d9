//! Defines [`PeerConnection`]: the IKE connection between one run (a program under `tacit run`) and
//! one peer. [`PeerConnection`] also stores the time of the next attempt to connect.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tacit_core::policy::{IkePeer, InnerAddressSource};
use tacit_ipsec::ike::{
    FailureSide, IkeConfig, IkeConnection, IkeFailure, IkeProposal, UNANSWERED, UnansweredRequest,
};
use tacit_ipsec::{ChildSa, EspSpi};
use tacit_tls::KeyLogLine;
use tacit_tls::tunnel_auth::TunnelPeerChain;

use super::address::{AddressChoice, AddressChooser};
use super::certificates::TrustVerifier;
use super::config::data_lifetime;
use super::key_table;
use super::status::{ChildStatus, IkeState, IkeStatus};
use crate::clock;
use crate::packet::{PeerAddress, TunId};

/// How long the next attempt waits after the first failure. The time doubles with each failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// How long certificates are trusted before they are checked again: the clock may have changed.
const TRUST_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A peer that stops answering, and accepts another connection within this time, has dropped the
/// earlier connection.
const DROPPED_WITHIN: Duration = Duration::from_secs(30);
/// How many requests of such an attempt may be lost. A network that fails loses more.
const DROPPED_RETRANSMITS_MAX: u64 = 1;
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// How long the next attempt waits after this number of failures.
fn retry_wait(failures: u32) -> Duration {
    RETRY_MIN.saturating_mul(1 << failures.min(6)).min(RETRY_MAX)
}

/// The address of a peer whose name has none yet.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// One run and one peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) run: u64,
    pub(super) ike: String,
}

/// The sender of a first request, until it has proved its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stranger {
    pub(super) from: SocketAddr,
    pub(super) since: Instant,
    /// Whether the address, with the port, is that of a peer in the policy.
    pub(super) is_peer_address: bool,
}

/// What the policy says about a peer.
#[derive(Clone, Debug)]
pub(super) struct PeerSettings {
    pub(super) peer: IkePeer,
    pub(super) config: Arc<IkeConfig>,
    /// Checks the certificates of the peer; `None`: both sides know a key.
    pub(super) verifier: Option<Arc<TrustVerifier>>,
}

impl PeerSettings {
    /// The addresses of the run, if the policy has them.
    fn fixed_addresses(&self) -> Vec<IpAddr> {
        match &self.peer.inner {
            InnerAddressSource::Policy(addresses) => addresses.clone(),
            InnerAddressSource::Gateway => Vec::new(),
        }
    }
}

/// A run and a peer, with what the policy says about them.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) pair: Pair,
    pub(super) run_name: String,
    pub(super) tun: TunId,
    pub(super) settings: PeerSettings,
}

/// A child SA of a connection.
#[derive(Debug)]
struct OwnedChild {
    /// It has the keys, for traces.
    sa: ChildSa,
    status: ChildStatus,
}

impl OwnedChild {
    fn spi(&self) -> EspSpi {
        self.sa.inbound.spi
    }
}

/// The connection of a run with a peer. The value also exists between two attempts to connect.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub(super) pair: Pair,
    pub(super) run_name: String,
    pub(super) tun: TunId,
    pub(super) settings: PeerSettings,
    pub(super) remote: SocketAddr,
    /// The connection; `None` between attempts.
    pub(super) open: Option<IkeConnection>,
    /// Whether it ends, and is forgotten then.
    pub(super) is_closing: bool,
    /// A peer that has opened the connection and has not proved its identity. Such a connection is
    /// beside that of the pair.
    pub(super) stranger: Option<Stranger>,
    /// Which runs and peers the connection may be of, until the stranger proves its identity.
    pub(super) candidates: Vec<Candidate>,
    pub(super) is_established: bool,
    pub(super) inner: Vec<IpAddr>,
    /// The SPIs of this side that are known to lead here.
    pub(super) spis: Vec<u64>,
    /// Why this side ends the connection, until the peer has confirmed the end.
    pub(super) ending: Option<IkeFailure>,
    /// The certificates of the peer.
    chain: Option<TunnelPeerChain>,
    trust_check_at: Option<Instant>,
    children: Vec<OwnedChild>,
    /// The child SAs since it was established.
    children_made: u64,
    sending: Option<EspSpi>,
    /// How many packets had arrived by its tunnels when this was noted last.
    received: u64,
    identity: Option<String>,
    proposal: Option<IkeProposal>,
    rekeyed: u64,
    since: SystemTime,
    failures: u32,
    failure: Option<String>,
    failure_side: Option<FailureSide>,
    /// What was logged last about this attempt, before it is established.
    reported: Option<IkeFailure>,
    retry_at: Option<Instant>,
    /// When the established connection ended, because the peer did not answer; `None` after the
    /// next attempt.
    missed_at: Option<Instant>,
    /// Requests for a child SA since the last one was installed, and when the next one may follow.
    child_requests: u32,
    child_request_at: Option<Instant>,
    addresses: AddressChooser,
    /// The kinds of failures that were logged since it was last established.
    logged: BTreeSet<&'static str>,
}

impl PeerConnection {
    pub(super) fn new(candidate: Candidate) -> Self {
        let Candidate { pair, run_name, tun, settings } = candidate;
        let inner = settings.fixed_addresses();
        Self {
            pair,
            run_name,
            tun,
            remote: settings.peer.address().unwrap_or(UNKNOWN),
            addresses: AddressChooser::default(),
            settings,
            open: None,
            is_closing: false,
            stranger: None,
            candidates: Vec::new(),
            is_established: false,
            inner,
            spis: Vec::new(),
            ending: None,
            chain: None,
            trust_check_at: None,
            children: Vec::new(),
            children_made: 0,
            sending: None,
            received: 0,
            identity: None,
            proposal: None,
            rekeyed: 0,
            since: SystemTime::now(),
            failures: 0,
            failure: None,
            failure_side: None,
            reported: None,
            retry_at: None,
            missed_at: None,
            child_requests: 0,
            child_request_at: None,
            logged: BTreeSet::new(),
        }
    }

    /// The run and the peer.
    pub(super) fn candidate(&self) -> Candidate {
        Candidate {
            pair: self.pair.clone(),
            run_name: self.run_name.clone(),
            tun: self.tun,
            settings: self.settings.clone(),
        }
    }

    /// Whether the connection is of this run, or may turn out to be.
    pub(super) fn may_be_of(&self, run: u64) -> bool {
        self.pair.run == run || self.candidates.iter().any(|one| one.pair.run == run)
    }

    /// Notes which of the candidates the stranger is, if it has shown that.
    pub(super) fn follow_choice(&mut self) {
        let Some(config) = self.open.as_ref().map(IkeConnection::config) else { return };
        if Arc::ptr_eq(config, &self.settings.config) {
            return;
        }
        let is_it = |one: &&Candidate| Arc::ptr_eq(&one.settings.config, config);
        if let Some(found) = self.candidates.iter().find(is_it).cloned() {
            let Candidate { pair, run_name, tun, settings } = found;
            self.inner = settings.fixed_addresses();
            self.pair = pair;
            self.run_name = run_name;
            self.tun = tun;
            self.settings = settings;
        }
    }

    /// Whether displays have the connection: it is not that of a stranger, and was tried.
    pub(super) fn is_shown(&self) -> bool {
        self.stranger.is_none() && (self.open.is_some() || self.retry_at.is_some())
    }

    /// Whether a new attempt may begin.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        !self.is_closing && self.open.is_none() && self.retry_at.is_none_or(|at| at <= now)
    }

    /// Requests a child SA, because a packet needs one and the peer has deleted the last one.
    pub(super) fn request_child(&mut self, now: Instant) {
        let is_usable = self.is_established && !self.is_closing && self.ending.is_none();
        let may_request = self.child_request_at.is_none_or(|at| at <= now);
        if let Some(open) = &mut self.open
            && is_usable
            && may_request
            && self.children.is_empty()
        {
            // A peer that refuses or deletes each one is not asked again at once.
            self.child_request_at = Some(now + retry_wait(self.child_requests));
            self.child_requests = self.child_requests.saturating_add(1);
            open.create_child(now);
        }
    }

    /// Whether the peer has assigned the addresses of the run.
    pub(super) fn has_assigned_addresses(&self) -> bool {
        self.settings.peer.inner == InnerAddressSource::Gateway
            && self.stranger.is_none()
            && !self.inner.is_empty()
    }

    /// When an attempt begins by itself; `None`: a packet of a program begins it.
    pub(super) fn begins_at(&self) -> Option<Instant> {
        let is_assigned = self.settings.peer.inner == InnerAddressSource::Gateway;
        self.retry_at.filter(|_| is_assigned && self.open.is_none() && !self.is_closing)
    }

    /// Chooses the address of the next attempt among those that are known. Returns `false` if there
    /// is none yet.
    ///
    /// # Errors
    /// The name of the peer has no address.
    pub(super) fn choose_address(
        &mut self,
        known: &[SocketAddr],
        now: Instant,
    ) -> Result<bool, IkeFailure> {
        match self.addresses.choose(known, self.failures, now) {
            AddressChoice::Use(address) => {
                self.remote = address;
                Ok(true)
            }
            AddressChoice::Later(at) => {
                self.retry_at = Some(at);
                Ok(false)
            }
            AddressChoice::Unresolved => Err(IkeFailure::new(
                "peer-not-resolved",
                FailureSide::Host,
                format!(
                    "the DNS name {} of the peer does not resolve to an address: check the name in \
                     the policy, and the name servers of this host",
                    self.settings.peer.host
                ),
            )),
        }
    }

    pub(super) fn begin(&mut self, connection: IkeConnection) {
        self.open = Some(connection);
        self.is_established = false;
        self.reported = None;
        self.since = SystemTime::now();
        self.retry_at = None;
    }

    pub(super) fn note_established(&mut self, identity: String, proposal: IkeProposal) {
        self.is_established = true;
        self.identity = Some(identity);
        self.proposal = Some(proposal);
        self.since = SystemTime::now();
        self.children_made = 0;
        self.failure = None;
        self.failure_side = None;
        self.chain = self.settings.verifier.as_ref().and_then(|one| one.take_verified());
        self.plan_trust_check(clock::boottime());
    }

    /// Whether the peer has dropped the earlier connection without a message: it did not answer
    /// requests of the earlier connection, and has accepted this one at once. Returns `true` at
    /// most once.
    pub(super) fn take_dropped_by_peer(&mut self, now: Instant) -> bool {
        let repeated = self.open.as_ref().map(|open| open.summary().traffic.retransmitted);
        let is_soon = |missed_at| now.saturating_duration_since(missed_at) <= DROPPED_WITHIN;
        self.missed_at.take().is_some_and(is_soon)
            && repeated.is_some_and(|repeated| repeated <= DROPPED_RETRANSMITS_MAX)
    }

    /// Notes that the peer has not answered a request of the attempt yet. Returns the message,
    /// which contains what to check.
    pub(super) fn note_unanswered(&mut self, request: UnansweredRequest) -> String {
        let seconds = UNANSWERED.as_secs();
        let port = self.remote.port();
        let ike = &self.pair.ike;
        let message = match request {
            UnansweredRequest::Init => format!(
                "the peer has not answered for {seconds} seconds; tacit repeats its request: check \
                 that the peer runs and listens on UDP port {port}, that no firewall drops UDP \
                 port {port} in either direction, and that `peer` and `port` in [ike.{ike}] are \
                 right. tacit uses only this port of the peer, not port 500"
            ),
            UnansweredRequest::Auth { datagram_bytes_max } => format!(
                "the peer has answered the first request (IKE_SA_INIT), but not the second one \
                 (IKE_AUTH) for {seconds} seconds; tacit repeats IKE_AUTH: check in the peer's log \
                 whether IKE_AUTH arrives. If the peer receives it and does not answer, compare \
                 `local-id`, `remote-id`, and the shared key or the certificates in [ike.{ike}] \
                 with the peer's settings. If IKE_AUTH or the peer's answer is lost, check that no \
                 firewall or NAT drops UDP datagrams of {datagram_bytes_max} bytes to or from port \
                 {port}, or IP fragments, and turn on IKE fragmentation (RFC 7383) on the peer if \
                 it supports this"
            ),
        };
        self.failure = Some(message.clone());
        self.failure_side = Some(match request {
            UnansweredRequest::Init => FailureSide::Network,
            UnansweredRequest::Auth { .. } => FailureSide::Both,
        });
        message
    }

    /// A tunnel works: the next failure is a new one.
    fn note_active(&mut self) {
        self.failures = 0;
        self.logged.clear();
    }

    /// When the certificates of the peer are checked again.
    pub(super) fn trust_check_at(&self) -> Option<Instant> {
        self.trust_check_at.filter(|_| self.open.is_some() && self.ending.is_none())
    }

    /// Checks the certificates of the peer again. Returns why they are not trusted any more.
    pub(super) fn check_trust(&mut self, now: Instant) -> Option<IkeFailure> {
        self.plan_trust_check(now);
        let (verifier, chain) = self.settings.verifier.as_ref().zip(self.chain.as_ref())?;
        verifier.check_again(chain).err()
    }

    fn plan_trust_check(&mut self, now: Instant) {
        self.trust_check_at = self.chain.as_ref().map(|chain| {
            let unix_s = clock::now_unix_s();
            let end = chain.next_end(unix_s).and_then(|end| u64::try_from(end - unix_s).ok());
            // A certificate is valid until the end of its last second.
            let wait = end.map_or(TRUST_CHECK_INTERVAL, |end| Duration::from_secs(end + 1));
            now + wait.min(TRUST_CHECK_INTERVAL)
        });
    }

    pub(super) fn note_rekeyed(&mut self) {
        self.rekeyed += 1;
    }

    /// Notes a new child SA. Returns how many were before it.
    pub(super) fn note_child(&mut self, child: &ChildSa) -> u64 {
        let before = self.children_made;
        let lifetime = data_lifetime(&self.settings.peer.lifetime);
        let status = ChildStatus::new(child, before, lifetime);
        self.children.push(OwnedChild { sa: child.clone(), status });
        self.children_made += 1;
        self.child_requests = 0;
        before
    }

    pub(super) fn note_sending(&mut self, spi: EspSpi) {
        self.sending = Some(spi);
        self.note_active();
    }

    pub(super) fn note_removed(&mut self, spi: EspSpi) {
        self.children.retain(|child| child.spi() != spi);
    }

    /// The inbound SPIs of its tunnels.
    pub(super) fn children(&self) -> impl Iterator<Item = EspSpi> {
        self.children.iter().map(OwnedChild::spi)
    }

    /// Notes how many packets have arrived by its tunnels. Another number shows that the peer is
    /// alive. It is also another one after a tunnel was removed, by an exchange with the peer.
    pub(super) fn note_received(&mut self, packets: u64, now: Instant) {
        if std::mem::replace(&mut self.received, packets) != packets
            && let Some(open) = &mut self.open
        {
            open.note_packet(now);
        }
    }

    /// Whether packets follow the peer to another address.
    pub(super) fn peer_address(&self) -> PeerAddress {
        match self.open.as_ref().is_some_and(IkeConnection::peer_may_move) {
            true => PeerAddress::Roaming,
            false => PeerAddress::Fixed,
        }
    }

    pub(super) fn has_child(&self, spi: EspSpi) -> bool {
        self.children.iter().any(|child| child.spi() == spi)
    }

    /// The connection has ended without a failure; the next packet begins another one.
    pub(super) fn note_ended(&mut self, now: Instant) {
        self.open = None;
        self.is_established = false;
        // A peer that ends each connection at once is not asked again at once.
        self.retry_at = Some(now + RETRY_MIN);
    }

    /// The connection, or an attempt, has failed.
    pub(super) fn note_failed(&mut self, failure: &IkeFailure, now: Instant) {
        // If this host has another address now, the peer may have sent its answers to the old one.
        let has_moved = self.open.as_ref().is_some_and(IkeConnection::has_moved);
        let is_silent = self.is_established && failure.kind == "peer-does-not-answer";
        self.missed_at = (is_silent && !has_moved).then_some(now);
        self.open = None;
        self.is_established = false;
        self.retry_at = Some(now + retry_wait(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure.message.clone());
        self.failure_side = Some(failure.side);
    }

    /// The keys of its IKE SAs and child SAs, as a trace writes them.
    pub(super) fn key_lines(&self) -> Vec<KeyLogLine> {
        let of_children = self.children.iter().flat_map(|child| self.child_key_lines(&child.sa));
        self.ike_key_lines().into_iter().chain(of_children).collect()
    }

    /// The keys of its IKE SAs.
    pub(super) fn ike_key_lines(&self) -> Vec<KeyLogLine> {
        let sas = self.open.iter().flat_map(IkeConnection::sa_keys);
        sas.filter_map(|sa| key_table::ike_row(&sa)).collect()
    }

    /// The keys of one of its child SAs.
    pub(super) fn child_key_lines(&self, child: &ChildSa) -> Vec<KeyLogLine> {
        let path = self.open.as_ref().map(|open| open.summary().path);
        path.map(|path| key_table::esp_rows(child, &path)).unwrap_or_default()
    }

    /// Why the last attempt failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether a kind of failure was not logged yet.
    pub(super) fn is_new(&mut self, kind: &'static str) -> bool {
        self.logged.insert(kind)
    }

    /// Notes a failure that is logged.
    pub(super) fn note_reported(&mut self, failure: &IkeFailure) {
        self.reported = Some(failure.clone());
    }

    /// Whether an attempt ends because of a failure that was logged already, when the peer refused
    /// it.
    pub(super) fn is_reported(&self, failure: &IkeFailure) -> bool {
        !self.is_established && self.reported.as_ref() == Some(failure)
    }

    /// The content of displays. `refused` is the number of packets that were refused because there
    /// was no tunnel.
    pub(super) fn status(&self, refused: u64) -> IkeStatus {
        let is_closing = self.is_closing || self.ending.is_some();
        let state = match (&self.open, is_closing, self.is_established) {
            (_, true, _) => IkeState::Closing,
            (Some(_), false, true) => IkeState::Established,
            (Some(_), false, false) => IkeState::Opening,
            (None, false, _) => IkeState::Failed,
        };
        let ending = self.ending.as_ref();
        IkeStatus {
            run: self.pair.run,
            run_name: self.run_name.clone(),
            ike: self.pair.ike.clone(),
            peer: self.remote,
            state,
            settings: self.settings.peer.clone(),
            identity: self.identity.clone(),
            proposal: self.proposal,
            inner: self.inner.clone(),
            since: self.since,
            rekeyed: self.rekeyed,
            summary: self.open.as_ref().map(IkeConnection::summary),
            children: self.children.iter().map(|child| child.status.clone()).collect(),
            sending: self.sending,
            refused,
            failures: self.failures,
            retry_at: self.retry_at,
            failure: ending.map_or_else(|| self.failure.clone(), |one| Some(one.message.clone())),
            failure_side: ending.map_or(self.failure_side, |one| Some(one.side)),
        }
    }
}
