use proptest::prelude::*;

use super::*;

#[test]
fn a_datagram_of_each_version() {
    let parsed = IpPacket::parse(&testing::udp_v4(b"hello")).unwrap();
    assert_eq!(parsed.source, IpAddr::from([10, 1, 0, 1]));
    assert_eq!(parsed.destination, IpAddr::from([10, 2, 0, 1]));
    assert_eq!((parsed.protocol, parsed.ports), (UDP, Some((4000, 53))));
    assert_eq!((parsed.transport_at, parsed.bytes, parsed.is_fragment), (20, 33, false));
    let parsed = IpPacket::parse(&testing::udp_v6(b"hello")).unwrap();
    assert_eq!(parsed.source, "fd01::1".parse::<IpAddr>().unwrap());
    assert_eq!(parsed.destination, "fd02::1".parse::<IpAddr>().unwrap());
    assert_eq!((parsed.protocol, parsed.ports), (UDP, Some((4000, 53))));
    assert_eq!((parsed.transport_at, parsed.bytes), (40, 53));
}

#[test]
fn type_and_code_of_icmp_stand_for_both_ports() {
    let parsed = IpPacket::parse(&testing::v4(ICMP, &[8, 1, 0, 0])).unwrap();
    assert_eq!(parsed.ports, Some((0x0801, 0x0801)));
    let parsed = IpPacket::parse(&testing::v6(ICMPV6, &[128, 0, 0, 0])).unwrap();
    assert_eq!(parsed.ports, Some((0x8000, 0x8000)));
}

#[test]
fn only_the_first_fragment_has_ports() {
    for (field, ports) in [(0x2000_u16, Some((4000, 53))), (0x2010, None), (0x0010, None)] {
        let mut packet = testing::udp_v4(b"part");
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        let parsed = IpPacket::parse(&packet).unwrap();
        assert_eq!((parsed.is_fragment, parsed.ports), (true, ports), "{field:x}");
    }
    for (field, ports) in [(1_u16, Some((4000, 53))), (0x81, None), (0x80, None)] {
        let [high, low] = field.to_be_bytes();
        let mut payload = vec![UDP, 0, high, low, 0, 0, 0, 1];
        payload.extend_from_slice(&testing::udp_v4(b"part")[20..]);
        let parsed = IpPacket::parse(&testing::v6(FRAGMENT, &payload)).unwrap();
        assert_eq!((parsed.is_fragment, parsed.ports), (true, ports), "{field:x}");
        assert_eq!((parsed.protocol, parsed.transport_at), (UDP, 48));
    }
}

#[test]
fn a_first_fragment_without_ports_is_rejected() {
    // It ends after the destination options, so that the ports would be in the next fragment.
    for protocol in [TCP, UDP, ICMPV6] {
        let fragment = [OPTIONS, 0, 0, 1, 0, 0, 0, 1];
        let options = [protocol, 0, 1, 4, 0, 0, 0, 0];
        let packet = testing::v6(FRAGMENT, &[fragment, options].concat());
        assert_eq!(IpPacket::parse(&packet), Err(PacketError::Truncated), "{protocol}");
    }
}

#[test]
fn extension_headers_are_skipped_up_to_a_limit() {
    let chain = |count: usize| {
        let mut payload = Vec::new();
        for at in 0..count {
            let next = if at + 1 == count { UDP } else { OPTIONS };
            payload.extend_from_slice(&[next, 0, 0, 0, 0, 0, 0, 0]);
        }
        payload.extend_from_slice(&testing::udp_v4(b"x")[20..]);
        IpPacket::parse(&testing::v6(HOP_BY_HOP, &payload))
    };
    let parsed = chain(EXTENSION_HEADERS_MAX).unwrap();
    assert_eq!((parsed.protocol, parsed.ports), (UDP, Some((4000, 53))));
    assert_eq!(chain(EXTENSION_HEADERS_MAX + 1), Err(PacketError::ExtensionHeaders));
}

#[test]
fn what_is_no_packet_is_named() {
    let v4 = testing::udp_v4(b"hello");
    let v6 = testing::udp_v6(b"hello");
    let changed = |packet: &[u8], at: usize, value: u8| {
        let mut packet = packet.to_vec();
        packet[at] = value;
        IpPacket::parse(&packet)
    };
    assert_eq!(IpPacket::parse(&[]), Err(PacketError::Truncated));
    assert_eq!(changed(&v4, 0, 0x55), Err(PacketError::Version));
    assert_eq!(changed(&v4, 0, 0x44), Err(PacketError::Length));
    assert_eq!(changed(&v4, 3, 19), Err(PacketError::Length));
    assert_eq!(changed(&v4, 3, 200), Err(PacketError::Truncated));
    assert_eq!(IpPacket::parse(&v4[..v4.len() - 1]), Err(PacketError::Truncated));
    assert_eq!(IpPacket::parse(&v6[..v6.len() - 1]), Err(PacketError::Truncated));
    assert_eq!(changed(&v6, 6, OPTIONS), Err(PacketError::Truncated));
}

#[test]
fn bytes_behind_the_packet_are_ignored() {
    let mut packet = testing::udp_v4(b"hello");
    let bytes = packet.len();
    packet.extend_from_slice(&[0; 40]);
    assert_eq!(IpPacket::parse(&packet).unwrap().bytes, bytes);
}

proptest! {
    #[test]
    fn arbitrary_bytes_give_offsets_inside_the_packet(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        version in prop::sample::select(vec![0x45_u8, 0x46, 0x60]),
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        if let Ok(parsed) = IpPacket::parse(&bytes) {
            prop_assert!(parsed.transport_at <= parsed.bytes);
            prop_assert!(parsed.bytes <= bytes.len());
            if let Some(layout) = tcp::TcpLayout::of(&parsed, &bytes) {
                prop_assert!(layout.payload_at <= layout.bytes);
                layout.has_valid_checksum(&bytes);
            }
        }
    }
}
