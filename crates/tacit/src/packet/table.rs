//! Defines [`TunnelTable`], which finds the tunnel of a packet. An inbound packet has the number of
//! its tunnel (SPI). For an outbound packet, the addresses and ports decide.
//!
//! An outbound packet gets the newest matching tunnel of its TUN device. So a tunnel with new keys
//! replaces the old one. The old tunnel still decrypts packets until it is removed.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{
    DropCounters, DropReason, InboundSa, KeyLengthError, LifetimeState, OutboundSa,
};
use tacit_ipsec::packet::IpPacket;
use tacit_sys::datagram_batch::path_mtu;

use super::flow_cache::FlowCache;
use super::statistics::TunnelCounters;
use super::tunnel::{Direction, PeerAddress, Permission, TunId, Tunnel};

/// A tunnel with its SAs.
#[derive(Debug)]
pub(super) struct InstalledTunnel {
    pub(super) tun: TunId,
    pub(super) inbound: InboundSa,
    pub(super) outbound: OutboundSa,
    pub(super) peer: SocketAddr,
    peer_address: PeerAddress,
    flows: FlowCache,
    /// Dropped packets that this tunnel was found for. The counters of the worker have them too.
    pub(super) drops: Arc<DropCounters>,
    /// The longest inner packet for the path to the peer.
    pub(super) inner_bytes_max: usize,
}

/// The position of a tunnel in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TunnelSlot(usize);

/// The tunnels of a worker.
#[derive(Debug, Default)]
pub(super) struct TunnelTable {
    slots: Vec<Option<InstalledTunnel>>,
    by_spi: HashMap<EspSpi, TunnelSlot>,
    /// The tunnel of the last packet: most packets belong to the same one.
    last: Option<(EspSpi, TunnelSlot)>,
}

impl InstalledTunnel {
    /// Prepares keys, and looks up the MTU of the path.
    pub(super) fn new(tunnel: Tunnel) -> Result<Self, KeyLengthError> {
        let Tunnel { tun, child, peer, peer_address, lifetime, flows } = tunnel;
        let inbound = InboundSa::new(&child, lifetime)?;
        let outbound = OutboundSa::new(&child, lifetime)?;
        let flows = FlowCache::new(flows);
        let drops = Arc::default();
        let mut installed =
            Self { tun, inbound, outbound, peer, peer_address, flows, drops, inner_bytes_max: 0 };
        installed.learn_path();
        Ok(installed)
    }

    /// Returns the counters for displays.
    pub(super) fn counters(&self) -> TunnelCounters {
        TunnelCounters {
            tun: self.tun,
            outbound_spi: self.outbound.spi(),
            inbound: self.inbound.counters().clone(),
            outbound: self.outbound.counters().clone(),
            drops: Arc::clone(&self.drops),
        }
    }

    /// Finds out whether a packet may go through the tunnel.
    pub(super) fn permission(
        &mut self,
        direction: Direction,
        packet: &IpPacket,
        bytes: &[u8],
    ) -> Permission {
        self.flows.permission(direction, packet, bytes)
    }

    /// Records from where the newest authentic packet came. Returns the address if the peer has
    /// moved.
    pub(super) fn moved(&mut self, source: SocketAddr) -> Option<SocketAddr> {
        let roams = self.peer_address == PeerAddress::Roaming;
        if !roams || source == self.peer {
            return None;
        }
        self.peer = source;
        self.learn_path();
        Some(source)
    }

    /// Computes the longest inner packet from the MTU of the path, as far as the kernel knows it.
    fn learn_path(&mut self) {
        let mtu = path_mtu(self.peer.ip()).unwrap_or(MTU_BYTES_DEFAULT);
        let outer_bytes = if self.peer.is_ipv4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES };
        let frame_bytes_max = mtu.saturating_sub(outer_bytes + UDP_HEADER_BYTES);
        let fits = |inner: &usize| self.outbound.frame_bytes(*inner) <= frame_bytes_max;
        self.inner_bytes_max = (0..=frame_bytes_max).rev().find(fits).unwrap_or(0);
    }

    /// Reports whether one of the SAs needs a successor.
    fn is_rekey_due(&self) -> bool {
        let states = [self.inbound.lifetime_state(), self.outbound.lifetime_state()];
        states.iter().any(|state| *state != LifetimeState::Current)
    }
}

impl TunnelTable {
    /// Adds a tunnel, whose inbound packets are opened from now on. No other has its inbound SPI.
    pub(super) fn add(&mut self, tunnel: InstalledTunnel) {
        let spi = tunnel.inbound.spi();
        let free = self.slots.iter().position(Option::is_none);
        let slot = TunnelSlot(free.unwrap_or(self.slots.len()));
        match self.slots.get_mut(slot.0) {
            Some(place) => *place = Some(tunnel),
            None => self.slots.push(Some(tunnel)),
        }
        self.last = None;
        self.by_spi.insert(spi, slot);
    }

    /// Removes the tunnel with this inbound SPI.
    pub(super) fn remove(&mut self, spi: EspSpi) -> Option<(TunnelSlot, TunId)> {
        self.last = None;
        let slot = self.by_spi.remove(&spi)?;
        let tunnel = self.slots.get_mut(slot.0)?.take()?;
        Some((slot, tunnel.tun))
    }

    /// Removes the tunnels of a device.
    pub(super) fn remove_tun(&mut self, tun: TunId) {
        let tunnels = self.iter().filter(|one| one.tun == tun);
        let spis: Vec<_> = tunnels.map(|one| one.inbound.spi()).collect();
        for spi in spis {
            self.remove(spi);
        }
    }

    /// Returns the tunnel with this inbound SPI.
    pub(super) fn slot_of(&mut self, spi: EspSpi) -> Option<TunnelSlot> {
        if let Some((last, slot)) = self.last
            && last == spi
        {
            return Some(slot);
        }
        let slot = *self.by_spi.get(&spi)?;
        self.last = Some((spi, slot));
        Some(slot)
    }

    /// Counts a dropped packet of the tunnel with this inbound SPI.
    pub(super) fn note_drop(&mut self, spi: EspSpi, reason: DropReason) {
        let slot = self.slot_of(spi);
        if let Some(tunnel) = slot.and_then(|slot| self.tunnel_mut(slot)) {
            tunnel.drops.add(reason);
        }
    }

    pub(super) fn tunnel_mut(&mut self, slot: TunnelSlot) -> Option<&mut InstalledTunnel> {
        self.slots.get_mut(slot.0)?.as_mut()
    }

    /// Finds the tunnel for a packet among the active ones of its device, newest first, and what it
    /// permits. A tunnel that permits the packet itself comes before one that permits it as an
    /// answer, because the answer may belong to the connection of another peer.
    pub(super) fn outbound(
        &mut self,
        active: &[TunnelSlot],
        packet: &IpPacket,
        bytes: &[u8],
    ) -> Result<(TunnelSlot, Permission), DropReason> {
        let mut reason = DropReason::NoSa;
        let mut answering = None;
        for slot in active {
            let Some(tunnel) = self.slots.get_mut(slot.0).and_then(Option::as_mut) else {
                continue;
            };
            if tunnel.outbound.matches(packet) {
                match tunnel.permission(Direction::Outbound, packet, bytes) {
                    Permission::Denied => reason = DropReason::Flow,
                    Permission::Granted => return Ok((*slot, Permission::Granted)),
                    Permission::Answer => {
                        answering.get_or_insert((*slot, Permission::Answer));
                    }
                }
            }
        }
        answering.ok_or(reason)
    }

    /// Looks up the MTU of the path to a peer again, or to all peers.
    pub(super) fn learn_paths(&mut self, peer: Option<IpAddr>) {
        let tunnels = self.slots.iter_mut().flatten();
        for tunnel in tunnels.filter(|tunnel| peer.is_none_or(|peer| peer == tunnel.peer.ip())) {
            tunnel.learn_path();
        }
    }

    /// Returns the inbound SPIs of tunnels that need a successor.
    pub(super) fn rekeys_due(&self) -> Vec<EspSpi> {
        let due = self.iter().filter(|tunnel| tunnel.is_rekey_due());
        due.map(|tunnel| tunnel.inbound.spi()).collect()
    }

    fn iter(&self) -> impl Iterator<Item = &InstalledTunnel> {
        self.slots.iter().flatten()
    }
}

const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
const UDP_HEADER_BYTES: usize = 8;
/// The assumed MTU of a path that the kernel does not know.
const MTU_BYTES_DEFAULT: usize = 1_500;
