//! `tacit link serve`: opens sockets for programs that have no network. These programs run under
//! `tacit run --link`, for example in a container or a virtual machine.
//!
//! ```text
//!   accept ──> credentials ──> request ─┬─ Hello ──> begin a session (a run uses the link)
//!                                       ├─ Open ───> policy rules ──> socket, connect ──> the run
//!                                       └─ Status ─> report the state of the link
//! ```
//!
//! A link may connect two kernels, for example those of a host and of a virtual machine. Then each
//! side has a link server. The link server on the side with a network uses `framed.rs`. The other
//! link server serves the runs, and uses `remote.rs` to forward their requests.
//!
//! One thread serves all links. A request may wait for its socket without a time limit, just as a
//! program may wait in `connect`. If the client closes the stream of a request, the request ends,
//! and the server closes the socket of the request.
//!
//! The kernel reports when a program closes a socket that the server has opened. So the server can
//! count the open sockets of each run without a copy of each socket.
//!
//! Limits of each link: the keys `runs` and `sockets` in `[link.NAME]` limit the runs and the open
//! sockets. At most [`STREAMS_MAX`] requests are served at the same time, and at most
//! [`IDLE_STREAMS_MAX`] streams wait for their next request. A client must send its request within
//! [`REQUEST_WAIT_MAX`].

mod control;
mod dial;
mod framed;
mod machine;
mod mirrored_listener;
mod open;
mod opened;
mod pass;
mod reload;
mod remote;
mod reply;
mod sandbox;
mod session;
mod socket_file;
mod spare;
mod state;
mod stream;
mod tickets;
mod tls;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, LinkVsock, Policy};
use tacit_sys::netlink::usage::{self, Ended};
use tacit_sys::watch::watch;
use tacit_sys::{process, query, vsock};
use tokio::io::Interest;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore};

use super::mirror::{self, Mirror, StartedMirror};
use super::path_of;
use crate::agent::{CredentialStore, FILES_INTERVAL};
use crate::clock::Rfc3339;
use crate::dns::Resolvers;
use crate::live::check_rules;
use crate::log::{Event, Format, Log, LogDestination, LogLevel, Settings};
use crate::run::host::{HostNetwork, InterfaceChanges};
use crate::signer;
use control::LinkSwitches;
use dial::Remote;
use sandbox::ServerSandbox;
use session::RequestPlace;
use socket_file::SocketFile;
use spare::SpareSockets;
use state::{LinkState, unused};
use tickets::{Tickets, WaitingClient};
use tls::{LinkSettings, LinkTls};

/// The maximum number of streams of a link that wait for an answer. Further streams wait in the
/// queue of the listening socket.
pub const STREAMS_MAX: usize = 1024;
/// The maximum number of streams of a link that wait for their next request. The server closes
/// further ones after their answer.
pub const IDLE_STREAMS_MAX: usize = 1024;
/// How long the other side may take to send its request.
pub const REQUEST_WAIT_MAX: Duration = Duration::from_secs(10);
/// The time between two frames with which a server of another kernel shows that it exists.
pub const ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// After this time without such a frame, the server counts as ended.
pub const ALIVE_WAIT_MAX: Duration = Duration::from_secs(45);
/// How many ended sockets are read without a pause.
const READ_AT_ONCE_MAX: usize = 256;

/// Why the links cannot be served.
#[derive(Debug)]
pub enum ServeError {
    /// The policy has errors.
    Policy(PathBuf, Vec<Diagnostic>),
    /// The policy has no link, or not that one.
    NoLink(String),
    /// A socket cannot be opened.
    Listen(String, io::Error),
    /// The namespace for the sockets of another kernel cannot be made.
    Mirror(io::Error),
    /// Another operation failed.
    Process(io::Error),
}

impl ServeError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Policy(..) => MessageId("policy-refused"),
            Self::NoLink(_) => MessageId("no-link"),
            Self::Listen(..) => MessageId("cannot-listen"),
            Self::Mirror(_) => MessageId("no-namespace"),
            Self::Process(_) => MessageId("kernel-refused"),
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(file, findings) => {
                let file = file.display().to_string();
                let texts: Vec<_> = findings.iter().map(|finding| finding.render(&file)).collect();
                f.write_str(&texts.join("\n"))
            }
            Self::NoLink(reason) => f.write_str(reason),
            Self::Listen(address, error) => write!(
                f,
                "cannot listen at {address}: {error}\n    \
                 fix: end the process that uses the address, or write another address in the policy"
            ),
            Self::Mirror(error) => write!(
                f,
                "cannot create the network namespace for a link with `connect`: {error}\n    \
                 fix: run `tacit doctor`, which checks what this host allows"
            ),
            Self::Process(error) => write!(f, "cannot serve links: {error}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// The options of `tacit link serve`.
#[derive(Debug)]
pub struct ServeOptions {
    /// The policy file.
    pub policy: PathBuf,
    /// The links to serve; if empty, all links of the policy.
    pub links: Vec<String>,
    /// Where the log goes.
    pub log: LogDestination,
    /// The format of log lines.
    pub log_format: Format,
}

/// What all links of a server share.
#[derive(Debug)]
struct Server {
    file: PathBuf,
    policy: RefCell<Arc<Policy>>,
    /// The certificates and trusts of the policy.
    credentials: RefCell<CredentialStore>,
    /// Whether changed files are being loaded.
    is_loading: Cell<bool>,
    /// The sandbox; `None` if the policy turns it off.
    sandbox: Option<ServerSandbox>,
    /// The limit of open files.
    files_max: u64,
    since: Rfc3339,
    /// A random number, by which runs recognise another process.
    instance: u64,
    /// Whether programs may connect sockets of this server themselves. Not in a run: its rules must
    /// see the program that connects.
    hands: bool,
    /// Sockets for the next programs.
    spares: SpareSockets,
    /// The addresses of this host.
    host: HostNetwork,
    resolvers: Resolvers,
    links: HashMap<String, Rc<ServedLink>>,
    /// The position of the last port that was bound for a request for any port.
    last_port: Cell<usize>,
    /// Wakes when a new policy was installed.
    reloaded: Notify,
    /// Wakes when an operator has stopped a link.
    link_stopped: Notify,
    log: Log,
}

/// A link with its socket.
#[derive(Debug)]
struct ServedLink {
    name: String,
    path: PathBuf,
    /// Where servers of other hosts connect.
    tcp: Option<std::net::SocketAddr>,
    /// Where the server of a virtual machine connects.
    vsock: Option<LinkVsock>,
    /// The TLS settings for these servers.
    tls: LinkTls,
    /// The server that has the network, if that is another one.
    remote: Option<Rc<Remote>>,
    /// The clients that wait for a stream of another kernel.
    tickets: RefCell<Tickets<WaitingClient>>,
    state: RefCell<LinkState>,
    /// Places for streams that wait for their next request.
    idle_streams: Arc<Semaphore>,
    switches: LinkSwitches,
}

/// Serves links until a signal ends the process.
///
/// # Errors
/// The policy, a socket or the log cannot be used. Nothing was changed then.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    let files_max = process::raise_descriptor_limit().map_err(ServeError::Process)?;
    let policy = read(&options.policy)?;
    let names = wanted(&policy, &options.links)?;
    let mut mirrors = BTreeMap::new();
    for name in names.iter().filter(|name| policy.links[*name].connect.is_some()) {
        // The log starts a thread.
        mirrors.insert(name.clone(), mirror::start().map_err(ServeError::Mirror)?);
    }
    // Later: a namespace needs files of this process.
    process::hide_memory().map_err(ServeError::Process)?;
    let directory_of_log = options.log.shared_directory();
    let log = Log::start(Settings {
        format: options.log_format,
        level: LogLevel::Info,
        destination: options.log,
        launcher: None,
        audit: None,
    })
    .map_err(ServeError::Process)?;
    mirrors.values().for_each(|mirror| sandbox::report_mirror(&mirror.missing, &log));
    let signer = signer::Client::new(log.clone());
    let keys = signer.keys();
    let (credentials, tls) = tls::load(&policy, &options.policy, &keys)
        .map_err(|findings| ServeError::Policy(options.policy.clone(), findings))?;
    let runtime = crate::runtime::builder()
        .map_err(ServeError::Process)?
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(ServeError::Process)?;
    let credentials = CredentialStore::new(credentials, keys, None);
    let prepared = Prepared {
        file: options.policy,
        policy,
        names,
        mirrors,
        tls,
        credentials,
        signer,
        directory_of_log,
        files_max,
    };
    let served = runtime.block_on(serve_links(prepared, log.clone()));
    log.flush();
    served
}

/// What the server has before its runtime.
struct Prepared {
    file: PathBuf,
    policy: Policy,
    names: Vec<String>,
    /// The namespaces of the links to other kernels.
    mirrors: BTreeMap<String, StartedMirror>,
    tls: BTreeMap<String, LinkSettings>,
    credentials: CredentialStore,
    signer: Arc<signer::Client>,
    directory_of_log: Option<PathBuf>,
    files_max: u64,
}

fn read(file: &Path) -> Result<Policy, ServeError> {
    check_rules(file).map_err(|findings| ServeError::Policy(file.to_owned(), findings))
}

/// The names of the links to serve.
fn wanted(policy: &Policy, names: &[String]) -> Result<Vec<String>, ServeError> {
    let all: Vec<_> = policy.links.keys().cloned().collect();
    if all.is_empty() {
        let reason = "the policy has no link\n    fix: add a table [link.NAME], and rules with \
                      link = \"NAME\"";
        return Err(ServeError::NoLink(reason.to_owned()));
    }
    if let Some(unknown) = names.iter().find(|name| !all.contains(name)) {
        let reason = format!(
            "the policy has no table [link.{unknown}]\n    fix: use one of these links: {}",
            all.join(", ")
        );
        return Err(ServeError::NoLink(reason));
    }
    Ok(if names.is_empty() { all } else { names.to_vec() })
}

async fn serve_links(mut prepared: Prepared, log: Log) -> Result<(), ServeError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(ServeError::Process)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Process)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Process)?;
    let destroyed =
        usage::watch_ended().and_then(|socket| watch(Arc::new(socket), Interest::READABLE));
    let destroyed = destroyed.map_err(ServeError::Process)?;
    let mirrors = std::mem::take(&mut prepared.mirrors);
    let tls = std::mem::take(&mut prepared.tls);
    let opened = open_links(&prepared.policy, &prepared.names, mirrors, tls)?;
    let sandbox = confine(&prepared, &opened, &log).map_err(ServeError::Process)?;
    let links = opened.iter().map(|one| (one.link.name.clone(), Rc::clone(&one.link))).collect();
    let server = Rc::new(Server {
        file: prepared.file,
        policy: RefCell::new(Arc::new(prepared.policy)),
        credentials: RefCell::new(prepared.credentials),
        is_loading: Cell::default(),
        sandbox,
        files_max: prepared.files_max,
        since: Rfc3339(SystemTime::now()),
        instance: unused(|_| false).map_err(ServeError::Process)?,
        hands: !query::is_in_run(),
        spares: SpareSockets::default(),
        host: HostNetwork::new(),
        resolvers: Resolvers::new(&[]),
        links,
        last_port: Cell::default(),
        reloaded: Notify::new(),
        link_stopped: Notify::new(),
        log,
    });
    for OpenedLink { link, listener, tcp, vsock } in opened {
        let event = Event::new("link-serving").field("link", &link.name);
        server.log.info(event.field("path", &link.path.display()));
        if let Some(tcp) = tcp {
            let accepting = tls::accept(Rc::clone(&server), Rc::clone(&link), tcp);
            let link = Rc::clone(&link);
            tokio::task::spawn_local(async move { link.switches.unless_stopped(accepting).await });
        }
        if let Some((at, vsock)) = link.vsock.zip(vsock) {
            let accepting = machine::accept(Rc::clone(&server), Rc::clone(&link), vsock, at);
            let link = Rc::clone(&link);
            tokio::task::spawn_local(async move { link.switches.unless_stopped(accepting).await });
        }
        tokio::task::spawn_local(accept(Rc::clone(&server), link, listener));
    }
    let changes = InterfaceChanges::watch();
    let mut files = tokio::time::interval(FILES_INTERVAL);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => server.reload(),
            _ = files.tick() => server.load_changed_files(),
            () = server.link_stopped.notified() => {
                if server.links.values().all(|link| link.switches.is_stopped()) {
                    return Ok(());
                }
            }
            () = changes.next() => drop(server.host.look()),
            () = server.resolvers.host_file_changed() => server.resolvers.read_again(),
            ready = destroyed.readable() => {
                let Ok(mut ready) = ready else { continue };
                if server.forget_ended(destroyed.get_ref().as_fd()) {
                    ready.clear_ready();
                }
            }
        }
    }
}

/// Enters the sandbox, unless the policy turns it off.
fn confine(
    prepared: &Prepared,
    opened: &[OpenedLink],
    log: &Log,
) -> io::Result<Option<ServerSandbox>> {
    let Prepared { file, policy, signer, directory_of_log, .. } = prepared;
    let paths: Vec<_> = opened.iter().map(|one| one.link.path.clone()).collect();
    let enter = || ServerSandbox::enter(policy, file, &paths, directory_of_log.clone(), log);
    let sandbox = policy.agent.sandbox.then(enter);
    if let Some(sandbox) = &sandbox {
        sandbox.confine_signer(signer, log);
    }
    // This thread is in the sandbox, and can start programs: signers.
    signer.watch()?;
    if let Some(sandbox) = &sandbox {
        sandbox.confine_thread(log);
    }
    Ok(sandbox)
}

/// A link whose sockets are open.
struct OpenedLink {
    link: Rc<ServedLink>,
    listener: UnixListener,
    tcp: Option<Arc<OwnedFd>>,
    vsock: Option<Arc<OwnedFd>>,
}

/// Opens the sockets of all links.
fn open_links(
    policy: &Policy,
    names: &[String],
    mut mirrors: BTreeMap<String, StartedMirror>,
    mut settings: BTreeMap<String, LinkSettings>,
) -> Result<Vec<OpenedLink>, ServeError> {
    let mut opened = Vec::new();
    for name in names {
        let parsed = &policy.links[name];
        let LinkSettings { server, client } = settings.remove(name).unwrap_or_default();
        let path = parsed.listen.clone().unwrap_or_else(|| path_of(Path::new(&name)));
        let file = SocketFile::listen(&path);
        let (listener, file) =
            file.map_err(|error| ServeError::Listen(path.display().to_string(), error))?;
        let failed = |at: &dyn fmt::Display, error| ServeError::Listen(at.to_string(), error);
        let listen = |tcp| tls::listen(tcp).map_err(|error| failed(&tcp.address, error));
        let tcp = parsed.tcp.as_ref().map(listen).transpose()?.map(Arc::new);
        let listen = |at: LinkVsock| vsock::listen(at.port).map_err(|error| failed(&at, error));
        let vsock = parsed.vsock.map(listen).transpose()?.map(Arc::new);
        let mirror = mirrors.remove(name).map(Mirror::new).transpose();
        let mirror = mirror.map_err(ServeError::Mirror)?;
        if let Some(mirror) = &mirror {
            tokio::task::spawn_local(Rc::clone(mirror).report_closed());
        }
        let remote = parsed.connect.clone().zip(mirror);
        let remote = remote.map(|(to, mirror)| Rc::new(Remote::new(to, client, mirror)));
        let switches = LinkSwitches::default();
        switches.file.replace(Some(file));
        let link = Rc::new(ServedLink {
            name: name.clone(),
            path,
            tcp: parsed.tcp.as_ref().map(|tcp| tcp.address),
            vsock: parsed.vsock,
            tls: LinkTls::new(server),
            remote,
            tickets: RefCell::default(),
            state: RefCell::default(),
            idle_streams: Arc::new(Semaphore::new(IDLE_STREAMS_MAX)),
            switches,
        });
        opened.push(OpenedLink { link, listener, tcp, vsock });
    }
    Ok(opened)
}

/// The name of this host.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Accepts the streams of a link until the server ends.
async fn accept(server: Rc<Server>, link: Rc<ServedLink>, listener: UnixListener) {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    while let Ok(place) = Arc::clone(&streams).acquire_owned().await {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = link.switches.stopped() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let place = RequestPlace::new(place, None);
                let work = stream::serve(Rc::clone(&server), Rc::clone(&link), stream, place);
                let link = Rc::clone(&link);
                tokio::task::spawn_local(async move { link.switches.unless_stopped(work).await });
            }
            Err(error) => {
                server.report_accept(&link, &error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The pause after an error of `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Reports that a stream could not be accepted.
    fn report_accept(&self, link: &ServedLink, error: &io::Error) {
        let event = Event::new("link-accept-failed").field("link", &link.name);
        let event = event.field("error", error);
        self.log.warn(event.limited(format!("link-accept-failed {}", link.name)));
    }

    /// Forgets sockets that were closed; returns whether all messages of the kernel were read.
    fn forget_ended(&self, destroyed: std::os::fd::BorrowedFd<'_>) -> bool {
        for _ in 0..READ_AT_ONCE_MAX {
            match usage::next_ended(destroyed) {
                Ok(Some(Ended::Socket { cookie, was_established })) => {
                    for link in self.links.values() {
                        let mut state = link.state.borrow_mut();
                        match was_established {
                            true => state.end(cookie),
                            false => state.end_unconnected(cookie),
                        }
                    }
                }
                Ok(Some(Ended::Lost)) => {
                    self.links.values().for_each(|link| link.state.borrow_mut().forget_unknown());
                    self.log.warn(Event::new("link-count-lost"));
                }
                Ok(None) | Err(_) => return true,
            }
        }
        false
    }
}
