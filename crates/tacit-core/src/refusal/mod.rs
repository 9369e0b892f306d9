//! What programs were refused: the latest refusals, how often each came, and the line of the policy
//! that would allow it.
//!
//! ```text
//! a name, socket, client, ... ─> Refusal ─> Refusals ─> tacit show refused, metrics
//! ```
//!
//! Limits: [`REFUSALS_MAX`] different refusals. A further one replaces, of those of the run that
//! has the most, the one that was not repeated for the longest: a run that is refused much does not
//! displace what others were refused. What belongs to no run counts as one run. Totals count all.

#[cfg(test)]
mod tests;

mod socket;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::flow::Protocol;

pub use socket::SocketKind;

/// Different refusals that are remembered.
pub const REFUSALS_MAX: usize = 256;

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// A question for the addresses of a name.
    Name,
    /// A connection that a program opened.
    Connection,
    /// Datagrams of a program to one destination.
    Datagram,
    /// A connection that arrived from outside.
    Client,
    /// A socket of a kind that runs do not have.
    Socket,
}

impl RefusalKind {
    /// As displays and the log show it.
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
    /// A rule that matches denies it.
    Denied,
    /// The rule that matches cannot serve it: it is of another form or protocol.
    WrongForm,
    /// tacit offers it to no program, whatever the policy says.
    NotOffered,
    /// The program speaks TLS itself under a rule that does.
    OwnTls,
    /// The address has several names, and their rules cannot be ordered by strictness.
    Ambiguous,
    /// The address is in an alias range and stands for nothing.
    NoAlias,
    /// As many connections are open as `[limits]` allows one source, rule or run.
    Limit,
    /// It is for an address of the run's own, where none of its programs listens.
    NoListener,
    /// A cancel request of PostgreSQL came in clear under a rule that requires TLS.
    CancelInClear,
}

impl RefusalReason {
    /// Each of them, in the order of displays.
    pub const ALL: [Self; 10] = [
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
    ];

    /// As displays and metrics show it.
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
        }
    }
}

/// The run whose program was refused something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunLabel {
    /// Counts from 1 since the agent started.
    pub id: u64,
    /// What the launcher called it.
    pub name: String,
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What was refused.
    pub kind: RefusalKind,
    /// Whose program it was; `None`: it came to a forwarding rule.
    pub run: Option<RunLabel>,
    /// Where to: a name, `NAME:PORT`, `ADDRESS:PORT`; of a client its address too; of a socket its
    /// kind.
    pub destination: String,
    /// The program's file, where it is known.
    pub program: Option<PathBuf>,
    /// Why.
    pub why: RefusalReason,
    /// The rule that decided, if one did.
    pub rule: Option<String>,
    /// What would allow it, in words for the policy's author.
    pub next: String,
}

impl Refusal {
    /// Whether the other one is a repetition of it.
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

/// A refusal with how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalEntry {
    /// The latest of its kind.
    pub refusal: Refusal,
    /// When it came last.
    pub last: SystemTime,
    /// How often.
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
    /// Takes a refusal that came now.
    pub fn record(&mut self, refusal: Refusal, now: SystemTime) {
        self.record_times(refusal, 1, now);
    }

    /// Takes a refusal that came so many times, last now.
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

    /// Removes the oldest entry of the run with the most; of runs with as many, the oldest of all.
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

    /// How often something was refused for a reason.
    #[must_use]
    pub fn total(&self, why: RefusalReason) -> u64 {
        self.totals[why.index()]
    }
}

/// What would allow a name that no rule can match.
#[must_use]
pub fn next_for_name(name: &str) -> String {
    if name.ends_with(".arpa") {
        return "add a rule whose `remote` includes this address".to_owned();
    }
    format!("add remote = \"{name}\" to an outbound rule")
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

/// What would allow a connection to an address that DNS gave to several names.
#[must_use]
pub fn next_for_shared(names: &[String]) -> String {
    let names = names.join(", ");
    format!("{names} have this address: set aliases = \"conflict\" in [agent]")
}

/// What would allow a connection to an address that the host's own file gives several names.
#[must_use]
pub fn next_for_ambiguous(names: &[String]) -> String {
    let names = names.join(", ");
    format!("/etc/hosts gives {names} this address: let one rule match all of them")
}

/// What would allow a connection to an address of an alias range that stands for nothing.
#[must_use]
pub fn next_for_no_alias() -> String {
    "ask for the name again; if there is such a host, give other networks in `alias-ranges` of \
     [agent]"
        .to_owned()
}

/// What would serve what a program sends to an address of its own run.
#[must_use]
pub fn next_for_no_listener(protocol: Protocol, host: &str, port: Option<u16>) -> String {
    let rule = match protocol {
        Protocol::Tcp => next_for_connection(host, port),
        Protocol::Udp => next_for_datagram(host, port.unwrap_or_default()),
    };
    format!("let a program of the run listen there; if a server of this host is meant, {rule}")
}

/// What would allow a socket of a kind that runs do not have.
#[must_use]
pub fn next_for_socket() -> String {
    "nothing: not available in a run".to_owned()
}

/// What would allow a client that no rule matches.
#[must_use]
pub fn next_for_client(host: &str) -> String {
    format!("add remote = \"{host}\" to the rule of this address")
}

/// What would allow a program to speak TLS itself.
#[must_use]
pub fn next_for_own_tls(rule: &str) -> String {
    format!(
        "configure the program not to use TLS, or add on-tls = \"pass\" to rule `{rule}`, or \
         permit the connection"
    )
}

/// What would allow a cancel request in clear.
#[must_use]
pub fn next_for_cancel(rule: &str) -> String {
    format!(
        "set starttls = {{ protocol = \"postgres\", cancel = \"clear\" }} in rule `{rule}`, or \
         have the client cancel under TLS"
    )
}

/// What to do about a limit of `[limits]` that is reached, by its key.
#[must_use]
pub fn next_for_limit(key: &str, max: usize) -> String {
    format!("raise `{key}` in [limits], which is {max}, if they are wanted")
}

/// What would allow what a rule denies.
#[must_use]
pub fn next_for_denied(rule: &str) -> String {
    format!("let another rule match before `{rule}`, or change that rule")
}
