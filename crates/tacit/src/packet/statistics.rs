//! Defines [`PacketStatistics`]: the counters of a packet worker that displays read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropCounters, DropReason, SaCounters};

use super::tunnel::TunId;

/// What a packet worker has processed.
#[derive(Clone, Debug, Default)]
pub struct PacketStatistics {
    /// Dropped packets by reason, without the reasons that never occurred.
    pub drops: Vec<(DropReason, u64)>,
    /// IKE messages that were received.
    pub ike_messages: u64,
    /// Keepalives that were received.
    pub keepalives: u64,
    /// Packets that wait for their first SA.
    pub held: u64,
    /// The SAs that are installed, by inbound SPI.
    pub tunnels: Vec<TunnelStatistics>,
}

/// What a tunnel has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelStatistics {
    /// The TUN device.
    pub tun: TunId,
    /// The SPI of received packets.
    pub inbound_spi: EspSpi,
    /// The SPI of sent packets.
    pub outbound_spi: EspSpi,
    /// Received packets.
    pub inbound: SaVolume,
    /// Sent packets.
    pub outbound: SaVolume,
}

/// What one SA has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaVolume {
    /// Inner packets.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// Dummy packets.
    pub dummies: u64,
}

/// The counters that the thread writes, and the SAs whose counters are shown.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) drops: DropCounters,
    pub(super) ike_messages: Counter,
    pub(super) keepalives: Counter,
    pub(super) held: Counter,
    tunnels: Mutex<BTreeMap<EspSpi, TunnelCounters>>,
}

/// A number that one thread writes.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

#[derive(Debug)]
pub(super) struct TunnelCounters {
    pub(super) tun: TunId,
    pub(super) outbound_spi: EspSpi,
    pub(super) inbound: Arc<SaCounters>,
    pub(super) outbound: Arc<SaCounters>,
}

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.set(self.0.load(Ordering::Relaxed).wrapping_add(more));
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

impl Counters {
    /// Shows an SA from now on.
    pub(super) fn add(&self, inbound_spi: EspSpi, counters: TunnelCounters) {
        self.tunnels().insert(inbound_spi, counters);
    }

    /// Shows an SA no longer.
    pub(super) fn remove(&self, inbound_spi: EspSpi) {
        self.tunnels().remove(&inbound_spi);
    }

    /// Shows the SAs of a device no longer.
    pub(super) fn remove_tun(&self, tun: TunId) {
        self.tunnels().retain(|_, counters| counters.tun != tun);
    }

    pub(super) fn snapshot(&self) -> PacketStatistics {
        let drops = DropReason::ALL.map(|reason| (reason, self.drops.count(reason)));
        let read = |counter: &Counter| counter.0.load(Ordering::Relaxed);
        let tunnels = self.tunnels();
        PacketStatistics {
            drops: drops.into_iter().filter(|(_, count)| *count > 0).collect(),
            ike_messages: read(&self.ike_messages),
            keepalives: read(&self.keepalives),
            held: read(&self.held),
            tunnels: tunnels.iter().map(|(spi, counters)| statistics(*spi, counters)).collect(),
        }
    }

    /// The thread of the data path never takes this lock.
    fn tunnels(&self) -> MutexGuard<'_, BTreeMap<EspSpi, TunnelCounters>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn statistics(inbound_spi: EspSpi, counters: &TunnelCounters) -> TunnelStatistics {
    let volume = |counters: &SaCounters| SaVolume {
        packets: counters.packets(),
        bytes: counters.bytes(),
        dummies: counters.dummies(),
    };
    TunnelStatistics {
        tun: counters.tun,
        inbound_spi,
        outbound_spi: counters.outbound_spi,
        inbound: volume(&counters.inbound),
        outbound: volume(&counters.outbound),
    }
}
