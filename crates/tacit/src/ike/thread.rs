//! Runs the IKE thread. The thread moves messages and events between IKE connections, the packet
//! worker and the agent. The thread also handles the timers of IKE.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::meter::Component;
use tacit_core::policy::{IkePeer, InnerAddressSource};
use tacit_ipsec::EspSpi;
use tacit_ipsec::ike::{
    IkeConfig, IkeConnection, IkeEvent, IkeFailure, IkeLimiter, IkePath, IkeRoute, IkeTransmit,
    UnansweredRequest,
};
use tacit_sys::sandbox::{self, WorkerRights};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::config::{Authentication, accounts, ike_config, local_identity};
use super::connection::{Candidate, Pair, PeerConnection, PeerSettings};
use super::driven_run::DrivenRun;
use super::inputs::{Input, Inputs};
use super::kernel::{KernelRandom, local};
use super::manual_sa::{ManualStatus, ManualTunnel};
use super::source_checks::SourceChecks;
use super::status::IkeStatus;
use super::unproved::UnprovedFailures;
use super::{
    CLOSE_WAIT_MAX, IkeNotice, IkePolicy, KeySink, KeyTraces, Order, PeerFact, RefusalSink,
    RefusedByPeer, reports,
};
use crate::clock::boottime;
use crate::ledger::{Account, ThreadKind, meter};
use crate::log::{Event, Log};
use crate::packet::{IkeDatagram, PacketEvent, PacketWorker, TunnelFilters};

/// The longest wait for an input.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest wait while there are connections: waits do not count the time for which the machine
/// sleeps, but keys expire then.
const SLEEP_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long a report waits if the queue of the agent is full.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// How long displays wait for changes that are not changes of a connection's state.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// How long the end of the thread waits for a message before it looks at the timers.
const CLOSE_STEP: Duration = Duration::from_millis(50);

/// What the thread works with.
pub(super) struct IkeContext {
    pub(super) inputs: Arc<Inputs>,
    pub(super) worker: Arc<PacketWorker>,
    pub(super) statuses: Arc<Mutex<Vec<IkeStatus>>>,
    pub(super) manual: Arc<Mutex<Vec<ManualStatus>>>,
    pub(super) refused: Arc<Mutex<RefusedByPeer>>,
    /// The addresses of the sockets to peers.
    pub(super) locals: Vec<SocketAddr>,
    pub(super) notices: mpsc::Sender<IkeNotice>,
    pub(super) log: Log,
    pub(super) refusals: RefusalSink,
    pub(super) traces: Arc<dyn KeyTraces>,
}

/// The state of the thread.
pub(super) struct IkeThread {
    pub(super) context: IkeContext,
    pub(super) policy: IkePolicy,
    /// The accounts of packets, by the names of the rules of the policy.
    pub(super) accounts: Vec<(String, Arc<Account>)>,
    /// The filter rules for packets inside tunnels.
    pub(super) filters: TunnelFilters,
    pub(super) limiter: IkeLimiter,
    pub(super) runs: BTreeMap<u64, DrivenRun>,
    pub(super) connections: Vec<PeerConnection>,
    pub(super) manual: Vec<ManualTunnel>,
    /// The places of connections, by the SPIs of this side.
    places: HashMap<u64, usize>,
    /// The addresses of the peers in the policy, as far as they are known.
    peers: HashSet<IpAddr>,
    /// Addresses that peers have assigned, or failures, which the agent does not know yet.
    pub(super) assigned: BTreeMap<Pair, Result<Vec<IpAddr>, String>>,
    /// The longest packets for the paths to peers that the agent does not know yet.
    paths: BTreeMap<Pair, usize>,
    /// When looked-up names are compared with assigned addresses next.
    pub(super) names_check_at: Instant,
    /// When the addresses from which this host sends to peers are compared next.
    pub(super) sources: SourceChecks,
    unproved: UnprovedFailures,
    published: Instant,
    /// What displays do not know yet.
    pub(super) news: News,
}

/// Whether displays must get what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    None,
    /// After [`PUBLISH_INTERVAL`].
    Soon,
    /// At once: the state of a connection is another one.
    Now,
}

impl IkeThread {
    pub(super) fn new(policy: IkePolicy, context: IkeContext) -> io::Result<Self> {
        let limiter = IkeLimiter::new(&mut KernelRandom, boottime()).map_err(io::Error::other)?;
        let mut filters = TunnelFilters::default();
        filters.follow(&policy.policy, &policy.filters);
        let mut thread = Self {
            context,
            accounts: accounts(&policy.policy),
            policy,
            filters,
            limiter,
            runs: BTreeMap::new(),
            connections: Vec::new(),
            manual: Vec::new(),
            places: HashMap::new(),
            peers: HashSet::new(),
            assigned: BTreeMap::new(),
            paths: BTreeMap::new(),
            names_check_at: boottime(),
            sources: SourceChecks::default(),
            unproved: UnprovedFailures::default(),
            published: boottime(),
            news: News::None,
        };
        thread.follow_peers();
        Ok(thread)
    }

    /// Runs until the driver closes.
    pub(super) fn run(mut self) {
        let inputs = Arc::clone(&self.context.inputs);
        meter::start(ThreadKind::General);
        loop {
            let wait = self.next_time().saturating_duration_since(boottime());
            // This thread may wait for long, and displays read only closed windows.
            meter::publish();
            meter::waits();
            let taken = inputs.take(wait.min(self.wait_max()));
            meter::wakes();
            // Engines do not serve IKE, as they could serve handshakes.
            let mut component = Component::Accept;
            let closing = meter::turn(Account::agent(), &mut component, || self.serve(taken));
            if let Some(confirm) = closing.output {
                return self.close(&inputs, confirm);
            }
        }
    }

    /// Handles inputs and what is due. Returns the sender that confirms the end of the thread.
    fn serve(&mut self, inputs: Vec<Input>) -> Option<SyncSender<()>> {
        for input in inputs {
            match input {
                Input::Order(Order::Close(confirm)) => return Some(confirm),
                Input::Order(order) => self.obey(order),
                Input::Packet(event) => self.take_report(event),
            }
        }
        if !self.policy.targets.is_empty() {
            self.follow_peers();
        }
        self.pass_time();
        self.report_to_agent();
        self.publish();
        None
    }

    /// Reports assigned addresses and paths to the agent, as far as its queue has room. This thread
    /// never waits for the agent, which may wait for this thread.
    fn report_to_agent(&mut self) {
        let notices = self.context.notices.clone();
        let is_taken = |pair: &Pair, fact: PeerFact| {
            let Pair { run, ike } = pair.clone();
            !matches!(notices.try_send(IkeNotice { run, ike, fact }), Err(TrySendError::Full(_)))
        };
        self.assigned
            .retain(|pair, addresses| !is_taken(pair, PeerFact::Addresses(addresses.clone())));
        self.paths.retain(|pair, bytes_max| {
            !is_taken(pair, PeerFact::Path { inner_bytes_max: *bytes_max })
        });
    }

    pub(super) fn obey(&mut self, order: Order) {
        self.news = self.news.max(News::Soon);
        match order {
            Order::Follow(policy) => self.follow(*policy),
            Order::AddRun(run) => self.add_run(*run),
            Order::RemoveRun(id) => self.remove_run(id),
            Order::FollowOwn(own) => self.follow_own(&own),
            Order::CompareSources => self.sources.note_routes(boottime()),
            Order::Confine(rights, done) => {
                // The handle waits for it.
                let _ = done.send(confine(rights));
            }
            Order::WriteKeys(ike, sink) => self.write_keys(&ike, &sink),
            // `run` handles it.
            Order::Close(_) => {}
        }
    }

    fn take_report(&mut self, event: PacketEvent) {
        match event {
            PacketEvent::Ike(datagram) => self.receive(&datagram),
            PacketEvent::Demand { tun, packet } => self.demand(tun, &packet),
            PacketEvent::Refused { tun, packet, count } => self.note_refused(tun, &packet, count),
            PacketEvent::RekeyDue(spi) => {
                self.note_manual_end(spi);
                self.rekey_child(spi);
            }
            PacketEvent::PeerMoved { spi, to } => self.note_peer_address(spi, to),
            PacketEvent::PathLearnt { spi, inner_bytes_max } => {
                if let Some(pair) = self.pair_of(spi) {
                    self.paths.insert(pair, inner_bytes_max);
                }
            }
        }
    }

    /// Ends all connections, and waits a limited time for the peers.
    fn close(mut self, inputs: &Inputs, confirm: SyncSender<()>) {
        let now = boottime();
        for at in 0..self.connections.len() {
            self.close_one(at, now);
        }
        let until = now + CLOSE_WAIT_MAX;
        while self.connections.iter().any(|one| one.open.is_some()) {
            let Some(wait) = until.checked_duration_since(boottime()) else { break };
            for input in inputs.take(wait.min(CLOSE_STEP)) {
                if let Input::Packet(PacketEvent::Ike(datagram)) = input {
                    self.receive(&datagram);
                }
            }
            self.pass_time();
        }
        drop(confirm);
    }

    /// Gives requests from the current addresses of peers precedence.
    pub(super) fn follow_peers(&mut self) {
        let ikes = self.policy.policy.ikes.keys();
        let addresses = ikes.flat_map(|ike| self.policy.addresses(ike));
        let peers: HashSet<IpAddr> = addresses.map(|address| address.ip()).collect();
        if peers != self.peers {
            self.peers.clone_from(&peers);
            self.context.inputs.replace_peers(peers);
        }
    }

    /// Begins a connection as the initiator, unless there is one or the last attempt was a moment
    /// ago.
    pub(super) fn connect(&mut self, pair: &Pair) {
        let now = boottime();
        let Some(at) = self.prepare(pair) else { return };
        let one = &mut self.connections[at];
        if one.open.is_some() {
            one.request_child(now);
            self.drain(at);
            return;
        }
        if !one.may_begin(now) {
            return;
        }
        match one.choose_address(&self.policy.addresses(&pair.ike), now) {
            Ok(true) => {}
            Ok(false) => return,
            Err(failure) => return self.fail(at, failure),
        }
        let path = IkePath { local: local(&self.context.locals, one.remote), remote: one.remote };
        let config = Arc::clone(&one.settings.config);
        one.begin(IkeConnection::initiate(config, path, Box::new(KernelRandom), now));
        self.drain(at);
    }

    /// The place of a pair among the connections; `None` if it cannot be configured.
    pub(super) fn prepare(&mut self, pair: &Pair) -> Option<usize> {
        if let Some(at) = self.place_of(pair) {
            return Some(at);
        }
        let candidate = self.candidate(pair)?;
        self.connections.push(PeerConnection::new(candidate));
        Some(self.connections.len() - 1)
    }

    fn place_of(&self, pair: &Pair) -> Option<usize> {
        let is_it =
            |one: &PeerConnection| one.pair == *pair && !one.is_closing && one.stranger.is_none();
        self.connections.iter().position(is_it)
    }

    /// The configuration for a pair; `None` if it cannot be configured.
    pub(super) fn candidate(&self, pair: &Pair) -> Option<Candidate> {
        if let Some(at) = self.place_of(pair) {
            return Some(self.connections[at].candidate());
        }
        let run = self.runs.get(&pair.run)?;
        let peer = self.policy.policy.ikes.get(&pair.ike)?;
        if let Some(other) = self.user_of_address(pair, peer) {
            let next = "each run needs its own address inside the tunnel (`inner`): set inner = \
                        \"gateway\" so that the gateway assigns addresses, or write a separate \
                        [ike.NAME] for the rules of each run";
            let event = Event::new("ike-address-in-use").field("run", &run.name);
            let event = event.field("ike", &pair.ike).field("used-by", &other);
            let limited = format!("ike-address-in-use {} {}", run.name, pair.ike);
            self.context.log.warn(event.field("next", next).limited(limited));
            return None;
        }
        let Some(authentication) = Authentication::of(&self.policy, &pair.ike, peer) else {
            let error = "the agent could not read a file of this [ike.NAME] (the pre-shared key, \
                         or a file of `identity` or `trust`); fix: make sure that the agent can \
                         read the file, and reload the policy";
            reports::not_configured(&self.context.log, &run.name, &pair.ike, error);
            return None;
        };
        let local = match local_identity(&self.policy, peer) {
            Ok(local) => local,
            Err(error) => {
                reports::not_configured(&self.context.log, &run.name, &pair.ike, &error);
                return None;
            }
        };
        let peers = &self.policy.policy.ikes;
        let verifier = authentication.verifier();
        let config = ike_config(peers, &pair.ike, peer, &run.routes, authentication);
        let config = Arc::new(IkeConfig { local, ..config });
        let settings = PeerSettings { peer: peer.clone(), config, verifier };
        Some(Candidate { pair: pair.clone(), run_name: run.name.clone(), tun: run.tun, settings })
    }

    /// The other run that has the address which the policy gives to runs towards this peer.
    fn user_of_address(&self, pair: &Pair, peer: &IkePeer) -> Option<String> {
        if peer.inner == InnerAddressSource::Gateway {
            return None;
        }
        let is_other = |one: &&PeerConnection| {
            one.pair.ike == pair.ike && one.pair.run != pair.run && one.open.is_some()
        };
        self.connections.iter().find(is_other).map(|one| one.run_name.clone())
    }

    /// The run and the peer of the tunnel with this inbound SPI.
    fn pair_of(&self, spi: EspSpi) -> Option<Pair> {
        let manual = self.manual.iter().find(|one| one.spi == spi).map(|one| &one.pair);
        let of_connection = || self.connections.iter().find(|one| one.has_child(spi));
        manual.or_else(|| of_connection().map(|one| &one.pair)).cloned()
    }

    fn rekey_child(&mut self, spi: EspSpi) {
        let Some(at) = self.connections.iter().position(|one| one.has_child(spi)) else { return };
        if let Some(open) = &mut self.connections[at].open {
            open.rekey_child(boottime(), spi);
        }
        self.drain(at);
    }

    /// A peer behind a NAT has sent a packet from another address.
    fn note_peer_address(&mut self, spi: EspSpi, from: SocketAddr) {
        let Some(at) = self.connections.iter().position(|one| one.has_child(spi)) else { return };
        if let Some(open) = &mut self.connections[at].open {
            open.note_peer_address(from);
        }
        self.drain(at);
    }

    /// Handles an IKE message.
    pub(super) fn receive(&mut self, datagram: &IkeDatagram) {
        let IkeDatagram { from, message, .. } = datagram;
        let owns = |one: &PeerConnection| {
            one.remote == *from && one.open.as_ref().is_some_and(|open| open.owns_datagram(message))
        };
        let place = match IkeRoute::of(message) {
            Some(IkeRoute::Sa(spi)) => match self.places.get(&spi) {
                Some(at) => Some(*at),
                // The IKE SA has ended while the message waited.
                None => return,
            },
            // It may be repeated. From another address, it may be one that was seen on its way.
            Some(IkeRoute::First) => self.connections.iter().position(owns),
            None => return,
        };
        match place {
            Some(at) => {
                let one = &mut self.connections[at];
                // Until a connection is established, anyone who has seen its SPI can forge
                // messages.
                let is_expected = one.is_established || one.remote.ip() == from.ip();
                if is_expected && let Some(open) = &mut one.open {
                    open.handle_datagram(boottime(), *from, message);
                }
                self.drain(at);
            }
            None => self.answer_first(*from, message),
        }
    }

    pub(super) fn close_one(&mut self, at: usize, now: Instant) {
        let one = &mut self.connections[at];
        one.is_closing = true;
        match &mut one.open {
            // A peer that has not proved its identity gets no message.
            Some(open) if one.stranger.is_some() => open.abandon(),
            Some(open) => open.close(now),
            None => {}
        }
        self.drain(at);
    }

    fn wait_max(&self) -> Duration {
        let has_open = self.connections.iter().any(|one| one.open.is_some());
        if has_open { SLEEP_CHECK_INTERVAL } else { WAIT_MAX }
    }

    /// When something has to be done next.
    fn next_time(&self) -> Instant {
        let times = self.connections.iter().flat_map(|one| {
            let timeout = one.open.as_ref().and_then(IkeConnection::poll_timeout);
            [timeout, one.begins_at(), one.trust_check_at()]
        });
        let has_reports = !self.assigned.is_empty() || !self.paths.is_empty();
        let report = has_reports.then(|| boottime() + REPORT_INTERVAL);
        let publish = (self.news != News::None).then(|| self.published + PUBLISH_INTERVAL);
        let others = [report, publish, self.unproved.next_at(), self.sources.next_at()];
        let times = times.flatten().chain(others.into_iter().flatten());
        times.min().unwrap_or_else(|| boottime() + WAIT_MAX)
    }

    pub(super) fn pass_time(&mut self) {
        let now = boottime();
        for at in 0..self.connections.len() {
            let one = &mut self.connections[at];
            if one.open.as_ref().and_then(IkeConnection::poll_timeout).is_some_and(|due| due <= now)
            {
                // Packets of the peer show that it is alive.
                let children = one.children();
                let received = children.map(|spi| self.context.worker.received_packets(spi));
                one.note_received(received.sum(), now);
            }
            if let Some(open) = &mut self.connections[at].open
                && open.poll_timeout().is_some_and(|due| due <= now)
            {
                open.handle_timeout(now);
                self.drain(at);
            }
        }
        self.check_trust(now);
        self.check_names(now);
        self.check_sources(now);
        self.report_suppressed(now);
        self.forget_ended();
        let due = |one: &&PeerConnection| one.begins_at().is_some_and(|at| at <= now);
        let due: Vec<Pair> =
            self.connections.iter().filter(due).map(|one| one.pair.clone()).collect();
        due.iter().for_each(|pair| self.connect(pair));
    }

    /// Removes connections that have ended and are not made again.
    fn forget_ended(&mut self) {
        let is_kept = |one: &PeerConnection| {
            one.open.is_some() || !(one.is_closing || one.stranger.is_some())
        };
        if self.connections.iter().all(is_kept) {
            return;
        }
        for one in self.connections.iter().filter(|one| one.open.is_none()) {
            let addresses = one.stranger.iter().map(|stranger| stranger.from.ip());
            addresses.for_each(|address| self.limiter.note_closed(address));
        }
        self.connections.retain(is_kept);
        self.news = self.news.max(News::Soon);
        let places = self.connections.iter().enumerate();
        self.places =
            places.flat_map(|(at, one)| one.spis.iter().map(move |spi| (*spi, at))).collect();
    }

    /// Checks the certificates of peers again: they may have expired, or the clock has changed.
    fn check_trust(&mut self, now: Instant) {
        for at in 0..self.connections.len() {
            let one = &mut self.connections[at];
            if one.trust_check_at().is_some_and(|due| due <= now)
                && let Some(failure) = one.check_trust(now)
            {
                self.end_with(at, failure);
                self.drain(at);
            }
        }
    }

    /// Ends a connection because of a failure that this side has found. The peer gets to know it.
    pub(super) fn end_with(&mut self, at: usize, failure: IkeFailure) {
        if self.connections[at].ending.is_some() {
            return;
        }
        self.report_failure(at, &failure);
        let one = &mut self.connections[at];
        one.ending = Some(failure.clone());
        if let Some(open) = &mut one.open {
            open.close(boottime());
        }
        self.news = News::Now;
        self.note_unassigned(at, failure);
    }

    /// The run that waits for an address of this peer waits no longer.
    fn note_unassigned(&mut self, at: usize, failure: IkeFailure) {
        let one = &self.connections[at];
        if one.settings.peer.inner == InnerAddressSource::Gateway && one.inner.is_empty() {
            self.assigned.insert(one.pair.clone(), Err(failure.message));
        }
    }

    /// Sends the messages of a connection, and handles its events.
    pub(super) fn drain(&mut self, at: usize) {
        self.follow_spis(at);
        if self.connections[at].stranger.is_none() {
            self.news = self.news.max(News::Soon);
        }
        loop {
            self.transmit(at);
            let Some(open) = &mut self.connections[at].open else { break };
            let Some(event) = open.poll_event() else { break };
            self.take_event(at, event);
        }
        self.follow_spis(at);
    }

    /// Makes messages with the SPIs of a connection reach it, before the peer knows the SPIs.
    fn follow_spis(&mut self, at: usize) {
        let one = &mut self.connections[at];
        let now: Vec<u64> = one.open.iter().flat_map(IkeConnection::own_spis).collect();
        if now == one.spis {
            return;
        }
        let before = std::mem::replace(&mut one.spis, now.clone());
        self.context.inputs.replace_spis(&before, &now);
        before.iter().for_each(|spi| {
            self.places.remove(spi);
        });
        self.places.extend(now.into_iter().map(|spi| (spi, at)));
    }

    fn transmit(&mut self, at: usize) {
        while let Some(open) = &mut self.connections[at].open
            && let Some(transmit) = open.poll_transmit()
        {
            let to = open.remote();
            match transmit {
                IkeTransmit::Message(message) => self.send(&message, to),
                // A lost keepalive is sent again.
                IkeTransmit::Keepalive => drop(self.context.worker.send_keepalive(to)),
            }
        }
    }

    /// A message that is lost is sent again.
    pub(super) fn send(&self, message: &[u8], to: SocketAddr) {
        let _ = self.context.worker.send_ike(message, to);
    }

    fn take_event(&mut self, at: usize, event: IkeEvent) {
        let one = &mut self.connections[at];
        one.follow_choice();
        let now = boottime();
        if one.stranger.is_none() || matches!(event, IkeEvent::Established { .. }) {
            self.news = News::Now;
        }
        match event {
            IkeEvent::Established { peer, proposal } => {
                let was_dropped = one.take_dropped_by_peer(now);
                one.note_established(peer.to_string(), proposal);
                reports::established(&self.context.log, one, &peer, proposal);
                if was_dropped {
                    reports::dropped_by_peer(&self.context.log, one);
                }
                self.give_ike_keys(at);
                self.replace_earlier(at);
            }
            // Only one connection of a pair is kept.
            IkeEvent::InitialContact => {}
            IkeEvent::AddressesAssigned(inner) => self.take_addresses(at, &inner),
            IkeEvent::Rekeyed => {
                one.note_rekeyed();
                reports::rekeyed(&self.context.log, one);
                self.give_ike_keys(at);
            }
            IkeEvent::ChildInstalled(child) => self.install(at, &child),
            IkeEvent::ChildActive(spi) => {
                if one.has_child(spi) {
                    one.note_sending(spi);
                    // If the worker has ended, no packet is sent.
                    let _ = self.context.worker.activate(spi);
                }
            }
            IkeEvent::ChildRemoved(spi) => {
                // The SPI of a tunnel that was not installed may be that of another one.
                if one.has_child(spi) {
                    one.note_removed(spi);
                    let _ = self.context.worker.remove(spi);
                }
            }
            IkeEvent::PeerMoved(to) => {
                one.remote = to;
                for spi in one.children() {
                    let _ = self.context.worker.move_peer(spi, to);
                }
            }
            IkeEvent::ExchangeFailed(failure) => match one.stranger {
                Some(_) => self.report_unproved(at, &failure),
                None => self.report_failure(at, &failure),
            },
            IkeEvent::Unanswered(request) => self.report_unanswered(at, request),
            IkeEvent::Failed(failure) => match one.ending.take() {
                // It was logged when the connection began to end.
                Some(failure) => one.note_failed(&failure, now),
                None => self.fail(at, failure),
            },
            IkeEvent::Closed => match one.ending.take() {
                Some(failure) => one.note_failed(&failure, now),
                None => {
                    if one.stranger.is_none() {
                        reports::closed(&self.context.log, one);
                    }
                    one.note_ended(now);
                }
            },
        }
    }

    /// An attempt or a connection has failed.
    fn fail(&mut self, at: usize, failure: IkeFailure) {
        let one = &mut self.connections[at];
        let is_reported = one.is_reported(&failure);
        one.note_failed(&failure, boottime());
        let is_stranger = one.stranger.is_some();
        if is_stranger {
            self.report_unproved(at, &failure);
        } else if !is_reported {
            self.report_failure(at, &failure);
        }
        self.news = News::Now;
        self.note_unassigned(at, failure);
    }

    pub(super) fn report_failure(&mut self, at: usize, failure: &IkeFailure) {
        if self.connections[at].is_new(failure.kind) {
            reports::failed_first(&self.context.log, &self.connections[at], failure);
        }
        reports::failed(&self.context.log, &self.connections[at], failure);
        self.connections[at].note_reported(failure);
    }

    /// Reports that the peer has not answered a request of an attempt yet. Later attempts are only
    /// in the audit log.
    fn report_unanswered(&mut self, at: usize, request: UnansweredRequest) {
        let one = &mut self.connections[at];
        let error = one.note_unanswered(request);
        let kind = match request {
            UnansweredRequest::Init => "unanswered",
            UnansweredRequest::Auth { .. } => "auth-unanswered",
        };
        if one.is_new(kind) {
            reports::unanswered_first(&self.context.log, one, request, &error);
        }
        reports::unanswered(&self.context.log, one, request, &error);
    }

    /// Reports the failure of a sender that has not proved who it is: anyone can cause many.
    pub(super) fn report_unproved(&mut self, at: usize, failure: &IkeFailure) {
        let pair = &self.connections[at].pair;
        if self.unproved.admits(pair, failure.kind, boottime()) {
            self.report_failure(at, failure);
        }
    }

    fn report_suppressed(&mut self, now: Instant) {
        for suppressed in self.unproved.take_due(now) {
            let run = self.runs.get(&suppressed.pair.run).map_or("", |run| run.name.as_str());
            reports::suppressed(&self.context.log, run, &suppressed);
        }
    }

    /// Writes the keys of the IKE SAs of a connection to the traces of its peer.
    fn give_ike_keys(&self, at: usize) {
        let one = &self.connections[at];
        if self.context.traces.are_of(&one.pair.ike) {
            self.context.traces.give(&one.pair.ike, &one.ike_key_lines());
        }
    }

    /// Writes the keys of the tunnels to a peer.
    fn write_keys(&self, ike: &str, sink: &KeySink) {
        for one in self.connections.iter().filter(|one| one.pair.ike == ike) {
            sink(&one.key_lines());
        }
    }

    /// Shows what has changed, at most once in [`PUBLISH_INTERVAL`] if no state has.
    fn publish(&mut self) {
        let is_due = match self.news {
            News::None => false,
            News::Soon => boottime().duration_since(self.published) >= PUBLISH_INTERVAL,
            News::Now => true,
        };
        if !is_due {
            return;
        }
        self.published = boottime();
        self.news = News::None;
        let known = self.connections.iter().filter(|one| one.is_shown());
        let refused = |pair: &Pair| {
            let of_run = self.runs.get(&pair.run).map(|run| &run.refused);
            of_run.and_then(|refused| refused.get(&pair.ike)).copied().unwrap_or(0)
        };
        let statuses = known.map(|one| one.status(refused(&one.pair))).collect();
        *self.context.statuses.lock().unwrap_or_else(PoisonError::into_inner) = statuses;
        let manual = self.manual_statuses();
        *self.context.manual.lock().unwrap_or_else(PoisonError::into_inner) = manual;
    }
}

impl Drop for IkeThread {
    fn drop(&mut self) {
        self.context.inputs.end();
    }
}

fn confine(rights: WorkerRights) -> io::Result<()> {
    let WorkerRights { capabilities, sockets } = rights;
    sandbox::keep_capabilities(capabilities)?;
    sandbox::filter_worker(sockets)
}
