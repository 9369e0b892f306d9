//! Defines [`PacketStatistics`]: the counters of a packet worker, which moves the packets of IPsec
//! tunnels. `tacit show` displays these counters, and the metrics contain them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropCounters, DropReason, SaCounters};
use tacit_ipsec::packet::IpPacket;
use tacit_sys::datagram_batch::ReceiveQueue;
use tacit_sys::schedule::Scheduling;

use super::direction::Direction;
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
    /// The inner packets that were sent.
    pub sent: Traffic,
    /// The inner packets that the thread `tacit-packet` has received and delivered.
    pub received: Traffic,
    /// The inner packets that the thread `tacit-receive` has received and delivered.
    pub received_second: Traffic,
    /// How often receiving has moved from one of these threads to the other.
    pub moves: u64,
    /// ESP packets that were sent in fragments, because they exceed the MTU of the path.
    pub fragmented: u64,
    /// The datagrams that wait in the sockets to peers.
    pub queue: ReceiveQueue,
    /// The threads.
    pub threads: Vec<PacketThreadState>,
    /// The SAs that are installed, by inbound SPI.
    pub tunnels: Vec<TunnelStatistics>,
}

impl PacketStatistics {
    /// Whether a thread runs on the CPU of an engine.
    #[must_use]
    pub fn has_engine(&self) -> bool {
        self.threads.iter().any(|thread| thread.is_engine)
    }
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

/// Inner packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// IPv4 packets.
    pub v4: PacketVolume,
    /// IPv6 packets.
    pub v6: PacketVolume,
    /// How many of them are fragments.
    pub fragments: u64,
}

/// A thread that moves packets.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketThreadState {
    /// The name of the thread.
    pub name: &'static str,
    /// The CPU that it is bound to; `None`: the kernel chooses.
    pub cpu: Option<usize>,
    /// How it is scheduled; `None`: the kernel does not report it.
    pub scheduling: Option<Scheduling>,
    /// Its CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// The time that it was ready to run and had no CPU, in nanoseconds, if the kernel counts it.
    pub waited_ns: Option<u64>,
    /// Whether it runs on the CPU of an engine.
    pub is_engine: bool,
    /// The part of the last second in which it had work, in tenths of a percent. An engine that
    /// polls for packets has no work.
    pub busy_permille: u64,
}

/// Packets, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketVolume {
    /// The packets.
    pub packets: u64,
    /// The bytes of the packets with their headers.
    pub bytes: u64,
}

/// The counters that the threads write, and the SAs whose counters are shown.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) drops: DirectionDrops,
    pub(super) ike_messages: Counter,
    pub(super) keepalives: Counter,
    pub(super) held: Counter,
    pub(super) outbound: TrafficCounters,
    /// What the pipeline has received.
    pub(super) inbound: TrafficCounters,
    /// What the second thread has received.
    pub(super) inbound_second: TrafficCounters,
    pub(super) moves: Counter,
    pub(super) fragmented: Counter,
    /// The work of `tacit-packet` and of `tacit-receive`.
    pub(super) busy: [BusyTime; 2],
    shown: Mutex<ShownTunnels>,
}

/// Dropped packets by direction: each counter has one writer.
#[derive(Debug, Default)]
pub(super) struct DirectionDrops {
    outbound: DropCounters,
    inbound: DropCounters,
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

/// The time in which a thread had work.
#[derive(Debug, Default)]
pub(super) struct BusyTime {
    ns: Counter,
    /// Of the last second; written by `tacit-packet`.
    permille: Counter,
}

/// Counts the packets of one direction.
#[derive(Debug, Default)]
pub(super) struct TrafficCounters {
    v4: VolumeCounters,
    v6: VolumeCounters,
    fragments: Counter,
}

#[derive(Debug, Default)]
struct VolumeCounters {
    packets: Counter,
    bytes: Counter,
}

#[derive(Debug)]
pub(super) struct TunnelCounters {
    pub(super) tun: TunId,
    pub(super) outbound_spi: EspSpi,
    pub(super) inbound: Arc<SaCounters>,
    pub(super) outbound: Arc<SaCounters>,
    pub(super) drops: Arc<DirectionDrops>,
}

impl Traffic {
    /// Adds the packets of another thread.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            v4: self.v4.plus(other.v4),
            v6: self.v6.plus(other.v6),
            fragments: self.fragments.wrapping_add(other.fragments),
        }
    }
}

impl PacketVolume {
    fn plus(self, other: Self) -> Self {
        Self {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }
}

impl Counter {
    pub(super) fn add(&self, more: u64) {
        self.set(self.0.load(Ordering::Relaxed).wrapping_add(more));
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl TrafficCounters {
    /// Counts a packet, or a part of a large one with this length.
    pub(super) fn add(&self, packet: &IpPacket, bytes: usize) {
        let volume = if packet.is_v4() { &self.v4 } else { &self.v6 };
        volume.packets.add(1);
        volume.bytes.add(u64::try_from(bytes).unwrap_or(u64::MAX));
        if packet.is_fragment {
            self.fragments.add(1);
        }
    }

    fn read(&self) -> Traffic {
        Traffic { v4: self.v4.read(), v6: self.v6.read(), fragments: self.fragments.get() }
    }
}

impl BusyTime {
    pub(super) fn add(&self, time: Duration) {
        self.ns.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn permille(&self) -> u64 {
        self.permille.get()
    }
}

impl VolumeCounters {
    fn read(&self) -> PacketVolume {
        PacketVolume { packets: self.packets.get(), bytes: self.bytes.get() }
    }
}

impl DirectionDrops {
    pub(super) fn of(&self, direction: Direction) -> &DropCounters {
        match direction {
            Direction::Outbound => &self.outbound,
            Direction::Inbound => &self.inbound,
        }
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

    /// How many packets an SA has sent.
    pub(super) fn sent_packets(&self, inbound_spi: EspSpi) -> u64 {
        let shown = self.shown();
        let counters = shown.tunnels.get(&inbound_spi).map(|one| &one.outbound);
        counters.map_or(0, |one| one.packets().wrapping_add(one.dummies()))
    }

    /// How many authentic packets an SA has received.
    pub(super) fn received_packets(&self, inbound_spi: EspSpi) -> u64 {
        let shown = self.shown();
        let counters = shown.tunnels.get(&inbound_spi).map(|one| &one.inbound);
        counters.map_or(0, |one| one.packets().wrapping_add(one.dummies()))
    }

    /// The time in which the threads had work, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy.iter().fold(0, |sum, one| sum.wrapping_add(one.ns.get()))
    }

    /// Ends a second: computes in which part of it each thread had work. `before` are the times of
    /// the threads when it began.
    pub(super) fn end_second(&self, before: &mut [u64; 2], second: Duration) {
        let second_ns = second.as_nanos().max(1);
        for (time, before) in self.busy.iter().zip(before) {
            let now = time.ns.get();
            let permille = u128::from(now.saturating_sub(*before)) * 1_000 / second_ns;
            time.permille.set(u64::try_from(permille).unwrap_or(u64::MAX));
            *before = now;
        }
    }

    pub(super) fn snapshot(&self) -> PacketStatistics {
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
            sent: self.outbound.read(),
            received: self.inbound.read(),
            received_second: self.inbound_second.read(),
            moves: self.moves.get(),
            fragmented: self.fragmented.get(),
            queue: ReceiveQueue::default(),
            threads: Vec::new(),
            ike_messages: self.ike_messages.get(),
            keepalives: self.keepalives.get(),
            held: self.held.get(),
            tunnels,
        }
    }

    /// The threads of the data path never take this lock.
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

fn counts(drops: &DirectionDrops) -> Vec<(DropReason, u64)> {
    let count = |reason| drops.outbound.count(reason).wrapping_add(drops.inbound.count(reason));
    let all = DropReason::ALL.map(|reason| (reason, count(reason)));
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}
