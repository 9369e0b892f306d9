//! Looks up the local address from which this host sends to a remote address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The address from which this host sends to another address; `None`: there is no route. Connecting
/// a datagram socket only looks up the route and sends nothing.
#[must_use]
pub fn source_towards(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(SocketAddr::new(to, DISCARD_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Any port will do.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_towards_this_host_is_its_own_address() {
        let local = [127, 0, 0, 1].into();
        assert_eq!(source_towards(local), Some(local));
    }
}
