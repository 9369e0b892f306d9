//! Converts each filter rule to *areas*. An area is a set of packets. These packets have the same
//! IP version, and their fields are in given ranges.
//!
//! Rules for flows (`permit`, `deny`, `tls`) are converted too if a filter rule follows them. The
//! first matching rule applies, so the filter rule must not apply to the packets of these flows.

use std::ops::RangeInclusive;

use super::super::{
    FilterRule, FilterVerdict, FragmentMatch, Opener, PacketDirection, PacketSelectors, Routing,
    WITH_PORTS,
};
use super::{
    FilterEffect, FilterField, FilterGate, FilterSchedule, PacketClasses, PacketViews, PlanScope,
};
use crate::flow::Protocol;
use crate::policy::rule::{Rule, RuleForm};
use crate::policy::selector::{AddressSelector, Family, Span};
use crate::policy::when::When;

/// The number of fields.
pub(super) const FIELDS: usize = 8;

/// The fields, in the order of their values in an area.
pub(super) const ALL_FIELDS: [FilterField; FIELDS] = [
    FilterField::Local,
    FilterField::Remote,
    FilterField::LocalPort,
    FilterField::RemotePort,
    FilterField::IcmpType,
    FilterField::IcmpCode,
    FilterField::Protocol,
    FilterField::Interface,
];

/// The lowest and the highest value of each field; `None`: any value, or no such field.
pub(super) type Fields = [Option<(u128, u128)>; FIELDS];

/// Packets that one rule matches.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) family: Family,
    pub(super) classes: PacketClasses,
    pub(super) views: PacketViews,
    pub(super) is_past_opening: bool,
    pub(super) gate: Option<FilterGate>,
    pub(super) fields: Fields,
    pub(super) outcome: FilterEffect,
    pub(super) rule: Option<u32>,
}

/// The time windows of rules that do the same with a packet.
pub(super) struct Schedule<'r> {
    pub(super) when: &'r When,
    pub(super) permits: bool,
}

impl Schedule<'_> {
    /// A schedule of rules that permit is present in the window; one of rules that deny, outside.
    pub(super) fn at(&self, unix_s: i64) -> FilterSchedule {
        FilterSchedule {
            present: self.when.is_open(unix_s) == self.permits,
            until_unix_s: self.when.next_change(unix_s),
        }
    }
}

/// A rule for flows, with the addresses that it selects.
#[derive(Clone, Debug)]
pub(in crate::policy) struct FlowArea<'r> {
    pub(in crate::policy) rule: &'r Rule,
    /// For a rule for flows that programs open.
    pub(in crate::policy) addresses: Vec<Span>,
}

/// The different schedules of the rules.
pub(super) fn schedules<'r>(filters: &'r [FilterRule], scope: PlanScope<'_>) -> Vec<Schedule<'r>> {
    let mut all: Vec<Schedule<'_>> = Vec::new();
    for filter in filters.iter().filter(|filter| scope.has(filter)) {
        let Some(when) = &filter.selectors.when else { continue };
        let permits = filter.verdict == FilterVerdict::Permit;
        if !all.iter().any(|one| one.when == when && one.permits == permits) {
            all.push(Schedule { when, permits });
        }
    }
    all
}

/// The areas of all rules of a scope, in order. Rules for flows behind the last filter rule have
/// none.
pub(super) fn all(
    flows: &[Option<FlowArea<'_>>],
    filters: &[FilterRule],
    schedules: &[Schedule<'_>],
    scope: PlanScope<'_>,
) -> Vec<Area> {
    let mut areas = Vec::new();
    let mut compared = 0;
    for (number, filter) in (0..).zip(filters).filter(|(_, filter)| scope.has(filter)) {
        let before = flows.get(compared..filter.flows_before).unwrap_or_default();
        areas.extend(before.iter().flatten().flat_map(of_flows));
        compared = filter.flows_before;
        areas.extend(of_filter(filter, number, schedules));
    }
    areas
}

/// The packets of the flows that a rule matches. Both ends send packets; only one may open the
/// connection.
fn of_flows(FlowArea { rule, addresses }: &FlowArea<'_>) -> Vec<Area> {
    let protocol = match rule.selectors.protocol {
        Protocol::Tcp => super::TCP,
        Protocol::Udp => super::UDP,
        Protocol::Icmp => return Vec::new(),
    };
    let (opener, remote) = match rule.form {
        RuleForm::Outbound if rule.is_of_host() => (Opener::Local, addresses.clone()),
        RuleForm::HostInbound => (Opener::Remote, inbound_remote(rule)),
        RuleForm::Outbound
        | RuleForm::Inbound(_)
        | RuleForm::TunnelInbound
        | RuleForm::Forward(_) => return Vec::new(),
    };
    let wanted = Wanted {
        direction: PacketDirection::Both,
        routing: Routing::Local,
        fragments: FragmentMatch::Whole,
        protocols: vec![protocol],
        local: None,
        remote: Some(remote),
        local_ports: &rule.selectors.local_ports,
        remote_ports: &rule.selectors.remote_ports,
        icmp: [&[], &[]],
        interfaces: &[],
        opened_by: (protocol == super::TCP).then_some(opener),
    };
    wanted.areas(None, FilterEffect::Flow, None)
}

/// The clients that an inbound rule selects.
fn inbound_remote(rule: &Rule) -> Vec<Span> {
    if rule.selectors.remote.is_empty() {
        return [(Family::V4, u128::from(u32::MAX)), (Family::V6, u128::MAX)]
            .map(|(family, last)| Span { family, first: 0, last })
            .to_vec();
    }
    rule.selectors.remote.iter().flat_map(AddressSelector::spans).collect()
}

fn of_filter(filter: &FilterRule, number: u32, schedules: &[Schedule<'_>]) -> Vec<Area> {
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
        tunnels: _,
    } = &filter.selectors;
    let permits = filter.verdict == FilterVerdict::Permit;
    let gate = when.as_ref().and_then(|when| {
        let same = |one: &Schedule<'_>| one.when == when && one.permits == permits;
        let number = u32::try_from(schedules.iter().position(same)?).ok()?;
        Some(if permits { FilterGate::Present(number) } else { FilterGate::Absent(number) })
    });
    let spans = |list: &[AddressSelector]| {
        (!list.is_empty()).then(|| list.iter().flat_map(AddressSelector::spans).collect())
    };
    let wanted = Wanted {
        direction: *direction,
        routing: *routing,
        fragments: *fragments,
        protocols: protocols.clone(),
        local: spans(local),
        remote: spans(remote),
        local_ports,
        remote_ports,
        icmp: [icmp_types, icmp_codes],
        interfaces,
        opened_by: *opened_by,
    };
    let outcome = FilterEffect::Decided { verdict: filter.verdict, logged: filter.is_logged() };
    wanted.areas(gate, outcome, Some(number))
}

/// The conditions of a rule, with addresses as spans; `None` is no condition.
struct Wanted<'r> {
    direction: PacketDirection,
    routing: Routing,
    fragments: FragmentMatch,
    protocols: Vec<u8>,
    local: Option<Vec<Span>>,
    remote: Option<Vec<Span>>,
    local_ports: &'r [RangeInclusive<u16>],
    remote_ports: &'r [RangeInclusive<u16>],
    /// The types and the codes.
    icmp: [&'r [u8]; 2],
    interfaces: &'r [String],
    opened_by: Option<Opener>,
}

impl Wanted<'_> {
    fn areas(
        &self,
        gate: Option<FilterGate>,
        outcome: FilterEffect,
        rule: Option<u32>,
    ) -> Vec<Area> {
        let mut areas = Vec::new();
        for family in [Family::V4, Family::V6] {
            for (classes, protocol) in self.classes(family) {
                for (views, is_past_opening) in self.views() {
                    for fields in self.fields(family, protocol) {
                        areas.push(Area {
                            family,
                            classes,
                            views,
                            is_past_opening,
                            gate,
                            fields,
                            outcome,
                            rule,
                        });
                    }
                }
            }
        }
        areas
    }

    /// The classes of packets, and the protocol that has to be compared for each.
    fn classes(&self, family: Family) -> Vec<(PacketClasses, Option<u8>)> {
        let is_for_fragments = self.fragments == FragmentMatch::Fragments;
        let has_icmp = self.icmp.iter().any(|numbers| !numbers.is_empty());
        let has_ports = !(self.local_ports.is_empty() && self.remote_ports.is_empty());
        if self.protocols.is_empty() {
            let classes =
                if is_for_fragments { PacketClasses::FRAGMENTS } else { PacketClasses::WHOLE };
            return vec![(classes, None)];
        }
        let of_protocol = self.protocols.iter().filter_map(|protocol| {
            let class = PacketClasses::of(*protocol, family);
            // Other packets have no such fields.
            let is_possible = (!has_icmp || class == PacketClasses::ICMP)
                && (!has_ports || WITH_PORTS.contains(protocol));
            if !is_possible {
                return None;
            }
            Some(match class {
                _ if is_for_fragments => (PacketClasses::FRAGMENTS, Some(*protocol)),
                PacketClasses::OTHER => (class, Some(*protocol)),
                _ => (class, None),
            })
        });
        of_protocol.collect()
    }

    /// The ways of packets, and whether the segments that open a connection do not match there.
    fn views(&self) -> Vec<(PacketViews, bool)> {
        let ways: &[[PacketViews; 2]] = match self.routing {
            _ if self.fragments == FragmentMatch::Fragments => &[LOCAL],
            Routing::Local => &[LOCAL],
            Routing::Routed => &[ROUTED],
            Routing::Either => &[LOCAL, ROUTED],
        };
        let mut views = Vec::new();
        for [inbound, outbound] in ways.iter().copied() {
            let both = PacketViews(inbound.0 | outbound.0);
            let all = match self.direction {
                PacketDirection::Inbound => inbound,
                PacketDirection::Outbound => outbound,
                PacketDirection::Both => both,
            };
            // The way of segments from the end that may not open the connection.
            let past_opening = match self.opened_by {
                None => PacketViews(0),
                Some(Opener::Local) => inbound,
                Some(Opener::Remote) => outbound,
            };
            let parts = [
                (PacketViews(all.0 & !past_opening.0), false),
                (PacketViews(all.0 & past_opening.0), true),
            ];
            views.extend(parts.into_iter().filter(|(views, _)| views.0 != 0));
        }
        views
    }

    /// The combinations of the lists of the rule.
    fn fields(&self, family: Family, protocol: Option<u8>) -> Vec<Fields> {
        let of_family = |spans: &Option<Vec<Span>>| match spans {
            None => vec![None],
            Some(spans) => {
                let spans = spans.iter().filter(|span| span.family == family);
                let all = (0, if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX });
                let ranges = spans.map(|span| (span.first, span.last));
                ranges.map(|range| (range != all).then_some(range)).collect()
            }
        };
        let of_ports = |ports: &[RangeInclusive<u16>]| {
            if ports.is_empty() {
                return vec![None];
            }
            let range = |ports: &RangeInclusive<u16>| {
                Some((u128::from(*ports.start()), u128::from(*ports.end())))
            };
            ports.iter().map(range).collect()
        };
        let of_numbers = |numbers: &[u8]| {
            if numbers.is_empty() {
                return vec![None];
            }
            numbers.iter().map(|number| Some((u128::from(*number), u128::from(*number)))).collect()
        };
        let interfaces = if self.interfaces.is_empty() {
            vec![None]
        } else {
            let bits = self.interfaces.iter().map(|name| interface_bits(name));
            bits.map(|bits| Some((bits, bits))).collect()
        };
        let [types, codes] = self.icmp.map(of_numbers);
        let lists: [Vec<Option<(u128, u128)>>; FIELDS] = [
            of_family(&self.local),
            of_family(&self.remote),
            of_ports(self.local_ports),
            of_ports(self.remote_ports),
            types,
            codes,
            vec![protocol.map(|number| (number.into(), number.into()))],
            interfaces,
        ];
        let mut all: Vec<Fields> = vec![[None; FIELDS]];
        for (place, list) in lists.iter().enumerate() {
            let with = |fields: &Fields, one: &Option<(u128, u128)>| {
                let mut fields = *fields;
                fields[place] = *one;
                fields
            };
            all = all
                .iter()
                .flat_map(|fields| list.iter().map(move |one| with(fields, one)))
                .collect();
            // The limit of elements is reported for the rules as a whole.
            all.truncate(super::FILTER_ELEMENTS_MAX + 1);
        }
        all
    }
}

/// The name of an interface as a number: its bytes, with zeros at the end.
pub(super) fn interface_bits(name: &str) -> u128 {
    let mut bytes = [0; 16];
    for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    u128::from_be_bytes(bytes)
}

const LOCAL: [PacketViews; 2] = [PacketViews::IN, PacketViews::OUT];
const ROUTED: [PacketViews; 2] = [PacketViews::ROUTED_IN, PacketViews::ROUTED_OUT];
