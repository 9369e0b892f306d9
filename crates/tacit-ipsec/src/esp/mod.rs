//! Implements ESP (RFC 4303) and AH (RFC 4302), in tunnel mode and in transport mode. ESP packets
//! may be inside UDP datagrams (RFC 3948).
//!
//! In reading order:
//! * [`OutboundSa`] encrypts (seals) packets, and [`InboundSa`] decrypts (opens) them, both in
//!   place;
//! * [`UdpContent`] distinguishes ESP from IKE in UDP datagrams; [`OuterPacket`] finds ESP or AH in
//!   IP packets without UDP;
//! * [`DataLifetime`] limits how many bytes a key protects;
//! * [`SaCounters`] and [`DropCounters`] count packets and bytes for `tacit show`.
//!
//! Limit: a packet is dropped if its sequence number is [`REPLAY_WINDOW`] or more below the highest
//! sequence number received.

mod ah;
mod counters;
mod framing;
mod inbound;
mod lifetime;
mod mutable;
mod outbound;
mod outer;
mod protection;
mod replay;
mod transform;
mod transport;

pub use crate::cipher_key::KeyLengthError;
pub use counters::{DropCounters, DropReason, SaCounters};
pub use framing::{KEEPALIVE, NON_ESP_MARKER, UdpContent};
pub use inbound::{InboundSa, Opened};
pub use lifetime::{DataLifetime, DataVolume, LifetimeState};
pub use outbound::OutboundSa;
pub use outer::OuterPacket;
pub use replay::REPLAY_WINDOW;

#[cfg(test)]
mod ah_tests;
#[cfg(test)]
mod tests;
