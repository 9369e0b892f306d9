//! Parses the headers of IP packets: addresses, protocol, ports, and the ECN field.
//!
//! ```text
//! IPv4 or IPv6 header ─ extension headers (IPv6) ─ ports, or type and code ─ payload ─ (padding)
//! └─────────────────── IpPacket::parse reads ────────────────────────┘
//! └─────────────────────── IpPacket::bytes (length) ──────────────────────────────┘
//! ```
//!
//! The bytes are untrusted, because a program or a peer chooses them. If a packet is shorter than
//! the length in its headers, the parser returns an error. Bytes after the packet are ignored,
//! because they may be padding (RFC 4303 section 2.7).
//!
//! Limit: a packet has at most [`EXTENSION_HEADERS_MAX`] IPv6 extension headers. Jumbograms (RFC
//! 2675) are refused.

pub(crate) mod checksum;
pub(crate) mod ecn;
pub(crate) mod tcp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ecn::traffic_class;

/// The largest number of IPv6 extension headers before the upper protocol.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// The length of an IPv4 header without options.
pub(crate) const V4_HEADER_BYTES: usize = 20;
/// The length of the fixed IPv6 header.
pub(crate) const V6_HEADER_BYTES: usize = 40;
pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

/// What the headers of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// The sender.
    pub source: IpAddr,
    /// The receiver.
    pub destination: IpAddr,
    /// The upper protocol; in IPv6, the one after the extension headers.
    pub protocol: u8,
    /// The ports of source and destination. For ICMP both are type and code, as in traffic
    /// selectors (RFC 7296 section 3.13.1). `None`: the protocol has no ports, or the packet is a
    /// fragment without them.
    pub ports: Option<(u16, u16)>,
    /// The offset of the upper protocol's header.
    pub transport_at: usize,
    /// The length of the packet in bytes, which may be less than that of the buffer.
    pub bytes: usize,
    /// Whether this is a part of a larger packet.
    pub is_fragment: bool,
}

/// Why bytes are not an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketError {
    /// The version is neither 4 nor 6.
    Version,
    /// The packet ends inside a header, or before the end that its header states.
    Truncated,
    /// A length field contradicts the header that contains it.
    Length,
    /// There are more than [`EXTENSION_HEADERS_MAX`] extension headers.
    ExtensionHeaders,
}

impl IpPacket {
    /// Parses the headers at the start of a buffer.
    ///
    /// # Errors
    /// The bytes are not a complete packet.
    pub fn parse(bytes: &[u8]) -> Result<Self, PacketError> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => parse_v4(bytes),
            Some(6) => parse_v6(bytes),
            Some(_) => Err(PacketError::Version),
            None => Err(PacketError::Truncated),
        }
    }

    /// Reports whether this is an IPv4 packet.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }
}

impl IpPacket {
    /// Rejects a first fragment that ends before the ports (RFC 7112 section 5). Otherwise the
    /// ports could arrive in a later fragment, for which there are none to compare.
    fn check_first(&self) -> Result<(), PacketError> {
        let protocol = self.protocol;
        let has_ports = matches!(protocol, TCP | UDP | DCCP | SCTP | UDP_LITE | ICMP | ICMPV6);
        if self.is_fragment && self.ports.is_none() && has_ports {
            return Err(PacketError::Truncated);
        }
        Ok(())
    }
}

/// RFC 791 section 3.1.
fn parse_v4(bytes: &[u8]) -> Result<IpPacket, PacketError> {
    let header = bytes.first_chunk::<V4_HEADER_BYTES>().ok_or(PacketError::Truncated)?;
    let header_bytes = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_bytes < V4_HEADER_BYTES || total < header_bytes {
        return Err(PacketError::Length);
    }
    let packet = bytes.get(..total).ok_or(PacketError::Truncated)?;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & V4_FRAGMENT_MASK;
    let [.., a, b, c, d, e, f, g, h] = *header;
    let protocol = header[9];
    let is_first = fragment & V4_FRAGMENT_OFFSET == 0;
    let parsed = IpPacket {
        source: Ipv4Addr::new(a, b, c, d).into(),
        destination: Ipv4Addr::new(e, f, g, h).into(),
        protocol,
        ports: if is_first { ports(protocol, packet.get(header_bytes..)) } else { None },
        transport_at: header_bytes,
        bytes: total,
        is_fragment: fragment != 0,
    };
    if is_first {
        parsed.check_first()?;
    }
    Ok(parsed)
}

/// RFC 8200 section 3.
fn parse_v6(bytes: &[u8]) -> Result<IpPacket, PacketError> {
    let header = bytes.first_chunk::<V6_HEADER_BYTES>().ok_or(PacketError::Truncated)?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let packet = bytes.get(..V6_HEADER_BYTES + payload).ok_or(PacketError::Truncated)?;
    let (rest, destination) = header.split_last_chunk::<16>().ok_or(PacketError::Truncated)?;
    let source = rest.last_chunk::<16>().ok_or(PacketError::Truncated)?;
    let upper = upper_protocol(header[6], packet)?;
    let parsed = IpPacket {
        source: Ipv6Addr::from(*source).into(),
        destination: Ipv6Addr::from(*destination).into(),
        protocol: upper.protocol,
        ports: if upper.is_first { ports(upper.protocol, packet.get(upper.at..)) } else { None },
        transport_at: upper.at,
        bytes: packet.len(),
        is_fragment: upper.is_fragment,
    };
    if upper.is_first {
        parsed.check_first()?;
    }
    Ok(parsed)
}

/// The upper protocol of an IPv6 packet.
struct UpperProtocol {
    protocol: u8,
    at: usize,
    is_fragment: bool,
    /// Whether the header of the protocol is in this packet.
    is_first: bool,
}

/// Skips the extension headers (RFC 8200 section 4.1; RFC 4302 section 2.2 for AH).
fn upper_protocol(first: u8, packet: &[u8]) -> Result<UpperProtocol, PacketError> {
    let mut upper =
        UpperProtocol { protocol: first, at: V6_HEADER_BYTES, is_fragment: false, is_first: true };
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let is_extension = matches!(upper.protocol, HOP_BY_HOP | ROUTING | OPTIONS | FRAGMENT | AH);
        if !is_extension || !upper.is_first {
            return Ok(upper);
        }
        let rest = packet.get(upper.at..).unwrap_or_default();
        let header = rest.first_chunk::<8>().ok_or(PacketError::Truncated)?;
        let length = match upper.protocol {
            FRAGMENT => {
                let offset_and_more = u16::from_be_bytes([header[2], header[3]]) & 0xfff9;
                upper.is_fragment |= offset_and_more != 0;
                upper.is_first = offset_and_more & !1 == 0;
                8
            }
            AH => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        upper.protocol = header[0];
        upper.at += length;
        if upper.at > packet.len() {
            return Err(PacketError::Truncated);
        }
    }
    Err(PacketError::ExtensionHeaders)
}

fn ports(protocol: u8, transport: Option<&[u8]>) -> Option<(u16, u16)> {
    let [a, b, c, d] = *transport?.first_chunk::<4>()?;
    match protocol {
        TCP | UDP | DCCP | SCTP | UDP_LITE => {
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        ICMP | ICMPV6 => Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([a, b]))),
        _ => None,
    }
}

/// The flag "more fragments" and the offset, without the flag "don't fragment".
const V4_FRAGMENT_MASK: u16 = 0x3fff;
const V4_FRAGMENT_OFFSET: u16 = 0x1fff;
const HOP_BY_HOP: u8 = 0;
const DCCP: u8 = 33;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AH: u8 = 51;
const OPTIONS: u8 = 60;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
