//! Defines [`TrafficSelector`]: a protocol, a range of ports and a range of addresses, which
//! together select packets (RFC 7296 section 3.13.1).

use std::net::IpAddr;

/// Packets at one end of a tunnel. Both addresses have the same family, and `first <= last` holds
/// for addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrafficSelector {
    protocol: u8,
    ports: (u16, u16),
    addresses: (IpAddr, IpAddr),
}

impl TrafficSelector {
    /// Creates a selector. Protocol 0 means every protocol. For ICMP the ports are type and code
    /// (RFC 7296 section 3.13.1). Returns `None` if a range is empty or mixes address families.
    #[must_use]
    pub fn new(protocol: u8, ports: (u16, u16), addresses: (IpAddr, IpAddr)) -> Option<Self> {
        let (first, last) = addresses;
        let is_valid = first.is_ipv4() == last.is_ipv4() && first <= last && ports.0 <= ports.1;
        is_valid.then_some(Self { protocol, ports, addresses })
    }

    /// Creates a selector for every protocol and port of a range of addresses.
    #[must_use]
    pub fn of_addresses(first: IpAddr, last: IpAddr) -> Option<Self> {
        Self::new(0, (0, u16::MAX), (first, last))
    }

    /// Returns the protocol; 0 means every protocol.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the first and the last port.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        self.ports
    }

    /// Returns the first and the last address.
    #[must_use]
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        self.addresses
    }

    /// Reports whether an end of a packet is in the set. `port` is `None` if the packet has no
    /// ports, or if they are not known, as in a fragment; then only a selector with all ports
    /// matches.
    #[must_use]
    pub fn contains(&self, protocol: u8, port: Option<u16>, address: IpAddr) -> bool {
        let (first, last) = self.addresses;
        let has_family = first.is_ipv4() == address.is_ipv4();
        let has_protocol = self.protocol == 0 || self.protocol == protocol;
        let has_port = match port {
            Some(port) => (self.ports.0..=self.ports.1).contains(&port),
            None => self.ports == (0, u16::MAX),
        };
        has_family && has_protocol && has_port && (first..=last).contains(&address)
    }

    /// Returns the packets that are in both sets, or `None` if there are none.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let protocol = match (self.protocol, other.protocol) {
            (0, protocol) | (protocol, 0) => protocol,
            (mine, its) if mine == its => mine,
            _ => return None,
        };
        let ports = (self.ports.0.max(other.ports.0), self.ports.1.min(other.ports.1));
        if self.addresses.0.is_ipv4() != other.addresses.0.is_ipv4() {
            return None;
        }
        let first = self.addresses.0.max(other.addresses.0);
        let last = self.addresses.1.min(other.addresses.1);
        Self::new(protocol, ports, (first, last))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn empty_and_mixed_ranges_are_refused() {
        assert_eq!(TrafficSelector::of_addresses(v4(2), v4(1)), None);
        assert_eq!(TrafficSelector::of_addresses(v4(2), "::1".parse().unwrap()), None);
        assert_eq!(TrafficSelector::new(6, (2, 1), (v4(1), v4(2))), None);
    }

    #[test]
    fn contains_compares_family_protocol_port_and_address() {
        let web = TrafficSelector::new(6, (80, 443), (v4(1), v4(9))).unwrap();
        assert!(web.contains(6, Some(443), v4(9)));
        assert!(!web.contains(6, None, v4(9)));
        assert!(!web.contains(6, Some(444), v4(9)));
        assert!(!web.contains(17, Some(443), v4(9)));
        assert!(!web.contains(6, Some(443), v4(10)));
        assert!(!web.contains(6, Some(443), "::1".parse().unwrap()));
        let every = TrafficSelector::of_addresses(v4(0), v4(255)).unwrap();
        assert!(every.contains(6, None, v4(9)));
    }

    #[test]
    fn intersection_takes_the_narrower_part_of_each() {
        let net = TrafficSelector::of_addresses(v4(0), v4(127)).unwrap();
        let web = TrafficSelector::new(6, (80, 443), (v4(100), v4(200))).unwrap();
        let both = TrafficSelector::new(6, (80, 443), (v4(100), v4(127))).unwrap();
        assert_eq!(net.intersection(&web), Some(both));
        assert_eq!(web.intersection(&net), Some(both));
        let other = TrafficSelector::of_addresses(v4(128), v4(255)).unwrap();
        assert_eq!(net.intersection(&other), None);
    }
}
