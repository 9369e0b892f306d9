//! Writes and verifies the header of AH (RFC 4302) in a whole IP packet.
//!
//! ```text
//! IP header │ next header 1 │ length 1 │ reserved 2 │ SPI 4 │ sequence 4 │ ICV │ padding │ content
//! ```
//!
//! The ICV (integrity check value) covers the whole packet, except for the ICV itself and for
//! mutable fields: fields that routers may change. The covered fields include fields of the IP
//! header, so the sender must know the IP header. With IPv4, the sender writes the header itself.
//! With IPv6, the kernel writes the header, but the sender knows all fields that the ICV covers.

use std::net::IpAddr;

use super::counters::DropReason;
use super::mutable::zero_mutable;
use super::outer::OuterPacket;
use crate::child::{EspSpi, SaKeys, UnderlayEnds};
use crate::cipher::IntegrityHash;
use crate::cipher_key::{IntegrityKey, KeyLengthError};
use crate::packet::{V4_HEADER_BYTES, V6_HEADER_BYTES, ecn};

/// Next header, length, reserved field, SPI and sequence number (RFC 4302 section 2).
const FIXED_BYTES: usize = 12;
const SEQUENCE_AT: usize = 8;
/// The length of AH in IPv6 is a multiple of this.
const V6_ALIGNMENT_BYTES: usize = 8;
/// The TTL or hop limit of sent packets.
const HOPS: u8 = 64;

/// The key of one direction.
#[derive(Debug)]
pub(crate) struct AhKey {
    key: IntegrityKey,
    icv_bytes: usize,
    /// The headers of a packet as the ICV covers them.
    headers: Vec<u8>,
}

/// What the headers of a sent packet contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AhFields {
    pub(crate) next_header: u8,
    pub(crate) spi: EspSpi,
    pub(crate) sequence: u64,
    pub(crate) traffic_class: u8,
}

impl AhKey {
    pub(crate) fn new(hash: IntegrityHash, keys: &SaKeys) -> Result<Self, KeyLengthError> {
        if !keys.encryption.as_bytes().is_empty() {
            return Err(KeyLengthError);
        }
        let key = IntegrityKey::of_hash(hash, keys.integrity.as_bytes())?;
        Ok(Self { key, icv_bytes: hash.icv_bytes(), headers: Vec::new() })
    }

    /// Returns the length of the IP header and of AH in sent packets.
    pub(crate) fn header_bytes(&self, ends: UnderlayEnds) -> usize {
        ip_header_bytes(ends) + self.ah_bytes(ends.remote)
    }

    /// RFC 4302 section 3.3.3.2.1: a multiple of 4 bytes in IPv4, and of 8 bytes in IPv6.
    fn ah_bytes(&self, remote: IpAddr) -> usize {
        let alignment_bytes = if remote.is_ipv4() { 4 } else { V6_ALIGNMENT_BYTES };
        (FIXED_BYTES + self.icv_bytes).next_multiple_of(alignment_bytes)
    }

    /// Writes the IP header and AH before the content in a frame.
    pub(crate) fn seal(
        &mut self,
        frame: &mut [u8],
        ends: UnderlayEnds,
        fields: AhFields,
    ) -> Result<(), DropReason> {
        let at = ip_header_bytes(ends);
        let ah_bytes = self.ah_bytes(ends.remote);
        write_ip_header(frame, ends, fields).ok_or(DropReason::TooBig)?;
        let header = frame.get_mut(at..at + ah_bytes).ok_or(DropReason::InnerPacket)?;
        header.fill(0);
        // RFC 4302 section 2.2: the length in words of 4 bytes, minus 2.
        let length = u8::try_from(ah_bytes / 4 - 2).map_err(|_| DropReason::InnerPacket)?;
        let [.., a, b, c, d] = fields.sequence.to_be_bytes();
        header[..2].copy_from_slice(&[fields.next_header, length]);
        header[4..8].copy_from_slice(&fields.spi.number().to_be_bytes());
        header[SEQUENCE_AT..FIXED_BYTES].copy_from_slice(&[a, b, c, d]);
        self.write_icv(frame, at, ah_bytes)
    }

    /// Writes the ICV of a packet whose AH is at a place, and has this length.
    fn write_icv(
        &mut self,
        packet: &mut [u8],
        at: usize,
        ah_bytes: usize,
    ) -> Result<(), DropReason> {
        self.copy_headers(packet, at, ah_bytes)?;
        let (before, content) = packet.split_at_mut(at + ah_bytes);
        let icv_at = at + FIXED_BYTES;
        let icv = before.get_mut(icv_at..icv_at + self.icv_bytes).ok_or(DropReason::Malformed)?;
        self.key.sign([&self.headers, content], icv).map_err(|_| DropReason::Integrity)
    }

    /// Returns where the content of a received packet begins, and its sequence number.
    pub(crate) fn parse(
        &self,
        packet: &[u8],
        outer: &OuterPacket,
    ) -> Result<(usize, u32), DropReason> {
        let header = packet.get(outer.at..outer.bytes).ok_or(DropReason::Malformed)?;
        let (fixed, _) = header.split_first_chunk::<FIXED_BYTES>().ok_or(DropReason::Malformed)?;
        let ah_bytes = (usize::from(fixed[1]) + 2) * 4;
        // Some senders pad to 8 bytes in IPv4 too.
        let usual = self.ah_bytes(outer.source);
        let is_usual = [usual, usual.next_multiple_of(V6_ALIGNMENT_BYTES)].contains(&ah_bytes);
        if !is_usual || ah_bytes > header.len() {
            return Err(DropReason::Malformed);
        }
        let [.., a, b, c, d] = *fixed;
        Ok((outer.at + ah_bytes, u32::from_be_bytes([a, b, c, d])))
    }

    /// Verifies the ICV of a packet whose content begins at a place (RFC 4302 section 3.4.4).
    pub(crate) fn verify(
        &mut self,
        packet: &[u8],
        outer: &OuterPacket,
        content_at: usize,
    ) -> Result<(), DropReason> {
        let packet = packet.get(..outer.bytes).ok_or(DropReason::Malformed)?;
        self.copy_headers(packet, outer.at, content_at - outer.at)?;
        let icv_at = outer.at + FIXED_BYTES;
        let icv = packet.get(icv_at..icv_at + self.icv_bytes).ok_or(DropReason::Malformed)?;
        let content = packet.get(content_at..).ok_or(DropReason::Malformed)?;
        self.key.verify([&self.headers, content], icv).map_err(|_| DropReason::Integrity)
    }

    /// Writes the ICV of a packet as another implementation would, for tests and fuzzing.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn sign(
        &mut self,
        packet: &mut [u8],
        outer: &OuterPacket,
    ) -> Result<(), DropReason> {
        let (content_at, _) = self.parse(packet, outer)?;
        let packet = packet.get_mut(..outer.bytes).ok_or(DropReason::Malformed)?;
        self.write_icv(packet, outer.at, content_at - outer.at)
    }

    /// Copies IP header and AH as the ICV covers them: without mutable fields and with an ICV of
    /// zeros, but with the padding behind it (RFC 4302 section 3.3.3.1).
    fn copy_headers(
        &mut self,
        packet: &[u8],
        at: usize,
        ah_bytes: usize,
    ) -> Result<(), DropReason> {
        let headers = packet.get(..at + ah_bytes).ok_or(DropReason::Malformed)?;
        self.headers.clear();
        self.headers.extend_from_slice(headers);
        let (ip, ah) = self.headers.split_at_mut(at);
        zero_mutable(ip).map_err(|_| DropReason::Malformed)?;
        let icv = ah.get_mut(FIXED_BYTES..FIXED_BYTES + self.icv_bytes);
        icv.ok_or(DropReason::Malformed)?.fill(0);
        Ok(())
    }
}

/// Removes AH from a packet in transport mode, and keeps the headers before it. Returns where the
/// packet begins.
pub(crate) fn remove_header(
    packet: &mut [u8],
    outer: &OuterPacket,
    content_at: usize,
) -> Option<usize> {
    let next_header = *packet.get(outer.at)?;
    let start = content_at - outer.at;
    *packet.get_mut(outer.next_at)? = next_header;
    packet.copy_within(..outer.at, start);
    let packet = packet.get_mut(start..outer.bytes)?;
    let bytes = packet.len();
    if outer.source.is_ipv4() {
        packet.get_mut(2..4)?.copy_from_slice(&u16::try_from(bytes).ok()?.to_be_bytes());
        ecn::fill_v4_checksum(packet, outer.at);
    } else {
        let length = u16::try_from(bytes.checked_sub(V6_HEADER_BYTES)?).ok()?.to_be_bytes();
        packet.get_mut(4..6)?.copy_from_slice(&length);
    }
    Some(start)
}

fn ip_header_bytes(ends: UnderlayEnds) -> usize {
    if ends.remote.is_ipv4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES }
}

/// Writes an IP header without options; `None`: the packet is too long for it.
fn write_ip_header(frame: &mut [u8], ends: UnderlayEnds, fields: AhFields) -> Option<()> {
    use std::net::IpAddr::{V4, V6};

    let class = fields.traffic_class;
    let frame_bytes = frame.len();
    match (ends.local, ends.remote) {
        (V4(source), V4(destination)) => {
            let total = u16::try_from(frame_bytes).ok()?.to_be_bytes();
            // Not zero, in place of which the kernel would write another one (raw(7)).
            let [high, low] = u16::try_from(fields.sequence % 0xffff + 1).ok()?.to_be_bytes();
            let header = frame.first_chunk_mut::<V4_HEADER_BYTES>()?;
            header[..4].copy_from_slice(&[0x45, class, total[0], total[1]]);
            header[4..8].copy_from_slice(&[high, low, DONT_FRAGMENT, 0]);
            header[8..12].copy_from_slice(&[HOPS, AH, 0, 0]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            ecn::fill_v4_checksum(frame, V4_HEADER_BYTES);
        }
        (V6(source), V6(destination)) => {
            let length = u16::try_from(frame_bytes.checked_sub(V6_HEADER_BYTES)?).ok()?;
            let length = length.to_be_bytes();
            let header = frame.first_chunk_mut::<V6_HEADER_BYTES>()?;
            header[..4].copy_from_slice(&[0x60 | class >> 4, class << 4, 0, 0]);
            header[4..8].copy_from_slice(&[length[0], length[1], AH, HOPS]);
            header[8..24].copy_from_slice(&source.octets());
            header[24..].copy_from_slice(&destination.octets());
        }
        _ => return None,
    }
    Some(())
}

/// The protocol number (RFC 4302 section 2).
const AH: u8 = 51;
const DONT_FRAGMENT: u8 = 0x40;
