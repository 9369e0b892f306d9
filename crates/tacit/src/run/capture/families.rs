//! Determines whether a run can use IPv4, IPv6 or both. A run can use an IP version if one of these
//! conditions is true for this version:
//! * The host has a default route.
//! * The host has a route to an address that the policy allows.
//! * The host has a route to a DNS resolver.
//! * The policy has an inbound rule, which allows clients to connect to the run.
//!
//! If the run uses a link, the routes on the other side of the link count instead.
//!
//! Limit: for each IP version, this module looks for routes to at most [`PROBES_MAX`] resolvers and
//! [`PROBES_MAX`] other addresses, even if the policy allows more.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tacit_core::policy::{CaptureRange, Policy};
use tacit_sys::IpVersion;
use tacit_sys::netlink::destinations::{RouteDestination, destinations};
use tacit_sys::netlink::route::Families;
use tacit_sys::netlink::{Netlink, Subsystem};

use crate::run::Outside;

/// The largest number of captured addresses of one IP version to which a route is searched.
const PROBES_MAX: usize = 16;

/// What the kernel knows about routes.
pub(super) trait Routes {
    /// Whether there is a route to an address.
    fn lead_to(&self, address: IpAddr) -> bool;
    /// The destinations of all routes; `None`: they cannot be listed.
    fn destinations(&self, version: IpVersion) -> Option<Vec<RouteDestination>>;
}

impl Routes for Outside {
    fn lead_to(&self, address: IpAddr) -> bool {
        self.has_route(address)
    }

    fn destinations(&self, version: IpVersion) -> Option<Vec<RouteDestination>> {
        match self {
            Self::Host => destinations(&mut Netlink::open(Subsystem::Route).ok()?, version).ok(),
            // The other side reports IP versions, not routes.
            Self::Link(_) => None,
        }
    }
}

/// The IP versions to enable: those that are enabled already, and those found now.
pub(super) fn families(
    policy: &Policy,
    wanted: &BTreeSet<CaptureRange>,
    given: Families,
    resolvers: &[IpAddr],
    routes: &impl Routes,
) -> Families {
    let leads_to_resolver = |version: IpVersion| {
        // A run reaches resolvers on the host itself without a route.
        let is_wanted =
            |resolver: &&IpAddr| !resolver.is_loopback() && IpVersion::of(**resolver) == version;
        resolvers.iter().filter(is_wanted).take(PROBES_MAX).any(|one| routes.lead_to(*one))
    };
    let is_needed = |version: IpVersion| {
        // Replies to inbound clients must be possible.
        has_clients(policy, version)
            || routes.lead_to(public(version))
            || leads_to_resolver(version)
            || lead_to_some(routes, wanted, version)
    };
    Families { v4: given.v4 || is_needed(IpVersion::V4), v6: given.v6 || is_needed(IpVersion::V6) }
}

/// Whether clients connect to programs by this IP version.
fn has_clients(policy: &Policy, version: IpVersion) -> bool {
    let inbound = policy.rules.iter().filter(|rule| rule.inbound().is_some());
    let mut listens = inbound.flat_map(|rule| rule.listens()).filter_map(|address| address.ip());
    listens.any(|ip| IpVersion::of(ip) == version && !ip.is_loopback())
}

/// An address outside, which only a default route leads to.
fn public(version: IpVersion) -> IpAddr {
    match version {
        IpVersion::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpVersion::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// Whether a route leads to a captured address. Without a default route there are few others.
fn lead_to_some(routes: &impl Routes, wanted: &BTreeSet<CaptureRange>, version: IpVersion) -> bool {
    let spans = spans(wanted, version);
    if spans.is_empty() {
        return false;
    }
    let candidates: Vec<IpAddr> = match routes.destinations(version) {
        Some(destinations) => destinations.iter().filter_map(|to| first_in(&spans, to)).collect(),
        None => spans.iter().map(|span| span.first).collect(),
    };
    candidates.into_iter().take(PROBES_MAX).any(|address| routes.lead_to(address))
}

/// Addresses from the first to the last.
struct Span {
    first: IpAddr,
    last: IpAddr,
}

/// The captured addresses of a version, in order and without overlaps.
fn spans(wanted: &BTreeSet<CaptureRange>, version: IpVersion) -> Vec<Span> {
    let of_version = wanted.iter().filter(|one| IpVersion::of(one.first) == version);
    let mut all: Vec<(IpAddr, IpAddr)> = of_version.map(|one| (one.first, one.last)).collect();
    all.sort_unstable();
    let mut spans: Vec<Span> = Vec::new();
    for (first, last) in all {
        match spans.last_mut() {
            Some(before) if first <= before.last => before.last = before.last.max(last),
            _ => spans.push(Span { first, last }),
        }
    }
    spans
}

/// The first address of a destination that is in a span.
fn first_in(spans: &[Span], to: &RouteDestination) -> Option<IpAddr> {
    let span = spans.get(spans.partition_point(|span| span.last < to.first))?;
    (span.first <= to.last).then(|| span.first.max(to.first))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Routes of a test, and the addresses that were tried.
    #[derive(Default)]
    struct KnownRoutes {
        destinations: Option<Vec<RouteDestination>>,
        reachable: Vec<IpAddr>,
        tried: RefCell<Vec<IpAddr>>,
    }

    impl Routes for KnownRoutes {
        fn lead_to(&self, address: IpAddr) -> bool {
            self.tried.borrow_mut().push(address);
            self.reachable.contains(&address)
        }

        fn destinations(&self, version: IpVersion) -> Option<Vec<RouteDestination>> {
            let all = self.destinations.as_ref()?.iter();
            Some(all.filter(|one| IpVersion::of(one.first) == version).copied().collect())
        }
    }

    fn destination(network: &str, prefix_bits: u8) -> RouteDestination {
        RouteDestination::new(network.parse().unwrap(), prefix_bits)
    }

    fn range(number: u16) -> CaptureRange {
        let address = Ipv6Addr::new(0xfd00, number, 0, 0, 0, 0, 0, 1).into();
        CaptureRange { udp: false, first: address, last: address, first_port: 1, last_port: 9 }
    }

    fn found(routes: &KnownRoutes, wanted: impl Iterator<Item = CaptureRange>) -> Families {
        let policy = tacit_core::policy::parse("version = 1").policy.unwrap();
        families(&policy, &wanted.collect(), Families::default(), &[], routes)
    }

    #[test]
    fn a_route_to_a_resolver_of_another_host_gives_its_version() {
        let policy = tacit_core::policy::parse("version = 1").policy.unwrap();
        let resolvers: Vec<IpAddr> =
            ["127.0.0.53", "::1", "fd00::53", "10.9.0.53"].map(|one| one.parse().unwrap()).into();
        for (reachable, expected) in [
            ("10.9.0.53", Families { v4: true, v6: false }),
            ("fd00::53", Families { v4: false, v6: true }),
            ("127.0.0.53", Families::default()),
        ] {
            let reachable = vec![reachable.parse().unwrap()];
            let routes = KnownRoutes { reachable, ..KnownRoutes::default() };
            let wanted = BTreeSet::new();
            let found = families(&policy, &wanted, Families::default(), &resolvers, &routes);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_number_of_probes_does_not_grow_with_the_rules() {
        let local = vec![destination("::1", 128), destination("fe80::", 64)];
        for (destinations, probes) in [(Some(local), 2), (None, 2 + PROBES_MAX)] {
            let routes = KnownRoutes { destinations, ..KnownRoutes::default() };
            assert_eq!(found(&routes, (0..10_000).map(range)), Families::default());
            assert_eq!(routes.tried.borrow().len(), probes);
        }
    }

    #[test]
    fn a_route_to_part_of_a_captured_range_gives_its_version() {
        let routes = KnownRoutes {
            destinations: Some(vec![destination("fd00:77::", 32), destination("fe80::", 64)]),
            reachable: vec!["fd00:77::1".parse().unwrap(), "fd00:77::".parse().unwrap()],
            ..KnownRoutes::default()
        };
        let only_v6 = Families { v4: false, v6: true };
        assert_eq!(found(&routes, (0..10_000).map(range)), only_v6);
        let wide = CaptureRange { last: "fd00:ffff::".parse().unwrap(), ..range(0) };
        assert_eq!(found(&routes, [wide].into_iter()), only_v6);
        assert_eq!(found(&routes, [range(0x76), range(0x78)].into_iter()), Families::default());
    }

    #[test]
    fn a_default_route_needs_no_list() {
        let routes =
            KnownRoutes { reachable: IpVersion::ALL.map(public).into(), ..KnownRoutes::default() };
        assert_eq!(found(&routes, std::iter::once(range(0))), Families { v4: true, v6: true });
        assert_eq!(routes.tried.borrow().len(), 2);
    }
}
