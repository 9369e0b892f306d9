//! Stores the flows that `tacit show audit` lists. A rule in audit mode has permitted these flows.
//! Without audit mode, the rule would have denied them, or would have protected them with TLS.
//!
//! Limit: [`AUDITED_FLOWS_MAX`] different flows for each rule. If the table is full, a new flow
//! replaces the flow that was seen least recently. The total of `tacit show audit` includes the
//! replaced flows.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::flow::Protocol;

/// The largest number of different flows of one rule.
pub const AUDITED_FLOWS_MAX: usize = 256;

/// A flow that passed because its rule is in audit mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AuditedFlow {
    /// The run of the program.
    pub run: String,
    /// The program's executable, if known.
    pub program: Option<PathBuf>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination, as `NAME:PORT` or `ADDRESS:PORT`. For a client it is the address of the
    /// client.
    pub destination: String,
}

/// A flow and its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedEntry {
    /// The flow.
    pub flow: AuditedFlow,
    /// The time of the latest occurrence.
    pub last: SystemTime,
    /// The count.
    pub count: u64,
}

/// The flows of one rule.
#[derive(Debug, Default)]
pub struct AuditedFlows {
    /// Newest first.
    entries: VecDeque<AuditedEntry>,
    total: u64,
}

impl AuditedFlows {
    /// Records a flow. Returns whether the table did not contain it yet.
    pub fn record(&mut self, flow: AuditedFlow, now: SystemTime) -> bool {
        self.total = self.total.saturating_add(1);
        let known = self.entries.iter().position(|entry| entry.flow == flow);
        let count = known.and_then(|at| self.entries.remove(at)).map_or(0, |entry| entry.count);
        self.entries.push_front(AuditedEntry { flow, last: now, count: count.saturating_add(1) });
        self.entries.truncate(AUDITED_FLOWS_MAX);
        known.is_none()
    }

    /// Returns the different flows, newest first.
    #[must_use]
    pub fn entries(&self) -> Vec<AuditedEntry> {
        self.entries.iter().cloned().collect()
    }

    /// Returns the number of all recorded flows, including repeated ones.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn flow(number: usize) -> AuditedFlow {
        AuditedFlow {
            run: "r".into(),
            program: None,
            protocol: Protocol::Tcp,
            destination: format!("10.0.0.1:{number}"),
        }
    }

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn repeated_flows_are_counted_and_the_latest_is_first() {
        let mut flows = AuditedFlows::default();
        let new: Vec<_> =
            [1, 2, 1].iter().zip(0..).map(|(n, time)| flows.record(flow(*n), at(time))).collect();
        assert_eq!(new, [true, true, false]);
        let entries = flows.entries();
        let shown: Vec<_> = entries.iter().map(|e| (e.flow.clone(), e.count, e.last)).collect();
        assert_eq!(shown, [(flow(1), 2, at(2)), (flow(2), 1, at(1))]);
        assert_eq!(flows.total(), 3);
    }

    #[test]
    fn the_flow_that_was_not_repeated_for_the_longest_makes_room() {
        let mut flows = AuditedFlows::default();
        for number in 0..=AUDITED_FLOWS_MAX {
            flows.record(flow(number), at(0));
        }
        let entries = flows.entries();
        assert_eq!(entries.len(), AUDITED_FLOWS_MAX);
        assert!(entries.iter().all(|entry| entry.flow != flow(0)));
        assert_eq!(flows.total(), AUDITED_FLOWS_MAX as u64 + 1);
    }
}
