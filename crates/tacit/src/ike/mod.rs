//! Creates the IPsec tunnels of programs under `tacit run`. Also manages the IKE connections, and
//! passes the keys of the tunnels to the packet worker (the thread that encrypts packets).
//!
//! ```text
//! agent ── runs, TUN devices, policy ──> IkeDriver ──> thread `tacit-ike`
//!                                                       │   ^
//!                                   keys, IKE messages  v   │  IKE messages, first packets
//!                                                     packet worker ── UDP ── peers
//! ```
//!
//! A run has one IKE connection with each peer in its rules. The agent opens the connection when a
//! program sends the first packet that needs the tunnel. If the peer assigns the run's address, the
//! agent opens the connection at the start of the run. After each failure, the agent waits longer
//! before the next attempt.
//!
//! A peer in `[sa.NAME]` has no IKE connection, because its keys are in files. The thread
//! `tacit-ike` installs these keys as soon as a run needs them (module `manual`).
//!
//! While there is no tunnel, the packet worker holds or drops packets. tacit never sends a packet
//! in clear.
//!
//! Limits: [`RUNS_MAX`] runs, and the limits of the queues in the module `inputs`.

mod address;
mod assigned;
mod certificates;
mod config;
mod connection;
mod driven_run;
mod first_requests;
mod inputs;
mod install;
mod kernel;
mod key_table;
mod manual;
mod manual_sa;
mod refused;
mod reports;
mod responder;
mod runs;
mod source_checks;
mod sources;
mod status;
mod thread;
mod unproved;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::policy::{IkeCredentials, IkePeer, Policy};
use tacit_core::refusal::Refusal;
use tacit_ipsec::{ManualKeys, SecretBytes};
use tacit_sys::sandbox::{CapabilitySet, WorkerRights, WorkerSockets};
use tacit_sys::tun::Tun;
use tacit_tls::KeyLogLine;
use tacit_tls::credentials::{LoadedIdentity, LoadedTrust};
use tokio::sync::mpsc;

use crate::log::Log;
use crate::net::target::LiveTarget;
use crate::packet::{
    FilterCounter, PacketStatistics, PacketThreads, PacketWorker, RawUnderlay, TunLease, Underlay,
};

pub(crate) use config::{cipher as esp_cipher, hash as ah_hash};
use inputs::Inputs;
pub use manual_sa::{ManualStatus, raw_kind, raw_kinds};
pub use status::{ChildStatus, IkeState, IkeStatus};
use thread::IkeThread;
pub(crate) use words::{auth_word, proposal_words, protocol_words, selector_words};

/// The largest number of runs with tunnels.
pub const RUNS_MAX: usize = 4096;
/// How long the end of the driver waits until peers have confirmed the end of their tunnels.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(500);
/// How often a successor tries to get the port of its predecessor.
const PORT_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// The port of IKE with NAT traversal, on which this side sends if it is free.
const PORT: u16 = 4500;

/// The handle of the thread.
#[derive(Debug)]
pub struct IkeDriver {
    inputs: Arc<Inputs>,
    worker: Arc<PacketWorker>,
    statuses: Arc<Mutex<Vec<IkeStatus>>>,
    manual: Arc<Mutex<Vec<ManualStatus>>>,
    refused: Arc<Mutex<RefusedByPeer>>,
}

/// Packets that were refused because there was no tunnel, by the name of the peer.
pub type RefusedByPeer = BTreeMap<String, u64>;

/// A policy with the keys that it names.
#[derive(Clone, Debug)]
pub struct IkePolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The counters of its filter rules, in order.
    pub filters: Vec<Arc<FilterCounter>>,
    /// The peers that have a name, which the control thread resolves.
    pub targets: BTreeMap<String, Arc<LiveTarget>>,
    /// The keys that both sides know, by the name of the peer.
    pub shared_keys: BTreeMap<String, SecretBytes>,
    /// The keys of manual SAs, by the name of the peer.
    pub manual_keys: BTreeMap<String, ManualKeys>,
    /// The identities, by name.
    pub identities: BTreeMap<String, Arc<LoadedIdentity>>,
    /// The trusts, by name.
    pub trusts: BTreeMap<String, Arc<LoadedTrust>>,
}

impl IkePolicy {
    /// The addresses of a peer that are known now, in the order in which they are tried.
    fn addresses(&self, ike: &str) -> Vec<SocketAddr> {
        let fixed = self.policy.ikes.get(ike).and_then(IkePeer::address);
        let resolved = self.targets.get(ike).map(|target| target.known_addresses());
        fixed.map_or_else(|| resolved.unwrap_or_default(), |address| vec![address])
    }

    /// A policy whose peers all have the same shared key.
    #[cfg(test)]
    fn of_text(text: &str) -> Self {
        let policy = tacit_core::policy::parse(text).policy.expect("a valid policy");
        let key = || SecretBytes::new(b"a shared key".to_vec());
        Self {
            targets: BTreeMap::new(),
            shared_keys: policy.ikes.keys().map(|ike| (ike.clone(), key())).collect(),
            manual_keys: policy.sas.keys().map(|sa| (sa.clone(), manual_test_keys())).collect(),
            policy: Arc::new(policy),
            filters: Vec::new(),
            identities: BTreeMap::new(),
            trusts: BTreeMap::new(),
        }
    }

    /// Whether authentication with a peer uses the same keys and certificates as in another policy.
    fn has_same_keys(&self, other: &Self, ike: &str) -> bool {
        let Some(peer) = self.policy.ikes.get(ike) else { return false };
        match &peer.credentials {
            IkeCredentials::SharedKey { .. } => {
                self.shared_keys.get(ike) == other.shared_keys.get(ike)
            }
            IkeCredentials::Certificates { identity, trust } => {
                let identities = self.identities.get(identity).zip(other.identities.get(identity));
                let trusts = self.trusts.get(trust).zip(other.trusts.get(trust));
                identities.is_some_and(|(one, other)| one.same(other))
                    && trusts.is_some_and(|(one, other)| one.same(other))
            }
        }
    }
}

/// A run with a TUN device.
#[derive(Debug)]
pub struct TunnelRun {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The device.
    pub tun: Tun,
    /// Dropped when the driver does not use the device.
    pub lease: TunLease,
    /// The addresses of the host, which the run has too.
    pub own: Vec<IpAddr>,
    /// The names that its programs have looked up.
    pub names: Box<dyn RunNames>,
}

/// The names that programs of a run have looked up.
pub trait RunNames: std::fmt::Debug + Send {
    /// The number of names and addresses that were stored so far. It grows with each new one.
    fn count(&self) -> u64;
    /// The names by which programs of the run reach this address.
    fn of(&self, address: IpAddr) -> Vec<String>;
}

/// The traces that record the keys of tunnels.
pub trait KeyTraces: Send + Sync {
    /// Whether a trace records the tunnels to the peer `[ike.NAME]`.
    fn are_of(&self, ike: &str) -> bool;
    /// Passes keys to the traces that record the tunnels to this peer.
    fn give(&self, ike: &str, lines: &[KeyLogLine]);
}

/// Where keys are written.
pub type KeySink = Box<dyn Fn(&[KeyLogLine]) + Send>;

/// Where packets are recorded that were refused because there was no tunnel, with their number.
pub type RefusalSink = Box<dyn Fn(Refusal, u64) + Send>;

/// Requests the keys that exist when a trace starts.
#[derive(Clone, Debug)]
pub struct KeyRequests(Arc<Inputs>);

impl KeyRequests {
    /// Writes the keys of the tunnels to a peer.
    pub fn request(&self, ike: &str, sink: KeySink) {
        // If the queue is full, the trace has only the keys of later tunnels.
        let _ = self.0.offer(Order::WriteKeys(ike.to_owned(), sink));
    }
}

/// What the driver reports to the agent about a peer of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IkeNotice {
    /// The number of the run.
    pub run: u64,
    /// The name of the peer.
    pub ike: String,
    /// What it reports.
    pub fact: PeerFact,
}

/// A fact about a peer of a run that the routes of the run depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFact {
    /// The addresses that the peer has assigned, or why it has assigned none.
    Addresses(Result<Vec<IpAddr>, String>),
    /// The length of the longest packet for the path to the peer.
    Path {
        /// The length.
        inner_bytes_max: usize,
    },
}

/// An order of the agent.
enum Order {
    Follow(Box<IkePolicy>),
    AddRun(Box<TunnelRun>),
    RemoveRun(u64),
    /// The host has these addresses now.
    FollowOwn(Vec<IpAddr>),
    /// Routes or interfaces of the host have changed.
    CompareSources,
    /// Writes the keys of the tunnels to this peer.
    WriteKeys(String, KeySink),
    /// Gives up rights, and sends the result.
    Confine(WorkerRights, SyncSender<io::Result<()>>),
    /// Ends the thread; it confirms by closing the sender.
    Close(SyncSender<()>),
}

impl IkeDriver {
    /// Opens the UDP sockets to peers, and starts the threads.
    ///
    /// # Errors
    /// A socket or a thread cannot be created, or the kernel refuses the CPU of an engine.
    pub fn start(
        policy: IkePolicy,
        raw: Arc<RawUnderlay>,
        notices: mpsc::Sender<IkeNotice>,
        log: Log,
        refusals: RefusalSink,
        traces: Arc<dyn KeyTraces>,
        port: PortWait,
    ) -> io::Result<Self> {
        let underlay = underlay(port)?.with_raw(raw);
        let locals = underlay.local_addresses()?;
        let inputs = Arc::<Inputs>::default();
        let threads = PacketThreads::of_policy(&policy.policy);
        let worker = Arc::new(PacketWorker::start(underlay, Arc::clone(&inputs), threads)?);
        let statuses = Arc::<Mutex<Vec<IkeStatus>>>::default();
        let manual = Arc::<Mutex<Vec<ManualStatus>>>::default();
        let refused = Arc::<Mutex<RefusedByPeer>>::default();
        let thread = IkeThread::new(
            policy,
            thread::IkeContext {
                inputs: Arc::clone(&inputs),
                worker: Arc::clone(&worker),
                statuses: Arc::clone(&statuses),
                manual: Arc::clone(&manual),
                refused: Arc::clone(&refused),
                locals,
                notices,
                log,
                refusals,
                traces,
            },
        )?;
        std::thread::Builder::new().name("tacit-ike".to_owned()).spawn(move || thread.run())?;
        Ok(Self { inputs, worker, statuses, manual, refused })
    }

    /// Makes both threads, which parse messages of strangers, give up the rights that they do not
    /// need: capabilities, files, programs.
    ///
    /// # Errors
    /// The kernel does not support it.
    pub fn confine(&self) -> io::Result<()> {
        let rights =
            WorkerRights { capabilities: CapabilitySet::empty(), sockets: WorkerSockets::Internet };
        self.worker.confine(rights)?;
        let (done, result) = sync_channel(1);
        self.order(Order::Confine(rights, done));
        result.recv().map_err(io::Error::other)?
    }

    /// Uses this policy from now on. Connections that it does not name, or names differently, end.
    pub fn follow(&self, policy: IkePolicy) {
        self.order(Order::Follow(Box::new(policy)));
    }

    /// Makes tunnels for this run when its programs need them.
    pub fn add_run(&self, run: TunnelRun) {
        self.order(Order::AddRun(Box::new(run)));
    }

    /// The host, and so each run, has these addresses from now on.
    pub fn follow_own(&self, own: Vec<IpAddr>) {
        self.order(Order::FollowOwn(own));
    }

    /// Compares the addresses from which this host sends to peers with those that it has used
    /// before, because routes have changed. Many calls cause one comparison a second.
    pub fn compare_sources(&self) {
        self.order(Order::CompareSources);
    }

    /// Returns a handle with which traces request keys.
    #[must_use]
    pub fn key_requests(&self) -> KeyRequests {
        KeyRequests(Arc::clone(&self.inputs))
    }

    /// Ends the tunnels of a run.
    pub fn remove_run(&self, id: u64) {
        self.order(Order::RemoveRun(id));
    }

    /// The connections with peers.
    #[must_use]
    pub fn statuses(&self) -> Vec<IkeStatus> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The manual SAs.
    #[must_use]
    pub fn manual_statuses(&self) -> Vec<ManualStatus> {
        self.manual.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The packets that were refused so far, also those of runs that have ended.
    #[must_use]
    pub fn refused(&self) -> RefusedByPeer {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters of packets.
    #[must_use]
    pub fn statistics(&self) -> PacketStatistics {
        self.worker.statistics()
    }

    /// Reads no more packets of programs: they wait in the TUN devices for a successor.
    pub fn stop_reading(&self) {
        // If the worker has ended, no packet is read.
        let _ = self.worker.stop_reading();
    }

    /// Ends all tunnels, and notifies the peers.
    pub fn close(self) {
        let (confirm, closed) = sync_channel(1);
        self.order(Order::Close(confirm));
        // If the thread has ended, there is nothing to wait for.
        let (Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) =
            closed.recv_timeout(2 * CLOSE_WAIT_MAX);
    }

    fn order(&self, order: Order) {
        // The thread ends only with this handle. After a fault in it, packets are dropped.
        let _ = self.inputs.order(order);
    }
}

/// Keys for a policy with AES-256-CBC and HMAC-SHA-256.
#[cfg(test)]
fn manual_test_keys() -> ManualKeys {
    let key = |first: u8| SecretBytes::new((first..first + 32).collect());
    let keys =
        |first| tacit_ipsec::DirectionKeys { encryption: key(first), integrity: key(first + 32) };
    ManualKeys { inbound: keys(0), outbound: keys(64) }
}

/// Whether the agent waits for UDP port 4500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortWait {
    /// Another agent may use the port permanently.
    None,
    /// The predecessor of this agent still has the port while it ends its tunnels.
    Predecessor,
}

/// Opens a socket for each IP version. If another agent has the port, peers see another one; only
/// peers that open connections themselves need port 4500.
fn underlay(port: PortWait) -> io::Result<Underlay> {
    let any = |port| [SocketAddr::from(([0; 4], port)), SocketAddr::from(([0_u16; 8], port))];
    let [v4, v6] = any(PORT);
    let [other_v4, other_v6] = any(0);
    let until = Instant::now() + 2 * CLOSE_WAIT_MAX;
    while port == PortWait::Predecessor && Instant::now() < until {
        match Underlay::bind(&[v4, v6]) {
            Ok(underlay) => return Ok(underlay),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(PORT_RETRY_INTERVAL);
            }
            Err(_) => break,
        }
    }
    // A host may have no IPv6.
    let attempts = [&[v4, v6][..], &[v4], &[other_v4, other_v6], &[other_v4]];
    let mut failure = io::Error::from(io::ErrorKind::AddrInUse);
    for addresses in attempts {
        match Underlay::bind(addresses) {
            Ok(underlay) => return Ok(underlay),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod explain_tests;
#[cfg(test)]
mod thread_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_addresses_of_a_name_are_those_of_the_resolver() {
        let peer = |name: &str, host: &str| {
            format!(
                "[ike.{name}]\npeer = \"{host}\"\npsk-file = \"psk\"\nlocal-id = \
                 \"c.example\"\ninner = \"gateway\"\nport = 500\n"
            )
        };
        let text = format!("version = 1\n{}{}", peer("a", "localhost"), peer("b", "192.0.2.1"));
        let policy = tacit_core::policy::parse(&text).policy.unwrap();
        let target = Arc::new(LiveTarget::new(&policy.ikes["a"].unresolved().unwrap()));
        let policy = IkePolicy {
            targets: BTreeMap::from([("a".to_owned(), Arc::clone(&target))]),
            policy: Arc::new(policy),
            filters: Vec::new(),
            shared_keys: BTreeMap::new(),
            manual_keys: BTreeMap::new(),
            identities: BTreeMap::new(),
            trusts: BTreeMap::new(),
        };
        assert_eq!(policy.addresses("b"), ["192.0.2.1:500".parse().unwrap()]);
        assert_eq!(policy.addresses("c"), []);
        target.addresses().await;
        let known = policy.addresses("a");
        assert!(!known.is_empty());
        assert!(known.iter().all(|one| one.ip().is_loopback() && one.port() == 500), "{known:?}");
    }
}
