//! Defines the reasons why a workload cannot be measured.

use std::io;
use std::path::PathBuf;

use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;

use crate::control::client::ClientError;

/// The reason why a workload cannot be measured.
#[derive(Debug)]
pub(super) enum WorkloadError {
    /// An option, or a combination of options, is invalid.
    Usage(String),
    /// A host name or address cannot be resolved.
    Resolve(String, io::Error),
    /// The server does not accept connections.
    Connect(Address, io::Error),
    /// An open connection failed.
    Broken(&'static str, io::Error),
    /// Received bytes violate the protocol.
    Mixed(&'static str),
    /// The server cannot listen at its address.
    Listen(Address, io::Error),
    /// The server's threads ended.
    ServerEnded,
    /// A process given with `--cpu-of` cannot be read.
    Process(String, u32, io::Error),
    /// The ledger of an agent given with `--ledger-of` cannot be read.
    Ledger(String, ClientError),
    /// `--ledger-of` names a process that did not start a run.
    NoRun(String),
    /// The limit of open files cannot be raised.
    Descriptors(io::Error),
    /// The limit of open files is too low.
    TooFewDescriptors { wanted: usize, limit: u64 },
    /// A thread cannot be started.
    Thread(io::Error),
    /// A thread of this process panicked.
    Panicked,
    /// The connection to the program that controls the measurement failed.
    Steering(io::Error),
    /// A report cannot be written.
    Write(PathBuf, io::Error),
    /// An earlier report cannot be read.
    Beside(PathBuf, io::Error),
    /// No operation finished in time.
    Nothing,
    /// The network namespaces for a paper cannot be made.
    Namespace(String),
    /// A cell of a paper could not be measured.
    Paper(String),
}

impl WorkloadError {
    /// The identifier of the message.
    pub(super) fn id(&self) -> MessageId {
        match self {
            Self::Usage(_) => MessageId("usage"),
            Self::Resolve(..) => MessageId("name-unresolved"),
            Self::Connect(..) => MessageId("no-server"),
            Self::Broken(..) => MessageId("connection-broken"),
            Self::Mixed(_) => MessageId("wrong-bytes"),
            Self::Listen(..) => MessageId("cannot-listen"),
            Self::ServerEnded | Self::Panicked => MessageId("thread-ended"),
            Self::Process(..) => MessageId("no-process"),
            Self::Ledger(_, error) => error.id(),
            Self::NoRun(_) => MessageId("no-run"),
            Self::Descriptors(_) | Self::TooFewDescriptors { .. } => MessageId("few-open-files"),
            Self::Thread(_) => MessageId("no-thread"),
            Self::Steering(_) => MessageId("steering-failed"),
            Self::Write(..) => MessageId("file-failed"),
            Self::Beside(..) => MessageId("report-unreadable"),
            Self::Nothing => MessageId("nothing-measured"),
            Self::Namespace(_) => MessageId("no-namespace"),
            Self::Paper(_) => MessageId("cell-not-measured"),
        }
    }
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Resolve(name, error) => write!(
                f,
                "cannot resolve {name}: {error}\n    \
                 fix: use HOST:PORT, ADDRESS:PORT or unix:PATH"
            ),
            Self::Connect(address, error) => {
                write!(f, "cannot connect to {address}: {error}\n    fix: {START_A_SERVER}")
            }
            Self::Broken(what, error) => write!(f, "{what} failed: {error}: {CHECK_THE_PEERS}"),
            Self::Mixed(what) => write!(
                f,
                "the server's answer does not match the request ({what}): {CHECK_THE_PEERS}"
            ),
            Self::Listen(address, error) => {
                write!(f, "cannot listen at {address}: {error}\n    fix: use another address")
            }
            Self::ServerEnded => {
                f.write_str("all threads of the server ended: see the messages above")
            }
            Self::Process(name, pid, error) => write!(
                f,
                "cannot read the CPU time of process {pid} (--cpu-of {name}={pid}): {error}: \
                 select a process that runs until the measurement ends"
            ),
            Self::Ledger(agent, error) => {
                write!(f, "--ledger-of {agent}: cannot read the ledger of this agent: {error}")
            }
            Self::NoRun(agent) => write!(
                f,
                "--ledger-of {agent}: this process is not a `tacit run` with a private agent: use \
                 the control socket of the agent instead"
            ),
            Self::Descriptors(error) => write!(
                f,
                "cannot raise the limit of open files: {error}: raise the limit with `ulimit -n`"
            ),
            Self::TooFewDescriptors { wanted, limit } => write!(
                f,
                "{wanted} connections need more open files than the limit of {limit}: raise the \
                 limit (ulimit -Hn), or use fewer connections"
            ),
            Self::Thread(error) => {
                write!(f, "cannot start a thread: {error}: use fewer connections")
            }
            Self::Panicked => f.write_str("a thread panicked: see the message above"),
            Self::Steering(error) => write!(f, "--steered: {error}: {KEEP_STEERING}"),
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            Self::Beside(path, error) => {
                let path = path.display();
                write!(f, "cannot read --beside {path}: {error}: {GIVE_A_REPORT}")
            }
            Self::Nothing => f.write_str(
                "no operation finished during the measurement: use a longer measurement \
                 (--seconds)",
            ),
            Self::Namespace(error) => {
                write!(f, "cannot prepare network namespaces: {error}\n    fix: {ALLOW_NAMESPACES}")
            }
            Self::Paper(reason) => write!(
                f,
                "a measurement failed: {reason}: read the reasons below the tables, and measure \
                 again"
            ),
        }
    }
}

const START_A_SERVER: &str = "start a server with `tacit workload MODE server --listen ADDRESS`, \
    and check the proxies between client and server";
const CHECK_THE_PEERS: &str = "check the logs of the proxies between client and server, and make \
                               sure that the server is a `tacit workload` server";
const KEEP_STEERING: &str = "the program that controls this client must keep the client's standard \
                             input and output open";
const GIVE_A_REPORT: &str = "use a report that `tacit workload --json` has written";
const ALLOW_NAMESPACES: &str = "install util-linux and iproute2, and allow user namespaces \
                                (`tacit doctor` reports whether this host allows them)";
