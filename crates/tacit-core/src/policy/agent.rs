//! The settings of the agent itself: `[agent]` of a policy.

use std::time::Duration;

use serde::Serialize;

use super::engine::Placement;
use crate::dns::Aliases;
use crate::flow::Address;

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSettings {
    /// Maximum number of data workers; `None`: one for each CPU that the agent may use.
    pub workers: Option<usize>,
    /// Congestion control of every TCP socket; `None`: cubic where the kernel has it.
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
    /// The CPUs that placement chooses from; empty: all that are not reserved for engines.
    pub placement_cpus: Vec<usize>,
    /// Where metrics are served over HTTP; `None`: nowhere.
    pub metrics: Option<Address>,
    /// Which names of runs get aliases, and from where.
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
            aliases: Aliases::default(),
        }
    }
}

/// `[limits]`. Each has a default and a reason in tacit.toml(5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Open connections; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Handshakes in flight, all rules and sources together. The last quarter is a reserve for
    /// sources that have none in flight.
    pub handshakes: usize,
    /// Handshakes in flight of one rule.
    pub handshakes_per_rule: usize,
    /// Handshakes in flight of one source address (IPv6: one /64).
    pub handshakes_per_source: usize,
    /// Open inbound connections of one source address (IPv6: one /64); `None`: up to the total
    /// limit. Further ones are rejected.
    pub connections_per_source: Option<usize>,
    /// Likewise for one rule.
    pub connections_per_rule: Option<usize>,
    /// Likewise for connections that the programs of one run opened.
    pub connections_per_run: Option<usize>,
    /// How long a drain may take; `None`: until the last connection ends.
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
