//! Computes the destinations that the kernel captures (sends to the agent) in the network namespace
//! of `tacit run`.
//!
//! A destination is captured if a flow to it can match a rule other than `deny`. A destination is
//! not captured if an earlier rule denies all its flows, or sends them into an IPsec tunnel. If
//! traffic is neither captured nor sent into a tunnel, the kernel rejects it with an ICMP error.
//!
//! The ranges in an nftables set must not overlap, so [`captured`] splits and merges ranges
//! (`sweep`). When a rule or the addresses of a name change, the caller computes the whole result
//! again.
//!
//! If a rule contains a DNS name, the caller passes the addresses that DNS has returned for the
//! name (`learnt`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::sweep::Area;
use super::content::Policy;
use super::rule::{Rule, RuleForm};
use super::selector::{AddressSelector, Family, Near, Selectors, Span, family_and_bits};
use crate::flow::{Direction, Protocol};

mod extend;
mod handable;
mod host;
mod joined;
pub(super) mod named;
mod sweep;

pub use extend::{Extension, extend};
pub use handable::{HANDABLE_RANGES_MAX, handable};
pub use host::{
    COUNTED_RANGES_MAX, CountedRange, HOST_RANGES_MAX, HOST_SECTIONS_MAX, HOST_UNITS_MAX, HostPlan,
    HostRange, HostSection, HostUnits, HostVerdict, SENDER_CHECKS_MAX, Senders, filter_plan,
    host_classifier, host_plan, is_decided_by_kernel, tunnel_classifier, tunnel_filter_plan,
};
pub(super) use host::{flow_area, is_captured, sections as host_sections};
pub use joined::{joined_plan, unmatched_of_joined};
pub use named::{
    HostName, NAMED_PORTS_MAX, NameRules, NamedAddress, NamedPorts, PORT_PARTS_MAX, RuleSet,
};
pub use sweep::CAPTURE_RANGES_MAX;

/// All addresses from the first to the last with all ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CaptureRange {
    /// The transport.
    pub udp: bool,
    /// The lowest address.
    pub first: IpAddr,
    /// The highest address, of the same family.
    pub last: IpAddr,
    /// The lowest port.
    pub first_port: u16,
    /// The highest port.
    pub last_port: u16,
}

impl CaptureRange {
    /// Whether it contains an address and port. IPv4 addresses inside IPv6 are compared as IPv4.
    #[must_use]
    pub fn contains(&self, remote: SocketAddr) -> bool {
        let (family, bits) = family_and_bits(remote.ip());
        let (own, first) = family_and_bits(self.first);
        family == own
            && (first..=family_and_bits(self.last).1).contains(&bits)
            && (self.first_port..=self.last_port).contains(&remote.port())
    }
}

/// A run in a network namespace that tacit has joined, with what rules select about it.
#[derive(Clone, Copy, Debug)]
pub struct JoinedRun<'a> {
    /// Its name.
    pub name: &'a str,
    /// The user of its launcher.
    pub user: &'a str,
}

impl JoinedRun<'_> {
    /// Whether a rule may be about flows that its programs open.
    pub(super) fn has(&self, rule: &Rule) -> bool {
        let Selectors { run, user, .. } = &rule.selectors;
        let is_in =
            |list: &[String], own: &str| list.is_empty() || list.iter().any(|one| one == own);
        rule.form == RuleForm::Outbound && is_in(run, self.name) && is_in(user, self.user)
    }
}

/// A learned name with its address.
#[derive(Clone, Copy, Debug)]
pub struct LearntName<'a> {
    /// The name.
    pub name: &'a str,
    /// The true address, which rules match.
    pub address: IpAddr,
    /// The alias address, which programs use and which is captured.
    pub alias: Option<IpAddr>,
}

impl<'a> From<(IpAddr, &'a str)> for LearntName<'a> {
    fn from((address, name): (IpAddr, &'a str)) -> Self {
        Self { name, address, alias: None }
    }
}

/// Computes the ranges of a policy at a time, in seconds since 1970; they are disjoint and in
/// order. `learnt` are the learned names with their addresses. `own` are the addresses of this
/// host: they are captured only if a rule names them, as an address or by one of their names. An
/// alias address is captured with the ports of all rules that can match its name or its true
/// address.
#[must_use]
pub fn captured<'a>(
    policy: &Policy,
    learnt: impl IntoIterator<Item: Into<LearntName<'a>>>,
    own: &[IpAddr],
    unix_s: i64,
) -> Vec<CaptureRange> {
    let rules = policy.rules.iter().filter(|rule| is_open(rule, unix_s));
    let learnt = Learnt::new(learnt.into_iter().map(Into::into));
    ranges(rules, &learnt, &own.iter().copied().map(single).collect::<Vec<_>>())
}

/// Whether the rules alone need more ranges than [`CAPTURE_RANGES_MAX`], at any time.
pub(super) fn takes_too_many<'r>(rules: impl Iterator<Item = &'r Arc<Rule>>) -> bool {
    // Outside of their time windows, rules that deny do not apply.
    let rules = rules.filter(|rule| can_pass(rule) || rule.selectors.when.is_none());
    ranges(rules, &Learnt::default(), &[]).len() >= CAPTURE_RANGES_MAX
}

/// Whether a rule that does not deny can match a flow to a host with this name at a time, in
/// seconds since 1970.
#[must_use]
pub fn can_match_name(policy: &Policy, name: &str, unix_s: i64) -> bool {
    let names = [name.to_owned()];
    let mut rules = policy.rules.iter().filter(|rule| can_pass(rule) && is_open(rule, unix_s));
    rules.any(|rule| {
        let remote = &rule.selectors.remote;
        remote.is_empty()
            || remote.iter().any(|selector| match selector {
                AddressSelector::Name { .. } => selector.matches(None, &names),
                // Any name may have an address in these ranges. But a name is not resolved only
                // because it might have an address of this host or this link.
                AddressSelector::Prefix { .. } | AddressSelector::Range { .. } => {
                    selector.near().is_none()
                }
                AddressSelector::Near(_) => false,
            })
    })
}

/// Whether some rule by address, other than a deny, can match a flow to an address at a time, in
/// seconds since 1970.
#[must_use]
pub fn can_match_address(policy: &Policy, address: IpAddr, unix_s: i64) -> bool {
    let mut rules = policy.rules.iter().filter(|rule| can_pass(rule) && is_open(rule, unix_s));
    rules.any(|rule| {
        let remote = &rule.selectors.remote;
        remote.is_empty() || remote.iter().any(|selector| selector.matches(Some(address), &[]))
    })
}

/// Whether programs may resolve a name at a time, in seconds since 1970. A rule that does not deny
/// must match the name or every destination, or match by address and list the name in `names`.
#[must_use]
pub fn may_ask(policy: &Policy, name: &str, unix_s: i64) -> bool {
    let names = [name.to_owned()];
    let mut rules = policy.rules.iter().filter(|rule| can_pass(rule) && is_open(rule, unix_s));
    rules.any(|rule| {
        let remote = &rule.selectors.remote;
        let is_listed = rule.names.iter().any(|pattern| pattern.matches(name));
        let is_about_all = remote.is_empty() && rule.names.is_empty();
        let is_by_name = |selector: &AddressSelector| {
            matches!(selector, AddressSelector::Name { .. }) && selector.matches(None, &names)
        };
        is_listed || is_about_all || remote.iter().any(is_by_name)
    })
}

/// The first rule that denies a host of that name at a time, in seconds since 1970.
#[must_use]
pub fn denial_of_name<'a>(policy: &'a Policy, name: &str, unix_s: i64) -> Option<&'a Rule> {
    let names = [name.to_owned()];
    let denies = |rule: &&Arc<Rule>| {
        rule.action.is_deny()
            && rule.selectors.direction == Direction::Outbound
            && rule.selectors.remote.iter().any(|selector| selector.matches(None, &names))
            && is_open(rule, unix_s)
    };
    policy.rules.iter().find(denies).map(|rule| &**rule)
}

/// Whether a rule that matches by address may decide about a flow to this address differently from
/// a rule that matches by name, at a time in seconds since 1970. Ports and owners are not compared.
#[must_use]
pub fn is_disputed(policy: &Policy, name: &str, address: IpAddr, unix_s: i64) -> bool {
    let names = [name.to_owned()];
    let rules = || {
        let open = policy.rules.iter().filter(|rule| is_open(rule, unix_s));
        open.filter(|rule| rule.selectors.direction == Direction::Outbound)
    };
    let matches = |rule: &Rule, address: Option<IpAddr>, names: &[String]| {
        rule.selectors.remote.iter().any(|selector| selector.matches(address, names))
    };
    // A rule for every destination also decides about addresses. If it denies all of them, it
    // permits nothing.
    let is_about_all = |rule: &Rule| rule.selectors.remote.is_empty() && !rule.action.is_deny();
    let by_address: Vec<_> =
        rules().filter(|rule| matches(rule, Some(address), &[]) || is_about_all(rule)).collect();
    rules().filter(|rule| matches(rule, None, &names)).any(|by_name| {
        by_address.iter().any(|rule| {
            rule.selectors.protocol == by_name.selectors.protocol && rule.action != by_name.action
        })
    })
}

fn can_pass(rule: &Rule) -> bool {
    rule.selectors.direction == Direction::Outbound && !rule.action.is_deny()
}

/// Whether the agent gets no flow to the addresses and ports of a rule: the rule denies all of
/// them, or routes lead all of them into a tunnel.
fn is_never_captured(rule: &Rule) -> bool {
    let selectors = &rule.selectors;
    (rule.action.is_deny() || rule.ipsec().is_some())
        && selectors.direction == Direction::Outbound
        && selectors.local.is_empty()
        && selectors.local_ports.is_empty()
        && selectors.program.is_empty()
        && selectors.user.is_empty()
        && selectors.group.is_empty()
        && selectors.cgroup.is_empty()
        && selectors.unit.is_empty()
        && selectors.run.is_empty()
}

/// Returns the parts of an area outside of the holes.
fn left_of(area: Area, holes: &[Area]) -> Vec<Area> {
    let mut left = Vec::new();
    add_left_of(area, holes, &mut left);
    left
}

/// Adds the parts of an area outside of the holes.
fn add_left_of(area: Area, holes: &[Area], parts: &mut Vec<Area>) {
    // Most holes are elsewhere. To compare with them costs little; each copy of a part is more.
    let near: Vec<_> = holes.iter().filter(|hole| area.overlaps(hole)).collect();
    if near.is_empty() {
        return parts.push(area);
    }
    let mut left = vec![area];
    for hole in near {
        left = left.into_iter().flat_map(|area| area.without(hole)).collect();
    }
    parts.append(&mut left);
}

/// Whether a rule is about flows that programs of the host open; one that names runs is not.
pub(super) fn is_of_host(rule: &Rule) -> bool {
    rule.form == RuleForm::Outbound && rule.selectors.run.is_empty()
}

fn is_open(rule: &Rule, unix_s: i64) -> bool {
    rule.selectors.when.as_ref().is_none_or(|when| when.is_open(unix_s))
}

/// Areas of one family and protocol. They may overlap; areas of different planes never do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Plane {
    udp: bool,
    family: Family,
}

fn ranges<'r>(
    rules: impl Iterator<Item = &'r Arc<Rule>>,
    learnt: &Learnt<'_>,
    own: &[Span],
) -> Vec<CaptureRange> {
    let mut planes: BTreeMap<Plane, Vec<Area>> = BTreeMap::new();
    let mut not_captured: BTreeMap<Plane, Vec<Area>> = BTreeMap::new();
    let nothing_learnt = Learnt::default();
    let mut all_spans = Vec::new();
    for rule in rules {
        let udp = match rule.selectors.protocol {
            Protocol::Tcp => false,
            Protocol::Udp => true,
            // Only tunnels transfer it.
            Protocol::Icmp => continue,
        };
        let ports = ports(rule);
        let areas = |span: Span| {
            let Span { first, last, .. } = span;
            ports.iter().map(move |ports| Area { first, last, ports: ports.clone() })
        };
        let is_captured = can_pass(rule) && rule.ipsec().is_none();
        if !is_captured && !is_never_captured(rule) {
            continue;
        }
        // The address of a name may have other names, and may belong to another rule.
        let learnt = if is_captured { learnt } else { &nothing_learnt };
        add_spans(rule, learnt, own, &mut all_spans);
        for span in all_spans.drain(..) {
            let plane = Plane { udp, family: span.family };
            if is_captured {
                let holes = not_captured.get(&plane).map_or(&[][..], Vec::as_slice);
                let captured = planes.entry(plane).or_default();
                areas(span).for_each(|area| add_left_of(area, holes, captured));
            } else {
                not_captured.entry(plane).or_default().extend(areas(span));
            }
        }
    }
    let disjoint = planes.into_iter().flat_map(|(Plane { udp, family }, areas)| {
        sweep::cut(areas).into_iter().map(move |Area { first, last, ports }| CaptureRange {
            udp,
            first: address(first, family),
            last: address(last, family),
            first_port: *ports.start(),
            last_port: *ports.end(),
        })
    });
    disjoint.take(CAPTURE_RANGES_MAX).collect()
}

fn ports(rule: &Rule) -> &[RangeInclusive<u16>] {
    match rule.selectors.remote_ports.as_slice() {
        [] => &ALL_PORTS,
        ranges => ranges,
    }
}

const ALL_PORTS: [RangeInclusive<u16>; 1] = [1..=u16::MAX];

/// The addresses that a rule selects, without those that it must name explicitly and does not.
/// `own` are the addresses of this host.
pub(super) fn addresses(rule: &Rule, own: &[IpAddr]) -> Vec<Span> {
    spans(rule, &Learnt::default(), &own.iter().copied().map(single).collect::<Vec<_>>())
}

fn spans(rule: &Rule, learnt: &Learnt<'_>, own: &[Span]) -> Vec<Span> {
    let mut all = Vec::new();
    add_spans(rule, learnt, own, &mut all);
    all
}

/// Adds the addresses that a rule selects, as [`addresses`].
fn add_spans(rule: &Rule, learnt: &Learnt<'_>, own: &[Span], all: &mut Vec<Span>) {
    let beside_own = |span| without_all(span, own.iter().copied());
    if rule.selectors.remote.is_empty() {
        return all.extend(public().into_iter().flat_map(beside_own));
    }
    for selector in &rule.selectors.remote {
        match selector {
            AddressSelector::Name { host, wildcard: true } => all.extend(learnt.below(host)),
            AddressSelector::Name { host, wildcard: false } => all.extend(learnt.exact(host)),
            _ if selector.names_nearby() => all.extend(selector.spans()),
            _ => {
                for span in selector.spans() {
                    if is_far(span) && !own.iter().any(|one| meet(span, *one)) {
                        all.push(span);
                    } else {
                        all.extend(without_near(span).into_iter().flat_map(beside_own));
                    }
                    all.extend(learnt.aliases_within(span));
                }
            }
        }
    }
}

/// The learned addresses, by name and, for rules with wildcards, by parent domain.
#[derive(Default)]
struct Learnt<'a> {
    exact: HashMap<Cow<'a, str>, Vec<Span>>,
    below: HashMap<Cow<'a, str>, Vec<Span>>,
    /// The alias addresses, by their true address.
    aliases: BTreeMap<(Family, u128), Vec<Span>>,
}

impl<'a> Learnt<'a> {
    /// A name cannot lead to addresses that a rule must name explicitly.
    fn new(learnt: impl Iterator<Item = LearntName<'a>>) -> Self {
        let mut all = Self::default();
        for LearntName { name, address, alias } in learnt {
            if Near::of(address).is_some() {
                continue;
            }
            let span = single(alias.unwrap_or(address));
            if alias.is_some() {
                all.aliases.entry(family_and_bits(address)).or_default().push(span);
            }
            for (at, _) in name.match_indices('.').filter(|(at, _)| *at > 0) {
                all.below.entry(plain(&name[at + 1..])).or_default().push(span);
            }
            all.exact.entry(plain(name)).or_default().push(span);
        }
        all
    }

    /// The addresses of the name itself.
    fn exact(&self, host: &str) -> impl Iterator<Item = Span> {
        self.exact.get(host).into_iter().flatten().copied()
    }

    /// Returns the alias addresses of the addresses within a span.
    fn aliases_within(&self, span: Span) -> impl Iterator<Item = Span> {
        let Span { family, first, last } = span;
        self.aliases.range((family, first)..=(family, last)).flat_map(|(_, spans)| spans).copied()
    }

    /// Returns the addresses of all names below this name.
    fn below(&self, host: &str) -> impl Iterator<Item = Span> {
        self.below.get(host).into_iter().flatten().copied()
    }
}

/// Formats a name as rules contain it.
fn plain(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// Returns all addresses that a rule without addresses matches: not loopback, link-local or
/// multicast addresses.
fn public() -> Vec<Span> {
    let v4 = |first: [u8; 4], last: [u8; 4]| {
        let [first, last] = [first, last].map(|ip| u32::from_be_bytes(ip).into());
        Span { family: Family::V4, first, last }
    };
    vec![
        v4([1, 0, 0, 0], [126, 255, 255, 255]),
        v4([128, 0, 0, 0], [169, 253, 255, 255]),
        v4([169, 255, 0, 0], [223, 255, 255, 255]),
        // 0::/16 contains the unspecified address, the loopback address and the mapped addresses.
        Span { family: Family::V6, first: 1 << 112, last: (0xfe80 << 112) - 1 },
    ]
}

/// Whether a span has no addresses that a rule must name explicitly.
fn is_far(span: Span) -> bool {
    !Near::ALL.into_iter().flat_map(Near::spans).any(|near| meet(span, near))
}

/// Whether two spans have an address in common.
fn meet(a: Span, b: Span) -> bool {
    a.family == b.family && a.first <= b.last && b.first <= a.last
}

/// Removes addresses that a rule must name explicitly.
fn without_near(span: Span) -> Vec<Span> {
    without_all(span, Near::ALL.into_iter().flat_map(Near::spans))
}

fn without_all(span: Span, holes: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut left = vec![span];
    for hole in holes {
        left = left.into_iter().flat_map(|span| without(span, hole)).flatten().collect();
    }
    left
}

fn single(ip: IpAddr) -> Span {
    let (family, bits) = family_and_bits(ip);
    Span { family, first: bits, last: bits }
}

/// The parts of the span before and after the hole.
fn without(span: Span, hole: Span) -> [Option<Span>; 2] {
    if !meet(span, hole) {
        return [Some(span), None];
    }
    let before = (span.first < hole.first).then(|| Span { last: hole.first - 1, ..span });
    let after = (hole.last < span.last).then(|| Span { first: hole.last + 1, ..span });
    [before, after]
}

pub(super) fn address(bits: u128, family: Family) -> IpAddr {
    match family {
        // Spans of this family were created from IPv4 addresses, so the number fits.
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

#[cfg(test)]
mod tests;
