use proptest::prelude::*;

use super::*;
use crate::packet::checksum::{checksum, folded, sum};
use crate::packet::tcp::{self, ACK, CWR, FIN, PSH, RST, SYN, TcpLayout, URG};
use crate::packet::testing::{TcpSegment, fill_tcp_checksum, udp_v4};
use crate::packet::{IpPacket, UDP};

const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 5];

fn segment(payload: Vec<u8>) -> TcpSegment {
    let options = TIMESTAMPS.to_vec();
    TcpSegment { is_v4: true, sequence: u32::MAX - 5, flags: ACK, window: 501, options, payload }
}

fn divided(packet: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
    let parsed = IpPacket::parse(packet).unwrap();
    let mut segments = Segments::of(&parsed, packet, segment_bytes).unwrap();
    let mut all = Vec::new();
    while let Some(bytes) = segments.next_bytes() {
        let mut one = vec![0xaa; bytes];
        segments.write_next(&mut one);
        all.push(one);
    }
    all
}

/// Joins packets as the receiver does; returns the large packets with their headers.
fn joined(packets: &[Vec<u8>]) -> Vec<(Vec<u8>, Coalesced)> {
    let mut buffer = Vec::new();
    let mut opened = Vec::new();
    for packet in packets {
        let place = buffer.len()..buffer.len() + packet.len();
        buffer.extend_from_slice(packet);
        // The buffer of a receiver has ICVs and headers between the packets.
        buffer.extend_from_slice(&[0xee; 38]);
        opened.push(OpenedPacket { parsed: IpPacket::parse(packet).unwrap(), place });
    }
    let mut all = Vec::new();
    let mut rest = &opened[..];
    while let Some(first) = rest.first() {
        let one = coalesce(&mut buffer, rest);
        let mut packet = buffer[first.place.clone()].to_vec();
        for other in &rest[1..one.packets] {
            packet.extend_from_slice(&buffer[other.place.start + one.payload_at..other.place.end]);
        }
        all.push((packet, one));
        rest = &rest[one.packets..];
    }
    all
}

/// Writes the sum of the pseudo-header in place of the checksum, as the kernel does.
fn leave_checksum(packet: &mut [u8]) {
    let layout = TcpLayout::of(&IpPacket::parse(packet).unwrap(), packet).unwrap();
    let value = folded(layout.pseudo_header(packet, layout.bytes - layout.tcp_at));
    let at = layout.tcp_at + tcp::CHECKSUM_AT;
    packet[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

fn assert_valid(packet: &[u8]) {
    let layout = TcpLayout::of(&IpPacket::parse(packet).unwrap(), packet).unwrap();
    assert_eq!(layout.bytes, packet.len());
    assert!(layout.has_valid_checksum(packet));
    assert!(layout.tcp_at != 20 || folded(sum(&packet[..20])) == u16::MAX);
}

#[test]
fn segments_have_their_own_numbers_flags_and_checksums() {
    let mut large = segment((0..250).map(|byte| u8::try_from(byte).unwrap()).collect());
    large.flags = ACK | PSH | FIN | CWR;
    let packets = divided(&large.packet(), 100);
    let parts: Vec<_> = packets.iter().map(|packet| packet[52..].len()).collect();
    assert_eq!(parts, [100, 100, 50]);
    let sequence = |packet: &[u8]| tcp::sequence(&packet[20..]);
    let sequences: Vec<_> = packets.iter().map(|packet| sequence(packet)).collect();
    assert_eq!(sequences, [u32::MAX - 5, 94, 194]);
    let flags: Vec<_> = packets.iter().map(|packet| packet[33]).collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | PSH | FIN]);
    let identifications: Vec<_> = packets.iter().map(|packet| packet[5]).collect();
    assert_eq!(identifications, [0x34, 0x35, 0x36]);
    packets.iter().for_each(|packet| assert_valid(packet));
}

#[test]
fn a_packet_without_an_offload_is_divided_if_its_parts_mean_the_same() {
    let mut one = segment(vec![7; 1_000]);
    one.flags = ACK | PSH;
    let within = |one: &TcpSegment, bytes_max| {
        let packet = one.packet();
        let parsed = IpPacket::parse(&packet).unwrap();
        let segments = Segments::within(&parsed, &packet, bytes_max);
        segments.and_then(|segments| segments.next_bytes())
    };
    assert_eq!(within(&one, 600), Some(600));
    assert_eq!(within(&one, 53), Some(53));
    for too_few in [0, 51, 52] {
        assert_eq!(within(&one, too_few), None, "{too_few}");
    }
    for flag in [SYN, RST, URG] {
        assert_eq!(within(&TcpSegment { flags: ACK | flag, ..one.clone() }, 600), None, "{flag}");
    }
    // Signatures, and options that end behind the header.
    for kind in [[19, 18], [29, 16], [8, 0], [8, 1], [8, 21]] {
        let options = [&kind[..], &[1; 18]].concat();
        assert_eq!(within(&TcpSegment { options, ..one.clone() }, 600), None, "{kind:?}");
    }
    let options = [&[1, 1, 5, 10][..], &[9; 8], &[0, 19, 18, 0]].concat();
    assert_eq!(within(&TcpSegment { options, ..one }, 600), Some(600));
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let refused = |packet: &[u8], size| {
        Segments::of(&IpPacket::parse(packet).unwrap(), packet, size).is_none()
    };
    assert!(refused(&udp_v4(b"x"), 100));
    assert!(refused(&segment(vec![1]).packet(), 0));
    assert!(refused(&segment(vec![]).packet(), 100));
    let mut long_header = segment(vec![1]).packet();
    long_header[32] = 0xf0;
    assert!(refused(&long_header, 100));
}

#[test]
fn the_kernels_header_is_read_and_written() {
    let mut header = [0; VNET_HEADER_BYTES];
    assert_eq!(Offload::parse(header), Ok(Offload::Complete));
    header[0] = NEEDS_CHECKSUM;
    header[6..8].copy_from_slice(&20_u16.to_ne_bytes());
    header[8..].copy_from_slice(&6_u16.to_ne_bytes());
    assert_eq!(Offload::parse(header), Ok(Offload::Checksum { start: 20, offset: 6 }));
    header[1] = GSO_TCP_V6 | GSO_ECN;
    header[4..6].copy_from_slice(&1_300_u16.to_ne_bytes());
    assert_eq!(Offload::parse(header), Ok(Offload::TcpSegments { segment_bytes: 1_300 }));
    header[1] = 5;
    assert_eq!(Offload::parse(header), Err(UnknownOffload));
}

#[test]
fn a_checksum_that_the_kernel_left_is_completed() {
    let mut packet = segment(b"data".to_vec()).packet();
    let wanted = packet.clone();
    leave_checksum(&mut packet);
    let offload = Offload::Checksum { start: 20, offset: tcp::CHECKSUM_AT };
    assert!(fill_checksum(&mut packet, offload));
    assert_eq!(packet, wanted);
    assert!(!fill_checksum(&mut packet, Offload::Checksum { start: 20, offset: 60_000 }));
    assert!(!fill_checksum(&mut packet, Offload::Checksum { start: 60_000, offset: 0 }));
    assert!(fill_checksum(&mut packet, Offload::Complete));
}

#[test]
fn a_udp_checksum_is_never_zero() {
    let mut packet = udp_v4(&[0; 2]);
    // The payload completes the sum of everything else to 0xffff.
    let wanted = checksum(sum(&packet[20..]));
    packet[28..30].copy_from_slice(&wanted);
    assert!(fill_checksum(&mut packet, Offload::Checksum { start: 20, offset: 6 }));
    assert_eq!(packet[9], UDP);
    assert_eq!(&packet[26..28], [0xff, 0xff]);
}

/// Three packets that belong together, with one of them changed.
fn run_with(at: usize, change: impl Fn(&mut Vec<u8>)) -> Vec<usize> {
    let mut packets = divided(&segment(vec![7; 300]).packet(), 100);
    change(&mut packets[at]);
    fill_tcp_checksum(&mut packets[at]);
    crate::packet::ecn::fill_v4_checksum(&mut packets[at], 20);
    joined(&packets).iter().map(|(_, one)| one.packets).collect()
}

#[test]
fn packets_with_a_different_header_are_not_joined() {
    assert_eq!(run_with(1, |_| ()), [3]);
    for (what, at) in [
        ("traffic class", 1),
        ("identification", 4),
        ("flags", 6),
        ("TTL", 8),
        ("source", 15),
        ("destination", 19),
        ("source port", 21),
        ("destination port", 23),
        ("acknowledgement", 31),
        ("sequence", 27),
        ("window", 35),
        ("urgent pointer", 39),
        ("timestamp", 47),
    ] {
        assert_eq!(run_with(1, |packet| packet[at] ^= 0x40), [1, 1, 1], "{what}");
        assert_eq!(run_with(2, |packet| packet[at] ^= 0x40), [2, 1], "{what}");
    }
    for flag in [FIN, 0x02, 0x04, 0x20, 0x40, CWR] {
        assert_eq!(run_with(1, |packet| packet[33] |= flag), [1, 1, 1], "{flag:x}");
    }
    assert_eq!(run_with(1, |packet| packet[33] |= PSH), [2, 1]);
    assert_eq!(run_with(0, |packet| packet[33] |= PSH), [1, 2]);
    assert_eq!(run_with(1, |packet| packet[33] = 0), [1, 1, 1]);
}

#[test]
fn a_shorter_packet_is_the_last() {
    let mut packets = divided(&segment(vec![7; 250]).packet(), 100);
    let mut next = segment(vec![7; 100]);
    next.sequence = next.sequence.wrapping_add(250);
    packets.push(next.packet());
    let counts: Vec<_> = joined(&packets).iter().map(|(_, one)| one.packets).collect();
    assert_eq!(counts, [3, 1]);
}

#[test]
fn packets_with_a_wrong_checksum_are_delivered_alone_and_unchanged() {
    for at in [60, 10] {
        for wrong in 0..3 {
            let mut packets = divided(&segment(vec![7; 300]).packet(), 100);
            packets[wrong][at] ^= 1;
            let found = joined(&packets);
            let alone = found.iter().find(|(packet, _)| *packet == packets[wrong]);
            assert_eq!(alone.unwrap().1.vnet_header, [0; VNET_HEADER_BYTES]);
        }
    }
}

#[test]
fn a_constant_identification_is_joined_if_packets_must_not_be_fragmented() {
    let mut packets = divided(&segment(vec![7; 300]).packet(), 100);
    for packet in &mut packets {
        packet[4..6].copy_from_slice(&[0, 0]);
        crate::packet::ecn::fill_v4_checksum(packet, 20);
    }
    assert_eq!(joined(&packets).len(), 1);
    for packet in &mut packets {
        packet[6] = 0;
        crate::packet::ecn::fill_v4_checksum(packet, 20);
    }
    assert_eq!(joined(&packets).len(), 3);
}

#[test]
fn a_large_packet_stays_below_the_limit_of_ip() {
    let mut packets = Vec::new();
    let mut one = TcpSegment { is_v4: false, ..segment(vec![7; 1_300]) };
    for _ in 0..60 {
        packets.push(one.packet());
        one.sequence = one.sequence.wrapping_add(1_300);
    }
    let found = joined(&packets);
    assert_eq!(found.iter().map(|(_, one)| one.packets).sum::<usize>(), 60);
    assert!(found.iter().all(|(packet, _)| packet.len() <= 65_535));
    assert_eq!(found.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn dividing_and_joining_gives_the_same_bytes(
        is_v4 in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 1..4_000),
        segment_bytes in 50_usize..1_400,
        sequence in any::<u32>(),
        is_pushed in any::<bool>(),
    ) {
        let flags = if is_pushed { ACK | PSH } else { ACK };
        let large = TcpSegment { sequence, flags, is_v4, ..segment(payload) };
        let mut packet = large.packet();
        let packets = divided(&packet, segment_bytes);
        packets.iter().for_each(|one| assert_valid(one));
        let found = joined(&packets);
        prop_assert_eq!(found.len(), 1);
        let (back, one) = &found[0];
        prop_assert_eq!(one.packets, packets.len());
        if packets.len() > 1 {
            leave_checksum(&mut packet);
            let offload = Offload::parse(one.vnet_header);
            prop_assert_eq!(offload, Ok(Offload::TcpSegments { segment_bytes }));
        }
        prop_assert_eq!(back, &packet);
    }

    /// Packets of two connections in any order: every byte arrives in the order of its connection.
    #[test]
    fn mixed_packets_keep_their_order(choices in prop::collection::vec(0_usize..2, 1..40)) {
        let mut sequences = [100_u32, 7_000];
        let mut packets = Vec::new();
        for choice in choices {
            let payload = sequences[choice].to_be_bytes().repeat(25);
            let sequence = sequences[choice];
            let one = TcpSegment { is_v4: choice == 0, sequence, ..segment(payload) };
            sequences[choice] += 100;
            packets.push(one.packet());
        }
        let large = joined(&packets);
        let again: Vec<_> = large
            .iter()
            .flat_map(|(packet, one)| match Offload::parse(one.vnet_header).unwrap() {
                Offload::TcpSegments { segment_bytes } => {
                    // The identification of these packets is constant, and grows when divided.
                    divided(packet, segment_bytes)
                }
                _ => vec![packet.clone()],
            })
            .map(|packet| packet[packet.len() - 100..].to_vec())
            .collect();
        let sent: Vec<_> =
            packets.iter().map(|packet| packet[packet.len() - 100..].to_vec()).collect();
        prop_assert_eq!(again, sent);
    }

    #[test]
    fn arbitrary_packets_are_joined_without_panic(
        bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..8),
    ) {
        let mut packets = bytes;
        for packet in &mut packets {
            if packet.len() >= 20 {
                let length = u16::try_from(packet.len()).unwrap().to_be_bytes();
                packet[0] = 0x45;
                packet[2..4].copy_from_slice(&length);
                packet[6..8].copy_from_slice(&[0x40, 0]);
                packet[9] = 6;
            }
        }
        packets.retain(|packet| IpPacket::parse(packet).is_ok());
        joined(&packets);
    }
}
