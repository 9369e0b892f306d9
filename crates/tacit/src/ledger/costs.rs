//! Reads the ledger (the record of the agent's CPU time) for `tacit show costs`, metrics and
//! estimates. Returns the totals since the agent started, or the difference of two readings.
//!
//! CPU times are in microseconds. Only payload bytes are counted, and 1 MB is 10^6 bytes. A message
//! consists of all bytes that one side of a connection sends until the other side sends a byte.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tacit_core::meter::{Component, CpuPlace};

use super::account::{
    Account, Accounts, Count, Counts, CpuTimes, MeteringOverhead, Owner, Totals, agent_ns,
};
use super::meter::{self, MeteringCosts};
use crate::clock::Rfc3339;
use crate::placement;

/// The version of the format of [`Costs`].
const VERSION: u32 = 1;

/// The CPU time and traffic of the agent in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Costs {
    /// The version of this format.
    #[serde(default)]
    pub version: u32,
    /// The beginning of the interval.
    pub since: Rfc3339,
    /// The length of the interval.
    pub interval_s: f64,
    /// The number of CPUs that the agent was started with, including those of its engines.
    pub cpus: usize,
    /// CPU time of the process, as the kernel counts it.
    pub agent_cpu_us: f64,
    /// CPU time that is charged to rules or the agent itself.
    pub captured_cpu_us: f64,
    /// CPU time that is not charged: threads of libraries, and windows that are open.
    pub uncaptured_cpu_us: f64,
    /// The uncaptured part in percent of all.
    pub uncaptured_percent: f64,
    /// The overhead of the accounting.
    pub accounting: Accounting,
    /// CPU time in percent of one CPU.
    pub percent_of_one_cpu: ByCpuPlace,
    /// By rule, including the agent itself and removed rules.
    pub rules: Vec<RuleCosts>,
    /// By run.
    #[serde(default)]
    pub runs: Vec<RunCosts>,
}

/// The overhead of the accounting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Accounting {
    /// The time that a timestamp takes, as measured now.
    pub stamp_ns: f64,
    /// The time that a reading of a thread's CPU clock takes, as measured now.
    pub clock_read_ns: f64,
    /// The number of timestamps in the interval.
    pub stamps: u64,
    /// The number of readings in the interval.
    pub clock_reads: u64,
    /// The time of all timestamps and readings.
    pub cpu_us: f64,
    /// That time in percent of the agent's CPU time.
    pub percent: f64,
}

/// A figure by kind of CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByCpuPlace {
    /// Work on general CPUs that engines do not do.
    pub general: f64,
    /// Work on engines.
    pub engine: f64,
    /// Work on general CPUs that engines could have done.
    pub eligible: f64,
}

impl ByCpuPlace {
    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.general + self.engine + self.eligible
    }

    /// Combines each figure with that of `other` by the function `with`.
    #[must_use]
    pub fn zip(&self, other: &Self, with: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            general: with(self.general, other.general),
            engine: with(self.engine, other.engine),
            eligible: with(self.eligible, other.eligible),
        }
    }
}

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The agent itself, for work that no rule caused.
    Agent,
    /// The packets of IPsec tunnels: those of a rule, and those whose rule is not known.
    Packets,
    /// A rule.
    Rule,
    /// All removed rules together.
    Removed,
}

/// The CPU time and traffic of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuleCosts {
    /// The name of the rule; `None` for rows that belong to no rule.
    pub rule: Option<String>,
    /// The kind of the row.
    pub kind: Kind,
    /// Connections and datagram flows that were opened.
    pub connections: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// Handshakes that resumed a session.
    pub resumed: u64,
    /// Connections that failed before the first byte was relayed.
    pub failures: u64,
    /// Messages from the client.
    pub messages_sent: u64,
    /// Messages to the client.
    pub messages_received: u64,
    /// Bytes from the client.
    pub bytes_sent: u64,
    /// Bytes to the client.
    pub bytes_received: u64,
    /// CPU time by component and kind of CPU.
    pub cpu_us: BTreeMap<Component, ByCpuPlace>,
    /// CPU time divided by the number of connections.
    pub cpu_us_per_connection: Option<f64>,
    /// CPU time of relaying (receive, seal, open, send) divided by the number of messages.
    pub cpu_us_per_message: Option<f64>,
    /// CPU time of relaying for each MB.
    pub cpu_us_per_mb: Option<f64>,
}

/// The CPU time and traffic of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunCosts {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// CPU time of the program and its children, including that of the kernel on their behalf.
    pub program_cpu_us: Option<f64>,
    /// CPU time of the agent for its connections.
    pub agent_cpu_us: f64,
    /// Connections opened.
    pub connections: u64,
    /// Messages from the program.
    pub messages_sent: u64,
    /// Messages to the program.
    pub messages_received: u64,
    /// Bytes from the program.
    pub bytes_sent: u64,
    /// Bytes to the program.
    pub bytes_received: u64,
}

/// The components of relaying.
const RELAYING: [Component; 4] =
    [Component::Receive, Component::Seal, Component::Open, Component::Send];

impl Costs {
    /// The totals since the agent started. `failures` returns the number of failed connections of
    /// an account's rule, and `None` for a removed rule.
    #[must_use]
    pub fn read(
        since: SystemTime,
        failures: impl Fn(&Account) -> Option<u64>,
        runs: Vec<RunCosts>,
    ) -> Self {
        let interval = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
        let Accounts { held, removed } = Account::all();
        // Sorting thousands of accounts takes a while, which must count as captured too.
        meter::publish();
        // The accounts are read before the clock, so that their sum is never more than the clock.
        let read: Vec<_> = held.iter().map(|account| (&**account, account.totals())).collect();
        let agent_cpu_us = us(agent_ns());
        let rules = rows(read, removed, failures);
        let overhead = MeteringOverhead::all();
        let MeteringCosts { stamp_ns, clock_read_ns } = meter::measure_metering();
        let accounting = Accounting {
            stamp_ns,
            clock_read_ns,
            stamps: overhead.stamps(),
            clock_reads: overhead.clock_reads(),
            cpu_us: 0.0,
            percent: 0.0,
        };
        // The affinity of this thread may exclude the CPUs of engines.
        let cpus = placement::started_with().len().max(1);
        Self {
            version: VERSION,
            since: Rfc3339(since),
            interval_s: interval.as_secs_f64(),
            cpus,
            agent_cpu_us,
            captured_cpu_us: 0.0,
            uncaptured_cpu_us: 0.0,
            uncaptured_percent: 0.0,
            accounting,
            percent_of_one_cpu: ByCpuPlace::default(),
            rules,
            runs,
        }
        .with_sums()
    }

    /// The difference to an earlier reading of the same agent.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let is_same = |a: &RuleCosts, b: &RuleCosts| a.kind == b.kind && a.rule == b.rule;
        let rules = self.rules.iter().map(|mine| {
            let has_gone = |before: &RuleCosts| {
                let still_there = self.rules.iter().any(|now| is_same(now, before));
                mine.kind == Kind::Removed && !still_there
            };
            // The times of a rule that was removed since are now in the sum of removed rules.
            let before = earlier.rules.iter().filter(|it| is_same(it, mine) || has_gone(it));
            before.fold(mine.clone(), |left, before| left.since(before))
        });
        let runs = self.runs.iter().map(|mine| {
            let before = earlier.runs.iter().find(|it| it.id == mine.id);
            before.map_or_else(|| mine.clone(), |before| mine.since(before))
        });
        let mut accounting = self.accounting;
        accounting.stamps -= earlier.accounting.stamps.min(accounting.stamps);
        accounting.clock_reads -= earlier.accounting.clock_reads.min(accounting.clock_reads);
        Self {
            interval_s: self.interval_s - earlier.interval_s,
            agent_cpu_us: self.agent_cpu_us - earlier.agent_cpu_us,
            accounting,
            rules: rules.collect(),
            runs: runs.collect(),
            ..self.clone()
        }
        .with_sums()
    }

    /// Computes all derived figures.
    fn with_sums(mut self) -> Self {
        let mut places = ByCpuPlace::default();
        for row in &mut self.rules {
            row.set_rates();
            for cell in row.cpu_us.values() {
                places = places.zip(cell, |a, b| a + b);
            }
        }
        self.captured_cpu_us = places.sum();
        // A window that was closed between the two readings could make this negative.
        self.uncaptured_cpu_us = (self.agent_cpu_us - self.captured_cpu_us).max(0.0);
        self.uncaptured_percent = percent(self.uncaptured_cpu_us, self.agent_cpu_us);
        let Accounting { stamp_ns, clock_read_ns, stamps, clock_reads, .. } = self.accounting;
        self.accounting.cpu_us =
            (stamps as f64 * stamp_ns + clock_reads as f64 * clock_read_ns) / 1000.0;
        self.accounting.percent = percent(self.accounting.cpu_us, self.agent_cpu_us);
        let one_cpu_us = self.interval_s * 1e6;
        self.percent_of_one_cpu = places.zip(&places, |us, _| percent(us, one_cpu_us));
        self
    }
}

impl RuleCosts {
    /// The CPU time of all components.
    #[must_use]
    pub fn total_us(&self) -> f64 {
        self.cpu_us.values().map(ByCpuPlace::sum).sum()
    }

    /// The CPU time of one component on all kinds of CPU.
    #[must_use]
    pub fn component_us(&self, component: Component) -> f64 {
        self.cpu_us.get(&component).map_or(0.0, ByCpuPlace::sum)
    }

    /// The CPU time of all components, by kind of CPU.
    #[must_use]
    pub fn places_us(&self) -> ByCpuPlace {
        self.cpu_us.values().fold(ByCpuPlace::default(), |sum, cell| sum.zip(cell, |a, b| a + b))
    }

    /// The CPU time of relaying.
    fn relaying_us(&self) -> f64 {
        RELAYING.iter().map(|component| self.component_us(*component)).sum()
    }

    fn since(&self, before: &Self) -> Self {
        let mut cpu_us = self.cpu_us.clone();
        for (component, cell) in &mut cpu_us {
            if let Some(before) = before.cpu_us.get(component) {
                // A rule that was removed and added again started at zero.
                *cell = cell.zip(before, |now, then| (now - then).max(0.0));
            }
        }
        Self {
            connections: self.connections.saturating_sub(before.connections),
            handshakes: self.handshakes.saturating_sub(before.handshakes),
            resumed: self.resumed.saturating_sub(before.resumed),
            failures: self.failures.saturating_sub(before.failures),
            messages_sent: self.messages_sent.saturating_sub(before.messages_sent),
            messages_received: self.messages_received.saturating_sub(before.messages_received),
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            cpu_us,
            ..self.clone()
        }
    }

    fn set_rates(&mut self) {
        let each = |us: f64, of: f64| (of > 0.0).then(|| us / of);
        let relaying = self.relaying_us();
        let messages = self.messages_sent + self.messages_received;
        let megabytes = (self.bytes_sent + self.bytes_received) as f64 / 1e6;
        self.cpu_us_per_connection = each(self.total_us(), self.connections as f64);
        self.cpu_us_per_message = each(relaying, messages as f64);
        self.cpu_us_per_mb = each(relaying, megabytes);
    }
}

impl RunCosts {
    fn since(&self, before: &Self) -> Self {
        let program = self.program_cpu_us.zip(before.program_cpu_us);
        Self {
            program_cpu_us: program.map(|(now, then)| (now - then).max(0.0)),
            // A connection that is just ending may be counted neither as open nor as ended.
            agent_cpu_us: (self.agent_cpu_us - before.agent_cpu_us).max(0.0),
            connections: self.connections.saturating_sub(before.connections),
            messages_sent: self.messages_sent.saturating_sub(before.messages_sent),
            messages_received: self.messages_received.saturating_sub(before.messages_received),
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            ..self.clone()
        }
    }
}

/// A row for each account, and one for all removed rules, whose last connections may be open.
fn rows(
    read: Vec<(&Account, Totals)>,
    mut removed: Totals,
    failures: impl Fn(&Account) -> Option<u64>,
) -> Vec<RuleCosts> {
    let mut rows = Vec::with_capacity(read.len());
    for (account, totals) in read {
        match account.owner() {
            Owner::Agent => rows.push(row(Kind::Agent, None, &totals, 0)),
            Owner::Packets => rows.push(row(Kind::Packets, None, &totals, 0)),
            // Rules that have sent no packets have no row.
            Owner::PacketsOf(_) if totals == Totals::default() => {}
            Owner::PacketsOf(name) => rows.push(row(Kind::Packets, Some(name), &totals, 0)),
            Owner::Rule(name) => match failures(account) {
                Some(failures) => rows.push(row(Kind::Rule, Some(name), &totals, failures)),
                None => removed.add(&totals),
            },
        }
    }
    if removed != Totals::default() {
        rows.push(row(Kind::Removed, None, &removed, 0));
    }
    rows
}

fn row(kind: Kind, name: Option<&str>, totals: &Totals, failures: u64) -> RuleCosts {
    let of = |counts: &Counts, which: Count| counts[which as usize];
    let counts = &totals.counts;
    RuleCosts {
        kind,
        failures,
        rule: name.map(str::to_owned),
        connections: of(counts, Count::Connections),
        handshakes: of(counts, Count::Handshakes),
        resumed: of(counts, Count::Resumed),
        messages_sent: of(counts, Count::MessagesSent),
        messages_received: of(counts, Count::MessagesReceived),
        bytes_sent: of(counts, Count::BytesSent),
        bytes_received: of(counts, Count::BytesReceived),
        cpu_us: cells(&totals.usage),
        cpu_us_per_connection: None,
        cpu_us_per_message: None,
        cpu_us_per_mb: None,
    }
}

fn cells(usage: &CpuTimes) -> BTreeMap<Component, ByCpuPlace> {
    let cell = |component: Component| {
        let at = |place: CpuPlace| us(usage[component as usize][place as usize]);
        ByCpuPlace {
            general: at(CpuPlace::General),
            engine: at(CpuPlace::Engine),
            eligible: at(CpuPlace::Eligible),
        }
    };
    Component::ALL.into_iter().map(|component| (component, cell(component))).collect()
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// `part` in percent of `whole`; 0 if `whole` is 0.
#[must_use]
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole * 100.0 } else { 0.0 }
}
