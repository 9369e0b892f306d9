//! Defines the messages between launcher, helper and agent, and encodes them for UNIX sockets. The
//! launcher is the process `tacit run`, and the helper acts inside the namespaces of the run.
//!
//! ```text
//!   launcher ──── Enrolment + sockets ─────> agent      a run begins
//!            <─────────  RunTerms  ─────────            the run is captured; CMD may start
//!            ── HelperChannel + descriptor ─>           a new helper replaces one that died
//!            ────────── (closed) ──────────>            the run has ended
//!
//!   agent    ───────── HelperRequest ──────> helper     one at a time on each channel
//!            <── HelperReply (+ descriptor) ─
//! ```
//!
//! A message is encoded as a frame: the length of a JSON text as four bytes, then the text.
//! Descriptors are sent together with the four bytes. An unknown message is an error. The agent may
//! be newer than the launcher and the helper, and supports older versions of both.
//!
//! Limits: [`FRAME_BYTES_MAX`] for a frame, [`LAUNCHER_BYTES_MAX`] for a frame from a launcher, and
//! [`REPLY_BYTES_MAX`] for a reply of a helper.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::net::{SendFlags, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::{CaptureRange, HostName, HostPlan, NamedAddress};
use tacit_core::refusal::RefusedSocketKind;
use tacit_sys::descriptor::{self, ReceivedDescriptors};

use super::host::HostAddresses;
use super::tunnels::TunnelPlan;
use super::unix_sockets::RunUnixSockets;

/// The longest frame: 131,072 elements of filters with ranges of IPv6 addresses fit.
pub const FRAME_BYTES_MAX: usize = 48 * 1024 * 1024;
/// The longest frame of a launcher. It leaves room for a run's name that is too long, so that the
/// agent can report that.
pub const LAUNCHER_BYTES_MAX: usize = 256 * 1024;
/// The longest report of a helper: the path of a program, escaped.
pub const REPORT_BYTES_MAX: usize = 32 * 1024;
/// The longest packet of an agent about connections: all ranges that the helper asks about.
pub const ASK_ABOUT_BYTES_MAX: usize = 64 * 1024;
/// The longest reply of a helper: programs that listen on every port.
pub const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Names, addresses or rules in one reply: they fit into [`REPLY_BYTES_MAX`].
pub const NAMES_PER_REPLY_MAX: usize = 4096;

/// A message of a launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromLauncher {
    /// Enrols a run; its sockets come with this.
    Enrol(Enrolment),
    /// Replaces the helper channel; the descriptor of the new one comes with this.
    #[serde(rename = "line")]
    HelperChannel,
}

/// A launcher's description of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Enrolment {
    /// The name in displays.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Which sockets come with this.
    #[serde(default)]
    pub sockets: SocketSet,
    /// Whether its helper takes [`HelperRequest::Hide`].
    #[serde(default)]
    pub covers_files: bool,
    /// Whether its helper takes [`HelperRequest::UnixSockets`].
    #[serde(default)]
    pub lists_unix_sockets: bool,
}

/// Which sockets of a run its launcher makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketSet {
    /// The sockets of an older launcher: programs are connected before their destination has
    /// answered.
    #[default]
    Connected,
    /// The sockets, including those that hold SYNs.
    Held,
    /// The sockets of a captured host, which launchers do not have.
    Host,
    /// The sockets of a captured host, in a network namespace that the helper has joined. The
    /// launcher only sends the channel to the helper, which makes them for the agent.
    Joined,
}

/// The agent's answer to an enrolment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToLauncher {
    /// The agent serves the run; CMD may start.
    Terms(RunTerms),
    /// The agent refuses the run, for this reason.
    Refused(String),
    /// The answer is late, because the agent waits for this. It is sent only for runs with tunnels,
    /// which older launchers cannot have.
    Waiting(String),
}

/// The conditions under which CMD starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunTerms {
    /// Files and directories that are hidden from CMD, by each of their names.
    pub hide: Vec<PathBuf>,
    /// CPUs that CMD must not use.
    #[serde(default)]
    pub keep_off: Vec<usize>,
    /// The only CPU that CMD may use.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// Warnings that the launcher prints.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Whether the agent may give CMD sockets of its own network.
    #[serde(default)]
    pub hands_sockets: bool,
}

/// A request of the agent to the helper inside the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelperRequest {
    /// Give the namespace these address families; further ones may come later.
    Families {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
    },
    /// Give the namespace these address families, and the host's interfaces and addresses.
    Network {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
        /// The host.
        host: HostAddresses,
    },
    /// Change what is captured.
    Change {
        /// The ranges that are no longer captured.
        remove: Vec<CaptureRange>,
        /// The ranges that are captured from now on.
        add: Vec<CaptureRange>,
    },
    /// Capture exactly these ranges.
    Replace(Vec<CaptureRange>),
    /// Make sockets that may send from any address.
    Socket {
        /// Their transport.
        protocol: Protocol,
        /// Their family.
        ipv6: bool,
        /// The number of sockets, at most
        /// [`SOCKETS_AT_ONCE_MAX`](crate::net::pool::SOCKETS_AT_ONCE_MAX); the helper may send
        /// fewer.
        #[serde(default = "one")]
        count: usize,
    },
    /// Which processes hold these sockets?
    Owners(Vec<SocketEnds>),
    /// Which connected sockets do programs of the host hold, to other hosts?
    Sockets,
    /// Is a program's socket waiting for the answer to a SYN that no program inside accepts?
    Connecting(SocketEnds),
    /// On which addresses do programs listen for TCP?
    Listening,
    /// Which UNIX sockets do programs have?
    UnixSockets,
    /// How much CPU time have the programs used?
    Cpu,
    /// Make the sockets of a captured host, whose packets have these two bits as marks.
    HostSockets {
        /// The bits.
        mark: u32,
    },
    /// Install this plan for the host, in place of an earlier one. A helper that counts flows for
    /// the plan answers with [`HelperReply::Counts`].
    HostPlan {
        /// The bits of marks.
        mark: u32,
        /// The plan.
        plan: Box<HostPlan>,
        /// The addresses with names, if the plan has ports for them.
        #[serde(default)]
        addresses: Vec<NamedAddress>,
        /// The user whose packets pass.
        user: Option<u32>,
    },
    /// Capture these addresses of the host's names, and keep the names in the kernel.
    Learn {
        /// The addresses.
        addresses: Vec<NamedAddress>,
        /// The names.
        names: Vec<HostName>,
    },
    /// Which names does the kernel keep? The answer has at most [`NAMES_PER_REPLY_MAX`], from this
    /// one on; those are all as they were when the first was asked for.
    Names {
        /// How many were reported before.
        from: usize,
    },
    /// Which addresses with names does the kernel capture? As for names.
    Addresses {
        /// How many were reported before.
        from: usize,
    },
    /// Which flows has the kernel counted since the last request? Only for helpers that count.
    Counts,
    /// Keep the nftables rules of the host, which are those before the first plan.
    HostKeep,
    /// End the capture of the host: install what was kept in place of what is installed.
    HostEnd,
    /// Keep these files hidden from programs, in addition to those that the launcher named;
    /// replaces the list of an earlier request. Refused if one of them is visible.
    Hide(Vec<PathBuf>),
    /// Make a TUN device; it comes with the answer.
    OpenTun,
    /// Route the packets of tunnels, and no others, into a TUN device.
    Tunnels(TunnelPlan),
    /// Ask about the connections that programs open, on a socket for packets that comes with the
    /// reply: the helper sends [`FromConnects`] on it, and the agent [`ToConnects`].
    #[serde(rename = "judge")]
    Connects {
        /// The number of the network namespace of the sockets that programs get.
        outside: u64,
    },
    /// Reset the connection of a socket of the agent that a program has.
    Reset {
        /// The inode of the socket.
        inode: u32,
    },
    /// Make another channel, for a successor of the agent.
    #[serde(rename = "line")]
    Channel,
    /// Send a [`HelperReport`] on this channel for each kind of sockets that programs are refused;
    /// the agent sends no further request on it.
    Reports,
}

/// What a helper sends on the socket about connections that programs open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromConnects {
    /// May the program get a socket of the agent for this connection?
    Question(ConnectQuestion),
    /// The agent will be asked to relay a connection to this address, for this reason.
    Relayed {
        /// The number of the question, which needs no answer any more; `None` if none was sent.
        number: Option<u64>,
        /// The address that the program connects to.
        remote: SocketAddr,
        /// The reason.
        reason: RelayReason,
    },
    /// A program has the agent's socket.
    Started {
        /// The number of the question.
        number: u64,
        /// The address of the socket.
        local: SocketAddr,
        /// How far the connection is.
        progress: ConnectProgress,
    },
    /// A program does not have the agent's socket, or not any more.
    Ended {
        /// The number of the question.
        number: u64,
        /// The error of `connect`; `None` if the agent relays the connection, or the program has
        /// ended.
        error: Option<i32>,
    },
}

impl FromConnects {
    /// The number of the question that a report is about; `None` for a question, and for a report
    /// without one.
    #[must_use]
    pub fn of_question(&self) -> Option<u64> {
        match self {
            Self::Question(_) => None,
            Self::Relayed { number, .. } => *number,
            Self::Started { number, .. } | Self::Ended { number, .. } => Some(*number),
        }
    }
}

/// How far the connection of a program is when it has its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectProgress {
    /// The destination has not answered yet.
    Connecting,
    /// The connection is established.
    Established,
}

/// A question about a connection that a program opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectQuestion {
    /// The number of the question, for the answer.
    pub number: u64,
    /// The address that the program connects to.
    pub remote: SocketAddr,
    /// Whether its socket is one for IPv6.
    pub ipv6: bool,
    /// Who connects.
    pub owner: SocketOwner,
    /// Whether the helper takes a socket before its answer; older ones do not.
    #[serde(default)]
    pub socket_first: bool,
}

/// What an agent sends on the socket about connections that programs open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToConnects {
    /// A socket for the answer to the question with this number.
    Socket(u64),
    /// The answer to a question.
    Answer(ConnectAnswer),
    /// From now on, ask only about these destinations: no rule can permit a socket for any other.
    AskAbout(Vec<CaptureRange>),
}

/// The agent's answer. If the program gets a socket, [`ToConnects::Socket`] comes before. An older
/// helper gets the socket with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectAnswer {
    /// The number of the question.
    pub number: u64,
    /// The address to which the socket has to be connected; `None` if the connection is not one
    /// for a socket of the agent.
    pub to: Option<SocketAddr>,
    /// The error of `connect`, if the other side of a link refuses the socket.
    #[serde(default)]
    pub error: Option<i32>,
    /// Whether the helper takes a socket before its answer; otherwise the socket comes with it.
    #[serde(default)]
    pub socket_first: bool,
}

/// Why the agent relays a connection that its rule permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelayReason {
    /// The socket has an address of the run.
    Bound,
    /// The program gets signals for the socket.
    Async,
    /// An option of the socket cannot be transferred.
    Option,
    /// The process has another descriptor of the socket.
    Dup,
    /// The process has too many descriptors to look at.
    Descriptors,
    /// The socket is in an epoll instance in a way that cannot be moved.
    Epoll,
    /// The kernel does not provide what is needed.
    Kernel,
    /// The run is in another one whose calls are supervised.
    Nested,
    /// The agent does not belong to the run alone.
    Agent,
    /// The run uses a link that passes no sockets on.
    Link,
    /// The run was started without sockets of the agent.
    Start,
    /// The destination is this host itself.
    Local,
    /// The rule or the policy has `path = "relay"`.
    Path,
    /// The rule has `idle`.
    Idle,
    /// The rule is in audit mode.
    Audit,
    /// A trace is recording.
    Trace,
    /// A rule selects by the address of the program's socket.
    Selector,
    /// A limit of connections is reached.
    Limit,
}

impl RelayReason {
    /// The word in displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Async => "async",
            Self::Option => "option",
            Self::Dup => "dup",
            Self::Descriptors => "descriptors",
            Self::Epoll => "epoll",
            Self::Kernel => "kernel",
            Self::Nested => "nested",
            Self::Agent => "agent",
            Self::Link => "link",
            Self::Start => "start",
            Self::Local => "local",
            Self::Path => "path",
            Self::Idle => "idle",
            Self::Audit => "audit",
            Self::Trace => "trace",
            Self::Selector => "selector",
            Self::Limit => "limit",
        }
    }
}

/// A helper's report, on a channel that is for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelperReport {
    /// Programs were refused a kind of sockets.
    Refused(RefusedSocket),
    /// Programs are refused sockets without reports: the kernel gave the helper no listener.
    Unreported,
    /// A file that took the place of a hidden one could not be hidden, and why.
    NotHidden(String),
    /// What the filter of the program does about calls that connect.
    Connects(ConnectsInForce),
}

/// What the filter of a program does about calls that connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectsInForce {
    /// The helper decides about each.
    Handled,
    /// The launcher wants the kernel to execute them.
    NotWanted,
    /// The kernel executes them, because it cannot leave them to a helper.
    TooOld,
    /// The same, because another process supervises the calls of this one.
    Nested,
}

/// A kind of sockets that programs were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusedSocket {
    /// The kind.
    pub socket: RefusedSocketKind,
    /// How many times since the last report of it.
    pub times: u64,
    /// The latest program, where that can be seen.
    pub program: Option<PathBuf>,
}

/// The count in the request of an older agent, which has no field for it.
fn one() -> usize {
    1
}

/// Both ends of a program's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketEnds {
    /// Its transport.
    pub protocol: Protocol,
    /// The program's end.
    pub program: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

/// The owner of a socket; unknown facts are `None`. What is empty belongs to no program of this
/// host: a captured flow of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketOwner {
    /// The process nearest to the launcher that holds it; on a captured host, any process.
    pub pid: Option<u32>,
    /// The executable of the process, if it can be read.
    pub program: Option<PathBuf>,
    /// The user who made the socket, by name or number. Known only on a captured host, as is the
    /// next one.
    #[serde(default)]
    pub user: Option<String>,
    /// The control group in which the socket was made: its path below the root.
    #[serde(default)]
    pub cgroup: Option<String>,
}

/// A connected socket of a program of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostSocket {
    /// Its addresses.
    pub ends: SocketEnds,
    /// A number that no other socket has.
    pub cookie: u64,
    /// Who opened the connection.
    pub direction: Direction,
    /// Who holds it.
    pub owner: SocketOwner,
}

/// Flows that the kernel has decided by a rule, without the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CountedFlows {
    /// The name of the rule.
    pub rule: String,
    /// The number of connections and datagrams.
    pub flows: u64,
}

/// The helper's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HelperReply {
    /// The helper has done it; descriptors that the agent requested come with this.
    Done,
    /// Another process has the ports of the sockets of a host.
    InUse,
    /// The owners, in the order of the request.
    Owners(Vec<Option<SocketOwner>>),
    /// In no order; at most
    /// [`COVERAGE_SOCKETS_MAX`](tacit_core::coverage::COVERAGE_SOCKETS_MAX).
    Sockets(Vec<HostSocket>),
    /// Whether a socket is waiting.
    Connecting(bool),
    /// The addresses, in no particular order.
    Listening(Vec<SocketAddr>),
    /// The UNIX sockets.
    UnixSockets(RunUnixSockets),
    /// The CPU time in nanoseconds.
    Cpu(u64),
    /// In no order; none after the last.
    Names(Vec<HostName>),
    /// The same.
    Addresses(Vec<NamedAddress>),
    /// By rule; fewer than [`NAMES_PER_REPLY_MAX`] if these are the last.
    Counts(Vec<CountedFlows>),
    /// The helper refuses it, for this reason.
    Refused(String),
}

/// A frame that was read.
#[derive(Debug)]
pub struct Frame<T> {
    /// The message.
    pub message: T,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// Writes one frame to a blocking socket.
///
/// # Errors
/// The error of the kernel.
pub fn write(
    mut socket: &UnixStream,
    frame: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(frame)?;
    // The frame is sent in one call: a reader that finds the beginning of a short frame finds all
    // of it.
    let sent = descriptor::send(socket, &bytes, descriptors)?;
    socket.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Writes a short frame completely or not at all, without waiting for the reader; returns whether
/// it was written.
#[must_use]
pub fn write_at_once(socket: &UnixStream, frame: &impl Serialize) -> bool {
    let Ok(frame) = encode(frame) else { return false };
    let sent = send(socket, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    let is_whole = sent.is_ok_and(|bytes| bytes == frame.len());
    if !is_whole && sent.is_ok() {
        // After an incomplete frame the connection is useless; the reader sees end of file.
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }
    is_whole
}

/// Sends one packet completely or not at all, without waiting for the reader.
///
/// # Errors
/// `WouldBlock`: too many packets wait. Or the reader has ended.
pub fn send_packet(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    descriptor::send_now(socket, &text, descriptors).map(drop)
}

/// Sends the answer to a question, and the socket for the program.
///
/// This process closes its duplicate before the helper has the answer. If it still had a duplicate
/// when the program closes its socket, the connection would stay open, and so would its
/// registrations in epoll instances. A helper of an older version gets the socket with the answer.
///
/// # Errors
/// The same as those of [`send_packet`].
pub fn send_with_socket(
    channel: impl AsFd,
    answer: ConnectAnswer,
    socket: impl AsFd,
) -> io::Result<()> {
    let message = ToConnects::Answer(answer);
    if !answer.socket_first {
        return send_packet(channel, &message, &[socket.as_fd()]);
    }
    send_packet(&channel, &ToConnects::Socket(answer.number), &[socket.as_fd()])?;
    drop(socket);
    send_packet(channel, &message, &[])
}

/// Receives one packet; `None`: the other side has ended.
///
/// # Errors
/// Those of the kernel; `InvalidData` if it is not a message.
pub fn receive_packet<T: DeserializeOwned>(
    socket: impl AsFd,
    space: &mut [u8],
) -> io::Result<Option<Frame<T>>> {
    let ReceivedDescriptors { bytes, descriptors } = descriptor::receive(socket, space)?;
    if bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(&space[..bytes])?;
    Ok(Some(Frame { message, descriptors }))
}

/// Reads one frame from a blocking socket; `None`: the other side has ended.
///
/// # Errors
/// Those of the kernel; `InvalidData` if it is not a frame.
pub fn read<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<Option<Frame<T>>> {
    let mut length = [0; LENGTH_BYTES];
    let ReceivedDescriptors { bytes: count, descriptors } =
        descriptor::receive(socket, &mut length)?;
    if count == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut length[count..])?;
    let mut text = vec![0; frame_bytes(length, FRAME_BYTES_MAX)?];
    socket.read_exact(&mut text)?;
    Ok(Some(Frame { message: serde_json::from_slice(&text)?, descriptors }))
}

/// The bytes of a frame.
///
/// # Errors
/// It is too long.
pub fn encode(frame: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, frame)?;
    let text_bytes = bytes.len() - LENGTH_BYTES;
    match (u32::try_from(text_bytes), bytes.first_chunk_mut()) {
        (Ok(length), Some(place)) if text_bytes <= FRAME_BYTES_MAX => *place = length.to_be_bytes(),
        _ => return Err(too_long()),
    }
    Ok(bytes)
}

/// The length of the text that follows, in bytes.
///
/// # Errors
/// It is more than `bytes_max`.
pub fn frame_bytes(length: [u8; LENGTH_BYTES], bytes_max: usize) -> io::Result<usize> {
    let bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if bytes > bytes_max { Err(too_long()) } else { Ok(bytes) }
}

fn too_long() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message between two processes of tacit is longer than the limit",
    )
}

/// The length before a frame's text.
pub const LENGTH_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_whole_with_its_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        let sent = HelperRequest::Socket { protocol: Protocol::Udp, ipv6: true, count: 3 };
        write(&near, &sent, &[near.as_fd(), far.as_fd()]).unwrap();
        write(&near, &HelperRequest::Channel, &[]).unwrap();
        let Frame { message, descriptors } = read::<HelperRequest>(&far).unwrap().unwrap();
        assert_eq!(message, sent);
        assert_eq!(descriptors.len(), 2);
        assert_eq!(read::<HelperRequest>(&far).unwrap().unwrap().message, HelperRequest::Channel);
        drop((near, descriptors));
        assert!(read::<HelperRequest>(&far).unwrap().is_none());
    }

    #[test]
    fn a_frame_with_an_invalid_length_is_rejected() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&[0xff; 8]).unwrap();
        let error = read::<HelperRequest>(&far).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_socket_for_a_program_comes_before_its_answer_or_with_it() {
        let (near, far) = tacit_sys::query::pair().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let mut space = [0; 1024];
        let mut receive = || receive_packet::<ToConnects>(&far, &mut space).unwrap().unwrap();
        let answer =
            |socket_first| ConnectAnswer { number: 7, to: None, error: None, socket_first };
        send_with_socket(&near, answer(true), socket.try_clone().unwrap()).unwrap();
        let first = receive();
        assert_eq!(first.message, ToConnects::Socket(7));
        assert_eq!(first.descriptors.len(), 1);
        let second = receive();
        assert_eq!(second.message, ToConnects::Answer(answer(true)));
        assert!(second.descriptors.is_empty());
        send_with_socket(&near, answer(false), socket).unwrap();
        let only = receive();
        assert_eq!(only.message, ToConnects::Answer(answer(false)));
        assert_eq!(only.descriptors.len(), 1, "for an older helper");
    }
}
