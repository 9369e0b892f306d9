//! Opens sockets on this kernel for a run (a program under `tacit run`) that uses the network of
//! another kernel. For each of these sockets, there is a socket with the same address on the other
//! kernel. A socket cannot be passed to another kernel, so the link copies bytes between the two
//! sockets.
//!
//! A separate process opens these sockets, and passes them to this kernel's link server. The
//! process uses a network namespace in which every address is local. Each link has its own process
//! and namespace, because the link server on the other kernel chooses addresses in this namespace.
//!
//! ```text
//!   link server ── MirrorRequest ──> process in the namespace     one request at a time
//!               <── MirrorReply + sockets ──
//! ```
//!
//! The process is started before this kernel's link server has threads, and ends with this server.
//! The process creates the namespace, and then enters a sandbox. In the sandbox, the process cannot
//! open files or execute programs. The process also cannot use system calls that a link server does
//! not need. If a part of the sandbox fails, the server logs the failure, and the process continues
//! without this part.
//!
//! Limit: the kernel reports each closed socket to the link server. If too many sockets are closed
//! at a time, some of these reports are lost. If the report of a socket is lost, the link server
//! continues to serve this socket, until the run ends or the socket on the other kernel is closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tacit_sys::mirror::{self, DatagramPeer, MirrorPair};
use tacit_sys::netlink::usage::{self, Ended};
use tacit_sys::process::{self, StandardError};
use tacit_sys::sandbox::{self, FilesConfined, ProcessSockets, Reach, Rules};
use tacit_sys::watch::{Watched, watch};
use tacit_sys::{IpVersion, handed, namespace};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, oneshot};

use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::protocol::{self, Frame};

/// The longest reply.
const REPLY_BYTES_MAX: usize = 4096;

/// A request for sockets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MirrorRequest {
    /// A TCP connection.
    Streams { program: SocketAddr, server: SocketAddr },
    /// A pair of UDP sockets; `connected`: the one of the program too.
    Datagrams { program: SocketAddr, server: SocketAddr, connected: bool },
    /// A bound TCP socket.
    Bound(SocketAddr),
    /// A TCP socket that connects to a socket that was bound before.
    Client { client: SocketAddr, to: SocketAddr },
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MirrorReply {
    /// The namespace exists; the first sockets come with this.
    Started(Vec<MissingLimit>),
    /// The sockets come with this.
    Made,
    /// The kernel reports this error number.
    Failed(i32),
    /// The namespace cannot be made, for this reason.
    NoNamespace(String),
}

/// A limit of its sandbox that the process could not set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct MissingLimit {
    pub(super) part: String,
    pub(super) error: String,
}

/// The process, before the server has a runtime.
#[derive(Debug)]
pub(super) struct StartedMirror {
    channel: StdStream,
    descriptors: Vec<OwnedFd>,
    /// What limits the process less than it should.
    pub(super) missing: Vec<MissingLimit>,
}

/// Starts the process. The calling process must have only one thread.
///
/// # Errors
/// The namespace cannot be made.
pub(super) fn start() -> io::Result<StartedMirror> {
    let (ours, theirs) = StdStream::pair()?;
    let parent = std::process::id();
    process::fork(|| {
        let kept = process::keep_only(&[theirs.as_fd()], StandardError::Discarded);
        process::name_thread("tacit-mirror");
        u8::from(kept.and_then(|()| serve(&theirs, parent)).is_err())
    })?;
    drop(theirs);
    let first = protocol::read::<MirrorReply>(&ours)?;
    let Frame { message, descriptors } = first.ok_or_else(ended)?;
    match message {
        MirrorReply::Started(missing) => Ok(StartedMirror { channel: ours, descriptors, missing }),
        MirrorReply::Made => Err(ended()),
        MirrorReply::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
        MirrorReply::NoNamespace(reason) => Err(io::Error::other(reason)),
    }
}

/// The work of the process: makes the namespace, then sockets until the server ends.
fn serve(server: &StdStream, parent: u32) -> io::Result<()> {
    let made = match namespace::create_mirror(parent) {
        Ok(()) => initial_sockets(),
        Err(error) => {
            let reason = error.to_string();
            return protocol::write(server, &MirrorReply::NoNamespace(reason), &[]);
        }
    };
    let missing = confine();
    match made {
        Ok(sockets) => {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            protocol::write(server, &MirrorReply::Started(missing), &sockets)?;
        }
        Err(error) => reply(server, Err(error))?,
    }
    // Each pair needs descriptors only until it is sent.
    while let Some(Frame { message, .. }) = protocol::read::<MirrorRequest>(server)? {
        reply(server, answer(message))?;
    }
    Ok(())
}

/// Gives up files, programs and system calls; returns what failed.
fn confine() -> Vec<MissingLimit> {
    let files = Reach::default().rules().and_then(Rules::confine_thread);
    let files = files.and_then(|confined| match confined {
        FilesConfined::Wholly | FilesConfined::InPart => Ok(()),
        FilesConfined::No => Err(io::Error::other("this kernel has no Landlock")),
    });
    let calls = sandbox::filter_process(ProcessSockets::WithoutVsock);
    let programs = sandbox::filter_programs();
    let all = [("files", files), ("system-calls", calls), ("programs", programs)];
    let missing = |(part, result): (&str, io::Result<()>)| {
        let error = result.err()?.to_string();
        Some(MissingLimit { part: format!("mirror-{part}"), error })
    };
    all.into_iter().filter_map(missing).collect()
}

/// The socket that reports closed sockets, and those that send ICMP errors.
fn initial_sockets() -> io::Result<Vec<OwnedFd>> {
    let mut all = vec![usage::watch_ended()?, mirror::error_sender(IpVersion::V4)?];
    // A kernel without IPv6 needs no errors of IPv6.
    all.extend(mirror::error_sender(IpVersion::V6));
    Ok(all)
}

fn answer(request: MirrorRequest) -> io::Result<Vec<OwnedFd>> {
    let both = |pair: MirrorPair| vec![pair.program, pair.server];
    match request {
        MirrorRequest::Streams { program, server } => {
            mirror::stream_pair(program, server).map(both)
        }
        MirrorRequest::Datagrams { program, server, connected } => {
            let peer = if connected { DatagramPeer::Connected } else { DatagramPeer::Named };
            mirror::datagram_pair(program, server, peer).map(both)
        }
        MirrorRequest::Bound(address) => Ok(vec![mirror::bind(address)?]),
        MirrorRequest::Client { client, to } => Ok(vec![mirror::connect(client, to)?]),
    }
}

fn reply(server: &StdStream, made: io::Result<Vec<OwnedFd>>) -> io::Result<()> {
    match made {
        Ok(sockets) => {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            protocol::write(server, &MirrorReply::Made, &sockets)
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            protocol::write(server, &MirrorReply::Failed(errno), &[])
        }
    }
}

/// Requests sockets from the process.
#[derive(Debug)]
pub(super) struct Mirror {
    channel: Mutex<UnixStream>,
    /// Reports the sockets that were closed.
    reports: Watched,
    raw_v4: OwnedFd,
    raw_v6: Option<OwnedFd>,
    /// The tasks that wait until a socket is closed, by the cookie of the socket.
    waiting: RefCell<HashMap<u64, oneshot::Sender<()>>>,
}

/// Waits until all processes have closed a socket.
#[derive(Debug)]
pub(super) struct Closing {
    mirror: Rc<Mirror>,
    cookie: u64,
    closed: oneshot::Receiver<()>,
}

impl Closing {
    /// Waits until the socket is closed.
    pub(super) async fn wait(&mut self) {
        // The sender is dropped only with the mirror, whose tasks end then.
        let _ = (&mut self.closed).await;
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.mirror.waiting.borrow_mut().remove(&self.cookie);
    }
}

impl Mirror {
    /// Uses the process in the runtime of the calling thread.
    ///
    /// # Errors
    /// The runtime cannot watch the sockets.
    pub(super) fn new(started: StartedMirror) -> io::Result<Rc<Self>> {
        let StartedMirror { channel, descriptors, .. } = started;
        let mut descriptors = descriptors.into_iter();
        let reports = descriptors.next().ok_or_else(ended)?;
        let raw_v4 = descriptors.next().ok_or_else(ended)?;
        Ok(Rc::new(Self {
            channel: Mutex::new(adopt(channel)?),
            reports: watch(Arc::new(reports), Interest::READABLE)?,
            raw_v4,
            raw_v6: descriptors.next(),
            waiting: RefCell::default(),
        }))
    }

    /// Wakes the tasks of closed sockets, until the runtime ends.
    pub(super) async fn report_closed(self: Rc<Self>) {
        while let Ok(mut ready) = self.reports.readable().await {
            match usage::next_ended(self.reports.get_ref().as_fd()) {
                Ok(Some(Ended::Socket { cookie, .. })) => {
                    if let Some(task) = self.waiting.borrow_mut().remove(&cookie) {
                        // The task may have ended.
                        let _ = task.send(());
                    }
                }
                Ok(Some(Ended::Lost)) => {}
                Ok(None) | Err(_) => ready.clear_ready(),
            }
        }
    }

    /// Returns a TCP connection with these addresses.
    ///
    /// # Errors
    /// The kernel cannot open it, or the process has ended.
    pub(super) async fn streams(
        self: &Rc<Self>,
        program: SocketAddr,
        server: SocketAddr,
    ) -> io::Result<MirrorPair> {
        self.pair(MirrorRequest::Streams { program, server }).await
    }

    /// Returns two UDP sockets with these addresses.
    ///
    /// # Errors
    /// As [`Self::streams`].
    pub(super) async fn datagrams(
        self: &Rc<Self>,
        program: SocketAddr,
        server: SocketAddr,
        peer: DatagramPeer,
    ) -> io::Result<MirrorPair> {
        let connected = peer == DatagramPeer::Connected;
        self.pair(MirrorRequest::Datagrams { program, server, connected }).await
    }

    /// Returns a TCP socket that is bound to this address.
    ///
    /// # Errors
    /// As [`Self::streams`].
    pub(super) async fn bound(self: &Rc<Self>, address: SocketAddr) -> io::Result<OwnedFd> {
        self.one(MirrorRequest::Bound(address)).await
    }

    /// Returns a socket that connects from a client to a socket that was bound before. Does not
    /// wait for the connection, so a run that accepts no clients does not delay other requests.
    ///
    /// # Errors
    /// As [`Self::streams`].
    pub(super) async fn client(
        self: &Rc<Self>,
        client: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<OwnedFd> {
        self.one(MirrorRequest::Client { client, to }).await
    }

    /// The socket that sends ICMP errors to this address.
    pub(super) fn error_sender(&self, to: IpAddr) -> Option<BorrowedFd<'_>> {
        match to {
            IpAddr::V4(_) => Some(self.raw_v4.as_fd()),
            IpAddr::V6(_) => self.raw_v6.as_ref().map(AsFd::as_fd),
        }
    }

    /// Watches a socket, before other processes get it.
    ///
    /// # Errors
    /// The kernel does not report the identity of the socket.
    pub(super) fn closing(self: &Rc<Self>, socket: BorrowedFd<'_>) -> io::Result<Closing> {
        let cookie = handed::cookie(socket)?;
        let (task, closed) = oneshot::channel();
        self.waiting.borrow_mut().insert(cookie, task);
        Ok(Closing { mirror: Rc::clone(self), cookie, closed })
    }

    async fn pair(self: &Rc<Self>, request: MirrorRequest) -> io::Result<MirrorPair> {
        let mut made = self.ask(request).await?.into_iter();
        let program = made.next().ok_or_else(ended)?;
        let server = made.next().ok_or_else(ended)?;
        Ok(MirrorPair { program, server })
    }

    async fn one(self: &Rc<Self>, request: MirrorRequest) -> io::Result<OwnedFd> {
        self.ask(request).await?.pop().ok_or_else(ended)
    }

    /// Asks in a task of its own, which is not cancelled with the caller: otherwise the next
    /// request would get this reply.
    async fn ask(self: &Rc<Self>, request: MirrorRequest) -> io::Result<Vec<OwnedFd>> {
        let mirror = Rc::clone(self);
        let requested = tokio::task::spawn_local(async move { mirror.exchange(request).await });
        requested.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn exchange(&self, request: MirrorRequest) -> io::Result<Vec<OwnedFd>> {
        let mut channel = self.channel.lock().await;
        write_frame(&mut channel, &request).await?;
        let reply = read_frame::<MirrorReply>(&mut channel, REPLY_BYTES_MAX).await?;
        let Frame { message, descriptors } = reply.ok_or_else(ended)?;
        match message {
            MirrorReply::Made => Ok(descriptors),
            MirrorReply::Started(_) => Err(ended()),
            MirrorReply::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            MirrorReply::NoNamespace(reason) => Err(io::Error::other(reason)),
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::BrokenPipe,
        "the process that opens sockets of the link has ended: restart `tacit link serve`",
    )
}
