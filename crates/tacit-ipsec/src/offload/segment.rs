//! Splits a large TCP packet from a TUN device into packets that fit the MTU, and computes their
//! checksums. The kernel leaves this work to devices that support TCP segmentation offload.
//!
//! Every packet gets the headers of the large packet, with its own length, IPv4 identification,
//! sequence number and checksums. Only the last packet gets FIN and PSH, and only the first packet
//! gets CWR (RFC 3168 section 6.1.2). This module adds the payload to the checksum while it copies
//! the payload. Fields that are equal in all packets are added to a checksum only once.

use super::Offload;
use crate::packet::checksum::{checksum, copy_and_sum, sum};
use crate::packet::tcp::{self, CWR, FIN, PSH, TcpLayout};
use crate::packet::{IpPacket, V4_HEADER_BYTES};

/// The packets of one large TCP packet, which are written one by one.
#[derive(Debug)]
pub struct Segments<'a> {
    packet: &'a [u8],
    layout: TcpLayout,
    segment_bytes: usize,
    /// The bytes of the payload that are written.
    done: usize,
    /// The sum of what all packets have in common in their IPv4 headers.
    ip_sum: u64,
    /// The same for their TCP headers, with the pseudo-header.
    tcp_sum: u64,
}

impl<'a> Segments<'a> {
    /// Prepares to divide a packet into payloads of `segment_bytes`. `None`: the packet is not
    /// plain TCP, or has no payload.
    #[must_use]
    pub fn of(parsed: &IpPacket, packet: &'a [u8], segment_bytes: usize) -> Option<Self> {
        let layout = TcpLayout::of(parsed, packet)?;
        if segment_bytes == 0 || layout.payload_bytes() == 0 {
            return None;
        }
        let (ip_sum, tcp_sum) = common_sums(packet, layout);
        Some(Self { packet, layout, segment_bytes, done: 0, ip_sum, tcp_sum })
    }

    /// Prepares to divide a packet that is not the result of an offload into packets of at most
    /// `packet_bytes_max`. `None`: also if the parts would not mean the same as the packet.
    #[must_use]
    pub fn within(parsed: &IpPacket, packet: &'a [u8], packet_bytes_max: usize) -> Option<Self> {
        let layout = TcpLayout::of(parsed, packet)?;
        let segment_bytes = packet_bytes_max.checked_sub(layout.payload_at)?;
        layout.is_divisible(packet).then(|| Self::of(parsed, packet, segment_bytes))?
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
        let Some((headers, payload)) = to.split_at_mut_checked(payload_at) else { return };
        let payload_bytes = payload.len().min(bytes - from);
        headers.copy_from_slice(&self.packet[..payload_at]);
        let payload = &mut payload[..payload_bytes];
        let sum = copy_and_sum(&self.packet[from..from + payload_bytes], payload);
        let (ip, tcp) = headers.split_at_mut(tcp_at);
        self.write_ip_fields(ip, tcp.len() + payload_bytes);
        self.write_tcp_fields(tcp, payload_bytes, sum);
        self.done += payload_bytes;
    }

    /// Writes sequence number, flags and checksum.
    fn write_tcp_fields(&self, tcp: &mut [u8], payload_bytes: usize, payload_sum: u64) {
        let is_first = self.done == 0;
        let is_last = self.done + payload_bytes == self.layout.payload_bytes();
        let step = u32::try_from(self.done).unwrap_or(0);
        let sequence = tcp::sequence(tcp).wrapping_add(step).to_be_bytes();
        let length = u16::try_from(tcp.len() + payload_bytes).unwrap_or(u16::MAX).to_be_bytes();
        let Some(header) = tcp.first_chunk_mut::<{ tcp::HEADER_BYTES }>() else { return };
        let mut flags = header[tcp::FLAGS_AT];
        if !is_last {
            flags &= !(FIN | PSH);
        }
        if !is_first {
            flags &= !CWR;
        }
        header[tcp::FLAGS_AT] = flags;
        header[tcp::SEQUENCE_AT..tcp::SEQUENCE_AT + 4].copy_from_slice(&sequence);
        // The flags stand in the second byte of their word.
        let fields = [u16::from_ne_bytes(length), u16::from_ne_bytes([0, flags])].map(u64::from);
        let own = fields[0] + fields[1] + u64::from(u32::from_ne_bytes(sequence));
        let value = checksum(self.tcp_sum + own + payload_sum);
        header[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].copy_from_slice(&value);
    }

    /// Writes the length; in IPv4 identification and checksum as well.
    fn write_ip_fields(&self, ip: &mut [u8], tcp_bytes: usize) {
        let Some(header) = ip.first_chunk_mut::<V4_HEADER_BYTES>() else { return };
        if self.layout.tcp_at != V4_HEADER_BYTES {
            return write_length(header, 4, tcp_bytes);
        }
        let number = u16::try_from(self.done / self.segment_bytes).unwrap_or(0);
        write_length(header, 2, V4_HEADER_BYTES + tcp_bytes);
        let identification = u16::from_be_bytes([header[4], header[5]]).wrapping_add(number);
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        let value = checksum(self.ip_sum + sum(&header[2..6]));
        header[10..12].copy_from_slice(&value);
    }
}

/// Adds what all packets have in common in their IPv4 and in their TCP headers, the latter with
/// the pseudo-header.
fn common_sums(packet: &[u8], layout: TcpLayout) -> (u64, u64) {
    let mut headers = packet.get(..layout.payload_at).unwrap_or_default().to_vec();
    let (ip, tcp) = headers.split_at_mut(layout.tcp_at);
    let pseudo_header = layout.pseudo_header(ip, 0);
    // Length, identification and checksum.
    [2..6, 10..12].into_iter().for_each(|field| ip[field].fill(0));
    tcp[tcp::SEQUENCE_AT..tcp::SEQUENCE_AT + 4].fill(0);
    tcp[tcp::FLAGS_AT] = 0;
    tcp[tcp::CHECKSUM_AT..tcp::CHECKSUM_AT + 2].fill(0);
    (sum(ip), pseudo_header + sum(tcp))
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
