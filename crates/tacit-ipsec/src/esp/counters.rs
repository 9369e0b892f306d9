//! Counts the packets and bytes of an SA (security association), and the dropped packets by reason.
//!
//! Each counter has only one writer at a time, so an addition needs no locked instruction. `tacit
//! show` can read the counters at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Received: too short for its cipher, or not a multiple of its block size.
    Malformed,
    /// Received: no SA of this protocol has this SPI.
    UnknownSpi,
    /// Received without UDP: the IP header has other addresses than the SA.
    OuterAddress,
    /// Received: the sequence number was received already.
    Replayed,
    /// Received: the sequence number lies before the replay window.
    TooOld,
    /// Received: the ICV is wrong, so the packet was changed or has another key.
    Integrity,
    /// Received: the padding is not that of RFC 4303 section 2.4.
    Padding,
    /// Received: the next header is neither IPv4 nor IPv6 nor a dummy.
    NextHeader,
    /// Received or sent: the inner packet is invalid.
    InnerPacket,
    /// Received: the inner packet is outside the traffic selectors of its SA (RFC 4301 section
    /// 5.2).
    Selectors,
    /// Received: the outer header reports congestion to an inner packet without ECN (RFC 6040).
    Congestion,
    /// Sent or received: the policy does not permit the flow of the inner packet, although the
    /// traffic selectors comprise it.
    Flow,
    /// Sent or received: a filter rule denies the inner packet.
    Filter,
    /// Sent: no SA has a traffic selector for the packet.
    NoSa,
    /// Sent or received: the SA has reached its hard lifetime, or has no sequence number left.
    Expired,
    /// Sent: the packet cannot be divided into segments.
    Segmentation,
    /// Sent: the packet exceeds the MTU of the path, and must not be fragmented.
    TooBig,
    /// Received: the queue for IKE messages is full.
    Queue,
    /// Sent or received: the kernel refused the packet.
    Kernel,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 19] = [
        Self::Malformed,
        Self::UnknownSpi,
        Self::OuterAddress,
        Self::Replayed,
        Self::TooOld,
        Self::Integrity,
        Self::Padding,
        Self::NextHeader,
        Self::InnerPacket,
        Self::Selectors,
        Self::Congestion,
        Self::Flow,
        Self::Filter,
        Self::NoSa,
        Self::Expired,
        Self::Segmentation,
        Self::TooBig,
        Self::Queue,
        Self::Kernel,
    ];

    /// Returns the name in displays and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownSpi => "unknown-spi",
            Self::OuterAddress => "outer-address",
            Self::Replayed => "replayed",
            Self::TooOld => "too-old",
            Self::Integrity => "integrity",
            Self::Padding => "padding",
            Self::NextHeader => "next-header",
            Self::InnerPacket => "inner-packet",
            Self::Selectors => "selectors",
            Self::Congestion => "congestion",
            Self::Flow => "flow",
            Self::Filter => "filter",
            Self::NoSa => "no-sa",
            Self::Expired => "expired",
            Self::Segmentation => "segmentation",
            Self::TooBig => "too-big",
            Self::Queue => "queue",
            Self::Kernel => "kernel",
        }
    }
}

/// The number of dropped packets for each reason.
#[derive(Debug, Default)]
pub struct DropCounters([AtomicU64; DropReason::ALL.len()]);

impl DropCounters {
    /// Counts a dropped packet.
    pub fn add(&self, reason: DropReason) {
        if let Some(counter) = self.0.get(reason as usize) {
            add(counter, 1);
        }
    }

    /// Returns how many packets were dropped for a reason.
    #[must_use]
    pub fn count(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// What one direction of an SA has processed.
#[derive(Debug, Default)]
pub struct SaCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
    dummies: AtomicU64,
}

impl SaCounters {
    pub(crate) fn add_packet(&self, inner_bytes: usize) {
        add(&self.packets, 1);
        add(&self.bytes, u64::try_from(inner_bytes).unwrap_or(0));
    }

    pub(crate) fn add_dummy(&self) {
        add(&self.dummies, 1);
    }

    /// Returns the number of packets, without dummies.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the inner packets.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of dummy packets (RFC 4303 section 2.6).
    #[must_use]
    pub fn dummies(&self) -> u64 {
        self.dummies.load(Ordering::Relaxed)
    }
}

fn add(counter: &AtomicU64, more: u64) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_counter_and_a_name_of_its_own() {
        let counters = DropCounters::default();
        for (at, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "the order of ALL is that of the variants");
            counters.add(reason);
            assert_eq!(counters.count(reason), 1, "{reason:?}");
        }
        let names: std::collections::BTreeSet<_> =
            DropReason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
