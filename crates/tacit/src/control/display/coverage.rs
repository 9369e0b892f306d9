//! Defines the content of `tacit show coverage`, for `tacit agent --host`: the flows of the host,
//! and the protection and the program of each flow.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tacit_core::coverage::{
    COVERAGE_FLOWS_MAX, CoverageEntry, CoverageTable, CoveredFlow, Protection, SocketCounts,
};

use crate::clock::Rfc3339;
use crate::live::LiveRule;

use super::VERSION;

/// The flows of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoverageDisplay {
    /// The version of this format.
    pub version: u32,
    /// Whether the agent captures its host; otherwise there are no flows.
    pub captured: bool,
    /// When the agent started to count.
    pub since: Rfc3339,
    /// The sums of each kind of protection.
    pub totals: Vec<CoverageTotal>,
    /// The flows, those with most open sockets first; at most [`COVERAGE_FLOWS_MAX`].
    pub flows: Vec<CoverageFlows>,
    /// What the kernel has decided without the agent, in the order of the rules.
    pub kernel: Vec<KernelCoverage>,
}

/// What the kernel has decided by one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KernelCoverage {
    /// The name of the rule.
    pub rule: String,
    /// `permit` or `deny`.
    pub action: String,
    /// Connections and datagrams since the agent started.
    pub hits: u64,
}

/// The sum of a kind of protection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoverageTotal {
    /// The kind.
    pub protection: Protection,
    /// How many sockets.
    #[serde(flatten)]
    pub counts: SocketCounts,
}

/// Flows that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CoverageFlows {
    /// The flows.
    #[serde(flatten)]
    pub flow: CoveredFlow,
    /// How many sockets.
    #[serde(flatten)]
    pub counts: SocketCounts,
    /// When one was open last.
    pub last: Rfc3339,
}

impl CoverageDisplay {
    /// Returns the display of an agent that does not capture its host.
    #[must_use]
    pub fn not_captured(since: Rfc3339) -> Self {
        Self { captured: false, ..coverage(&CoverageTable::default(), &[], since) }
    }
}

/// Returns the flows in a table and the time since which the table counts, and what the kernel has
/// decided with these rules.
#[must_use]
pub fn coverage(table: &CoverageTable, rules: &[Arc<LiveRule>], since: Rfc3339) -> CoverageDisplay {
    let totals = table.totals().into_iter();
    let totals = totals.map(|(protection, counts)| CoverageTotal { protection, counts });
    let flows = table.entries().into_iter().take(COVERAGE_FLOWS_MAX);
    let flows = flows.map(|CoverageEntry { flow, counts, last }| CoverageFlows {
        flow,
        counts,
        last: Rfc3339(last),
    });
    CoverageDisplay {
        version: VERSION,
        captured: true,
        since,
        totals: totals.collect(),
        flows: flows.collect(),
        kernel: rules.iter().filter_map(|rule| by_kernel(rule)).collect(),
    }
}

fn by_kernel(rule: &LiveRule) -> Option<KernelCoverage> {
    let hits = rule.counters.kernel_hits();
    let action = rule.rule.action.word().to_owned();
    (hits > 0).then(|| KernelCoverage { rule: rule.name().to_owned(), action, hits })
}
