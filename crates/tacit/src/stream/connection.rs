//! Stage 2, connection: an arrival gets an identity, a rule and a place in the table.
//!
//! The table is read by displays while the data path writes it; nobody waits for anybody.
//! Counters have one writer, the worker that carries the connection.

use std::cell::Cell;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::{Action, Form};
use tacit_core::query::ConnectionState;
use tacit_sys::socket;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::address;
use crate::ledger::{Account, Count, meter};
use crate::live::{Live, LiveRule};
use crate::run::Run;
use crate::run::protocol::Ends;
use tacit_tls::verify::Named;
use tacit_tls::{Agreed, CertificateFacts, PeerCheck};

use super::asked::Controls;
use super::intercept::{Arrival, Claim};
use super::leg::{Leg, Parked};

/// All open connections of the agent.
#[derive(Debug, Default)]
pub struct Table {
    records: papaya::HashMap<u64, Arc<Record>>,
    last_id: AtomicU64,
}

impl Table {
    /// Every open connection, in order of arrival.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Arc<Record>> {
        let mut records: Vec<_> = self.records.pin().values().cloned().collect();
        records.sort_by_key(|record| record.id);
        records
    }

    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// One of them.
    #[must_use]
    pub fn find(&self, id: u64) -> Option<Arc<Record>> {
        self.records.pin().get(&id).cloned()
    }

    /// One of which something holds.
    #[must_use]
    pub fn find_where(&self, holds: impl Fn(&Record) -> bool) -> Option<Arc<Record>> {
        self.records.pin().values().find(|record| holds(record)).cloned()
    }
}

/// What displays know of one connection.
#[derive(Debug)]
pub struct Record {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// The rule it opened with.
    pub rule: Arc<LiveRule>,
    /// Streams or datagrams.
    pub protocol: Protocol,
    /// When it was accepted.
    pub since: SystemTime,
    /// Where it arrived.
    pub local: Address,
    /// Who connected, as the kernel says.
    pub remote: Address,
    /// What an accepted PROXY header says.
    pub proxied: Option<Box<Proxied>>,
    /// What there is to know of a run's connection; `None` for a forwarding rule.
    pub run: Option<Box<OfRun>>,
    /// The connection that agreed on this one, by its number.
    pub parent: Option<NonZeroU64>,
    /// The sockets, for as long as they are open.
    pub legs: OnceLock<Legs>,
    /// What the handshake gave.
    pub tls: Shown,
    open: AtomicBool,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    cpu_ns: AtomicU64,
    sent_messages: AtomicU32,
    received_messages: AtomicU32,
    rekeys: AtomicU32,
    closing: Notify,
}

/// What a PROXY header says of a connection.
#[derive(Debug)]
pub struct Proxied {
    /// Who connected.
    pub client: Address,
    /// Where it connected to.
    pub target: Address,
}

/// What there is to know of a run's connection.
#[derive(Debug)]
pub struct OfRun {
    /// The run.
    pub run: Arc<Run>,
    /// Whether it comes in; else a program opened it.
    pub is_inbound: bool,
    /// The names the program asked for that have the address it connects to.
    pub names: Vec<String>,
    /// Where the program says when TLS begins.
    pub controls: Option<Box<Controls>>,
}

/// Both sockets of a connection.
#[derive(Debug)]
pub struct Legs {
    /// The one that was accepted.
    pub accepted: Weak<OwnedFd>,
    /// The one that was dialled.
    pub dialled: Weak<OwnedFd>,
    /// Where it was dialled to.
    pub target: Address,
}

/// What displays see of a handshake, once there was one. There may be several one after the other
/// where the program says when TLS begins and ends.
#[derive(Debug, Default)]
pub struct Shown(ArcSwapOption<TlsFacts>);

impl Shown {
    /// What the last handshake gave; `None`: there was none, or its TLS has ended.
    #[must_use]
    pub fn get(&self) -> Option<Arc<TlsFacts>> {
        self.0.load_full()
    }

    /// TLS has begun.
    pub fn set(&self, facts: TlsFacts) {
        self.0.store(Some(Arc::new(facts)));
    }

    /// TLS has ended.
    pub fn clear(&self) {
        self.0.store(None);
    }
}

/// What a handshake gave.
#[derive(Debug)]
pub struct TlsFacts {
    /// Version, suite, group and the like.
    pub agreed: Agreed,
    /// What came of the check of the peer's certificate.
    pub check: PeerCheck,
    /// The name that it gives the peer.
    pub named: Named,
    /// The peer's certificate, if it sent one.
    pub peer: Option<Arc<CertificateFacts>>,
}

impl Record {
    /// Who is at the other end of it all: the client that a proxy names, or who connected.
    #[must_use]
    pub fn client(&self) -> &Address {
        self.proxied.as_ref().map_or(&self.remote, |proxied| &proxied.client)
    }

    /// Both ends of the program's socket, seen from the program; `None` before it is dialled, and
    /// for what belongs to no run.
    #[must_use]
    pub fn ends(&self) -> Option<Ends> {
        let (program, peer) = if self.run.as_ref()?.is_inbound {
            let legs = self.legs.get()?;
            let leg = legs.dialled.upgrade()?;
            (legs.target.clone(), address::from_socket(&socket::local_address(leg.as_fd()).ok()?))
        } else {
            (self.local.clone(), self.remote.clone())
        };
        match (program, peer) {
            (Address::Inet(program), Address::Inet(peer)) => {
                Some(Ends { protocol: self.protocol, program, peer })
            }
            _ => None,
        }
    }

    /// How to ask it to begin and end TLS, if that is the program's to say.
    #[must_use]
    pub fn controls(&self) -> Option<&Controls> {
        self.run.as_ref()?.controls.as_deref()
    }

    /// What is on the wire, as far as the program is concerned.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        let is_shaking = match self.controls() {
            Some(controls) => controls.is_shaking(),
            None => matches!(self.rule.rule.action, Action::Tls(_)) && !self.is_open(),
        };
        match self.tls.get() {
            _ if is_shaking => ConnectionState::Handshaking,
            Some(_) => ConnectionState::Secure,
            None => ConnectionState::Clear,
        }
    }

    /// Payload bytes from the side that was accepted.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Payload bytes to the side that was accepted.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// CPU time of the agent for it so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Adds CPU time. One writer: the worker that carries it.
    pub fn spend_ns(&self, ns: u64) {
        self.cpu_ns.store(self.cpu_ns() + ns, Ordering::Relaxed);
    }

    /// Adds what it cost in the end to its run.
    pub fn settle(&self) {
        if let Some(of_run) = &self.run {
            of_run.run.spent.add(self);
        }
    }

    /// Uninterrupted runs of bytes from the side that was accepted.
    #[must_use]
    pub fn sent_messages(&self) -> u32 {
        self.sent_messages.load(Ordering::Relaxed)
    }

    /// Uninterrupted runs of bytes to the side that was accepted.
    #[must_use]
    pub fn received_messages(&self) -> u32 {
        self.received_messages.load(Ordering::Relaxed)
    }

    /// Where what it costs is charged to.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        self.rule.account()
    }

    /// KeyUpdates sent.
    #[must_use]
    pub fn rekeys(&self) -> u32 {
        self.rekeys.load(Ordering::Relaxed)
    }

    /// Whether it carries bytes: dialled, and its handshake complete.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Ends the connection; both legs are reset.
    pub fn close(&self) {
        self.closing.notify_one();
    }

    /// Resolves when [`Self::close`] is called.
    pub async fn closed(&self) {
        self.closing.notified().await;
    }
}

/// A connection with its verdict; leaves the table when dropped.
#[derive(Debug)]
pub struct Connection {
    record: Arc<Record>,
    table: Arc<Table>,
    /// Whether the accepted leg is the clear one, which turns the byte counts round.
    accepted_is_clear: Cell<bool>,
    /// Whether the last bytes came from the side that was accepted.
    direction: Cell<Option<bool>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Gives an arrival its rule.
    ///
    /// # Errors
    /// No rule matches, or the one that does denies.
    pub fn open(live: &Live, table: &Arc<Table>, arrival: Arrival) -> Result<Admitted, Denied> {
        use crate::live::LiveAction;
        let Arrival { mut leg, flow, run, place, claim, .. } = arrival;
        let rule = match live.lookup(&flow) {
            Some(rule)
                if !matches!(rule.action, LiveAction::Deny)
                    && fits(&rule.rule.form, run.as_deref()) =>
            {
                Arc::clone(rule)
            }
            denied => {
                leg.set_clear(true);
                return Err(Denied { refused: Refused::new(denied, flow), leg });
            }
        };
        let protocol = flow.protocol;
        let (proxied, remote, early) = match claim.map(|claim| *claim) {
            None => (None, flow.remote, None),
            Some(Claim { proxy, target, early }) => {
                let client = flow.remote;
                let proxied = target.map(|target| Box::new(Proxied { client, target }));
                (proxied, proxy, Some(early.into_boxed_slice()))
            }
        };
        let accepted_is_clear = !rule.rule.tls_arrives();
        let controls = rule.is_controlled().then(Box::default);
        leg.set_clear(accepted_is_clear || controls.is_some());
        let is_inbound = flow.direction == Direction::Inbound;
        let run =
            run.map(|run| Box::new(OfRun { run, is_inbound, names: flow.remote_names, controls }));
        let local = flow.local;
        let start = Start { rule, protocol, local, remote, proxied, run, parent: None };
        let connection = Self::enter(table, start, accepted_is_clear, place);
        Ok(Admitted { connection, leg, early })
    }

    /// Gives a flow of datagrams its rule.
    ///
    /// # Errors
    /// No rule matches, or the one that does is no permit.
    pub fn of_datagrams(
        live: &Live,
        table: &Arc<Table>,
        flow: Flow,
        run: &Arc<Run>,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, Refused> {
        use crate::live::LiveAction;
        let rule = match live.lookup(&flow) {
            Some(rule) if matches!(rule.action, LiveAction::Permit) => Arc::clone(rule),
            denied => return Err(Refused::new(denied, flow)),
        };
        let Flow { protocol, local, remote, remote_names: names, .. } = flow;
        let run = Some(Box::new(OfRun {
            run: Arc::clone(run),
            is_inbound: false,
            names,
            controls: None,
        }));
        let start = Start { rule, protocol, local, remote, proxied: None, run, parent: None };
        Ok(Self::enter(table, start, true, place))
    }

    /// Begins a connection that another one has agreed on, under its rule. Of what was accepted,
    /// `is_inbound` says whether it comes from afar, `is_clear` whether it is in clear.
    #[must_use]
    pub fn of_data(
        table: &Arc<Table>,
        parent: &Record,
        (local, remote): (Address, Address),
        (is_inbound, is_clear): (bool, bool),
        place: OwnedSemaphorePermit,
    ) -> Self {
        let run = parent.run.as_ref().map(|of_run| {
            let (run, names) = (Arc::clone(&of_run.run), of_run.names.clone());
            Box::new(OfRun { run, is_inbound, names, controls: None })
        });
        let start = Start {
            rule: Arc::clone(&parent.rule),
            protocol: parent.protocol,
            local,
            remote,
            proxied: None,
            run,
            parent: NonZeroU64::new(parent.id),
        };
        Self::enter(table, start, is_clear, place)
    }

    fn enter(
        table: &Arc<Table>,
        start: Start,
        accepted_is_clear: bool,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let Start { rule, protocol, local, remote, proxied, run, parent } = start;
        rule.counters.count_hit();
        let record = Arc::new(Record {
            id: table.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            rule,
            protocol,
            since: SystemTime::now(),
            local,
            remote,
            proxied,
            run,
            parent,
            legs: OnceLock::new(),
            tls: Shown::default(),
            open: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            sent_messages: AtomicU32::new(0),
            received_messages: AtomicU32::new(0),
            rekeys: AtomicU32::new(0),
            closing: Notify::new(),
        });
        table.records.pin().insert(record.id, Arc::clone(&record));
        meter::count(record.account(), [(Count::Connections, 1)]);
        let (table, direction) = (Arc::clone(table), Cell::new(None));
        let accepted_is_clear = Cell::new(accepted_is_clear);
        Self { record, table, accepted_is_clear, direction, _place: place }
    }

    /// What displays see of it.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// From here on the connection carries bytes.
    pub fn mark_open(&self) {
        self.record.open.store(true, Ordering::Relaxed);
    }

    /// The rule allows it to go on without TLS, and so it does.
    pub fn go_on_in_clear(&self) {
        self.accepted_is_clear.set(true);
    }

    /// Counts payload that went into TLS, or onward from the accepted leg of two clear ones.
    pub fn count_sent(&self, bytes: usize) {
        self.count(bytes, self.accepted_is_clear.get());
    }

    /// Counts payload that came out of TLS, or back to the accepted leg of two clear ones.
    pub fn count_received(&self, bytes: usize) {
        self.count(bytes, !self.accepted_is_clear.get());
    }

    fn count(&self, bytes: usize, from_accepted: bool) {
        if bytes == 0 {
            // No message either.
            return;
        }
        let record = &self.record;
        let (counter, messages, counts) = if from_accepted {
            let counts = (Count::BytesSent, Count::MessagesSent);
            (&record.sent_bytes, &record.sent_messages, counts)
        } else {
            let counts = (Count::BytesReceived, Count::MessagesReceived);
            (&record.received_bytes, &record.received_messages, counts)
        };
        let begins = self.direction.replace(Some(from_accepted)) != Some(from_accepted);
        // One writer: no need for locked adds.
        counter.store(counter.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
        if begins {
            let count = messages.load(Ordering::Relaxed).wrapping_add(1);
            messages.store(count, Ordering::Relaxed);
        }
        let counted = [(counts.0, bytes as u64), (counts.1, u64::from(begins))];
        meter::count(record.account(), counted);
    }

    /// Takes the number of KeyUpdates sent so far.
    pub fn count_rekeys(&self, rekeys: u32) {
        self.record.rekeys.store(rekeys, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.records.pin().remove(&self.record.id);
        // Who asked before there was a relay holds the record, and waits for an answer.
        drop(self.record.controls().and_then(Controls::take_wishes));
    }
}

/// A connection that has its rule.
#[derive(Debug)]
pub struct Admitted<L = Leg> {
    /// The connection.
    pub connection: Connection,
    /// The socket.
    pub leg: L,
    /// What came with a PROXY header.
    pub early: Option<Box<[u8]>>,
}

impl Admitted {
    /// Takes it from this thread, for another one.
    #[must_use]
    pub fn park(self) -> Admitted<Parked> {
        let Self { connection, leg, early } = self;
        Admitted { connection, leg: leg.park(), early }
    }
}

impl Admitted<Parked> {
    /// Goes on with it on the calling thread.
    ///
    /// # Errors
    /// See [`Parked::watch`]; the connection is there to be told of.
    pub fn watch(self) -> Result<Admitted, (Connection, io::Error)> {
        let Self { connection, leg, early } = self;
        match leg.watch() {
            Ok(leg) => Ok(Admitted { connection, leg, early }),
            Err(error) => Err((connection, error)),
        }
    }
}

/// Whether a rule of this form may decide a connection that was accepted for `run`, or for a
/// forwarding rule. A reload between accepting and the look-up may have given the address to a rule
/// of the other kind; the socket was not accepted for that one.
fn fits(form: &Form, run: Option<&Run>) -> bool {
    match form {
        Form::Forward(_) => run.is_none(),
        Form::Inbound(_) | Form::Outbound => run.is_some(),
    }
}

/// A connection that no rule permits. Dropping the leg resets it.
#[derive(Debug)]
pub struct Denied {
    /// What was refused.
    pub refused: Refused,
    /// The socket.
    pub leg: Leg,
}

/// What no rule permits.
#[derive(Debug)]
pub struct Refused {
    /// The rule that denies; `None`: no rule matched.
    pub rule: Option<Arc<LiveRule>>,
    /// Where it arrived.
    pub local: Address,
    /// Who connected, or where it was to go.
    pub remote: Address,
}

impl Refused {
    fn new(rule: Option<&Arc<LiveRule>>, flow: Flow) -> Self {
        Self { rule: rule.map(Arc::clone), local: flow.local, remote: flow.remote }
    }
}

/// What a connection begins with.
struct Start {
    rule: Arc<LiveRule>,
    protocol: Protocol,
    local: Address,
    remote: Address,
    proxied: Option<Box<Proxied>>,
    run: Option<Box<OfRun>>,
    parent: Option<NonZeroU64>,
}
