//! Defines [`Tunnel`]: the keys (a pair of SAs) for one TUN device and one peer. [`Tunnel`] also
//! lists the flows that the policy permits in the tunnel.
//!
//! The peers negotiate traffic selectors. The selectors may include more packets than the policy
//! permits, for example all ports of a network. So each packet, in both directions, must also
//! belong to a [`TunnelFlow`], and no filter rule may deny the packet.

use std::net::SocketAddr;
use std::sync::Arc;

use tacit_core::icmp;
use tacit_ipsec::esp::DataLifetime;
use tacit_ipsec::packet::IpPacket;
use tacit_ipsec::{ChildSa, TrafficSelector};

use super::accounts::TunnelAccounts;
use super::direction::Direction;
use super::filter::TunnelFilter;

/// The number of a TUN device of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunId(pub(super) u64);

#[cfg(test)]
impl TunId {
    /// A device that no worker has.
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number)
    }
}

/// A tunnel as IKE has negotiated it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Where its inner packets are read and written.
    pub tun: TunId,
    /// Keys and selectors.
    pub child: ChildSa,
    /// The peer's end of the underlay.
    pub peer: SocketAddr,
    /// Whether the peer may change its address.
    pub peer_address: PeerAddress,
    /// How much data the keys protect.
    pub lifetime: DataLifetime,
    /// The flows that are permitted; an empty list permits nothing.
    pub flows: Vec<TunnelFlow>,
    /// The accounts to which its packets are charged.
    pub accounts: TunnelAccounts,
    /// The filter rules for packets that these flows permit.
    pub filter: Arc<TunnelFilter>,
}

/// The packets of a tunnel.
#[derive(Clone, Debug)]
pub struct TunnelPackets {
    /// The traffic selectors of this side.
    pub local: Vec<TrafficSelector>,
    /// The traffic selectors of the peer.
    pub remote: Vec<TrafficSelector>,
    /// The flows that are permitted; an empty list permits nothing.
    pub flows: Vec<TunnelFlow>,
    /// The accounts to which they are charged.
    pub accounts: TunnelAccounts,
}

/// Whether packets are sent to another address after the peer has used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// No: this end is behind a NAT, or the address is configured.
    Fixed,
    /// Yes: the peer is behind a NAT, which may give it another port (RFC 7296 section 2.23).
    Roaming,
}

/// A set of flows, selected by their two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelFlow {
    /// The end inside the TUN device.
    pub local: TrafficSelector,
    /// The end behind the peer.
    pub remote: TrafficSelector,
    /// Which end begins.
    pub opened_by: FlowOpener,
}

/// The end that opens the TCP connections of a flow, and sends the first UDP datagram. Other
/// protocols have no such end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOpener {
    /// The end inside the TUN device.
    Local,
    /// The end behind the peer.
    Remote,
}

/// Whether a packet belongs to a permitted flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// It does.
    Granted,
    /// It does if the other end has begun.
    Answer,
    /// It does not.
    Denied,
}

/// Finds out whether a packet belongs to a permitted flow. An ICMP error belongs to the flow of the
/// packet that caused it.
pub(super) fn permission(
    flows: &[TunnelFlow],
    direction: Direction,
    packet: &IpPacket,
    bytes: &[u8],
) -> Permission {
    let opens = opens_connection(packet, bytes);
    let opener = match direction {
        Direction::Outbound => FlowOpener::Local,
        Direction::Inbound => FlowOpener::Remote,
    };
    let mut of_packet = flows.iter().filter(|flow| flow.contains(direction, packet)).peekable();
    let is_answer = of_packet.peek().is_some() && !opens;
    if of_packet.any(|flow| flow.opened_by == opener) {
        return Permission::Granted;
    }
    if is_answer {
        return Permission::Answer;
    }
    // RFC 4301 section 6.2: the packet in the error went in the other direction.
    let Some(cause) = packet_in_error(packet, bytes) else { return Permission::Denied };
    let (reversed, is_for_sender) = match direction {
        Direction::Inbound => (Direction::Outbound, cause.source == packet.destination),
        Direction::Outbound => (Direction::Inbound, cause.destination == packet.source),
    };
    if is_for_sender && flows.iter().any(|flow| flow.contains(reversed, &cause)) {
        Permission::Granted
    } else {
        Permission::Denied
    }
}

impl TunnelFlow {
    fn contains(&self, direction: Direction, packet: &IpPacket) -> bool {
        let (from, to) = match direction {
            Direction::Outbound => (&self.local, &self.remote),
            Direction::Inbound => (&self.remote, &self.local),
        };
        let [source, destination] = ends(packet, from, to);
        from.contains(packet.protocol, source, packet.source)
            && to.contains(packet.protocol, destination, packet.destination)
    }
}

/// Returns the ports to compare. A fragment without ports has those of the flow: the first
/// fragment decides, and without it the others are of no use.
fn ends(packet: &IpPacket, from: &TrafficSelector, to: &TrafficSelector) -> [Option<u16>; 2] {
    match packet.ports {
        None if packet.is_fragment => [from, to].map(|selector| Some(selector.ports().0)),
        ports => [ports.map(|(source, _)| source), ports.map(|(_, destination)| destination)],
    }
}

/// Reports whether a packet is the first of a TCP connection: SYN without ACK.
///
/// A first fragment can end before the flags, so that they arrive in the next fragment, which has
/// no ports to compare (RFC 1858 section 3). Such a fragment counts as the first packet. A later
/// fragment cannot replace flags that were examined: the kernel discards packets whose fragments
/// overlap.
pub(super) fn opens_connection(packet: &IpPacket, bytes: &[u8]) -> bool {
    let bytes = bytes.get(..packet.bytes).unwrap_or_default();
    let flags = bytes.get(packet.transport_at + TCP_FLAGS_AT).copied().unwrap_or(SYN);
    packet.protocol == TCP && packet.ports.is_some() && flags & (SYN | ACK) == SYN
}

/// Parses the packet that an ICMP error contains, or its beginning.
fn packet_in_error(packet: &IpPacket, bytes: &[u8]) -> Option<IpPacket> {
    let message = bytes.get(packet.transport_at..packet.bytes)?;
    let is_error = icmp::is_error(packet.protocol, *message.first()?);
    let quoted = message.get(ICMP_HEADER_BYTES..).filter(|_| is_error)?;
    // Its length field is that of the whole packet.
    let mut beginning = [0; QUOTED_BYTES];
    let available = quoted.len().min(QUOTED_BYTES);
    beginning[..available].copy_from_slice(&quoted[..available]);
    let (at, length) = match beginning[0] >> 4 {
        4 => (2, available),
        _ => (4, available.checked_sub(V6_HEADER_BYTES)?),
    };
    let length = u16::try_from(length).ok()?.to_be_bytes();
    beginning[at..at + 2].copy_from_slice(&length);
    IpPacket::parse(&beginning[..available]).ok()
}

const TCP: u8 = 6;
const TCP_FLAGS_AT: usize = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const ICMP_HEADER_BYTES: usize = 8;
const V6_HEADER_BYTES: usize = 40;
/// How much of a packet in an error is examined: its headers.
const QUOTED_BYTES: usize = 128;
