//! Defines the messages of a link, and encodes these messages for UNIX sockets. A link connects two
//! sides: one side has a network, and the other side has none. A run (a program under `tacit run`)
//! on the side without a network gets sockets of the side with a network.
//!
//! The agent of the run sends requests to a link server, each on its own stream (a connection to
//! the UNIX socket of the server):
//!
//! ```text
//!   agent of a run ── Hello ──────────────> server      the stream stays open until the run ends
//!                  <────────── Welcome ──
//!                  ── Open ───────────────> server      a stream of its own for each socket
//!                  <──── Socket + socket ──             or Failed, Refused; then the stream ends
//!                  ── Pass + channel ─────> server      requests a socket for the run's helper
//!                  <────────── Passed ──                identifies the socket
//!   helper of run <── Answer + socket ──── server       sent on the channel
//! ```
//!
//! The sign `+` means that the message passes a descriptor. The channel is a copy of the socket on
//! which the agent sends messages to the helper.
//!
//! If connections may outlive their run, the stream of Hello stays open after the end of the run.
//! The agent then sends `RunEnded` on this stream, and closes this stream after the last
//! connection.
//!
//! The side without a network opens every stream. Each message is in a frame. The format of the
//! frames is also used between the launcher and the agent ([`crate::run::protocol`]).
//!
//! If the two sides have different kernels, each side has a server. The server of the side without
//! a network forwards the requests, in frames of [`tacit_core::link_frame`]. Sockets cannot be
//! passed between kernels, so the bytes of a socket follow on the stream of its request:
//!
//! ```text
//!   server without network ── Hello, Open ──────────> server with network
//!                          <── Welcome, Connected ──  then bytes, or the events of a bound socket
//!                          ── Take ─────────────────> a stream for a client of a bound socket
//! ```
//!
//! Limits: [`REQUEST_BYTES_MAX`] for the frame of a request, [`ANSWER_BYTES_MAX`] for the frame of
//! an answer, and [`RUN_BYTES_MAX`] for the name of a run.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use tacit_core::printable::printable;

use crate::clock::Rfc3339;
use crate::run::protocol::ConnectAnswer;

/// The version of this protocol.
pub const VERSION: u32 = 1;
/// The longest request.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// The longest answer: the status of a link with all its runs.
pub const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// The longest name of a run.
pub const RUN_BYTES_MAX: usize = 64;
/// The maximum number of characters of a reason that are shown.
const REASON_CHARACTERS_MAX: usize = 600;
/// What separates a reason from the advice after it.
const FIX: &str = "\n    fix: ";
/// The maximum number of sockets in an answer; the oldest ones.
pub const SOCKETS_SHOWN_MAX: usize = 2048;

/// The first message on a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkRequest {
    /// A run begins to use the link, until the stream ends.
    Hello(LinkHello),
    /// The run has ended, and its connections stay open. Only on the stream of its Hello message,
    /// and only if connections are shared.
    RunEnded,
    /// Open a socket.
    Open(OpenRequest),
    /// Open a socket of the kind [`OpenKind::Handed`], and pass it to the helper of the run. The
    /// agent's channel to the helper comes with this.
    Pass(PassRequest),
    /// Pass the sockets with which the agent reads the usage of the sockets that programs have: two
    /// netlink sockets. Contains the number of the session.
    Usage(u64),
    /// Listen at a bound socket, or do not listen any more. Only if the server is not the one that
    /// has the network.
    Listening(ListeningRequest),
    /// Pass the bytes of a client that has arrived at a bound socket. Only between servers.
    Take(TakeRequest),
    /// Report the state of the link.
    Status,
    /// A request of an operator.
    Control(LinkControl),
}

/// A request to listen at a bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ListeningRequest {
    /// The number of the session.
    pub session: u64,
    /// The address of the socket.
    pub address: SocketAddr,
    /// What to do.
    pub order: ListenOrder,
}

/// What the server does at a bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenOrder {
    /// Accept clients.
    Listen,
    /// Refuse clients.
    Suspend,
}

/// A request for the bytes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TakeRequest {
    /// The number of the session.
    pub session: u64,
    /// The number of the client.
    pub ticket: u64,
}

/// What happens at a bound socket on the side that has the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundEvent {
    /// The last order was obeyed.
    Done,
    /// The kernel refused the last order with this error number.
    Failed(i32),
    /// A client has arrived.
    Arrived(ArrivedClient),
}

/// A client of a bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ArrivedClient {
    /// The number for [`TakeRequest`].
    pub ticket: u64,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The address to which it has connected.
    pub local: SocketAddr,
}

/// A request of an operator. Only processes of this host that may use the link can send it: servers
/// of other hosts do not accept it on their streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkControl {
    /// Stop serving the link.
    Stop,
    /// Log each request from now on.
    TraceOn,
    /// Log requests no longer.
    TraceOff,
    /// Report the open sockets.
    Sockets,
}

/// An open socket of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkSocket {
    /// The session of the run.
    pub session: u64,
    /// Its kind.
    pub kind: OpenKind,
    /// The address to which it was connected or bound.
    pub address: SocketAddr,
    /// When it was opened.
    pub since: Rfc3339,
    /// Whether its run has ended.
    #[serde(default)]
    pub outlived_run: bool,
}

/// The description of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkHello {
    /// The version of the protocol that the agent of the run uses.
    pub version: u32,
    /// The name of the run, for displays only.
    pub run: String,
}

/// A request for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OpenRequest {
    /// The number of the session.
    pub session: u64,
    /// The kind of the socket.
    pub kind: OpenKind,
    /// The address to which it is connected or bound.
    pub address: SocketAddr,
}

/// A request for a socket that the server passes to the helper of the run. The program gets it
/// earlier than through the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PassRequest {
    /// The number of the session.
    pub session: u64,
    /// The address to which the socket is connected, written as an IPv6 address for a socket for
    /// IPv6.
    pub address: SocketAddr,
    /// The network namespace in which the agent expects the socket.
    pub namespace: u64,
    /// The congestion control of the socket; `None`: that of its network.
    pub congestion_control: Option<String>,
    /// What the helper gets with the socket.
    pub answer: ConnectAnswer,
}

impl PassRequest {
    /// The same request for a socket that the agent passes on.
    #[must_use]
    pub fn open(&self) -> OpenRequest {
        OpenRequest { session: self.session, kind: OpenKind::Handed, address: self.address }
    }
}

/// The kind of a requested socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpenKind {
    /// A TCP socket that is connected.
    Connected,
    /// A TCP socket for a program of the run, which connects it to the address. If the address is
    /// written as an IPv6 address, the socket is one for IPv6. Only within one kernel.
    Handed,
    /// A TCP socket that is bound, for connections from outside.
    Bound,
    /// The same after the server of another kernel was lost. The run still has its own end, and
    /// gets no socket.
    BoundAgain,
    /// A UDP socket that is connected.
    Datagrams,
    /// A UDP socket that is not connected, and receives from the address only.
    DatagramsOfHost,
    /// A UDP socket that is not connected, and receives from any address.
    DatagramsOfAll,
}

impl OpenKind {
    /// A word for displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Connected | Self::Handed => "tcp",
            Self::Bound | Self::BoundAgain => "tcp-listen",
            Self::Datagrams | Self::DatagramsOfHost | Self::DatagramsOfAll => "udp",
        }
    }
}

/// Reads a reason. The other side may be hostile, and the reason is shown on terminals: characters
/// that control a terminal are escaped.
fn read_reason<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    let text: String = text.chars().take(REASON_CHARACTERS_MAX).collect();
    let parts: Vec<_> = text.split(FIX).map(printable).collect();
    Ok(parts.join(FIX))
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkAnswer {
    /// The run may use the link.
    Welcome(LinkWelcome),
    /// The socket comes with this.
    Socket,
    /// The helper gets the socket, which has this inode and this cookie.
    Passed {
        /// The number that `/proc/PID/fd` shows.
        inode: u32,
        /// The number that socket diagnosis shows.
        cookie: u64,
    },
    /// The sockets for [`LinkRequest::Usage`] come with this: that of destroyed sockets first.
    Usage,
    /// The socket is open at this address. Its bytes follow. Only between servers.
    Connected(SocketAddr),
    /// The order was obeyed.
    Done,
    /// The kernel reports this error number.
    Failed(i32),
    /// The policy or a limit does not allow it, for this reason.
    Refused(#[serde(deserialize_with = "read_reason")] String),
    /// The state of the link.
    Status(Box<LinkStatus>),
    /// The open sockets of the link.
    Sockets(Vec<LinkSocket>),
}

/// What the server offers to a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkWelcome {
    /// The version of the protocol that the server uses.
    pub version: u32,
    /// The name of the link.
    pub link: String,
    /// The number of the session, which requests for sockets contain.
    pub session: u64,
    /// Whether the server reaches IPv4 addresses.
    pub ipv4: bool,
    /// Whether the server reaches IPv6 addresses.
    pub ipv6: bool,
    /// The maximum number of sockets.
    pub sockets_max: usize,
    /// The resolvers to which the run may send DNS queries.
    pub resolvers: Vec<SocketAddr>,
    /// Whether another server, on another kernel, has the network.
    #[serde(default)]
    pub remote: bool,
    /// Whether programs of the run can get sockets that they connect themselves.
    #[serde(default)]
    pub hands: bool,
    /// Whether the server accepts [`LinkRequest::Pass`].
    #[serde(default)]
    pub passes: bool,
    /// Whether connections outlive their run.
    #[serde(default)]
    pub share: bool,
    /// A number of the server's process. The sockets that another process has bound on behalf of
    /// another kernel get no clients any more.
    #[serde(default)]
    pub instance: u64,
    /// The host name of the side that has the network.
    #[serde(default)]
    pub host: String,
    /// The addresses from which that side connects.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

impl LinkWelcome {
    /// Whether the server reaches addresses of this family.
    #[must_use]
    pub fn reaches(&self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// The state of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkStatus {
    /// The name of the link.
    pub name: String,
    /// The path of its socket.
    pub path: PathBuf,
    /// The process of the server.
    pub pid: u32,
    /// The policy file.
    pub policy: PathBuf,
    /// When the server started.
    pub since: Rfc3339,
    /// The maximum number of sockets.
    pub sockets_max: usize,
    /// The resolvers that runs may use.
    pub resolvers: Vec<SocketAddr>,
    /// Whether the server reaches IPv4 addresses.
    pub ipv4: bool,
    /// Whether the server reaches IPv6 addresses.
    pub ipv6: bool,
    /// The open sockets.
    pub sockets: usize,
    /// The host name of the server.
    pub host: String,
    /// The addresses from which the server's host connects.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The maximum number of runs.
    pub runs_max: usize,
    /// The requests that are in progress.
    pub requests: usize,
    /// The maximum number of requests in progress.
    pub requests_max: usize,
    /// The sockets that runs have received.
    pub opened: u64,
    /// The requests that the kernel or a peer refused.
    pub failed: u64,
    /// The requests that the policy or a limit refused.
    pub refused: u64,
    /// Whether each request is logged.
    pub trace: bool,
    /// Whether connections outlive their runs.
    #[serde(default)]
    pub share: bool,
    /// The limit of open files of the server.
    #[serde(default)]
    pub files_max: u64,
    /// The sandbox of the server.
    #[serde(default)]
    pub sandbox: LinkSandbox,
    /// The runs that use the link, the oldest first.
    pub runs: Vec<LinkedRun>,
    /// Where servers of other hosts connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<SocketAddr>,
    /// Where the server of a virtual machine connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<String>,
    /// The server that has the network, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
}

/// What the process of a server may still do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkSandbox {
    /// The directories that it can read and write.
    pub files: String,
    /// The limit of its system calls.
    pub calls: String,
    /// The capabilities that it has kept.
    pub capabilities: String,
}

/// A run that uses a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LinkedRun {
    /// The number of its session.
    pub session: u64,
    /// Its name, as its agent reports it.
    pub run: String,
    /// The process of its agent; 0 if the server cannot see that process.
    pub pid: u32,
    /// The user of its agent.
    pub user: String,
    /// When it began to use the link.
    pub since: Rfc3339,
    /// Its open sockets.
    pub sockets: usize,
    /// The sockets that it has received.
    pub opened: u64,
    /// The requests that the kernel or a peer refused.
    pub failed: u64,
    /// The requests that the policy or a limit refused.
    pub refused: u64,
    /// When it ended, if its connections have outlived it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Rfc3339>,
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::run::channel::{adopt, read_frame};
    use crate::run::protocol::encode;

    /// The messages that a reader with this limit gets from these bytes, and the error that ends
    /// them.
    fn read_all<T: DeserializeOwned>(bytes: &[u8]) -> (Vec<T>, Option<std::io::ErrorKind>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(bytes).unwrap();
            drop(near);
            let mut far = adopt(far).unwrap();
            let mut all = Vec::new();
            loop {
                match read_frame::<T>(&mut far, REQUEST_BYTES_MAX).await {
                    Ok(Some(frame)) => all.push(frame.message),
                    Ok(None) => return (all, None),
                    Err(error) => return (all, Some(error.kind())),
                }
            }
        })
    }

    fn requests() -> impl Strategy<Value = LinkRequest> {
        let kinds = [
            OpenKind::Connected,
            OpenKind::Bound,
            OpenKind::Datagrams,
            OpenKind::DatagramsOfHost,
            OpenKind::DatagramsOfAll,
        ];
        let open = (any::<u64>(), prop::sample::select(kinds.to_vec()), any::<SocketAddr>())
            .prop_map(|(session, kind, address)| {
                LinkRequest::Open(OpenRequest { session, kind, address })
            });
        let pass = (any::<[u64; 3]>(), any::<SocketAddr>()).prop_map(|(numbers, address)| {
            let [session, namespace, number] = numbers;
            let answer = ConnectAnswer {
                number,
                to: Some(address),
                error: None,
                socket_first: namespace % 2 == 0,
            };
            let congestion_control = (number % 2 == 0).then(|| "cubic".to_owned());
            LinkRequest::Pass(PassRequest {
                session,
                address,
                namespace,
                congestion_control,
                answer,
            })
        });
        let hello = (any::<u32>(), ".{0,64}")
            .prop_map(|(version, run)| LinkRequest::Hello(LinkHello { version, run }));
        let control = prop::sample::select(vec![LinkControl::Stop, LinkControl::Sockets]);
        let control = control.prop_map(LinkRequest::Control);
        prop_oneof![
            open,
            pass,
            hello,
            Just(LinkRequest::Status),
            Just(LinkRequest::RunEnded),
            control
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_a_round_trip(sent in prop::collection::vec(requests(), 0..4)) {
            let bytes: Vec<u8> = sent.iter().flat_map(|one| encode(one).unwrap()).collect();
            let (read, error) = read_all::<LinkRequest>(&bytes);
            prop_assert_eq!((read, error), (without_scopes(&sent), None));
        }

        #[test]
        fn any_bytes_end_with_an_error_or_the_end(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let (_, error) = read_all::<LinkRequest>(&bytes);
            prop_assert_eq!(error.is_none(), bytes.is_empty());
        }

        #[test]
        fn a_request_that_is_cut_is_not_a_request(
            sent in requests(),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = encode(&sent).unwrap();
            let cut = cut.index(bytes.len());
            let (read, error) = read_all::<LinkRequest>(&bytes[..cut]);
            prop_assert!(read.is_empty());
            prop_assert_eq!(error.is_none(), cut == 0);
        }
    }

    /// The text of an IPv6 address has no flow information.
    fn without_scopes(sent: &[LinkRequest]) -> Vec<LinkRequest> {
        let text = |one: &LinkRequest| serde_json::to_string(one).unwrap();
        sent.iter().map(|one| serde_json::from_str(&text(one)).unwrap()).collect()
    }

    #[test]
    fn wrong_frames_are_rejected_with_the_name_of_the_error() {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        let framed = |text: &str| {
            let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
            bytes.extend(text.as_bytes());
            bytes
        };
        let long = encode(&Long(REQUEST_BYTES_MAX)).unwrap();
        for (name, bytes, wanted) in [
            ("a length beyond the limit", vec![0xff; 8], InvalidData),
            ("a frame beyond the limit", long, InvalidData),
            ("less than a length", vec![0, 0], UnexpectedEof),
            ("less than the length says", vec![0, 0, 0, 9, b'"'], UnexpectedEof),
            ("an unknown request", framed("\"close\""), InvalidData),
            (
                "an unknown kind",
                framed(r#"{"open":{"session":1,"kind":"raw","address":"1.2.3.4:5"}}"#),
                InvalidData,
            ),
            (
                "a name as address",
                framed(r#"{"open":{"session":1,"kind":"bound","address":"a:5"}}"#),
                InvalidData,
            ),
            (
                "a negative session",
                framed(r#"{"open":{"session":-1,"kind":"bound","address":"1.2.3.4:5"}}"#),
                InvalidData,
            ),
            ("a hello without a name", framed(r#"{"hello":{"version":1}}"#), InvalidData),
            ("text after the message", framed("\"status\" 1"), InvalidData),
        ] {
            assert_eq!(read_all::<LinkRequest>(&bytes), (vec![], Some(wanted)), "{name}");
        }
    }

    #[test]
    fn reasons_of_a_peer_do_not_control_a_terminal() {
        let read = |reason: &str| {
            let sent = serde_json::to_vec(&LinkAnswer::Refused(reason.to_owned())).unwrap();
            match serde_json::from_slice(&sent).unwrap() {
                LinkAnswer::Refused(reason) => reason,
                other => panic!("{other:?}"),
            }
        };
        let honest = "no rule of the link far\n    fix: add one";
        assert_eq!(read(honest), honest);
        assert_eq!(read("a\x1b[2J\n# \u{202e}\x07b"), "a\\u{1b}[2J\\n# \\u{202e}\\u{7}b");
        assert_eq!(read(&"x".repeat(4000)).len(), REASON_CHARACTERS_MAX);
    }

    /// A text with this many bytes.
    struct Long(usize);

    impl Serialize for Long {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(&"x".repeat(self.0))
        }
    }
}
