//! Defines [`Pipeline`]: the state of the thread `tacit-packet`, which processes the packets of
//! tunnels. The thread reads the packets of programs from TUN devices, and sends these packets to
//! the peers. The thread also receives the packets of the peers, except while the thread
//! `tacit-receive` receives them.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::DropReason;
use tacit_sys::tun::Tun;

use super::PacketEvent;
use super::context::{Context, ThreadRole};
use super::device::OutboundDevice;
use super::halves::{InstalledTunnel, OutboundTunnel};
use super::inbound_half::SharedInbound;
use super::order::Order;
use super::outbound::{self, Outbound, Route};
use super::spill::SpillMeter;
use super::table::TunnelTable;
use super::thread::{Descriptors, PacketLoop};
use super::tunnel::{TunId, TunnelPackets};

/// After how many turns the MTUs of paths are looked up again: they may have grown (RFC 1191
/// section 6.3).
const TURNS_PER_PATH: u32 = 60;

/// How often lifetimes are examined while packets arrive: fast tunnels use up the data of their
/// keys in less than a second.
const LIFETIMES_INTERVAL: Duration = Duration::from_millis(50);

/// The state of the thread `tacit-packet`.
pub(super) struct Pipeline {
    context: Context,
    descriptors: Descriptors,
    devices: HashMap<TunId, OutboundDevice>,
    /// Devices that could not be read; they are read again in the next turn.
    resting: BTreeSet<TunId>,
    /// Whether another agent reads the devices.
    has_stopped_reading: bool,
    table: TunnelTable<OutboundTunnel>,
    outbound: Outbound,
    inbound: SharedInbound,
    /// Decides when another thread receives; `None`: never.
    meter: Option<SpillMeter>,
    turns: u32,
    /// When lifetimes are examined next.
    lifetimes_at: Option<Instant>,
    /// The busy times of the threads at the last turn.
    busy_before: [u64; 2],
}

impl Pipeline {
    pub(super) fn new(
        context: Context,
        descriptors: Descriptors,
        inbound: SharedInbound,
        meter: Option<SpillMeter>,
    ) -> Self {
        Self {
            context,
            descriptors,
            devices: HashMap::new(),
            resting: BTreeSet::new(),
            has_stopped_reading: false,
            table: TunnelTable::default(),
            outbound: Outbound::new(),
            inbound,
            meter,
            turns: 0,
            lifetimes_at: None,
            busy_before: [0; 2],
        }
    }

    fn add_tun(&mut self, id: TunId, tun: Tun) {
        let (outbound, inbound) = OutboundDevice::new(tun);
        self.inbound.lock().add(id, inbound);
        self.devices.insert(id, outbound);
        if self.watch(id).is_err() {
            self.resting.insert(id);
        }
    }

    fn remove_tun(&mut self, id: TunId) {
        {
            let mut inbound = self.inbound.lock();
            inbound.tunnels.table.remove_tun(id);
            inbound.tunnels.devices.remove(&id);
        }
        self.table.remove_tun(id);
        self.resting.remove(&id);
        if let Some(device) = self.devices.remove(&id) {
            // The descriptor may be open in another process, which would keep it in the epoll.
            self.descriptors.remove(device.tun());
        }
    }

    /// Leaves the packets in the devices to a successor, which has other descriptors of them.
    fn stop_reading(&mut self) {
        self.has_stopped_reading = true;
        self.resting.clear();
        self.devices.values().for_each(|device| self.descriptors.remove(device.tun()));
    }

    fn watch(&self, id: TunId) -> io::Result<()> {
        if self.has_stopped_reading {
            return Ok(());
        }
        let Some(device) = self.devices.get(&id) else { return Ok(()) };
        self.descriptors.add(FIRST_TUN + id.0, device.tun())
    }

    fn install(&mut self, tunnel: InstalledTunnel) {
        let InstalledTunnel { tun, spi, mut outbound, inbound } = tunnel;
        outbound.report_path(spi, &mut self.context);
        self.inbound.lock().tunnels.table.add(spi, tun, *inbound);
        self.table.add(spi, tun, *outbound);
    }

    fn activate(&mut self, spi: EspSpi) {
        let Some(slot) = self.table.slot_of(spi) else { return };
        let Some(tun) = self.table.tun_at(slot) else { return };
        let Some(device) = self.devices.get_mut(&tun) else { return };
        device.activate(slot);
        let table = &mut self.table;
        let context = &mut self.context;
        self.outbound.forward_held(Route { tun, device, table, context });
        self.count_held();
    }

    fn remove(&mut self, spi: EspSpi) {
        self.inbound.lock().tunnels.table.remove(spi);
        let Some((slot, tun)) = self.table.remove(spi) else { return };
        if let Some(device) = self.devices.get_mut(&tun) {
            device.deactivate(slot);
        }
    }

    fn move_peer(&mut self, spi: EspSpi, to: SocketAddr) {
        if let Some(tunnel) = self.inbound.lock().tunnels.table.with_spi(spi) {
            tunnel.move_peer(to);
        }
        if let Some(tunnel) = self.table.with_spi(spi) {
            tunnel.move_peer(to);
        }
    }

    fn permit(&mut self, spi: EspSpi, packets: TunnelPackets) {
        if let Some(tunnel) = self.inbound.lock().tunnels.table.with_spi(spi) {
            tunnel.permit(packets.clone());
        }
        if let Some(tunnel) = self.table.with_spi(spi) {
            tunnel.permit(packets);
        }
    }

    /// Reports tunnels that need a successor.
    fn report_rekeys(&mut self) {
        for (spi, tunnel) in self.table.iter_mut() {
            if tunnel.is_rekey_due() {
                // If the queue is full, the next call reports it again.
                let _ = self.context.report(PacketEvent::RekeyDue(spi));
            }
        }
    }

    fn count_held(&self) {
        let held: usize = self.devices.values().map(OutboundDevice::held_packets).sum();
        self.context.counters.held.set(u64::try_from(held).unwrap_or(0));
    }
}

impl PacketLoop for Pipeline {
    type Order = Order;

    fn obey(&mut self, order: Order) {
        match order {
            Order::AddTun(id, tun) => self.add_tun(id, tun),
            Order::RemoveTun(id) => self.remove_tun(id),
            Order::StopReading => self.stop_reading(),
            Order::Install(tunnel) => self.install(*tunnel),
            Order::Activate(spi) => self.activate(spi),
            Order::Remove(spi) => self.remove(spi),
            Order::MovePeer(spi, to) => self.move_peer(spi, to),
            Order::Permit(spi, packets) => self.permit(spi, *packets),
        }
    }

    fn forward(&mut self, number: u64) {
        if number < FIRST_TUN {
            self.inbound.lock().forward(number, ThreadRole::Pipeline);
            return;
        }
        if self.has_stopped_reading {
            // The event arrived in the same turn as the order to stop.
            return;
        }
        let tun = TunId(number - FIRST_TUN);
        let Some(device) = self.devices.get_mut(&tun) else { return };
        let table = &mut self.table;
        let context = &mut self.context;
        if self.outbound.forward(Route { tun, device, table, context }).is_err() {
            // Not read until the next turn: it is down, or its namespace is gone.
            self.descriptors.remove(device.tun());
            self.resting.insert(tun);
        }
    }

    fn after_packets(&mut self, now: Instant) {
        let busy_ns = self.context.counters.busy_ns();
        if self.meter.as_mut().is_some_and(|meter| meter.begins(now, busy_ns)) {
            self.inbound.lock().move_to_second(now);
        }
        if self.lifetimes_at.is_none_or(|at| at <= now) {
            self.lifetimes_at = Some(now + LIFETIMES_INTERVAL);
            self.report_rekeys();
        }
    }

    /// Without devices nothing has to be done in time.
    fn has_turns(&self) -> bool {
        !self.devices.is_empty()
    }

    fn turn(&mut self, since: Duration) {
        self.context.counters.end_second(&mut self.busy_before, since);
        self.turns = self.turns.wrapping_add(1);
        // Before reports of refused packets, which can fill the queue.
        self.report_rekeys();
        if self.turns.is_multiple_of(TURNS_PER_PATH) {
            self.table.iter_mut().for_each(|(_, tunnel)| tunnel.learn_path());
        }
        let context = &mut self.context;
        self.table.iter_mut().for_each(|(spi, tunnel)| tunnel.report_path(spi, context));
        for (tun, device) in &mut self.devices {
            for late in device.turn() {
                outbound::refuse(&late.bytes, DropReason::NoSa, device, &self.context);
            }
            device.report_refused(|packet, count| {
                self.context.report(PacketEvent::Refused { tun: *tun, packet, count }).is_ok()
            });
        }
        self.count_held();
        for id in std::mem::take(&mut self.resting) {
            if self.watch(id).is_err() {
                self.resting.insert(id);
            }
        }
    }
}

/// The number of the first TUN device in an epoll, behind those of sockets.
const FIRST_TUN: u64 = 16;
