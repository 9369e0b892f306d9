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

/// How long the server may take for its answer to a hello.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(5);
/// The maximum number of streams that wait for the next request for a socket.
const IDLE_STREAMS_MAX: usize = 4;
/// The time between two attempts to reach a server that has ended.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const WRONG_ANSWER: &str =
    "the server of the link sent an answer whose type does not fit the request";

/// The client of a link, for one run.
#[derive(Debug)]
pub struct LinkClient {
    path: PathBuf,
    /// What has chosen the link.
    level: LinkLevel,
    run: String,
    /// What the server offers; `None` after it has ended.
    session: ArcSwapOption<LinkWelcome>,
    /// What it offered at the start of the run.
    first: LinkWelcome,
    /// The network namespace of the sockets that programs connect themselves; `None` if they get
    /// none.
    handed: Option<HandedNetwork>,
    /// Streams on which the server has answered a request for a handed socket, and accepts the next
    /// one. A new stream would double the time until a program has its socket.
    idle: StdMutex<Vec<UnixStream>>,
    /// The addresses that a server of another kernel has bound for the run, and its last order for
    /// each. A later server binds them again.
    bound: Mutex<BTreeMap<SocketAddr, ListenOrder>>,
    /// Whether the run has ended, and only its connections use the link.
    run_ended: watch::Sender<bool>,
    /// How often bound sockets have become useless.
    generation: AtomicU64,
    /// Wakes when the agent must bind addresses.
    rebind: Notify,
}

/// A socket of a link for a program that connects it.
#[derive(Debug)]
pub enum PassedSocket {
    /// The agent passes it to the helper.
    ToAgent(OwnedFd),
    /// The server has passed it to the helper.
    ToHelper(SocketIdentity),
}

/// The network of sockets that programs connect themselves.
#[derive(Debug)]
struct HandedNetwork {
    /// The number of the network namespace.
    namespace: u64,
    /// Report what these sockets transfer, until they are taken.
    usage: StdMutex<Option<UsageSockets>>,
}

/// Why a link cannot be used.
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
    /// The policy of the run has rules with `ipsec`.
    #[must_use]
    pub fn tunnels(path: &Path) -> Self {
        let reason = "the policy has rules with `ipsec`, but tacit cannot open tunnels through a \
                      link\n    fix: remove these rules, or start the run without --link";
        Self { path: path.to_owned(), reason: reason.to_owned() }
    }
}

impl LinkClient {
    /// Says hello for a run, and then watches the server in a task of the calling thread.
    ///
    /// # Errors
    /// There is no server, it belongs to another user, or it refuses the run.
    pub async fn open(chosen: ChosenLink, run: &str, log: Log) -> Result<Arc<Self>, LinkError> {
        let ChosenLink { path, level } = chosen;
        let (stream, welcome) = hello(&path, run).await?;
        let session = ArcSwapOption::from_pointee(welcome.clone());
        // Without it, the agent relays all connections.
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

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What has chosen the link.
    #[must_use]
    pub fn level(&self) -> LinkLevel {
        self.level
    }

    /// What the server offered at the start of the run.
    #[must_use]
    pub fn offer(&self) -> &LinkWelcome {
        &self.first
    }

    /// The number of the network namespace of [`OpenKind::Handed`] sockets; `None` if programs
    /// get none.
    #[must_use]
    pub fn handed_namespace(&self) -> Option<u64> {
        self.handed.as_ref().map(|handed| handed.namespace)
    }

    /// The sockets that report what such sockets transfer; `None` if there are none, or they were
    /// taken before.
    #[must_use]
    pub fn take_usage(&self) -> Option<UsageSockets> {
        let usage = &self.handed.as_ref()?.usage;
        usage.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A number that changes when the sockets that are bound through the link get no clients any
    /// more.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Waits until addresses must be bound again.
    pub async fn must_rebind(&self) {
        self.rebind.notified().await;
    }

    /// Makes [`Self::must_rebind`] return.
    pub fn rebind_soon(&self) {
        self.rebind.notify_one();
    }

    /// Makes [`Self::must_rebind`] return once more after a pause.
    pub fn rebind_later(self: &Arc<Self>) {
        let link = Arc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(RETRY_INTERVAL).await;
            link.rebind.notify_one();
        });
    }

    /// Reports to the server that the run has ended, and that its connections stay open.
    pub fn report_end(&self) {
        self.run_ended.send_replace(true);
    }

    /// Opens a socket on the other side.
    ///
    /// # Errors
    /// The error of the other side's kernel; `ConnectionRefused` if its policy or a limit does not
    /// allow the socket, or if there is no server.
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

    /// Whether the server passes sockets to helpers.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.session.load().as_ref().is_some_and(|welcome| welcome.passes)
    }

    /// Lets the server open a socket for a program, set its congestion control, and pass it with
    /// this answer to the helper at the other end of the channel.
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
        let missing = "the server of the link passes no sockets to programs";
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

    /// What the server offers now.
    fn welcome(&self) -> io::Result<Arc<LinkWelcome>> {
        self.session.load_full().ok_or_else(|| refused("the server of the link has ended"))
    }

    /// Sends a request on an idle stream, or on a new one if the server has closed that stream.
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

    /// Lets the server of another kernel listen at a bound socket, or not any more. On the same
    /// kernel, the socket itself listens.
    ///
    /// # Errors
    /// The error of the other side's kernel, or there is no server.
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

    /// Does not bind an address again if another server serves the link.
    pub async fn forget_bound(&self, address: SocketAddr) {
        self.bound.lock().await.remove(&address);
    }

    /// Sends a request whose answer has no content.
    async fn order(&self, request: LinkRequest) -> io::Result<()> {
        match ask(&self.path, &request).await?.1.message {
            LinkAnswer::Done => Ok(()),
            LinkAnswer::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            LinkAnswer::Refused(reason) => Err(refused(&reason)),
            _ => Err(refused(WRONG_ANSWER)),
        }
    }

    /// Lets a new server bind the addresses that the one before it had bound.
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

    /// Lets the agent bind new sockets.
    async fn discard_bound(&self) {
        let bound = std::mem::take(&mut *self.bound.lock().await);
        if !bound.is_empty() {
            self.generation.fetch_add(1, Ordering::Relaxed);
            self.rebind.notify_one();
        }
    }

    /// Waits until the server ends. Meanwhile, reports the end of the run.
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

    /// Waits until the server ends, and looks for its successor.
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

/// The network of sockets that programs can connect themselves, if the server passes such sockets
/// on.
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
/// There is no server, it belongs to another user, or it closes without an answer.
pub async fn ask(
    path: &Path,
    request: &LinkRequest,
) -> io::Result<(UnixStream, Frame<LinkAnswer>)> {
    ask_on(connect_checked(path).await?, request, &[]).await
}

/// Sends a request on a stream on which no other request waits for its answer.
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

/// The socket of an answer.
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

/// Connects to a server. Waits only if its queue is full.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddress::from(UnixAddress::new(path)?);
    match socket::dial(&address, &StreamOptions::default()) {
        Ok(DialledSocket { socket, .. }) => UnixStream::from_std(socket.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => UnixStream::connect(path).await,
        Err(error) => Err(error),
    }
}

/// A server of another user could read what a program sends in clear.
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
    refused(&format!("the link does not answer: {error}"))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, reason)
}

#[cfg(test)]
mod tests;
