//! Serves the control socket in the agent: accepts clients, checks their user IDs, and passes their
//! requests to the control thread.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use tacit_sys::peer::PeerProcess;
use tacit_sys::socket::PeerCredentials;
use tacit_sys::{process, query, socket};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::clients::{Clients, Waits};
use super::reply::send;
pub use super::reply::{Body, Reply};
use super::secret::SuccessorSecret;
use super::trace::{self, Tracer};
use super::{REQUEST_BYTES_MAX, Request};
use crate::address;
use crate::log::{Event, Log};

/// Requests that wait for the control thread.
pub const REQUESTS_MAX: usize = 64;

/// A request that waits for the control thread.
#[derive(Debug)]
pub struct PendingRequest {
    /// The process that sent it; `None`: a part of the agent.
    pub client: Option<ControlClient>,
    /// The request.
    pub request: Request,
    /// The channel for the reply.
    pub back: oneshot::Sender<Reply>,
}

/// Where control connections send their requests. Counts the requests without an answer.
#[derive(Clone, Debug)]
pub struct RequestQueue {
    /// The queue itself.
    pub sender: mpsc::Sender<PendingRequest>,
    unanswered: Rc<Cell<usize>>,
}

impl RequestQueue {
    /// Counts the requests of this queue.
    #[must_use]
    pub fn new(sender: mpsc::Sender<PendingRequest>) -> Self {
        Self { sender, unanswered: Rc::default() }
    }

    /// Whether a control connection waits for an answer, or is sending it to its client.
    #[must_use]
    pub fn has_unanswered(&self) -> bool {
        self.unanswered.get() > 0
    }

    fn count_request(&self) -> Unanswered {
        self.unanswered.update(|count| count + 1);
        Unanswered(Rc::clone(&self.unanswered))
    }
}

/// A request counts until this is dropped.
struct Unanswered(Rc<Cell<usize>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.update(|count| count - 1);
    }
}

/// The process of a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlClient {
    /// The user of the client.
    pub user: u32,
    /// The process ID of the client, which may have ended since; 0 if this process cannot see it.
    pub pid: i32,
}

impl fmt::Display for ControlClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, pid } = self;
        write!(f, "process {pid} of user {}", address::user_name(*user))
    }
}

/// The maximum number of control connections.
const CLIENTS_MAX: usize = 64;
/// How long a client may take to send a request.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(60);

/// The data that every control connection needs.
#[derive(Clone)]
struct ServerContext {
    requests: RequestQueue,
    secret: Option<SuccessorSecret>,
    tracer: Tracer,
}

/// Accepts control connections until the task ends. A client that sends `secret` is a successor.
pub async fn serve(
    listener: UnixListener,
    requests: RequestQueue,
    log: Log,
    secret: Option<SuccessorSecret>,
    tracer: Tracer,
) {
    let context = ServerContext { requests, secret, tracer };
    let mut clients = Clients::new(CLIENTS_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &context, &mut clients, &log),
            Err(error) => {
                log.warn(Event::new("control-failed").field("error", &error));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Starts the task that serves a client. If the maximum is reached, the client that has been idle
/// for the longest is closed; if none is idle, the new client is closed.
fn admit(stream: UnixStream, context: &ServerContext, clients: &mut Clients, log: &Log) {
    if !clients.make_room() {
        return;
    }
    let waits = Waits::new(Cell::new(true));
    let log = log.clone();
    let served = serve_client(stream, context.clone(), Rc::clone(&waits));
    let task = tokio::task::spawn_local(async move {
        if let Err(error) = served.await {
            log.warn(Event::new("control-failed").field("error", &error));
        }
    });
    clients.add(waits, task.abort_handle());
}

async fn serve_client(stream: UnixStream, context: ServerContext, waits: Waits) -> io::Result<()> {
    let ServerContext { requests, secret, tracer } = context;
    let peer = socket::peer_credentials(stream.as_fd())?;
    let client = ControlClient { user: peer.uid, pid: peer.pid_or_zero() };
    let refusal = refusal(&stream, &peer);
    let mut stream = BufReader::new(stream);
    let mut is_successor = false;
    loop {
        let mut line = String::new();
        let mut limited = (&mut stream).take(REQUEST_BYTES_MAX as u64);
        let read = limited.read_line(&mut line);
        let read = match is_successor {
            // A successor starts between its requests, which takes any time.
            true => read.await?,
            false => timeout(REQUEST_WAIT_MAX, read).await.unwrap_or(Ok(0))?,
        };
        if read == 0 {
            return Ok(());
        }
        waits.set(false);
        let unanswered = requests.count_request();
        if let Some(refusal) = refusal {
            // The client may have closed the connection. The refusal is in the log.
            let _ = send(stream.get_mut(), Reply::error(&refusal)).await;
            let reason = refusal.lines().next().unwrap_or_default();
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let is_secret = |sent: &Option<String>| {
            secret.as_ref().zip(sent.as_ref()).is_some_and(|(own, sent)| own.matches(sent))
        };
        let reply = match parse(&line) {
            Ok(Request::TakeOver { secret }) if !is_secret(&secret) => Reply::error(NO_SUCCESSOR),
            Ok(Request::ClearAccess | Request::Release | Request::RelayedFlows)
                if !is_successor =>
            {
                Reply::error(NO_SUCCESSOR)
            }
            // Everything that the client sends after this belongs to the trace.
            Ok(Request::Trace(request)) => {
                drop(unanswered);
                return trace::serve(stream.into_inner(), &tracer, request, &peer).await;
            }
            Ok(request) => {
                is_successor |= matches!(request, Request::TakeOver { .. });
                match answer(&requests.sender, request, Some(client)).await {
                    Some(reply) => reply,
                    // A successor then serves without this agent.
                    None if is_successor => return Ok(()),
                    None => Reply::error(ENDING),
                }
            }
            Err(reason) => Reply::error(reason),
        };
        send(stream.get_mut(), reply).await?;
        drop(unanswered);
        waits.set(!is_successor);
    }
}

const NO_SUCCESSOR: &str = "only a successor that the supervisor started may take over the sockets \
                            of the agent: to replace the agent, run `tacit restart`";

/// Parses a request, or returns what is wrong with it.
pub(crate) fn parse(line: &str) -> Result<Request, String> {
    serde_json::from_str(line)
        .map_err(|error| format!("the agent does not know this request: {error}"))
}

/// Why a client may not control this agent; `None`: it may.
///
/// The kernel reports in which network namespace the client's socket was created. Before Linux
/// 5.14 it does not; then the client's process is looked up, and must still exist.
fn refusal(stream: &UnixStream, peer: &PeerCredentials) -> Option<String> {
    let uid = peer.uid;
    // The mode of the file excludes other users; this check also works where modes are ignored.
    if uid != 0 && uid != process::effective_user() {
        return Some(format!(
            "user {uid} may not control this agent\n    \
             fix: run the command as the agent's user or as root"
        ));
    }
    // A program under `tacit run` is of the same user.
    let is_elsewhere = match (query::network_of(stream.as_fd()), query::own_network()) {
        (Ok(network), Ok(own)) => network != own,
        _ => lives_elsewhere(stream, peer).unwrap_or(true),
    };
    is_elsewhere.then(|| {
        "a client in another network namespace may not control this agent\n    fix: run the \
         command in the agent's network namespace, outside of `tacit run`"
            .to_owned()
    })
}

/// Whether the process of a client is in another namespace; `None` if that is not known.
fn lives_elsewhere(stream: &UnixStream, peer: &PeerCredentials) -> Option<bool> {
    let process = PeerProcess::of(stream.as_fd(), peer.pid?)?;
    process.read(|pid| Some(process::lives_elsewhere(pid.cast_signed())))
}

const ENDING: &str = "the agent is ending";

/// Passes a request to the agent and waits for the reply.
pub(super) async fn ask(
    requests: &mpsc::Sender<PendingRequest>,
    request: Request,
    client: Option<ControlClient>,
) -> Reply {
    answer(requests, request, client).await.unwrap_or_else(|| Reply::error(ENDING))
}

/// The same; `None` if the agent is ending.
async fn answer(
    requests: &mpsc::Sender<PendingRequest>,
    request: Request,
    client: Option<ControlClient>,
) -> Option<Reply> {
    let (back, reply) = oneshot::channel();
    requests.send(PendingRequest { client, request, back }).await.ok()?;
    reply.await.ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use arc_swap::ArcSwap;
    use tacit_core::policy::parse as parse_policy;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::live::{BuildContext, Credentials, build};
    use crate::session::ConnectionTable;

    fn context(requests: RequestQueue, secret: SuccessorSecret) -> ServerContext {
        let policy = parse_policy("version = 1\n").policy.unwrap();
        let built = BuildContext { credentials: &Credentials::default(), chains: None };
        let live = build(policy, built).unwrap();
        let tracer = Tracer {
            live: Arc::new(ArcSwap::new(Arc::new(live))),
            table: Arc::new(ConnectionTable::default()),
            policy: PathBuf::new(),
            log: Log::without_lines(),
        };
        ServerContext { requests, secret: Some(secret), tracer }
    }

    /// Sends requests one after the other, and returns the answers. The agent answers requests to
    /// take over, and ends at the first other request.
    async fn answers(requests: &[String], secret: SuccessorSecret) -> Vec<String> {
        let (sender, mut received) = mpsc::channel(1);
        let agent = tokio::task::spawn_local(async move {
            while let Some(PendingRequest { request, back, .. }) = received.recv().await {
                if !matches!(request, Request::TakeOver { .. }) {
                    return;
                }
                let _ = back.send(Reply::ok(true.into()));
            }
        });
        let queue = RequestQueue::new(sender);
        let (client, server) = UnixStream::pair().unwrap();
        let served = serve_client(server, context(queue.clone(), secret), Waits::default());
        let served = tokio::task::spawn_local(served);
        let mut client = BufReader::new(client);
        let mut all = Vec::new();
        for request in requests {
            client.get_mut().write_all(format!("{request}\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_line(&mut answer).await.unwrap();
            all.push(answer);
        }
        drop(client);
        served.await.unwrap().unwrap();
        agent.await.unwrap();
        assert!(!queue.has_unanswered());
        all
    }

    #[tokio::test(flavor = "local")]
    async fn an_agent_that_ends_refuses_operators_and_closes_the_connection_of_a_successor() {
        let secret = SuccessorSecret::new().unwrap();
        let show = "{\"verb\":\"show\",\"what\":\"rules\"}".to_owned();
        let said = answers(&[show], secret.clone()).await;
        assert!(said[0].contains("the agent is ending"), "{said:?}");
        let take_over = format!("{{\"verb\":\"take-over\",\"secret\":\"{}\"}}", secret.to_text());
        let said = answers(&[take_over, "{\"verb\":\"release\"}".to_owned()], secret).await;
        assert!(said[0].starts_with("{\"ok\":") && said[1].is_empty(), "{said:?}");
    }
}
