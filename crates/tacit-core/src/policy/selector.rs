//! Defines the conditions of a rule (its selectors), and compares them with a flow.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::when::When;
use crate::flow::{Direction, Flow, Protocol};

/// The conditions of a rule; all must hold. An empty list is no condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors {
    /// The direction of the connection, as seen from the program.
    pub direction: Direction,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address of the near end.
    pub local: Vec<AddressSelector>,
    /// The port of the near end.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The address of the far end. If a program connects to a [`Near`] address, only a selector
    /// that names this address matches. Wide selectors, names, and a missing selector do not match.
    pub remote: Vec<AddressSelector>,
    /// The port of the far end.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// The times at which the rule applies; `None`: always.
    pub when: Option<When>,
    /// The executables. This is a label and not a security boundary. If the owner is unknown, the
    /// condition holds only in a rule that denies.
    pub program: Vec<PathBuf>,
    /// The user names or numbers. The same holds if the owner is unknown.
    pub user: Vec<String>,
    /// The group names or numbers. The same holds if the owner is unknown.
    pub group: Vec<String>,
    /// The control groups, with all groups below them, written as in [`Flow::cgroup`]. The same
    /// holds if the owner is unknown.
    pub cgroup: Vec<String>,
    /// The names of units of the host's systemd, with all control groups below theirs. The same
    /// holds if the owner is unknown.
    pub unit: Vec<String>,
    /// The names of runs, which distinguish programs with the same executable. The same holds if
    /// the owner is unknown.
    pub run: Vec<String>,
}

impl Selectors {
    /// Whether a flow to this address with these names matches because the address, a network with
    /// it, or a name is in `remote`. A rule for all addresses names none.
    #[must_use]
    pub fn names_remote(&self, ip: IpAddr, names: &[String]) -> bool {
        let is_all =
            |one: &&AddressSelector| matches!(one, AddressSelector::Prefix { length: 0, .. });
        self.remote.iter().filter(|one| !is_all(one)).any(|one| one.matches(Some(ip), names))
    }

    /// Compares the conditions one by one with the flow.
    ///
    /// `unknown_owner` decides for a flow whose owner is unknown. A rule that names owners must
    /// match such a flow if the rule denies, and must not match it otherwise.
    ///
    /// # Errors
    /// The first condition, in the order of [`Mismatch`], that does not hold.
    pub fn matches(&self, flow: &Flow, unknown_owner: UnknownOwner) -> Result<(), Mismatch> {
        let local = &flow.local;
        let remote = &flow.remote;
        let unknown_matches = unknown_owner == UnknownOwner::Matches;
        let owns = |program: &PathBuf| {
            flow.program.as_ref().map_or(unknown_matches, |owner| owner == program)
        };
        let is_user =
            |user: &String| flow.user.as_ref().map_or(unknown_matches, |owner| owner == user);
        let is_group =
            |group: &String| flow.group.as_ref().map_or(unknown_matches, |owner| owner == group);
        let is_cgroup = |cgroup: &String| {
            flow.cgroup.as_ref().map_or(unknown_matches, |owner| is_within(owner, cgroup))
        };
        let is_unit = |unit: &String| {
            flow.cgroup.as_ref().map_or(unknown_matches, |owner| unit_of(owner) == Some(unit))
        };
        let is_run = |run: &String| flow.run.as_ref().map_or(unknown_matches, |owner| owner == run);
        let conditions = [
            (self.direction == flow.direction, Mismatch::Direction),
            (self.protocol == flow.protocol, Mismatch::Protocol),
            (any(&self.local, |s| s.matches(local.ip(), &[])), Mismatch::Local),
            (any(&self.local_ports, |p| holds(p, local.port())), Mismatch::LocalPorts),
            (any(&self.remote, |s| s.matches(remote.ip(), &flow.remote_names)), Mismatch::Remote),
            (self.may_reach(flow), Mismatch::RemoteNotNamed),
            (any(&self.remote_ports, |p| holds(p, remote.port())), Mismatch::RemotePorts),
            (self.when.as_ref().is_none_or(|when| when.is_open(flow.at_unix_s)), Mismatch::When),
            (any(&self.program, owns), Mismatch::Program),
            (any(&self.user, is_user), Mismatch::User),
            (any(&self.group, is_group), Mismatch::Group),
            (any(&self.cgroup, is_cgroup), Mismatch::Cgroup),
            (any(&self.unit, is_unit), Mismatch::Unit),
            (any(&self.run, is_run), Mismatch::Run),
        ];
        let failed = conditions.into_iter().find(|(holds, _)| !holds);
        failed.map_or(Ok(()), |(_, mismatch)| Err(mismatch))
    }

    /// Whether the rule has a condition on the owner that is unknown for the flow.
    pub(super) fn lacks_owner(&self, flow: &Flow) -> bool {
        (!self.program.is_empty() && flow.program.is_none())
            || (!self.user.is_empty() && flow.user.is_none())
            || (!self.group.is_empty() && flow.group.is_none())
            || (!self.cgroup.is_empty() && flow.cgroup.is_none())
            || (!self.unit.is_empty() && flow.cgroup.is_none())
            || (!self.run.is_empty() && flow.run.is_none())
    }

    /// Whether the rule names the address, if the address must be named. A name that resolves to
    /// this host, or a wide network, must not lead a program to such an address.
    fn may_reach(&self, flow: &Flow) -> bool {
        let remote = flow.remote.ip();
        let is_near = remote.is_some_and(|ip| Near::of(ip).is_some());
        self.direction != Direction::Outbound
            || (!is_near && !flow.to_own_host)
            || self.remote.iter().any(|selector| match selector {
                // The names of such an address are only those of the host's own file.
                AddressSelector::Name { .. } => {
                    flow.to_own_host && !is_near && selector.matches(None, &flow.remote_names)
                }
                _ => selector.names_nearby() && selector.matches(remote, &[]),
            })
    }
}

/// Whether a control group is another one, or below it.
pub(super) fn is_within(cgroup: &str, ancestor: &str) -> bool {
    let below = cgroup.strip_prefix(ancestor);
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The unit of the host's systemd whose control group this is, or is above this one: the first part
/// of the path that is no slice. Units of users are below a unit of the host.
#[must_use]
pub fn unit_of(cgroup: &str) -> Option<&str> {
    let unit = cgroup.split('/').find(|part| !part.is_empty() && !part.ends_with(SLICE));
    unit.map(unescaped)
}

/// The name of the unit whose control group has this name. systemd writes `_` before names that the
/// kernel could confuse with its own files, such as `io.service`, and before names that begin with
/// `_`.
#[must_use]
pub fn unescaped(group: &str) -> &str {
    group.strip_prefix('_').unwrap_or(group)
}

/// The name of the control group of the unit with this name: the reverse of [`unescaped`].
pub(super) fn escaped(unit: &str) -> String {
    let is_file = |controller: &&str| {
        let rest = unit.strip_prefix(*controller);
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    let is_unclear = unit.starts_with(['_', '.']) || KERNEL_PREFIXES.iter().any(is_file);
    if is_unclear { format!("_{unit}") } else { unit.to_owned() }
}

/// What stands before the first dot in names of the kernel's files in control groups. These are the
/// controllers that systemd knows; some of them are its own.
const KERNEL_PREFIXES: [&str; 15] = [
    "bpf-bind-network-interface",
    "bpf-devices",
    "bpf-firewall",
    "bpf-foreign",
    "bpf-restrict-network-interfaces",
    "bpf-socket-bind",
    "blkio",
    "cgroup",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "io",
    "memory",
    "pids",
];

/// How the names of slices end.
pub const SLICE: &str = ".slice";

/// Whether the condition on a program or user holds for a flow of unknown owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownOwner {
    /// The condition holds.
    Matches,
    /// The condition does not hold.
    Differs,
}

fn any<T>(list: &[T], matches: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(matches)
}

fn holds(range: &RangeInclusive<u16>, port: Option<u16>) -> bool {
    port.is_some_and(|port| range.contains(&port))
}

/// The selector that does not match, in the order of comparison; its text is the word in the
/// policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Mismatch {
    Listen,
    Direction,
    Protocol,
    Local,
    LocalPorts,
    Remote,
    RemoteNotNamed,
    RemotePorts,
    When,
    Program,
    User,
    Group,
    Cgroup,
    /// The unit.
    Unit,
    Run,
}

/// A pattern of names that programs may resolve because of a rule that matches by address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// Every name.
    Any,
    /// One name, or with `*.` all names below it.
    Host {
        /// The name in lower case, without a final dot and without `*.`.
        host: String,
        /// Whether it was written with `*.`.
        wildcard: bool,
    },
}

impl NamePattern {
    /// Whether it matches the name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Host { host, wildcard: true } => below(plain(name), host),
            Self::Host { host, wildcard: false } => plain(name).eq_ignore_ascii_case(host),
        }
    }
}

/// Returns a name without its final dot.
fn plain(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// A selector of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AddressSelector {
    /// One address, or all that share a prefix.
    Prefix {
        /// The network; the bits after the prefix are zero.
        network: IpAddr,
        /// The length of the prefix, in bits.
        length: u8,
    },
    /// All addresses from the first to the last, inclusive, of one family.
    Range {
        /// The lowest address.
        first: IpAddr,
        /// The highest address.
        last: IpAddr,
    },
    /// A host name that the program resolved; a leading `*.` stands for one or more labels.
    Name {
        /// The name in lower case, without a final dot and without `*.`.
        host: String,
        /// Whether it was written with `*.`.
        wildcard: bool,
    },
    /// The addresses that are valid only on this host or only on this link, of both families.
    Near(Near),
}

/// The kinds of addresses that are valid only on this host or link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Near {
    /// 127.0.0.0/8 and `::1`.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
}

impl Near {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Loopback, Self::LinkLocal];

    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
        }
    }

    /// Returns the kind of the address, if it is one of these.
    #[must_use]
    pub fn of(ip: IpAddr) -> Option<Self> {
        let (family, bits) = family_and_bits(ip);
        Self::within(Span { family, first: bits, last: bits })
    }

    fn within(span: Span) -> Option<Self> {
        Self::ALL.into_iter().find(|near| near.spans().iter().any(|whole| whole.covers(&span)))
    }

    pub(super) fn spans(self) -> [Span; 2] {
        let v4 = |first: Ipv4Addr, last: Ipv4Addr| Span {
            family: Family::V4,
            first: first.to_bits().into(),
            last: last.to_bits().into(),
        };
        let v6 = |first: Ipv6Addr, last: u128| Span {
            family: Family::V6,
            first: first.to_bits(),
            last: first.to_bits() | last,
        };
        match self {
            Self::Loopback => [
                v4(Ipv4Addr::new(127, 0, 0, 0), Ipv4Addr::new(127, 255, 255, 255)),
                v6(Ipv6Addr::LOCALHOST, 0),
            ],
            Self::LinkLocal => [
                v4(Ipv4Addr::new(169, 254, 0, 0), Ipv4Addr::new(169, 254, 255, 255)),
                v6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), u128::MAX >> 10),
            ],
        }
    }
}

impl AddressSelector {
    /// The network with this prefix length that contains the address.
    #[must_use]
    pub fn network(ip: IpAddr, length: u8) -> Self {
        Self::Prefix { network: mask(ip, length), length }
    }

    /// Whether it matches the address or one of its names.
    ///
    /// IPv4 addresses inside IPv6 are compared as IPv4.
    #[must_use]
    pub fn matches(&self, ip: Option<IpAddr>, names: &[String]) -> bool {
        match self {
            Self::Name { host, wildcard } => {
                let mut names = names.iter().map(|name| plain(name));
                if *wildcard {
                    names.any(|name| below(name, host))
                } else {
                    names.any(|name| name.eq_ignore_ascii_case(host))
                }
            }
            Self::Prefix { .. } | Self::Range { .. } | Self::Near(_) => ip.is_some_and(|ip| {
                let (family, bits) = family_and_bits(ip);
                let one = Span { family, first: bits, last: bits };
                self.spans().any(|span| span.covers(&one))
            }),
        }
    }

    /// If the selector contains only addresses of one such kind, returns the kind.
    #[must_use]
    pub fn near(&self) -> Option<Near> {
        match self {
            Self::Near(near) => Some(*near),
            Self::Prefix { .. } | Self::Range { .. } => self.spans().next().and_then(Near::within),
            Self::Name { .. } => None,
        }
    }

    /// Whether it names addresses of this host or link explicitly, by their kind or as a single
    /// address, and not by a wide network.
    pub(super) fn names_nearby(&self) -> bool {
        let is_single = |span: Span| span.first == span.last;
        self.near().is_some() || self.spans().next().is_some_and(is_single)
    }

    /// Whether this selector selects every flow that `other` selects.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Name { host, wildcard },
                Self::Name { host: other_host, wildcard: other_wildcard },
            ) => {
                (wildcard == other_wildcard && host == other_host)
                    || (*wildcard && below(other_host, host))
            }
            (Self::Name { .. }, _) | (_, Self::Name { .. }) => false,
            _ => other.spans().all(|part| self.spans().any(|whole| whole.covers(&part))),
        }
    }

    /// Returns the lowest IPv4 address that it selects.
    pub(super) fn first_v4(&self) -> Option<IpAddr> {
        let span = self.spans().find(|span| span.family == Family::V4)?;
        Some(Ipv4Addr::from_bits(u32::try_from(span.first).ok()?).into())
    }

    /// Returns the lowest and the highest address, if it selects addresses.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        let spans = match self {
            Self::Prefix { network, length } => {
                let (family, first) = family_and_bits(*network);
                let host_bits = family.width() - u32::from(*length).min(family.width());
                let hosts = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
                [Some(Span { family, first, last: first | hosts }), None]
            }
            Self::Range { first, last } => {
                let (family, first) = family_and_bits(*first);
                [Some(Span { family, first, last: family_and_bits(*last).1 }), None]
            }
            Self::Near(near) => near.spans().map(Some),
            Self::Name { .. } => [None, None],
        };
        spans.into_iter().flatten()
    }
}

/// Whether `name` is `host` with one or more labels before it.
fn below(name: &str, host: &str) -> bool {
    let cut = name.len().checked_sub(host.len()).filter(|cut| *cut >= 2);
    cut.is_some_and(|cut| {
        name.as_bytes()[cut - 1] == b'.'
            && name.as_bytes()[cut..].eq_ignore_ascii_case(host.as_bytes())
    })
}

/// The family of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Returns the number of bits of an address.
    pub(super) fn width(self) -> u32 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// The addresses of one family from the first to the last, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) family: Family,
    pub(super) first: u128,
    pub(super) last: u128,
}

impl Span {
    fn covers(&self, other: &Self) -> bool {
        self.family == other.family && self.first <= other.first && other.last <= self.last
    }
}

/// Converts an address to a number; an IPv4 address inside IPv6 counts as IPv4.
pub(super) fn family_and_bits(ip: IpAddr) -> (Family, u128) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => (Family::V4, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (Family::V6, ip.to_bits()),
    }
}

impl fmt::Display for AddressSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { network, length: 32 } if network.is_ipv4() => network.fmt(f),
            Self::Prefix { network, length: 128 } => network.fmt(f),
            Self::Prefix { network, length } => write!(f, "{network}/{length}"),
            Self::Range { first, last } => write!(f, "{first}-{last}"),
            Self::Name { host, wildcard: false } => f.write_str(host),
            Self::Name { host, wildcard: true } => write!(f, "*.{host}"),
            Self::Near(near) => f.write_str(near.word()),
        }
    }
}

/// Clears all bits after the prefix.
pub(super) fn mask(ip: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - length.min(32)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_group_of_a_unit_has_the_escape_of_systemd() {
        for (unit, group) in [
            ("system.slice", "system.slice"),
            ("io.slice", "_io.slice"),
            ("io-a.slice", "io-a.slice"),
            ("cpuset.service", "_cpuset.service"),
            ("cpus.service", "cpus.service"),
            ("bpf-firewall.slice", "_bpf-firewall.slice"),
            ("_a.service", "__a.service"),
        ] {
            assert_eq!(escaped(unit), group);
            assert_eq!(unescaped(group), unit);
        }
    }

    #[test]
    fn a_control_group_belongs_to_its_first_part_that_is_no_slice_without_the_escape() {
        for (cgroup, wanted) in [
            ("system.slice/nginx.service", Some("nginx.service")),
            ("system.slice/_io.service/inner", Some("io.service")),
            ("system.slice/__a.service", Some("_a.service")),
            ("user.slice/user-1.slice/user@1.service/app.slice/a.service", Some("user@1.service")),
            ("system.slice", None),
            ("", None),
        ] {
            assert_eq!(unit_of(cgroup), wanted);
        }
    }

    #[test]
    fn a_wildcard_stands_for_one_or_more_labels() {
        let selects = |host: &str, wildcard, name: &str| {
            let selector = AddressSelector::Name { host: host.to_owned(), wildcard };
            selector.matches(None, &[name.to_owned()])
        };
        assert!(selects("corp.example", false, "Corp.Example."));
        assert!(!selects("corp.example", false, "a.corp.example"));
        assert!(selects("corp.example", true, "a.corp.example"));
        assert!(selects("corp.example", true, "a.b.CORP.example"));
        assert!(!selects("corp.example", true, "corp.example"));
        assert!(!selects("corp.example", true, ".corp.example"));
        assert!(!selects("corp.example", true, "acorp.example"));
        assert!(!selects("corp.example", true, "é"));
    }

    #[test]
    fn the_whole_address_space_has_a_span() {
        let all = AddressSelector::Prefix { network: "::".parse().unwrap(), length: 0 };
        let span = all.spans().next().unwrap();
        assert_eq!((span.first, span.last), (0, u128::MAX));
        assert!(all.matches(Some("ffff::1".parse().unwrap()), &[]));
        assert!(!all.matches(Some("::ffff:10.0.0.1".parse().unwrap()), &[]), "that is IPv4");
        assert!(!all.matches(None, &[]));
    }

    #[test]
    fn what_must_be_named_is_what_lies_wholly_in_one_kind() {
        let near = |network: &str, length| {
            AddressSelector::Prefix { network: network.parse().unwrap(), length }.near()
        };
        assert_eq!(near("127.0.0.0", 8), Some(Near::Loopback));
        assert_eq!(near("127.0.0.53", 32), Some(Near::Loopback));
        assert_eq!(near("126.0.0.0", 7), None);
        assert_eq!(near("::1", 128), Some(Near::Loopback));
        assert_eq!(near("::", 127), None);
        assert_eq!(near("169.254.169.254", 32), Some(Near::LinkLocal));
        assert_eq!(near("fe80::", 64), Some(Near::LinkLocal));
        assert_eq!(near("fe80::", 9), None);
        let [first, last] = ["127.255.255.255", "128.0.0.0"].map(|ip| ip.parse().unwrap());
        assert_eq!(AddressSelector::Range { first, last }.near(), None);
        assert_eq!(Near::of("::ffff:127.0.0.1".parse().unwrap()), Some(Near::Loopback));
        assert_eq!(Near::of("10.0.0.1".parse().unwrap()), None);
    }
}
