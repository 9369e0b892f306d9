//! Stores the refusals that `tacit show refused` lists: refused connections, datagrams, DNS names
//! and sockets. Each record contains a text that explains how the policy could allow the
//! connection, datagram, name or socket.
//!
//! Limits: [`REFUSALS_MAX`] different refusals. If the limit is reached, this module selects the
//! run (the program under `tacit run`) with the most refusals. The new refusal replaces the oldest
//! refusal of this run. So a run with many refusals does not displace the refusals of other runs.
//! The totals for each reason count every refusal.

#[cfg(test)]
mod tests;

mod socket;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::flow::Protocol;

pub use socket::RefusedSocketKind;

/// Maximum number of different refusals.
pub const REFUSALS_MAX: usize = 256;

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// A query for the addresses of a name.
    Name,
    /// A connection that a program opened.
    Connection,
    /// Datagrams of a program to one destination.
    Datagram,
    /// A connection that arrived from outside.
    Client,
    /// A socket type or option that runs do not support.
    Socket,
}

impl RefusalKind {
    /// The word in displays and in the log.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Connection => "connection",
            Self::Datagram => "datagram",
            Self::Client => "client",
            Self::Socket => "socket",
        }
    }
}

/// Why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalReason {
    /// No rule matches.
    NoRule,
    /// The first rule that matches denies it.
    Denied,
    /// The rule that matches cannot serve it, because the rule has another form or protocol.
    WrongForm,
    /// tacit does not support it with any policy.
    NotOffered,
    /// The program itself uses TLS under a rule with TLS.
    OwnTls,
    /// The address has several names, and it is not clear which of their rules is the strictest.
    Ambiguous,
    /// The address is in an alias range, but is not an alias address in use.
    NoAlias,
    /// A limit in `[limits]` is reached, for the source, the rule or the run.
    Limit,
    /// The destination is an address of the run itself, on which no program listens.
    NoListener,
    /// A cancel request of PostgreSQL was received in clear under a rule that requires TLS.
    CancelInClear,
    /// There is no tunnel for a packet that must not leave in clear.
    NoTunnel,
}

impl RefusalReason {
    /// All reasons, in the order of displays.
    pub const ALL: [Self; 11] = [
        Self::NoRule,
        Self::Denied,
        Self::WrongForm,
        Self::NotOffered,
        Self::OwnTls,
        Self::Ambiguous,
        Self::NoAlias,
        Self::Limit,
        Self::NoListener,
        Self::CancelInClear,
        Self::NoTunnel,
    ];

    /// The word in displays and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::NoRule => "no-rule",
            Self::Denied => "denied",
            Self::WrongForm => "wrong-form",
            Self::NotOffered => "not-offered",
            Self::OwnTls => "own-tls",
            Self::Ambiguous => "ambiguous",
            Self::NoAlias => "no-alias",
            Self::Limit => "limit",
            Self::NoListener => "no-listener",
            Self::CancelInClear => "cancel-in-clear",
            Self::NoTunnel => "no-tunnel",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::NoRule => 0,
            Self::Denied => 1,
            Self::WrongForm => 2,
            Self::NotOffered => 3,
            Self::OwnTls => 4,
            Self::Ambiguous => 5,
            Self::NoAlias => 6,
            Self::Limit => 7,
            Self::NoListener => 8,
            Self::CancelInClear => 9,
            Self::NoTunnel => 10,
        }
    }
}

/// The run of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunLabel {
    /// The number of the run since the agent started, from 1.
    pub id: u64,
    /// The name from the launcher.
    pub name: String,
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was refused.
    pub kind: RefusalKind,
    /// The run of the program; `None` for a forwarding rule.
    pub run: Option<RunLabel>,
    /// The destination: a name, `NAME (TYPE)` for a zone transfer, `NAME:PORT` or `ADDRESS:PORT`.
    /// For a client it also contains the client's address; for a socket it is the socket type.
    pub destination: String,
    /// The program's executable, if known.
    pub program: Option<PathBuf>,
    /// The reason.
    pub why: RefusalReason,
    /// The rule that decided, if any.
    pub rule: Option<String>,
    /// What would allow it, as advice for the author of the policy.
    pub next: String,
}

impl Refusal {
    /// Whether the other refusal is a repetition of this one.
    #[must_use]
    pub fn is_repeated_by(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.why == other.why
            && self.destination == other.destination
            && self.run_id() == other.run_id()
            && self.rule == other.rule
    }

    fn run_id(&self) -> Option<u64> {
        self.run.as_ref().map(|run| run.id)
    }
}

/// A refusal and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEntry {
    /// The latest occurrence.
    pub refusal: Refusal,
    /// The time of the latest occurrence.
    pub last: SystemTime,
    /// The count.
    pub count: u64,
}

/// The latest refusals.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Newest first.
    entries: VecDeque<RefusalEntry>,
    totals: [u64; RefusalReason::ALL.len()],
}

impl Refusals {
    /// Records a refusal.
    pub fn record(&mut self, refusal: Refusal, now: SystemTime) {
        self.record_times(refusal, 1, now);
    }

    /// Records a refusal that occurred `times` times, most recently at `now`.
    pub fn record_times(&mut self, refusal: Refusal, times: u64, now: SystemTime) {
        let total = &mut self.totals[refusal.why.index()];
        *total = total.saturating_add(times);
        let is_known = |entry: &RefusalEntry| entry.refusal.is_repeated_by(&refusal);
        let known = self.entries.iter().position(is_known);
        let count = match known.and_then(|at| self.entries.remove(at)) {
            Some(entry) => entry.count.saturating_add(times),
            None => times,
        };
        self.entries.push_front(RefusalEntry { refusal, last: now, count });
        if self.entries.len() > REFUSALS_MAX {
            self.evict();
        }
    }

    /// Removes the oldest entry of the run with the most entries. If several runs have the same
    /// number, it removes the oldest entry of all of them.
    fn evict(&mut self) {
        let mut counts = HashMap::<Option<u64>, usize>::new();
        for entry in &self.entries {
            *counts.entry(entry.refusal.run_id()).or_default() += 1;
        }
        let most = counts.values().max().copied();
        let is_of_most =
            |entry: &RefusalEntry| counts.get(&entry.refusal.run_id()).copied() == most;
        if let Some(at) = self.entries.iter().rposition(is_of_most) {
            self.entries.remove(at);
        }
    }

    /// The latest, newest first.
    #[must_use]
    pub fn entries(&self) -> Vec<RefusalEntry> {
        self.entries.iter().cloned().collect()
    }

    /// The total for a reason.
    #[must_use]
    pub fn total(&self, why: RefusalReason) -> u64 {
        self.totals[why.index()]
    }
}

/// What would allow a name that no rule can match.
#[must_use]
pub fn next_for_name(name: &str) -> String {
    if name.ends_with(".arpa") {
        return "add a rule with a `remote` that includes this address".to_owned();
    }
    format!("add remote = \"{name}\" to an outbound rule")
}

/// What would allow a zone transfer of this type.
#[must_use]
pub fn next_for_zone_transfer(kind: &str) -> String {
    format!(
        "no rule can allow a zone transfer ({kind}) over port 53: use another port of the DNS \
         server, and add a rule for this port"
    )
}

/// What would allow a connection that no rule matches; `host` is a name or an address.
#[must_use]
pub fn next_for_connection(host: &str, port: Option<u16>) -> String {
    match port {
        Some(port) => {
            format!("add remote = \"{host}\" and remote-ports = {port} to an outbound rule")
        }
        None => format!("add remote = \"{host}\" to an outbound rule"),
    }
}

/// What would allow datagrams that no rule permits; `host` is a name or an address.
#[must_use]
pub fn next_for_datagram(host: &str, port: u16) -> String {
    format!(
        "add a rule with protocol = \"udp\", remote = \"{host}\", remote-ports = {port} and \
         permit = true"
    )
}

/// What would allow a connection to an address that several names have in DNS.
#[must_use]
pub fn next_for_shared(names: &[String]) -> String {
    let names = names.join(", ");
    format!(
        "{names} have the same address, so tacit cannot determine which name the program used: set \
         aliases = \"conflict\" in [agent], so that DNS answers contain a different address for \
         each of these names"
    )
}

/// What would allow a connection to an address that has several names in the host's file.
#[must_use]
pub fn next_for_ambiguous(names: &[String]) -> String {
    let names = names.join(", ");
    format!(
        "/etc/hosts has this address for {names}: write one rule that matches all of these names"
    )
}

/// What would allow a connection to an address in an alias range that is not an alias.
#[must_use]
pub fn next_for_no_alias() -> String {
    "resolve the name of the server again; if a real host has this address, set other networks in \
     `alias-ranges` of [agent]"
        .to_owned()
}

/// What would make the agent serve a connection to an address of the run itself.
#[must_use]
pub fn next_for_no_listener(protocol: Protocol, host: &str, port: Option<u16>) -> String {
    let advice = match protocol {
        Protocol::Tcp => next_for_connection(host, port),
        Protocol::Udp => next_for_datagram(host, port.unwrap_or_default()),
        // A program cannot listen for ICMP messages.
        Protocol::Icmp => "use an address that does not belong to the run".to_owned(),
    };
    format!(
        "for a server outside of the run, {advice}; for a server in the run, start a program that \
         listens on this address"
    )
}

/// What would allow a client that no rule matches.
#[must_use]
pub fn next_for_client(host: &str) -> String {
    format!(
        "to allow this client, add remote = \"{host}\" to a rule with `listen`, or to a rule with \
         direction = \"inbound\""
    )
}

/// What would allow a program to use TLS itself.
#[must_use]
pub fn next_for_own_tls(rule: &str) -> String {
    format!(
        "configure the program not to use TLS, or set on-tls = \"pass\" in rule `{rule}`, or \
         replace `tls` in this rule by permit = true"
    )
}

/// What would allow a cancel request in clear.
#[must_use]
pub fn next_for_cancel(rule: &str) -> String {
    format!(
        "set starttls = {{ protocol = \"postgres\", cancel = \"clear\" }} in rule `{rule}`, or use \
         a client that sends cancel requests under TLS"
    )
}

/// What to do when a limit of `[limits]` is reached, by its key.
#[must_use]
pub fn next_for_limit(key: &str, max: usize) -> String {
    format!("to allow more connections, raise `{key}` in [limits] (now {max})")
}

/// What would allow something that a rule denies.
#[must_use]
pub fn next_for_denied(rule: &str) -> String {
    format!("change rule `{rule}`, or add an earlier rule that permits the connection")
}
