//! Defines the accounts of the ledger (the agent's record of its CPU time). An account contains the
//! CPU time and the traffic of one rule. All threads add to the accounts. `tacit show` and the
//! metrics read the accounts.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tacit_core::meter::{Cells, Component, CpuPlace};
use tacit_sys::cpu;

/// The counters of an account in addition to CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Count {
    /// Connections and datagram flows that were opened.
    Connections,
    /// Handshakes that succeeded.
    Handshakes,
    /// Handshakes that resumed a session.
    Resumed,
    /// Messages from the client: bytes without a byte in the other direction in between.
    MessagesSent,
    /// Messages to the client.
    MessagesReceived,
    /// Payload bytes from the client.
    BytesSent,
    /// Payload bytes to the client.
    BytesReceived,
}

impl Count {
    /// The number of variants.
    pub const COUNT: usize = 7;
}

/// Counts, by [`Count`].
pub type Counts = [u64; Count::COUNT];

/// CPU time in nanoseconds, by component and kind of CPU.
pub type CpuTimes = [[u64; CpuPlace::ALL.len()]; Component::ALL.len()];

/// The kind of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// A thread on general CPUs: a data worker, the control thread, or a thread for long work.
    General,
    /// An engine.
    Engine,
}

/// The owner of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The agent itself, for work that no rule caused.
    Agent,
    /// The packets of IPsec tunnels whose rule is not known, and what the thread does beside them.
    Packets,
    /// The packets of IPsec tunnels of the rule with this name.
    PacketsOf(String),
    /// The rule with this name.
    Rule(String),
}

impl Owner {
    /// The name of the rule; `None` for the others, which sort before all names.
    fn rule(&self) -> Option<&str> {
        match self {
            Self::Agent | Self::Packets => None,
            Self::Rule(name) | Self::PacketsOf(name) => Some(name),
        }
    }
}

/// The content of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// CPU times.
    pub usage: CpuTimes,
    /// Counts.
    pub counts: Counts,
}

impl Totals {
    /// Adds the content of another account.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in
            self.usage.as_flattened_mut().iter_mut().zip(other.usage.as_flattened())
        {
            *mine += theirs;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }
}

/// All accounts, and the totals of removed ones.
#[derive(Debug)]
pub struct Accounts {
    /// The accounts in use: first those of the agent and of packets, then those of rules by name.
    pub held: Vec<Arc<Account>>,
    /// The totals of the accounts that are no longer in use.
    pub removed: Totals,
}

/// CPU time that other processes used for this agent, in nanoseconds.
static ELSEWHERE_NS: AtomicU64 = AtomicU64::new(0);

/// CPU time of this agent, including its signer, in nanoseconds.
#[must_use]
pub(super) fn agent_ns() -> u64 {
    cpu::own_process_ns() + ELSEWHERE_NS.load(Ordering::Relaxed)
}

/// The account of one rule. A thread adds its CPU time when its window is closed.
pub struct Account {
    owner: Owner,
    /// The index at which each thread stores the amounts that it has not added yet.
    slot: usize,
    /// Whether engines may do the whole relay of the rule.
    relay_is_eligible: AtomicBool,
    usage: [[AtomicU64; CpuPlace::ALL.len()]; Component::ALL.len()],
    counts: [AtomicU64; Count::COUNT],
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("owner", &self.owner).field("slot", &self.slot).finish()
    }
}

/// All accounts in use, by slot, and the totals of removed ones.
#[derive(Default)]
struct Registry {
    accounts: Vec<Weak<Account>>,
    free: Vec<usize>,
    removed: Totals,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    accounts: Vec::new(),
    free: Vec::new(),
    removed: Totals {
        usage: [[0; CpuPlace::ALL.len()]; Component::ALL.len()],
        counts: [0; Count::COUNT],
    },
});

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    /// Opens an account for a rule. Its slot is reused when the last reference is dropped.
    #[must_use]
    pub fn open(rule: &str) -> Arc<Self> {
        Self::of(Owner::Rule(rule.to_owned()))
    }

    /// The account of the agent itself.
    #[must_use]
    pub fn agent() -> &'static Arc<Self> {
        static AGENT: OnceLock<Arc<Account>> = OnceLock::new();
        AGENT.get_or_init(|| Self::of(Owner::Agent))
    }

    /// The account of the packets of IPsec tunnels whose rule is not known. It exists if there is a
    /// thread for packets. An engine can do all of this work.
    #[must_use]
    pub fn packets() -> &'static Arc<Self> {
        static PACKETS: OnceLock<Arc<Account>> = OnceLock::new();
        PACKETS.get_or_init(|| {
            let account = Self::of(Owner::Packets);
            account.set_relay_eligible(true);
            account
        })
    }

    /// The account of the packets of IPsec tunnels of a rule: the one in use, or a new one.
    #[must_use]
    pub fn packets_of(rule: &str) -> Arc<Self> {
        let owner = Owner::PacketsOf(rule.to_owned());
        let held = Self::all().held;
        held.into_iter().find(|account| account.owner == owner).unwrap_or_else(|| {
            let account = Self::of(owner);
            account.set_relay_eligible(true);
            account
        })
    }

    fn of(owner: Owner) -> Arc<Self> {
        let mut registry = registry();
        let slot = registry.free.pop().unwrap_or(registry.accounts.len());
        let account = Arc::new(Self {
            owner,
            slot,
            relay_is_eligible: AtomicBool::new(false),
            usage: Default::default(),
            counts: Default::default(),
        });
        if slot == registry.accounts.len() {
            registry.accounts.push(Weak::new());
        }
        registry.accounts[slot] = Arc::downgrade(&account);
        account
    }

    /// All accounts. A rule that was removed and added again has two accounts while connections of
    /// the first are open.
    #[must_use]
    pub fn all() -> Accounts {
        // Creates the agent's account if it does not exist, so that it is always listed.
        let _agent = Self::agent();
        let registry = registry();
        let mut held = registry.accounts.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let removed = registry.removed;
        // A thread that drops the last reference to an account locks the registry.
        drop(registry);
        held.sort_by(|a, b| a.owner.rule().cmp(&b.owner.rule()));
        Accounts { held, removed }
    }

    /// The owner of the account.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Sets whether engines may do the whole relay of the rule.
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "this method sets one flag, and needs only its new value"
    )]
    pub fn set_relay_eligible(&self, eligible: bool) {
        self.relay_is_eligible.store(eligible, Ordering::Relaxed);
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// The current content.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        Totals {
            usage: std::array::from_fn(|component| {
                std::array::from_fn(|place| load(&self.usage[component][place]))
            }),
            counts: std::array::from_fn(|at| load(&self.counts[at])),
        }
    }

    /// Adds the CPU time and counts of a thread's window.
    pub(super) fn add(&self, usage: &Cells, counts: &Counts, thread: ThreadKind) {
        for component in Component::ALL {
            let ns = usage[component as usize];
            if ns > 0 {
                let place = self.place(component, thread);
                self.usage[component as usize][place as usize].fetch_add(ns, Ordering::Relaxed);
            }
        }
        for (mine, count) in self.counts.iter().zip(counts) {
            if *count > 0 {
                mine.fetch_add(*count, Ordering::Relaxed);
            }
        }
    }

    /// Adds CPU time of another process.
    pub(super) fn add_elsewhere(&self, component: Component, thread: ThreadKind, ns: u64) {
        let place = self.place(component, thread);
        self.usage[component as usize][place as usize].fetch_add(ns, Ordering::Relaxed);
        ELSEWHERE_NS.fetch_add(ns, Ordering::Relaxed);
    }

    /// The kind of CPU that work of this component is charged to. Engines may do handshakes, and
    /// relays if the rule says so.
    fn place(&self, component: Component, thread: ThreadKind) -> CpuPlace {
        let whole = || self.relay_is_eligible.load(Ordering::Relaxed);
        match thread {
            ThreadKind::Engine => CpuPlace::Engine,
            ThreadKind::General if component == Component::Handshake || whole() => {
                CpuPlace::Eligible
            }
            ThreadKind::General => CpuPlace::General,
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let totals = self.totals();
        let mut registry = registry();
        registry.removed.add(&totals);
        registry.free.push(self.slot);
    }
}

/// The overhead of metering: the numbers of timestamps and of readings of CPU clocks.
#[derive(Debug, Default)]
pub struct MeteringOverhead {
    stamps: AtomicU64,
    clock_reads: AtomicU64,
}

impl MeteringOverhead {
    /// The overhead of all threads.
    #[must_use]
    pub fn all() -> &'static Self {
        static OVERHEAD: MeteringOverhead =
            MeteringOverhead { stamps: AtomicU64::new(0), clock_reads: AtomicU64::new(0) };
        &OVERHEAD
    }

    pub(super) fn add(&self, stamps: u64) {
        self.stamps.fetch_add(stamps, Ordering::Relaxed);
        self.clock_reads.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of timestamps so far.
    #[must_use]
    pub fn stamps(&self) -> u64 {
        self.stamps.load(Ordering::Relaxed)
    }

    /// The number of readings of a CPU clock so far.
    #[must_use]
    pub fn clock_reads(&self) -> u64 {
        self.clock_reads.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str) -> Option<Totals> {
        let wanted = Owner::Rule(name.to_owned());
        let held = Account::all().held;
        held.iter().find(|account| account.owner == wanted).map(|account| account.totals())
    }

    #[test]
    fn cpu_time_of_a_removed_rule_is_kept() {
        let removed = || Account::all().removed.usage[Component::Open as usize][0];
        let before = removed();
        let account = Account::open("to-be-removed");
        let mut cells = Cells::default();
        cells[Component::Open as usize] = 77;
        account.add(&cells, &Counts::default(), ThreadKind::General);
        assert_eq!(find("to-be-removed").unwrap().usage[Component::Open as usize], [77, 0, 0]);
        drop(account);
        assert_eq!(find("to-be-removed"), None);
        assert!(removed() >= before + 77);
    }

    #[test]
    fn handshakes_are_for_engines_and_relays_where_the_rule_says_so() {
        let account = Account::open("eligible");
        let ones = [1; Component::ALL.len()];
        account.add(&ones, &Counts::default(), ThreadKind::General);
        account.set_relay_eligible(true);
        account.add(&ones, &Counts::default(), ThreadKind::General);
        account.add(&ones, &Counts::default(), ThreadKind::Engine);
        let usage = account.totals().usage;
        assert_eq!(usage[Component::Handshake as usize], [0, 1, 2]);
        assert_eq!(usage[Component::Send as usize], [1, 1, 1]);
    }

    #[test]
    fn all_work_on_packets_is_for_engines() {
        let mut cells = Cells::default();
        cells[Component::Seal as usize] = 5;
        let usage = || Account::packets().totals().usage[Component::Seal as usize];
        let before = usage();
        Account::packets().add(&cells, &Counts::default(), ThreadKind::General);
        Account::packets().add(&cells, &Counts::default(), ThreadKind::Engine);
        assert_eq!(usage(), [before[0], before[1] + 5, before[2] + 5]);
    }
}
