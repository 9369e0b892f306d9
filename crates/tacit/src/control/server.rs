//! The agent's end of the control socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use serde_json::Value;
use tacit_sys::{descriptor, process, socket};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

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
    pub fn written(value: Value) -> Self {
        match serde_json::to_vec(&Answer::Ok(value)) {
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

/// Accepts control connections until the task ends. Children of `supervisor`, the process that
/// started this agent, are its successors.
pub async fn serve(
    listener: UnixListener,
    requests: mpsc::Sender<PendingRequest>,
    log: Log,
    supervisor: Option<u32>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let requests = requests.clone();
                let log = log.clone();
                tokio::task::spawn_local(async move {
                    if let Err(error) = converse(stream, requests, supervisor).await {
                        log.warn(Event::new("control-failed").field("error", &error));
                    }
                });
            }
            Err(error) => {
                log.warn(Event::new("control-failed").field("error", &error));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(
    stream: UnixStream,
    requests: mpsc::Sender<PendingRequest>,
    supervisor: Option<u32>,
) -> io::Result<()> {
    let peer = socket::peer_credentials(stream.as_fd())?;
    let refusal = refusal(peer.pid.as_raw_pid(), peer.uid.as_raw(), supervisor);
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let mut limited = (&mut stream).take(REQUEST_BYTES_MAX as u64);
        if limited.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if let Some(refusal) = refusal {
            send(stream.get_mut(), Reply::error(&refusal)).await?;
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal));
        }
        let reply = match parse(&line) {
            Ok(request) => ask(&requests, request).await,
            Err(reason) => Reply::error(reason),
        };
        send(stream.get_mut(), reply).await?;
    }
}

/// The request that a line holds, or what is wrong with it.
pub(crate) fn parse(line: &str) -> Result<Request, String> {
    serde_json::from_str(line)
        .map_err(|error| format!("this agent does not know that request: {error}"))
}

/// Why a process may not control this agent.
fn refusal(pid: i32, uid: u32, supervisor: Option<u32>) -> Option<String> {
    // The file's mode keeps other users out already; this also holds where modes are ignored.
    if uid != 0 && uid != process::effective_user() {
        return Some(format!("user {uid} may not control this agent"));
    }
    // A successor hides its memory from the start, and with it where it lives. Without a
    // supervisor there is none: orphans of a run have the same parent as this agent then.
    let parent = std::os::unix::process::parent_id();
    let is_sibling = supervisor == Some(parent) && process::parent_of(pid) == Some(parent);
    // A program under `tacit run` is of the same user.
    (!is_sibling && process::lives_elsewhere(pid, uid)).then(|| {
        format!("process {pid} may not control this agent from another network or user namespace")
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
    stream.write_all(&line).await?;
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
