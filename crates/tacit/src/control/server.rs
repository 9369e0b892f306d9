//! The agent's end of the control socket.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::UCred;
use serde::Serialize;
use serde_json::Value;
use tacit_sys::{descriptor, process, query, socket};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::clients::{Clients, Waits};
use super::secret::SuccessorSecret;
use super::{Answer, REQUEST_BYTES_MAX, Request};
use crate::log::{Event, Log};

/// Requests that wait for the control thread.
pub const REQUESTS_MAX: usize = 64;

/// A request on its way to the agent.
#[derive(Debug)]
pub struct PendingRequest {
    /// What is asked for.
    pub request: Request,
    /// Takes the answer.
    pub back: oneshot::Sender<Reply>,
}

/// What the agent says.
#[derive(Debug)]
pub struct Reply {
    /// What answers.
    pub body: Body,
    /// Descriptors that follow it, one to a message, in the order the answer names them.
    pub descriptors: Vec<OwnedFd>,
}

/// The line that answers.
#[derive(Debug)]
pub enum Body {
    /// To be written.
    Answer(Answer),
    /// Written already, as it is long.
    Written(Vec<u8>),
}

impl Reply {
    /// A plain success.
    #[must_use]
    pub fn ok(value: Value) -> Self {
        Self { body: Body::Answer(Answer::Ok(value)), descriptors: Vec::new() }
    }

    /// The same for a long answer, which the calling thread writes.
    #[must_use]
    pub fn written(value: &impl Serialize) -> Self {
        /// [`Answer::Ok`] of a type.
        #[derive(Serialize)]
        struct Written<'v, T> {
            ok: &'v T,
        }
        match serde_json::to_vec(&Written { ok: value }) {
            Ok(text) => Self { body: Body::Written(text), descriptors: Vec::new() },
            Err(error) => Self::error(error),
        }
    }

    /// A refusal.
    #[must_use]
    pub fn error(reason: impl ToString) -> Self {
        Self { body: Body::Answer(Answer::Error(reason.to_string())), descriptors: Vec::new() }
    }
}

/// Control connections at once.
const CLIENTS_MAX: usize = 64;
/// How long a client may take for a request.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long it may read nothing of an answer that is longer than its socket holds.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Who may ask, and what is asked of.
#[derive(Clone)]
struct Doorway {
    requests: mpsc::Sender<PendingRequest>,
    secret: Option<SuccessorSecret>,
}

/// Accepts control connections until the task ends. Who knows `secret` is a successor.
pub async fn serve(
    listener: UnixListener,
    requests: mpsc::Sender<PendingRequest>,
    log: Log,
    secret: Option<SuccessorSecret>,
) {
    let doorway = Doorway { requests, secret };
    let mut clients = Clients::new(CLIENTS_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(stream, &doorway, &mut clients, &log),
            Err(error) => {
                log.warn(Event::new("control-failed").field("error", &error));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Starts to answer a client. Where there is no place, the one that has waited longest without a
/// request is closed; while all are being answered, the new one.
fn admit(stream: UnixStream, doorway: &Doorway, clients: &mut Clients, log: &Log) {
    if !clients.make_room() {
        return;
    }
    let waits = Waits::new(Cell::new(true));
    let log = log.clone();
    let conversation = converse(stream, doorway.clone(), Rc::clone(&waits));
    let task = tokio::task::spawn_local(async move {
        if let Err(error) = conversation.await {
            log.warn(Event::new("control-failed").field("error", &error));
        }
    });
    clients.add(waits, task.abort_handle());
}

async fn converse(stream: UnixStream, doorway: Doorway, waits: Waits) -> io::Result<()> {
    let Doorway { requests, secret } = doorway;
    let peer = socket::peer_credentials(stream.as_fd())?;
    let refusal = refusal(&peer, query::network_of(stream.as_fd()));
    let mut stream = BufReader::new(stream);
    let mut is_successor = false;
    loop {
        let mut line = String::new();
        let mut limited = (&mut stream).take(REQUEST_BYTES_MAX as u64);
        let read = limited.read_line(&mut line);
        let read = match is_successor {
            // Between its requests it starts.
            true => read.await?,
            false => timeout(REQUEST_WAIT_MAX, read).await.unwrap_or(Ok(0))?,
        };
        if read == 0 {
            return Ok(());
        }
        waits.set(false);
        if let Some(refusal) = refusal {
            // It may be gone; the log has it.
            let _ = send(stream.get_mut(), Reply::error(&refusal)).await;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal));
        }
        let knows = |said: &Option<String>| {
            secret.as_ref().zip(said.as_ref()).is_some_and(|(own, said)| own.is_known_by(said))
        };
        let reply = match parse(&line) {
            Ok(Request::TakeOver { secret }) if !knows(&secret) => Reply::error(NO_SUCCESSOR),
            Ok(Request::Release) if !is_successor => Reply::error(NO_SUCCESSOR),
            Ok(request) => {
                is_successor |= matches!(request, Request::TakeOver { .. });
                ask(&requests, request).await
            }
            Err(reason) => Reply::error(reason),
        };
        send(stream.get_mut(), reply).await?;
        waits.set(!is_successor);
    }
}

const NO_SUCCESSOR: &str =
    "only a successor that this agent's supervisor has started may take it over: tacit restart";

/// The request that a line holds, or what is wrong with it.
pub(crate) fn parse(line: &str) -> Result<Request, String> {
    serde_json::from_str(line)
        .map_err(|error| format!("this agent does not know that request: {error}"))
}

/// Why a client may not control this agent. The socket itself says in which network namespace it
/// was made: no process has to be looked at, which could be gone, or another one by now. Where the
/// kernel does not say it (before Linux 5.14), the process must be there to be looked at.
fn refusal(peer: &UCred, network: io::Result<u64>) -> Option<String> {
    let uid = peer.uid.as_raw();
    // The file's mode keeps other users out already; this also holds where modes are ignored.
    if uid != 0 && uid != process::effective_user() {
        return Some(format!("user {uid} may not control this agent"));
    }
    // A program under `tacit run` is of the same user.
    let is_elsewhere = match (network, query::own_network()) {
        (Ok(network), Ok(own)) => network != own,
        _ => process::lives_elsewhere(peer.pid.as_raw_pid()),
    };
    is_elsewhere.then(|| {
        "a client of another network namespace may not control this agent: run the command \
             in the agent's network namespace, outside of `tacit run`"
            .to_owned()
    })
}

/// Puts a request to the agent and waits for its answer.
pub(super) async fn ask(requests: &mpsc::Sender<PendingRequest>, request: Request) -> Reply {
    let (back, reply) = oneshot::channel();
    if requests.send(PendingRequest { request, back }).await.is_err() {
        return Reply::error("the agent is ending");
    }
    reply.await.unwrap_or_else(|_| Reply::error("the agent is ending"))
}

async fn send(stream: &mut UnixStream, reply: Reply) -> io::Result<()> {
    let mut line = match reply.body {
        Body::Answer(answer) => serde_json::to_vec(&answer)?,
        Body::Written(line) => line,
    };
    line.push(b'\n');
    let mut rest = line.as_slice();
    while !rest.is_empty() {
        // Of a part, not of the whole: a table of all connections is long.
        let written = timeout(ANSWER_WAIT_MAX, stream.write(rest)).await??;
        rest = rest.get(written..).unwrap_or_default();
    }
    for one in reply.descriptors {
        loop {
            stream.writable().await?;
            let sent = stream.try_io(tokio::io::Interest::WRITABLE, || {
                descriptor::send(&*stream, b"\n", &[one.as_fd()])
            });
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => {
                    other?;
                    break;
                }
            };
        }
    }
    Ok(())
}
