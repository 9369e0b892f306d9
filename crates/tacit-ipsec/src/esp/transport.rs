//! Converts packets between transport mode and whole IP packets (RFC 4303 section 3.1.1).
//!
//! ```text
//! tunnel mode:     ESP header │ IV │ IP header │ TCP, UDP, ... │ trailer │ ICV
//! transport mode:  ESP header │ IV │             TCP, UDP, ... │ trailer │ ICV
//! ```
//!
//! In transport mode, a packet has only one IP header, before the UDP and ESP headers. A UDP socket
//! does not return this IP header. So the receiver writes a new IP header with the addresses of the
//! SA (security association). There must be no NAT between the two peers, because the TCP and UDP
//! checksums cover the addresses of both peers.
//!
//! Limits: fragments and packets with options or extension headers are dropped. A received packet
//! is also dropped if its buffer has no room for the new IPv6 header (40 bytes). This cannot happen
//! with AES-CBC, because ESP with AES-CBC adds more bytes to a packet. For ESP in transport mode,
//! the policy permits only AES-CBC.

use std::net::IpAddr;
use std::ops::Range;

use crate::child::SaMode;
use crate::packet::{IpPacket, V4_HEADER_BYTES, V6_HEADER_BYTES, ecn};

/// The TTL or hop limit of received packets.
const HOPS: u8 = 64;

/// The ends of an SA in transport mode: those of the underlay, and of all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransportEnds {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
}

impl TransportEnds {
    /// Returns the ends of an SA; `None`: it is in tunnel mode.
    pub(crate) fn of(mode: SaMode) -> Option<Self> {
        match mode {
            SaMode::Tunnel => None,
            SaMode::Transport { local, remote } => Some(Self { local, remote }),
        }
    }

    /// Returns the length of the IP header that is not sent.
    pub(crate) fn header_bytes(self) -> usize {
        if self.remote.is_ipv4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES }
    }

    /// Returns the protocol and the content of a packet that leaves; `None`: it cannot be sent.
    pub(crate) fn content(self, packet: &[u8]) -> Option<(u8, &[u8])> {
        let parsed = IpPacket::parse(packet).ok()?;
        let is_sendable = parsed.source == self.local
            && parsed.destination == self.remote
            && !parsed.is_fragment
            && parsed.transport_at == self.header_bytes();
        let content = packet.get(parsed.transport_at..parsed.bytes)?;
        is_sendable.then_some((parsed.protocol, content))
    }

    /// Writes the IP header of a received packet before its content, which stands at a place of the
    /// frame. If there is not enough room, the content moves towards the end of the frame. Returns
    /// the place of the packet.
    pub(crate) fn restore(
        self,
        frame: &mut [u8],
        content: Range<usize>,
        protocol: u8,
        traffic_class: u8,
    ) -> Option<Range<usize>> {
        let moved = self.header_bytes().saturating_sub(content.start);
        let end = content.end + moved;
        if end > frame.len() {
            return None;
        }
        let content_bytes = content.len();
        let start = content.start + moved - self.header_bytes();
        frame.copy_within(content.clone(), content.start + moved);
        let packet = frame.get_mut(start..end)?;
        match (self.remote, self.local) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = u16::try_from(V4_HEADER_BYTES + content_bytes).ok()?.to_be_bytes();
                let header = packet.first_chunk_mut::<V4_HEADER_BYTES>()?;
                *header = [0; V4_HEADER_BYTES];
                header[..4].copy_from_slice(&[0x45, traffic_class, total[0], total[1]]);
                header[8..10].copy_from_slice(&[HOPS, protocol]);
                header[12..16].copy_from_slice(&source.octets());
                header[16..].copy_from_slice(&destination.octets());
                ecn::fill_v4_checksum(packet, V4_HEADER_BYTES);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let length = u16::try_from(content_bytes).ok()?.to_be_bytes();
                let header = packet.first_chunk_mut::<V6_HEADER_BYTES>()?;
                let class = [0x60 | traffic_class >> 4, traffic_class << 4];
                header[..4].copy_from_slice(&[class[0], class[1], 0, 0]);
                header[4..8].copy_from_slice(&[length[0], length[1], protocol, HOPS]);
                header[8..24].copy_from_slice(&source.octets());
                header[24..].copy_from_slice(&destination.octets());
            }
            _ => return None,
        }
        Some(start..end)
    }
}
