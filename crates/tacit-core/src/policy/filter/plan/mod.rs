//! Converts filter rules to elements of nftables maps and sets. In these maps and sets, the kernel
//! finds the rule for a packet with few lookups.
//!
//! The conversion has three steps:
//! 1. Split each rule into *areas*. An area has one IP version, and one range of values for each
//!    packet field.
//! 2. Put the areas into *layers*, in the order of the rules. The areas of one layer do not
//!    overlap. The first layer with a matching area contains the first matching rule.
//! 3. Divide each layer into *groups*. The areas of a group restrict the same fields. The kernel
//!    searches a group with one lookup. The lookup uses a hash table if all ranges of the group are
//!    single values.
//!
//! A rule with a time window has a *schedule*: an element with a timeout in an nftables set. A
//! `permit` rule applies while its schedule is in the set. The agent adds this schedule when the
//! window begins. A `deny` rule applies while its schedule is not in the set. The agent adds this
//! schedule when the window ends. The kernel removes a schedule when its timeout expires. So
//! `permit` rules end and `deny` rules begin even if the agent does not run.
//!
//! Limits: [`FILTER_ELEMENTS_MAX`] elements, [`FILTER_LOOKUPS_MAX`] lookups for a packet,
//! [`FILTER_SCHEDULES_MAX`] schedules, [`FILTER_LOGGED_MAX`] rules that log packets.

mod areas;
mod layers;
mod range_index;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use self::areas::FIELDS;
pub(in crate::policy) use self::areas::FlowArea;
use super::packet::{FilterPacket, PacketPath};
use super::{FilterRule, FilterVerdict, ICMP, ICMPV6, TCP, UDP};
use crate::policy::selector::Family;
use crate::policy::when::When;

/// The maximum number of elements of all groups: two for each rule that a policy can have.
pub const FILTER_ELEMENTS_MAX: usize = 131_072;

/// The maximum number of lookups that decide about one packet.
pub const FILTER_LOOKUPS_MAX: usize = 256;

/// The maximum number of filter rules whose packets are logged.
pub const FILTER_LOGGED_MAX: usize = 256;

/// The maximum number of different time windows of filter rules.
pub const FILTER_SCHEDULES_MAX: usize = 256;

/// A field of a packet, as elements compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterField {
    /// The address of the near end.
    Local,
    /// The address of the far end.
    Remote,
    /// The port of the near end.
    LocalPort,
    /// The port of the far end.
    RemotePort,
    /// The type of an ICMP message.
    IcmpType,
    /// The code of an ICMP message.
    IcmpCode,
    /// The transport protocol.
    Protocol,
    /// The name of the interface, with zeros at the end.
    Interface,
}

/// The packets that a group is for, by protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PacketClasses(pub u8);

impl PacketClasses {
    /// TCP.
    pub const TCP: Self = Self(1);
    /// UDP.
    pub const UDP: Self = Self(2);
    /// ICMP over IPv4, or ICMPv6 over IPv6.
    pub const ICMP: Self = Self(4);
    /// All other protocols.
    pub const OTHER: Self = Self(8);
    /// Fragments of all protocols, before the kernel reassembles them.
    pub const FRAGMENTS: Self = Self(16);
    /// All whole packets.
    pub(super) const WHOLE: Self = Self(15);

    /// Whether some packets are in both.
    #[must_use]
    pub fn meet(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The class of packets of a protocol.
    fn of(protocol: u8, family: Family) -> Self {
        match (protocol, family) {
            (TCP, _) => Self::TCP,
            (UDP, _) => Self::UDP,
            (ICMP, Family::V4) | (ICMPV6, Family::V6) => Self::ICMP,
            _ => Self::OTHER,
        }
    }
}

/// The ways of packets for which a group is, and which end of a packet is the local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PacketViews(pub u8);

impl PacketViews {
    /// To this host.
    pub const IN: Self = Self(1);
    /// From this host.
    pub const OUT: Self = Self(2);
    /// Forwarded; the destination is the local end.
    pub const ROUTED_IN: Self = Self(4);
    /// Forwarded; the source is the local end.
    pub const ROUTED_OUT: Self = Self(8);

    /// Whether both have one of these ways.
    #[must_use]
    pub fn meet(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The key of an element: its fields in their order, each in network order. In JSON it is
/// hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupKey(pub Vec<u8>);

impl From<GroupKey> for String {
    fn from(GroupKey(bytes): GroupKey) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }
}

impl TryFrom<String> for GroupKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|one| u8::try_from(one).ok());
        let pairs = text.as_bytes().chunks(2).map(|pair| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        });
        let bytes = pairs.collect::<Option<_>>();
        bytes.map(Self).ok_or("the key of an nftables set element is not hexadecimal")
    }
}

/// What happens to the packets of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterEffect {
    /// A rule for flows comes first: the packet rules for flows decide.
    Flow,
    /// A filter rule decides.
    Decided {
        /// Its verdict.
        verdict: FilterVerdict,
        /// Whether the packet is logged.
        logged: bool,
    },
}

/// An element of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FilterElement {
    /// The lowest value of each field.
    pub first: GroupKey,
    /// The highest value of each field; empty if each field has one value.
    #[serde(default)]
    pub last: GroupKey,
    /// What happens to the packets.
    pub outcome: FilterEffect,
    /// The position of the filter rule; `None`: it is a rule for flows.
    pub rule: Option<u32>,
}

/// The condition of a group on the schedule with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FilterGate {
    /// The schedule is present: a rule that permits, in its window.
    Present(u32),
    /// The schedule is absent: a rule that denies, in its window.
    Absent(u32),
}

/// Elements that the kernel finds with one lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FilterGroup {
    /// Whether the packets are those of IPv6.
    pub ipv6: bool,
    /// The protocols.
    pub classes: PacketClasses,
    /// The ways.
    pub views: PacketViews,
    /// Whether TCP segments that open a connection do not match.
    pub past_opening: bool,
    /// The condition on time.
    pub gate: Option<FilterGate>,
    /// The fields of the keys. Without fields, the group has one element for all packets.
    pub fields: Vec<FilterField>,
    /// Whether each field of each element has one value.
    pub exact: bool,
    /// The elements, which do not overlap.
    pub elements: Vec<FilterElement>,
}

/// The state of a time window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FilterSchedule {
    /// Whether it is present in the kernel's set.
    pub present: bool,
    /// When that ends, in seconds since 1970; `None`: not in the next year.
    pub until_unix_s: Option<i64>,
}

/// The filter rules of a host for the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FilterPlan {
    /// The groups in the order in which they are looked up.
    pub groups: Vec<FilterGroup>,
    /// The schedules; a gate has the position of one.
    pub schedules: Vec<FilterSchedule>,
    /// The rules whose packets are logged.
    #[serde(default)]
    pub logged: Vec<LoggedRule>,
    /// The interfaces that rules name, sorted.
    #[serde(default)]
    pub interfaces: Vec<String>,
}

/// A filter rule whose packets are logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LoggedRule {
    /// Its position, as in elements.
    pub rule: u32,
    /// Its name.
    pub name: String,
    /// Its verdict.
    pub verdict: FilterVerdict,
}

/// Which limit filter rules exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterLimit {
    /// [`FILTER_ELEMENTS_MAX`].
    Elements,
    /// [`FILTER_LOOKUPS_MAX`].
    Lookups(usize),
    /// [`FILTER_SCHEDULES_MAX`].
    Schedules(usize),
    /// [`FILTER_LOGGED_MAX`].
    Logged(usize),
}

impl fmt::Display for FilterLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elements => write!(
                f,
                "the filter rules need more than {FILTER_ELEMENTS_MAX} combinations of protocols, \
                 addresses and ports"
            ),
            Self::Lookups(count) => write!(
                f,
                "the filter rules overlap so often that the kernel would need {count} lookups for \
                 each packet; the limit is {FILTER_LOOKUPS_MAX}"
            ),
            Self::Schedules(count) => write!(
                f,
                "the filter rules have {count} different time windows; the limit is \
                 {FILTER_SCHEDULES_MAX}"
            ),
            Self::Logged(count) => {
                write!(f, "{count} filter rules have `log`; the limit is {FILTER_LOGGED_MAX}")
            }
        }
    }
}

/// The filter rules of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum PlanScope<'p> {
    /// Those for packets of a captured host.
    Host,
    /// Those for packets inside the tunnels with the peer of this name.
    Tunnel(&'p str),
}

impl PlanScope<'_> {
    /// Whether a rule belongs to the plan.
    pub(in crate::policy) fn has(self, filter: &FilterRule) -> bool {
        let tunnels = &filter.selectors.tunnels;
        match self {
            Self::Host => tunnels.is_empty(),
            Self::Tunnel(ike) => tunnels.iter().any(|one| one == ike),
        }
    }
}

impl FilterPlan {
    /// Computes the plan of the rules of a scope at a time, in seconds since 1970. `flows` are the
    /// rules for flows, `None` if they are not open.
    #[must_use]
    pub(in crate::policy) fn of(
        flows: &[Option<FlowArea<'_>>],
        filters: &[FilterRule],
        unix_s: i64,
        scope: PlanScope<'_>,
    ) -> Self {
        let schedules = areas::schedules(filters, scope);
        let areas = areas::all(flows, filters, &schedules, scope);
        let schedules = schedules.iter().map(|one| one.at(unix_s)).collect();
        let of_scope = || (0..).zip(filters).filter(|(_, filter)| scope.has(filter));
        let logged = of_scope().filter(|(_, filter)| filter.is_logged());
        let logged = logged.map(|(rule, filter)| LoggedRule {
            rule,
            name: filter.name.clone(),
            verdict: filter.verdict,
        });
        let interfaces = of_scope().flat_map(|(_, filter)| filter.selectors.interfaces.clone());
        let interfaces: BTreeSet<String> = interfaces.collect();
        Self {
            groups: layers::groups(areas),
            schedules,
            logged: logged.collect(),
            interfaces: interfaces.into_iter().collect(),
        }
    }

    /// The time windows of the rules of a scope, in the order of the schedules of their plan, and
    /// whether the rules permit.
    pub(super) fn windows(filters: &[FilterRule], scope: PlanScope<'_>) -> Vec<(When, bool)> {
        let schedules = areas::schedules(filters, scope).into_iter();
        schedules.map(|one| (one.when.clone(), one.permits)).collect()
    }

    /// Adds a number to the position of each filter rule, because other rules are counted before.
    #[must_use]
    pub(in crate::policy) fn counted_from(mut self, first: u32) -> Self {
        for element in self.groups.iter_mut().flat_map(|group| &mut group.elements) {
            element.rule = element.rule.map(|rule| first.saturating_add(rule));
        }
        for logged in &mut self.logged {
            logged.rule = first.saturating_add(logged.rule);
        }
        self
    }

    /// The schedules that are present at a time, in seconds since 1970, and for how many seconds;
    /// `None`: without end.
    pub fn present_at(&self, unix_s: i64) -> impl Iterator<Item = (u32, Option<u64>)> {
        let present = (0_u32..).zip(&self.schedules).filter(|(_, one)| one.present);
        present.filter_map(move |(number, one)| {
            let seconds = one.until_unix_s.map(|until| u64::try_from(until - unix_s).unwrap_or(0));
            (seconds != Some(0)).then_some((number, seconds))
        })
    }

    /// The limit that the plan exceeds.
    #[must_use]
    pub fn exceeded(&self) -> Option<FilterLimit> {
        let elements: usize = self.groups.iter().map(|group| group.elements.len()).sum();
        let lookups = self.lookups();
        let schedules = self.schedules.len();
        if elements > FILTER_ELEMENTS_MAX {
            return Some(FilterLimit::Elements);
        }
        if schedules > FILTER_SCHEDULES_MAX {
            return Some(FilterLimit::Schedules(schedules));
        }
        if lookups > FILTER_LOOKUPS_MAX {
            return Some(FilterLimit::Lookups(lookups));
        }
        let logged = self.logged.len();
        (logged > FILTER_LOGGED_MAX).then_some(FilterLimit::Logged(logged))
    }

    /// The largest number of lookups for one packet.
    #[must_use]
    pub fn lookups(&self) -> usize {
        let kinds = (0..5).flat_map(|class| (0..4).map(move |view| (1 << class, 1 << view)));
        let of_kind = |(class, view): (u8, u8), ipv6: bool| {
            let is_of_kind = |group: &&FilterGroup| {
                group.ipv6 == ipv6
                    && group.classes.meet(PacketClasses(class))
                    && group.views.meet(PacketViews(view))
            };
            self.groups.iter().filter(is_of_kind).count()
        };
        kinds.flat_map(|kind| [of_kind(kind, false), of_kind(kind, true)]).max().unwrap_or(0)
    }

    /// The element that decides about a packet, if any. `is_present` is the state of a schedule.
    #[must_use]
    pub fn decide(
        &self,
        packet: &FilterPacket,
        is_present: impl Fn(u32) -> bool,
    ) -> Option<&FilterElement> {
        let views = packet.views();
        let is_open = |group: &FilterGroup| match group.gate {
            None => true,
            Some(FilterGate::Present(number)) => is_present(number),
            Some(FilterGate::Absent(number)) => !is_present(number),
        };
        let groups = self.groups.iter().filter(|group| is_open(group));
        let mut found =
            groups.flat_map(|group| views.iter().filter_map(move |view| group.find(packet, view)));
        found.next()
    }
}

impl FilterGroup {
    fn family(&self) -> Family {
        if self.ipv6 { Family::V6 } else { Family::V4 }
    }

    fn find(&self, packet: &FilterPacket, view: &PacketView) -> Option<&FilterElement> {
        let key = self.key(packet, view)?;
        self.elements.iter().find(|element| self.contains(element, &key))
    }

    /// The key of a packet; `None` if no element has the packet.
    pub(super) fn key(&self, packet: &FilterPacket, view: &PacketView) -> Option<Vec<u8>> {
        let is_concerned = self.ipv6 == packet.source.is_ipv6()
            && self.classes.meet(view.class)
            && self.views.meet(view.views)
            && !(self.past_opening && packet.header.opens());
        if !is_concerned {
            return None;
        }
        let mut key = Vec::new();
        for field in &self.fields {
            key.extend(view.field(*field, self.family())?);
        }
        Some(key)
    }

    pub(super) fn contains(&self, element: &FilterElement, key: &[u8]) -> bool {
        if self.exact {
            return element.first.0 == key;
        }
        let mut at = 0;
        self.fields.iter().all(|field| {
            let part = at..at + field.bytes(self.family());
            at = part.end;
            let value = key.get(part.clone());
            element.first.0.get(part.clone()) <= value && value <= element.last.0.get(part)
        })
    }
}

impl FilterField {
    /// The length of its values.
    fn bytes(self, family: Family) -> usize {
        match (self, family) {
            (Self::Local | Self::Remote, Family::V4) => 4,
            (Self::Local | Self::Remote, Family::V6) => 16,
            (Self::LocalPort | Self::RemotePort, _) => 2,
            (Self::IcmpType | Self::IcmpCode | Self::Protocol, _) => 1,
            (Self::Interface, _) => 16,
        }
    }
}

/// A packet as groups see it.
pub(super) struct PacketView {
    class: PacketClasses,
    views: PacketViews,
    fields: [Option<u128>; FIELDS],
}

impl FilterPacket {
    /// The views of the packet: one that is forwarded has two.
    pub(super) fn views(&self) -> Vec<PacketView> {
        let view = |views: PacketViews, interface: &str| PacketView::of(self, views, interface);
        match &self.path {
            PacketPath::In(interface) => vec![view(PacketViews::IN, interface)],
            PacketPath::Out(interface) => vec![view(PacketViews::OUT, interface)],
            PacketPath::FromTunnel(_) => vec![view(PacketViews::IN, "")],
            PacketPath::ToTunnel(_) => vec![view(PacketViews::OUT, "")],
            PacketPath::Routed { received, .. } if self.is_fragment => {
                vec![view(PacketViews::IN, received)]
            }
            PacketPath::Routed { received, sent } => {
                vec![view(PacketViews::ROUTED_IN, received), view(PacketViews::ROUTED_OUT, sent)]
            }
        }
    }
}

impl PacketView {
    fn of(packet: &FilterPacket, views: PacketViews, interface: &str) -> Self {
        let is_inbound = views.meet(PacketViews(PacketViews::IN.0 | PacketViews::ROUTED_IN.0));
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let ends = |source, destination| {
            if is_inbound { (destination, source) } else { (source, destination) }
        };
        let (local, remote) = ends(bits(packet.source), bits(packet.destination));
        let ports =
            packet.ports().map(|[source, destination]| ends(source.into(), destination.into()));
        let icmp = packet.icmp();
        let family = if packet.source.is_ipv4() { Family::V4 } else { Family::V6 };
        Self {
            class: if packet.is_fragment {
                PacketClasses::FRAGMENTS
            } else {
                PacketClasses::of(packet.protocol, family)
            },
            views,
            fields: [
                Some(local),
                Some(remote),
                ports.map(|ports| ports.0),
                ports.map(|ports| ports.1),
                icmp.map(|icmp| icmp.0.into()),
                icmp.map(|icmp| icmp.1.into()),
                Some(packet.protocol.into()),
                Some(areas::interface_bits(interface)),
            ],
        }
    }

    fn field(&self, field: FilterField, family: Family) -> Option<Vec<u8>> {
        let value = self.fields[field as usize]?;
        Some(value_bytes(value, field.bytes(family)))
    }
}

/// The last bytes of a number, in network order.
fn value_bytes(value: u128, len: usize) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    bytes[bytes.len().saturating_sub(len)..].to_vec()
}
