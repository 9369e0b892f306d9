//! Defines [`OutboundTunnel`] and [`InboundTunnel`]: the two directions of a tunnel, which two
//! threads can use at the same time.
//!
//! An outbound packet uses the newest matching tunnel of its TUN device. So after a rekey, outbound
//! packets use the tunnel with the new keys. The old tunnel decrypts packets until it is removed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tacit_ipsec::esp::{
    DataLifetime, DropCounters, DropReason, InboundSa, KeyLengthError, LifetimeState, OutboundSa,
    SaCounters,
};
use tacit_ipsec::packet::IpPacket;
use tacit_ipsec::{EspSpi, SaProtocol, UnderlayEnds};
use tacit_sys::datagram_batch::path_mtu;
use tacit_sys::raw_ip::RawProtocol;

use super::PacketEvent;
use super::context::Context;
use super::direction::Direction;
use super::flow_cache::{FlowCache, FlowDecision};
use super::statistics::{DirectionDrops, TunnelCounters};
use super::table::{TunnelSlot, TunnelTable};
use super::tunnel::{PeerAddress, Permission, TunId, Tunnel, TunnelPackets};

/// A tunnel that is ready to be installed.
#[derive(Debug)]
pub(super) struct InstalledTunnel {
    pub(super) tun: TunId,
    pub(super) spi: EspSpi,
    pub(super) outbound: Box<OutboundTunnel>,
    pub(super) inbound: Box<InboundTunnel>,
}

/// The outbound direction of a tunnel.
#[derive(Debug)]
pub(super) struct OutboundTunnel {
    pub(super) sa: OutboundSa,
    pub(super) peer: SocketAddr,
    pub(super) carrier: Carrier,
    /// The longest inner packet for the path to the peer.
    pub(super) inner_bytes_max: usize,
    /// The same, as it was reported last.
    reported_bytes_max: Option<usize>,
    pub(super) flows: FlowCache,
    drops: Arc<DirectionDrops>,
    lifetime: DataLifetime,
    /// What the other direction has processed.
    received: Arc<SaCounters>,
    peer_address: PeerAddress,
}

/// How frames are sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// In UDP.
    Udp,
    /// As an IP protocol, between these hosts.
    Raw(RawProtocol, UnderlayEnds),
}

impl Carrier {
    fn of(protocol: SaProtocol) -> Self {
        match protocol {
            SaProtocol::EspInUdp(_) => Self::Udp,
            SaProtocol::Esp(_, ends) => Self::Raw(RawProtocol::Esp, ends),
            SaProtocol::Ah(_, ends) => Self::Raw(RawProtocol::Ah, ends),
        }
    }

    /// Returns the length of the headers before a frame.
    fn header_bytes(self, peer: IpAddr) -> usize {
        let ip_bytes = if peer.is_ipv4() { V4_HEADER_BYTES } else { V6_HEADER_BYTES };
        match self {
            Self::Udp => ip_bytes + UDP_HEADER_BYTES,
            Self::Raw(RawProtocol::Esp, _) => ip_bytes,
            // The frame is the whole packet.
            Self::Raw(RawProtocol::Ah, _) => 0,
        }
    }
}

/// The inbound direction of a tunnel.
#[derive(Debug)]
pub(super) struct InboundTunnel {
    pub(super) tun: TunId,
    pub(super) sa: InboundSa,
    pub(super) flows: FlowCache,
    drops: Arc<DirectionDrops>,
    /// From where the newest packet came.
    peer: SocketAddr,
    peer_address: PeerAddress,
}

impl InstalledTunnel {
    /// Prepares keys, and looks up the MTU of the path.
    pub(super) fn new(tunnel: Tunnel) -> Result<Self, KeyLengthError> {
        let mut installed = Self::without_path_mtu(tunnel)?;
        installed.outbound.learn_path();
        Ok(installed)
    }

    /// Prepares keys. The MTU of the path is not known yet.
    pub(super) fn without_path_mtu(tunnel: Tunnel) -> Result<Self, KeyLengthError> {
        let Tunnel { tun, child, peer, peer_address, lifetime, flows, accounts, filter } = tunnel;
        let flows: Arc<[_]> = flows.into();
        let drops = Arc::<DirectionDrops>::default();
        let inbound = InboundTunnel {
            tun,
            sa: InboundSa::new(&child, lifetime)?,
            flows: FlowCache::new(
                Direction::Inbound,
                Arc::clone(&flows),
                accounts.clone(),
                Arc::clone(&filter),
            ),
            drops: Arc::clone(&drops),
            peer,
            peer_address,
        };
        let outbound = OutboundTunnel {
            sa: OutboundSa::new(&child, lifetime)?,
            peer,
            carrier: Carrier::of(child.protocol),
            inner_bytes_max: 0,
            reported_bytes_max: None,
            flows: FlowCache::new(Direction::Outbound, flows, accounts, filter),
            drops,
            lifetime,
            received: Arc::clone(inbound.sa.counters()),
            peer_address,
        };
        let spi = inbound.sa.spi();
        Ok(Self { tun, spi, outbound: Box::new(outbound), inbound: Box::new(inbound) })
    }

    /// Returns the counters for displays.
    pub(super) fn counters(&self) -> TunnelCounters {
        TunnelCounters {
            tun: self.tun,
            outbound_spi: self.outbound.sa.spi(),
            inbound: Arc::clone(self.inbound.sa.counters()),
            outbound: Arc::clone(self.outbound.sa.counters()),
            drops: Arc::clone(&self.outbound.drops),
        }
    }
}

impl OutboundTunnel {
    /// Returns the counters of dropped packets that this tunnel was found for. The counters of the
    /// worker have these packets too.
    pub(super) fn drops(&self) -> &DropCounters {
        self.drops.of(Direction::Outbound)
    }

    /// Counts a packet for its filter rule.
    ///
    /// # Errors
    /// The rule denies the packet.
    pub(super) fn filter(&self, decision: FlowDecision) -> Result<(), DropReason> {
        self.flows.filter(decision).inspect_err(|reason| self.drops().add(*reason))
    }

    /// Sends to another address of a roaming peer from now on.
    pub(super) fn move_peer(&mut self, to: SocketAddr) {
        if self.peer_address == PeerAddress::Roaming && to != self.peer {
            self.peer = to;
            self.learn_path();
        }
    }

    /// Takes other packets from now on.
    pub(super) fn permit(&mut self, packets: TunnelPackets) {
        let TunnelPackets { local, remote, flows, accounts } = packets;
        self.sa.set_selectors(local, remote);
        self.flows.permit(flows.into(), accounts);
    }

    /// Computes the longest inner packet from the MTU of the path, as far as the kernel knows it.
    pub(super) fn learn_path(&mut self) {
        let mtu = path_mtu(self.peer.ip()).unwrap_or(MTU_BYTES_DEFAULT);
        let frame_bytes_max = mtu.saturating_sub(self.carrier.header_bytes(self.peer.ip()));
        let fits = |inner: &usize| self.sa.frame_bytes(*inner) <= frame_bytes_max;
        self.inner_bytes_max = (0..=frame_bytes_max).rev().find(fits).unwrap_or(0);
    }

    /// Reports the length of the longest inner packet, if it was not reported yet. A lost report is
    /// repeated by the next call.
    pub(super) fn report_path(&mut self, spi: EspSpi, context: &mut Context) {
        let inner_bytes_max = self.inner_bytes_max;
        let is_news = self.reported_bytes_max != Some(inner_bytes_max);
        if is_news && context.report(PacketEvent::PathLearnt { spi, inner_bytes_max }).is_ok() {
            self.reported_bytes_max = Some(inner_bytes_max);
        }
    }

    /// Reports whether an SA of one of the directions needs a successor.
    pub(super) fn is_rekey_due(&self) -> bool {
        let states = [self.sa.lifetime_state(), self.lifetime.state(&self.received)];
        states.iter().any(|state| *state != LifetimeState::Current)
    }
}

impl InboundTunnel {
    /// The same as [`OutboundTunnel::drops`].
    pub(super) fn drops(&self) -> &DropCounters {
        self.drops.of(Direction::Inbound)
    }

    /// Accepts other packets from now on.
    pub(super) fn permit(&mut self, packets: TunnelPackets) {
        let TunnelPackets { local, remote, flows, accounts } = packets;
        self.sa.set_selectors(local, remote);
        self.flows.permit(flows.into(), accounts);
    }

    /// Decides whether the run gets a packet of the peer, and counts the packet for the filter rule
    /// that matches it. `is_requested` returns whether the packet answers one of a program.
    ///
    /// # Errors
    /// No flow permits the packet, or a filter rule denies it.
    pub(super) fn admit(
        &mut self,
        packet: &IpPacket,
        bytes: &[u8],
        is_requested: impl FnOnce() -> bool,
    ) -> Result<FlowDecision, DropReason> {
        let decision = self.flows.decide(packet, bytes);
        match decision.permission {
            Permission::Granted => {}
            Permission::Answer if is_requested() => {}
            Permission::Answer | Permission::Denied => return Err(DropReason::Flow),
        }
        self.flows.filter(decision)?;
        Ok(decision)
    }

    /// Reports whether a packet from this address shows that the peer has moved.
    pub(super) fn has_moved(&self, source: SocketAddr) -> bool {
        self.peer_address == PeerAddress::Roaming && source != self.peer
    }

    /// Expects packets from this address of a roaming peer from now on.
    pub(super) fn move_peer(&mut self, to: SocketAddr) {
        self.peer = to;
    }
}

/// Finds the tunnel for a packet among the active ones of its device, newest first, and what it
/// says about the packet. A tunnel that permits the packet itself comes before one that permits it
/// as an answer, because the answer may belong to the connection of another peer.
pub(super) fn tunnel_for<'a>(
    table: &'a mut TunnelTable<OutboundTunnel>,
    active: &[TunnelSlot],
    packet: &IpPacket,
    bytes: &[u8],
) -> Result<(&'a mut OutboundTunnel, FlowDecision), DropReason> {
    let mut reason = DropReason::NoSa;
    let mut found = None;
    for slot in active {
        let Some(tunnel) = table.at(*slot) else { continue };
        if !tunnel.sa.matches(packet) {
            continue;
        }
        let decision = tunnel.flows.decide(packet, bytes);
        match decision.permission {
            Permission::Denied => reason = DropReason::Flow,
            Permission::Granted => {
                found = Some((*slot, decision));
                break;
            }
            Permission::Answer => {
                found.get_or_insert((*slot, decision));
            }
        }
    }
    let (slot, decision) = found.ok_or(reason)?;
    table.at(slot).map(|tunnel| (tunnel, decision)).ok_or(reason)
}

const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
const UDP_HEADER_BYTES: usize = 8;
/// The assumed MTU of a path that the kernel does not know.
const MTU_BYTES_DEFAULT: usize = 1_500;
