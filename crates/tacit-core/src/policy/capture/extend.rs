//! Adds one address to the capture ranges. If the destination of a flow is in one of these ranges,
//! the kernel sends the flow to the agent. Adding one address is faster than computing all ranges
//! again.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::CaptureRange;

/// A change of ranges, which the kernel applies in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// Removed ranges.
    pub gone: Vec<CaptureRange>,
    /// Added ranges.
    pub new: Vec<CaptureRange>,
}

/// Adds the ranges that `wanted` has for one address to the disjoint ranges, which stay disjoint.
/// The cost is linear in the number of ranges. Consecutive addresses, such as alias addresses,
/// share one range.
pub fn extend(
    ranges: &mut BTreeSet<CaptureRange>,
    wanted: &[CaptureRange],
    address: IpAddr,
    extension: &mut Extension,
) {
    let holds = |one: &CaptureRange| {
        one.first.is_ipv4() == address.is_ipv4() && one.first <= address && address <= one.last
    };
    for one in wanted.iter().filter(|one| holds(one)) {
        let mut left = vec![one.first_port..=one.last_port];
        for present in ranges.iter().filter(|present| present.udp == one.udp && holds(present)) {
            left = left.iter().flat_map(|ports| without(ports, present)).collect();
        }
        for ports in left {
            let single = CaptureRange {
                first: address,
                last: address,
                first_port: *ports.start(),
                last_port: *ports.end(),
                ..*one
            };
            add(ranges, single, extension);
        }
    }
}

/// Adds a range of one address. It is merged with the range before it if both have the same ports.
fn add(ranges: &mut BTreeSet<CaptureRange>, single: CaptureRange, extension: &mut Extension) {
    let is_before = |one: &&CaptureRange| {
        one.udp == single.udp
            && one.first_port == single.first_port
            && one.last_port == single.last_port
            && next(one.last) == Some(single.first)
    };
    let Some(before) = ranges.iter().find(is_before).copied() else {
        ranges.insert(single);
        extension.new.push(single);
        return;
    };
    let joined = CaptureRange { last: single.last, ..before };
    ranges.remove(&before);
    ranges.insert(joined);
    // A range of this extension is not in the kernel yet.
    match extension.new.iter().position(|one| *one == before) {
        Some(at) => extension.new[at] = joined,
        None => {
            extension.gone.push(before);
            extension.new.push(joined);
        }
    }
}

/// Returns the ports of a range without those of the hole.
fn without(ports: &RangeInclusive<u16>, hole: &CaptureRange) -> Vec<RangeInclusive<u16>> {
    let low = *ports.start();
    let high = *ports.end();
    if hole.last_port < low || high < hole.first_port {
        return vec![ports.clone()];
    }
    let mut left = Vec::new();
    if low < hole.first_port {
        left.push(low..=hole.first_port - 1);
    }
    if hole.last_port < high {
        left.push(hole.last_port + 1..=high);
    }
    left
}

fn next(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(v6) => v6.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_range() -> impl Strategy<Value = CaptureRange> {
        (any::<bool>(), 0_u32..12, 0_u32..4, 1_u16..12, 0_u16..4).prop_map(
            |(udp, first, more, first_port, ports)| CaptureRange {
                udp,
                first: Ipv4Addr::from_bits(0x0a00_0000 + first).into(),
                last: Ipv4Addr::from_bits(0x0a00_0000 + first + more).into(),
                first_port,
                last_port: first_port + ports,
            },
        )
    }

    fn holds(one: &CaptureRange, address: IpAddr, port: u16) -> bool {
        (one.first..=one.last).contains(&address)
            && (one.first_port..=one.last_port).contains(&port)
    }

    #[test]
    fn consecutive_addresses_are_one_range() {
        let mut ranges = BTreeSet::new();
        for last in 1..=200 {
            let address = IpAddr::from([198, 18, 0, last]);
            let wanted = CaptureRange {
                udp: false,
                first: address,
                last: address,
                first_port: 443,
                last_port: 443,
            };
            let mut extension = Extension::default();
            extend(&mut ranges, &[wanted], address, &mut extension);
            assert_eq!(extension.gone.len(), usize::from(last > 1));
            assert_eq!(extension.new.len(), 1);
        }
        assert_eq!(ranges.len(), 1);
    }

    proptest! {
        #[test]
        fn ranges_stay_disjoint_and_contain_what_is_added(
            steps in prop::collection::vec((any_range(), 0_u32..16), 0..24),
        ) {
            let mut ranges = BTreeSet::new();
            let mut kernel = BTreeSet::new();
            let mut expected = BTreeSet::new();
            for (wanted, address) in steps {
                let address: IpAddr = Ipv4Addr::from_bits(0x0a00_0000 + address).into();
                for port in 1..16 {
                    if holds(&wanted, address, port) {
                        expected.insert((wanted.udp, address, port));
                    }
                }
                let mut extension = Extension::default();
                extend(&mut ranges, &[wanted], address, &mut extension);
                for gone in extension.gone {
                    prop_assert!(kernel.remove(&gone));
                }
                for new in extension.new {
                    prop_assert!(kernel.insert(new));
                }
                prop_assert_eq!(&kernel, &ranges);
            }
            for udp in [false, true] {
                for address in (0..16).map(|one| Ipv4Addr::from_bits(0x0a00_0000 + one).into()) {
                    for port in 1..16 {
                        let held = ranges.iter().filter(|one| one.udp == udp);
                        let count = held.filter(|one| holds(one, address, port)).count();
                        let wanted = usize::from(expected.contains(&(udp, address, port)));
                        prop_assert_eq!(count, wanted);
                    }
                }
            }
        }
    }
}
