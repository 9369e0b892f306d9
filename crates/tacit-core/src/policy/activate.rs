//! Defines activations. An activation is a program that tacit starts for the connections of a
//! forwarding rule. The key `activate` of the rule contains the name of the activation.
//!
//! The program and its arguments come only from the policy. A client cannot change them.

use super::diagnostic::SourcePosition;

/// `[activate.NAME]`: a program, when it starts, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activation {
    /// The absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// When a connection gets a program.
    pub on: ActivateOn,
    /// Which connections share a process.
    pub process: ProcessFor,
    /// How the program gets its socket.
    pub socket: SocketAs,
    /// The maximum number of processes at the same time, for a process for each connection.
    pub processes_max: usize,
    /// The maximum number of them for one client address (IPv6: one /64); `None`: all.
    pub processes_per_source: Option<usize>,
    /// The maximum number of starts in [`Activation::STARTS_WINDOW_S`] seconds.
    pub starts_max: usize,
    /// The user of the process; `None`: the user of the agent.
    pub user: Option<String>,
    /// The position of the table in the policy.
    pub position: SourcePosition,
}

impl Activation {
    /// The seconds over which `starts` counts.
    pub const STARTS_WINDOW_S: u64 = 10;
    /// The default of `max`.
    pub const PROCESSES_DEFAULT: usize = 100;

    /// Whether both are equal, apart from their position in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        *self == Self { position: self.position, ..other.clone() }
    }
}

/// The key `activate` of a rule: the activation of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleActivation {
    /// The name of the activation, which is in
    /// [`Policy::activations`](super::Policy::activations).
    pub name: String,
    /// When a connection gets its program, as the activation says.
    pub on: ActivateOn,
}

/// When a connection gets a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivateOn {
    /// When its first payload has arrived. Until then, no process belongs to it.
    #[default]
    Message,
    /// When it is established.
    Connection,
}

impl ActivateOn {
    /// The words in the policy.
    pub const WORDS: [(&'static str, Self); 2] =
        [("message", Self::Message), ("connection", Self::Connection)];
}

/// Which connections share a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessFor {
    /// None: each connection has a process of its own.
    #[default]
    Each,
    /// All: one process accepts all connections.
    All,
}

impl ProcessFor {
    /// The words in the policy.
    pub const WORDS: [(&'static str, Self); 2] = [("each", Self::Each), ("all", Self::All)];

    /// The default of `starts`. A program that serves all connections starts rarely.
    #[must_use]
    pub fn starts_default(self) -> usize {
        match self {
            Self::Each => 1000,
            Self::All => 5,
        }
    }

    /// The default of `socket`.
    #[must_use]
    pub fn socket_default(self) -> SocketAs {
        match self {
            Self::Each => SocketAs::Stdin,
            Self::All => SocketAs::ListenFds,
        }
    }
}

/// How a program gets its socket: the connection, or a listening socket if one process serves all
/// connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketAs {
    /// As standard input and standard output.
    Stdin,
    /// As descriptor 3, with `LISTEN_FDS`.
    ListenFds,
}

impl SocketAs {
    /// The words in the policy.
    pub const WORDS: [(&'static str, Self); 2] =
        [("stdin", Self::Stdin), ("listen-fds", Self::ListenFds)];
}
