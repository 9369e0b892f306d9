//! Defines [`Device`]: a TUN device of a packet worker. Holds the first packets until there is a
//! tunnel.
//!
//! IKE needs some milliseconds to negotiate a tunnel. If the first packet were dropped, TCP would
//! repeat it only after a second.
//!
//! Limits: [`HELD_PACKETS_MAX`], [`HELD_TURNS_MAX`], [`DEMANDS_MAX`].

use std::collections::VecDeque;
use std::net::IpAddr;

use tacit_ipsec::offload::VNET_HEADER_BYTES;
use tacit_ipsec::packet::IpPacket;
use tacit_sys::tun::Tun;

use super::answers::SentDatagrams;
use super::table::TunnelSlot;

/// The largest number of packets of one device that wait for a tunnel.
pub(super) const HELD_PACKETS_MAX: usize = 16;
/// How many seconds a packet waits at most.
const HELD_TURNS_MAX: u32 = 10;
/// The largest number of destinations that are reported in a second.
const DEMANDS_MAX: usize = 16;

/// A TUN device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) tun: Tun,
    /// The tunnels that send its packets, newest first.
    pub(super) active: Vec<TunnelSlot>,
    /// The datagrams that a peer may answer.
    pub(super) sent: SentDatagrams,
    held: VecDeque<HeldPacket>,
    /// The destinations without tunnel that were reported in this second.
    demanded: Vec<IpAddr>,
}

/// A packet that waits for a tunnel.
#[derive(Debug)]
pub(super) struct HeldPacket {
    pub(super) header: [u8; VNET_HEADER_BYTES],
    pub(super) bytes: Vec<u8>,
    /// The seconds that it has waited.
    turns: u32,
}

impl Device {
    pub(super) fn new(tun: Tun) -> Self {
        Self {
            tun,
            active: Vec::new(),
            sent: SentDatagrams::default(),
            held: VecDeque::new(),
            demanded: Vec::new(),
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

    /// Keeps a packet for the first tunnel. Returns `false` if there is a tunnel or no room.
    pub(super) fn hold(&mut self, header: [u8; VNET_HEADER_BYTES], bytes: &[u8]) -> bool {
        let has_room = self.active.is_empty() && self.held.len() < HELD_PACKETS_MAX;
        if has_room {
            self.held.push_back(HeldPacket { header, bytes: bytes.to_vec(), turns: 0 });
        }
        has_room
    }

    /// Returns the packets that have waited, oldest first.
    pub(super) fn take_held(&mut self) -> VecDeque<HeldPacket> {
        std::mem::take(&mut self.held)
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

    /// Begins the next second. Returns how many packets have waited too long.
    pub(super) fn turn(&mut self) -> usize {
        self.demanded.clear();
        self.sent.turn();
        let before = self.held.len();
        self.held.iter_mut().for_each(|packet| packet.turns += 1);
        self.held.retain(|packet| packet.turns <= HELD_TURNS_MAX);
        before - self.held.len()
    }

    pub(super) fn held_packets(&self) -> usize {
        self.held.len()
    }
}

pub(super) fn is_multicast(packet: &IpPacket) -> bool {
    packet.destination.is_multicast()
}
