//! Accepts a connection and determines its flow: the addresses and names that rules match. This is
//! stage 1 (accept) of the five stages of a connection.
//!
//! If the forwarding rule of the listener has `accept-proxy`, this module first reads a PROXY
//! protocol header from the connection. Rules match the client address in this header.
//!
//! Every worker accepts on every listening socket. When the agent has reached its limit of
//! connections or open files, further connections wait in the kernel's queue.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::proxy_protocol::{self, ParsedHeader, ProxyHeader};
use tacit_sys::peer::PeerProcess;
use tacit_sys::socket::{self, AcceptedSocket};
use tacit_sys::syn_log::Copies;
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::address;
use crate::clock;
use crate::dns::Forwarder;
use crate::ledger::meter;
use crate::log::{Event, Log};
use crate::net::stream_socket::{DetachedSocket, StreamSocket};
use crate::net::{Accepted, Security};
use crate::run::Scope;
use crate::run::hold::{FilteredPacket, HeldSyn, Hold, HoldEvent};
use crate::run::protocol::SocketEnds;

use super::stage::{AcceptedConnection, Claim, Downstream, Stage, Work};

/// The pause after the kernel had no descriptor or memory for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// How long a proxy may take to send its header, which is first on the connection.
const HEADER_WAIT_MAX: Duration = Duration::from_secs(5);

/// A listening socket of the agent.
#[derive(Debug)]
pub struct Listener {
    /// Its address as the policy writes it.
    pub address: Address,
    /// The socket, which workers and a successor share.
    pub socket: Arc<OwnedFd>,
    /// The protection of its connections. A truncated connection in clear must be reset, not
    /// closed.
    pub security: Security,
    /// The origin of its connections.
    pub source: ConnectionSource,
}

/// The origin of a listener's connections.
#[derive(Clone, Debug)]
pub enum ConnectionSource {
    /// Clients of a forwarding rule.
    Forward,
    /// Programs of a scope, whose connections are captured, and whose DNS queries the forwarder
    /// answers.
    Captured(Scope, Arc<Forwarder>),
    /// Clients of programs in a scope.
    Inbound(Scope),
}

/// A source of held SYNs of a run's programs.
#[derive(Debug)]
pub struct HoldSource {
    /// The held SYNs.
    pub hold: Arc<Hold>,
    /// The scope of the programs.
    pub scope: Scope,
    /// The listener for released connections.
    pub listener: Arc<Listener>,
}

impl ConnectionSource {
    /// The CPU of the worker that serves its connections, if there is one.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.scope().and_then(Scope::cpu)
    }

    fn scope(&self) -> Option<&Scope> {
        match self {
            Self::Forward => None,
            Self::Captured(scope, _) | Self::Inbound(scope) => Some(scope),
        }
    }
}

/// Reads what the selection of the rule may need in addition to the addresses.
impl AcceptedConnection {
    /// Asks the helper who opened the connection. The owner stays unknown if the program has closed
    /// the connection, the program also if it hides its descriptors.
    pub async fn attribute(&mut self) {
        let (Some(scope), Address::Inet(program), Address::Inet(peer)) =
            (&self.scope, &self.flow.local, &self.flow.remote)
        else {
            return;
        };
        if self.flow.direction == Direction::Outbound {
            let peer = self.flow.alias.map_or(*peer, |alias| SocketAddr::new(alias, peer.port()));
            let ends = SocketEnds { protocol: Protocol::Tcp, program: *program, peer };
            let owner = scope.owner(ends).await;
            scope.attribute(&mut self.flow, owner.ok().flatten());
        }
    }

    /// Reads the PROXY header that the rule requires.
    ///
    /// # Errors
    /// The header is missing, wrong or late. The text is for the log.
    pub async fn read_header(&mut self) -> Result<(), String> {
        let late = "the peer did not send a PROXY header in time: configure the proxy to send a \
                    header, or set accept-proxy = false in the rule";
        let Downstream::Accepted(socket) = &self.downstream else {
            return Err(
                "`accept-proxy` does not apply here, because programs under `tacit run` do not \
                 send a PROXY header"
                    .to_owned(),
            );
        };
        let read = tokio::time::timeout(HEADER_WAIT_MAX, read_header(socket)).await;
        let HeaderRead { header, early } = read.map_err(|_| late.to_owned())??;
        let proxy = self.flow.remote.clone();
        let target = match header {
            ProxyHeader::Local => None,
            ProxyHeader::Proxy { source, destination } => {
                self.flow.remote = source;
                Some(destination)
            }
        };
        self.claim = Some(Box::new(Claim { proxy, target, early }));
        Ok(())
    }
}

/// A PROXY header with the bytes that arrived after it.
struct HeaderRead {
    header: ProxyHeader,
    early: Vec<u8>,
}

async fn read_header(socket: &StreamSocket) -> Result<HeaderRead, String> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 512];
    loop {
        let parsed = proxy_protocol::parse(&bytes).map_err(|error| error.to_string())?;
        if let Some(ParsedHeader { header, consumed }) = parsed {
            bytes.drain(..consumed);
            return Ok(HeaderRead { header, early: bytes });
        }
        match socket.read(&mut chunk).await {
            Ok(0) => {
                return Err(
                    "the peer closed the connection before its PROXY header was complete".into()
                );
            }
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) => {
                return Err(format!("cannot read the PROXY header of the peer: {error}"));
            }
        }
    }
}

/// Accepts connections on a listener whenever `turn` completes, and passes each to `take`. Returns
/// only on an error.
///
/// # Errors
/// The socket cannot be watched.
pub async fn accept_all<T>(
    listener: &Listener,
    places: Arc<Semaphore>,
    log: &Log,
    turn: impl AsyncFn() -> T,
    take: impl AsyncFn(Work, T),
) -> io::Result<()> {
    let watched = watch(Arc::clone(&listener.socket), Interest::READABLE)?;
    loop {
        let mut ready = watched.readable().await?;
        let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let turn = turn().await;
        match socket::accept(listener.socket.as_fd()) {
            Ok(AcceptedSocket { socket, peer }) => {
                match accepted_work(listener, socket, peer, permit) {
                    Ok(Some(work)) => take(work, turn).await,
                    Ok(None) => {}
                    Err(error) => log.warn(
                        Event::new("accept-failed")
                            .field("listen", &listener.address)
                            .field("error", &error),
                    ),
                }
                // Let other connections of this worker run between two accepts.
                tokio::task::yield_now().await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            // The socket does not listen any more, so every further call would fail too.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(error) => {
                if socket::is_shortage(&error) {
                    log.warn(
                        Event::new("accept-paused")
                            .field("listen", &listener.address)
                            .field("error", &error)
                            .field(
                                "next",
                                "new connections wait in the kernel's accept queue until other \
                                 connections end; raise the limit of open files (LimitNOFILE= of \
                                 the systemd unit, or ulimit -n)",
                            ),
                    );
                    tokio::time::sleep(SHORTAGE_PAUSE).await;
                }
            }
        }
    }
}

/// Reads the SYNs of a run's programs whenever `turn` completes, and passes each to `take`. Packets
/// that the kernel inside has refused, and packets that filter rules log, are passed to `note`.
/// Returns only on an error.
///
/// # Errors
/// The source of SYNs cannot be watched, or has failed.
pub async fn hold_all<T>(
    source: &HoldSource,
    places: Arc<Semaphore>,
    turn: impl AsyncFn() -> T,
    take: impl AsyncFn(HeldWork, T),
    note: impl Fn(HeldNote),
) -> io::Result<()> {
    let watched = watch(Arc::clone(source.hold.log().socket()), Interest::READABLE)?;
    loop {
        let mut ready = watched.readable().await?;
        let Ok(permit) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let turn = turn().await;
        match source.hold.take_next() {
            Ok(Some(HoldEvent::Syn(held))) => take(new_work(source, held, permit), turn).await,
            Ok(Some(HoldEvent::Refused(protocol, key))) => {
                let local = Address::from(key.program);
                let remote = Address::from(key.destination);
                note(HeldNote::Refused(flow_of_program(&source.scope, protocol, local, remote)));
            }
            Ok(Some(HoldEvent::Filtered(packet))) => note(HeldNote::Filtered(packet)),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return Err(error),
        }
    }
}

/// What the kernel has reported beside SYNs.
#[derive(Debug)]
pub enum HeldNote {
    /// The flow of a packet that it has refused.
    Refused(Flow),
    /// A packet that a filter rule logs.
    Filtered(FilteredPacket),
}

/// How a held SYN is handled.
#[derive(Debug)]
pub enum HeldWork {
    /// A connection that needs a rule.
    Connection(Work),
    /// A connection that is released at once: DNS queries, or a data connection that a task
    /// expects.
    AtOnce(HeldSyn, OwnedSemaphorePermit),
    /// A SYN that may be a program's connection to itself, which the helper must find out.
    Unknown(HeldSyn, OwnedSemaphorePermit),
}

fn new_work(source: &HoldSource, held: HeldSyn, permit: OwnedSemaphorePermit) -> HeldWork {
    match source.hold.log().copies() {
        Copies::OfRule => held_work(source, held, permit),
        Copies::OfInterface => HeldWork::Unknown(held, permit),
    }
}

/// Asks the helper whether the SYN is held; `None` if the program has connected to itself.
pub async fn find_out(
    source: &HoldSource,
    held: HeldSyn,
    permit: OwnedSemaphorePermit,
) -> Option<HeldWork> {
    let run = source.scope.run();
    let ends =
        SocketEnds { protocol: Protocol::Tcp, program: held.program(), peer: held.destination() };
    // If the helper does not answer, the program's kernel sends its SYN again.
    let is_held = run.helper.is_connecting(ends).await.unwrap_or(false);
    is_held.then(|| held_work(source, held, permit))
}

fn held_work(source: &HoldSource, held: HeldSyn, permit: OwnedSemaphorePermit) -> HeldWork {
    let scope = &source.scope;
    let run = scope.run();
    let destination = held.destination();
    let is_question = match &source.listener.source {
        ConnectionSource::Captured(_, names) => {
            names.answers(Protocol::Tcp, &held.program().into(), destination)
        }
        ConnectionSource::Forward | ConnectionSource::Inbound(_) => false,
    };
    if is_question || run.is_expected(destination) {
        return HeldWork::AtOnce(held, permit);
    }
    let flow = flow_of_program(scope, Protocol::Tcp, held.program().into(), destination.into());
    let downstream = Downstream::Held(Box::new(held));
    HeldWork::Connection(connection_work(downstream, flow, Some(scope.clone()), permit))
}

/// Releases a SYN that needs no rule. Returns `None` if a task has received the data connection, or
/// the connection does not arrive.
///
/// # Errors
/// The kernel does not report the local address of the socket.
pub async fn connect_at_once(
    source: &HoldSource,
    held: HeldSyn,
    permit: OwnedSemaphorePermit,
) -> io::Result<Option<Work>> {
    let program = held.program();
    let Some(socket) = held.connect().await else { return Ok(None) };
    captured(&source.listener, socket, program.into(), permit)
}

/// Accepts a connection for which no thread waits. Returns `None` if a task has received the data
/// connection, or the limit of connections is reached.
///
/// # Errors
/// The kernel does not report the local address of the socket.
pub async fn take_stray(source: &HoldSource, places: &Arc<Semaphore>) -> io::Result<Option<Work>> {
    let AcceptedSocket { socket, peer } = source.hold.next_stray().await;
    let Ok(permit) = Arc::clone(places).try_acquire_owned() else { return Ok(None) };
    let peer = peer.as_ref().map_or(Address::Unnamed, address::from_socket);
    captured(&source.listener, socket, peer, permit)
}

/// Determines the kind of an accepted socket: a connection, or DNS queries of a run; `None` for a
/// data connection, which was passed to the expecting task.
fn accepted_work(
    listener: &Listener,
    socket: OwnedFd,
    peer: Option<socket::SocketAddress>,
    permit: OwnedSemaphorePermit,
) -> io::Result<Option<Work>> {
    let peer = peer.as_ref().map_or(Address::Unnamed, address::from_socket);
    match &listener.source {
        ConnectionSource::Captured(..) => captured(listener, socket, peer, permit),
        ConnectionSource::Forward => {
            let flow = flow_of_client(listener, &socket, peer)?;
            Ok(Some(connection(listener, socket, flow, permit)))
        }
        ConnectionSource::Inbound(scope) => {
            let mut flow = flow_of_client(listener, &socket, peer)?;
            flow.user = scope.user().map(str::to_owned);
            flow.run = Some(scope.name().to_owned());
            if let Scope::Host(_) | Scope::Joined(_) = scope {
                // The client connected to the program's own port; no rule listens there.
                flow.listen = None;
            }
            Ok(Some(connection(listener, socket, flow, permit)))
        }
    }
}

/// The connection that a program of a run has opened.
fn captured(
    listener: &Listener,
    socket: OwnedFd,
    peer: Address,
    permit: OwnedSemaphorePermit,
) -> io::Result<Option<Work>> {
    let ConnectionSource::Captured(scope, names) = &listener.source else { return Ok(None) };
    // The local address of a captured socket is the address that the program connects to.
    let remote = address::from_socket(&socket::local_address(socket.as_fd())?);
    let socket = DetachedSocket::new(socket, listener.security);
    let accepted = Accepted { socket, local: peer, remote, permit };
    let run = scope.run();
    let Some(accepted) = run.deliver_expected(accepted) else { return Ok(None) };
    let Accepted { local, remote, .. } = &accepted;
    if matches!(remote, Address::Inet(to) if names.answers(Protocol::Tcp, local, *to)) {
        let names = Arc::clone(names);
        return Ok(Some(Work::Question { accepted, names }));
    }
    let Accepted { socket, local, remote, permit } = accepted;
    let flow = flow_of_program(scope, Protocol::Tcp, local, remote);
    let scope = Some(scope.clone());
    Ok(Some(connection_work(Downstream::Accepted(socket), flow, scope, permit)))
}

/// The flow of a program's connection.
pub(super) fn flow_of_program(
    scope: &Scope,
    protocol: Protocol,
    local: Address,
    mut remote: Address,
) -> Flow {
    let mut remote_names = Vec::new();
    let mut alias = None;
    let mut is_shared = false;
    if let Address::Inet(to) = &mut remote {
        let destination = scope.destination(to.ip());
        to.set_ip(destination.address);
        remote_names = destination.names;
        alias = destination.alias;
        is_shared = destination.is_shared;
    }
    Flow {
        direction: Direction::Outbound,
        protocol,
        listen: None,
        local,
        remote_names,
        alias,
        is_shared,
        to_own_host: remote.ip().is_some_and(|ip| scope.has_host_address(ip)),
        remote,
        program: None,
        user: scope.user().map(str::to_owned),
        group: scope.group().map(str::to_owned),
        cgroup: None,
        run: Some(scope.name().to_owned()),
        at_unix_s: clock::now_unix_s(),
    }
}

fn connection_work(
    downstream: Downstream<DetachedSocket>,
    flow: Flow,
    scope: Option<Scope>,
    permit: OwnedSemaphorePermit,
) -> Work {
    let accepted = AcceptedConnection {
        downstream,
        flow,
        scope,
        permit,
        claim: None,
        usage: meter::take(),
        slot: None,
    };
    Work::Connection(Stage::Accepted(Box::new(accepted)))
}

fn connection(
    listener: &Listener,
    socket: OwnedFd,
    flow: Flow,
    permit: OwnedSemaphorePermit,
) -> Work {
    let socket = DetachedSocket::new(socket, listener.security);
    let scope = listener.source.scope().cloned();
    connection_work(Downstream::Accepted(socket), flow, scope, permit)
}

/// The flow of a client that connected to a listening address.
fn flow_of_client(listener: &Listener, socket: &OwnedFd, remote: Address) -> io::Result<Flow> {
    let local = match &listener.address {
        // The address that the client used, if the listener accepts on all addresses.
        Address::Inet(at) if at.ip().is_unspecified() => {
            address::from_socket(&socket::local_address(socket.as_fd())?)
        }
        only => only.clone(),
    };
    let UnixClient { user, program } = match &remote {
        Address::Inet(_) => UnixClient::default(),
        _ => unix_client(socket)?,
    };
    Ok(Flow {
        direction: Direction::Inbound,
        protocol: Protocol::Tcp,
        listen: Some(listener.address.clone()),
        local,
        remote,
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program,
        user,
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: clock::now_unix_s(),
    })
}

/// The process at the other end of a UNIX socket, as far as it is known.
#[derive(Default)]
struct UnixClient {
    user: Option<String>,
    /// The program, which is only a label, because the process may have executed another one since.
    /// It is known only if a rule has `program`: otherwise the sandbox hides other processes.
    program: Option<PathBuf>,
}

/// Finds the process at the other end of a UNIX socket.
fn unix_client(socket: &OwnedFd) -> io::Result<UnixClient> {
    let credentials = socket::peer_credentials(socket.as_fd())?;
    let user = address::known_user_name(credentials.uid);
    let process = credentials.pid.and_then(|pid| PeerProcess::of(socket.as_fd(), pid));
    let program = process.and_then(|process| {
        process.read(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok())
    });
    Ok(UnixClient { user: Some(user), program })
}
