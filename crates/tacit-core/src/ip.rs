//! Parses and writes headers and checksums of IP packets (RFC 791, RFC 8200, RFC 1071).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocol numbers.
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const HEADER_V4_BYTES: usize = 20;
pub(crate) const HEADER_V6_BYTES: usize = 40;

const HOPS: u8 = 64;
/// The packet is a fragment: more fragments follow, or it is not the first one.
const FRAGMENT_V4: u16 = 0x3fff;

/// The parsed IP header of a packet.
pub(crate) struct IpHeader {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) header_bytes: usize,
}

impl IpHeader {
    /// Parses the header of a packet of this protocol; `None` for another packet, a fragment, or an
    /// IPv6 packet with extension headers.
    pub(crate) fn parse(packet: &[u8], protocol: u8) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet, protocol),
            6 => Self::parse_v6(packet, protocol),
            _ => None,
        }
    }

    fn parse_v4(packet: &[u8], protocol: u8) -> Option<Self> {
        let header_bytes = usize::from(packet.first()? & 0xf) * 4;
        let is_fragment = field16(packet, 6)? & FRAGMENT_V4 != 0;
        if header_bytes < HEADER_V4_BYTES || *packet.get(9)? != protocol || is_fragment {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let [source, destination] = [address(12)?.into(), address(16)?.into()];
        Some(Self { source, destination, header_bytes })
    }

    fn parse_v6(packet: &[u8], protocol: u8) -> Option<Self> {
        if *packet.get(6)? != protocol {
            return None;
        }
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        let [source, destination] = [address(8)?.into(), address(24)?.into()];
        Some(Self { source, destination, header_bytes: HEADER_V6_BYTES })
    }
}

/// Reads a big-endian number.
pub(crate) fn field16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// RFC 791, section 3.1: no options, don't fragment.
pub(crate) fn header_v4(
    protocol: u8,
    payload_bytes: usize,
    from: Ipv4Addr,
    to: Ipv4Addr,
) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&length_field(HEADER_V4_BYTES + payload_bytes));
    header.extend_from_slice(&[0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    fill_checksum(&mut header, 10, 0);
    header
}

/// RFC 8200, section 3.
pub(crate) fn header_v6(
    protocol: u8,
    payload_bytes: usize,
    from: Ipv6Addr,
    to: Ipv6Addr,
) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend_from_slice(&length_field(payload_bytes));
    header.extend_from_slice(&[protocol, HOPS]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    header
}

/// Encodes a length field. A longer packet gets the maximum length.
pub(crate) fn length_field(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

/// The sum of the pseudo-header for checksums of TCP and ICMPv6 (RFC 9293, section 3.1; RFC 8200,
/// section 8.1).
pub(crate) fn pseudo_header(protocol: u8, from: IpAddr, to: IpAddr, payload_bytes: usize) -> u32 {
    let length = u32::try_from(payload_bytes).unwrap_or(u32::MAX);
    let address = |address: IpAddr| match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    };
    address(from) + address(to) + sum(&length.to_be_bytes()) + u32::from(protocol)
}

/// Writes the Internet checksum (RFC 1071) of `bytes` at `at`; these bytes must be zero.
pub(crate) fn fill_checksum(bytes: &mut [u8], at: usize, more: u32) {
    let checksum = folded(sum(bytes) + more);
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&(!checksum).to_be_bytes());
    }
}

/// Packets are shorter than 64 KiB, so the sum fits into 32 bits.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let pairs = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>();
    pairs + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

pub(crate) fn folded(mut sum: u32) -> u16 {
    while let Err(_overflow) = u16::try_from(sum) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // After the loop the sum fits into 16 bits.
    u16::try_from(sum).unwrap_or(u16::MAX)
}
