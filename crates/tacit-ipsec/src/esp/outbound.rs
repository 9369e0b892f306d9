//! Encrypts packets and writes them as ESP packets (RFC 4303 section 3.3).
//!
//! ```text
//! frame:   SPI 4 │ sequence 4 │ IV │ inner packet │ padding │ length 1 │ next header 1 │ ICV
//!          └────── header_bytes() ─┘              └──────────── seal writes ───────────────┘
//! ```
//!
//! The caller leaves [`OutboundSa::header_bytes`] bytes free at the start of the buffer, and writes
//! the inner packet after them. `seal` writes all other fields in place, so no packet is copied.
//! For transport mode, the caller uses `seal_packet` instead. This function copies the bytes after
//! the IP header into the buffer.
//!
//! The IV is derived from the sequence number, so no sequence number may be used twice. If an SA
//! (security association) has used all sequence numbers, the SA refuses packets. Then the caller
//! replaces the SA (RFC 4303 section 3.3.3).

use std::sync::Arc;

use super::ah::AhFields;
use super::counters::{DropReason, SaCounters};
use super::lifetime::{DataLifetime, LifetimeState};
use super::protection::PacketProtection;
use super::transform::{ESP_HEADER_BYTES, Transform};
use super::transport::TransportEnds;
use crate::child::{ChildSa, EspSpi};
use crate::cipher_key::KeyLengthError;
use crate::packet::{IpPacket, traffic_class};
use crate::selector::TrafficSelector;

/// The protocol numbers of the next header field.
pub(crate) const IPV4: u8 = 4;
pub(crate) const IPV6: u8 = 41;
/// No next header: a dummy packet (RFC 4303 section 2.6).
pub(crate) const DUMMY: u8 = 59;
/// Padding and next header end at a multiple of this (RFC 4303 section 2.4).
const ALIGNMENT_BYTES: usize = 4;
/// The length of padding length and next header.
pub(crate) const TRAILER_BYTES: usize = 2;

/// The sending direction of a tunnel.
#[derive(Debug)]
pub struct OutboundSa {
    spi: EspSpi,
    protection: PacketProtection,
    /// `None`: tunnel mode.
    transport: Option<TransportEnds>,
    /// The number of the last packet; the first packet has number 1.
    sequence: u64,
    sequence_max: u64,
    lifetime: DataLifetime,
    selectors: SelectorPairs,
    counters: Arc<SaCounters>,
}

/// The traffic selectors of both ends.
#[derive(Clone, Debug)]
pub(crate) struct SelectorPairs {
    pub(crate) local: Vec<TrafficSelector>,
    pub(crate) remote: Vec<TrafficSelector>,
}

impl SelectorPairs {
    pub(crate) fn of(child: &ChildSa) -> Self {
        Self { local: child.local.clone(), remote: child.remote.clone() }
    }

    /// Reports whether a packet that leaves belongs to the tunnel.
    pub(crate) fn match_outbound(&self, packet: &IpPacket) -> bool {
        let ports = packet.ports;
        let protocol = packet.protocol;
        matches_any(&self.local, protocol, ports.map(|(source, _)| source), packet.source)
            && matches_any(&self.remote, protocol, ports.map(|(_, to)| to), packet.destination)
    }

    /// Reports whether a packet that arrives belongs to the tunnel.
    pub(crate) fn match_inbound(&self, packet: &IpPacket) -> bool {
        let reversed = IpPacket {
            source: packet.destination,
            destination: packet.source,
            ports: packet.ports.map(|(source, destination)| (destination, source)),
            ..*packet
        };
        self.match_outbound(&reversed)
    }
}

fn matches_any(
    selectors: &[TrafficSelector],
    protocol: u8,
    port: Option<u16>,
    address: std::net::IpAddr,
) -> bool {
    selectors.iter().any(|selector| selector.contains(protocol, port, address))
}

impl OutboundSa {
    /// Creates the SA of a tunnel that IKE has negotiated.
    ///
    /// # Errors
    /// The keys do not have the lengths that the cipher requires.
    pub fn new(child: &ChildSa, lifetime: DataLifetime) -> Result<Self, KeyLengthError> {
        let numbers_max = if child.has_extended_sequence { u64::MAX } else { u32::MAX.into() };
        Ok(Self {
            spi: child.outbound.spi,
            protection: PacketProtection::new(child, &child.outbound)?,
            transport: TransportEnds::of(child.mode),
            sequence: 0,
            sequence_max: numbers_max,
            lifetime,
            selectors: SelectorPairs::of(child),
            counters: Arc::default(),
        })
    }

    /// Returns the SPI.
    #[must_use]
    pub fn spi(&self) -> EspSpi {
        self.spi
    }

    /// Returns the sequence number of the last packet.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes other packets from now on: those that match both traffic selectors.
    pub fn set_selectors(&mut self, local: Vec<TrafficSelector>, remote: Vec<TrafficSelector>) {
        self.selectors = SelectorPairs { local, remote };
    }

    /// Returns the counters, which displays read.
    #[must_use]
    pub fn counters(&self) -> &Arc<SaCounters> {
        &self.counters
    }

    /// Returns where the SA stands in its lifetime. A new SA is also due when the last sixteenth of
    /// the sequence numbers begins.
    #[must_use]
    pub fn lifetime_state(&self) -> LifetimeState {
        if self.sequence == self.sequence_max {
            return LifetimeState::Expired;
        }
        match self.lifetime.state(&self.counters) {
            LifetimeState::Current if self.sequence > self.sequence_max / 16 * 15 => {
                LifetimeState::RekeyDue
            }
            state => state,
        }
    }

    /// Reports whether a packet belongs to the tunnel.
    #[must_use]
    pub fn matches(&self, packet: &IpPacket) -> bool {
        self.selectors.match_outbound(packet)
    }

    /// Reports whether packets are sent in transport mode, so only by [`Self::seal_packet`].
    #[must_use]
    pub fn is_transport(&self) -> bool {
        self.transport.is_some()
    }

    /// Returns the number of bytes before the inner packet in a frame.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        match &self.protection {
            PacketProtection::Esp(cipher, ..) => ESP_HEADER_BYTES + cipher.iv_bytes(),
            PacketProtection::Ah(key, ends) => key.header_bytes(*ends),
        }
    }

    /// Returns the length of the frame for an inner packet: the ESP packet, or with AH the whole IP
    /// packet.
    #[must_use]
    pub fn frame_bytes(&self, inner_bytes: usize) -> usize {
        let not_sent = self.transport.map_or(0, TransportEnds::header_bytes);
        self.frame_bytes_of(inner_bytes.saturating_sub(not_sent))
    }

    /// Returns the length of the frame for a plaintext.
    fn frame_bytes_of(&self, content_bytes: usize) -> usize {
        let behind = match &self.protection {
            PacketProtection::Esp(cipher, ..) => {
                let alignment = cipher.block_bytes().max(ALIGNMENT_BYTES);
                let text_bytes = (content_bytes + TRAILER_BYTES).next_multiple_of(alignment);
                text_bytes + cipher.icv_bytes()
            }
            PacketProtection::Ah(..) => content_bytes,
        };
        self.header_bytes() + behind
    }

    /// Copies an inner packet, or in transport mode its content, into `frame` and seals it. Returns
    /// the length of the ESP packet.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn seal_packet(&mut self, frame: &mut [u8], packet: &[u8]) -> Result<usize, DropReason> {
        let at = self.header_bytes();
        let mut copy = |content: &[u8]| {
            let place = frame.get_mut(at..at + content.len()).ok_or(DropReason::TooBig)?;
            place.copy_from_slice(content);
            Ok::<_, DropReason>(())
        };
        let Some(ends) = self.transport else {
            copy(packet)?;
            return self.seal(frame, packet.len());
        };
        let (protocol, content) = ends.content(packet).ok_or(DropReason::InnerPacket)?;
        copy(content)?;
        let sealed = self.seal_as(protocol, frame, content.len(), traffic_class(packet))?;
        self.counters.add_packet(packet.len());
        Ok(sealed)
    }

    /// Seals the inner packet of `inner_bytes` that stands behind the header in `frame`. Returns
    /// the length of the ESP packet at the start of `frame`.
    ///
    /// # Errors
    /// The reason why the packet is dropped; `frame` is then undefined.
    pub fn seal(&mut self, frame: &mut [u8], inner_bytes: usize) -> Result<usize, DropReason> {
        if self.transport.is_some() {
            return Err(DropReason::InnerPacket);
        }
        let inner = frame.get(self.header_bytes()..).unwrap_or_default();
        let next_header = match inner.first().map(|first| first >> 4) {
            Some(4) => IPV4,
            Some(6) => IPV6,
            _ => return Err(DropReason::InnerPacket),
        };
        // RFC 4301 section 5.1.2.1: DSCP and ECN are copied to the outer header.
        let class = traffic_class(inner);
        let sealed = self.seal_as(next_header, frame, inner_bytes, class)?;
        self.counters.add_packet(inner_bytes);
        Ok(sealed)
    }

    /// Seals a dummy packet, which the receiver discards (RFC 4303 section 2.6). The bytes behind
    /// the header in `frame` are its content.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn seal_dummy(
        &mut self,
        frame: &mut [u8],
        inner_bytes: usize,
    ) -> Result<usize, DropReason> {
        let sealed = self.seal_as(DUMMY, frame, inner_bytes, 0)?;
        self.counters.add_dummy();
        Ok(sealed)
    }

    /// Seals the content behind the header in `frame`. `traffic_class` is that of the IP header
    /// which AH has.
    fn seal_as(
        &mut self,
        next_header: u8,
        frame: &mut [u8],
        inner_bytes: usize,
        traffic_class: u8,
    ) -> Result<usize, DropReason> {
        if self.lifetime_state() == LifetimeState::Expired {
            return Err(DropReason::Expired);
        }
        let frame_bytes = self.frame_bytes_of(inner_bytes);
        let header_bytes = self.header_bytes();
        let frame = frame.get_mut(..frame_bytes).ok_or(DropReason::InnerPacket)?;
        if let PacketProtection::Esp(cipher, ..) = &self.protection {
            let behind = frame.get_mut(header_bytes + inner_bytes..).unwrap_or_default();
            write_trailer(behind, cipher.icv_bytes(), next_header)?;
        }
        // The number counts as used even if sealing fails.
        self.sequence += 1;
        let spi = self.spi;
        let sequence = self.sequence;
        match &mut self.protection {
            PacketProtection::Esp(_, transform, _) => seal_esp(transform, frame, spi, sequence)?,
            PacketProtection::Ah(key, ends) => {
                let fields = AhFields { next_header, spi, sequence, traffic_class };
                key.seal(frame, *ends, fields)?;
            }
        }
        Ok(frame_bytes)
    }

    /// Continues after a sequence number, for tests of the last ones.
    #[cfg(test)]
    pub(crate) fn set_sequence(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Seals a frame whose trailer the caller has written, for tests and fuzzing.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn seal_frame(&mut self, frame: &mut [u8]) -> Result<(), DropReason> {
        self.sequence += 1;
        match &self.protection {
            PacketProtection::Esp(_, transform, _) => {
                seal_esp(transform, frame, self.spi, self.sequence)
            }
            PacketProtection::Ah(..) => Err(DropReason::InnerPacket),
        }
    }
}

/// Writes padding, its length and the next header before the ICV, at the end of a frame.
fn write_trailer(behind: &mut [u8], icv_bytes: usize, next_header: u8) -> Result<(), DropReason> {
    let end = behind.len().checked_sub(icv_bytes + TRAILER_BYTES);
    let (padding, rest) = behind.split_at_mut(end.ok_or(DropReason::InnerPacket)?);
    // RFC 4303 section 2.4: the padding is 1, 2, 3, and so on.
    padding.iter_mut().zip(1..).for_each(|(byte, number)| *byte = number);
    let pad_bytes = u8::try_from(padding.len()).map_err(|_| DropReason::InnerPacket)?;
    rest[..TRAILER_BYTES].copy_from_slice(&[pad_bytes, next_header]);
    Ok(())
}

fn seal_esp(
    transform: &Transform,
    frame: &mut [u8],
    spi: EspSpi,
    sequence: u64,
) -> Result<(), DropReason> {
    let header = frame.first_chunk_mut::<ESP_HEADER_BYTES>().ok_or(DropReason::InnerPacket)?;
    let [.., a, b, c, d] = sequence.to_be_bytes();
    header[..4].copy_from_slice(&spi.number().to_be_bytes());
    header[4..].copy_from_slice(&[a, b, c, d]);
    transform.seal(frame, sequence).map_err(|_| DropReason::Integrity)
}
