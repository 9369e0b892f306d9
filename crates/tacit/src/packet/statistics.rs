//! Defines [`PacketStatistics`]: the counters of a packet worker, which `tacit show` and the
//! metrics report.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
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
    /// What was received with all SAs, also those that were removed.
    pub inbound: SaVolume,
    /// What was sent with all SAs.
    pub outbound: SaVolume,
    /// The SAs that are installed, by inbound SPI.
    pub tunnels: Vec<TunnelStatistics>,
}

/// What a tunnel has processed.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Its dropped packets by reason, without the reasons that never occurred.
    pub drops: Vec<(DropReason, u64)>,
}

/// What one SA has processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    shown: Mutex<ShownTunnels>,
}

/// The SAs that are shown, and the sums of those that were removed.
#[derive(Debug, Default)]
struct ShownTunnels {
    tunnels: BTreeMap<EspSpi, TunnelCounters>,
    inbound: SaVolume,
    outbound: SaVolume,
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
    pub(super) drops: Arc<DropCounters>,
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
    /// Shows an SA from now on. Returns `false`, and does nothing, if another one has the SPI.
    pub(super) fn add(&self, inbound_spi: EspSpi, counters: TunnelCounters) -> bool {
        match self.shown().tunnels.entry(inbound_spi) {
            Entry::Vacant(place) => {
                place.insert(counters);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Shows an SA no longer.
    pub(super) fn remove(&self, inbound_spi: EspSpi) {
        let mut shown = self.shown();
        if let Some(counters) = shown.tunnels.remove(&inbound_spi) {
            shown.add_ended(&counters);
        }
    }

    /// Shows the SAs of a device no longer.
    pub(super) fn remove_tun(&self, tun: TunId) {
        let mut shown = self.shown();
        let (ended, others): (BTreeMap<_, _>, _) = std::mem::take(&mut shown.tunnels)
            .into_iter()
            .partition(|(_, counters)| counters.tun == tun);
        shown.tunnels = others;
        ended.values().for_each(|counters| shown.add_ended(counters));
    }

    /// How many authentic packets an SA has received.
    pub(super) fn received_packets(&self, inbound_spi: EspSpi) -> u64 {
        let shown = self.shown();
        let counters = shown.tunnels.get(&inbound_spi).map(|one| &one.inbound);
        counters.map_or(0, |one| one.packets().wrapping_add(one.dummies()))
    }

    pub(super) fn snapshot(&self) -> PacketStatistics {
        let read = |counter: &Counter| counter.0.load(Ordering::Relaxed);
        let shown = self.shown();
        let tunnels: Vec<_> =
            shown.tunnels.iter().map(|(spi, counters)| statistics(*spi, counters)).collect();
        let sum = |ended: SaVolume, of: fn(&TunnelStatistics) -> SaVolume| {
            tunnels.iter().map(of).fold(ended, SaVolume::plus)
        };
        PacketStatistics {
            inbound: sum(shown.inbound, |one| one.inbound),
            outbound: sum(shown.outbound, |one| one.outbound),
            drops: counts(&self.drops),
            ike_messages: read(&self.ike_messages),
            keepalives: read(&self.keepalives),
            held: read(&self.held),
            tunnels,
        }
    }

    /// The thread of the data path never takes this lock.
    fn shown(&self) -> MutexGuard<'_, ShownTunnels> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShownTunnels {
    fn add_ended(&mut self, counters: &TunnelCounters) {
        self.inbound = self.inbound.plus(volume(&counters.inbound));
        self.outbound = self.outbound.plus(volume(&counters.outbound));
    }
}

impl SaVolume {
    fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            dummies: self.dummies.wrapping_add(other.dummies),
        }
    }
}

fn volume(counters: &SaCounters) -> SaVolume {
    SaVolume { packets: counters.packets(), bytes: counters.bytes(), dummies: counters.dummies() }
}

fn statistics(inbound_spi: EspSpi, counters: &TunnelCounters) -> TunnelStatistics {
    TunnelStatistics {
        tun: counters.tun,
        inbound_spi,
        outbound_spi: counters.outbound_spi,
        inbound: volume(&counters.inbound),
        outbound: volume(&counters.outbound),
        drops: counts(&counters.drops),
    }
}

fn counts(drops: &DropCounters) -> Vec<(DropReason, u64)> {
    let all = DropReason::ALL.map(|reason| (reason, drops.count(reason)));
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}
