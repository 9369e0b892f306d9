//! Holds the agent's data about one run (a program under `tacit run`). For example, the data
//! contains the user of the run, its counters, and the DNS names of addresses. The data also
//! contains the channel to the helper, the process that acts inside the namespaces of the run.

pub mod capture;
pub mod channel;
mod expected;
pub mod handover;
pub mod hold;
pub mod host;
pub mod kernel_terms;
pub mod launchers;
pub mod link;
pub mod listening;
pub mod named;
pub mod outside;
pub mod protocol;
pub mod registry;
mod relayed;
mod scope;
pub mod tunnels;
pub mod unix_sockets;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use tacit_core::dns::{
    HostNames, HostsEntry, KnownName, Learning, NameTable, NamedDestination, NotLearnt,
};
use tacit_core::refusal::RunLabel;
use tokio::sync::Notify;

use crate::placement::RunCpu;
use capture::Capture;
use channel::HelperChannel;
use expected::Expectations;
use host::HostNetwork;
use protocol::{ConnectsInForce, RelayReason, SocketSet};

pub use expected::{EXPECTED_MAX, Expected};
pub use outside::Outside;
pub use relayed::KnownReason;
pub use scope::Scope;

fn has_plan(sockets: SocketSet) -> bool {
    match sockets {
        SocketSet::Host | SocketSet::Joined => true,
        SocketSet::Connected | SocketSet::Held => false,
    }
}

/// The totals of a run's connections that have ended.
#[derive(Debug, Default)]
pub struct RunTotals {
    /// CPU time of the agent, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// The number of connections.
    pub connections: AtomicU64,
    /// Messages from the program, and to it.
    pub messages: [AtomicU64; 2],
    /// Bytes from the program, and to it.
    pub bytes: [AtomicU64; 2],
}

/// The CPU time and traffic of one connection or datagram flow.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time of the agent, in nanoseconds.
    pub cpu_ns: u64,
    /// Messages from the program.
    pub sent_messages: u32,
    /// Messages to the program.
    pub received_messages: u32,
    /// Bytes from the program.
    pub sent_bytes: u64,
    /// Bytes to the program.
    pub received_bytes: u64,
}

impl RunTotals {
    /// Adds one connection.
    pub fn add(&self, usage: Usage) {
        let add = |to: &AtomicU64, what: u64| to.fetch_add(what, Ordering::Relaxed);
        add(&self.cpu_ns, usage.cpu_ns);
        add(&self.connections, 1);
        let [sent, received] = &self.messages;
        add(sent, usage.sent_messages.into());
        add(received, usage.received_messages.into());
        let [sent, received] = &self.bytes;
        add(sent, usage.sent_bytes);
        add(received, usage.received_bytes);
    }
}

/// The facts that identify a run.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    /// The number of the run, from 1 since the agent started.
    pub id: u64,
    /// The name that the launcher gave it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// The user of its programs.
    pub user: String,
    /// When it was enrolled.
    pub since: SystemTime,
    /// Whether its user is not that of the agent. Names of its programs are then reported by that
    /// user's launcher and helper, unchecked.
    pub claimed: bool,
    /// Whether its helper also hides files that are created later.
    pub covers_files: bool,
    /// Whether its helper can list the UNIX sockets of its programs.
    pub lists_unix_sockets: bool,
}

/// A program and its children under `tacit run`, in a network namespace of their own.
#[derive(Debug)]
pub struct Run {
    /// The number of the run, from 1 since the agent started.
    pub id: u64,
    /// The name that the launcher gave it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// The user of its programs.
    pub user: String,
    /// When it was enrolled.
    pub since: SystemTime,
    /// Whether its user is not that of the agent. Names of its programs are then reported by that
    /// user's launcher and helper, unchecked.
    pub claimed: bool,
    /// Whether its helper also hides files that are created later.
    pub covers_files: bool,
    /// Whether its helper can list the UNIX sockets of its programs.
    pub lists_unix_sockets: bool,
    /// The channel to its helper.
    pub helper: HelperChannel,
    /// The totals of its connections that have ended.
    pub totals: RunTotals,
    /// The CPU that its programs and the worker of its connections share, with `one-cpu`.
    pub place: Option<RunCpu>,
    /// The addresses of the host, which the run has too.
    pub host: Arc<HostNetwork>,
    /// The set of sockets that its launcher created.
    pub sockets: SocketSet,
    /// Where its sockets to the outside are opened.
    pub outside: Outside,
    names: Mutex<NameTable>,
    /// The looked-up names, if its flows are captured by the nftables rules of a host.
    host_names: Option<Mutex<HostNames>>,
    listening: ArcSwap<Vec<SocketAddr>>,
    expected: Expectations,
    capture: OnceLock<Weak<Capture>>,
    /// Whether a successor serves it now.
    has_departed: AtomicBool,
    /// How often the agent has requested to hide files from its programs.
    hidings: AtomicU64,
    /// Why the connections that programs are opening are relayed.
    relayed: relayed::RelayReasons,
    /// Whether the agent would give its programs sockets, or the reason why not. Unset for a
    /// captured host or a joined namespace.
    judging: OnceLock<Result<(), RelayReason>>,
    /// What the filter of its program does about calls that connect, once the helper has sent it.
    connects: OnceLock<ConnectsInForce>,
    /// Notified after a reload.
    policy_changed: Notify,
}

impl Run {
    /// Its label in refusals and limits.
    #[must_use]
    pub fn label(&self) -> RunLabel {
        RunLabel { id: self.id, name: self.name.clone() }
    }

    /// A run that is enrolled now.
    #[must_use]
    pub fn new(
        identity: RunIdentity,
        helper: HelperChannel,
        place: Option<RunCpu>,
        host: Arc<HostNetwork>,
        sockets: SocketSet,
        outside: Outside,
    ) -> Self {
        let RunIdentity { id, name, pid, user, since, claimed, covers_files, lists_unix_sockets } =
            identity;
        Self {
            id,
            name,
            pid,
            user,
            since,
            claimed,
            covers_files,
            lists_unix_sockets,
            helper,
            totals: RunTotals::default(),
            place,
            host,
            sockets,
            outside,
            names: Mutex::default(),
            host_names: has_plan(sockets).then(Mutex::default),
            listening: ArcSwap::default(),
            expected: Expectations::default(),
            capture: OnceLock::new(),
            has_departed: AtomicBool::new(false),
            hidings: AtomicU64::new(0),
            relayed: relayed::RelayReasons::default(),
            judging: OnceLock::new(),
            connects: OnceLock::new(),
            policy_changed: Notify::new(),
        }
    }

    /// Whether this is the captured host, whose helper works in the host's own network.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.sockets == SocketSet::Host
    }

    /// Whether it is a network namespace that another program has made, and that tacit has joined.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.sockets == SocketSet::Joined
    }

    /// Whether its flows are captured by the nftables rules of a host: it is the captured host or a
    /// joined namespace.
    #[must_use]
    pub fn has_plan(&self) -> bool {
        has_plan(self.sockets)
    }

    /// Counts a request to hide files from its programs; returns the number of the request.
    pub fn begin_hiding(&self) -> u64 {
        self.hidings.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records why a connection that a program opens to this address is relayed.
    pub fn note_relayed(&self, remote: SocketAddr, reason: RelayReason) {
        self.relayed.note(remote, reason);
    }

    /// The helper's reason why a connection to this address is relayed, now or soon.
    #[must_use]
    pub fn why_relayed(&self, remote: SocketAddr) -> KnownReason {
        self.relayed.of_connection(remote)
    }

    /// Why its programs get no sockets of the agent, whatever their rules are.
    #[must_use]
    pub fn why_all_relayed(&self) -> Option<RelayReason> {
        match (self.judging.get()?, self.connects.get()) {
            (Err(reason), _) => Some(*reason),
            (Ok(()), Some(ConnectsInForce::NotWanted)) => Some(RelayReason::Start),
            (Ok(()), Some(ConnectsInForce::TooOld)) => Some(RelayReason::Kernel),
            (Ok(()), Some(ConnectsInForce::Nested)) => Some(RelayReason::Nested),
            (Ok(()), Some(ConnectsInForce::Handled) | None) => None,
        }
    }

    /// Whether programs of such a run could get sockets of the agent.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.judging.get().is_some()
    }

    /// Records that the agent answers questions about the connections of its programs, or why not.
    pub fn note_judging(&self, judging: Result<(), RelayReason>) {
        // It is recorded once.
        let _ = self.judging.set(judging);
    }

    /// Records what the filter of its program does about calls that connect.
    pub fn note_connects(&self, connects: ConnectsInForce) {
        // A program has one filter.
        let _ = self.connects.set(connects);
    }

    /// Records that the policy has changed.
    pub fn note_reload(&self) {
        self.policy_changed.notify_one();
    }

    /// Waits until the policy has changed.
    pub async fn reloaded(&self) {
        self.policy_changed.notified().await;
    }

    /// Records that a successor serves it: it does not learn what this agent learns from now on.
    pub fn depart(&self) {
        self.has_departed.store(true, Ordering::Release);
    }

    /// Whether a successor serves it.
    #[must_use]
    pub fn has_departed(&self) -> bool {
        self.has_departed.load(Ordering::Acquire)
    }

    /// Ends all requests of this agent: a successor decides which files are hidden.
    pub fn end_hiding(&self) {
        self.hidings.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this is the latest request to hide files, and the run has not ended.
    #[must_use]
    pub fn is_to_hide(&self, request: u64) -> bool {
        self.covers_files && self.hidings.load(Ordering::Relaxed) == request
    }

    /// The CPU that its programs share with a worker.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.place.as_ref().map(RunCpu::cpu)
    }

    /// The destination of an address inside the run. An address of the host only has names of the
    /// host's `/etc/hosts`, so that DNS answers cannot lead programs to the host.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> NamedDestination {
        let names = self.lock();
        let mut found = match self.host_names() {
            Some(of_host) => of_host.of(address, names.lasting(address)),
            None => names.of(address),
        };
        if self.host.has(found.address) {
            found.names = names.lasting(found.address);
        }
        found
    }

    /// The name of an alias.
    #[must_use]
    pub fn alias_name(&self, address: IpAddr) -> Option<String> {
        let found = self.lock().of(address);
        found.alias.and_then(|_| found.names.into_iter().next())
    }

    /// Stores an address from a DNS answer, and returns the address that the program must get.
    ///
    /// # Errors
    /// See [`NotLearnt`].
    pub fn learn(&self, learning: Learning<'_>) -> Result<IpAddr, NotLearnt> {
        if self.host.has(learning.address) {
            return Ok(learning.address.to_canonical());
        }
        self.lock().learn(learning, Instant::now())
    }

    /// The names that programs of the host or of a joined namespace have looked up; `None` for
    /// other runs.
    #[must_use]
    pub fn host_names(&self) -> Option<MutexGuard<'_, HostNames>> {
        let names = self.host_names.as_ref()?;
        Some(names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a name of the predecessor.
    pub fn restore(&self, known: KnownName) {
        self.lock().restore(known, Instant::now());
    }

    /// The number of stored names and addresses so far.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.lock().news()
    }

    /// Takes the names that were stored since the last call; `None` if there are too many, and
    /// [`Self::named`] has to be used.
    pub fn take_fresh(&self) -> Option<Vec<KnownName>> {
        let mut fresh = self.lock().take_fresh()?;
        fresh.retain(|known| !self.host.has(known.address));
        Some(fresh)
    }

    /// Sets the names of the host's `/etc/hosts`.
    pub fn set_lasting(&self, hosts: impl IntoIterator<Item = HostsEntry>) {
        self.lock().set_lasting(hosts);
    }

    /// All addresses with their current names; an address of the host only has names of the host's
    /// `/etc/hosts`.
    #[must_use]
    pub fn named(&self) -> Vec<KnownName> {
        let names = self.lock();
        let mut named = names.pairs(Instant::now());
        named.retain(|one| {
            !self.host.has(one.address) || names.lasting(one.address).contains(&one.name)
        });
        named
    }

    /// All looked-up names with their current addresses, and how long these stay valid.
    #[must_use]
    pub fn learnt(&self) -> Vec<KnownName> {
        match self.host_names() {
            Some(of_host) => of_host.all(Instant::now()),
            None => self.lock().all(Instant::now()),
        }
    }

    /// The addresses on which programs of the run listen, as last reported.
    #[must_use]
    pub fn listening(&self) -> Arc<Vec<SocketAddr>> {
        self.listening.load_full()
    }

    /// Sets the addresses on which programs listen.
    pub fn set_listening(&self, addresses: Vec<SocketAddr>) {
        self.listening.store(Arc::new(addresses));
    }

    /// Sets the capture of the run; called once.
    pub fn set_capture(&self, capture: &Arc<Capture>) {
        // This is called only once, so it cannot be set already.
        let _ = self.capture.set(Arc::downgrade(capture));
    }

    fn lock(&self) -> MutexGuard<'_, NameTable> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
