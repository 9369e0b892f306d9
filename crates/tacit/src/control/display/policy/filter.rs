//! For `tacit show policy`, lists the settings of the rules with `filter`.

use tacit_core::policy::Policy;
use tacit_core::policy::filter::{
    Discard, FilterLog, FilterRule, FilterVerdict, FragmentMatch, PacketDirection, PacketSelectors,
    Routing,
};

use super::{PolicyTable, Settings, ports, texts};

/// The tables of rules for flows, with those of filter rules at their places.
pub(super) fn with_filters(
    policy: &Policy,
    mut of_flows: impl Iterator<Item = PolicyTable>,
) -> Vec<PolicyTable> {
    let mut rules = Vec::new();
    let mut before = 0;
    for one in &policy.filters {
        rules.extend(of_flows.by_ref().take(one.flows_before - before));
        before = one.flows_before;
        rules.push(rule(policy, one));
    }
    rules.extend(of_flows);
    rules
}

fn rule(policy: &Policy, rule: &FilterRule) -> PolicyTable {
    let FilterRule { name, flows_before: _, verdict, selectors, log, position } = rule;
    let PacketSelectors {
        direction,
        protocols,
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
    } = selectors;
    let mut settings = Settings::default();
    let is_fragments = *fragments == FragmentMatch::Fragments;
    let default = if is_fragments { PacketDirection::Inbound } else { PacketDirection::default() };
    let numbers = |list: &[u8]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    settings.add("filter", verdict.word(), false);
    if let FilterVerdict::Deny(discard) = verdict {
        settings.add("discard", discard.word(), *discard == Discard::default());
    }
    settings.add("direction", direction.word(), *direction == default);
    settings.add("protocol", selectors.protocol_words(), protocols.is_empty());
    settings.add("local", texts(local), local.is_empty());
    settings.add("local-ports", ports(local_ports), local_ports.is_empty());
    settings.add("remote", texts(remote), remote.is_empty());
    settings.add("remote-ports", ports(remote_ports), remote_ports.is_empty());
    settings.add("icmp-type", numbers(icmp_types), icmp_types.is_empty());
    settings.add("icmp-code", numbers(icmp_codes), icmp_codes.is_empty());
    settings.add("opened-by", opened_by.map(|end| end.word()), opened_by.is_none());
    settings.add("fragments", is_fragments, !is_fragments);
    settings.add("interface", interfaces.clone(), interfaces.is_empty());
    settings.add("routing", routing.word(), *routing == Routing::default());
    settings.add("tunnel", tunnels.clone(), tunnels.is_empty());
    settings.add("when", when.as_ref().map(ToString::to_string), when.is_none());
    settings.add("log", log.word(), *log == FilterLog::default());
    settings.table("[[rule]]", Some(name)).at(policy, *position)
}
