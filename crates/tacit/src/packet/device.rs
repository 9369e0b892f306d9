//! Defines the two directions of a TUN device. A packet worker reads packets of programs from an
//! [`OutboundDevice`], and writes packets of peers to an [`InboundDevice`]. [`OutboundDevice`]
//! holds packets until IKE has negotiated a tunnel, and counts refused packets.
//!
//! IKE needs some milliseconds to negotiate a tunnel. If the first packet were dropped, TCP would
//! retransmit it only after a second. After a restart, the packets of many connections wait.
//!
//! Limits: a device holds at most [`HELD_PACKETS_MAX`] packets, of which [`HELD_LONG_MAX`] are
//! longer than [`SHORT_BYTES_MAX`] bytes, each for at most [`HELD_TURNS_MAX`] seconds. In each
//! second, the device reports at most [`DEMANDS_MAX`] destinations that need a tunnel, and counts
//! the refused packets of at most [`REFUSED_MAX`] destinations.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tacit_ipsec::offload::VNET_HEADER_BYTES;
use tacit_ipsec::packet::IpPacket;
use tacit_sys::tun::Tun;

use super::answers::SentDatagrams;
use super::table::TunnelSlot;

/// The largest number of packets of one device that wait for a tunnel. A full queue of the device
/// (500 packets) has room when an agent takes over the device.
const HELD_PACKETS_MAX: usize = 512;
/// The largest number of long packets among them: large TCP packets, which the kernel has not yet
/// divided into segments.
const HELD_LONG_MAX: usize = 16;
/// Longer packets count as long.
const SHORT_BYTES_MAX: usize = 1_500;
/// How many seconds a packet waits at most.
const HELD_TURNS_MAX: u32 = 10;
/// The largest number of destinations that are reported in a second.
const DEMANDS_MAX: usize = 16;
/// The largest number of destinations whose refused packets are counted in a second; refused
/// packets to further ones have only the counter of the worker.
const REFUSED_MAX: usize = 256;

/// What both directions use.
#[derive(Debug)]
struct Shared {
    tun: Tun,
    /// The datagrams that a peer may answer.
    sent: Mutex<SentDatagrams>,
}

/// A TUN device to which packets are written.
#[derive(Debug)]
pub(super) struct InboundDevice(Arc<Shared>);

/// A TUN device from which packets are read.
#[derive(Debug)]
pub(super) struct OutboundDevice {
    shared: Arc<Shared>,
    /// The tunnels that send its packets, newest first.
    pub(super) active: Vec<TunnelSlot>,
    held: HeldPackets,
    /// The destinations without tunnel that were reported in this second.
    demanded: Vec<IpAddr>,
    /// The refused packets that were not reported yet: the first to each destination, and their
    /// number.
    refused: Vec<(IpPacket, u64)>,
}

/// The packets that wait for a tunnel, oldest first.
#[derive(Debug, Default)]
struct HeldPackets(VecDeque<HeldPacket>);

/// A packet that waits for a tunnel.
#[derive(Debug)]
pub(super) struct HeldPacket {
    pub(super) header: [u8; VNET_HEADER_BYTES],
    pub(super) bytes: Vec<u8>,
    /// The seconds that it has waited.
    turns: u32,
}

impl Shared {
    fn sent(&self) -> MutexGuard<'_, SentDatagrams> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldPackets {
    /// Keeps a packet. Returns `false` if there is no room.
    fn hold(&mut self, header: [u8; VNET_HEADER_BYTES], bytes: &[u8]) -> bool {
        let is_long = |bytes: &[u8]| bytes.len() > SHORT_BYTES_MAX;
        let long_packets = || self.0.iter().filter(|held| is_long(&held.bytes)).count();
        let has_room =
            self.0.len() < HELD_PACKETS_MAX && (!is_long(bytes) || long_packets() < HELD_LONG_MAX);
        if has_room {
            self.0.push_back(HeldPacket { header, bytes: bytes.to_vec(), turns: 0 });
        }
        has_room
    }

    /// Returns the packets that have waited too long in this second.
    fn turn(&mut self) -> Vec<HeldPacket> {
        self.0.iter_mut().for_each(|packet| packet.turns += 1);
        // They are in the order of their age.
        let late = self.0.iter().take_while(|packet| packet.turns > HELD_TURNS_MAX).count();
        self.0.drain(..late).collect()
    }
}

impl InboundDevice {
    pub(super) fn tun(&self) -> &Tun {
        &self.0.tun
    }

    /// Reports whether a packet that arrives is not an unrequested UDP datagram.
    pub(super) fn permits(&self, packet: &IpPacket) -> bool {
        !SentDatagrams::are_concerned(packet) || self.0.sent().permit(packet)
    }
}

impl OutboundDevice {
    /// Divides a device.
    pub(super) fn new(tun: Tun) -> (Self, InboundDevice) {
        let shared = Arc::new(Shared { tun, sent: Mutex::default() });
        let inbound = InboundDevice(Arc::clone(&shared));
        let outbound = Self {
            shared,
            active: Vec::new(),
            held: HeldPackets::default(),
            demanded: Vec::new(),
            refused: Vec::new(),
        };
        (outbound, inbound)
    }

    pub(super) fn tun(&self) -> &Tun {
        &self.shared.tun
    }

    /// Permits answers to a packet that leaves.
    pub(super) fn record(&self, packet: &IpPacket) {
        if SentDatagrams::are_concerned(packet) {
            self.shared.sent().record(packet);
        }
    }

    /// Sends with this tunnel from now on.
    pub(super) fn activate(&mut self, slot: TunnelSlot) {
        self.deactivate(slot);
        self.active.insert(0, slot);
    }

    pub(super) fn deactivate(&mut self, slot: TunnelSlot) {
        self.active.retain(|active| *active != slot);
    }

    /// Keeps a packet until a tunnel begins that takes it. Returns `false` if there is no room.
    pub(super) fn hold(&mut self, header: [u8; VNET_HEADER_BYTES], bytes: &[u8]) -> bool {
        self.held.hold(header, bytes)
    }

    /// Returns the packets that have waited, oldest first.
    pub(super) fn take_held(&mut self) -> VecDeque<HeldPacket> {
        std::mem::take(&mut self.held.0)
    }

    /// Reports whether a packet without tunnel has a destination that was not reported yet. Nothing
    /// is negotiated for multicast, which interfaces send by themselves.
    pub(super) fn is_new_demand(&mut self, packet: &IpPacket) -> bool {
        let destination = packet.destination;
        let is_new = !is_multicast(packet)
            && self.demanded.len() < DEMANDS_MAX
            && !self.demanded.contains(&destination);
        if is_new {
            self.demanded.push(destination);
        }
        is_new
    }

    /// Counts a packet that was refused.
    pub(super) fn note_refused(&mut self, packet: &IpPacket) {
        let port = |packet: &IpPacket| packet.ports.map(|(_, destination)| destination);
        let is_same = |(other, _): &&mut (IpPacket, u64)| {
            (other.protocol, other.destination, port(other))
                == (packet.protocol, packet.destination, port(packet))
        };
        if let Some((_, count)) = self.refused.iter_mut().find(is_same) {
            *count = count.saturating_add(1);
        } else if self.refused.len() < REFUSED_MAX {
            self.refused.push((*packet, 1));
        }
    }

    /// Reports the refused packets of each destination; those that cannot be reported stay.
    pub(super) fn report_refused(&mut self, mut is_taken: impl FnMut(IpPacket, u64) -> bool) {
        self.refused.retain(|(packet, count)| !is_taken(*packet, *count));
    }

    /// Begins the next second. Returns the packets that have waited too long.
    pub(super) fn turn(&mut self) -> Vec<HeldPacket> {
        self.demanded.clear();
        self.shared.sent().turn();
        self.held.turn()
    }

    pub(super) fn held_packets(&self) -> usize {
        self.held.0.len()
    }
}

pub(super) fn is_multicast(packet: &IpPacket) -> bool {
    packet.destination.is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_packets_leave_room_for_those_that_open_connections() {
        let header = [0; VNET_HEADER_BYTES];
        let mut held = HeldPackets::default();
        let count = |held: &mut HeldPackets, bytes: &[u8]| {
            (0..2 * HELD_PACKETS_MAX).filter(|_| held.hold(header, bytes)).count()
        };
        assert_eq!(count(&mut held, &[0; SHORT_BYTES_MAX + 1]), HELD_LONG_MAX);
        assert_eq!(count(&mut held, &[0; 60]), HELD_PACKETS_MAX - HELD_LONG_MAX);
        for _ in 0..HELD_TURNS_MAX {
            assert!(held.turn().is_empty());
        }
        assert_eq!(held.turn().len(), HELD_PACKETS_MAX);
    }
}
