//! Why a workload could not be measured.

use std::io;
use std::path::PathBuf;

use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;

use crate::control::client::ClientError;

/// Why a workload could not be measured.
#[derive(Debug)]
pub(super) enum WorkloadError {
    /// The command line asks for something that is not there.
    Usage(String),
    /// A name or address that leads nowhere.
    Resolve(String, io::Error),
    /// No server answered.
    Connect(Address, io::Error),
    /// A connection that was open broke.
    Broken(&'static str, io::Error),
    /// Bytes came back that do not belong.
    Mixed(&'static str),
    /// The server's address.
    Listen(Address, io::Error),
    /// The server's threads are gone.
    ServerEnded,
    /// A process that was named with `--cpu-of`.
    Process(String, u32, io::Error),
    /// An agent that was named with `--ledger-of`.
    Ledger(String, ClientError),
    /// A run that was named there, and is not.
    NoRun(String),
    /// The kernel gave no more descriptors.
    Descriptors(io::Error),
    /// There are too few.
    TooFewDescriptors { wanted: usize, limit: u64 },
    /// The kernel gave no thread.
    Thread(io::Error),
    /// A thread of ours panicked.
    Panicked,
    /// The program that steers this one is gone.
    Steering(io::Error),
    /// A report could not be written.
    Write(PathBuf, io::Error),
    /// An earlier report could not be read.
    Beside(PathBuf, io::Error),
    /// Time was up before anything was done.
    Nothing,
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
        }
    }
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Resolve(name, error) => {
                write!(f, "{name}: {error}: give a name or an address and a port, or unix:PATH")
            }
            Self::Connect(address, error) => write!(
                f,
                "{address}: {error}: is the server (or the agent before it) running? Start one \
                 with \
                 `tacit workload MODE server --listen ADDRESS`"
            ),
            Self::Broken(what, error) => write!(
                f,
                "{what} broke: {error}: check the logs of the agents between, and that the far \
                 end is a `tacit workload` server"
            ),
            Self::Mixed(what) => write!(
                f,
                "{what} does not match the request: a proxy between mixes up or loses bytes, or \
                 the far end is not a `tacit workload` server"
            ),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::ServerEnded => f.write_str("the server's threads have ended"),
            Self::Process(name, pid, error) => {
                write!(f, "--cpu-of {name}={pid}: {error}: is it running?")
            }
            Self::Ledger(agent, error) => write!(f, "--ledger-of {agent}: {error}"),
            Self::NoRun(agent) => write!(
                f,
                "--ledger-of {agent}: this process is not the launcher of a `tacit run --policy` \
                 here: give its agent's control socket"
            ),
            Self::Descriptors(error) => write!(f, "the limit of open files: {error}"),
            Self::TooFewDescriptors { wanted, limit } => write!(
                f,
                "{wanted} connections need as many open files, and the limit is {limit}: raise it \
                 (ulimit -Hn), or use fewer connections"
            ),
            Self::Thread(error) => write!(f, "a thread could not be started: {error}"),
            Self::Panicked => f.write_str("a thread panicked: see the message above"),
            Self::Steering(error) => {
                write!(f, "standard input or output, which control --steered: {error}")
            }
            Self::Write(path, error) => write!(f, "writing {}: {error}", path.display()),
            Self::Beside(path, error) => write!(
                f,
                "--beside {}: {error}: give a file that --json of this verb wrote",
                path.display()
            ),
            Self::Nothing => f.write_str("no operation ended within the time: allow more time"),
        }
    }
}
