//! The agent's end of the line to a run's helper.
//!
//! One task owns the line and has one question open on it; whoever asks may give up waiting
//! without harm to the line. A helper that dies loses the line; questions then wait for the
//! launcher to bring a new one, for as long as whoever asks has patience. One that is slow keeps
//! it: no launcher replaces a helper that lives.
//!
//! Sockets are requested several at a time and kept in a [`SocketPool`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_core::flow::Protocol;
use tacit_core::policy::Captured;
use tacit_sys::IpVersion;
use tacit_sys::descriptor::{self, Received};
use tacit_sys::netlink::route::Families;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::net::pool::SocketPool;

use super::host::HostAddresses;
use super::protocol::{ANSWER_BYTES_MAX, Ends, Frame, Owner, Reply, Request, encode, frame_bytes};

/// Questions of all workers that wait for the line.
const QUESTIONS_MAX: usize = 1024;
/// How long whoever asks waits: a helper answers in microseconds, a new one comes in milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a helper may take for one answer before the question fails.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

/// A line; all copies are the same one.
#[derive(Clone, Debug)]
pub struct Line {
    questions: mpsc::Sender<Question>,
    lines: mpsc::Sender<OwnedFd>,
    pool: Arc<SocketPool>,
}

/// A question, and where its answer goes.
#[derive(Debug)]
struct Question {
    request: Request,
    back: oneshot::Sender<io::Result<Answer>>,
}

/// An answer; what was asked for rides along.
type Answer = Frame<Reply>;

impl Line {
    /// Takes a line; its task ends when the last copy is dropped.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub fn open(socket: OwnedFd) -> io::Result<Self> {
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        let (lines, brought) = mpsc::channel(1);
        let stream = adopt(socket)?;
        tokio::task::spawn_local(serve(Some(stream), asked, brought));
        Ok(Self { questions, lines, pool: Arc::default() })
    }

    /// Goes on with a new helper's line.
    pub fn replace(&self, socket: OwnedFd) {
        // While one waits to be taken, a further one is closed: its helper ends by that, and the
        // launcher brings another.
        let _ = self.lines.try_send(socket);
    }

    /// Gives the namespace address families.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn families(&self, Families { v4, v6 }: Families) -> io::Result<()> {
        self.ask(Request::Families { v4, v6 }).await.map(|_| ())
    }

    /// Gives the namespace address families, and the host's interfaces and addresses.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn network(&self, families: Families, host: &HostAddresses) -> io::Result<()> {
        let Families { v4, v6 } = families;
        self.ask(Request::Network { v4, v6, host: host.clone() }).await.map(|_| ())
    }

    /// Changes what is captured.
    ///
    /// # Errors
    /// The helper's, or there is none; what is captured is then not known.
    pub async fn change(&self, remove: Vec<Captured>, add: Vec<Captured>) -> io::Result<()> {
        self.ask(Request::Change { remove, add }).await.map(|_| ())
    }

    /// Keeps files hidden from programs, in place of those that an agent named before.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn hide(&self, paths: Vec<PathBuf>) -> io::Result<()> {
        self.ask(Request::Hide(paths)).await.map(|_| ())
    }

    /// Captures this and nothing else.
    ///
    /// # Errors
    /// As [`Self::change`].
    pub async fn replace_captured(&self, all: Vec<Captured>) -> io::Result<()> {
        self.ask(Request::Replace(all)).await.map(|_| ())
    }

    /// A marked socket inside that may stand in for any address.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn socket(&self, protocol: Protocol, version: IpVersion) -> io::Result<OwnedFd> {
        let kind = self.pool.kind(protocol, version);
        if let Some(socket) = kind.take() {
            return Ok(socket);
        }
        let ipv6 = version == IpVersion::V6;
        let request = Request::Socket { protocol, ipv6, count: kind.next_request() };
        let mut sockets = self.ask(request).await?.descriptors;
        let one = sockets.pop().ok_or_else(strange)?;
        kind.put(sockets);
        Ok(one)
    }

    /// A further line, for a successor.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn another(&self) -> io::Result<OwnedFd> {
        self.ask_for_one(Request::Line).await
    }

    /// Who holds sockets of the run, in the order of the question; `None`: nobody is seen to.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn owners(&self, ends: Vec<Ends>) -> io::Result<Vec<Option<Owner>>> {
        match self.ask(Request::Owners(ends)).await?.message {
            Reply::Owners(owners) => Ok(owners),
            _ => Err(strange()),
        }
    }

    /// Who holds one socket of the run.
    ///
    /// # Errors
    /// As [`Self::owners`].
    pub async fn owner(
        &self,
        protocol: Protocol,
        program: SocketAddr,
        peer: SocketAddr,
    ) -> io::Result<Option<Owner>> {
        let owners = self.owners(vec![Ends { protocol, program, peer }]).await?;
        Ok(owners.into_iter().next().flatten())
    }

    /// Whether a program waits there for the answer to a SYN that no program of the run takes.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn is_connecting(&self, ends: Ends) -> io::Result<bool> {
        match self.ask(Request::Connecting(ends)).await?.message {
            Reply::Connecting(is_connecting) => Ok(is_connecting),
            _ => Err(strange()),
        }
    }

    /// On which addresses programs of the run listen.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn listening(&self) -> io::Result<Vec<SocketAddr>> {
        match self.ask(Request::Listening).await?.message {
            Reply::Listening(addresses) => Ok(addresses),
            _ => Err(strange()),
        }
    }

    /// CPU time of the run's programs in nanoseconds: those that live, and children of theirs that
    /// have ended.
    ///
    /// # Errors
    /// The helper's, or there is none.
    pub async fn cpu_ns(&self) -> io::Result<u64> {
        match self.ask(Request::Cpu).await?.message {
            Reply::Cpu(ns) => Ok(ns),
            _ => Err(strange()),
        }
    }

    async fn ask_for_one(&self, request: Request) -> io::Result<OwnedFd> {
        self.ask(request).await?.descriptors.pop().ok_or_else(strange)
    }

    async fn ask(&self, request: Request) -> io::Result<Answer> {
        let asked = async {
            match self.ask_once(request.clone()).await {
                // The helper has died: the launcher brings another.
                Err(error) if is_broken(&error) => self.ask_once(request).await,
                answered => answered,
            }
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(Frame { message: Reply::Refused(reason), .. })) => Err(io::Error::other(reason)),
            Ok(answered) => answered,
            Err(_) => Err(gone()),
        }
    }

    async fn ask_once(&self, request: Request) -> io::Result<Answer> {
        let (back, answer) = oneshot::channel();
        self.questions.send(Question { request, back }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn gone() -> io::Error {
    io::Error::other("the run's helper is gone")
}

/// Whether the line broke, rather than the helper refused.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the run's helper answered something else")
}

/// A socket for the runtime of the calling thread.
///
/// # Errors
/// The runtime does not take it.
pub fn adopt(socket: impl Into<StdStream>) -> io::Result<UnixStream> {
    let stream = socket.into();
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Asks one question after the other, on the newest line.
async fn serve(
    mut line: Option<UnixStream>,
    mut asked: mpsc::Receiver<Question>,
    mut brought: mpsc::Receiver<OwnedFd>,
) {
    loop {
        tokio::select! {
            biased;
            new = brought.recv() => match new {
                Some(socket) => line = adopt(socket).ok(),
                None => return,
            },
            () = ended(&line) => line = None,
            question = asked.recv(), if line.is_some() => {
                let (Some(question), Some(stream)) = (question, line.take()) else { return };
                line = if question.back.is_closed() {
                    Some(stream)
                } else {
                    ask_on(stream, question, &mut brought).await
                };
            }
        }
    }
}

/// Asks one question; returns the line for the next one, if there is one. That of an answer that is
/// late is used again when it has come: it must not be taken for the answer to the next question.
async fn ask_on(
    mut stream: UnixStream,
    Question { request, back }: Question,
    brought: &mut mpsc::Receiver<OwnedFd>,
) -> Option<UnixStream> {
    let has_answered = {
        let mut talk = pin!(converse(&mut stream, &request));
        // The task that asked may have given up.
        if let Ok(answer) = tokio::time::timeout(ANSWER_WAIT_MAX, &mut talk).await {
            let has_answered = answer.is_ok();
            let _ = back.send(answer);
            has_answered
        } else {
            let _ = back.send(Err(io::ErrorKind::TimedOut.into()));
            tokio::select! {
                new = brought.recv() => return new.and_then(|socket| adopt(socket).ok()),
                late = talk => late.is_ok(),
            }
        }
    };
    has_answered.then_some(stream)
}

/// Waits until a line says anything without being asked: its helper has ended.
async fn ended(line: &Option<UnixStream>) {
    let Some(stream) = line else { return std::future::pending().await };
    loop {
        let ready = stream.readable().await;
        match stream.try_read(&mut [0]) {
            Err(error) if ready.is_ok() && error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

async fn converse(stream: &mut UnixStream, request: &Request) -> io::Result<Answer> {
    write_frame(stream, request).await?;
    read_frame(stream, ANSWER_BYTES_MAX).await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Writes one frame without descriptors.
///
/// # Errors
/// Whatever the kernel answers.
pub async fn write_frame(stream: &mut UnixStream, frame: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode(frame)?).await
}

/// Reads one frame of so many bytes at most; `None`: the other side has ended.
///
/// # Errors
/// Whatever the kernel answers, `InvalidData` for what is no frame.
pub async fn read_frame<T: DeserializeOwned>(
    stream: &mut UnixStream,
    bytes_max: usize,
) -> io::Result<Option<Frame<T>>> {
    let mut length = [0; 4];
    let Received { bytes: count, descriptors } =
        stream.async_io(Interest::READABLE, || descriptor::receive(&*stream, &mut length)).await?;
    if count == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[count..]).await?;
    let mut text = vec![0; frame_bytes(length, bytes_max)?];
    stream.read_exact(&mut text).await?;
    Ok(Some(Frame { message: serde_json::from_slice(&text)?, descriptors }))
}
