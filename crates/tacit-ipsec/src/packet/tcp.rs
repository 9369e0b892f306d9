//! Finds the fields of a TCP header that change when packets are divided or joined (RFC 9293
//! section 3.1).

use super::{IpPacket, TCP, V4_HEADER_BYTES, V6_HEADER_BYTES, checksum};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
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

/// Reads the sequence number of a TCP header.
pub(crate) fn sequence(tcp: &[u8]) -> u32 {
    let field = tcp.get(SEQUENCE_AT..).and_then(|rest| rest.first_chunk::<4>());
    field.map_or(0, |field| u32::from_be_bytes(*field))
}
