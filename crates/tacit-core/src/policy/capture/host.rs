//! Computes how the kernel handles the flows of a captured host (a host whose programs all follow
//! one policy). This module converts the rules to ranges of destination addresses and ports.
//!
//! The *senders* of a rule are the users, groups, control groups or systemd units that the rule
//! names. Consecutive rules with the same senders form a *section*. The kernel checks the sections
//! in the order of the rules. In each section, the kernel first checks the sender of the flow, and
//! then its destination. The first section in which sender and destination match decides about the
//! flow.
//!
//! The kernel applies `permit` and `deny` itself. The kernel sends a flow to the agent if the flow
//! must be relayed or logged. The kernel also sends a flow to the agent if the rule selects flows
//! by program or systemd unit.
//!
//! For each rule, the kernel counts the connections and datagrams that the kernel permits or denies
//! itself.
//!
//! Limits: [`HOST_RANGES_MAX`] ranges, [`HOST_SECTIONS_MAX`] sections, [`SENDER_CHECKS_MAX`]
//! combinations of user, group and control group in a section, [`COUNTED_RANGES_MAX`] ranges with
//! counters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::named::{NameRules, NamedPorts};
use super::sweep::{self, Area};
use super::{
    CaptureRange, Learnt, Plane, address, addresses, is_of_host, is_open, left_of, ports, spans,
};
use crate::flow::Protocol;
use crate::policy::content::Policy;
use crate::policy::filter::{FilterPlan, FlowArea, PacketClassifier, PlanScope};
use crate::policy::host::{HostMode, Unmatched};
use crate::policy::rule::{Action, Deny, Rule, RuleForm};
use crate::policy::selector::{Family, Selectors};

/// The largest number of ranges of a host. The kernel accepts no more in one transaction.
pub const HOST_RANGES_MAX: usize = 16_384;

/// The maximum number of ranges of a host with counters. The rules of further ranges are not
/// counted completely.
pub const COUNTED_RANGES_MAX: usize = 8192;

/// The maximum number of sections of a host. The kernel may have to check all of them for a packet.
pub const HOST_SECTIONS_MAX: usize = 64;

/// The maximum number of units that the rules of a host name.
pub const HOST_UNITS_MAX: usize = 256;

/// The maximum number of combinations of user, group and control group in a section.
pub const SENDER_CHECKS_MAX: usize = 64;

/// What the kernel does with a flow that a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostVerdict {
    /// The kernel sends it to the agent.
    Capture,
    /// The kernel lets it pass to its destination.
    Pass,
    /// The kernel refuses it, as if no program listened there.
    Refuse,
    /// The kernel refuses it, as a packet filter does.
    Prohibit,
}

/// Destinations whose flows the kernel treats in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostRange {
    /// The destinations.
    pub to: CaptureRange,
    /// What happens to their flows.
    pub verdict: HostVerdict,
}

/// Destinations whose flows the kernel counts for a rule, because it decides about them itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CountedRange {
    /// The destinations.
    pub to: CaptureRange,
    /// The position of the rule in [`HostPlan::counted_rules`].
    pub rule: u32,
}

/// What the kernel does with the flows of a host, by destination and port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostPlan {
    /// Flows that programs open. The first section that has their sender and destination decides.
    pub sections: Vec<HostSection>,
    /// The verdict on all other flows that programs open.
    pub unmatched: Unmatched,
    /// The ports of this host's programs whose clients the agent accepts, for all addresses;
    /// disjoint.
    pub inbound: Vec<CaptureRange>,
    /// The ports of rules by name. `None`: no rule is by name, and port 53 is an ordinary port.
    #[serde(default)]
    pub names: Option<Vec<NamedPorts>>,
    /// Whether what is captured is refused while no agent takes it.
    pub mode: HostMode,
    /// The interfaces whose flows are captured too.
    pub forwarded: Vec<String>,
    /// What rules with units need; `None`: there are none.
    #[serde(default)]
    pub units: Option<HostUnits>,
    /// The names of the rules whose flows the kernel counts.
    #[serde(default)]
    pub counted_rules: Vec<String>,
    /// Rules for single packets; their rules are positions in `counted_rules`. `None`: there are
    /// none.
    #[serde(default)]
    pub filters: Option<FilterPlan>,
}

/// The units that rules name, and where the rules lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostUnits {
    /// The bit of packet marks by which the kernel notes that no unit sends a packet.
    pub mark: u32,
    /// The names of the units, sorted.
    pub names: Vec<String>,
    /// The destinations of rules with units; disjoint.
    pub destinations: Vec<CaptureRange>,
}

impl HostPlan {
    /// Whether a filter rule has time windows.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.filters.as_ref().is_some_and(|filters| !filters.schedules.is_empty())
    }

    /// The same plan without the state of time windows of filter rules.
    #[must_use]
    pub fn without_windows(&self) -> Self {
        let mut plan = self.clone();
        if let Some(filters) = &mut plan.filters {
            filters.schedules.clear();
        }
        plan
    }

    /// Returns the number of ranges that go to the agent.
    #[must_use]
    pub fn captured(&self) -> usize {
        let outbound = self.sections.iter().flat_map(|section| &section.outbound);
        let captured = outbound.filter(|one| one.verdict == HostVerdict::Capture);
        captured.count() + self.inbound.len()
    }
}

/// Flows of the same senders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HostSection {
    /// The senders.
    pub senders: Senders,
    /// The verdicts on their flows, by destination; disjoint.
    pub outbound: Vec<HostRange>,
    /// The destinations whose flows are counted; disjoint.
    #[serde(default)]
    pub counted: Vec<CountedRange>,
}

/// The conditions on a sender that the kernel checks, in the form that rules contain. All must
/// hold; an empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Senders {
    /// User names or numbers.
    pub user: Vec<String>,
    /// Group names or numbers.
    pub group: Vec<String>,
    /// Control groups, each with all groups below it.
    pub cgroup: Vec<String>,
    /// Units of systemd.
    #[serde(default)]
    pub unit: Vec<String>,
}

impl Senders {
    fn of(rule: &Rule) -> Self {
        let Selectors { user, group, cgroup, unit, .. } = &rule.selectors;
        Self {
            user: user.clone(),
            group: group.clone(),
            cgroup: cgroup.clone(),
            unit: unit.clone(),
        }
    }

    /// Returns the number of combinations that the kernel compares a sender with. It compares it
    /// with all units at once.
    #[must_use]
    pub fn checks(&self) -> usize {
        let Self { user, group, cgroup, unit: _ } = self;
        [user, group, cgroup].into_iter().map(|list| list.len().max(1)).product()
    }
}

/// Computes the plan of a policy at a time, in seconds since 1970. It has at most
/// [`HOST_RANGES_MAX`] ranges, or one more if the policy needs more than that.
#[must_use]
pub fn host_plan(policy: &Policy, unmatched: Unmatched, unix_s: i64) -> HostPlan {
    let open = || policy.rules.iter().filter(|rule| is_open(rule, unix_s)).map(|rule| &**rule);
    let mode = policy.host.as_ref().map(|host| host.mode).unwrap_or_default();
    let unmatched = if mode == HostMode::Audit { Unmatched::Permit } else { unmatched };
    let sections = sections(open(), unmatched);
    let unit_mark = policy.host.as_ref().map_or(0, |host| host.unit_mark);
    let of_flows = open().filter(|rule| is_decided_by_kernel(rule)).map(|rule| rule.name.clone());
    let mut counted_rules: Vec<_> = of_flows.collect();
    let has_filters = policy.filters.iter().any(|filter| PlanScope::Host.has(filter))
        && mode == HostMode::Enforce;
    let filters = has_filters.then(|| {
        let first = u32::try_from(counted_rules.len()).unwrap_or(u32::MAX);
        counted_rules.extend(policy.filters.iter().map(|filter| filter.name.clone()));
        filter_plan(policy, unix_s).counted_from(first)
    });
    HostPlan {
        units: HostUnits::of(&sections, unit_mark),
        sections,
        unmatched,
        inbound: inbound(open()),
        names: NameRules::of(policy, unix_s).map(|rules| rules.ports().to_vec()),
        mode,
        forwarded: policy.host.as_ref().map(|host| host.forwarded.clone()).unwrap_or_default(),
        counted_rules,
        filters,
    }
}

/// Computes what the kernel does with single packets at a time, in seconds since 1970.
#[must_use]
pub fn filter_plan(policy: &Policy, unix_s: i64) -> FilterPlan {
    let rules = policy.rules.iter();
    let flows: Vec<_> = rules.map(|rule| is_open(rule, unix_s).then(|| flow_area(rule))).collect();
    FilterPlan::of(&flows, &policy.filters, unix_s, PlanScope::Host)
}

/// Computes what happens to packets inside the tunnels with a peer at a time, in seconds since
/// 1970. No rule for flows comes before these filter rules.
#[must_use]
pub fn tunnel_filter_plan(policy: &Policy, ike: &str, unix_s: i64) -> FilterPlan {
    FilterPlan::of(&[], &policy.filters, unix_s, PlanScope::Tunnel(ike))
}

/// A rule for flows as filter rules see it.
pub(in crate::policy) fn flow_area(rule: &Rule) -> FlowArea<'_> {
    FlowArea { rule, addresses: addresses(rule, &[]) }
}

/// Makes a classifier of the filter rules for packets of a captured host. `unix_s` is the time for
/// rules for flows, in seconds since 1970.
#[must_use]
pub fn host_classifier(policy: &Policy, unix_s: i64) -> PacketClassifier {
    PacketClassifier::new(filter_plan(policy, unix_s), &policy.filters, PlanScope::Host)
}

/// Makes a classifier of the filter rules for packets inside the tunnels with a peer.
#[must_use]
pub fn tunnel_classifier(policy: &Policy, ike: &str) -> PacketClassifier {
    let plan = tunnel_filter_plan(policy, ike, 0);
    PacketClassifier::new(plan, &policy.filters, PlanScope::Tunnel(ike))
}

impl HostUnits {
    fn of(sections: &[HostSection], mark: u32) -> Option<Self> {
        let of_units = || sections.iter().filter(|section| !section.senders.unit.is_empty());
        let names: BTreeSet<&String> = of_units().flat_map(|one| &one.senders.unit).collect();
        if names.is_empty() {
            return None;
        }
        let mut areas: BTreeMap<Plane, Vec<Area>> = BTreeMap::new();
        for HostRange { to, .. } in of_units().flat_map(|section| &section.outbound) {
            let (plane, area) = area_of(to);
            areas.entry(plane).or_default().push(area);
        }
        let destinations = areas.into_iter().flat_map(|(plane, areas)| {
            sweep::cut(areas).into_iter().map(move |area| range_of(plane, &area))
        });
        Some(Self {
            mark,
            names: names.into_iter().cloned().collect(),
            destinations: destinations.take(HOST_RANGES_MAX + 1).collect(),
        })
    }
}

/// Returns the ports whose clients a rule selects, if the kernel cannot decide about them itself.
pub(super) fn inbound<'r>(rules: impl Iterator<Item = &'r Rule>) -> Vec<CaptureRange> {
    let of_clients = rules.filter(|rule| rule.form == RuleForm::HostInbound);
    let mut concerned = of_clients.filter(|rule| verdict(rule) != HostVerdict::Pass);
    let ports = concerned.by_ref().flat_map(|rule| rule.selectors.local_ports.clone());
    let areas: Vec<_> = ports.map(|ports| Area { first: 0, last: 0, ports }).collect();
    let ranges = sweep::cut(areas).into_iter().flat_map(|Area { ports, .. }| {
        [Family::V4, Family::V6].map(|family| CaptureRange {
            udp: false,
            first: address(0, family),
            last: address(u128::MAX, family),
            first_port: *ports.start(),
            last_port: *ports.end(),
        })
    });
    ranges.collect()
}

pub(in crate::policy) fn sections<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    unmatched: Unmatched,
) -> Vec<HostSection> {
    let rules: Vec<_> = rules.filter(|rule| is_of_host(rule)).collect();
    let alike = rules.chunk_by(|one, other| Senders::of(one) == Senders::of(other));
    let mut numbers = 0..;
    let sections = alike.map(|rules| {
        let areas = areas_of(rules);
        HostSection {
            senders: Senders::of(rules[0]),
            counted: counted(rules, &areas, &mut numbers),
            outbound: outbound(rules, areas, verdict),
        }
    });
    limited(sections.collect(), unmatched)
}

/// Removes what the kernel would do without these sections too, and ranges beyond the limit.
pub(super) fn limited(mut sections: Vec<HostSection>, unmatched: Unmatched) -> Vec<HostSection> {
    // Flows that the last section does not decide match no rule: no other section follows.
    let needless = match unmatched {
        Unmatched::Permit => HostVerdict::Pass,
        Unmatched::Deny => HostVerdict::Refuse,
    };
    // A sender that passes several checks would be counted several times without a verdict.
    if let Some(last) = sections.last_mut().filter(|last| last.senders.checks() == 1) {
        last.outbound.retain(|one| one.verdict != needless);
    }
    let mut left = HOST_RANGES_MAX + 1;
    let mut counted_left = COUNTED_RANGES_MAX;
    for section in &mut sections {
        section.outbound.truncate(left);
        left -= section.outbound.len();
        section.counted.truncate(counted_left);
        counted_left -= section.counted.len();
    }
    sections
}

/// The destinations of a rule that no earlier rule of its section decides.
type RuleAreas = BTreeMap<Plane, Vec<Area>>;

/// The ranges of rules with the same senders.
pub(super) fn outbound(
    rules: &[&Rule],
    areas: Vec<RuleAreas>,
    verdict: impl Fn(&Rule) -> HostVerdict,
) -> Vec<HostRange> {
    let mut verdicts: BTreeMap<(Plane, HostVerdict), Vec<Area>> = BTreeMap::new();
    for (rule, areas) in rules.iter().zip(areas) {
        for (plane, left) in areas {
            verdicts.entry((plane, verdict(rule))).or_default().extend(left);
        }
    }
    let ranges = verdicts.into_iter().flat_map(|((plane, verdict), areas)| {
        let ranges = sweep::cut(areas).into_iter();
        ranges.map(move |area| HostRange { to: range_of(plane, &area), verdict })
    });
    ranges.take(HOST_RANGES_MAX + 1).collect()
}

/// The ranges with counters of rules with the same senders. Each rule that the kernel decides has
/// the next number.
fn counted(
    rules: &[&Rule],
    areas: &[RuleAreas],
    numbers: &mut impl Iterator<Item = u32>,
) -> Vec<CountedRange> {
    let decided = rules.iter().zip(areas).filter(|(rule, _)| is_decided_by_kernel(rule));
    let ranges = decided.zip(numbers).flat_map(|((_, areas), rule)| {
        areas.iter().flat_map(move |(plane, areas)| {
            let ranges = sweep::cut(areas.clone()).into_iter();
            ranges.map(move |area| CountedRange { to: range_of(*plane, &area), rule })
        })
    });
    ranges.take(COUNTED_RANGES_MAX).collect()
}

/// The destinations of each rule that no earlier rule decides.
pub(super) fn areas_of(rules: &[&Rule]) -> Vec<RuleAreas> {
    let mut decided: BTreeMap<Plane, Vec<Area>> = BTreeMap::new();
    let mut of_rule = |rule: &&Rule| {
        let mut areas = RuleAreas::new();
        if rule.selectors.protocol == Protocol::Icmp {
            return areas;
        }
        let udp = rule.selectors.protocol == Protocol::Udp;
        let ports = ports(rule);
        for span in spans(rule, &Learnt::default(), &[]) {
            let plane = Plane { udp, family: span.family };
            let decided = decided.entry(plane).or_default();
            for ports in ports {
                let area = Area { first: span.first, last: span.last, ports: ports.clone() };
                let left = left_of(area.clone(), decided);
                areas.entry(plane).or_default().extend(left);
                decided.push(area);
            }
        }
        areas
    };
    rules.iter().map(&mut of_rule).collect()
}

fn range_of(Plane { udp, family }: Plane, Area { first, last, ports }: &Area) -> CaptureRange {
    CaptureRange {
        udp,
        first: address(*first, family),
        last: address(*last, family),
        first_port: *ports.start(),
        last_port: *ports.end(),
    }
}

fn area_of(range: &CaptureRange) -> (Plane, Area) {
    let family = if range.first.is_ipv4() { Family::V4 } else { Family::V6 };
    let bits = |address| match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let ports = range.first_port..=range.last_port;
    let area = Area { first: bits(range.first), last: bits(range.last), ports };
    (Plane { udp: range.udp, family }, area)
}

/// Whether the kernel leaves the flows of a rule to the agent.
pub(in crate::policy) fn is_captured(rule: &Rule) -> bool {
    verdict(rule) == HostVerdict::Capture
}

/// Returns whether the kernel of a captured host decides about the flows of a rule, so that the
/// agent does not see them.
#[must_use]
pub fn is_decided_by_kernel(rule: &Rule) -> bool {
    is_of_host(rule) && !is_captured(rule)
}

/// Returns the verdict of the kernel on flows of the rule's senders to its destinations.
pub(super) fn verdict(rule: &Rule) -> HostVerdict {
    match rule.action {
        // The kernel does not know programs. The agent finds the rule, which is this rule or a
        // later one.
        _ if !rule.selectors.program.is_empty() => HostVerdict::Capture,
        // It does not know which of the units it is.
        _ if !rule.selectors.unit.is_empty() => HostVerdict::Capture,
        // The kernel does not log, audit, or close idle flows.
        _ if rule.log || rule.idle.is_some() || rule.audited.is_some() => HostVerdict::Capture,
        Action::Tls(_) => HostVerdict::Capture,
        Action::Permit => HostVerdict::Pass,
        // Only runs with a network of their own have tunnels; elsewhere nothing may leave in clear.
        Action::Deny(Deny::Refused) | Action::Ipsec(_) => HostVerdict::Refuse,
        Action::Deny(Deny::Prohibited) => HostVerdict::Prohibit,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use proptest::prelude::*;

    use super::*;
    use crate::flow::{Address, Direction, Flow};
    use crate::policy::selector::{UnknownOwner, unit_of};
    use crate::policy::{Index, parse};

    fn policy(rules: &str) -> Policy {
        let parsed = parse(&format!("version = 1\n[host]\nunmatched = \"permit\"\n{rules}"));
        parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics))
    }

    fn rule(name: usize, body: &str) -> String {
        format!("[[rule]]\nname = \"r{name}\"\ndirection = \"outbound\"\n{body}\n")
    }

    fn flow(protocol: Protocol, to: SocketAddr) -> Flow {
        Flow {
            direction: Direction::Outbound,
            protocol,
            listen: None,
            local: Address::from(SocketAddr::from(([192, 0, 2, 1], 40_000))),
            remote: to.into(),
            to_own_host: false,
            remote_names: Vec::new(),
            alias: None,
            is_shared: false,
            program: None,
            user: None,
            group: None,
            cgroup: None,
            run: Some(String::new()),
            at_unix_s: 0,
        }
    }

    /// Returns the verdict on a TCP flow, from the first section with its sender and destination.
    fn found(plan: &HostPlan, sender: &Flow, to: SocketAddr) -> Option<HostVerdict> {
        let holds = |one: &CaptureRange| {
            !one.udp
                && one.first.is_ipv4() == to.is_ipv4()
                && (one.first..=one.last).contains(&to.ip())
                && (one.first_port..=one.last_port).contains(&to.port())
        };
        // The kernel notes that no unit sends it, if a rule with a unit has the destination.
        let is_noted = plan.units.as_ref().is_some_and(|units| {
            let unit = sender.cgroup.as_deref().and_then(unit_of);
            let mut destinations = units.destinations.iter().filter(|one| holds(one));
            let is_destination = destinations.next().is_some();
            assert!(destinations.next().is_none(), "destinations overlap at {to}");
            is_destination && !units.names.iter().any(|name| Some(name.as_str()) == unit)
        });
        let is_sender =
            |senders: &Senders| has(senders, sender) && (senders.unit.is_empty() || !is_noted);
        plan.sections.iter().filter(|section| is_sender(&section.senders)).find_map(|section| {
            let mut all = section.outbound.iter().filter(|one| holds(&one.to));
            let first = all.next().map(|one| one.verdict);
            assert!(all.next().is_none(), "ranges overlap at {to}");
            first
        })
    }

    /// The result when the kernel compares user, group and control group by number.
    fn has(senders: &Senders, flow: &Flow) -> bool {
        let is_in = |list: &[String], own: Option<&String>| {
            list.is_empty() || own.is_some_and(|own| list.contains(own))
        };
        let cgroup = flow.cgroup.as_deref().unwrap_or_default();
        let ancestors = cgroup.match_indices('/').map(|(at, _)| &cgroup[..at]).chain([cgroup]);
        let is_below = |list: &[String]| {
            list.is_empty() || ancestors.clone().any(|one| list.iter().any(|other| one == other))
        };
        is_in(&senders.user, flow.user.as_ref())
            && is_in(&senders.group, flow.group.as_ref())
            && is_below(&senders.cgroup)
    }

    #[test]
    fn each_action_has_its_verdict_and_the_first_rule_wins() {
        let rules = [
            "remote = \"10.0.0.1\"\nremote-ports = 80\npermit = true",
            "remote = \"10.0.0.2\"\nremote-ports = 80\npermit = true\nlog = true",
            "remote = \"10.0.0.3\"\nremote-ports = 80\ndeny = true",
            "remote = \"10.0.0.4\"\nremote-ports = 80\ndeny = \"prohibited\"",
            "remote = \"10.0.0.0/24\"\nremote-ports = [80, 443]\ntls = { trust = \"system\" }",
            "remote = \"10.0.0.6\"\nrun = \"job\"\ndeny = true",
        ];
        let rules: String = rules.iter().enumerate().map(|(at, body)| rule(at, body)).collect();
        let policy = policy(&rules);
        let at = |unmatched, to: &str| {
            let to = to.parse().unwrap();
            found(&host_plan(&policy, unmatched, 0), &flow(Protocol::Tcp, to), to)
        };
        let [capture, pass, refuse, prohibit] =
            [HostVerdict::Capture, HostVerdict::Pass, HostVerdict::Refuse, HostVerdict::Prohibit]
                .map(Some);
        for (to, permitted, denied) in [
            ("10.0.0.1:80", None, pass),
            ("10.0.0.1:443", capture, capture),
            ("10.0.0.2:80", capture, capture),
            ("10.0.0.3:80", refuse, None),
            ("10.0.0.4:80", prohibit, prohibit),
            ("10.0.0.5:80", capture, capture),
            ("10.0.0.5:81", None, None),
            ("10.0.1.5:80", None, None),
            ("10.0.0.6:22", None, None),
        ] {
            assert_eq!(at(Unmatched::Permit, to), permitted, "{to}");
            assert_eq!(at(Unmatched::Deny, to), denied, "{to}");
        }
    }

    #[test]
    fn ports_of_programs_are_captured_where_a_rule_does_more_than_permit() {
        let inbound = |ports: &str, action: &str| {
            format!(
                "[[rule]]\nname = \"in-{ports}\"\ndirection = \"inbound\"\n\
                 local-ports = \"{ports}\"\n{action}\n"
            )
        };
        let rules = [
            inbound("80-90", "deny = true"),
            inbound("85-95", "permit = true\nlog = true"),
            inbound("200-201", "permit = true"),
        ];
        let plan = host_plan(&policy(&rules.concat()), Unmatched::Permit, 0);
        let ports: Vec<_> =
            plan.inbound.iter().map(|one| (one.first_port, one.last_port)).collect();
        assert_eq!(ports, [(80, 95), (80, 95)], "once for each address family");
        assert!(plan.sections.is_empty());
    }

    #[test]
    fn consecutive_rules_for_the_same_senders_are_one_section() {
        let bodies = [
            "remote-ports = 1\npermit = true",
            "remote-ports = 2\ndeny = true",
            "remote-ports = 2\nuser = [\"ann\", \"bob\"]\ngroup = \"staff\"\npermit = true",
            "remote-ports = 3\nslice = \"user-1000.slice\"\npermit = true",
            "remote-ports = 4\ncgroup = \"/user.slice/user-1000.slice\"\ndeny = true",
            "remote-ports = 5\npermit = true",
        ];
        let rules: String = bodies.iter().enumerate().map(|(at, body)| rule(at, body)).collect();
        let plan = host_plan(&policy(&rules), Unmatched::Permit, 0);
        let shape: Vec<_> = plan
            .sections
            .iter()
            .map(|section| {
                let Senders { user, group, cgroup, .. } = &section.senders;
                (user.len(), group.len(), cgroup.join(" "), section.senders.checks())
            })
            .collect();
        let cgroup = "user.slice/user-1000.slice";
        assert_eq!(
            shape,
            [
                (0, 0, String::new(), 1),
                (2, 1, String::new(), 2),
                (0, 0, cgroup.to_owned(), 1),
                (0, 0, String::new(), 1)
            ]
        );
        // The last rule has the same effect as `unmatched`.
        let ranges: Vec<_> =
            plan.sections.iter().map(|section| section.outbound.is_empty()).collect();
        assert_eq!(ranges, [false, false, false, true]);
    }

    fn any_rule() -> impl Strategy<Value = String> {
        let remote = (0_u8..8, 29_u8..=32).prop_map(|(last, length)| {
            format!("remote = \"10.0.0.{}/{length}\"", last & (0xff << (32 - length)))
        });
        let remote = prop_oneof![remote, Just(String::new())];
        let ports =
            (1_u16..8, 0_u16..4).prop_map(|(low, more)| format!("\"{low}-{}\"", low + more));
        let action = prop_oneof![
            Just("permit = true"),
            Just("permit = true\nlog = true"),
            Just("deny = true"),
            Just("deny = \"prohibited\""),
            Just("tls = { trust = \"system\" }"),
        ];
        let sender = prop_oneof![
            4 => Just(""),
            1 => Just("user = \"ann\""),
            1 => Just("user = [\"ann\", \"bob\"]\ngroup = \"staff\""),
            1 => Just("cgroup = \"a\""),
            1 => Just("cgroup = [\"a/b\", \"c\"]\nuser = \"bob\""),
            1 => Just("program = \"/bin/a\""),
            2 => Just("unit = \"u.service\""),
            1 => Just("unit = [\"u.service\", \"v.service\"]\nuser = \"bob\""),
        ];
        (remote, ports, action, sender).prop_map(|(remote, ports, action, sender)| {
            format!("{remote}\nremote-ports = {ports}\n{action}\n{sender}")
        })
    }

    fn senders() -> [Flow; 8] {
        let all = [
            ("bob", "users", "system.slice/u.service"),
            ("bob", "staff", "system.slice/system-v.slice/v.service/sub"),
            ("ann", "users", "user.slice/user@7.service/app.slice/u.service"),
            ("ann", "staff", "a"),
            ("ann", "users", "a/b/d"),
            ("bob", "staff", "ab"),
            ("bob", "users", "c"),
            ("root", "root", "a/b"),
        ];
        all.map(|(user, group, cgroup)| Flow {
            user: Some(user.to_owned()),
            group: Some(group.to_owned()),
            cgroup: Some(cgroup.to_owned()),
            ..flow(Protocol::Tcp, SocketAddr::from(([10, 0, 0, 1], 1)))
        })
    }

    /// The first rule that matches, if the kernel has to decide without knowing the program.
    fn first_of(policy: &Policy, flow: &Flow) -> Option<usize> {
        let matches = |rule: &Rule| rule.selectors.matches(flow, UnknownOwner::Matches).is_ok();
        policy.rules.iter().position(|rule| matches(rule))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn the_kernel_decides_as_the_rules_do(rules in prop::collection::vec(any_rule(), 1..8)) {
            // Flows of other programs need a rule, and the kernel alone compares groups.
            let names_programs =
                rules.iter().any(|body| body.contains("program") || body.contains("unit"));
            let rules: Vec<_> = rules.into_iter().map(|body| {
                let is_kept = !names_programs && !body.contains("tls") && !body.contains("log");
                if is_kept { body } else { body.replace("group = \"staff\"", "") }
            }).collect();
            let last = names_programs.then(|| rule(99, "permit = true\nlog = true"));
            let rules = rules.iter().enumerate().map(|(at, body)| rule(at, body));
            let policy = policy(&rules.chain(last).collect::<String>());
            let index = Index::new(&policy.rules);
            for unmatched in [Unmatched::Permit, Unmatched::Deny] {
                let plan = host_plan(&policy, unmatched, 0);
                for (last, port) in (0_u8..9).flat_map(|last| (1_u16..12).map(move |p| (last, p))) {
                    let to = SocketAddr::new(IpAddr::from([10, 0, 0, last]), port);
                    let rest = match unmatched {
                        Unmatched::Permit => HostVerdict::Pass,
                        Unmatched::Deny => HostVerdict::Refuse,
                    };
                    for sender in senders() {
                        let flow = Flow { remote: to.into(), ..sender };
                        let first = first_of(&policy, &flow);
                        let wanted = first.map_or(rest, |at| verdict(&policy.rules[at]));
                        let decided = found(&plan, &flow, to).unwrap_or(rest);
                        // The kernel may send flows of units to the agent that are for others.
                        let unit = flow.cgroup.as_deref().and_then(unit_of).unwrap_or_default();
                        let is_of_unit = plan.units.as_ref().is_some_and(|units| {
                            units.names.iter().any(|name| name == unit)
                        });
                        let is_for_agent = decided == HostVerdict::Capture && is_of_unit;
                        prop_assert!(decided == wanted || is_for_agent, "{:?}", flow);
                        // A flow that never reaches the agent gets the decision that the agent
                        // would make.
                        let known = Flow { program: Some("/bin/b".into()), ..flow };
                        let by_agent = index.lookup(&known).rule;
                        if decided != HostVerdict::Capture {
                            let wanted = by_agent.map_or(rest, |at| verdict(&policy.rules[at]));
                            prop_assert_eq!(decided, wanted, "{:?}", known);
                            continue;
                        }
                        // No rule for a group decides what the agent gets.
                        let seen = Flow { group: Some(String::new()), ..known };
                        prop_assert_eq!(index.lookup(&seen).rule, by_agent, "{:?}", seen);
                    }
                }
            }
        }
    }
}
