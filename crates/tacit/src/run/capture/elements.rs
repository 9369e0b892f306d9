//! Selects the address ranges that the nftables sets of a run must contain. The kernel redirects
//! traffic to these ranges to the agent.
//!
//! The sets contain all ranges for UDP. The sets contain a TCP range only if the range includes an
//! address of the run's own network namespace, or if tacit does not know these addresses.
//!
//! Other TCP ranges are not needed, because the agent gets every SYN to an address outside the
//! namespace. A SYN to an address of the namespace goes to the agent only if a range in the sets
//! contains this address. Without this selection, a run could need most of its start time to add
//! TCP ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tacit_core::policy::CaptureRange;
use tacit_sys::netlink::route::{OWN_UNIQUE_LOCAL, OWN_V4, OWN_V6};

use crate::run::host::HostAddresses;

/// The ranges for the sets. `host` are the addresses of the host that were copied into the
/// namespace; `None` if it has no copies, so that its addresses are not known.
pub(super) fn elements(
    ranges: impl IntoIterator<Item = CaptureRange>,
    host: Option<&HostAddresses>,
) -> Vec<CaptureRange> {
    let Some(host) = host else { return ranges.into_iter().collect() };
    let own: Vec<IpAddr> = host.all().chain(ALWAYS_OWN).collect();
    ranges.into_iter().filter(|range| range.udp || has_one_of(range, &own)).collect()
}

/// Whether a range contains an address of the namespace: one of these, or of loopback.
fn has_one_of(range: &CaptureRange, own: &[IpAddr]) -> bool {
    let contains = |address: &IpAddr| {
        range.first.is_ipv4() == address.is_ipv4() && (range.first..=range.last).contains(address)
    };
    let is_loopback = range.first <= LOOPBACK_LAST && LOOPBACK_FIRST <= range.last;
    is_loopback || own.iter().any(contains)
}

const LOOPBACK_FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
const LOOPBACK_LAST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 255, 255, 255));
/// The addresses that every namespace has.
const ALWAYS_OWN: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::LOCALHOST),
    IpAddr::V4(OWN_V4),
    IpAddr::V6(OWN_V6),
    IpAddr::V6(OWN_UNIQUE_LOCAL),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::host::HostInterface;

    fn tcp(first: &str, last: &str) -> CaptureRange {
        let [first, last] = [first, last].map(|address| address.parse().unwrap());
        CaptureRange { udp: false, first, last, first_port: 443, last_port: 443 }
    }

    fn udp(first: &str, last: &str) -> CaptureRange {
        CaptureRange { udp: true, ..tcp(first, last) }
    }

    #[test]
    fn tcp_needs_elements_only_for_addresses_of_the_namespace() {
        let interface = HostInterface {
            name: "eth0".to_owned(),
            addresses: vec![("192.0.2.7".parse().unwrap(), 24)],
        };
        let elsewhere = vec!["2001:db8::7".parse().unwrap()];
        let host =
            HostAddresses { interfaces: vec![interface], elsewhere, ..HostAddresses::default() };
        let needed = [
            udp("198.51.100.0", "198.51.100.255"),
            udp("2001:db8:1::", "2001:db8:1::ff"),
            tcp("192.0.2.0", "192.0.2.255"),
            tcp("2001:db8::7", "2001:db8::7"),
            tcp("126.0.0.0", "128.0.0.0"),
            tcp("0.0.0.0", "255.255.255.255"),
            tcp("127.0.0.53", "127.0.0.53"),
            tcp("::1", "::1"),
            tcp("10.0.2.15", "10.0.2.15"),
            tcp("fd00::", "fdff::"),
        ];
        let others = [
            tcp("198.51.100.0", "198.51.100.255"),
            tcp("192.0.2.8", "192.0.2.255"),
            tcp("128.0.0.0", "128.0.0.255"),
            tcp("2001:db8::8", "2001:db8::ff"),
            tcp("::2", "::ff"),
        ];
        let all = [&needed[..], &others].concat();
        assert_eq!(elements(all.clone(), Some(&host)), needed);
        assert_eq!(elements(all.clone(), None), all);
    }
}
