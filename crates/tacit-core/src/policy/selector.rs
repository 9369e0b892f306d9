//! Which flows a rule is about.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Serialize;

use crate::flow::{Direction, Flow, Protocol};

/// The conditions of a rule; all must hold. An empty list is no condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors {
    /// Who opens the connection.
    pub direction: Direction,
    /// Transport.
    pub protocol: Protocol,
    /// The near address.
    pub local: Vec<AddressSelector>,
    /// The near port.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The far address.
    pub remote: Vec<AddressSelector>,
    /// The far port.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// Executables. A label, not a boundary: an unknown owner matches only if the rule is a deny.
    pub program: Vec<PathBuf>,
    /// User names or numbers; an unknown owner as above.
    pub user: Vec<String>,
}

impl Selectors {
    /// Whether all conditions hold, tried one by one; if not, the first that does not.
    ///
    /// `is_deny` decides for a flow whose owner is not known: a rule that names owners must catch
    /// it if it denies, and must not let it pass if it does anything else.
    ///
    /// # Errors
    /// The first condition, in the order of [`Mismatch`], that does not hold.
    pub fn matches(&self, flow: &Flow, is_deny: bool) -> Result<(), Mismatch> {
        let (local, remote) = (&flow.local, &flow.remote);
        let conditions = [
            (self.direction == flow.direction, Mismatch::Direction),
            (self.protocol == flow.protocol, Mismatch::Protocol),
            (any(&self.local, |s| s.matches(local.ip(), &[])), Mismatch::Local),
            (any(&self.local_ports, |p| holds(p, local.port())), Mismatch::LocalPorts),
            (any(&self.remote, |s| s.matches(remote.ip(), &flow.remote_names)), Mismatch::Remote),
            (any(&self.remote_ports, |p| holds(p, remote.port())), Mismatch::RemotePorts),
            (
                any(&self.program, |p| flow.program.as_ref().map_or(is_deny, |owner| owner == p)),
                Mismatch::Program,
            ),
            (
                any(&self.user, |u| flow.user.as_ref().map_or(is_deny, |owner| owner == u)),
                Mismatch::User,
            ),
        ];
        let failed = conditions.into_iter().find(|(holds, _)| !holds);
        failed.map_or(Ok(()), |(_, mismatch)| Err(mismatch))
    }
}

fn any<T>(list: &[T], matches: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(matches)
}

fn holds(range: &RangeInclusive<u16>, port: Option<u16>) -> bool {
    port.is_some_and(|port| range.contains(&port))
}

/// What speaks against a rule, in the order in which it is tried; words as in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Mismatch {
    Listen,
    Direction,
    Protocol,
    Local,
    LocalPorts,
    Remote,
    RemotePorts,
    Program,
    User,
}

/// One way to name addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AddressSelector {
    /// One address, or all that share a prefix.
    Prefix {
        /// Bits after the prefix are zero.
        network: IpAddr,
        /// Bits of the prefix.
        length: u8,
    },
    /// All from the first to the last, inclusive, of one family.
    Range {
        /// The lowest.
        first: IpAddr,
        /// The highest.
        last: IpAddr,
    },
    /// A host name the program asked for; `*.` before it stands for one or more labels.
    Name {
        /// Lower case, no final dot, without the `*.`.
        host: String,
        /// Whether it was written with `*.`.
        wildcard: bool,
    },
}

impl AddressSelector {
    /// Whether the address, or one of the names that led to it, is meant.
    ///
    /// IPv4 addresses inside IPv6 are compared as IPv4.
    #[must_use]
    pub fn matches(&self, ip: Option<IpAddr>, names: &[String]) -> bool {
        match self {
            Self::Name { host, wildcard } => names.iter().any(|name| {
                let name = name.strip_suffix('.').unwrap_or(name);
                if *wildcard { below(name, host) } else { name.eq_ignore_ascii_case(host) }
            }),
            Self::Prefix { .. } | Self::Range { .. } => match (self.span(), ip) {
                (Some(span), Some(ip)) => {
                    let (family, bits) = family_and_bits(ip);
                    span.family == family && (span.first..=span.last).contains(&bits)
                }
                _ => false,
            },
        }
    }

    /// Whether every flow that `other` selects is selected by this too.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Name { host, wildcard },
                Self::Name { host: other_host, wildcard: other_wildcard },
            ) => {
                (wildcard == other_wildcard && host == other_host)
                    || (*wildcard && below(other_host, host))
            }
            _ => match (self.span(), other.span()) {
                (Some(a), Some(b)) => {
                    a.family == b.family && a.first <= b.first && b.last <= a.last
                }
                _ => false,
            },
        }
    }

    /// The lowest and highest address, where addresses are meant.
    pub(super) fn span(&self) -> Option<Span> {
        match self {
            Self::Prefix { network, length } => {
                let (family, first) = family_and_bits(*network);
                let host_bits = family.width() - u32::from(*length).min(family.width());
                let hosts = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size - 1);
                Some(Span { family, first, last: first | hosts })
            }
            Self::Range { first, last } => {
                let (family, first) = family_and_bits(*first);
                Some(Span { family, first, last: family_and_bits(*last).1 })
            }
            Self::Name { .. } => None,
        }
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

/// Which kind of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Bits of an address.
    pub(super) fn width(self) -> u32 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Addresses of one family from the first to the last, as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) family: Family,
    pub(super) first: u128,
    pub(super) last: u128,
}

/// An address as a number; IPv4 inside IPv6 as IPv4.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let span = all.span().unwrap();
        assert_eq!((span.first, span.last), (0, u128::MAX));
        assert!(all.matches(Some("ffff::1".parse().unwrap()), &[]));
        assert!(!all.matches(Some("::ffff:10.0.0.1".parse().unwrap()), &[]), "that is IPv4");
        assert!(!all.matches(None, &[]));
    }
}
