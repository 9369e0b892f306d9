//! Reads packets from TUN devices, encrypts them, and sends them to peers.
//!
//! ```text
//! TUN read ─> checksum or segmentation ─> check tunnel, filters ─> encrypt ─> batch ─> one call
//! ```
//!
//! The packet worker sends packets of the same length to the same peer in one batch, with one call.
//! A batch ends after a shorter packet, or when the device has no more packets. The worker never
//! waits for more packets to complete a batch.
//!
//! Some packets exceed the path MTU. For each oversized packet that must not be fragmented, the
//! worker sends an ICMP error to the program. The error contains the MTU (RFC 1191, RFC 8201). The
//! worker divides an oversized TCP packet into segments that fit. If an oversized packet of another
//! protocol may be fragmented, the worker fragments the ESP packet. Otherwise, the worker drops the
//! packet. The program also gets an ICMP error if a packet has waited too long for a tunnel.
//!
//! Limits: the worker reads at most [`PACKETS_PER_TURN`] packets from one device before it reads
//! from other devices. A batch has a maximum length and a maximum number of datagrams.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};

use tacit_core::icmp::{IcmpError, error_about};
use tacit_core::meter::Component;
use tacit_ipsec::esp::DropReason;
use tacit_ipsec::offload::{Offload, Segments, VNET_HEADER_BYTES, fill_checksum};
use tacit_ipsec::packet::{IpPacket, traffic_class};
use tacit_sys::datagram_batch::{
    BATCH_BYTES_MAX, BATCH_DATAGRAMS_MAX, DatagramBatch, Fragmentation, is_too_big,
};

use super::PacketEvent;
use super::accounts::BatchShares;
use super::context::Context;
use super::device::{OutboundDevice, is_multicast};
use super::halves::{Carrier, OutboundTunnel, tunnel_for};
use super::table::TunnelTable;
use super::tunnel::{Permission, TunId};
use super::underlay::{RawFrames, Underlay};
use crate::ledger::meter;

/// How many packets are read from one device before others get their turn.
const PACKETS_PER_TURN: usize = 64;
/// The longest packet that a TUN device passes.
const PACKET_BYTES_MAX: usize = 65_535;

/// The buffers of the outbound direction.
pub(super) struct Outbound {
    header: [u8; VNET_HEADER_BYTES],
    input: Box<[u8]>,
    batch: Batch,
}

/// A device, and what its packets need.
pub(super) struct Route<'a> {
    pub(super) tun: TunId,
    pub(super) device: &'a mut OutboundDevice,
    pub(super) table: &'a mut TunnelTable<OutboundTunnel>,
    pub(super) context: &'a mut Context,
}

impl Outbound {
    pub(super) fn new() -> Self {
        Self {
            header: [0; VNET_HEADER_BYTES],
            input: vec![0; PACKET_BYTES_MAX].into(),
            batch: Batch::new(),
        }
    }

    /// Reads packets until there are none, and sends them. An error means that the device cannot be
    /// read.
    pub(super) fn forward(&mut self, mut route: Route<'_>) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..PACKETS_PER_TURN {
            meter::switch(Component::Receive);
            match route.device.tun().read(&mut self.header, &mut self.input) {
                Ok(bytes) => {
                    meter::switch(Component::Seal);
                    let packet = self.input.get_mut(..bytes).unwrap_or_default();
                    forward(self.header, packet, &mut route, &mut self.batch);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.finish(route);
        result
    }

    /// Sends the packets that have waited for a tunnel.
    pub(super) fn forward_held(&mut self, mut route: Route<'_>) {
        for mut packet in route.device.take_held() {
            forward(packet.header, &mut packet.bytes, &mut route, &mut self.batch);
        }
        self.finish(route);
    }

    /// Sends what is left of the batch, and learns the MTU of a path that was exceeded.
    fn finish(&mut self, route: Route<'_>) {
        let Route { table, context, .. } = route;
        self.batch.flush(context);
        self.batch.shares.finish();
        if let Some(peer) = self.batch.exceeded.take() {
            let tunnels = table.iter_mut().map(|(_, tunnel)| tunnel);
            let of_peer = tunnels.filter(|tunnel| tunnel.peer.ip() == peer.ip());
            of_peer.for_each(OutboundTunnel::learn_path);
        }
    }
}

/// Seals one packet of a device into the batch, or holds it if there is no tunnel yet.
fn forward(
    header: [u8; VNET_HEADER_BYTES],
    bytes: &mut [u8],
    route: &mut Route<'_>,
    batch: &mut Batch,
) {
    let Err((reason, packet)) = seal(header, bytes, route, batch) else { return };
    let Route { tun, device, context, .. } = route;
    if let (DropReason::NoSa, Some(packet)) = (reason, packet) {
        if device.is_new_demand(&packet) {
            // If the queue is full, the packet of the next second reports it again.
            let _ = context.report(PacketEvent::Demand { tun: *tun, packet });
        }
        if !is_multicast(&packet) && device.hold(header, bytes) {
            return;
        }
    }
    refuse(bytes, reason, device, context);
}

/// Counts a packet that is not sent. If that is because there is no tunnel, its sender gets to know
/// it (RFC 4301 section 5.1.1), and the packet is reported.
pub(super) fn refuse(
    bytes: &[u8],
    reason: DropReason,
    device: &mut OutboundDevice,
    context: &Context,
) {
    context.drops().add(reason);
    let Ok(packet) = IpPacket::parse(bytes) else { return };
    let lacks_tunnel = matches!(reason, DropReason::NoSa | DropReason::Expired);
    if !lacks_tunnel || is_multicast(&packet) {
        return;
    }
    device.note_refused(&packet);
    if may_be_answered(&packet, bytes) {
        answer(IcmpError::HostUnreachable, &packet, bytes, device);
    }
}

/// Whether a host reports an error about a packet: not about another error, and not about a later
/// fragment (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
fn may_be_answered(packet: &IpPacket, bytes: &[u8]) -> bool {
    let kind = bytes.get(packet.transport_at).copied();
    let is_error = match packet.protocol {
        ICMP => kind != Some(ECHO_REQUEST_V4),
        ICMPV6 => kind != Some(ECHO_REQUEST_V6),
        _ => false,
    };
    !is_error && (!packet.is_fragment || packet.ports.is_some())
}

/// Reports an error to the sender of a packet.
fn answer(cause: IcmpError, packet: &IpPacket, bytes: &[u8], device: &OutboundDevice) {
    if let Some(answer) = error_about(cause, bytes, packet.destination, packet.source) {
        let parts = [&[0; VNET_HEADER_BYTES][..], &answer].map(IoSlice::new);
        // If the device refuses it, the packet is counted as dropped all the same.
        let _ = device.tun().write(&parts);
    }
}

/// Seals one packet. On failure returns the reason, and the packet if it has valid headers.
fn seal(
    header: [u8; VNET_HEADER_BYTES],
    bytes: &mut [u8],
    route: &mut Route<'_>,
    batch: &mut Batch,
) -> Result<(), (DropReason, Option<IpPacket>)> {
    let Route { device, table, context, .. } = route;
    let packet = IpPacket::parse(bytes).map_err(|_| (DropReason::InnerPacket, None))?;
    let bytes = bytes.get_mut(..packet.bytes).unwrap_or_default();
    let failed = |reason| (reason, Some(packet));
    let offload = Offload::parse(header).map_err(|_| failed(DropReason::Segmentation))?;
    let found = tunnel_for(table, &device.active, &packet, bytes);
    let (tunnel, decision) = found.map_err(failed)?;
    tunnel.filter(decision).map_err(failed)?;
    batch.shares.count(tunnel.flows.account(decision), packet.bytes);
    if decision.permission == Permission::Granted {
        device.record(&packet);
    }
    let sealed = match offload {
        Offload::TcpSegments { segment_bytes } => {
            seal_segments(&packet, bytes, segment_bytes, tunnel, batch, context)
        }
        _ if !fill_checksum(bytes, offload) => Err(DropReason::Segmentation),
        _ if packet.bytes > tunnel.inner_bytes_max => {
            seal_oversized(&packet, bytes, device, tunnel, batch, context)
        }
        _ => seal_one(&packet, bytes, tunnel, batch, context),
    };
    sealed.map_err(|reason| {
        tunnel.drops().add(reason);
        failed(reason)
    })
}

/// Divides a large TCP packet and seals each part.
fn seal_segments(
    packet: &IpPacket,
    bytes: &[u8],
    segment_bytes: usize,
    tunnel: &mut OutboundTunnel,
    batch: &mut Batch,
    context: &Context,
) -> Result<(), DropReason> {
    let divide =
        |segment_bytes| Segments::of(packet, bytes, segment_bytes).ok_or(DropReason::Segmentation);
    let mut segments = divide(segment_bytes)?;
    let longest = segments.next_bytes().unwrap_or(0);
    if longest > tunnel.inner_bytes_max {
        // TCP learns the MTU from an error about a later packet, which has no offload.
        let excess = longest - tunnel.inner_bytes_max;
        segments = divide(segment_bytes.checked_sub(excess).ok_or(DropReason::TooBig)?)?;
    }
    seal_parts(packet, segments, traffic_class(bytes), tunnel, batch, context)
}

/// Seals each part of a TCP packet.
fn seal_parts(
    packet: &IpPacket,
    mut segments: Segments<'_>,
    class: u8,
    tunnel: &mut OutboundTunnel,
    batch: &mut Batch,
    context: &Context,
) -> Result<(), DropReason> {
    // In transport mode the frame does not contain the IP header, on which the checksums of a part
    // depend: parts are made here.
    let mut part = Vec::new();
    while let Some(part_bytes) = segments.next_bytes() {
        let frame = batch.frame(tunnel, part_bytes, class, context)?;
        let sealed = if tunnel.sa.is_transport() {
            part.resize(part_bytes, 0);
            segments.write_next(&mut part);
            tunnel.sa.seal_packet(frame, &part)?
        } else {
            let at = tunnel.sa.header_bytes();
            segments.write_next(frame.get_mut(at..at + part_bytes).ok_or(DropReason::TooBig)?);
            tunnel.sa.seal(frame, part_bytes)?
        };
        batch.append(sealed);
        context.traffic().add(packet, part_bytes);
    }
    Ok(())
}

/// Seals a packet as it is.
fn seal_one(
    packet: &IpPacket,
    bytes: &[u8],
    tunnel: &mut OutboundTunnel,
    batch: &mut Batch,
    context: &Context,
) -> Result<(), DropReason> {
    batch.seal(tunnel, bytes, context)?;
    context.traffic().add(packet, packet.bytes);
    Ok(())
}

/// Divides an oversized packet if it is TCP, or fragments what it is sealed in. Answers with the
/// MTU if the packet must not be fragmented.
fn seal_oversized(
    packet: &IpPacket,
    bytes: &[u8],
    device: &OutboundDevice,
    tunnel: &mut OutboundTunnel,
    batch: &mut Batch,
    context: &Context,
) -> Result<(), DropReason> {
    let mtu_bytes = tunnel.inner_bytes_max;
    let may_be_fragmented = match packet.is_v4() {
        true => bytes.get(6).is_some_and(|flags| flags & DONT_FRAGMENT == 0),
        // RFC 2473 section 7.1: IPv6 senders do not go below the minimum.
        false => packet.bytes <= V6_MTU_BYTES_MIN,
    };
    if !may_be_fragmented {
        let mtu_bytes = if packet.is_v4() { mtu_bytes } else { mtu_bytes.max(V6_MTU_BYTES_MIN) };
        let cause = IcmpError::TooBig { mtu_bytes: u32::try_from(mtu_bytes).unwrap_or(u32::MAX) };
        answer(cause, packet, bytes, device);
    }
    // Linux notes the MTU at the route that it finds without ports. If a routing rule with ports
    // leads to the device, TCP does not learn it before the routes of the run have it
    // (`PacketEvent::PathLearnt`), and would repeat the packet.
    if let Some(segments) = Segments::within(packet, bytes, tunnel.inner_bytes_max) {
        return seal_parts(packet, segments, traffic_class(bytes), tunnel, batch, context);
    }
    if !may_be_fragmented {
        return Err(DropReason::TooBig);
    }
    batch.flush(context);
    seal_one(packet, bytes, tunnel, batch, context)?;
    batch.flush_fragmented(context);
    context.counters.fragmented.add(1);
    Ok(())
}

/// Frames for one peer, all of one length but the last: ESP packets, or IP packets with AH.
struct Batch {
    buffer: Box<[u8]>,
    bytes: usize,
    frames: usize,
    /// The length of the first frame.
    frame_bytes: usize,
    /// Whether a shorter frame was added, after which no other may follow.
    is_complete: bool,
    peer: SocketAddr,
    carrier: Carrier,
    traffic_class: u8,
    /// A peer whose path has a smaller MTU than was known.
    exceeded: Option<SocketAddr>,
    shares: BatchShares,
}

impl Batch {
    fn new() -> Self {
        Self {
            buffer: vec![0; BATCH_BYTES_MAX].into(),
            bytes: 0,
            frames: 0,
            frame_bytes: 0,
            is_complete: false,
            peer: SocketAddr::new(IpAddr::from([0; 4]), 0),
            carrier: Carrier::Udp,
            traffic_class: 0,
            exceeded: None,
            shares: BatchShares::new(),
        }
    }

    /// Copies a whole packet into the batch and seals it there.
    fn seal(
        &mut self,
        tunnel: &mut OutboundTunnel,
        packet: &[u8],
        context: &Context,
    ) -> Result<(), DropReason> {
        let frame = self.frame(tunnel, packet.len(), traffic_class(packet), context)?;
        let sealed = tunnel.sa.seal_packet(frame, packet)?;
        self.append(sealed);
        Ok(())
    }

    /// Returns the room for the frame of a packet, after sending a batch that it does not fit.
    fn frame(
        &mut self,
        tunnel: &OutboundTunnel,
        packet_bytes: usize,
        traffic_class: u8,
        context: &Context,
    ) -> Result<&mut [u8], DropReason> {
        let frame_bytes = tunnel.sa.frame_bytes(packet_bytes);
        let continues = self.peer == tunnel.peer
            && self.carrier == tunnel.carrier
            && self.traffic_class == traffic_class
            && frame_bytes <= self.frame_bytes
            && !self.is_complete
            && self.frames < BATCH_DATAGRAMS_MAX
            && self.bytes + frame_bytes <= BATCH_BYTES_MAX;
        if !continues {
            self.flush(context);
            self.peer = tunnel.peer;
            self.carrier = tunnel.carrier;
            self.traffic_class = traffic_class;
            self.frame_bytes = frame_bytes;
        }
        self.buffer.get_mut(self.bytes..self.bytes + frame_bytes).ok_or(DropReason::TooBig)
    }

    /// Adds the frame that was sealed at the end.
    fn append(&mut self, frame_bytes: usize) {
        self.bytes += frame_bytes;
        self.frames += 1;
        self.is_complete = frame_bytes < self.frame_bytes;
    }

    /// Sends the batch.
    fn flush(&mut self, context: &Context) {
        self.send(context, Fragmentation::Forbidden);
    }

    /// Sends the batch, whose frames exceed the MTU of the path.
    fn flush_fragmented(&mut self, context: &Context) {
        self.send(context, Fragmentation::Allowed);
    }

    fn send(&mut self, context: &Context, fragmentation: Fragmentation) {
        if self.frames == 0 {
            return;
        }
        meter::switch(Component::Send);
        let result = match self.carrier {
            Carrier::Udp => self.send_in_udp(&context.underlay, fragmentation),
            Carrier::Raw(protocol, ends) => {
                let frames = RawFrames {
                    frames: self.buffer.get(..self.bytes).unwrap_or_default(),
                    frame_bytes: self.frame_bytes,
                    from: ends.local,
                    to: ends.remote,
                    traffic_class: self.traffic_class,
                };
                context.underlay.send_raw(protocol, &frames, fragmentation)
            }
        };
        meter::switch(Component::Seal);
        if let Err(error) = result {
            let reason = if is_too_big(&error) {
                self.exceeded = Some(self.peer);
                DropReason::TooBig
            } else {
                DropReason::Kernel
            };
            (0..self.frames).for_each(|_| context.drops().add(reason));
        }
        self.bytes = 0;
        self.frames = 0;
        self.is_complete = false;
        self.frame_bytes = 0;
    }

    fn send_in_udp(&self, underlay: &Underlay, fragmentation: Fragmentation) -> io::Result<()> {
        let batch = DatagramBatch {
            payloads: self.buffer.get(..self.bytes).unwrap_or_default(),
            datagram_bytes: self.frame_bytes,
            to: self.peer,
            traffic_class: self.traffic_class,
        };
        let socket = underlay.socket_for(self.peer)?;
        match fragmentation {
            Fragmentation::Forbidden => socket.send(&batch),
            Fragmentation::Allowed => socket.send_fragmented(&batch),
        }
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ECHO_REQUEST_V4: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// In the first byte of flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;
/// RFC 8200 section 5.
const V6_MTU_BYTES_MIN: usize = 1_280;
