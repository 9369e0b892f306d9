//! The control socket: how displays and commands reach a running agent.
//!
//! One request and one answer, each a line of JSON, over a UNIX socket that only its owner and
//! root may use. Displays read snapshots and never stop a connection.

pub mod client;
pub mod clients;
pub mod directory;
pub mod display;
pub mod metrics;
pub mod render;
pub mod secret;
pub mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tacit_core::flow::Flow;

/// A request at most.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// What can be asked of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Request {
    /// A display.
    Show {
        /// Which.
        what: Display,
    },
    /// One connection.
    ShowConnection {
        /// Its number.
        id: u64,
    },
    /// Evaluate the installed policy.
    Explain {
        /// With this flow.
        flow: Box<Flow>,
    },
    /// Read the policy file again and install it, or change nothing.
    Reload,
    /// Accept no more; end when the last connection has ended.
    Drain {
        /// Reset what is left after this many milliseconds.
        timeout_ms: Option<u64>,
    },
    /// Start a successor that takes the listening sockets, then drain.
    Restart,
    /// Which agent is this: process, policy, supervisor.
    Identify,
    /// Reset connections.
    Close {
        /// These.
        ids: Vec<u64>,
        /// All whose rule is no longer the installed one.
        stale: bool,
        /// All whose peer is in this state.
        #[serde(default)]
        peer: Option<PeerState>,
    },
    /// From a successor: send the listening sockets.
    TakeOver {
        /// What it has from the supervisor ([`secret`]).
        #[serde(default)]
        secret: Option<String>,
    },
    /// From a successor, on the same connection: it serves; stop accepting and drain.
    Release,
}

/// States of peers that connections are closed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// Its certificate was checked and is not trusted: expired, revoked, or waived by the rule.
    Invalid,
}

/// The displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Display {
    /// Every open connection.
    Connections,
    /// Every rule, with its hits.
    Rules,
    /// The installed policy with every value that is in force, defaults included.
    Policy,
    /// Programs under `tacit run`.
    Runs,
    /// What connections have cost in CPU time, by rule and component.
    Costs,
    /// Engines and data workers: where they run, and what they have done.
    Engines,
    /// What a scraper gets, in Prometheus' text format.
    Metrics,
    /// Certificates, keys and trust.
    Identities,
    /// Every limit, and how near it is.
    Limits,
    /// What programs were refused, newest first, and what would allow it.
    Refused,
}

/// An agent's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It worked.
    Ok(Value),
    /// It did not; nothing was changed.
    Error(String),
}

/// The user's directory for sockets: `$XDG_RUNTIME_DIR`, which counts if it is an absolute path.
#[must_use]
pub fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Where the control socket is unless the command line says otherwise: root's in `/run/tacit`, a
/// user's in `$XDG_RUNTIME_DIR/tacit` or, without that variable, in [`directory`].
#[must_use]
pub fn default_path() -> PathBuf {
    let directory = match runtime_directory() {
        _ if tacit_sys::process::effective_user() == 0 => PathBuf::from("/run/tacit"),
        Some(runtime) => runtime.join("tacit"),
        None => directory::private(),
    };
    directory.join("agent.sock")
}
