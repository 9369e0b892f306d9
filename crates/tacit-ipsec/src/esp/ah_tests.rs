#![expect(
    clippy::fn_params_excessive_bools,
    reason = "the tests have each combination of mode and IP version"
)]

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::child::{
    ChildSa, EspSpi, KeyOrigin, ReplayCheck, SaKeys, SaMode, SaProtocol, UnderlayEnds,
};
use crate::cipher::{Cipher, IntegrityHash};
use crate::packet::IpPacket;
use crate::packet::testing::{udp_v4, udp_v6, v4, v6};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

const HASHES: [IntegrityHash; 3] =
    [IntegrityHash::Sha256, IntegrityHash::Sha384, IntegrityHash::Sha512];
const LIFETIME: DataLifetime = DataLifetime::UNLIMITED;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The ends of the test packets, which are those of the underlay too.
fn ends(is_v4: bool) -> UnderlayEnds {
    let [local, remote] =
        if is_v4 { ["10.1.0.1", "10.2.0.1"] } else { ["fd01::1", "fd02::1"] }.map(address);
    UnderlayEnds { local, remote }
}

fn child(protocol: SaProtocol, is_transport: bool) -> ChildSa {
    let ends = protocol.ends().unwrap();
    let keys = |spi, fill: u8| {
        let (encryption, integrity) = match protocol {
            SaProtocol::Ah(hash, _) => (0, hash.key_bytes()),
            SaProtocol::Esp(cipher, _) | SaProtocol::EspInUdp(cipher) => {
                (cipher.key_bytes(), cipher.integrity_key_bytes())
            }
        };
        let key = |bytes| SecretBytes::new(vec![fill; bytes]);
        let spi = EspSpi::new(spi).unwrap();
        SaKeys { spi, encryption: key(encryption), integrity: key(integrity) }
    };
    let all = |first: &str, last: &str| {
        TrafficSelector::of_addresses(address(first), address(last)).unwrap()
    };
    let local = vec![all("10.1.0.0", "10.1.0.255"), all("fd01::", "fd01::ff")];
    let remote = vec![all("10.2.0.0", "10.2.0.255"), all("fd02::", "fd02::ff")];
    ChildSa {
        protocol,
        origin: KeyOrigin::Manual { nonce: [3; 8], replay: ReplayCheck::On },
        mode: match is_transport {
            true => SaMode::Transport { local: ends.local, remote: ends.remote },
            false => SaMode::Tunnel,
        },
        has_extended_sequence: false,
        inbound: keys(0x1001, 1),
        outbound: keys(0x1002, 2),
        local,
        remote,
    }
}

/// The same SAs as their other end sees them.
fn reversed(child: &ChildSa) -> ChildSa {
    let turned = |ends: UnderlayEnds| UnderlayEnds { local: ends.remote, remote: ends.local };
    let child = child.clone();
    ChildSa {
        protocol: match child.protocol {
            SaProtocol::EspInUdp(cipher) => SaProtocol::EspInUdp(cipher),
            SaProtocol::Esp(cipher, ends) => SaProtocol::Esp(cipher, turned(ends)),
            SaProtocol::Ah(hash, ends) => SaProtocol::Ah(hash, turned(ends)),
        },
        mode: match child.mode {
            SaMode::Tunnel => SaMode::Tunnel,
            SaMode::Transport { local, remote } => {
                SaMode::Transport { local: remote, remote: local }
            }
        },
        inbound: child.outbound,
        outbound: child.inbound,
        local: child.remote,
        remote: child.local,
        ..child
    }
}

fn pair(child: &ChildSa) -> (OutboundSa, InboundSa) {
    (OutboundSa::new(child, LIFETIME).unwrap(), InboundSa::new(&reversed(child), LIFETIME).unwrap())
}

fn seal(outbound: &mut OutboundSa, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xaa; outbound.frame_bytes(packet.len())];
    assert_eq!(outbound.seal_packet(&mut frame, packet), Ok(frame.len()));
    frame
}

fn open(inbound: &mut InboundSa, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
    let outer = OuterPacket::parse(packet)?;
    let mut packet = packet.to_vec();
    match inbound.open_without_udp(&mut packet, &outer)? {
        Opened::Packet(parsed, place) => {
            let opened = packet[place].to_vec();
            assert_eq!(IpPacket::parse(&opened), Ok(parsed));
            Ok(opened)
        }
        Opened::Dummy => Ok(Vec::new()),
    }
}

/// A packet without the fields of its header that transport mode does not keep.
fn comparable(mut packet: Vec<u8>) -> Vec<u8> {
    match packet[0] >> 4 {
        4 => [4, 5, 6, 7, 8, 10, 11].into_iter().for_each(|at| packet[at] = 0),
        _ => packet[7] = 0,
    }
    packet
}

/// All SAs with AH, for each IP version of the underlay.
fn of_ah() -> Vec<(IntegrityHash, bool, bool)> {
    let of_hash = |hash| {
        [(true, true), (true, false), (false, true), (false, false)]
            .map(|(is_v4, is_transport)| (hash, is_v4, is_transport))
    };
    HASHES.into_iter().flat_map(of_hash).collect()
}

fn inner(is_v4: bool, payload: &[u8]) -> Vec<u8> {
    if is_v4 { udp_v4(payload) } else { udp_v6(payload) }
}

#[test]
fn ah_returns_what_was_sealed_and_has_the_lengths_of_the_rfcs() {
    for (hash, is_v4, is_transport) in of_ah() {
        let sa = child(SaProtocol::Ah(hash, ends(is_v4)), is_transport);
        let (mut outbound, mut inbound) = pair(&sa);
        // RFC 4868 section 2.1.1 and RFC 4302 section 3.3.3.2.1.
        let ah_bytes = match (hash, is_v4) {
            (IntegrityHash::Sha256, true) => 28,
            (IntegrityHash::Sha256, false) => 32,
            (IntegrityHash::Sha384, true) => 36,
            (IntegrityHash::Sha384, false) => 40,
            (IntegrityHash::Sha512, true) => 44,
            (IntegrityHash::Sha512, false) => 48,
        };
        for length in 0..40 {
            let packet = inner(is_v4, &vec![7; length]);
            let frame = seal(&mut outbound, &packet);
            let header = if is_v4 { 20 } else { 40 };
            let content = if is_transport { packet.len() - header } else { packet.len() };
            assert_eq!(frame.len(), header + ah_bytes + content);
            assert_eq!(usize::from(frame[header + 1]), ah_bytes / 4 - 2);
            let opened = open(&mut inbound, &frame).unwrap();
            assert_eq!(comparable(opened), comparable(packet), "{hash:?} {is_v4} {is_transport}");
        }
        assert_eq!(inbound.counters().packets(), 40);
        assert_eq!(inbound.counters().bytes(), outbound.counters().bytes());
    }
}

/// Whether routers may change a bit of the outer header (RFC 4302 section 3.3.3.1).
fn is_mutable(is_v4: bool, at: usize) -> bool {
    if is_v4 { matches!(at, 1 | 6 | 7 | 8 | 10 | 11) } else { matches!(at, 1..=3 | 7) }
}

#[test]
fn ah_refuses_every_flipped_bit_except_those_that_routers_change() {
    for (hash, is_v4, is_transport) in of_ah() {
        let sa = child(SaProtocol::Ah(hash, ends(is_v4)), is_transport);
        let (mut outbound, mut inbound) = pair(&sa);
        let frame = seal(&mut outbound, &inner(is_v4, b"content"));
        for bit in 0..frame.len() * 8 {
            let at = bit / 8;
            let mut changed = frame.clone();
            changed[at] ^= 1 << (bit % 8);
            // The lower half of the first byte of IPv6 is part of the traffic class.
            let is_class = !is_v4 && at == 0 && bit % 8 < 4;
            if is_mutable(is_v4, at) || is_class {
                continue;
            }
            let result = open(&mut inbound, &changed);
            assert!(result.is_err(), "{hash:?} {is_v4} {is_transport} bit {bit}: {result:?}");
        }
        // Routers: TTL, DSCP and the checksum.
        let mut changed = frame.clone();
        if is_v4 {
            changed[1] ^= 0x40;
            changed[8] = 3;
            changed[10] ^= 7;
        } else {
            changed[2] ^= 7;
            changed[7] = 3;
        }
        assert!(open(&mut inbound, &changed).is_ok(), "{hash:?} {is_v4} {is_transport}");
        assert_eq!(open(&mut inbound, &frame), Err(DropReason::Replayed));
    }
}

#[test]
fn ah_covers_options_and_extension_headers_without_their_mutable_parts() {
    let hash = IntegrityHash::Sha256;
    // Router alert, which stays, and a recorded route, which routers write.
    let options = [148, 4, 0, 0, 7, 7, 4, 9, 9, 9, 9, 0];
    let sa = child(SaProtocol::Ah(hash, ends(true)), true);
    let (mut outbound, mut inbound) = pair(&sa);
    let with_options = signed(&sa, &seal(&mut outbound, &udp_v4(b"x")), 20, &options, None);
    let mut changed = with_options.clone();
    changed[27..31].fill(5);
    let opened = open(&mut inbound, &changed).unwrap();
    assert_eq!(IpPacket::parse(&opened).unwrap().transport_at, 32, "the options stay");
    let mut changed = with_options;
    changed[23] ^= 1;
    assert_eq!(open(&mut inbound, &changed), Err(DropReason::Replayed));
    let (_, mut inbound) = pair(&sa);
    assert_eq!(open(&mut inbound, &changed), Err(DropReason::Integrity), "router alert");

    // Hop-by-hop options: one that may change, and one that does not.
    let extension = [51, 1, 0x3e, 4, 1, 2, 3, 4, 0x1e, 4, 1, 2, 3, 4, 1, 0];
    let sa = child(SaProtocol::Ah(hash, ends(false)), true);
    let (mut outbound, mut inbound) = pair(&sa);
    let with_extension = signed(&sa, &seal(&mut outbound, &udp_v6(b"x")), 40, &extension, Some(0));
    let mut changed = with_extension.clone();
    changed[44..48].fill(9);
    let opened = open(&mut inbound, &changed).unwrap();
    let parsed = IpPacket::parse(&opened).unwrap();
    assert_eq!((parsed.transport_at, parsed.ports), (56, Some((4000, 53))));
    let mut changed = with_extension;
    changed[50] ^= 1;
    let (_, mut inbound) = pair(&sa);
    assert_eq!(open(&mut inbound, &changed), Err(DropReason::Integrity));
}

/// Inserts options or an extension header into a sealed packet, and computes its ICV.
fn signed(
    sa: &ChildSa,
    frame: &[u8],
    header_bytes: usize,
    inserted: &[u8],
    next_header: Option<u8>,
) -> Vec<u8> {
    let mut packet = [&frame[..header_bytes], inserted, &frame[header_bytes..]].concat();
    match next_header {
        None => {
            packet[0] = 0x40 | u8::try_from((header_bytes + inserted.len()) / 4).unwrap();
            let total = u16::try_from(packet.len()).unwrap().to_be_bytes();
            packet[2..4].copy_from_slice(&total);
        }
        Some(number) => {
            packet[6] = number;
            let length = u16::try_from(packet.len() - 40).unwrap().to_be_bytes();
            packet[4..6].copy_from_slice(&length);
        }
    }
    let (_, mut receiver) = pair(sa);
    let outer = OuterPacket::parse(&packet).unwrap();
    receiver.sign_ah(&mut packet, &outer).unwrap();
    packet
}

#[test]
fn packets_between_other_hosts_or_of_another_protocol_are_dropped() {
    let cipher = Cipher::Aes128Cbc(IntegrityHash::Sha256);
    for is_v4 in [true, false] {
        let header = if is_v4 { 20 } else { 40 };
        for protocol in [
            SaProtocol::Ah(IntegrityHash::Sha256, ends(is_v4)),
            SaProtocol::Esp(cipher, ends(is_v4)),
        ] {
            let sa = child(protocol, false);
            let (mut outbound, mut inbound) = pair(&sa);
            let mut packet = seal(&mut outbound, &udp_v4(b"x"));
            if matches!(protocol, SaProtocol::Esp(..)) {
                packet = with_header(is_v4, &packet);
            }
            let mut forged = packet.clone();
            forged[if is_v4 { 15 } else { 23 }] ^= 1;
            assert_eq!(open(&mut inbound, &forged), Err(DropReason::OuterAddress));
            let mut elsewhere = packet.clone();
            elsewhere[header - 1] ^= 1;
            assert_eq!(open(&mut inbound, &elsewhere), Err(DropReason::OuterAddress));
            // The same SPI, but another protocol, or in UDP.
            let mut other = packet.clone();
            let at = if is_v4 { 9 } else { 6 };
            other[at] = if other[at] == 50 { 51 } else { 50 };
            let outer = OuterPacket::parse(&packet).unwrap();
            let result = OuterPacket::parse(&other).and_then(|parsed| {
                let outer = OuterPacket { spi: outer.spi, ..parsed };
                inbound.open_without_udp(&mut other.clone(), &outer).map(|_| ())
            });
            assert!(matches!(result, Err(DropReason::UnknownSpi | DropReason::Malformed)));
            assert_eq!(inbound.open(&mut packet.clone(), 0), Err(DropReason::UnknownSpi));
            for length in 0..packet.len() {
                assert!(open(&mut inbound, &packet[..length]).is_err(), "{length}");
            }
            assert_eq!(open(&mut inbound, &packet), Ok(udp_v4(b"x")));
        }
    }
}

/// An ESP packet with the header that the kernel writes.
fn with_header(is_v4: bool, frame: &[u8]) -> Vec<u8> {
    if is_v4 { v4(50, frame) } else { v6(50, frame) }
}

#[test]
fn esp_without_udp_returns_what_was_sealed_in_both_modes() {
    let cipher = Cipher::Aes256Cbc(IntegrityHash::Sha512);
    for (is_v4, is_transport) in [(true, true), (true, false), (false, true), (false, false)] {
        let sa = child(SaProtocol::Esp(cipher, ends(is_v4)), is_transport);
        let (mut outbound, mut inbound) = pair(&sa);
        for length in 0..40 {
            let packet = inner(is_v4, &vec![7; length]);
            let frame = with_header(is_v4, &seal(&mut outbound, &packet));
            let opened = open(&mut inbound, &frame).unwrap();
            let at = if is_v4 { 20 } else { 40 };
            assert_eq!(opened[at..], packet[at..]);
        }
    }
}

#[test]
fn ah_fragments_reserved_spis_and_wrong_lengths_are_malformed() {
    let sa = child(SaProtocol::Ah(IntegrityHash::Sha256, ends(true)), true);
    let (mut outbound, mut inbound) = pair(&sa);
    let frame = seal(&mut outbound, &udp_v4(b"x"));
    for (at, value) in [(6, 0x20), (7, 1), (9, 6), (21, 3), (21, 9), (21, 255), (24, 0)] {
        let mut changed = frame.clone();
        changed[at] = value;
        if at == 24 {
            changed[24..28].copy_from_slice(&[0, 0, 0, 255]);
        }
        assert_eq!(open(&mut inbound, &changed), Err(DropReason::Malformed), "{at} {value}");
    }
    // A key for encryption does not belong to AH.
    let mut keys = sa;
    keys.outbound.encryption = SecretBytes::new(vec![1; 16]);
    assert!(OutboundSa::new(&keys, LIFETIME).is_err());
}

#[test]
fn ah_in_the_other_mode_and_of_other_flows_is_dropped() {
    let protocol = SaProtocol::Ah(IntegrityHash::Sha256, ends(true));
    let (mut of_tunnel, mut tunnel) = pair(&child(protocol, false));
    let (mut of_transport, mut transport) = pair(&child(protocol, true));
    let frame = seal(&mut of_tunnel, &udp_v4(b"x"));
    assert_eq!(open(&mut transport, &frame), Err(DropReason::NextHeader));
    let frame = seal(&mut of_transport, &udp_v4(b"x"));
    assert_eq!(open(&mut tunnel, &frame), Err(DropReason::NextHeader));
    tunnel.set_selectors(Vec::new(), Vec::new());
    let frame = seal(&mut of_tunnel, &udp_v4(b"x"));
    assert_eq!(open(&mut tunnel, &frame), Err(DropReason::Selectors));
    // The last number, after which the SA ends.
    of_tunnel.set_sequence(u64::from(u32::MAX) - 1);
    assert_eq!(of_tunnel.lifetime_state(), LifetimeState::RekeyDue);
    let _ = seal(&mut of_tunnel, &udp_v4(b"x"));
    let mut frame = vec![0; 200];
    assert_eq!(of_tunnel.seal_packet(&mut frame, &udp_v4(b"x")), Err(DropReason::Expired));
}

proptest! {
    #[test]
    fn ah_and_esp_return_every_content(
        content in vec(any::<u8>(), 0..300),
        is_v4: bool,
        is_transport: bool,
        hash in 0..3_usize,
        is_ah: bool,
    ) {
        let protocol = match is_ah {
            true => SaProtocol::Ah(HASHES[hash], ends(is_v4)),
            false => SaProtocol::Esp(Cipher::Aes128Cbc(HASHES[hash]), ends(is_v4)),
        };
        let (mut outbound, mut inbound) = pair(&child(protocol, is_transport));
        let packet = inner(is_v4, &content);
        let mut frame = seal(&mut outbound, &packet);
        if !is_ah {
            frame = with_header(is_v4, &frame);
        }
        let opened = open(&mut inbound, &frame).unwrap();
        let at = if is_v4 { 20 } else { 40 };
        prop_assert_eq!(&opened[at..], &packet[at..]);
        prop_assert_eq!(open(&mut inbound, &frame), Err(DropReason::Replayed));
    }

    #[test]
    fn arbitrary_packets_are_dropped(
        mut packet in vec(any::<u8>(), 0..200),
        is_v4: bool,
        is_ah: bool,
    ) {
        let protocol = match is_ah {
            true => SaProtocol::Ah(IntegrityHash::Sha256, ends(is_v4)),
            false => SaProtocol::Esp(Cipher::Aes128Cbc(IntegrityHash::Sha256), ends(is_v4)),
        };
        let (_, mut inbound) = pair(&child(protocol, false));
        prop_assert!(open(&mut inbound, &packet).is_err());
        // The same with a header that fits.
        packet.truncate(160);
        packet.splice(..0, [0x12, 0x34, 0, 0x10, 2, 0, 0, 0]).for_each(drop);
        let number = if is_ah { 51 } else { 50 };
        let whole = match is_v4 {
            true => v4(number, &packet),
            false => v6(number, &packet),
        };
        prop_assert!(open(&mut inbound, &whole).is_err());
    }
}
