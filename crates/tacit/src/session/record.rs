//! Defines the record of a connection or datagram flow: its rule, addresses, sockets, TLS
//! parameters and counters. `tacit show`, the query socket and the log use this record.
//!
//! One worker relays the connection and writes the counters. Every thread may read the counters.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tacit_core::flow::{Address, Protocol};
use tacit_core::query::ConnectionState;
use tacit_sys::socket;

use crate::address;
use crate::clock::StartTime;
use crate::ledger::Account;
use crate::live::LiveRule;
use crate::run::protocol::{SocketEnds, SocketOwner};
use crate::run::{KnownReason, Scope, Usage};
use tacit_tls::recheck::TrustedPeer;
use tacit_tls::verify::MappedIdentity;
use tacit_tls::{CertificateFacts, NegotiatedParameters, PeerCheck};

use super::tls_control::TlsControl;

/// The data of a connection that displays show.
#[derive(Debug)]
pub struct ConnectionRecord {
    /// The number of the connection, from 1 since the agent started.
    pub id: u64,
    /// The rule with which it opened.
    pub rule: Arc<LiveRule>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// When it was accepted.
    pub accepted: StartTime,
    /// The local address of the accepted socket.
    pub local: Address,
    /// The address that connected, as the kernel reports it.
    pub remote: Address,
    /// Facts that few connections have.
    origin: Option<Box<Origin>>,
    /// The scope that captured it, with facts from there; `None` for a forwarding rule.
    pub scope: Option<Box<ScopeFacts>>,
    /// The sockets, as long as they are open.
    pub sockets: OnceLock<ConnectionSockets>,
    /// The results of the handshake.
    pub tls: CurrentTls,
    /// [`OPEN`] and [`TRACED`].
    marks: AtomicU8,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    cpu_ns: AtomicU64,
    pub(super) sent_messages: AtomicU32,
    pub(super) received_messages: AtomicU32,
    pub(super) rekeys: AtomicU32,
    /// Wakes the task that serves it, when it must close it.
    closer: Mutex<Option<Waker>>,
    /// A [`Closing`] as a number; 0 if the connection is not being closed.
    why_closing: AtomicU8,
    /// The index of the rule's target that it is connected to, from 1; 0 before it is connected.
    target: AtomicU8,
}

/// The facts with which a connection or a datagram flow is opened.
#[derive(Debug)]
pub struct Opening {
    /// The rule that permits it.
    pub rule: Arc<LiveRule>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The local address of the accepted socket.
    pub local: Address,
    /// The address that connected, as the kernel reports it.
    pub remote: Address,
    /// The addresses of an accepted PROXY header.
    pub proxied: Option<Proxied>,
    /// The scope that captured it, with facts from there.
    pub scope: Option<Box<ScopeFacts>>,
    /// The number of the connection that negotiated this one.
    pub parent: Option<NonZeroU64>,
}

/// The addresses of a PROXY header.
#[derive(Debug)]
pub struct Proxied {
    /// The client.
    pub client: Address,
    /// The address that the client connected to.
    pub target: Address,
}

/// What few connections have.
#[derive(Debug)]
struct Origin {
    /// The addresses of an accepted PROXY header.
    proxied: Option<Proxied>,
    /// The number of the connection that negotiated this one.
    parent: Option<NonZeroU64>,
}

/// Facts about a captured connection.
#[derive(Debug)]
pub struct ScopeFacts {
    /// The scope.
    pub scope: Scope,
    /// Whether a client outside opened it; otherwise a program of the scope did.
    pub is_inbound: bool,
    /// The names that the program looked up and that have the remote address.
    pub names: Vec<String>,
    /// The alias that the program connected to instead of the remote address.
    pub alias: Option<IpAddr>,
    /// How often it moved to another worker because its program was on another CPU.
    pub moves: AtomicU8,
    /// Receives requests for TLS, if the program decides when TLS begins.
    pub tls_control: Option<Box<TlsControl>>,
    /// How its bytes reach the destination.
    pub path: ConnectionPath,
}

/// How the bytes of a connection reach its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionPath {
    /// Through the agent, for this reason, if the rule allows another path.
    Relay(Option<KnownReason>),
    /// The program has a socket of the agent's network. The owner is the process that connected.
    Handed(Box<SocketOwner>),
}

impl ScopeFacts {
    /// How often it moved to another worker.
    #[must_use]
    pub fn moves(&self) -> u8 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Counts a move. Only the thread that has the connection calls this.
    pub fn count_move(&self) {
        self.moves.store(self.moves().saturating_add(1), Ordering::Relaxed);
    }
}

/// Both sockets of a connection.
#[derive(Debug)]
pub struct ConnectionSockets {
    /// The accepted socket.
    pub downstream: Weak<OwnedFd>,
    /// The connected socket.
    pub upstream: Weak<OwnedFd>,
    /// The address that the upstream socket is connected to.
    pub target: Address,
}

/// The results of the current TLS handshake, for displays. If the program decides when TLS begins
/// and ends, there can be several, one after the other.
#[derive(Debug, Default)]
pub struct CurrentTls(ArcSwapOption<TlsFacts>);

impl CurrentTls {
    /// The results of the last handshake; `None` if there was none, or its TLS has ended.
    #[must_use]
    pub fn get(&self) -> Option<Arc<TlsFacts>> {
        self.0.load_full()
    }

    /// Sets the results when TLS has begun.
    pub fn set(&self, facts: Arc<TlsFacts>) {
        self.0.store(Some(facts));
    }

    /// Replaces the results of a handshake, unless there was another handshake since.
    pub(super) fn replace(&self, old: &Arc<TlsFacts>, new: TlsFacts) {
        self.0.compare_and_swap(&Some(Arc::clone(old)), Some(Arc::new(new)));
    }

    /// Removes the results when TLS has ended.
    pub fn clear(&self) {
        self.0.store(None);
    }
}

/// The results of a handshake.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsFacts {
    /// The negotiated parameters: version, cipher suite, group and others.
    pub agreed: NegotiatedParameters,
    /// The result of the verification of the peer's certificate.
    pub check: PeerCheck,
    /// The identity that the rule gives the peer.
    pub named: MappedIdentity,
    /// The peer's certificate, if it sent one.
    pub peer: Option<Arc<CertificateFacts>>,
    /// The chain of a trusted peer, to verify it again later.
    pub trusted: Option<TrustedPeer>,
}

/// Why the agent closes a connection that could continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Closing {
    /// An operator requested it.
    Requested = 1,
    /// The peer is no longer trusted, and the rule has `recheck = "close"`.
    Untrusted,
    /// The connection has reached the `max-age` of its rule.
    Aged,
    /// The connection was idle for the time `idle` of its rule.
    Idle,
    /// Its run has ended, and the time for its last bytes is over.
    RunEnded,
}

impl Closing {
    const ALL: [Self; 5] =
        [Self::Requested, Self::Untrusted, Self::Aged, Self::Idle, Self::RunEnded];
}

/// A mark of a connection that relays bytes.
const OPEN: u8 = 1;
/// A mark of a connection that a trace may record.
const TRACED: u8 = 2;

impl ConnectionRecord {
    /// Whether it is open without TLS, by a rule with `accept = "both"`.
    #[must_use]
    pub fn is_accepted_in_clear(&self) -> bool {
        self.rule.clear_access.is_some() && self.has_mark(OPEN) && self.tls.get().is_none()
    }

    pub(super) fn new(id: u64, opening: Opening) -> Self {
        let Opening { rule, protocol, local, remote, proxied, scope, parent } = opening;
        let has_origin = proxied.is_some() || parent.is_some();
        Self {
            id,
            rule,
            protocol,
            accepted: StartTime::now(),
            local,
            remote,
            origin: has_origin.then(|| Box::new(Origin { proxied, parent })),
            scope,
            sockets: OnceLock::new(),
            tls: CurrentTls::default(),
            marks: AtomicU8::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            sent_messages: AtomicU32::new(0),
            received_messages: AtomicU32::new(0),
            rekeys: AtomicU32::new(0),
            closer: Mutex::new(None),
            why_closing: AtomicU8::new(0),
            target: AtomicU8::new(0),
        }
    }

    /// The addresses of an accepted PROXY header.
    #[must_use]
    pub fn proxied(&self) -> Option<&Proxied> {
        self.origin.as_ref()?.proxied.as_ref()
    }

    /// The number of the connection that negotiated this one.
    #[must_use]
    pub fn parent(&self) -> Option<NonZeroU64> {
        self.origin.as_ref()?.parent
    }

    /// The index of the target that it is connected to, if its rule has several.
    #[must_use]
    pub fn target(&self) -> Option<usize> {
        usize::from(self.target.load(Ordering::Relaxed)).checked_sub(1)
    }

    /// Sets the index of the target that it is connected to.
    pub fn set_target(&self, place: usize) {
        let number = u8::try_from(place + 1).unwrap_or(0);
        self.target.store(number, Ordering::Relaxed);
    }

    /// The name that the server's certificate must have, for a rule with several targets and
    /// without `server-name`; otherwise `None`, and for a UNIX socket.
    #[must_use]
    pub fn dialled_host(&self) -> Option<String> {
        self.rule.rule.connect()?.targets.get(self.target()?)?.host()
    }

    /// The client: the one in the PROXY header, or the address that connected.
    #[must_use]
    pub fn client(&self) -> &Address {
        self.proxied().map_or(&self.remote, |proxied| &proxied.client)
    }

    /// The addresses of the program's socket, seen from the program; `None` before the upstream is
    /// connected, and for connections that belong to no run.
    #[must_use]
    pub fn ends(&self) -> Option<SocketEnds> {
        let facts = self.scope.as_ref()?;
        if self.handed_to().is_some() {
            // Its socket is not in the network of the program.
            return None;
        }
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

    /// The addresses of a socket of the agent that a program has; `None` for other connections.
    #[must_use]
    pub fn handed_ends(&self) -> Option<SocketEnds> {
        self.handed_to()?;
        match (&self.local, &self.sockets.get()?.target) {
            (&Address::Inet(program), &Address::Inet(peer)) => {
                Some(SocketEnds { protocol: self.protocol, program, peer })
            }
            _ => None,
        }
    }

    /// The process that has the socket, if the program connected with a socket of the agent.
    #[must_use]
    pub fn handed_to(&self) -> Option<&SocketOwner> {
        match &self.scope.as_ref()?.path {
            ConnectionPath::Handed(owner) => Some(owner),
            ConnectionPath::Relay(_) => None,
        }
    }

    /// Returns the channel for requests to begin and end TLS, if the program controls TLS.
    #[must_use]
    pub fn tls_control(&self) -> Option<&TlsControl> {
        self.scope.as_ref()?.tls_control.as_deref()
    }

    /// The state for the query socket: setting up, clear or TLS.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        let is_handshaking = match self.tls_control() {
            Some(tls_control) => tls_control.is_handshaking(),
            None => self.rule.action.tls().is_some() && !self.is_open(),
        };
        match self.tls.get() {
            _ if is_handshaking => ConnectionState::Handshaking,
            Some(_) => ConnectionState::Secure,
            None => ConnectionState::Clear,
        }
    }

    /// Payload bytes from the client (downstream).
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Payload bytes to the client (downstream).
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    /// Payload bytes in both directions.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.sent_bytes() + self.received_bytes()
    }

    /// CPU time of the agent for this connection so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Adds CPU time. Only the worker that relays the connection calls this.
    pub fn spend_ns(&self, ns: u64) {
        self.cpu_ns.store(self.cpu_ns() + ns, Ordering::Relaxed);
    }

    /// CPU time, messages and bytes so far.
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

    /// Adds the final usage to the totals of its scope.
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

    /// Messages from the client: bytes without a byte in the other direction in between.
    #[must_use]
    pub fn sent_messages(&self) -> u32 {
        self.sent_messages.load(Ordering::Relaxed)
    }

    /// Messages to the client.
    #[must_use]
    pub fn received_messages(&self) -> u32 {
        self.received_messages.load(Ordering::Relaxed)
    }

    /// The account to which its CPU time is charged.
    #[must_use]
    pub fn account(&self) -> &Arc<Account> {
        self.rule.account()
    }

    /// The number of KeyUpdate messages sent.
    #[must_use]
    pub fn rekeys(&self) -> u32 {
        self.rekeys.load(Ordering::Relaxed)
    }

    /// Whether it is established: connected, with a complete handshake.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.has_mark(OPEN)
    }

    /// Whether it is established, and waits for its first message, or for a free process, before
    /// it gets its program.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_open() && self.sockets.get().is_none() && self.rule.rule.activation().is_some()
    }

    /// Whether a trace may record it.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.has_mark(TRACED)
    }

    pub(super) fn mark_traced(&self) {
        self.marks.fetch_or(TRACED, Ordering::Relaxed);
    }

    pub(super) fn mark_untraced(&self) {
        self.marks.fetch_and(!TRACED, Ordering::Relaxed);
    }

    pub(super) fn mark_open(&self) {
        self.marks.fetch_or(OPEN, Ordering::Relaxed);
    }

    fn has_mark(&self, mark: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & mark != 0
    }

    /// Closes the connection; both sockets are reset.
    pub fn close(&self) {
        self.close_because(Closing::Requested);
    }

    /// How long no byte was sent or received over TCP; zero if the kernel does not report it, as
    /// for two UNIX sockets.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let age = self.accepted.age(now);
        let Some(sockets) = self.sockets.get() else {
            return if self.is_waiting() { age } else { Duration::ZERO };
        };
        let sockets =
            [&sockets.downstream, &sockets.upstream].into_iter().filter_map(Weak::upgrade);
        let infos = sockets.filter_map(|socket| socket::tcp_info(socket.as_fd()).ok());
        let silent_ms = infos.map(|info| info.silent_ms).min().unwrap_or(0);
        Duration::from_millis(silent_ms.into()).min(age)
    }

    /// Closes the connection for this reason.
    pub fn close_because(&self, why: Closing) {
        // Only the first reason is kept.
        let order = Ordering::Relaxed;
        let _ = self.why_closing.compare_exchange(0, why as u8, order, order);
        // The lock orders this with a task that begins to wait: it sees the reason, or is woken.
        let closer = self.closer.lock().unwrap_or_else(PoisonError::into_inner).take();
        closer.into_iter().for_each(Waker::wake);
    }

    /// Why it is being closed, if it is.
    #[must_use]
    pub fn why_closing(&self) -> Option<Closing> {
        let why = self.why_closing.load(Ordering::Relaxed);
        Closing::ALL.into_iter().find(|known| *known as u8 == why)
    }

    /// Whether it is being closed.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.why_closing.load(Ordering::Relaxed) != 0
    }

    /// Resolves when [`Self::close_because`] is called. Only one task can wait.
    pub async fn closed(&self) {
        std::future::poll_fn(|cx| self.poll_closed(cx)).await;
    }

    /// Forgets the task that waits, which has ended. Otherwise its memory would stay until the
    /// record is dropped.
    pub fn forget_closer(&self) {
        *self.closer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The same as [`Self::closed`].
    pub fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut closer = self.closer.lock().unwrap_or_else(PoisonError::into_inner);
        if !closer.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *closer = Some(cx.waker().clone());
        }
        drop(closer);
        if self.is_closing() { Poll::Ready(()) } else { Poll::Pending }
    }
}
