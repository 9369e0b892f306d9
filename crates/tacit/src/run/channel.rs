//! Sends the agent's requests to a helper. The helper is the process that acts inside the network
//! namespace of a program under `tacit run`.
//!
//! One task owns the socket to the helper, and sends one request after the other. If the helper
//! dies, `tacit run` starts another helper. Requests wait up to `REQUEST_WAIT_MAX` for the new
//! helper.
//!
//! The agent requests several sockets at a time, and stores the unused sockets in a [`SocketPool`].

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tacit_core::flow::Protocol;
use tacit_core::policy::{CaptureRange, HostName, HostPlan, NamedAddress};
use tacit_sys::IpVersion;
use tacit_sys::descriptor::{self, ReceivedDescriptors};
use tacit_sys::netlink::route::Families;
use tacit_sys::socket::{self, OnClose};
use tacit_sys::tun::Tun;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::net::pool::SocketPool;

use super::host::HostAddresses;
use super::protocol::{
    CountedFlows, Frame, HelperReply, HelperRequest, HostSocket, LENGTH_BYTES, NAMES_PER_REPLY_MAX,
    REPLY_BYTES_MAX, SocketEnds, SocketOwner, encode, frame_bytes,
};
use super::tunnels::TunnelPlan;
use super::unix_sockets::RunUnixSockets;

/// The maximum number of requests that wait for the helper.
const REQUESTS_MAX: usize = 1024;
/// How long a caller waits. A helper replies in microseconds; the next helper starts in
/// milliseconds.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(3);
/// How long a helper may take for one reply before the request fails.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(2);
/// The same of both for requests about a host as a whole. It may have many thousand rules and
/// names, and its helper waits for an earlier one that is ending.
const HOST_WAIT_MAX: Duration = Duration::from_secs(30);

/// A channel to a run's helper; all clones share one socket.
#[derive(Clone, Debug)]
pub struct HelperChannel {
    requests: mpsc::Sender<PendingRequest>,
    replacements: mpsc::Sender<OwnedFd>,
    pool: Arc<SocketPool>,
}

/// A request with the channel for its reply.
#[derive(Debug)]
struct PendingRequest {
    request: HelperRequest,
    back: oneshot::Sender<io::Result<ReplyFrame>>,
}

/// A reply with its descriptors.
type ReplyFrame = Frame<HelperReply>;

impl HelperChannel {
    /// Starts a task that owns the socket; it ends when the last clone of the channel is dropped.
    ///
    /// # Errors
    /// The runtime does not take the socket.
    pub fn open(socket: OwnedFd) -> io::Result<Self> {
        let (requests, pending) = mpsc::channel(REQUESTS_MAX);
        let (replacements, new_sockets) = mpsc::channel(1);
        let stream = adopt(socket)?;
        tokio::task::spawn_local(serve(Some(stream), pending, new_sockets));
        Ok(Self { requests, replacements, pool: Arc::default() })
    }

    /// Continues with the socket of a new helper.
    pub fn replace(&self, socket: OwnedFd) {
        // If another socket waits already, this one is closed. Then its helper ends, and the
        // launcher starts another.
        let _ = self.replacements.try_send(socket);
    }

    /// Enables IP versions in the namespace.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn families(&self, Families { v4, v6 }: Families) -> io::Result<()> {
        self.ask(HelperRequest::Families { v4, v6 }).await.map(|_| ())
    }

    /// Enables IP versions in the namespace, and copies the host's interfaces and addresses.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn network(&self, families: Families, host: &HostAddresses) -> io::Result<()> {
        let Families { v4, v6 } = families;
        self.ask(HelperRequest::Network { v4, v6, host: host.clone() }).await.map(|_| ())
    }

    /// Changes the captured address ranges.
    ///
    /// # Errors
    /// The helper's error, or there is no helper; the captured ranges are then unknown.
    pub async fn change(
        &self,
        remove: Vec<CaptureRange>,
        add: Vec<CaptureRange>,
    ) -> io::Result<()> {
        self.ask(HelperRequest::Change { remove, add }).await.map(|_| ())
    }

    /// Makes a TUN device inside the run.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn open_tun(&self) -> io::Result<Tun> {
        Tun::from_descriptor(self.ask_for_one(HelperRequest::OpenTun).await?)
    }

    /// Routes the packets of tunnels, and no others, into a TUN device.
    ///
    /// # Errors
    /// The helper's error, or there is no helper. No packet of a tunnel takes another route then.
    pub async fn route_tunnels(&self, plan: TunnelPlan) -> io::Result<()> {
        self.ask(HelperRequest::Tunnels(plan)).await.map(|_| ())
    }

    /// Hides these files from programs, instead of those of earlier requests.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn hide(&self, paths: Vec<PathBuf>) -> io::Result<()> {
        self.ask(HelperRequest::Hide(paths)).await.map(|_| ())
    }

    /// Replaces the captured address ranges.
    ///
    /// # Errors
    /// The same as [`Self::change`].
    pub async fn replace_captured(&self, all: Vec<CaptureRange>) -> io::Result<()> {
        self.ask(HelperRequest::Replace(all)).await.map(|_| ())
    }

    /// The sockets of a captured host, as [`tacit_sys::host::HostSockets`] orders them.
    ///
    /// # Errors
    /// The helper's error, or there is no helper. `AddrInUse`: another process has their ports.
    pub async fn host_sockets(&self, mark: u32) -> io::Result<Vec<OwnedFd>> {
        let Frame { message, descriptors } = self.ask(HelperRequest::HostSockets { mark }).await?;
        match message {
            HelperReply::InUse => Err(io::ErrorKind::AddrInUse.into()),
            _ => Ok(descriptors),
        }
    }

    /// Installs a plan for the host. Returns whether the kernel counts flows for it.
    ///
    /// # Errors
    /// The helper's error, or there is no helper; the plan from before is then in force.
    pub async fn install_plan(
        &self,
        mark: u32,
        plan: HostPlan,
        addresses: Vec<NamedAddress>,
        user: Option<u32>,
    ) -> io::Result<bool> {
        let plan = Box::new(plan);
        let request = HelperRequest::HostPlan { mark, plan, addresses, user };
        // A helper that was started by an older agent does not count.
        Ok(matches!(self.ask(request).await?.message, HelperReply::Counts(_)))
    }

    /// The flows that the kernel has counted since the last call, by rule.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn counts(&self) -> io::Result<Vec<CountedFlows>> {
        let mut all = Vec::new();
        loop {
            let HelperReply::Counts(some) = self.ask(HelperRequest::Counts).await?.message else {
                return Err(strange());
            };
            let is_last = some.len() < NAMES_PER_REPLY_MAX;
            all.extend(some);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Captures addresses of the host's names, and keeps the names in the kernel.
    ///
    /// # Errors
    /// The helper's error, or there is no helper; then nothing has changed.
    pub async fn learn(
        &self,
        addresses: Vec<NamedAddress>,
        names: Vec<HostName>,
    ) -> io::Result<()> {
        self.ask(HelperRequest::Learn { addresses, names }).await.map(|_| ())
    }

    /// The names that the kernel keeps for the host.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn names(&self) -> io::Result<Vec<HostName>> {
        let mut all = Vec::new();
        loop {
            match self.ask(HelperRequest::Names { from: all.len() }).await?.message {
                HelperReply::Names(some) if some.is_empty() => return Ok(all),
                HelperReply::Names(some) => all.extend(some),
                _ => return Err(strange()),
            }
        }
    }

    /// The addresses with names that the kernel captures, with the rest of their times.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn named_addresses(&self) -> io::Result<Vec<NamedAddress>> {
        let mut all = Vec::new();
        loop {
            match self.ask(HelperRequest::Addresses { from: all.len() }).await?.message {
                HelperReply::Addresses(some) if some.is_empty() => return Ok(all),
                HelperReply::Addresses(some) => all.extend(some),
                _ => return Err(strange()),
            }
        }
    }

    /// Keeps the nftables rules of the host for [`Self::end_capture`].
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn keep_rules(&self) -> io::Result<()> {
        self.ask(HelperRequest::HostKeep).await.map(|_| ())
    }

    /// Ends the capture of the host: what was kept is there again.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn end_capture(&self) -> io::Result<()> {
        self.ask(HelperRequest::HostEnd).await.map(|_| ())
    }

    /// Returns a socket inside the run that may send from any address.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn socket(&self, protocol: Protocol, version: IpVersion) -> io::Result<OwnedFd> {
        let kind = self.pool.kind(protocol, version);
        if let Some(socket) = kind.take() {
            return Ok(socket);
        }
        let ipv6 = version == IpVersion::V6;
        let request = HelperRequest::Socket { protocol, ipv6, count: kind.next_request() };
        let mut sockets = self.ask(request).await?.descriptors;
        let one = sockets.pop().ok_or_else(strange)?;
        kind.put(sockets);
        Ok(one)
    }

    /// Returns another channel to the helper, for a successor.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn another(&self) -> io::Result<OwnedFd> {
        self.ask_for_one(HelperRequest::Channel).await
    }

    /// Resets the connection of a socket that a program of the run has.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn reset(&self, inode: u32) -> io::Result<()> {
        self.ask(HelperRequest::Reset { inode }).await.map(|_| ())
    }

    /// Returns the processes that hold sockets of the run, in the order of the request; `None` if
    /// no visible process holds the socket.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn owners(&self, ends: Vec<SocketEnds>) -> io::Result<Vec<Option<SocketOwner>>> {
        match self.ask(HelperRequest::Owners(ends)).await?.message {
            HelperReply::Owners(owners) => Ok(owners),
            _ => Err(strange()),
        }
    }

    /// Returns the connected sockets that programs of the host hold, to other hosts.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn sockets_of_host(&self) -> io::Result<Vec<HostSocket>> {
        match self.ask(HelperRequest::Sockets).await?.message {
            HelperReply::Sockets(sockets) => Ok(sockets),
            _ => Err(strange()),
        }
    }

    /// Returns the process that holds one socket of the run.
    ///
    /// # Errors
    /// The same as [`Self::owners`].
    pub async fn owner(
        &self,
        protocol: Protocol,
        program: SocketAddr,
        peer: SocketAddr,
    ) -> io::Result<Option<SocketOwner>> {
        let owners = self.owners(vec![SocketEnds { protocol, program, peer }]).await?;
        Ok(owners.into_iter().next().flatten())
    }

    /// Whether a socket of a program is connecting between these addresses, and no program of the
    /// run accepts it.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn is_connecting(&self, ends: SocketEnds) -> io::Result<bool> {
        match self.ask(HelperRequest::Connecting(ends)).await?.message {
            HelperReply::Connecting(is_connecting) => Ok(is_connecting),
            _ => Err(strange()),
        }
    }

    /// Returns the addresses on which programs of the run listen.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn listening(&self) -> io::Result<Vec<SocketAddr>> {
        match self.ask(HelperRequest::Listening).await?.message {
            HelperReply::Listening(addresses) => Ok(addresses),
            _ => Err(strange()),
        }
    }

    /// Returns the UNIX sockets of the run's programs.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn unix_sockets(&self) -> io::Result<RunUnixSockets> {
        match self.ask(HelperRequest::UnixSockets).await?.message {
            HelperReply::UnixSockets(found) => Ok(found),
            _ => Err(strange()),
        }
    }

    /// Returns the CPU time of the run's programs in nanoseconds, including children that have
    /// ended.
    ///
    /// # Errors
    /// The helper's error, or there is no helper.
    pub async fn cpu_ns(&self) -> io::Result<u64> {
        match self.ask(HelperRequest::Cpu).await?.message {
            HelperReply::Cpu(ns) => Ok(ns),
            _ => Err(strange()),
        }
    }

    async fn ask_for_one(&self, request: HelperRequest) -> io::Result<OwnedFd> {
        self.ask(request).await?.descriptors.pop().ok_or_else(strange)
    }

    async fn ask(&self, request: HelperRequest) -> io::Result<ReplyFrame> {
        let wait_max = if is_of_host(&request) { HOST_WAIT_MAX } else { REQUEST_WAIT_MAX };
        let reply = async {
            match self.ask_once(request.clone()).await {
                // This agent gets no other helper of the host.
                Err(error) if is_broken(&error) && is_of_host(&request) => {
                    Err(io::Error::other("the helper that captured the host's traffic has ended"))
                }
                // The helper has died, and the launcher starts another.
                Err(error) if is_broken(&error) => self.ask_once(request).await,
                answered => answered,
            }
        };
        match tokio::time::timeout(wait_max, reply).await {
            Ok(Ok(Frame { message: HelperReply::Refused(reason), .. })) => {
                Err(io::Error::other(Refusal(reason)))
            }
            Ok(answered) => answered,
            Err(_) => Err(gone()),
        }
    }

    async fn ask_once(&self, request: HelperRequest) -> io::Result<ReplyFrame> {
        let (back, reply) = oneshot::channel();
        self.requests.send(PendingRequest { request, back }).await.map_err(|_| gone())?;
        reply.await.map_err(|_| gone())?
    }
}

/// Why the helper refused a request.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Whether the helper refused a request, and so has changed nothing.
#[must_use]
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Refusal>())
}

/// Whether a request is about a host as a whole: its sockets, or all its rules or names.
fn is_of_host(request: &HelperRequest) -> bool {
    matches!(
        request,
        HelperRequest::HostSockets { .. }
            | HelperRequest::HostPlan { .. }
            | HelperRequest::Names { .. }
            | HelperRequest::Addresses { .. }
    )
}

fn gone() -> io::Error {
    io::Error::other("the helper of the run has ended, and no new helper has started in time")
}

/// Whether the channel failed; `false` if the helper refused the request.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn strange() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the helper of the run sent a reply whose type does not fit the request; this is a bug in \
         tacit",
    )
}

/// Registers a socket with the runtime of the calling thread.
///
/// # Errors
/// The runtime cannot watch the socket.
pub fn adopt(socket: impl Into<StdStream>) -> io::Result<UnixStream> {
    let stream = socket.into();
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Sends one request after the other on the newest socket.
async fn serve(
    mut stream: Option<UnixStream>,
    mut pending: mpsc::Receiver<PendingRequest>,
    mut new_sockets: mpsc::Receiver<OwnedFd>,
) {
    loop {
        tokio::select! {
            biased;
            new = new_sockets.recv() => match new {
                Some(socket) => stream = adopt(socket).ok(),
                None => return,
            },
            () = ended(&stream) => stream = None,
            request = pending.recv(), if stream.is_some() => {
                let (Some(request), Some(open)) = (request, stream.take()) else { return };
                stream = if request.back.is_closed() {
                    Some(open)
                } else {
                    answer_request(open, request, &mut new_sockets).await
                };
            }
        }
    }
}

/// Handles one request; returns the stream for the next request, if it still works. If a reply is
/// late, the stream is used again only after that reply was read, so that it is not taken for the
/// reply to the next request.
async fn answer_request(
    mut stream: UnixStream,
    PendingRequest { request, back }: PendingRequest,
    new_sockets: &mut mpsc::Receiver<OwnedFd>,
) -> Option<UnixStream> {
    let wait_max = if is_of_host(&request) { HOST_WAIT_MAX } else { REPLY_WAIT_MAX };
    let has_replied = {
        let mut exchange = pin!(exchange(&mut stream, &request));
        // The caller may have stopped waiting.
        if let Ok(reply) = tokio::time::timeout(wait_max, &mut exchange).await {
            let has_replied = reply.is_ok();
            let _ = back.send(reply);
            has_replied
        } else {
            let _ = back.send(Err(io::ErrorKind::TimedOut.into()));
            tokio::select! {
                new = new_sockets.recv() => return new.and_then(|socket| adopt(socket).ok()),
                late = exchange => late.is_ok(),
            }
        }
    };
    has_replied.then_some(stream)
}

/// Waits until the stream is readable without a request, which means that its helper has ended.
async fn ended(stream: &Option<UnixStream>) {
    let Some(stream) = stream else { return std::future::pending().await };
    loop {
        let ready = stream.readable().await;
        match stream.try_read(&mut [0]) {
            Err(error) if ready.is_ok() && error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

async fn exchange(stream: &mut UnixStream, request: &HelperRequest) -> io::Result<ReplyFrame> {
    write_frame(stream, request).await?;
    read_frame_of_run(stream, REPLY_BYTES_MAX)
        .await?
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Writes one frame without descriptors.
///
/// # Errors
/// An error of the kernel.
pub async fn write_frame(stream: &mut UnixStream, frame: &impl Serialize) -> io::Result<()> {
    stream.write_all(&encode(frame)?).await
}

/// Reads one frame of at most `bytes_max` bytes; `None` if the other side has closed.
///
/// # Errors
/// An error of the kernel, or `InvalidData` if the bytes are not a frame.
pub async fn read_frame<T: DeserializeOwned>(
    stream: &mut UnixStream,
    bytes_max: usize,
) -> io::Result<Option<Frame<T>>> {
    read_received(stream, bytes_max, |_| {}).await
}

/// The bytes that are read at once from a stream whose first frame has arrived.
const FIRST_BYTES_MAX: usize = 4096;

/// Reads the first bytes of a stream, which no other frame may follow until they are answered;
/// none if the other side has closed. The bytes may have arrived already.
///
/// # Errors
/// An error of the kernel.
pub async fn read_first(stream: &UnixStream) -> io::Result<FirstBytes> {
    let mut first = [0; FIRST_BYTES_MAX];
    let received = match descriptor::receive(stream, &mut first) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let receive = || descriptor::receive(stream, &mut first);
            stream.async_io(Interest::READABLE, receive).await?
        }
        received => received?,
    };
    let ReceivedDescriptors { bytes, descriptors } = received;
    Ok(FirstBytes { bytes: first.get(..bytes).unwrap_or_default().to_vec(), descriptors })
}

/// The first bytes of a stream.
#[derive(Debug)]
pub struct FirstBytes {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors that came with them.
    pub descriptors: Vec<OwnedFd>,
}

impl FirstBytes {
    /// Reads the rest of a frame of at most `bytes_max` bytes, and returns the frame; `None` if the
    /// other side has closed.
    ///
    /// # Errors
    /// The same as [`read_frame`], or more than one frame has arrived.
    pub async fn frame<T: DeserializeOwned>(
        self,
        stream: &mut UnixStream,
        bytes_max: usize,
    ) -> io::Result<Option<Frame<T>>> {
        let Self { bytes: mut received, descriptors } = self;
        if received.is_empty() {
            return Ok(None);
        }
        fill(stream, &mut received, LENGTH_BYTES).await?;
        let length = received.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        let end = LENGTH_BYTES + frame_bytes(*length, bytes_max)?;
        fill(stream, &mut received, end).await?;
        let text = received.get(LENGTH_BYTES..).filter(|_| received.len() == end);
        let text = text.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some(Frame { message: serde_json::from_slice(text)?, descriptors }))
    }
}

/// Reads until there are so many bytes.
async fn fill(stream: &mut UnixStream, received: &mut Vec<u8>, bytes: usize) -> io::Result<()> {
    let present = received.len();
    if present < bytes {
        received.resize(bytes, 0);
        stream.read_exact(received.get_mut(present..).unwrap_or_default()).await?;
    }
    Ok(())
}

/// Reads a frame of a launcher or of a helper, which may belong to another user, like
/// [`read_frame`]. The close of a TCP socket may wait, for as long as its owner has set
/// (`SO_LINGER`), and descriptors that are not wanted are closed on the control thread. So the
/// setting is removed first.
///
/// # Errors
/// The same as [`read_frame`].
pub async fn read_frame_of_run<T: DeserializeOwned>(
    stream: &mut UnixStream,
    bytes_max: usize,
) -> io::Result<Option<Frame<T>>> {
    let remove = |descriptors: &[OwnedFd]| {
        for one in descriptors {
            // Only sockets have it.
            let _ = socket::set_on_close(one.as_fd(), OnClose::Finish);
        }
    };
    read_received(stream, bytes_max, remove).await
}

/// Reads a frame. `prepare` gets its descriptors before one of them can be closed.
async fn read_received<T: DeserializeOwned>(
    stream: &mut UnixStream,
    bytes_max: usize,
    prepare: impl FnOnce(&[OwnedFd]),
) -> io::Result<Option<Frame<T>>> {
    let mut length = [0; 4];
    let ReceivedDescriptors { bytes: count, descriptors } =
        stream.async_io(Interest::READABLE, || descriptor::receive(&*stream, &mut length)).await?;
    prepare(&descriptors);
    if count == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut length[count..]).await?;
    let mut text = vec![0; frame_bytes(length, bytes_max)?];
    stream.read_exact(&mut text).await?;
    Ok(Some(Frame { message: serde_json::from_slice(&text)?, descriptors }))
}
