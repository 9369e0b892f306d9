//! Implements the client of a link. The client requests sockets from `tacit link serve` for the
//! agent of a run.
//!
//! The client opens a connection to the server to send its Hello message. This connection stays
//! open as long as the run exists. If the connection ends earlier, the server has ended. Then the
//! client refuses every request, and sends Hello again every `RETRY_INTERVAL`.
//!
//! A link within one kernel has one server. The sockets that this server has opened belong to the
//! run, and continue to work when the server ends.
//!
//! A link to another kernel has two servers: the local server on the kernel of the run, and the
//! remote server on the other kernel. The sockets of the run are connected to the local server.
//! These sockets are reset when one of the two servers ends. After a restart of the remote server,
//! the remote server again binds the addresses on which the run listens. After a restart of the
//! local server, the agent requests new sockets for these addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tacit_sys::handed::SocketIdentity;
use tacit_sys::netlink::usage::UsageSockets;
use tacit_sys::socket::{DialledSocket, SocketAddress, StreamOptions, UnixAddress};
use tacit_sys::{descriptor, process, socket};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, Notify, watch};

use super::choice::{ChosenLink, LinkLevel};
use super::protocol::{
    ANSWER_BYTES_MAX, LinkAnswer, LinkHello, LinkRequest, LinkWelcome, ListenOrder,
    ListeningRequest, OpenKind, OpenRequest, PassRequest, VERSION,
};
use crate::log::{Event, Log};
use crate::run::channel::{read_first, read_frame, write_frame};
use crate::run::protocol::{ConnectAnswer, Frame, encode};

/// The maximum time between the Hello message and the answer of the server.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(5);
/// The maximum number of open streams without a request. The next request uses one of them.
const IDLE_STREAMS_MAX: usize = 4;
/// After the server has ended: the time between two attempts to connect to a new server.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const WRONG_ANSWER: &str =
    "the server of the link sent an answer whose type does not fit the request";

/// The client of a link, for one run.
#[derive(Debug)]
pub struct LinkClient {
    path: PathBuf,
    /// Where the name of the link comes from: an option, a variable or the policy.
    level: LinkLevel,
    run: String,
    /// The offer of the server: its answer to Hello. `None` while no server runs.
    session: ArcSwapOption<LinkWelcome>,
    /// The offer of the server at the start of the run.
    first: LinkWelcome,
    /// The network namespace of handed sockets. `None` if the server opens no handed sockets.
    handed: Option<HandedNetwork>,
    /// Open streams that can be used for the next request for a handed socket. With a new stream,
    /// a program would wait twice as long for its socket.
    idle: StdMutex<Vec<UnixStream>>,
    /// The addresses that the server on another kernel has bound for the run, and the last order of
    /// the run for each address. After a restart, this server binds these addresses again.
    bound: Mutex<BTreeMap<SocketAddr, ListenOrder>>,
    /// Whether the run has ended. Connections of the run may still use the link.
    run_ended: watch::Sender<bool>,
    /// How often the run has lost its bound sockets, because a server has ended.
    generation: AtomicU64,
    /// Wakes the task that binds the addresses of the run again.
    rebind: Notify,
}

/// A handed socket: the server of the link has opened this socket for a program.
#[derive(Debug)]
pub enum PassedSocket {
    /// The server has passed the socket to the agent. The agent must pass it to the helper.
    ToAgent(OwnedFd),
    /// The server has passed the socket directly to the helper.
    ToHelper(SocketIdentity),
}

/// The network namespace of handed sockets.
#[derive(Debug)]
struct HandedNetwork {
    /// The number that identifies the network namespace.
    namespace: u64,
    /// Netlink sockets that report the byte counters of handed sockets. `None` after
    /// [`LinkClient::take_usage`].
    usage: StdMutex<Option<UsageSockets>>,
}

/// The reason why a run cannot use a link.
#[derive(Debug)]
pub struct LinkError {
    path: PathBuf,
    reason: String,
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot use the link at {}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for LinkError {}

impl LinkError {
    /// Makes the error for a policy with `ipsec` rules. A run with a link cannot use these rules.
    #[must_use]
    pub fn tunnels(path: &Path) -> Self {
        let reason = "the policy has rules with `ipsec`, but tacit cannot open tunnels through a \
                      link\n    fix: remove these rules, or start the run without --link";
        Self { path: path.to_owned(), reason: reason.to_owned() }
    }
}

impl LinkClient {
    /// Sends Hello to the server for a run. Then starts a task on the calling thread that notices
    /// when the server ends.
    ///
    /// # Errors
    /// No server runs, the server belongs to another user, or the server refuses the run.
    pub async fn open(chosen: ChosenLink, run: &str, log: Log) -> Result<Arc<Self>, LinkError> {
        let ChosenLink { path, level } = chosen;
        let (stream, welcome) = hello(&path, run).await?;
        let session = ArcSwapOption::from_pointee(welcome.clone());
        // Without handed sockets, the agent relays all connections.
        let handed = handed_network(&path, &welcome).await.ok().flatten();
        let client = Self {
            path,
            level,
            run: run.to_owned(),
            session,
            first: welcome,
            handed,
            idle: StdMutex::default(),
            bound: Mutex::default(),
            run_ended: watch::Sender::new(false),
            generation: AtomicU64::new(0),
            rebind: Notify::new(),
        };
        let client = Arc::new(client);
        tokio::task::spawn_local(Arc::clone(&client).watch(stream, log));
        Ok(client)
    }

    /// The path of the UNIX socket on which the server listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the name of the link comes from: an option, a variable or the policy.
    #[must_use]
    pub fn level(&self) -> LinkLevel {
        self.level
    }

    /// The offer of the server at the start of the run.
    #[must_use]
    pub fn offer(&self) -> &LinkWelcome {
        &self.first
    }

    /// The number that identifies the network namespace of handed sockets ([`OpenKind::Handed`]).
    /// `None` if the server opens no handed sockets.
    #[must_use]
    pub fn handed_namespace(&self) -> Option<u64> {
        self.handed.as_ref().map(|handed| handed.namespace)
    }

    /// Returns the netlink sockets that report the byte counters of handed sockets. Returns `None`
    /// if the server opens no handed sockets, and for every call after the first.
    #[must_use]
    pub fn take_usage(&self) -> Option<UsageSockets> {
        let usage = &self.handed.as_ref()?.usage;
        usage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A number that changes when the run loses its bound sockets because a server has ended. A
    /// lost socket gets no more clients.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Waits until the agent must bind the addresses of the run again.
    pub async fn must_rebind(&self) {
        self.rebind.notified().await;
    }

    /// Wakes the task that waits in [`Self::must_rebind`].
    pub fn rebind_soon(&self) {
        self.rebind.notify_one();
    }

    /// After `RETRY_INTERVAL`, wakes the task that waits in [`Self::must_rebind`].
    pub fn rebind_later(self: &Arc<Self>) {
        let link = Arc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(RETRY_INTERVAL).await;
            link.rebind.notify_one();
        });
    }

    /// Reports to the server that the run has ended. The connections of the run stay open.
    pub fn report_end(&self) {
        self.run_ended.send_replace(true);
    }

    /// Opens a socket on the side of the link that has a network.
    ///
    /// # Errors
    /// `ConnectionRefused` if no server runs, or if the policy or a limit of the server denies the
    /// socket; otherwise the error of the kernel on the side with the network.
    pub async fn socket(&self, kind: OpenKind, address: SocketAddr) -> io::Result<OwnedFd> {
        let welcome = self.welcome()?;
        let session = welcome.session;
        let request = LinkRequest::Open(OpenRequest { session, kind, address });
        let asked = match kind {
            OpenKind::Handed => self.ask_again(&request, &[]).await,
            _ => ask(&self.path, &request).await.map(|(_, frame)| frame),
        };
        let opened = opened(asked.map_err(|error| unanswered(&error))?)?;
        if welcome.remote && kind == OpenKind::Bound {
            // The other side may have chosen the port.
            let local = SocketAddr::try_from(socket::local_address(opened.as_fd())?)?;
            let address = SocketAddr::new(address.ip(), local.port());
            self.bound.lock().await.insert(address, ListenOrder::Suspend);
        }
        Ok(opened)
    }

    /// Whether the server can pass a handed socket directly to the helper of the run.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.session.load().as_ref().is_some_and(|welcome| welcome.passes)
    }

    /// Asks the server to open a socket for a program, and to set its congestion control. The
    /// server then passes the socket, with `answer`, to the helper at the other end of `channel`.
    ///
    /// # Errors
    /// The same as [`Self::socket`].
    pub async fn pass(
        &self,
        address: SocketAddr,
        congestion_control: Option<String>,
        answer: ConnectAnswer,
        channel: BorrowedFd<'_>,
    ) -> io::Result<PassedSocket> {
        let session = self.welcome()?.session;
        let missing = "the server of the link cannot pass sockets to programs";
        let namespace = self.handed_namespace().ok_or_else(|| refused(missing))?;
        let request = PassRequest { session, address, namespace, congestion_control, answer };
        let asked = self.ask_again(&LinkRequest::Pass(request), &[channel]).await;
        let frame = asked.map_err(|error| unanswered(&error))?;
        match frame.message {
            LinkAnswer::Passed { inode, cookie } => {
                Ok(PassedSocket::ToHelper(SocketIdentity { inode, cookie }))
            }
            _ => opened(frame).map(PassedSocket::ToAgent),
        }
    }

    /// The current offer of the server.
    ///
    /// # Errors
    /// No server runs.
    fn welcome(&self) -> io::Result<Arc<LinkWelcome>> {
        self.session.load_full().ok_or_else(|| refused("the server of the link has ended"))
    }

    /// Sends a request on an idle stream. If there is no idle stream, or if this stream fails, the
    /// request is sent on a new stream.
    async fn ask_again(
        &self,
        request: &LinkRequest,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Frame<LinkAnswer>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let asked = match idle {
            Some(stream) => ask_on(stream, request, descriptors).await,
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let (stream, frame) = match asked {
            Ok(answered) => answered,
            Err(_) => ask_on(connect_checked(&self.path).await?, request, descriptors).await?,
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_STREAMS_MAX {
            idle.push(stream);
        }
        drop(idle);
        Ok(frame)
    }

    /// Orders the server on another kernel to listen at a bound socket, or to stop listening. Does
    /// nothing if run and server use the same kernel: then the run itself listens at the socket.
    ///
    /// # Errors
    /// No server runs, or the kernel of the other side reports an error.
    pub async fn set_listening(&self, address: SocketAddr, order: ListenOrder) -> io::Result<()> {
        let session = self.session.load();
        let session =
            session.as_ref().ok_or_else(|| refused("the server of the link has ended"))?;
        if !session.remote {
            return Ok(());
        }
        let request = ListeningRequest { session: session.session, address, order };
        self.order(LinkRequest::Listening(request)).await?;
        self.bound.lock().await.insert(address, order);
        Ok(())
    }

    /// Removes an address from the list of addresses that are bound again after a restart.
    pub async fn forget_bound(&self, address: SocketAddr) {
        self.bound.lock().await.remove(&address);
    }

    /// Sends a request to which the server answers only with success or an error.
    async fn order(&self, request: LinkRequest) -> io::Result<()> {
        match ask(&self.path, &request).await?.1.message {
            LinkAnswer::Done => Ok(()),
            LinkAnswer::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            LinkAnswer::Refused(reason) => Err(refused(&reason)),
            _ => Err(refused(WRONG_ANSWER)),
        }
    }

    /// After the end of a server, orders the next server to bind the same addresses again.
    async fn bind_again(&self, session: u64) -> io::Result<()> {
        let bound = self.bound.lock().await.clone();
        for (address, order) in bound {
            let open = OpenRequest { session, kind: OpenKind::BoundAgain, address };
            self.order(LinkRequest::Open(open)).await?;
            if order == ListenOrder::Listen {
                let listen = ListeningRequest { session, address, order };
                self.order(LinkRequest::Listening(listen)).await?;
            }
        }
        Ok(())
    }

    /// Discards all bound addresses of the run, and wakes the task that binds new sockets for these
    /// addresses.
    async fn discard_bound(&self) {
        let bound = std::mem::take(&mut *self.bound.lock().await);
        if !bound.is_empty() {
            self.generation.fetch_add(1, Ordering::Relaxed);
            self.rebind.notify_one();
        }
    }

    /// Waits until the server ends. If the run ends earlier, first reports this to the server.
    async fn wait_for_end(&self, stream: &mut UnixStream) {
        let mut run_ended = self.run_ended.subscribe();
        tokio::select! {
            // The server sends nothing more on this stream.
            _ = read_frame::<LinkAnswer>(stream, ANSWER_BYTES_MAX) => return,
            // The sender is part of this client.
            _ = run_ended.wait_for(|ended| *ended) => {}
        }
        if write_frame(stream, &LinkRequest::RunEnded).await.is_ok() {
            let _ = read_frame::<LinkAnswer>(stream, ANSWER_BYTES_MAX).await;
        }
    }

    /// Waits until the server ends. Then repeatedly tries to connect to the next server.
    async fn watch(self: Arc<Self>, mut stream: UnixStream, log: Log) {
        let mut instance = self.first.instance;
        loop {
            self.wait_for_end(&mut stream).await;
            self.session.store(None);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            let event = Event::new("link-lost").field("path", &self.path.display());
            let next = "the agent refuses connections through the link until `tacit link serve` \
                        runs again";
            log.error(event.field("run", &self.run).field("next", next));
            stream = loop {
                tokio::time::sleep(RETRY_INTERVAL).await;
                if let Ok((stream, welcome)) = hello(&self.path, &self.run).await {
                    let session = welcome.session;
                    let now = welcome.instance;
                    self.session.store(Some(Arc::new(welcome)));
                    let is_same = std::mem::replace(&mut instance, now) == now;
                    if !is_same || self.bind_again(session).await.is_err() {
                        self.discard_bound().await;
                    }
                    break stream;
                }
            };
            let event = Event::new("link-restored").field("path", &self.path.display());
            log.info(event.field("run", &self.run));
        }
    }
}

async fn hello(path: &Path, run: &str) -> Result<(UnixStream, LinkWelcome), LinkError> {
    let failed = |reason: String| LinkError { path: path.to_owned(), reason };
    let hello = LinkRequest::Hello(LinkHello { version: VERSION, run: run.to_owned() });
    let requested = tokio::time::timeout(HELLO_WAIT_MAX, ask(path, &hello)).await;
    let requested = requested.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let (stream, Frame { message, .. }) = requested.map_err(|error| {
        failed(format!(
            "{error}\n    fix: start `tacit link serve` on the side that has the network; \
             `tacit link list` shows the links of this user"
        ))
    })?;
    match message {
        LinkAnswer::Welcome(welcome) if welcome.version == VERSION => Ok((stream, welcome)),
        LinkAnswer::Welcome(welcome) => Err(failed(format!(
            "the server of the link uses protocol version {}, but `tacit run` uses version \
             {VERSION}\n    fix: use the same version of tacit on both sides",
            welcome.version
        ))),
        LinkAnswer::Refused(reason) => Err(failed(reason)),
        _ => Err(failed(WRONG_ANSWER.to_owned())),
    }
}

/// The network namespace of handed sockets. `None` if the server opens no handed sockets.
async fn handed_network(path: &Path, welcome: &LinkWelcome) -> io::Result<Option<HandedNetwork>> {
    if !welcome.hands || welcome.remote {
        return Ok(None);
    }
    let request = LinkRequest::Usage(welcome.session);
    let answer = tokio::time::timeout(HELLO_WAIT_MAX, ask(path, &request)).await?;
    let Frame { message, descriptors } = answer?.1;
    let mut descriptors = descriptors.into_iter();
    let (LinkAnswer::Usage, Some(destroyed), Some(diagnosis)) =
        (message, descriptors.next(), descriptors.next())
    else {
        return Ok(None);
    };
    let usage = UsageSockets::adopt(destroyed, diagnosis)?;
    let namespace = usage.namespace()?;
    Ok(Some(HandedNetwork { namespace, usage: StdMutex::new(Some(usage)) }))
}

/// Sends one request on a new stream, and reads the answer.
///
/// # Errors
/// No server runs, the server belongs to another user, or the server sends no answer.
pub async fn ask(
    path: &Path,
    request: &LinkRequest,
) -> io::Result<(UnixStream, Frame<LinkAnswer>)> {
    ask_on(connect_checked(path).await?, request, &[]).await
}

/// Sends a request, and reads the answer. No other request may be pending on the stream.
async fn ask_on(
    mut stream: UnixStream,
    request: &LinkRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<(UnixStream, Frame<LinkAnswer>)> {
    let bytes = encode(request)?;
    // There is room in the socket, so this does not wait for the runtime.
    let sent = descriptor::send(&stream, &bytes, descriptors)?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await?;
    let answer = read_first(&stream).await?.frame(&mut stream, ANSWER_BYTES_MAX).await?;
    Ok((stream, answer.ok_or(io::ErrorKind::UnexpectedEof)?))
}

async fn connect_checked(path: &Path) -> io::Result<UnixStream> {
    let stream = connect(path).await?;
    check_server(&stream)?;
    Ok(stream)
}

/// Returns the socket that came with an answer.
fn opened(frame: Frame<LinkAnswer>) -> io::Result<OwnedFd> {
    let Frame { message, mut descriptors } = frame;
    match message {
        LinkAnswer::Socket => descriptors
            .pop()
            .ok_or_else(|| refused("the server of the link sent an answer without the socket")),
        LinkAnswer::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
        LinkAnswer::Refused(reason) => Err(refused(&reason)),
        _ => Err(refused(WRONG_ANSWER)),
    }
}

/// Connects to a server. Waits only if the accept queue of the server is full.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddress::from(UnixAddress::new(path)?);
    match socket::dial(&address, &StreamOptions::default()) {
        Ok(DialledSocket { socket, .. }) => UnixStream::from_std(socket.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => UnixStream::connect(path).await,
        Err(error) => Err(error),
    }
}

/// Checks that the server belongs to this user or to root. Another user could read the bytes that a
/// program sends in clear.
fn check_server(stream: &UnixStream) -> io::Result<()> {
    let server = socket::peer_credentials(stream.as_fd())?.uid;
    let user = process::effective_user();
    if server == 0 || server == user {
        return Ok(());
    }
    let reason = format!(
        "the server of the link runs as user {server}, but must run as user {user} or as root"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn unanswered(error: &io::Error) -> io::Error {
    refused(&format!("the request to the server of the link failed: {error}"))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, reason)
}

#[cfg(test)]
mod tests;
