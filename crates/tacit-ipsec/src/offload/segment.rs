//! Divides a large TCP packet into packets of the MTU, and computes missing checksums.
//!
//! Every packet gets the headers of the large packet, with its own length, IPv4 identification,
//! sequence number and checksums. FIN and PSH are set in the last packet only, CWR in the first
//! only (RFC 3168 section 6.1.2).

use super::Offload;
use crate::packet::checksum::{checksum, sum};
use crate::packet::tcp::{self, CWR, FIN, PSH, TcpLayout};
use crate::packet::{IpPacket, V4_HEADER_BYTES, ecn};

/// The packets of one large TCP packet, which are written one by one.
#[derive(Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    layout: TcpLayout,
    segment_bytes: usize,
    /// The bytes of the payload that are written.
    done: usize,
}

impl<'a> Segments<'a> {
    /// Prepares to divide a packet into payloads of `segment_bytes`. `None`: the packet is not
    /// plain TCP, or has no payload.
    #[must_use]
    pub fn of(parsed: &IpPacket, packet: &'a [u8], segment_bytes: usize) -> Option<Self> {
        let layout = TcpLayout::of(parsed, packet)?;
        let is_valid = segment_bytes > 0 && layout.payload_bytes() > 0;
        is_valid.then_some(Self { packet, layout, segment_bytes, done: 0 })
    }

    /// Returns the length of the next packet; `None`: all are written.
    #[must_use]
    pub fn next_bytes(&self) -> Option<usize> {
        let rest = self.layout.payload_bytes() - self.done;
        (rest > 0).then(|| self.layout.payload_at + rest.min(self.segment_bytes))
    }

    /// Writes the next packet to a buffer of exactly its length.
    pub fn write_next(&mut self, to: &mut [u8]) {
        let TcpLayout { tcp_at, payload_at, bytes } = self.layout;
        let from = payload_at + self.done;
        let payload_bytes = to.len().saturating_sub(payload_at).min(bytes - from);
        let Some((headers, payload)) = to.split_at_mut_checked(payload_at) else { return };
        headers.copy_from_slice(&self.packet[..payload_at]);
        payload[..payload_bytes].copy_from_slice(&self.packet[from..from + payload_bytes]);
        self.write_tcp_fields(to.get_mut(tcp_at..).unwrap_or_default(), payload_bytes);
        self.write_ip_fields(to);
        let total = self.layout.pseudo_header(to, to.len() - tcp_at) + sum(&to[tcp_at..]);
        let at = tcp_at + tcp::CHECKSUM_AT;
        to[at..at + 2].copy_from_slice(&checksum(total));
        self.done += payload_bytes;
    }

    /// Writes sequence number and flags, and clears the checksum.
    fn write_tcp_fields(&self, header: &mut [u8], payload_bytes: usize) {
        let is_first = self.done == 0;
        let is_last = self.done + payload_bytes == self.layout.payload_bytes();
        let step = u32::try_from(self.done).unwrap_or(0);
        let sequence = tcp::sequence(header).wrapping_add(step);
        let Some(header) = header.first_chunk_mut::<{ tcp::HEADER_BYTES }>() else { return };
        header[tcp::SEQUENCE_AT..tcp::SEQUENCE_AT + 4].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            header[tcp::FLAGS_AT] &= !(FIN | PSH);
        }
        if !is_first {
            header[tcp::FLAGS_AT] &= !CWR;
        }
        header[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].fill(0);
    }

    /// Writes the length; in IPv4 identification and checksum as well.
    fn write_ip_fields(&self, packet: &mut [u8]) {
        if self.layout.tcp_at == V4_HEADER_BYTES {
            let number = u16::try_from(self.done / self.segment_bytes).unwrap_or(0);
            write_length(packet, 2, packet.len());
            let identification = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(number);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            ecn::fill_v4_checksum(packet, V4_HEADER_BYTES);
        } else {
            write_length(packet, 4, packet.len() - self.layout.tcp_at);
        }
    }
}

/// Writes a length field of a header.
pub(super) fn write_length(packet: &mut [u8], at: usize, length: usize) {
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// Completes the checksum of a packet that is not divided. Returns `false` if the offload does not
/// fit the packet.
#[must_use]
pub fn fill_checksum(packet: &mut [u8], offload: Offload) -> bool {
    let Offload::Checksum { start, offset } = offload else { return true };
    let Some(covered) = packet.get_mut(start..) else { return false };
    // The field contains the sum of the pseudo-header, and is part of what is summed.
    let value = checksum(sum(covered));
    let Some(field) = covered.get_mut(offset..offset + 2) else { return false };
    field.copy_from_slice(&value);
    // RFC 768: a checksum of zero means that there is none.
    if value == [0, 0] && offset == UDP_CHECKSUM_AT {
        field.fill(0xff);
    }
    true
}

/// In the UDP header; TCP has its checksum elsewhere.
const UDP_CHECKSUM_AT: usize = 6;
