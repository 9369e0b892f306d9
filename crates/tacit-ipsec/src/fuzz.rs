//! Provides entry points for fuzzing the code that processes IPsec packets. [`esp`] decrypts ESP
//! packets, joins the inner packets into large packets, and divides the large packets again.
//! [`without_udp`] processes AH packets, and ESP packets without UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::child::{
    ChildSa, EspSpi, KeyOrigin, ReplayCheck, SaKeys, SaMode, SaProtocol, UnderlayEnds,
};
use crate::cipher::{Cipher, IntegrityHash};
use crate::esp::{DataLifetime, InboundSa, Opened, OutboundSa, OuterPacket, UdpContent};
use crate::offload::{
    COALESCED_MAX, Offload, OpenedPacket, Segments, VNET_HEADER_BYTES, coalesce, fill_checksum,
};
use crate::packet::IpPacket;
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// Reads bytes as datagrams of the peer. The first byte selects the cipher; before each datagram
/// are its length, in two bytes, and its kind:
///
/// * an ESP packet of a stranger;
/// * the plaintext of an ESP packet, which this function seals, so that it is authentic;
/// * an inner packet.
///
/// Then the inner packets are joined and divided again.
///
/// # Panics
///
/// If joining and dividing does not give the same packets, or lengths are wrong.
pub fn esp(input: &[u8]) {
    let Some((&choice, mut rest)) = input.split_first() else { return };
    let Some(mut tunnel) = Tunnel::new(CIPHERS[usize::from(choice) % CIPHERS.len()]) else {
        return;
    };
    let mut buffer = Vec::new();
    let mut packets = Vec::new();
    while let Some((&[high, low, kind], after)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high & 7, low])).min(after.len());
        let (bytes, after) = after.split_at(length);
        rest = after;
        match kind % 4 {
            0 => tunnel.open(bytes.to_vec(), kind),
            1 => tunnel.open_authentic(bytes, kind),
            2 => offloaded(bytes, kind),
            _ => {}
        }
        let Ok(parsed) = IpPacket::parse(bytes) else { continue };
        assert!(parsed.transport_at <= parsed.bytes && parsed.bytes <= bytes.len());
        let place = buffer.len()..buffer.len() + parsed.bytes;
        buffer.extend_from_slice(&bytes[..parsed.bytes]);
        packets.push(OpenedPacket { parsed, place });
    }
    joined(&mut buffer, &packets);
}

/// Reads bytes as packets of manual SAs without UDP, between 10.1.0.1 and 10.2.0.1 or fd01::1 and
/// fd02::1. The first byte selects the SAs: AH or ESP, tunnel or transport mode, the IP version and
/// the hash; before each packet are its length, in two bytes, and its kind:
///
/// * an IP packet of a stranger;
/// * an IP packet with AH, which this function signs, so that it is authentic;
/// * a packet of a program, which this function seals.
///
/// # Panics
///
/// If a delivered packet is not the one that was checked, or a packet is delivered twice.
pub fn without_udp(input: &[u8]) {
    let Some((&choice, mut rest)) = input.split_first() else { return };
    let Some((mut outbound, mut inbound)) = sas_without_udp(choice) else { return };
    while let Some((&[high, low, kind], after)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high & 7, low])).min(after.len());
        let (bytes, after) = after.split_at(length);
        rest = after;
        let mut packet = bytes.to_vec();
        match kind % 3 {
            0 => {}
            1 => {
                let Ok(outer) = OuterPacket::parse(&packet) else { continue };
                if inbound.sign_ah(&mut packet, &outer).is_err() {
                    continue;
                }
            }
            _ => {
                packet = vec![0; outbound.frame_bytes(bytes.len())];
                if outbound.seal_packet(&mut packet, bytes).is_err() {
                    continue;
                }
                if choice & 1 == 0 {
                    packet = [ip_header(choice, packet.len()), packet].concat();
                }
            }
        }
        if open_without_udp(&mut inbound, &packet) {
            assert!(!open_without_udp(&mut inbound, &packet), "a packet was delivered twice");
        }
    }
}

/// Opens a packet. Returns whether it was delivered.
fn open_without_udp(inbound: &mut InboundSa, packet: &[u8]) -> bool {
    let Ok(outer) = OuterPacket::parse(packet) else { return false };
    let mut packet = packet.to_vec();
    let Ok(Opened::Packet(parsed, place)) = inbound.open_without_udp(&mut packet, &outer) else {
        return false;
    };
    assert_eq!(packet.get(place).map(IpPacket::parse), Some(Ok(parsed)));
    true
}

/// SAs of this end with itself, which the bits of a byte select.
fn sas_without_udp(choice: u8) -> Option<(OutboundSa, InboundSa)> {
    let [is_ah, is_transport, is_v4] = [1, 2, 4].map(|bit| choice & bit != 0);
    let hash = match choice >> 3 & 3 {
        0 => IntegrityHash::Sha384,
        1 => IntegrityHash::Sha512,
        _ => IntegrityHash::Sha256,
    };
    let cipher = Cipher::Aes128Cbc(hash);
    let [near, far] = if is_v4 { [NEAR_V4, FAR_V4] } else { [NEAR_V6, FAR_V6] };
    let selector = |ends: [IpAddr; 2]| {
        let all = ends.map(|end| TrafficSelector::of_addresses(end, end));
        all.into_iter().collect::<Option<Vec<_>>>()
    };
    let child = |local, remote| {
        let ends = UnderlayEnds { local, remote };
        let keys = || {
            let encryption = SecretBytes::new(vec![7; if is_ah { 0 } else { cipher.key_bytes() }]);
            let integrity = SecretBytes::new(vec![9; hash.key_bytes()]);
            Some(SaKeys { spi: EspSpi::new(0x1234_5678)?, encryption, integrity })
        };
        Some(ChildSa {
            protocol: match is_ah {
                true => SaProtocol::Ah(hash, ends),
                false => SaProtocol::Esp(cipher, ends),
            },
            origin: KeyOrigin::Manual { nonce: [5; 8], replay: ReplayCheck::On },
            mode: match is_transport {
                true => SaMode::Transport { local, remote },
                false => SaMode::Tunnel,
            },
            has_extended_sequence: false,
            inbound: keys()?,
            outbound: keys()?,
            local: selector([NEAR_V4, NEAR_V6])?,
            remote: selector([FAR_V4, FAR_V6])?,
        })
    };
    let outbound = OutboundSa::new(&child(near, far)?, DataLifetime::UNLIMITED).ok()?;
    let mut inbound = InboundSa::new(&child(far, near)?, DataLifetime::UNLIMITED).ok()?;
    inbound.set_selectors(selector([FAR_V4, FAR_V6])?, selector([NEAR_V4, NEAR_V6])?);
    Some((outbound, inbound))
}

/// The header that the kernel writes before an ESP packet.
fn ip_header(choice: u8, payload_bytes: usize) -> Vec<u8> {
    let high_and_low = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    if choice & 4 != 0 {
        let [high, low] = high_and_low(20 + payload_bytes);
        let mut header = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, 50, 0, 0];
        header.extend([10, 1, 0, 1, 10, 2, 0, 1]);
        return header;
    }
    let [high, low] = high_and_low(payload_bytes);
    let mut header = vec![0x60, 0, 0, 0, high, low, 50, 64];
    for end in [NEAR_V6, FAR_V6] {
        if let IpAddr::V6(end) = end {
            header.extend(end.octets());
        }
    }
    header
}

const NEAR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
const FAR_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 1));
const NEAR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1));
const FAR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd02, 0, 0, 0, 0, 0, 0, 1));

/// Both directions of a tunnel with itself.
struct Tunnel {
    cipher: Cipher,
    outbound: OutboundSa,
    inbound: InboundSa,
}

impl Tunnel {
    fn new(cipher: Cipher) -> Option<Self> {
        let keys = || {
            let encryption = vec![7; cipher.key_bytes() + cipher.salt_bytes()];
            let integrity = SecretBytes::new(vec![9; cipher.integrity_key_bytes()]);
            let spi = EspSpi::new(0x1234_5678)?;
            Some(SaKeys { spi, encryption: SecretBytes::new(encryption), integrity })
        };
        let net = |third| {
            let last = [10, third, 255, 255].into();
            TrafficSelector::of_addresses([10, third, 0, 0].into(), last)
        };
        let child = ChildSa {
            protocol: SaProtocol::EspInUdp(cipher),
            origin: KeyOrigin::Ike,
            mode: SaMode::Tunnel,
            has_extended_sequence: true,
            inbound: keys()?,
            outbound: keys()?,
            local: vec![net(1)?],
            remote: vec![net(2)?],
        };
        Some(Self {
            cipher,
            outbound: OutboundSa::new(&child, DataLifetime::UNLIMITED).ok()?,
            inbound: InboundSa::new(&child, DataLifetime::UNLIMITED).ok()?,
        })
    }

    fn open(&mut self, mut frame: Vec<u8>, traffic_class: u8) {
        let _ = UdpContent::of(&frame);
        // Both results are valid.
        if let Ok(Opened::Packet(packet, place)) = self.inbound.open(&mut frame, traffic_class) {
            assert_eq!(place.len(), packet.bytes);
            let again = frame.get(place).map(IpPacket::parse);
            assert_eq!(
                again,
                Some(Ok(packet)),
                "the delivered packet must be the packet that was checked"
            );
        }
    }

    /// Seals a plaintext with its padding and next header as they are.
    fn open_authentic(&mut self, text: &[u8], traffic_class: u8) {
        let header = vec![0; self.outbound.header_bytes()];
        let icv = vec![0; self.cipher.icv_bytes()];
        let mut frame = [&header[..], text, &icv].concat();
        // CBC encrypts whole blocks only.
        if self.outbound.seal_frame(&mut frame).is_ok() {
            self.open(frame, traffic_class);
        }
    }
}

/// A packet of a program as the kernel passes it: a `virtio_net_hdr`, then the packet.
fn offloaded(bytes: &[u8], kind: u8) {
    let Some((header, packet)) = bytes.split_first_chunk::<VNET_HEADER_BYTES>() else { return };
    let Ok(offload) = Offload::parse(*header) else { return };
    let _ = fill_checksum(&mut packet.to_vec(), offload);
    let Ok(parsed) = IpPacket::parse(packet) else { return };
    let segment_bytes = match offload {
        Offload::TcpSegments { segment_bytes } => segment_bytes,
        _ => usize::from(kind),
    };
    divide(&parsed, packet, segment_bytes.max(MSS_MIN));
}

fn divide(parsed: &IpPacket, packet: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
    let mut divided = Vec::new();
    let Some(mut segments) = Segments::of(parsed, packet, segment_bytes) else { return divided };
    while let Some(bytes) = segments.next_bytes() {
        assert!(bytes <= packet.len());
        let mut one = vec![0; bytes];
        segments.write_next(&mut one);
        divided.push(one);
    }
    divided
}

/// Joins the packets, divides the large ones again, and compares.
fn joined(buffer: &mut [u8], packets: &[OpenedPacket]) {
    let before = buffer.to_vec();
    let mut rest = packets;
    while let Some(first) = rest.first() {
        let one = coalesce(buffer, rest);
        assert!((1..=COALESCED_MAX.min(rest.len())).contains(&one.packets));
        let (taken, after) = rest.split_at(one.packets);
        rest = after;
        if one.packets == 1 {
            assert_eq!(buffer[first.place.clone()], before[first.place.clone()]);
            continue;
        }
        let mut large = buffer[first.place.clone()].to_vec();
        for other in &taken[1..] {
            large.extend_from_slice(&buffer[other.place.start + one.payload_at..other.place.end]);
        }
        let Ok(Offload::TcpSegments { segment_bytes }) = Offload::parse(one.vnet_header) else {
            panic!(
                "the virtio-net header of a large packet has no segment size: the kernel could not \
                 segment the packet"
            );
        };
        let Ok(parsed) = IpPacket::parse(&large) else {
            panic!("the packets were joined into a large packet that is not a valid IP packet")
        };
        for (again, original) in divide(&parsed, &large, segment_bytes).iter().zip(taken) {
            let mut again = again.clone();
            let mut original = before[original.place.clone()].to_vec();
            assert_eq!(again.len(), original.len());
            if parsed.is_v4() {
                // Packets that must not be fragmented may all have the same identification.
                for packet in [&mut again, &mut original] {
                    packet[4..6].fill(0);
                    packet[10..12].fill(0);
                }
            }
            assert_eq!(again, original);
        }
    }
}

const CIPHERS: [Cipher; 3] =
    [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305, Cipher::Aes128Cbc(IntegrityHash::Sha256)];
/// The kernel divides into segments of at least this length; smaller ones only take time.
const MSS_MIN: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..600)) {
            esp(&bytes);
            without_udp(&bytes);
        }
    }
}
