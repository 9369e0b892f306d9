//! Decrypts (opens) ESP packets (RFC 4303 section 3.4), verifies AH packets (RFC 4302 section 3.4),
//! and checks the packets inside.
//!
//! ```text
//! sequence number -> replay window -> ICV, decryption -> update window -> padding -> inner packet:
//! headers, traffic selectors (RFC 4301 section 5.2), ECN (RFC 6040)
//! ```
//!
//! Every check has its own [`DropReason`]. The replay window is updated only after the ICV
//! (integrity check value) has been verified.

use std::ops::Range;
use std::sync::Arc;

use super::ah::remove_header;
use super::counters::{DropReason, SaCounters};
use super::lifetime::{DataLifetime, LifetimeState};
use super::outbound::{DUMMY, IPV4, IPV6, SelectorPairs, TRAILER_BYTES};
use super::outer::{OuterPacket, OuterProtocol};
use super::protection::PacketProtection;
use super::replay::{ReplayError, ReplayWindow};
use super::transform::ESP_HEADER_BYTES;
use super::transport::TransportEnds;
use crate::child::{ChildSa, EspSpi};
use crate::cipher::Cipher;
use crate::cipher_key::KeyLengthError;
use crate::packet::{IpPacket, ecn};
use crate::selector::TrafficSelector;

/// The receiving direction of a tunnel.
#[derive(Debug)]
pub struct InboundSa {
    spi: EspSpi,
    protection: PacketProtection,
    /// `None`: tunnel mode.
    transport: Option<TransportEnds>,
    window: ReplayWindow,
    lifetime: DataLifetime,
    selectors: SelectorPairs,
    counters: Arc<SaCounters>,
}

/// An opened ESP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// An inner packet, at this place in the frame.
    Packet(IpPacket, Range<usize>),
    /// A dummy packet: there is nothing to deliver.
    Dummy,
}

impl InboundSa {
    /// Creates the SA of a tunnel that IKE has negotiated.
    ///
    /// # Errors
    /// The keys do not have the lengths that the cipher requires.
    pub fn new(child: &ChildSa, lifetime: DataLifetime) -> Result<Self, KeyLengthError> {
        let window = match child.has_extended_sequence {
            true => ReplayWindow::extended(),
            false => ReplayWindow::new(child.origin.replay()),
        };
        Ok(Self {
            spi: child.inbound.spi,
            protection: PacketProtection::new(child, &child.inbound)?,
            transport: TransportEnds::of(child.mode),
            window,
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

    /// Returns the highest sequence number that was received.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.window.top()
    }

    /// Accepts other packets from now on: those that match both traffic selectors.
    pub fn set_selectors(&mut self, local: Vec<TrafficSelector>, remote: Vec<TrafficSelector>) {
        self.selectors = SelectorPairs { local, remote };
    }

    /// Returns the counters, which displays read.
    #[must_use]
    pub fn counters(&self) -> &Arc<SaCounters> {
        &self.counters
    }

    /// Returns where the SA stands in its lifetime.
    #[must_use]
    pub fn lifetime_state(&self) -> LifetimeState {
        self.lifetime.state(&self.counters)
    }

    /// Opens an ESP packet with this SPI, which has arrived in UDP, in place. `traffic_class` is
    /// that of the outer header.
    ///
    /// # Errors
    /// The reason why the packet is dropped; `frame` is then undefined.
    pub fn open(&mut self, frame: &mut [u8], traffic_class: u8) -> Result<Opened, DropReason> {
        match self.protection {
            PacketProtection::Esp(_, _, None) => self.open_esp(frame, traffic_class),
            PacketProtection::Esp(..) | PacketProtection::Ah(..) => Err(DropReason::UnknownSpi),
        }
    }

    /// Opens a packet with this SPI, which has arrived without UDP, in place. `packet` begins with
    /// the IP header, and so does the place that is returned.
    ///
    /// # Errors
    /// The reason why the packet is dropped; `packet` is then undefined.
    pub fn open_without_udp(
        &mut self,
        packet: &mut [u8],
        outer: &OuterPacket,
    ) -> Result<Opened, DropReason> {
        let ends = match (&self.protection, outer.protocol) {
            (PacketProtection::Esp(_, _, Some(ends)), OuterProtocol::Esp)
            | (PacketProtection::Ah(_, ends), OuterProtocol::Ah) => *ends,
            _ => return Err(DropReason::UnknownSpi),
        };
        // RFC 4301 section 4.1: the SA is that of these addresses.
        if outer.source != ends.remote || outer.destination != ends.local {
            return Err(DropReason::OuterAddress);
        }
        match outer.protocol {
            OuterProtocol::Esp => {
                let frame = packet.get_mut(outer.at..outer.bytes).ok_or(DropReason::Malformed)?;
                Ok(match self.open_esp(frame, outer.traffic_class)? {
                    Opened::Packet(parsed, place) => {
                        Opened::Packet(parsed, place.start + outer.at..place.end + outer.at)
                    }
                    Opened::Dummy => Opened::Dummy,
                })
            }
            OuterProtocol::Ah => self.open_ah(packet, outer),
        }
    }

    /// Writes the ICV of an AH packet as its sender would, for fuzzing.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn sign_ah(
        &mut self,
        packet: &mut [u8],
        outer: &OuterPacket,
    ) -> Result<(), DropReason> {
        match &mut self.protection {
            PacketProtection::Ah(key, _) => key.sign(packet, outer),
            PacketProtection::Esp(..) => Err(DropReason::UnknownSpi),
        }
    }

    fn open_esp(&mut self, frame: &mut [u8], traffic_class: u8) -> Result<Opened, DropReason> {
        let PacketProtection::Esp(cipher, transform, _) = &self.protection else {
            return Err(DropReason::UnknownSpi);
        };
        if self.lifetime_state() == LifetimeState::Expired {
            return Err(DropReason::Expired);
        }
        let text = text(*cipher, frame.len())?;
        let low = frame.get(4..).and_then(|rest| rest.first_chunk::<4>());
        let low = u32::from_be_bytes(*low.ok_or(DropReason::Malformed)?);
        // RFC 4303 section 3.4.3: the cheap check first, and the window moves only after the ICV.
        let sequence = checked(&self.window, low)?;
        transform.open(frame, sequence).map_err(|_| DropReason::Integrity)?;
        self.window.accept(sequence);
        let (next_header, inner) = without_padding(frame, text)?;
        match next_header {
            DUMMY => {
                self.counters.add_dummy();
                Ok(Opened::Dummy)
            }
            IPV4 | IPV6 => self.open_tunneled(frame, inner, next_header, traffic_class),
            protocol => {
                let ends = self.transport.ok_or(DropReason::NextHeader)?;
                let place = ends.restore(frame, inner, protocol, traffic_class);
                self.accept_transport(frame, place.ok_or(DropReason::InnerPacket)?)
            }
        }
    }

    /// RFC 4302 section 3.4.
    fn open_ah(&mut self, packet: &mut [u8], outer: &OuterPacket) -> Result<Opened, DropReason> {
        if self.lifetime_state() == LifetimeState::Expired {
            return Err(DropReason::Expired);
        }
        let PacketProtection::Ah(key, _) = &mut self.protection else {
            return Err(DropReason::UnknownSpi);
        };
        let (content_at, low) = key.parse(packet, outer)?;
        // RFC 4302 section 3.4.3: as with ESP.
        let sequence = checked(&self.window, low)?;
        key.verify(packet, outer, content_at)?;
        self.window.accept(sequence);
        let next_header = *packet.get(outer.at).ok_or(DropReason::Malformed)?;
        if matches!(next_header, IPV4 | IPV6) {
            let content = content_at..outer.bytes;
            return self.open_tunneled(packet, content, next_header, outer.traffic_class);
        }
        if self.transport.is_none() {
            return Err(DropReason::NextHeader);
        }
        let start = remove_header(packet, outer, content_at).ok_or(DropReason::InnerPacket)?;
        self.accept_transport(packet, start..outer.bytes)
    }

    /// Checks the packet of tunnel mode at a place of a buffer.
    fn open_tunneled(
        &mut self,
        buffer: &mut [u8],
        place: Range<usize>,
        next_header: u8,
        traffic_class: u8,
    ) -> Result<Opened, DropReason> {
        if self.transport.is_some() {
            return Err(DropReason::NextHeader);
        }
        let inner = buffer.get_mut(place.clone()).ok_or(DropReason::Padding)?;
        let packet = self.inner_packet(inner, next_header, traffic_class)?;
        self.counters.add_packet(packet.bytes);
        Ok(Opened::Packet(packet, place.start..place.start + packet.bytes))
    }

    /// Checks the packet of transport mode at a place of a buffer.
    fn accept_transport(&self, buffer: &[u8], place: Range<usize>) -> Result<Opened, DropReason> {
        let bytes = buffer.get(place.clone()).ok_or(DropReason::InnerPacket)?;
        let packet = IpPacket::parse(bytes).map_err(|_| DropReason::InnerPacket)?;
        if !self.selectors.match_inbound(&packet) {
            return Err(DropReason::Selectors);
        }
        self.counters.add_packet(packet.bytes);
        Ok(Opened::Packet(packet, place))
    }

    fn inner_packet(
        &self,
        inner: &mut [u8],
        next_header: u8,
        traffic_class: u8,
    ) -> Result<IpPacket, DropReason> {
        let packet = IpPacket::parse(inner).map_err(|_| DropReason::InnerPacket)?;
        if packet.is_v4() != (next_header == IPV4) {
            return Err(DropReason::InnerPacket);
        }
        if !self.selectors.match_inbound(&packet) {
            return Err(DropReason::Selectors);
        }
        let before = ecn::traffic_class(inner) & ecn::ECN_MASK;
        let after = ecn::decapsulated(before, traffic_class).ok_or(DropReason::Congestion)?;
        if after != before {
            ecn::set(inner, after);
        }
        Ok(packet)
    }
}

/// Returns where the plaintext will stand in an ESP packet of this length.
fn text(cipher: Cipher, frame_bytes: usize) -> Result<Range<usize>, DropReason> {
    let start = ESP_HEADER_BYTES + cipher.iv_bytes();
    let end = frame_bytes.checked_sub(cipher.icv_bytes()).ok_or(DropReason::Malformed)?;
    let text_bytes = end.checked_sub(start).ok_or(DropReason::Malformed)?;
    let is_whole = text_bytes.is_multiple_of(cipher.block_bytes());
    if text_bytes >= TRAILER_BYTES && is_whole {
        Ok(start..end)
    } else {
        Err(DropReason::Malformed)
    }
}

/// Returns the whole sequence number, unless a packet with it was received already.
fn checked(window: &ReplayWindow, low: u32) -> Result<u64, DropReason> {
    window.check(low).map_err(|error| match error {
        ReplayError::TooOld => DropReason::TooOld,
        ReplayError::Duplicate => DropReason::Replayed,
    })
}

/// Checks the padding (RFC 4303 section 2.4), and returns the next header and the place of the
/// inner packet.
fn without_padding(frame: &[u8], text: Range<usize>) -> Result<(u8, Range<usize>), DropReason> {
    let bytes = frame.get(text.clone()).ok_or(DropReason::Malformed)?;
    let (bytes, &[pad_bytes, next_header]) =
        bytes.split_last_chunk().ok_or(DropReason::Malformed)?;
    let inner = bytes.len().checked_sub(usize::from(pad_bytes)).ok_or(DropReason::Padding)?;
    let padding = bytes.get(inner..).unwrap_or_default();
    if padding.iter().zip(1_u8..).any(|(byte, number)| *byte != number) {
        return Err(DropReason::Padding);
    }
    Ok((next_header, text.start..text.start + inner))
}
