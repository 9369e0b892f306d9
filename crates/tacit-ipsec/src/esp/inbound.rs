//! Decrypts (opens) ESP packets (RFC 4303 section 3.4), and checks the packets inside.
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

use super::counters::{DropReason, SaCounters};
use super::lifetime::{DataLifetime, LifetimeState};
use super::outbound::{DUMMY, IPV4, IPV6, SelectorPairs, TRAILER_BYTES};
use super::replay::{ReplayError, ReplayWindow};
use super::transform::{ESP_HEADER_BYTES, Transform};
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
    cipher: Cipher,
    transform: Transform,
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
            cipher: child.cipher,
            transform: Transform::new(child, &child.inbound)?,
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

    /// Opens an ESP packet with this SPI in place. `traffic_class` is that of the outer header.
    ///
    /// # Errors
    /// The reason why the packet is dropped; `frame` is then undefined.
    pub fn open(&mut self, frame: &mut [u8], traffic_class: u8) -> Result<Opened, DropReason> {
        if self.lifetime_state() == LifetimeState::Expired {
            return Err(DropReason::Expired);
        }
        let text = self.text(frame.len())?;
        let low = frame.get(4..).and_then(|rest| rest.first_chunk::<4>());
        let low = u32::from_be_bytes(*low.ok_or(DropReason::Malformed)?);
        // RFC 4303 section 3.4.3: the cheap check first, and the window moves only after the ICV.
        let sequence = self.window.check(low).map_err(|error| match error {
            ReplayError::TooOld => DropReason::TooOld,
            ReplayError::Duplicate => DropReason::Replayed,
        })?;
        self.transform.open(frame, sequence).map_err(|_| DropReason::Integrity)?;
        self.window.accept(sequence);
        let (next_header, inner) = without_padding(frame, text)?;
        match next_header {
            DUMMY => {
                self.counters.add_dummy();
                Ok(Opened::Dummy)
            }
            IPV4 | IPV6 if self.transport.is_none() => {
                let inner_bytes = frame.get_mut(inner.clone()).ok_or(DropReason::Padding)?;
                let packet = self.inner_packet(inner_bytes, next_header, traffic_class)?;
                self.counters.add_packet(packet.bytes);
                Ok(Opened::Packet(packet, inner.start..inner.start + packet.bytes))
            }
            IPV4 | IPV6 => Err(DropReason::NextHeader),
            protocol => {
                let ends = self.transport.ok_or(DropReason::NextHeader)?;
                let place = ends.restore(frame, inner, protocol, traffic_class);
                let place = place.ok_or(DropReason::InnerPacket)?;
                let bytes = frame.get(place.clone()).ok_or(DropReason::InnerPacket)?;
                let packet = IpPacket::parse(bytes).map_err(|_| DropReason::InnerPacket)?;
                if !self.selectors.match_inbound(&packet) {
                    return Err(DropReason::Selectors);
                }
                self.counters.add_packet(packet.bytes);
                Ok(Opened::Packet(packet, place))
            }
        }
    }

    /// Returns where the plaintext will stand in a frame of this length.
    fn text(&self, frame_bytes: usize) -> Result<Range<usize>, DropReason> {
        let start = ESP_HEADER_BYTES + self.cipher.iv_bytes();
        let end = frame_bytes.checked_sub(self.cipher.icv_bytes()).ok_or(DropReason::Malformed)?;
        let text_bytes = end.checked_sub(start).ok_or(DropReason::Malformed)?;
        let is_whole = text_bytes.is_multiple_of(self.cipher.block_bytes());
        if text_bytes >= TRAILER_BYTES && is_whole {
            Ok(start..end)
        } else {
            Err(DropReason::Malformed)
        }
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
