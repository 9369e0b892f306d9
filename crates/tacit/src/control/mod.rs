//! Implements the control socket, through which the commands of tacit send requests to a running
//! agent.
//!
//! The control socket is a UNIX socket that only its owner and root may use. Each request is one
//! line of JSON, and each answer is one line of JSON. An answer never delays the connections that
//! the agent relays.

pub mod client;
pub mod clients;
pub mod directory;
pub mod display;
pub mod metrics;
pub mod outcome;
pub mod private_agents;
pub mod render;
mod reply;
pub mod running;
pub mod secret;
pub mod server;
pub mod trace;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tacit_core::flow::Flow;

/// The maximum size of a request.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// A request to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// Return a display.
    Show {
        /// The display.
        what: Display,
    },
    /// Return the facts of one connection.
    ShowConnection {
        /// The number of the connection.
        id: u64,
    },
    /// Evaluate the installed policy for a flow.
    Explain {
        /// The flow.
        flow: Box<Flow>,
    },
    /// Read the policy file again and install it, or change nothing.
    Reload,
    /// Read the policy file again and install it, or change nothing. Return to the installed
    /// policy unless [`Request::Confirm`] comes in time.
    ReloadForTime {
        /// The time in milliseconds.
        confirm_ms: u64,
    },
    /// Keep the installed policy, which waits for a confirmation.
    Confirm,
    /// Accept no more connections, and end after the last open one.
    Drain {
        /// Reset the connections that are still open after this many milliseconds.
        timeout_ms: Option<u64>,
    },
    /// Start a successor that takes over the listening sockets, then drain.
    Restart,
    /// Return the process, policy and supervisor of this agent.
    Identify,
    /// Reset connections.
    Close {
        /// The numbers of the connections.
        ids: Vec<u64>,
        /// Also reset all connections whose rule was changed or removed since.
        stale: bool,
        /// Also reset all connections whose peer is in this state.
        #[serde(default)]
        peer: Option<PeerState>,
        /// Also reset all connections in clear of rules with `accept = "both"`, and require TLS
        /// of their clients from now on.
        #[serde(default)]
        clear: bool,
    },
    /// From a successor: send the listening sockets.
    TakeOver {
        /// The secret that the supervisor gave to the successor ([`secret`]).
        #[serde(default)]
        secret: Option<String>,
    },
    /// From a successor, on the same connection: return which clients need TLS, by rule.
    ClearAccess,
    /// Write the bytes or the keys of connections to files of the client, which sends their
    /// descriptors next.
    Trace(trace::TraceRequest),
    /// From a successor, on the same connection: the successor serves; stop accepting and drain.
    Release,
    /// From a successor, on the same connection: return the flows of the captured host that this
    /// agent, or one before it, still relays.
    RelayedFlows,
}

/// States of a peer that select connections to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// The peer's certificate failed verification or is no longer valid (expired, revoked).
    Invalid,
}

/// The displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Display {
    /// The open connections.
    Connections,
    /// The rules, with the number of connections that each has decided.
    Rules,
    /// The rules for packets of the captured host, with what the kernel has counted.
    Filters,
    /// The installed policy with every value in force, defaults included.
    Policy,
    /// The programs under `tacit run`.
    Runs,
    /// The UNIX sockets of programs under `tacit run`, with their peers and queues.
    Unix,
    /// The CPU time that connections have used, by rule and component.
    Costs,
    /// The engines and data workers, with their CPUs and their load.
    Engines,
    /// The metrics of the agent, in the text format of Prometheus.
    Metrics,
    /// The certificates, keys and trust anchors of the policy.
    Identities,
    /// The limits of the agent, and how much of each is used.
    Limits,
    /// Each CPU: who uses it, how busy it is, and how fast cipher suites are.
    Cpus,
    /// The connections of runs with peers of IPsec tunnels.
    Ike,
    /// The IPsec tunnels of runs, and the packets that were dropped.
    Sa,
    /// The packets of tunnels by the threads that have processed them, and datagrams of UDP.
    Stats,
    /// The traces in progress.
    Traces,
    /// The refused requests of programs, newest first, with the change that would allow each.
    Refused,
    /// The flows that rules in audit mode have let pass, with the action that is not enforced.
    Audit,
    /// What protects the flows of the captured host, and which programs send the others.
    Coverage,
}

/// An agent's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The request succeeded.
    Ok(Value),
    /// The request failed, and nothing was changed.
    Error(String),
}

/// The user's directory for sockets: `$XDG_RUNTIME_DIR`, if that is an absolute path.
#[must_use]
pub fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The default path of the control socket: for root in `/run/tacit`, for other users in
/// `$XDG_RUNTIME_DIR/tacit` or, without that variable, in the private [`directory`].
#[must_use]
pub fn default_path() -> PathBuf {
    let directory = match runtime_directory() {
        _ if tacit_sys::process::effective_user() == 0 => PathBuf::from("/run/tacit"),
        Some(runtime) => runtime.join("tacit"),
        None => directory::private(),
    };
    directory.join("agent.sock")
}
