//! Defines the content of `tacit show filters`: the rules with the key `filter`, and the counters
//! and time windows of these rules.

use serde::{Deserialize, Serialize};
use tacit_core::policy::filter::{FilterRule, FilterVerdict, FragmentMatch, PacketSelectors};
use tacit_core::policy::filter_plan;

use super::VERSION;
use crate::clock::Rfc3339;
use crate::live::Live;
use crate::packet::FilterCounter;

/// The filter rules of the installed policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FiltersDisplay {
    /// The version of this format.
    pub version: u32,
    /// Counts installations from 1.
    pub generation: u64,
    /// The filter rules, in the order in which they are tried.
    pub filters: Vec<FilterDisplay>,
    /// The number of elements in the kernel's maps.
    pub elements: usize,
    /// The largest number of lookups for one packet.
    pub lookups: usize,
}

/// One filter rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FilterDisplay {
    /// Its name.
    pub name: String,
    /// `permit` or `deny`.
    pub action: String,
    /// The answer to packets that are denied: `silent`, `icmp` or `reset`.
    pub discard: Option<String>,
    /// `inbound`, `outbound` or `both`.
    pub direction: String,
    /// `local`, `routed` or `either`.
    pub routing: String,
    /// The transport protocols; empty: all.
    pub protocol: Vec<String>,
    /// The addresses and ports of the local end, as text; empty: all.
    pub local: Vec<String>,
    /// The same of the remote end.
    pub remote: Vec<String>,
    /// The ports of the local end.
    pub local_ports: Vec<String>,
    /// The ports of the remote end.
    pub remote_ports: Vec<String>,
    /// The types of ICMP messages.
    pub icmp_type: Vec<u8>,
    /// The codes of ICMP messages.
    pub icmp_code: Vec<u8>,
    /// The end that may open TCP connections: `local` or `remote`; `None`: both.
    pub opened_by: Option<String>,
    /// Whether the rule is for fragments.
    pub fragments: bool,
    /// The interfaces; empty: all.
    pub interface: Vec<String>,
    /// The names of `[ike.NAME]` and `[sa.NAME]` whose packets inside tunnels it is for; empty:
    /// those of the host.
    pub tunnel: Vec<String>,
    /// Which of its packets are logged.
    pub log: String,
    /// Its time windows; `None`: it always applies.
    pub when: Option<String>,
    /// Whether it applies now.
    pub applies: bool,
    /// When that changes; `None`: not in the next year.
    pub until: Option<Rfc3339>,
    /// The packets that it has decided about since it was installed.
    pub packets: u64,
    /// The line of the rule in its file.
    pub line: usize,
}

/// The filter rules with their packet counts. `unix_s` is the current time in seconds since 1970.
#[must_use]
pub fn filters(live: &Live, unix_s: i64) -> FiltersDisplay {
    let plan = filter_plan(&live.policy, unix_s);
    let rules = live.policy.filters.iter().zip(&live.filters);
    FiltersDisplay {
        version: VERSION,
        generation: live.generation,
        filters: rules.map(|(rule, counter)| filter(rule, counter, unix_s)).collect(),
        elements: plan.groups.iter().map(|group| group.elements.len()).sum(),
        lookups: plan.lookups(),
    }
}

fn filter(rule: &FilterRule, counter: &FilterCounter, unix_s: i64) -> FilterDisplay {
    let PacketSelectors {
        direction,
        protocols: _,
        local,
        local_ports,
        remote,
        remote_ports,
        icmp_types,
        icmp_codes,
        opened_by,
        fragments,
        interfaces,
        routing,
        when,
        tunnels,
    } = &rule.selectors;
    FilterDisplay {
        name: rule.name.clone(),
        action: rule.verdict.word().to_owned(),
        discard: match rule.verdict {
            FilterVerdict::Permit => None,
            FilterVerdict::Deny(discard) => Some(discard.word().to_owned()),
        },
        direction: direction.word().to_owned(),
        routing: routing.word().to_owned(),
        protocol: rule.selectors.protocol_words(),
        local: super::policy::texts(local),
        remote: super::policy::texts(remote),
        local_ports: super::policy::ports(local_ports),
        remote_ports: super::policy::ports(remote_ports),
        icmp_type: icmp_types.clone(),
        icmp_code: icmp_codes.clone(),
        opened_by: opened_by.map(|end| end.word().to_owned()),
        fragments: *fragments == FragmentMatch::Fragments,
        interface: interfaces.clone(),
        tunnel: tunnels.clone(),
        log: rule.log.word().to_owned(),
        when: when.as_ref().map(ToString::to_string),
        applies: when.as_ref().is_none_or(|when| when.is_open(unix_s)),
        until: when.as_ref().and_then(|when| when.next_change(unix_s)).map(Rfc3339::of_unix_s),
        packets: counter.packets(),
        line: rule.position.line,
    }
}
