//! Starts the IKE thread as soon as a run (a program under `tacit run`) needs an IPsec tunnel. Then
//! sends the installed policy and the TUN devices of runs to this thread.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, ManualSa, Policy};
use tacit_tls::KeyLogLine;
use tokio::sync::mpsc;

use super::runs::Runs;
use super::sandbox::RESTART;
use super::{Agent, AgentError};
use crate::control::display::tunnels::{self, IkeDisplay, SaDisplay};
use crate::ike::{
    IkeDriver, IkeNotice, IkePolicy, KeyRequests, KeyTraces, PeerFact, PortWait, RefusalSink,
    RefusedByPeer, RunNames, TunnelRun, raw_kind, raw_kinds,
};
use crate::ledger::on_own_thread;
use crate::live::Credentials;
use crate::log::Event;
use crate::net::target::LiveTarget;
use crate::packet::{PacketStatistics, RawUnderlay};
use crate::run::Run;
use crate::run::capture::Capture;
use crate::run::host::RouteChanges;
use crate::run::launchers::{EVENTS_MAX, EnrolmentDecision, LauncherReply};
use crate::run::tunnels::OpenedTun;
use crate::session::account;
use crate::session::trace::{Trace, TraceSelection, Traces};

/// The largest number of reports about runs that are being set up.
const EARLY_NOTICES_MAX: usize = 256;

/// How long CMD waits for the addresses that peers assign, before the launcher says so.
const QUIET_WAIT: Duration = Duration::from_secs(2);
/// How long it waits after that.
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(8);

/// How long after its start an agent may wait for the port of its predecessor.
const PREDECESSOR_TIME: Duration = Duration::from_secs(5);

/// The driver of IKE.
#[derive(Debug)]
pub(super) struct Tunnels {
    /// `None`: no run has needed a tunnel yet, or the driver cannot be started.
    driver: Option<IkeDriver>,
    /// `None`: no run has needed a tunnel yet.
    route_changes: Option<RouteChanges>,
    notices: mpsc::Sender<IkeNotice>,
    /// The sockets of manual SAs without UDP.
    raw: Arc<RawUnderlay>,
}

/// Rejects manual SAs without UDP for which the agent has no raw socket.
pub(super) fn check_raw(raw: &RawUnderlay, policy: &Policy) -> Result<(), Diagnostic> {
    let lacks_socket = |sa: &&ManualSa| raw_kind(sa).is_some_and(|kind| !raw.has(kind));
    let Some(sa) = policy.sas.values().find(lacks_socket) else { return Ok(()) };
    let message = "this agent has no raw socket for packets that are not sent in UDP. An agent \
                   opens raw sockets only when it starts, for the [sa.NAME] tables that its policy \
                   contains at that time";
    let id = MessageId("needs-restart");
    Err(Diagnostic::error(id, sa.position, message).with_fix(RESTART))
}

impl Tunnels {
    /// No tunnels yet. Opens the raw sockets that the policy needs: once, because the sandbox takes
    /// the right away. Also returns the queue for reports of the driver.
    pub(super) fn open(policy: &Policy) -> Result<(Self, mpsc::Receiver<IkeNotice>), AgentError> {
        let first = policy.sas.iter().find(|(_, sa)| sa.protection.raw_local().is_some());
        let name = first.map(|(name, _)| name.clone()).unwrap_or_default();
        let raw = RawUnderlay::open(raw_kinds(policy));
        let raw = raw.map_err(|error| AgentError::Raw(name, error))?;
        let (notices, received) = mpsc::channel(EVENTS_MAX);
        let raw = Arc::new(raw);
        Ok((Self { driver: None, route_changes: None, notices, raw }, received))
    }

    /// The sockets of manual SAs without UDP.
    pub(super) fn raw(&self) -> Arc<RawUnderlay> {
        Arc::clone(&self.raw)
    }

    /// Uses another policy.
    pub(super) fn follow(&self, policy: IkePolicy) {
        if let Some(driver) = &self.driver {
            driver.follow(policy);
        }
    }

    /// Ends the tunnels of a run.
    pub(super) fn remove_run(&self, id: u64) {
        if let Some(driver) = &self.driver {
            driver.remove_run(id);
        }
    }

    /// The host has other addresses now.
    pub(super) fn follow_own(&self, own: Vec<IpAddr>) {
        if let Some(driver) = &self.driver {
            driver.follow_own(own);
        }
    }

    /// Waits until a route of the host changes. Without a driver, the wait never ends.
    pub(super) async fn routes_changed(&self) {
        match self.route_changes.as_ref().filter(|_| self.driver.is_some()) {
            Some(changes) => changes.next().await,
            None => std::future::pending().await,
        }
    }

    /// Has the driver compare the source addresses, because routes or interfaces have changed.
    pub(super) fn compare_sources(&self) {
        if let Some(driver) = &self.driver {
            driver.compare_sources();
        }
    }

    /// `tacit show ike`.
    pub(super) fn show_ike(&self, credentials: &Credentials) -> IkeDisplay {
        let statuses = self.driver.as_ref().map(IkeDriver::statuses).unwrap_or_default();
        tunnels::ike(&statuses, &credentials.identities)
    }

    /// `tacit show sa`.
    pub(super) fn show_sa(&self) -> SaDisplay {
        let statuses = self.driver.as_ref().map(IkeDriver::statuses).unwrap_or_default();
        let manual = self.driver.as_ref().map(IkeDriver::manual_statuses).unwrap_or_default();
        tunnels::sa(&statuses, &manual, &self.statistics())
    }

    /// The packets that were refused because there was no tunnel.
    pub(super) fn refused(&self) -> RefusedByPeer {
        self.driver.as_ref().map(IkeDriver::refused).unwrap_or_default()
    }

    /// The counters of packets.
    pub(super) fn statistics(&self) -> PacketStatistics {
        self.driver.as_ref().map(IkeDriver::statistics).unwrap_or_default()
    }

    /// Ends all tunnels, and waits a moment for the peers.
    pub(super) fn close(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.close();
        }
    }

    /// Leaves the packets of programs to a successor, which has the TUN devices. Ends all tunnels,
    /// and does not wait.
    pub(super) fn abandon(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.stop_reading();
            // If no thread can be started, the tunnels end when the process does.
            let _ = on_own_thread("ike-close", move || driver.close());
        }
    }
}

/// The traces of the agent, as the driver sees them.
struct TunnelTraces(Arc<Traces>);

impl KeyTraces for TunnelTraces {
    fn are_of(&self, ike: &str) -> bool {
        self.0.are_of_tunnels(ike)
    }

    fn give(&self, ike: &str, lines: &[KeyLogLine]) {
        self.0.give_tunnel_keys(ike, lines);
    }
}

/// The names that programs of a run have looked up, as the driver sees them.
#[derive(Debug)]
struct LookedUp(Arc<Run>);

impl RunNames for LookedUp {
    fn count(&self) -> u64 {
        self.0.news()
    }

    fn of(&self, address: IpAddr) -> Vec<String> {
        let named = self.0.named().into_iter();
        // Programs that use an alias address do not send to the address itself.
        let of_address = named.filter(|one| one.address == address && one.alias.is_none());
        of_address.map(|one| one.name).collect()
    }
}

/// Has the keys of the tunnels that exist written to a trace that has started.
fn give_keys(requests: &KeyRequests, trace: &Arc<Trace>) {
    if let TraceSelection::Ike(ike) = &trace.options.of {
        let to = Arc::clone(trace);
        requests.request(ike, Box::new(move |lines| to.offer_keys(lines)));
    }
}

impl Agent {
    /// Makes tunnels for a run. Without a driver, its packets are dropped.
    pub(super) fn take_tun(&mut self, opened: OpenedTun) {
        if self.draining.is_some() || !opened.is_needed() {
            return;
        }
        let OpenedTun { run, tun, lease, .. } = opened;
        if self.tunnels.driver.is_none() {
            let notices = self.tunnels.notices.clone();
            let log = self.shared.log.clone();
            let traces = Arc::clone(self.shared.table.traces());
            let tunnel_traces = Arc::new(TunnelTraces(Arc::clone(&traces)));
            let sink = self.refusal_sink();
            let policy = self.ike_policy();
            let raw = self.tunnels.raw();
            // Packets of the run wait in its TUN device. Later, the predecessor has ended.
            let is_new = self.since.elapsed().is_ok_and(|age| age < PREDECESSOR_TIME);
            let port = match self.options.take_over && is_new {
                true => PortWait::Predecessor,
                false => PortWait::None,
            };
            match IkeDriver::start(policy, raw, notices, log, sink, tunnel_traces, port) {
                Ok(driver) => {
                    let requests = driver.key_requests();
                    traces.listen_for_tunnels(move |trace| give_keys(&requests, trace));
                    if let Some(sandbox) = &self.sandbox {
                        sandbox.confine_packets(&driver, &self.shared.log);
                    }
                    self.tunnels.driver = Some(driver);
                    self.tunnels.route_changes = Some(RouteChanges::watch());
                }
                Err(error) => {
                    let event = Event::new("tunnels-unavailable").field("error", &error);
                    let next = "the agent drops all packets that match rules with `ipsec`: correct \
                                the cause, and run `tacit reload`";
                    self.shared.log.error(event.field("next", next));
                    return;
                }
            }
        }
        if let Some(driver) = &self.tunnels.driver {
            let own = self.runs.host().addresses().all().collect();
            let id = run.id;
            let name = run.name.clone();
            let names = Box::new(LookedUp(run));
            driver.add_run(TunnelRun { id, name, tun, lease, own, names });
        }
    }

    /// Removes the tunnels of a run that has ended or was refused, and the reports about them.
    pub(super) fn forget_tunnels(&mut self, run: u64) {
        self.tunnels.remove_run(run);
        self.runs.forget_notices(run);
    }

    /// Called when an interface of the host has changed. If the addresses of the host have changed,
    /// updates runs and tunnels.
    pub(super) fn follow_host(&self) {
        if self.runs.follow_host() {
            self.tunnels.follow_own(self.runs.host().addresses().all().collect());
        } else {
            // If an interface has lost its carrier, the kernel may use another route.
            self.tunnels.compare_sources();
        }
    }

    /// Logs and records packets that were refused because there was no tunnel.
    fn refusal_sink(&self) -> RefusalSink {
        let log = self.shared.log.clone();
        let refusals = Arc::clone(&self.shared.refusals);
        Box::new(move |refusal, count| {
            account::refused_without_tunnel(&log, &refusals, refusal, count);
        })
    }

    /// The installed policy with its keys.
    pub(super) fn ike_policy(&self) -> IkePolicy {
        let Credentials { identities, trusts, shared_keys, manual_keys } = &self.credentials.loaded;
        let live = self.shared.live.load();
        let policy = Arc::clone(&live.policy);
        let filters = live.filters.clone();
        let named = policy.ikes.iter().filter_map(|(ike, peer)| {
            Some((ike.clone(), Arc::new(LiveTarget::new(&peer.unresolved()?))))
        });
        IkePolicy {
            targets: named.collect(),
            policy,
            filters,
            shared_keys: shared_keys.clone(),
            manual_keys: manual_keys.clone(),
            identities: identities.clone(),
            trusts: trusts.clone(),
        }
    }
}

impl Runs {
    /// Removes the reports about a run that has ended or was refused.
    pub(super) fn forget_notices(&mut self, run: u64) {
        self.assigned.retain(|notice| notice.run != run);
    }

    /// Handles a report of the driver of IKE.
    pub(super) fn take_notice(&mut self, notice: IkeNotice) {
        let Some(enrolled) = self.registry.get(notice.run) else {
            // The peer was faster than the set-up of the run. The oldest reports may be about runs
            // that have ended.
            if self.assigned.len() >= EARLY_NOTICES_MAX {
                self.assigned.remove(0);
            }
            return self.assigned.push(notice);
        };
        let IkeNotice { ike, fact, .. } = notice;
        let tunnels = &enrolled.capture.tunnels;
        let has_changed = match fact {
            PeerFact::Addresses(Ok(addresses)) => {
                tunnels.assign(ike, addresses);
                true
            }
            PeerFact::Addresses(Err(reason)) => tunnels.note_failure(ike, reason),
            PeerFact::Path { inner_bytes_max } => tunnels.note_path(ike, inner_bytes_max),
        };
        if !has_changed {
            return;
        }
        let capture = Arc::clone(&enrolled.capture);
        let log = self.shared.log.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = capture.follow().await {
                let event = Event::new("capture-failed").field("run", &capture.run.name);
                log.error(event.field("error", &error));
            }
        });
    }

    /// Answers the launcher of a run. Before CMD starts, the peers that assign addresses get a
    /// limited time for it: until then, connections through their tunnels fail.
    pub(super) fn answer_launcher(&self, decision: EnrolmentDecision, back: LauncherReply) {
        let enrolled = decision.as_ref().ok().and_then(|one| self.registry.get(one.id));
        let Some(capture) = enrolled.map(|enrolled| Arc::clone(&enrolled.capture)) else {
            back.decide(decision);
            return;
        };
        let of_others = self.warnings_about_others(&capture);
        tokio::task::spawn_local(async move {
            if !capture.tunnels.wait_for_addresses(QUIET_WAIT).await {
                back.note_waiting("waiting for the address that a gateway assigns".to_owned());
                capture.tunnels.wait_for_addresses(ADDRESS_WAIT_MAX).await;
            }
            let of_peers = capture.tunnels.warnings_about_addresses();
            let decision = decision.map(|mut admission| {
                admission.terms.warnings.extend(of_others.into_iter().chain(of_peers));
                admission
            });
            back.decide(decision);
        });
    }

    /// Warns about peers with which only one run has a tunnel, because the policy has the address.
    fn warnings_about_others(&self, capture: &Capture) -> Vec<String> {
        let used = capture.tunnels.fixed_peers();
        let policy = Arc::clone(&self.shared.live.load().policy);
        let user = |peer: &String| {
            let mut others = self.registry.all().filter(|other| other.run.id != capture.run.id);
            let other = others.find(|other| other.capture.tunnels.fixed_peers().contains(peer))?;
            let (table, or_gateway) = match policy.sas.contains_key(peer) {
                true => ("sa", ""),
                false => ("ike", "; or write inner = \"gateway\""),
            };
            Some(format!(
                "only one run at a time can use the tunnel to [{table}.{peer}], because `inner` is \
                 a single address. Another run, `{other_run}`, uses the tunnel now, so tacit drops \
                 the packets that run `{run}` sends to the peer\n    \
                 fix: for each run, write a separate [{table}.NAME] and separate rules with \
                 `run`{or_gateway}",
                run = capture.run.name,
                other_run = other.run.name
            ))
        };
        used.iter().filter_map(user).collect()
    }

    /// Handles the reports that arrived before this run was set up.
    pub(super) fn take_early_notices(&mut self, id: u64) {
        let is_of_run = |notice: &IkeNotice| notice.run == id;
        let all = std::mem::take(&mut self.assigned);
        let (now, later): (Vec<_>, Vec<_>) = all.into_iter().partition(is_of_run);
        self.assigned = later;
        now.into_iter().for_each(|notice| self.take_notice(notice));
    }
}
