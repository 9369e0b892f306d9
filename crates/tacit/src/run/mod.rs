//! A run as the data path knows it: whose connections these are, what names their addresses have,
//! and whom to ask for what can only be done inside.

pub mod capture;
mod expected;
pub mod handover;
pub mod hold;
pub mod host;
pub mod launchers;
pub mod line;
pub mod listening;
pub mod protocol;
pub mod registry;
mod scope;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use tacit_core::dns::{
    HostsEntry as Named, KnownName, Learning, NameTable, NamedDestination, NotLearnt,
};
use tacit_core::refusal::RunLabel;

use crate::placement::Share;
use capture::Capture;
use expected::Expectations;
use host::Host;
use line::Line;
use protocol::SocketSet;

pub use expected::{EXPECTED_MAX, Expected};
pub use scope::Scope;

/// What connections of a run that have ended cost and relayed.
#[derive(Debug, Default)]
pub struct Spent {
    /// CPU time of the agent for them.
    pub cpu_ns: AtomicU64,
    /// How many.
    pub connections: AtomicU64,
    /// Messages of the side that was accepted, and to it.
    pub messages: [AtomicU64; 2],
    /// Bytes of the side that was accepted, and to it.
    pub bytes: [AtomicU64; 2],
}

/// What one connection or flow of datagrams cost and relayed.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time of the agent for it.
    pub cpu_ns: u64,
    /// Messages of the side that was accepted.
    pub sent_messages: u32,
    /// Messages to the side that was accepted.
    pub received_messages: u32,
    /// Bytes of the side that was accepted.
    pub sent_bytes: u64,
    /// Bytes to the side that was accepted.
    pub received_bytes: u64,
}

impl Spent {
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

/// Which run it is.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// What the launcher called it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Whose it is.
    pub user: String,
    /// When it was enrolled.
    pub since: SystemTime,
    /// Whether it runs as another user than the agent: what it says of its programs is then its
    /// own claim.
    pub claimed: bool,
    /// Whether its helper keeps files hidden that come later.
    pub covers_files: bool,
}

/// A program and its children under `tacit run`, in a network namespace of their own.
#[derive(Debug)]
pub struct Run {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// What the launcher called it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Whose it is.
    pub user: String,
    /// When it was enrolled.
    pub since: SystemTime,
    /// Whether it runs as another user than the agent: what it says of its programs is then its
    /// own claim.
    pub claimed: bool,
    /// Whether its helper keeps files hidden that come later.
    pub covers_files: bool,
    /// To the helper inside.
    pub line: Line,
    /// What its connections cost that have ended.
    pub spent: Spent,
    /// The CPU that its programs and the worker of its connections share, if they do.
    pub place: Option<Share>,
    /// The host's addresses, which its programs share.
    pub host: Arc<Host>,
    /// Which sockets its launcher has made.
    pub sockets: SocketSet,
    names: Mutex<NameTable>,
    listening: ArcSwap<Vec<SocketAddr>>,
    expected: Expectations,
    capture: OnceLock<Weak<Capture>>,
    /// How often something was to be hidden from its programs.
    hidings: AtomicU64,
}

impl Run {
    /// As refusals and limits name it.
    #[must_use]
    pub fn label(&self) -> RunLabel {
        RunLabel { id: self.id, name: self.name.clone() }
    }

    /// A run that is being enrolled.
    #[must_use]
    pub fn new(
        identity: RunIdentity,
        line: Line,
        place: Option<Share>,
        host: Arc<Host>,
        sockets: SocketSet,
    ) -> Self {
        let RunIdentity { id, name, pid, user, since, claimed, covers_files } = identity;
        Self {
            id,
            name,
            pid,
            user,
            since,
            claimed,
            covers_files,
            line,
            spent: Spent::default(),
            place,
            host,
            sockets,
            names: Mutex::default(),
            listening: ArcSwap::default(),
            expected: Expectations::default(),
            capture: OnceLock::new(),
            hidings: AtomicU64::new(0),
        }
    }

    /// Files are to be hidden from its programs; returns which time this is.
    pub fn begin_hiding(&self) -> u64 {
        self.hidings.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A successor of this agent has files hidden from its programs.
    pub fn end_hiding(&self) {
        self.hidings.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether files are to be hidden, and nothing was to be hidden after that time.
    #[must_use]
    pub fn is_to_hide(&self, turn: u64) -> bool {
        self.covers_files && self.hidings.load(Ordering::Relaxed) == turn
    }

    /// The CPU that it shares with a worker.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.place.as_ref().map(Share::cpu)
    }

    /// What an address stands for that the run's programs use. An address of the host has the names
    /// of the host's own file alone, so that no resolver leads a program there.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> NamedDestination {
        let names = self.lock();
        let mut found = names.of(address);
        if self.host.has(found.address) {
            found.names = names.lasting(found.address);
        }
        found
    }

    /// The name that an alias stands for.
    #[must_use]
    pub fn alias_name(&self, address: IpAddr) -> Option<String> {
        let found = self.lock().of(address);
        found.alias.and_then(|_| found.names.into_iter().next())
    }

    /// Remembers what DNS said, and returns the address that the program must get.
    ///
    /// # Errors
    /// See [`NotLearnt`].
    pub fn learn(&self, learning: Learning<'_>) -> Result<IpAddr, NotLearnt> {
        if self.host.has(learning.address) {
            return Ok(learning.address.to_canonical());
        }
        self.lock().learn(learning, Instant::now())
    }

    /// Takes over what the agent before this one knew.
    pub fn restore(&self, known: KnownName) {
        self.lock().restore(known, Instant::now());
    }

    /// How often something was learnt that was not known.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.lock().news()
    }

    /// Takes the names that were not known when it was called last; `None`: they are too many, and
    /// stand among [`Self::named`].
    pub fn take_fresh(&self) -> Option<Vec<KnownName>> {
        let mut fresh = self.lock().take_fresh()?;
        fresh.retain(|known| !self.host.has(known.address));
        Some(fresh)
    }

    /// Takes what the host's own file says of names.
    pub fn set_lasting(&self, hosts: impl IntoIterator<Item = Named>) {
        self.lock().set_lasting(hosts);
    }

    /// Every address with each name it has now; an address of the host with those of the host's own
    /// file alone.
    #[must_use]
    pub fn named(&self) -> Vec<KnownName> {
        let names = self.lock();
        let mut named = names.pairs(Instant::now());
        named.retain(|one| {
            !self.host.has(one.address) || names.lasting(one.address).contains(&one.name)
        });
        named
    }

    /// Every name that was asked for with each address it has now, and for how long more.
    #[must_use]
    pub fn learnt(&self) -> Vec<KnownName> {
        self.lock().all(Instant::now())
    }

    /// Where the run's programs listen, as far as is known.
    #[must_use]
    pub fn listening(&self) -> Arc<Vec<SocketAddr>> {
        self.listening.load_full()
    }

    /// Takes down where they listen now.
    pub fn set_listening(&self, addresses: Vec<SocketAddr>) {
        self.listening.store(Arc::new(addresses));
    }

    /// Says what captures its connections, once.
    pub fn set_capture(&self, capture: &Arc<Capture>) {
        // It is made with the run.
        let _ = self.capture.set(Arc::downgrade(capture));
    }

    fn lock(&self) -> MutexGuard<'_, NameTable> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
