//! Defines the messages between the agent and the starter (the process that starts programs). Each
//! message is a frame: a length, and a text in JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tacit_core::policy::{Activation, HostSettings, ProcessFor, SocketAs};

/// The maximum size of a message. A policy of the largest size has fewer bytes of commands.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// The maximum size of a reply of the starter.
pub(super) const REPLY_BYTES_MAX: usize = 64 << 10;

/// A message from the agent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ToStarter {
    /// All programs; only as the first message.
    Programs(Vec<Program>),
    /// Start a program for a connection, or connect to the one that runs.
    Start(StartRequest),
}

/// A program of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Program {
    /// The name of its activation.
    pub(super) name: String,
    /// Its path, and its arguments.
    pub(super) command: Vec<String>,
    /// Whether one process serves all connections.
    pub(super) is_shared: bool,
    /// Whether it gets its socket with `LISTEN_FDS`; otherwise as standard input.
    pub(super) listen_fds: bool,
    /// The maximum number of processes at the same time.
    pub(super) processes_max: usize,
    /// The maximum number of starts in `Activation::STARTS_WINDOW_S`.
    pub(super) starts_max: usize,
    /// The user; `None`: that of the agent.
    pub(super) user: Option<String>,
    /// Whether the policy captures the host, so that it must be another user than that of the
    /// agent.
    pub(super) is_of_captured_host: bool,
}

impl Program {
    /// The program of an activation. `host`: the settings of the captured host.
    pub(super) fn of(name: &str, activation: &Activation, host: Option<&HostSettings>) -> Self {
        let Activation { command, process, socket, processes_max, starts_max, user, .. } =
            activation;
        let is_shared = *process == ProcessFor::All;
        Self {
            name: name.to_owned(),
            command: command.clone(),
            is_shared,
            listen_fds: *socket == SocketAs::ListenFds,
            processes_max: if is_shared { 1 } else { *processes_max },
            starts_max: *starts_max,
            user: user.clone(),
            is_of_captured_host: host.is_some(),
        }
    }
}

/// A request for the program of a connection.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct StartRequest {
    /// The number of the request.
    pub(super) number: u64,
    /// The name of the activation.
    pub(super) program: String,
    /// The address of the client, if it has one.
    pub(super) remote: Option<SocketAddr>,
}

/// A message from the starter.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FromStarter {
    /// The programs can be started.
    Ready,
    /// A program cannot be started, for this reason.
    Unusable(String),
    /// A connection has its program. The socket to it comes with this message.
    Started {
        /// The request.
        number: u64,
        /// The process.
        pid: u32,
    },
    /// A connection gets no program, for this reason.
    Refused {
        /// The request.
        number: u64,
        /// The reason.
        reason: String,
    },
    /// A process has ended.
    Ended {
        /// The name of its activation.
        program: String,
        /// The process.
        pid: u32,
        /// How it ended; `None`: successfully.
        failure: Option<String>,
    },
}
