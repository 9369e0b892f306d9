//! Finds the fields of a TCP header that change when packets are divided or joined (RFC 9293
//! section 3.1).

use super::{IpPacket, TCP, V4_HEADER_BYTES, V6_HEADER_BYTES, checksum};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;
pub(crate) const CWR: u8 = 0x80;

/// Offsets in the TCP header.
pub(crate) const SEQUENCE_AT: usize = 4;
pub(crate) const FLAGS_AT: usize = 13;
pub(crate) const CHECKSUM_AT: usize = 16;
/// The length of a TCP header without options.
pub(crate) const HEADER_BYTES: usize = 20;

/// The structure of a whole TCP packet without IPv4 options or IPv6 extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpLayout {
    /// The offset of the TCP header.
    pub(crate) tcp_at: usize,
    /// The offset of the payload: the length of both headers.
    pub(crate) payload_at: usize,
    /// The length of the packet.
    pub(crate) bytes: usize,
}

impl TcpLayout {
    /// Finds the structure; `None`: the packet has another one.
    pub(crate) fn of(parsed: &IpPacket, packet: &[u8]) -> Option<Self> {
        let plain = if parsed.is_v4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES };
        let tcp_at = parsed.transport_at;
        if parsed.protocol != TCP || parsed.is_fragment || tcp_at != plain {
            return None;
        }
        let header_bytes = usize::from(packet.get(tcp_at + 12)? >> 4) * 4;
        let payload_at = tcp_at + header_bytes;
        let is_valid = header_bytes >= HEADER_BYTES && payload_at <= parsed.bytes;
        is_valid.then_some(Self { tcp_at, payload_at, bytes: parsed.bytes })
    }

    /// Reports whether parts of the payload, each with the header, mean the same as the packet.
    /// They do not if the header has an urgent pointer, or a signature of the packet.
    pub(crate) fn is_divisible(self, packet: &[u8]) -> bool {
        let header = packet.get(self.tcp_at..self.payload_at).unwrap_or_default();
        let flags = header.get(FLAGS_AT).copied().unwrap_or(SYN);
        let options = header.get(HEADER_BYTES..).unwrap_or_default();
        flags & (SYN | RST | URG) == 0 && is_unsigned(options)
    }

    /// The length of the payload.
    pub(crate) fn payload_bytes(self) -> usize {
        self.bytes - self.payload_at
    }

    /// The sum of the pseudo-header for a packet with this many bytes of TCP.
    pub(crate) fn pseudo_header(self, packet: &[u8], tcp_bytes: usize) -> u64 {
        let addresses_at = if self.tcp_at == V4_HEADER_BYTES { 12 } else { 8 };
        let addresses = packet.get(addresses_at..self.tcp_at).unwrap_or_default();
        checksum::pseudo_header(addresses, TCP, tcp_bytes)
    }

    /// Reports whether the checksum of the packet is right.
    pub(crate) fn has_valid_checksum(self, packet: &[u8]) -> bool {
        let tcp = packet.get(self.tcp_at..self.bytes).unwrap_or_default();
        let total = self.pseudo_header(packet, tcp.len()) + checksum::sum(tcp);
        checksum::folded(total) == u16::MAX
    }
}

/// Reports whether options are well formed, and none of them is a signature.
fn is_unsigned(mut options: &[u8]) -> bool {
    loop {
        let length = match *options {
            [] | [END_OF_OPTIONS, ..] => return true,
            [NO_OPERATION, ..] => 1,
            [MD5_SIGNATURE | AUTHENTICATION, ..] => return false,
            [_, length, ..] if length >= 2 => usize::from(length),
            _ => return false,
        };
        let Some(rest) = options.get(length..) else { return false };
        options = rest;
    }
}

/// Reads the sequence number of a TCP header.
pub(crate) fn sequence(tcp: &[u8]) -> u32 {
    let field = tcp.get(SEQUENCE_AT..).and_then(|rest| rest.first_chunk::<4>());
    field.map_or(0, |field| u32::from_be_bytes(*field))
}

/// Options (RFC 9293 section 3.2, RFC 2385, RFC 5925).
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MD5_SIGNATURE: u8 = 19;
const AUTHENTICATION: u8 = 29;
