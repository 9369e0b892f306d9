//! Who counts as one source of connections.

use std::net::{IpAddr, Ipv6Addr};

use tacit_core::flow::Address;

/// One source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An address of IPv4.
    V4(u32),
    /// A /64: what one customer or one machine has at least.
    V6(u64),
    /// All UNIX sockets together.
    Local,
}

impl Source {
    /// The one that an address belongs to.
    #[must_use]
    pub fn of(remote: &Address) -> Self {
        match remote.ip() {
            Some(IpAddr::V4(ip)) => Self::V4(ip.to_bits()),
            Some(IpAddr::V6(ip)) => Self::V6(network_bits(ip)),
            None => Self::Local,
        }
    }
}

fn network_bits(ip: Ipv6Addr) -> u64 {
    let [a, b, c, d, ..] = ip.segments();
    [a, b, c, d].into_iter().fold(0, |bits, segment| bits << 16 | u64::from(segment))
}
