//! Receives packets of tunnels from peers, decrypts them, and writes them to TUN devices.
//!
//! ```text
//! receive (several batches) ─> each datagram: IKE, keepalive or ESP ─> decrypted in place
//!        ─> check flows and filters ─> join TCP packets of one connection ─> write to TUN
//! ```
//!
//! One thread repeats these steps. ESP and AH without UDP arrive at raw sockets, and each packet
//! arrives alone. The thread processes these packets in the same steps.
//!
//! A *batch* contains the datagrams from one peer that the kernel has joined. A batch may contain
//! several kinds of datagrams (IKE, keepalive, ESP), so the thread determines the kind of each
//! datagram. After a full batch, the thread receives another batch before it writes. So the thread
//! can join more TCP packets.
//!
//! Limits: the thread receives at most [`RECEIVES_MAX`] batches before it writes. After
//! [`ROUNDS_PER_TURN`] writes, the thread serves its other sockets. IKE messages and invalid
//! datagrams take less time: if the thread receives nothing else, it serves its other sockets after
//! [`OTHERS_PER_TURN`] rounds.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use tacit_core::meter::Component;
use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropReason, Opened, OuterPacket, UdpContent};
use tacit_ipsec::offload::{OpenedPacket, coalesce};
use tacit_sys::datagram_batch::{BatchSocket, ReceivedBatch};
use tacit_sys::raw_ip::{ROOM_BYTES, RawSocket, ReceivedRaw};

use super::accounts::BatchShares;
use super::context::Context;
use super::device::InboundDevice;
use super::halves::InboundTunnel;
use super::order::Order;
use super::table::TunnelTable;
use super::thread::OrderSender;
use super::tunnel::TunId;
use super::underlay::ReceivingSocket;
use super::{IkeDatagram, PacketEvent};
use crate::ledger::meter;

/// How many batches are received before their packets are written. The packets of several batches
/// fill more of the large packets: with 8 instead of 3 batches, a stream takes 3 to 6 % less CPU
/// time.
const RECEIVES_MAX: usize = 8;
/// How often the buffer is filled before other sockets get their turn.
const ROUNDS_PER_TURN: usize = 2;
/// The same for buffers that only have IKE messages or invalid datagrams, which take less time.
const OTHERS_PER_TURN: usize = 64;
/// The room for one batch.
const BATCH_ROOM_BYTES: usize = 65_535;
/// How many packets are received from a raw socket before they are written.
const RAW_PACKETS_MAX: usize = 64;
/// A batch of this length was probably limited by its room, so another is waiting.
const FULL_BATCH_BYTES: usize = 30_000;

/// The buffers of the inbound direction.
pub(super) struct Inbound {
    buffer: Box<[u8]>,
    opened: Vec<OpenedPacket>,
    /// The device of the opened packets.
    tun: Option<TunId>,
    shares: BatchShares,
}

/// The tunnels, and where their packets go.
pub(super) struct Tunnels {
    pub(super) devices: HashMap<TunId, InboundDevice>,
    pub(super) table: TunnelTable<InboundTunnel>,
    /// Reports the addresses of roaming peers to the other direction.
    pub(super) orders: OrderSender<Order>,
}

/// Where a datagram came from.
#[derive(Clone, Copy)]
struct Origin {
    source: SocketAddr,
    traffic_class: u8,
}

/// How a packet of an SA has arrived.
#[derive(Clone, Copy)]
enum ReceivedAs {
    /// In UDP.
    Udp(Origin),
    /// As an IP packet, with these headers.
    WithoutUdp(OuterPacket),
}

impl Inbound {
    pub(super) fn new() -> Self {
        let buffer = vec![0; RECEIVES_MAX * BATCH_ROOM_BYTES].into();
        Self { buffer, opened: Vec::new(), tun: None, shares: BatchShares::new() }
    }

    /// Receives datagrams until there are none, and delivers their packets.
    pub(super) fn forward(&mut self, socket: u64, tunnels: &mut Tunnels, context: &mut Context) {
        let mut rounds = 0;
        let mut others = 0;
        while rounds < ROUNDS_PER_TURN && others < OTHERS_PER_TURN {
            let is_empty = self.fill(socket, tunnels, context);
            if self.opened.is_empty() {
                others += 1;
            } else {
                rounds += 1;
                self.deliver(&tunnels.devices, context);
            }
            if is_empty {
                break;
            }
        }
        self.shares.finish();
    }

    /// Receives into the buffer and opens what arrives. Returns whether the socket is empty.
    fn fill(&mut self, socket: u64, tunnels: &mut Tunnels, context: &mut Context) -> bool {
        let underlay = Arc::clone(&context.underlay);
        match underlay.socket(socket) {
            Some(ReceivingSocket::Udp(socket)) => self.fill_udp(socket, tunnels, context),
            Some(ReceivingSocket::Raw(socket)) => self.fill_raw(socket, tunnels, context),
            None => true,
        }
    }

    /// Receives batches.
    fn fill_udp(
        &mut self,
        socket: &BatchSocket,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) -> bool {
        let mut at = 0;
        for _ in 0..RECEIVES_MAX {
            let room = self.buffer.get_mut(at..at + BATCH_ROOM_BYTES).unwrap_or_default();
            meter::switch(Component::Receive);
            let received = match socket.receive(room) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return note_error(&error, context),
            };
            meter::switch(Component::Open);
            self.open_batch(at, &received, tunnels, context);
            at += received.bytes;
            if received.bytes < FULL_BATCH_BYTES {
                return false;
            }
        }
        false
    }

    /// Receives IP packets, one with each call.
    fn fill_raw(
        &mut self,
        socket: &RawSocket,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) -> bool {
        let mut at = 0;
        for _ in 0..RAW_PACKETS_MAX {
            let Some(room) = self.buffer.get_mut(at..at + ROOM_BYTES) else { return false };
            meter::switch(Component::Receive);
            let ReceivedRaw { place, is_cut } = match socket.receive(room) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return note_error(&error, context),
            };
            meter::switch(Component::Open);
            let place = at + place.start..at + place.end;
            at = place.end;
            let result = match is_cut {
                true => Err(DropReason::Malformed),
                false => self.open_raw(place, tunnels, context),
            };
            if let Err(reason) = result {
                context.drops().add(reason);
            }
        }
        false
    }

    /// Opens the ESP or AH packet at a place of the buffer.
    fn open_raw(
        &mut self,
        place: Range<usize>,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) -> Result<(), DropReason> {
        let packet = self.buffer.get(place.clone()).unwrap_or_default();
        let outer = OuterPacket::parse(packet)?;
        self.open_packet(outer.spi, place, ReceivedAs::WithoutUdp(outer), tunnels, context)
            .inspect_err(|reason| tunnels.note_drop(outer.spi, *reason))
    }

    /// Examines each datagram of a batch.
    fn open_batch(
        &mut self,
        start: usize,
        received: &ReceivedBatch,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) {
        let ReceivedBatch { bytes, datagram_bytes, is_cut, source, traffic_class } = *received;
        let end = start + bytes;
        let mut at = start;
        while at < end {
            let next = (at + datagram_bytes.max(1)).min(end);
            let result = if is_cut && next == end {
                // The rest of the datagram is lost.
                Err(DropReason::Malformed)
            } else {
                let origin = Origin { source, traffic_class };
                self.open_datagram(at..next, origin, tunnels, context)
            };
            if let Err(reason) = result {
                context.drops().add(reason);
            }
            at = next;
        }
        if bytes == 0 {
            context.drops().add(DropReason::Malformed);
        }
    }

    fn open_datagram(
        &mut self,
        place: Range<usize>,
        origin: Origin,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) -> Result<(), DropReason> {
        let datagram = self.buffer.get_mut(place.clone()).unwrap_or_default();
        match UdpContent::of(datagram) {
            UdpContent::Esp(spi) => self
                .open_packet(spi, place, ReceivedAs::Udp(origin), tunnels, context)
                .inspect_err(|reason| tunnels.note_drop(spi, *reason)),
            UdpContent::Ike(message) => {
                context.counters.ike_messages.add(1);
                let message = message.to_vec();
                context.report(PacketEvent::Ike(IkeDatagram { from: origin.source, message }))
            }
            UdpContent::Keepalive => {
                context.counters.keepalives.add(1);
                Ok(())
            }
            UdpContent::Invalid => Err(DropReason::Malformed),
        }
    }

    fn open_packet(
        &mut self,
        spi: EspSpi,
        place: Range<usize>,
        received_as: ReceivedAs,
        tunnels: &mut Tunnels,
        context: &mut Context,
    ) -> Result<(), DropReason> {
        let Tunnels { devices, table, orders } = tunnels;
        let tunnel = table.with_spi(spi).ok_or(DropReason::UnknownSpi)?;
        let frame = self.buffer.get_mut(place.clone()).ok_or(DropReason::Malformed)?;
        let before = tunnel.sa.sequence();
        let opened = match received_as {
            ReceivedAs::Udp(origin) => tunnel.sa.open(frame, origin.traffic_class)?,
            ReceivedAs::WithoutUdp(outer) => tunnel.sa.open_without_udp(frame, &outer)?,
        };
        let is_newest = tunnel.sa.sequence() > before;
        // If the queue is full, the next packet moves the peer.
        if let ReceivedAs::Udp(Origin { source: to, .. }) = received_as
            && is_newest
            && tunnel.has_moved(to)
            && orders.try_order(Order::MovePeer(spi, to))
        {
            tunnel.move_peer(to);
            // If the queue is full, displays have the address before.
            let _ = context.report(PacketEvent::PeerMoved { spi, to });
        }
        // Dummy packets end here (RFC 4303 section 2.6).
        let Opened::Packet(parsed, inner) = opened else { return Ok(()) };
        let bytes = frame.get(inner.clone()).ok_or(DropReason::InnerPacket)?;
        let tun = tunnel.tun;
        let is_requested = || devices.get(&tun).is_some_and(|device| device.permits(&parsed));
        let decision = tunnel.admit(&parsed, bytes, is_requested)?;
        self.shares.count(tunnel.flows.account(decision), parsed.bytes);
        if self.tun != Some(tun) {
            self.deliver(devices, context);
            self.tun = Some(tun);
        }
        let place = place.start + inner.start..place.start + inner.end;
        context.traffic().add(&parsed, parsed.bytes);
        self.opened.push(OpenedPacket { parsed, place });
        Ok(())
    }

    /// Writes the opened packets to their device.
    fn deliver(&mut self, devices: &HashMap<TunId, InboundDevice>, context: &Context) {
        meter::switch(Component::Send);
        let device = self.tun.and_then(|tun| devices.get(&tun));
        let mut rest = self.opened.as_slice();
        while !rest.is_empty() {
            let joined = coalesce(&mut self.buffer, rest);
            let (packets, later) = rest.split_at(joined.packets.clamp(1, rest.len()));
            rest = later;
            let mut parts = Vec::with_capacity(1 + packets.len());
            parts.push(IoSlice::new(&joined.vnet_header));
            for (number, packet) in packets.iter().enumerate() {
                let skipped = if number == 0 { 0 } else { joined.payload_at };
                let bytes = self.buffer.get(packet.place.clone()).unwrap_or_default();
                parts.push(IoSlice::new(bytes.get(skipped..).unwrap_or_default()));
            }
            if device.is_none_or(|device| device.tun().write(&parts).is_err()) {
                packets.iter().for_each(|_| context.drops().add(DropReason::Kernel));
            }
        }
        self.opened.clear();
    }
}

impl Tunnels {
    /// Counts a dropped packet of the tunnel with this SPI.
    fn note_drop(&mut self, spi: EspSpi, reason: DropReason) {
        if let Some(tunnel) = self.table.with_spi(spi) {
            tunnel.drops().add(reason);
        }
    }
}

/// Returns whether the socket is empty after an error; counts all other errors.
fn note_error(error: &io::Error, context: &Context) -> bool {
    if error.kind() != io::ErrorKind::WouldBlock {
        context.drops().add(DropReason::Kernel);
    }
    true
}
