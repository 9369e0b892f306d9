//! Parses the outer headers of packets that arrive without UDP: ESP (IP protocol 50) and AH (51).
//!
//! The kernel has already reassembled fragments. Before ESP or AH, an IPv6 packet may have up to
//! [`EXTENSION_HEADERS_MAX`] extension headers: hop-by-hop options, destination options and routing
//! headers. Packets with other or more extension headers are refused.

use std::net::IpAddr;

use super::counters::DropReason;
use crate::child::EspSpi;
use crate::packet::{EXTENSION_HEADERS_MAX, IpPacket, V6_HEADER_BYTES, ecn};

/// The protocol of a packet without UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OuterProtocol {
    Esp,
    Ah,
}

/// A whole IP packet that contains ESP or AH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterPacket {
    /// The sender. Only the ICV proves it.
    pub source: IpAddr,
    pub(crate) destination: IpAddr,
    /// By which the SA is found.
    pub spi: EspSpi,
    pub(crate) protocol: OuterProtocol,
    /// DSCP and ECN.
    pub(crate) traffic_class: u8,
    /// Where the header of ESP or AH begins.
    pub(crate) at: usize,
    /// Where the header before it has its protocol number.
    pub(crate) next_at: usize,
    /// The length of the packet, which may be less than that of the buffer.
    pub(crate) bytes: usize,
}

impl OuterPacket {
    /// Parses the headers at the start of a buffer.
    ///
    /// # Errors
    /// The bytes are not a complete packet with ESP or AH, or the SPI is reserved.
    pub fn parse(buffer: &[u8]) -> Result<Self, DropReason> {
        let parsed = IpPacket::parse(buffer).map_err(|_| DropReason::Malformed)?;
        let bytes = buffer.get(..parsed.bytes).ok_or(DropReason::Malformed)?;
        let place = if parsed.is_v4() {
            Some((V4_PROTOCOL_AT, parsed.transport_at))
        } else {
            place_in_v6(bytes)
        };
        // Each fragment alone has no valid ICV.
        let (next_at, at) = place.filter(|_| !parsed.is_fragment).ok_or(DropReason::Malformed)?;
        let (protocol, spi_at) = match bytes.get(next_at) {
            Some(&ESP) => (OuterProtocol::Esp, at),
            Some(&AH) => (OuterProtocol::Ah, at + AH_SPI_AT),
            _ => return Err(DropReason::Malformed),
        };
        let spi = bytes.get(spi_at..).and_then(|rest| rest.first_chunk::<4>());
        let spi = spi.and_then(|spi| EspSpi::new(u32::from_be_bytes(*spi)));
        Ok(Self {
            source: parsed.source,
            destination: parsed.destination,
            spi: spi.ok_or(DropReason::Malformed)?,
            protocol,
            traffic_class: ecn::traffic_class(bytes),
            at,
            next_at,
            bytes: parsed.bytes,
        })
    }
}

/// Skips the extension headers that may stand before ESP or AH (RFC 4302 section 3.1.1). Returns
/// where the last header has the number of the next one, and where the next one begins.
fn place_in_v6(packet: &[u8]) -> Option<(usize, usize)> {
    let mut next_at = V6_NEXT_HEADER_AT;
    let mut at = V6_HEADER_BYTES;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        if !matches!(*packet.get(next_at)?, HOP_BY_HOP | ROUTING | OPTIONS) {
            return Some((next_at, at));
        }
        next_at = at;
        at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
    }
    None
}

/// The protocol numbers (RFC 4302 section 2, RFC 4303 section 2).
const ESP: u8 = 50;
const AH: u8 = 51;
const V4_PROTOCOL_AT: usize = 9;
const V6_NEXT_HEADER_AT: usize = 6;
/// Behind next header, payload length and a reserved field (RFC 4302 section 2).
const AH_SPI_AT: usize = 4;
pub(super) const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(super) const OPTIONS: u8 = 60;
