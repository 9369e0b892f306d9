//! Defines the content of `tacit show rules`: the installed rules with their counters.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use tacit_core::flow::Address;
use tacit_core::policy::filter::FilterRule;
use tacit_core::policy::is_decided_by_kernel;

use crate::clock::Rfc3339;
use crate::live::{Live, LiveRule};
use crate::packet::FilterCounter;
use crate::session::ConnectionTable;

use super::{VERSION, client_cert, role};

/// The rules of the installed policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RulesDisplay {
    /// The version of this format.
    pub version: u32,
    /// Counts installations from 1.
    pub generation: u64,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<RuleDisplay>,
    /// The action for connections that match no rule: `deny`.
    pub default: String,
    /// The same for flows of a captured host: `permit` or `deny`; `None`: there is no `[host]`.
    pub unmatched: Option<String>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuleDisplay {
    /// Its name.
    pub name: String,
    /// `permit`, `deny` or `tls`; of a rule in audit mode `permit`.
    pub action: String,
    /// Whether it is a filter rule: its kernel hits are packets.
    #[serde(default)]
    pub filter: bool,
    /// The action of a rule in audit mode, which is not enforced; `None`: the rule is enforced.
    pub would: Option<String>,
    /// The role of tacit in TLS: `server` or `client`; `None`: no TLS.
    pub role: Option<String>,
    /// The STARTTLS exchange before its TLS.
    pub starttls: Option<RuleStarttls>,
    /// Whether the program decides when TLS begins.
    pub controlled: bool,
    /// The addresses that the agent listens at; `None`: it listens at none.
    pub listen: Option<Vec<Address>>,
    /// The targets of a forwarding rule, as text.
    pub connect: Option<String>,
    /// The targets, if they are several.
    pub targets: Option<RuleTargets>,
    /// The level of client certificates.
    pub client_cert: Option<String>,
    /// Connections and flows that it decided since it was installed.
    pub hits: u64,
    /// Connections and datagrams that the kernel of a captured host decided by it, without the
    /// agent, since it was installed; `None`: the kernel decides about none.
    pub kernel_hits: Option<u64>,
    /// Connections that failed before they relayed a byte.
    pub failures: u64,
    /// The failures by kind, as in the log; only kinds that have occurred.
    pub failures_by_kind: BTreeMap<String, u64>,
    /// When it decided last.
    pub last_hit: Option<Rfc3339>,
    /// Its open connections and flows.
    pub open: usize,
    /// The line of the rule in the policy file.
    pub line: Option<usize>,
}

/// The STARTTLS exchange of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuleStarttls {
    /// `ftp`, `smtp`, ….
    pub protocol: String,
    /// `required` or `optional`.
    pub mode: String,
}

/// The targets of a rule with several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RuleTargets {
    /// `first` or `round-robin`.
    pub order: String,
    /// Each target.
    pub states: Vec<TargetState>,
}

/// One of several targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TargetState {
    /// Its address.
    pub connect: String,
    /// Whether connecting to it failed last.
    pub down: bool,
}

/// The rules, with what they have decided so far.
#[must_use]
pub fn rules(table: &ConnectionTable, live: &Live) -> RulesDisplay {
    let records = table.snapshot();
    let mut open: HashMap<&str, usize> = HashMap::new();
    for record in &records {
        *open.entry(record.rule.name()).or_default() += 1;
    }
    let is_host = live.policy.host.is_some();
    let of_flows = live.rules.iter().enumerate().map(|(position, rule)| {
        let of_rule = open.get(rule.name()).copied().unwrap_or_default();
        let is_decided_by_kernel = is_host && is_decided_by_kernel(&rule.rule);
        let kernel_hits = is_decided_by_kernel.then(|| rule.counters.kernel_hits());
        RuleDisplay { kernel_hits, ..one_rule(rule, of_rule, live.line(position)) }
    });
    RulesDisplay {
        version: VERSION,
        generation: live.generation,
        rules: with_filters(of_flows, live),
        default: "deny".to_owned(),
        unmatched: live.policy.host.as_ref().map(|host| host.unmatched.word().to_owned()),
    }
}

/// The rules for flows and the filter rules, in the order of the policy.
fn with_filters(mut rules: impl Iterator<Item = RuleDisplay>, live: &Live) -> Vec<RuleDisplay> {
    let mut all = Vec::new();
    let mut before = 0;
    for (filter, counter) in live.policy.filters.iter().zip(&live.filters) {
        all.extend(rules.by_ref().take(filter.flows_before - before));
        before = filter.flows_before;
        all.push(one_filter(filter, counter));
    }
    all.extend(rules);
    all
}

fn one_filter(filter: &FilterRule, counter: &FilterCounter) -> RuleDisplay {
    RuleDisplay {
        name: filter.name.clone(),
        action: filter.verdict.word().to_owned(),
        filter: true,
        would: None,
        role: None,
        starttls: None,
        controlled: false,
        listen: None,
        connect: None,
        targets: None,
        client_cert: None,
        hits: 0,
        kernel_hits: Some(counter.packets()),
        failures: 0,
        failures_by_kind: BTreeMap::new(),
        last_hit: None,
        open: 0,
        line: Some(filter.position.line),
    }
}

fn one_rule(rule: &LiveRule, open: usize, line: Option<usize>) -> RuleDisplay {
    let starttls = rule.starttls().map(|starttls| RuleStarttls {
        protocol: starttls.protocol.word().to_owned(),
        mode: starttls.mode.word().to_owned(),
    });
    let listens = rule.rule.listens();
    let by_kind = rule.counters.failures_by_kind();
    RuleDisplay {
        name: rule.name().to_owned(),
        action: rule.rule.action.word().to_owned(),
        filter: false,
        would: rule.rule.audited.as_ref().map(|action| action.word().to_owned()),
        role: role(rule).map(str::to_owned),
        starttls,
        controlled: rule.is_controlled(),
        listen: (!listens.is_empty()).then(|| listens.to_vec()),
        connect: rule.targets.as_ref().map(ToString::to_string),
        targets: targets(rule),
        client_cert: client_cert(rule),
        hits: rule.counters.hits(),
        kernel_hits: None,
        failures: rule.counters.failures(),
        failures_by_kind: by_kind.map(|(kind, count)| (kind.to_owned(), count)).collect(),
        last_hit: rule.counters.last_hit().map(Rfc3339),
        open,
        line,
    }
}

/// Several targets in their order, and which of them are down; `None`: there are not several.
fn targets(rule: &LiveRule) -> Option<RuleTargets> {
    let several = rule.targets.as_ref()?.several()?;
    let states = several.states();
    let states =
        states.map(|(target, down)| TargetState { connect: target.to_string(), down }).collect();
    Some(RuleTargets { order: several.order.word().to_owned(), states })
}
