//! Counts the flows of a host for `tacit show coverage`, separately for each kind of protection,
//! such as TLS. The agent uses this module when it captures the traffic of the whole host.
//!
//! At intervals, the caller passes a list of the open sockets. Sockets with the same program, user,
//! destination and protection share one entry of a table. A socket that appears in several lists is
//! counted once.
//!
//! Limits: [`COVERAGE_FLOWS_MAX`] entries, [`COVERAGE_SOCKETS_MAX`] sockets. If the table is full,
//! a new entry replaces the entry that has had no open socket for the longest time. The totals
//! still count replaced entries.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::flow::{Direction, Protocol};

/// The most entries of a table.
pub const COVERAGE_FLOWS_MAX: usize = 1024;
/// The most sockets of one list; further ones are left out.
pub const COVERAGE_SOCKETS_MAX: usize = 8192;

/// What protects a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// TLS by a rule.
    Protected,
    /// TLS of the program itself, which the agent relays.
    OwnTls,
    /// A rule permits it as it is.
    Permitted,
    /// No rule matches it, and it goes as it is.
    Unmatched,
    /// A rule would secure or deny it, and it is open without the agent: it is older than the
    /// capture, or than the rule.
    NotCaptured,
    /// The agent is still connecting it.
    Pending,
}

impl Protection {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Protected,
        Self::OwnTls,
        Self::Permitted,
        Self::Unmatched,
        Self::NotCaptured,
        Self::Pending,
    ];

    /// The word that displays use for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Protected => "protected",
            Self::OwnTls => "own-tls",
            Self::Permitted => "permitted",
            Self::Unmatched => "unmatched",
            Self::NotCaptured => "not-captured",
            Self::Pending => "pending",
        }
    }
}

/// The properties that all flows of one entry have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoveredFlow {
    /// What protects it.
    pub protection: Protection,
    /// The rule that decides it.
    pub rule: Option<String>,
    /// The version of TLS.
    pub tls: Option<String>,
    /// The name in the peer's certificate.
    pub peer: Option<String>,
    /// The executable, if known.
    pub program: Option<PathBuf>,
    /// The unit of systemd, if it belongs to one.
    pub unit: Option<String>,
    /// The user of the socket.
    pub user: Option<String>,
    /// Who opened it.
    pub direction: Direction,
    /// Streams or datagrams.
    pub protocol: Protocol,
    /// The address of the other end.
    pub remote: String,
    /// The port of the server: of the other end, or, of an inbound flow, of this host.
    pub port: u16,
}

/// A number of sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketCounts {
    /// Open when the sockets were listed last.
    pub now: u64,
    /// Listed since the agent started.
    pub seen: u64,
}

/// An entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoverageEntry {
    /// The flows.
    pub flow: CoveredFlow,
    /// How many.
    pub counts: SocketCounts,
    /// When one was open last.
    pub last: SystemTime,
}

/// The flows of a host.
#[derive(Debug, Default)]
pub struct CoverageTable {
    entries: HashMap<CoveredFlow, (SocketCounts, Option<SystemTime>)>,
    /// The sockets that were open last, with what they counted for.
    open: HashMap<u64, CoveredFlow>,
    /// What left the table.
    gone: BTreeMap<Protection, u64>,
}

impl CoverageTable {
    /// Takes the list of the open sockets at a time, each with its number in the kernel, which no
    /// other socket has.
    pub fn observe(&mut self, sockets: Vec<(u64, CoveredFlow)>, now: SystemTime) {
        for (counts, _) in self.entries.values_mut() {
            counts.now = 0;
        }
        let before = std::mem::take(&mut self.open);
        for (socket, flow) in sockets.into_iter().take(COVERAGE_SOCKETS_MAX) {
            let is_new = match before.get(&socket) {
                Some(same) if *same == flow => false,
                Some(other) => {
                    self.take_back(other);
                    true
                }
                None => true,
            };
            let (counts, last) = self.entries.entry(flow.clone()).or_default();
            counts.now += 1;
            counts.seen += u64::from(is_new);
            *last = Some(now);
            self.open.insert(socket, flow);
        }
        self.make_room();
    }

    /// The entries, those with most open sockets first.
    #[must_use]
    pub fn entries(&self) -> Vec<CoverageEntry> {
        let entry =
            |(flow, (counts, last)): (&CoveredFlow, &(SocketCounts, Option<SystemTime>))| {
                let last = last.unwrap_or(SystemTime::UNIX_EPOCH);
                CoverageEntry { flow: flow.clone(), counts: *counts, last }
            };
        let mut entries: Vec<_> = self.entries.iter().map(entry).collect();
        entries.sort_by(|a, b| {
            let order = |one: &CoverageEntry| {
                (std::cmp::Reverse((one.counts.now, one.counts.seen)), one.flow.protection)
            };
            order(a).cmp(&order(b)).then_with(|| a.flow.remote.cmp(&b.flow.remote))
        });
        entries
    }

    /// The sums, of what left the table too.
    #[must_use]
    pub fn totals(&self) -> BTreeMap<Protection, SocketCounts> {
        let all = Protection::ALL.map(|protection| {
            let gone = self.gone.get(&protection).copied().unwrap_or(0);
            (protection, SocketCounts { now: 0, seen: gone })
        });
        let mut totals = BTreeMap::from(all);
        for (flow, (counts, _)) in &self.entries {
            let total = totals.entry(flow.protection).or_default();
            total.now += counts.now;
            total.seen += counts.seen;
        }
        totals
    }

    /// A socket counts for something else now.
    fn take_back(&mut self, flow: &CoveredFlow) {
        let Some((counts, _)) = self.entries.get_mut(flow) else { return };
        counts.seen = counts.seen.saturating_sub(1);
        if counts.seen == 0 {
            self.entries.remove(flow);
        }
    }

    fn make_room(&mut self) {
        let Some(surplus) = self.entries.len().checked_sub(COVERAGE_FLOWS_MAX + 1) else { return };
        let mut oldest: Vec<_> =
            self.entries.iter().map(|(flow, (counts, last))| (*last, counts.now, flow)).collect();
        oldest.sort_by_key(|(last, now, _)| (*last, *now));
        let leaving: Vec<_> =
            oldest.into_iter().take(surplus + 1).map(|(_, _, flow)| flow.clone()).collect();
        for flow in leaving {
            if let Some((counts, _)) = self.entries.remove(&flow) {
                *self.gone.entry(flow.protection).or_default() += counts.seen;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn flow(protection: Protection, port: u16) -> CoveredFlow {
        CoveredFlow {
            protection,
            rule: None,
            tls: None,
            peer: None,
            program: None,
            unit: None,
            user: None,
            direction: Direction::Outbound,
            protocol: Protocol::Tcp,
            remote: "192.0.2.1".to_owned(),
            port,
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn counts(table: &CoverageTable, protection: Protection) -> (u64, u64) {
        let SocketCounts { now, seen } = table.totals()[&protection];
        (now, seen)
    }

    #[test]
    fn a_socket_counts_once_and_for_its_latest_protection() {
        let [pending, protected] = [Protection::Pending, Protection::Protected];
        let mut table = CoverageTable::default();
        table.observe(vec![(1, flow(pending, 443)), (2, flow(protected, 443))], at(1));
        assert_eq!((counts(&table, pending), counts(&table, protected)), ((1, 1), (1, 1)));
        for _ in 0..3 {
            table.observe(vec![(1, flow(protected, 443)), (2, flow(protected, 443))], at(2));
        }
        assert_eq!((counts(&table, pending), counts(&table, protected)), ((0, 0), (2, 2)));
        table.observe(vec![(3, flow(protected, 443))], at(3));
        assert_eq!(counts(&table, protected), (1, 3));
        table.observe(Vec::new(), at(4));
        let entries = table.entries();
        assert_eq!((entries.len(), entries[0].last), (1, at(3)));
        assert_eq!(counts(&table, protected), (0, 3));
    }

    #[test]
    fn a_full_table_forgets_the_oldest_and_keeps_the_totals() {
        let mut table = CoverageTable::default();
        let ports = 1..=u16::try_from(COVERAGE_FLOWS_MAX).unwrap() + 10;
        for port in ports.clone() {
            let flow = flow(Protection::Unmatched, port);
            table.observe(vec![(port.into(), flow)], at(port.into()));
        }
        let entries = table.entries();
        assert_eq!(entries.len(), COVERAGE_FLOWS_MAX);
        assert!(entries.iter().all(|entry| entry.flow.port > 10));
        assert_eq!(counts(&table, Protection::Unmatched), (1, u64::from(*ports.end())));
    }

    #[test]
    fn more_sockets_than_the_limit_are_left_out() {
        let mut table = CoverageTable::default();
        let sockets = 0..COVERAGE_SOCKETS_MAX as u64 + 5;
        let sockets = sockets.map(|socket| (socket, flow(Protection::Permitted, 80)));
        table.observe(sockets.collect(), at(1));
        assert_eq!(counts(&table, Protection::Permitted).0, COVERAGE_SOCKETS_MAX as u64);
    }
}
