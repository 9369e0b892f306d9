//! The record of one connection or datagram flow: its rule, addresses, sockets, TLS parameters and
//! counters, for displays, the query socket and operators.
//!
//! Only the worker that relays the connection writes the counters; every thread may read them.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use tacit_core::flow::{Address, Protocol};
use tacit_core::query::ConnectionState;
use tacit_sys::socket;
use tokio::sync::Notify;

use crate::address;
use crate::ledger::Account;
use crate::live::LiveRule;
use crate::run::protocol::SocketEnds;
use crate::run::{Scope, Usage};
use tacit_tls::recheck::TrustedPeer;
use tacit_tls::verify::MappedIdentity;
use tacit_tls::{CertificateFacts, NegotiatedParameters, PeerCheck};

use super::tls_control::TlsControl;

/// What displays know of one connection.
#[derive(Debug)]
pub struct ConnectionRecord {
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
    /// Where it was captured, and what is known of it there; `None` for a forwarding rule.
    pub scope: Option<Box<ScopeFacts>>,
    /// The connection that agreed on this one, by its number.
    pub parent: Option<NonZeroU64>,
    /// The sockets, for as long as they are open.
    pub sockets: OnceLock<ConnectionSockets>,
    /// What the handshake gave.
    pub tls: CurrentTls,
    pub(super) open: AtomicBool,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    cpu_ns: AtomicU64,
    pub(super) sent_messages: AtomicU32,
    pub(super) received_messages: AtomicU32,
    pub(super) rekeys: AtomicU32,
    /// When it was accepted, by a clock that is never set.
    pub(super) accepted: Instant,
    closing: Notify,
    /// A [`Closing`] as a number; 0: it is not being closed.
    why_closing: AtomicU8,
    /// Which of the rule's targets it was dialled to, counted from 1; 0: none yet.
    target: AtomicU8,
}

/// What a connection or a flow of datagrams begins with.
#[derive(Debug)]
pub struct Opening {
    /// The rule that permits it.
    pub rule: Arc<LiveRule>,
    /// Streams or datagrams.
    pub protocol: Protocol,
    /// Where it arrived.
    pub local: Address,
    /// Who connected, as the kernel says.
    pub remote: Address,
    /// What an accepted PROXY header says.
    pub proxied: Option<Box<Proxied>>,
    /// Where it was captured, and what is known of it there.
    pub scope: Option<Box<ScopeFacts>>,
    /// The connection that agreed on this one, by its number.
    pub parent: Option<NonZeroU64>,
}

/// What a PROXY header says of a connection.
#[derive(Debug)]
pub struct Proxied {
    /// Who connected.
    pub client: Address,
    /// Where it connected to.
    pub target: Address,
}

/// What is known of a captured connection.
#[derive(Debug)]
pub struct ScopeFacts {
    /// Where it was captured.
    pub scope: Scope,
    /// Whether it comes in; else a program opened it.
    pub is_inbound: bool,
    /// The names the program asked for that have the address it connects to.
    pub names: Vec<String>,
    /// The address that the program used in place of the remote one, if it is an alias.
    pub alias: Option<IpAddr>,
    /// How often it was given to another worker because its program had another CPU.
    pub moves: AtomicU8,
    /// Where the program says when TLS begins.
    pub tls_control: Option<Box<TlsControl>>,
}

impl ScopeFacts {
    /// How often it was given to another worker.
    #[must_use]
    pub fn moves(&self) -> u8 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Counts that it was. The thread that has the connection is the only one that counts.
    pub fn count_move(&self) {
        self.moves.store(self.moves().saturating_add(1), Ordering::Relaxed);
    }
}

/// Both sockets of a connection.
#[derive(Debug)]
pub struct ConnectionSockets {
    /// The one that was accepted.
    pub downstream: Weak<OwnedFd>,
    /// The one that was dialled.
    pub upstream: Weak<OwnedFd>,
    /// Where it was dialled to.
    pub target: Address,
}

/// What displays see of a handshake, once there was one. There may be several one after the other
/// where the program says when TLS begins and ends.
#[derive(Debug, Default)]
pub struct CurrentTls(ArcSwapOption<TlsFacts>);

impl CurrentTls {
    /// What the last handshake gave; `None`: there was none, or its TLS has ended.
    #[must_use]
    pub fn get(&self) -> Option<Arc<TlsFacts>> {
        self.0.load_full()
    }

    /// TLS has begun.
    pub fn set(&self, facts: TlsFacts) {
        self.0.store(Some(Arc::new(facts)));
    }

    /// Replaces what a handshake gave, unless another one was done since.
    pub(super) fn replace(&self, old: &Arc<TlsFacts>, new: TlsFacts) {
        self.0.compare_and_swap(&Some(Arc::clone(old)), Some(Arc::new(new)));
    }

    /// TLS has ended.
    pub fn clear(&self) {
        self.0.store(None);
    }
}

/// What a handshake gave.
#[derive(Clone, Debug)]
pub struct TlsFacts {
    /// Version, suite, group and the like.
    pub agreed: NegotiatedParameters,
    /// What came of the check of the peer's certificate.
    pub check: PeerCheck,
    /// The name that it gives the peer.
    pub named: MappedIdentity,
    /// The peer's certificate, if it sent one.
    pub peer: Option<Arc<CertificateFacts>>,
    /// What checks a peer that was trusted again.
    pub trusted: Option<TrustedPeer>,
}

/// Why the agent closes a connection that could continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Closing {
    /// An operator asks for it, or its run has ended.
    Requested = 1,
    /// Its peer is no longer trusted, and its rule says `recheck = "close"`.
    Untrusted,
    /// It has the age that its rule's `max-age` allows.
    Aged,
    /// It was silent for as long as its rule's `idle` allows.
    Idle,
}

impl Closing {
    const ALL: [Self; 4] = [Self::Requested, Self::Untrusted, Self::Aged, Self::Idle];
}

impl ConnectionRecord {
    /// Whether it is open without TLS, by a rule with `accept = "both"`.
    #[must_use]
    pub fn is_accepted_in_clear(&self) -> bool {
        self.rule.clear_access.is_some()
            && self.open.load(Ordering::Relaxed)
            && self.tls.get().is_none()
    }

    pub(super) fn new(id: u64, opening: Opening) -> Self {
        let Opening { rule, protocol, local, remote, proxied, scope, parent } = opening;
        Self {
            id,
            rule,
            protocol,
            since: SystemTime::now(),
            local,
            remote,
            proxied,
            scope,
            parent,
            sockets: OnceLock::new(),
            tls: CurrentTls::default(),
            open: AtomicBool::new(false),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            sent_messages: AtomicU32::new(0),
            received_messages: AtomicU32::new(0),
            rekeys: AtomicU32::new(0),
            accepted: Instant::now(),
            closing: Notify::new(),
            why_closing: AtomicU8::new(0),
            target: AtomicU8::new(0),
        }
    }

    /// The place of the target that it was dialled to, where its rule has several.
    #[must_use]
    pub fn target(&self) -> Option<usize> {
        usize::from(self.target.load(Ordering::Relaxed)).checked_sub(1)
    }

    /// It was dialled to the target at that place.
    pub fn set_target(&self, place: usize) {
        let number = u8::try_from(place + 1).unwrap_or(0);
        self.target.store(number, Ordering::Relaxed);
    }

    /// What the certificate of a server must cover that was dialled by a rule with several targets
    /// and no name in it; `None` elsewhere, and for a UNIX socket.
    #[must_use]
    pub fn dialled_host(&self) -> Option<String> {
        self.rule.rule.connect()?.targets.get(self.target()?)?.host()
    }

    /// Who is at the other end of it all: the client that a proxy names, or who connected.
    #[must_use]
    pub fn client(&self) -> &Address {
        self.proxied.as_ref().map_or(&self.remote, |proxied| &proxied.client)
    }

    /// Both ends of the program's socket, seen from the program; `None` before it is dialled, and
    /// for what belongs to no run.
    #[must_use]
    pub fn ends(&self) -> Option<SocketEnds> {
        let facts = self.scope.as_ref()?;
        let (program, peer) = if facts.is_inbound {
            let sockets = self.sockets.get()?;
            let socket = sockets.upstream.upgrade()?;
            (
                sockets.target.clone(),
                address::from_socket(&socket::local_address(socket.as_fd()).ok()?),
            )
        } else {
            let mut peer = self.remote.clone();
            if let (Address::Inet(peer), Some(alias)) = (&mut peer, facts.alias) {
                peer.set_ip(alias);
            }
            (self.local.clone(), peer)
        };
        match (program, peer) {
            (Address::Inet(program), Address::Inet(peer)) => {
                Some(SocketEnds { protocol: self.protocol, program, peer })
            }
            _ => None,
        }
    }

    /// How to ask it to begin and end TLS, if that is the program's to say.
    #[must_use]
    pub fn tls_control(&self) -> Option<&TlsControl> {
        self.scope.as_ref()?.tls_control.as_deref()
    }

    /// What is on the wire, as far as the program is concerned.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        let is_shaking = match self.tls_control() {
            Some(tls_control) => tls_control.is_handshaking(),
            None => self.rule.action.tls().is_some() && !self.is_open(),
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

    /// Payload bytes both ways.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.sent_bytes() + self.received_bytes()
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

    /// What it has cost and relayed so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            cpu_ns: self.cpu_ns(),
            sent_messages: self.sent_messages(),
            received_messages: self.received_messages(),
            sent_bytes: self.sent_bytes(),
            received_bytes: self.received_bytes(),
        }
    }

    /// Adds what it cost in the end to its scope.
    pub fn settle(&self) {
        if let Some(facts) = &self.scope {
            facts.scope.add(self.usage());
        }
    }

    /// Whether it belongs to the run with this number.
    #[must_use]
    pub fn is_of_run(&self, id: u64) -> bool {
        self.scope.as_ref().is_some_and(|facts| facts.scope.is_run(id))
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

    /// Ends the connection; both sockets are reset.
    pub fn close(&self) {
        self.close_because(Closing::Requested);
    }

    /// How long no byte has come or gone over TCP; nothing where the kernel cannot say, as between
    /// two UNIX sockets.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let Some(sockets) = self.sockets.get() else { return Duration::ZERO };
        let sockets =
            [&sockets.downstream, &sockets.upstream].into_iter().filter_map(Weak::upgrade);
        let infos = sockets.filter_map(|socket| socket::tcp_info(socket.as_fd()).ok());
        let silent_ms = infos.map(|info| info.silent_ms).min().unwrap_or(0);
        let age = now.saturating_duration_since(self.accepted);
        Duration::from_millis(silent_ms.into()).min(age)
    }

    /// The same for another reason.
    pub(super) fn close_because(&self, why: Closing) {
        // The first reason counts.
        let order = Ordering::Relaxed;
        let _ = self.why_closing.compare_exchange(0, why as u8, order, order);
        self.closing.notify_one();
    }

    /// Why it is being closed, if it is.
    #[must_use]
    pub fn why_closing(&self) -> Option<Closing> {
        let why = self.why_closing.load(Ordering::Relaxed);
        Closing::ALL.into_iter().find(|known| *known as u8 == why)
    }

    /// Resolves when [`Self::close`] is called.
    pub async fn closed(&self) {
        self.closing.notified().await;
    }
}
