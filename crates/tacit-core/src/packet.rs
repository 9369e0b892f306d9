//! Builds IP packets that contain UDP datagrams (RFC 768), for raw sockets.

use std::net::{IpAddr, SocketAddr};

use crate::ip::{HEADER_V4_BYTES, UDP, fill_checksum, header_v4, header_v6, pseudo_header};

/// Builds a datagram as an IP packet. `None` if the addresses have different families or the
/// payload does not fit.
#[must_use]
pub fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = UDP_HEADER_BYTES + payload.len();
    let udp_length = u16::try_from(length).ok()?;
    let mut packet = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            u16::try_from(HEADER_V4_BYTES + length).ok()?;
            header_v4(UDP, length, source, target)
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => header_v6(UDP, length, source, target),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let pseudo = pseudo_header(UDP, from.ip(), to.ip(), length);
    let start = packet.len();
    packet.reserve(length);
    packet.extend_from_slice(&from.port().to_be_bytes());
    packet.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&udp_length.to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(payload);
    fill_checksum(&mut packet[start..], UDP_CHECKSUM_AT, pseudo);
    // The value zero would mean that there is no checksum.
    let checksum = &mut packet[start + UDP_CHECKSUM_AT..start + UDP_CHECKSUM_AT + 2];
    if checksum == [0, 0] {
        checksum.copy_from_slice(&[0xff, 0xff]);
    }
    Some(packet)
}

const UDP_HEADER_BYTES: usize = 8;
const UDP_CHECKSUM_AT: usize = 6;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::ip::{HEADER_V6_BYTES, folded, sum};
    use proptest::prelude::*;

    #[test]
    fn a_datagram_is_a_whole_packet() {
        let from = "10.1.1.1:53".parse().unwrap();
        let packet = datagram(from, "10.0.2.15:4000".parse().unwrap(), b"ok").unwrap();
        assert_eq!(&packet[..4], [0x45, 0, 0, 30]);
        assert_eq!(&packet[9..10], [17]);
        assert_eq!(&packet[12..20], [10, 1, 1, 1, 10, 0, 2, 15]);
        assert_eq!(&packet[20..26], [0, 53, 0x0f, 0xa0, 0, 10]);
        assert_eq!(&packet[28..], b"ok");
        assert_eq!(datagram(from, "[::1]:4000".parse().unwrap(), b""), None);
        let too_long = vec![0; 65_508];
        assert_eq!(datagram(from, from, &too_long), None);
        assert_eq!(datagram(from, from, &too_long[1..]).unwrap().len(), 65_535);
    }

    proptest! {
        #[test]
        fn the_checksum_is_right(
            addresses in any::<([u16; 8], [u16; 8])>(),
            ports in any::<(u16, u16)>(),
            payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let v6 = |segments: [u16; 8]| Ipv6Addr::from(segments);
            let source = v6(addresses.0);
            let target = v6(addresses.1);
            let [from, to] = [(source, ports.0), (target, ports.1)].map(SocketAddr::from);
            let packet = datagram(from, to, &payload).unwrap();
            let udp = &packet[HEADER_V6_BYTES..];
            let pseudo = pseudo_header(UDP, from.ip(), to.ip(), udp.len());
            prop_assert_eq!(folded(sum(udp) + pseudo), 0xffff);
            prop_assert_ne!(&udp[6..8], [0, 0]);
            let v4 = |segments: [u16; 8]| {
                let [[a, b], [c, d]] = [segments[0], segments[1]].map(u16::to_be_bytes);
                Ipv4Addr::new(a, b, c, d)
            };
            let [from, to] = [(v4(addresses.0), 1), (v4(addresses.1), 2)].map(SocketAddr::from);
            let packet = datagram(from, to, &payload).unwrap();
            let pseudo = sum(&packet[12..20]) + 17 + u32::try_from(packet.len() - 20).unwrap();
            prop_assert_eq!(folded(sum(&packet[20..]) + pseudo), 0xffff);
            prop_assert_eq!(folded(sum(&packet[..20])), 0xffff);
        }
    }
}
