//! Defines the content of `tacit show audit`: flows that a rule in audit mode has permitted.
//! Without audit mode, the rule would have denied or encrypted these flows.

use serde::{Deserialize, Serialize};
use tacit_core::audited::{AuditedEntry, AuditedFlow};

use crate::clock::Rfc3339;
use crate::live::Live;

use super::VERSION;

/// What the rules in audit mode would have done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AuditDisplay {
    /// The version of this format.
    pub version: u32,
    /// The rules in audit mode, in the order of the policy.
    pub rules: Vec<AuditedRule>,
}

/// A rule in audit mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AuditedRule {
    /// Its name.
    pub rule: String,
    /// The action that is not enforced: `tls`, `deny` or `permit`.
    pub would: String,
    /// All flows that it has let pass since the agent started.
    pub total: u64,
    /// The latest different flows, the newest first.
    pub flows: Vec<RepeatedFlow>,
}

/// A flow, with the number of times that it was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RepeatedFlow {
    /// When it occurred last.
    pub last: Rfc3339,
    /// How often it occurred.
    pub count: u64,
    /// The flow.
    #[serde(flatten)]
    pub flow: AuditedFlow,
}

/// The flows of the rules in audit mode.
#[must_use]
pub fn audit(live: &Live) -> AuditDisplay {
    let flow =
        |AuditedEntry { flow, last, count }| RepeatedFlow { last: Rfc3339(last), count, flow };
    let audited = live.rules.iter().filter_map(|rule| {
        Some(AuditedRule {
            rule: rule.name().to_owned(),
            would: rule.rule.audited.as_ref()?.word().to_owned(),
            total: rule.counters.audited_total(),
            flows: rule.counters.audited().into_iter().map(flow).collect(),
        })
    });
    AuditDisplay { version: VERSION, rules: audited.collect() }
}
