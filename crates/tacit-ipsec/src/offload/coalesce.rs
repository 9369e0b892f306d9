//! Joins consecutive TCP packets of one connection into one large packet, so that the kernel
//! processes one header instead of many.
//!
//! The kernel must be able to divide the large packet into the same packets again. So packets are
//! joined only if most of their header fields are equal. A packet with PSH or a shorter payload can
//! only be the last part.
//!
//! The kernel does not verify the checksums of the parts. So packets with a wrong checksum are not
//! joined: the kernel gets each of them separately.
//!
//! Limits: a large packet has at most 65,535 bytes, and at most [`COALESCED_MAX`] packets are
//! joined.

use std::ops::Range;

use super::segment::write_length;
use super::{GSO_TCP_V4, GSO_TCP_V6, NEEDS_CHECKSUM, VNET_HEADER_BYTES};
use crate::packet::checksum::{folded, sum};
use crate::packet::tcp::{self, ACK, PSH, TcpLayout};
use crate::packet::{IpPacket, V4_HEADER_BYTES, ecn};

/// The largest number of packets that are joined. A `writev` has at most 1,024 parts.
pub const COALESCED_MAX: usize = 256;
/// The longest IP packet.
const PACKET_BYTES_MAX: usize = 65_535;

/// An inner packet, and where it stands in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPacket {
    /// Its headers.
    pub parsed: IpPacket,
    /// Its place in the buffer.
    pub place: Range<usize>,
}

/// The first packets of a list, as one packet for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesced {
    /// How many packets were joined; at least one.
    pub packets: usize,
    /// Where the payload begins in each of them. The large packet is the first packet, followed by
    /// the payloads of the others.
    pub payload_at: usize,
    /// The header for the kernel.
    pub vnet_header: [u8; VNET_HEADER_BYTES],
}

/// Joins the first packets of a list, as many as belong together, and writes the headers of the
/// large packet over those of the first one.
#[must_use]
pub fn coalesce(buffer: &mut [u8], packets: &[OpenedPacket]) -> Coalesced {
    let mut joined = Coalesced { packets: 1, payload_at: 0, vnet_header: [0; VNET_HEADER_BYTES] };
    let Some((first, others)) = packets.split_first() else { return joined };
    let Some(mut run) = Run::start(buffer, first) else { return joined };
    for other in others.iter().take(COALESCED_MAX - 1) {
        if run.is_complete || !run.append(buffer, other) {
            break;
        }
    }
    if run.packets > 1 {
        joined.packets = run.packets;
        joined.payload_at = run.layout.payload_at;
        joined.vnet_header = run.finish(buffer);
    }
    joined
}

/// Packets that are being joined.
struct Run {
    first: Range<usize>,
    layout: TcpLayout,
    packets: usize,
    /// The payload of the first packet, and of all others but the last.
    segment_bytes: usize,
    /// The length of the large packet.
    bytes: usize,
    next_sequence: u32,
    /// By how much the IPv4 identification grows: 1, or 0; unknown before the second packet.
    identification_step: Option<u16>,
    /// The flags of the last packet.
    flags: u8,
    /// Whether nothing may follow.
    is_complete: bool,
}

impl Run {
    fn start(buffer: &[u8], packet: &OpenedPacket) -> Option<Self> {
        let bytes = buffer.get(packet.place.clone())?;
        let layout = TcpLayout::of(&packet.parsed, bytes)?;
        let segment_bytes = layout.payload_bytes();
        let flags = flags(bytes, layout);
        if segment_bytes == 0 || flags != ACK || !has_valid_checksums(bytes, layout) {
            return None;
        }
        let sequence = tcp::sequence(&bytes[layout.tcp_at..]);
        Some(Self {
            first: packet.place.clone(),
            layout,
            packets: 1,
            segment_bytes,
            bytes: layout.bytes,
            next_sequence: sequence.wrapping_add(u32::try_from(segment_bytes).unwrap_or(0)),
            identification_step: None,
            flags,
            is_complete: false,
        })
    }

    /// Adds a packet, if it continues the others.
    fn append(&mut self, buffer: &[u8], packet: &OpenedPacket) -> bool {
        let (Some(first), Some(bytes)) =
            (buffer.get(self.first.clone()), buffer.get(packet.place.clone()))
        else {
            return false;
        };
        let Some(layout) = TcpLayout::of(&packet.parsed, bytes) else { return false };
        let payload_bytes = layout.payload_bytes();
        let flags = flags(bytes, layout);
        let step = self.identification(first, bytes);
        let continues = layout.payload_at == self.layout.payload_at
            && layout.tcp_at == self.layout.tcp_at
            && (1..=self.segment_bytes).contains(&payload_bytes)
            && self.bytes + payload_bytes <= PACKET_BYTES_MAX
            && flags & !PSH == ACK
            && tcp::sequence(&bytes[layout.tcp_at..]) == self.next_sequence
            && step.is_some()
            && have_equal_headers(first, bytes, layout)
            && has_valid_checksums(bytes, layout);
        if !continues {
            return false;
        }
        self.packets += 1;
        self.bytes += payload_bytes;
        self.next_sequence =
            self.next_sequence.wrapping_add(u32::try_from(payload_bytes).unwrap_or(0));
        self.identification_step = step;
        self.flags = flags;
        self.is_complete = flags & PSH != 0 || payload_bytes < self.segment_bytes;
        true
    }

    /// Returns the step of the IPv4 identification, if the packet follows it. IPv6 has none.
    ///
    /// The identification of a packet that must not be fragmented has no meaning (RFC 6864 section
    /// 4.1); senders that always use the same one are common.
    fn identification(&self, first: &[u8], packet: &[u8]) -> Option<u16> {
        if self.layout.tcp_at != V4_HEADER_BYTES {
            return Some(0);
        }
        let of = |packet: &[u8]| u16::from_be_bytes([packet[4], packet[5]]);
        let grown = of(packet).wrapping_sub(of(first));
        let number = u16::try_from(self.packets).ok()?;
        let step = match grown {
            0 if first[6] & DONT_FRAGMENT != 0 => 0,
            grown if grown == number => 1,
            _ => return None,
        };
        let expected = self.identification_step.unwrap_or(step);
        (step == expected).then_some(step)
    }

    /// Writes the headers of the large packet.
    fn finish(self, buffer: &mut [u8]) -> [u8; VNET_HEADER_BYTES] {
        let TcpLayout { tcp_at, payload_at, .. } = self.layout;
        let Some(first) = buffer.get_mut(self.first) else { return [0; VNET_HEADER_BYTES] };
        first[tcp_at + tcp::FLAGS_AT] = self.flags;
        let kind = if tcp_at == V4_HEADER_BYTES {
            write_length(first, 2, self.bytes);
            ecn::fill_v4_checksum(first, V4_HEADER_BYTES);
            GSO_TCP_V4
        } else {
            write_length(first, 4, self.bytes - tcp_at);
            GSO_TCP_V6
        };
        // The kernel expects the sum of the pseudo-header in place of the checksum.
        let pseudo_header = folded(self.layout.pseudo_header(first, self.bytes - tcp_at));
        let at = tcp_at + tcp::CHECKSUM_AT;
        first[at..at + 2].copy_from_slice(&pseudo_header.to_ne_bytes());
        vnet_header(kind, [payload_at, self.segment_bytes, tcp_at, tcp::CHECKSUM_AT])
    }
}

/// Builds a `virtio_net_hdr`: `hdr_len`, `gso_size`, `csum_start` and `csum_offset`.
fn vnet_header(kind: u8, fields: [usize; 4]) -> [u8; VNET_HEADER_BYTES] {
    let mut header = [0; VNET_HEADER_BYTES];
    header[..2].copy_from_slice(&[NEEDS_CHECKSUM, kind]);
    for (field, value) in header[2..].chunks_exact_mut(2).zip(fields) {
        field.copy_from_slice(&u16::try_from(value).unwrap_or(0).to_ne_bytes());
    }
    header
}

fn flags(packet: &[u8], layout: TcpLayout) -> u8 {
    packet.get(layout.tcp_at + tcp::FLAGS_AT).copied().unwrap_or(0)
}

fn has_valid_checksums(packet: &[u8], layout: TcpLayout) -> bool {
    let has_valid_header = layout.tcp_at != V4_HEADER_BYTES
        || packet.get(..V4_HEADER_BYTES).is_some_and(|header| folded(sum(header)) == u16::MAX);
    has_valid_header && layout.has_valid_checksum(packet)
}

/// Reports whether two packets of one structure are equal in every field that a large packet has
/// only once.
fn have_equal_headers(first: &[u8], packet: &[u8], layout: TcpLayout) -> bool {
    let TcpLayout { tcp_at, payload_at, .. } = layout;
    let equal = |from: usize, to: usize| first.get(from..to) == packet.get(from..to);
    let ip = if tcp_at == V4_HEADER_BYTES {
        // Without length, identification and checksum.
        equal(0, 2) && equal(6, 10) && equal(12, tcp_at)
    } else {
        // Without length.
        equal(0, 4) && equal(6, tcp_at)
    };
    // Without sequence number, flags and checksum.
    ip && equal(tcp_at, tcp_at + 4)
        && equal(tcp_at + 8, tcp_at + 13)
        && equal(tcp_at + 14, tcp_at + 16)
        && equal(tcp_at + 18, payload_at)
}

/// In the first byte of flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;
