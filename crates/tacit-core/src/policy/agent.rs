//! Defines the settings of the agent itself: the table `[agent]` of a policy.

use std::time::Duration;

use serde::Serialize;

use super::engine::Placement;
use crate::dns::Aliases;
use crate::flow::Address;

/// The settings in `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// The largest number of data workers; `None`: one for each CPU that the agent may use.
    pub workers: Option<usize>,
    /// The congestion control of every TCP socket; `None`: cubic if the kernel has it.
    pub congestion_control: Option<String>,
    /// Whether verified certificate chains of peers are cached.
    pub chain_cache: bool,
    /// Whether a separate process holds the private keys.
    pub signer: bool,
    /// Whether the agent drops access to files, system calls and capabilities that it does not
    /// need.
    pub sandbox: bool,
    /// Whether CPU time is charged to rules and components.
    pub accounting: bool,
    /// Whether an operator may trace connections: read their decrypted bytes and their keys.
    pub trace: bool,
    /// How workers and programs of runs are placed on CPUs.
    pub placement: Placement,
    /// The CPUs from which placement chooses; empty: all CPUs that are not reserved for engines.
    pub placement_cpus: Vec<usize>,
    /// The address at which metrics are served over HTTP; `None`: metrics are not served.
    pub metrics: Option<Address>,
    /// Whether other hosts may reach that address. HTTP is in clear.
    pub metrics_clear: bool,
    /// Which names of runs get alias addresses, and the ranges of these addresses.
    pub aliases: Aliases,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            workers: None,
            congestion_control: None,
            chain_cache: true,
            signer: true,
            sandbox: true,
            accounting: true,
            trace: true,
            placement: Placement::Adaptive,
            placement_cpus: Vec::new(),
            metrics: None,
            metrics_clear: false,
            aliases: Aliases::default(),
        }
    }
}

/// The settings in `[limits]`. tacit.toml(5) states the default of each limit and the reason for
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// The largest number of open connections. Further connections wait in the kernel's queue.
    pub connections: usize,
    /// The largest number of handshakes in progress, of all rules and sources together. The last
    /// quarter is a reserve for sources that have no handshake in progress.
    pub handshakes: usize,
    /// The largest number of handshakes in progress for one rule.
    pub handshakes_per_rule: usize,
    /// The largest number of handshakes in progress from one source address (IPv6: one /64).
    pub handshakes_per_source: usize,
    /// The largest number of open inbound connections from one source address (IPv6: one /64);
    /// `None`: only the total limit applies. Further connections are rejected.
    pub connections_per_source: Option<usize>,
    /// The same limit for one rule.
    pub connections_per_rule: Option<usize>,
    /// The same limit for the connections that the programs of one run have opened.
    pub connections_per_run: Option<usize>,
    /// The longest time that a drain may take; `None`: until the last connection ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 100_000,
            handshakes: 1024,
            handshakes_per_rule: 768,
            handshakes_per_source: 256,
            connections_per_source: None,
            connections_per_rule: None,
            connections_per_run: None,
            drain: None,
        }
    }
}
