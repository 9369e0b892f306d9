//! Runs the thread of a packet worker. The thread waits for packets, and for commands from other
//! threads.
//!
//! Limit: at most [`COMMANDS_MAX`] commands wait.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tacit_core::meter::Component;
use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::DropReason;
use tacit_sys::sandbox::{self, WorkerRights};
use tacit_sys::tun::Tun;

use super::PacketEvent;
use super::context::Context;
use super::device::Device;
use super::inbound::Inbound;
use super::outbound::{self, Outbound};
use super::table::{InstalledTunnel, TunnelTable};
use super::tunnel::TunId;
use crate::ledger::{Account, ThreadKind, meter};

/// The largest number of orders that wait.
pub(super) const COMMANDS_MAX: usize = 1_024;
/// How often lifetimes and waiting packets are examined.
const TURN: Duration = Duration::from_secs(1);
/// After how many turns the MTUs of paths are looked up again: they may have grown (RFC 1191
/// section 6.3).
const TURNS_PER_PATH: u32 = 60;
/// How many events one wait returns.
const EVENTS_MAX: usize = 64;

/// An order of the handle.
#[derive(Debug)]
pub(super) enum Command {
    AddTun(TunId, Tun),
    RemoveTun(TunId),
    Install(Box<InstalledTunnel>),
    Activate(EspSpi),
    Remove(EspSpi),
    MovePeer(EspSpi, SocketAddr),
    /// Gives up rights, and sends the result.
    Confine(WorkerRights, SyncSender<io::Result<()>>),
    Stop,
}

/// The state of the thread.
pub(super) struct PacketThread {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    context: Context,
    devices: HashMap<TunId, Device>,
    /// Devices that could not be read; they are read again in the next turn.
    resting: BTreeSet<TunId>,
    table: TunnelTable,
    outbound: Outbound,
    inbound: Inbound,
    turns: u32,
}

impl PacketThread {
    pub(super) fn new(
        wake: Arc<OwnedFd>,
        commands: Receiver<Command>,
        context: Context,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        for (number, socket) in (FIRST_SOCKET..).zip(context.underlay.sockets()) {
            epoll::add(&epoll, socket, EventData::new_u64(number), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            wake,
            commands,
            context,
            devices: HashMap::new(),
            resting: BTreeSet::new(),
            table: TunnelTable::default(),
            outbound: Outbound::new(),
            inbound: Inbound::new(),
            turns: 0,
        })
    }

    /// Runs until the handle is dropped. Its CPU time is charged to the agent itself: a batch has
    /// packets of several rules.
    pub(super) fn run(mut self) {
        meter::start(ThreadKind::General);
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut next_turn = Instant::now() + TURN;
        loop {
            let now = Instant::now();
            if now >= next_turn {
                self.turn();
                next_turn = now + TURN;
            }
            // Without devices nothing has to be done in time.
            let wait = (!self.devices.is_empty()).then(|| next_turn.saturating_duration_since(now));
            let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
            events.clear();
            // An interrupted wait has no events.
            meter::waits();
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), wait.as_ref());
            meter::wakes();
            for event in &events {
                let mut component = Component::Receive;
                let turn = meter::turn(Account::agent(), &mut component, || self.handle(event));
                if !turn.output {
                    return;
                }
            }
        }
    }

    /// Handles one event. Returns `false` when the thread ends.
    fn handle(&mut self, event: &Event) -> bool {
        match event.data.u64() {
            WAKE => {
                meter::switch(Component::Control);
                return self.obey();
            }
            number if number < FIRST_TUN => {
                let socket = usize::try_from(number - FIRST_SOCKET).unwrap_or(usize::MAX);
                self.inbound.forward(socket, &self.devices, &mut self.table, &mut self.context);
            }
            number => {
                let tun = TunId(number - FIRST_TUN);
                let Some(device) = self.devices.get_mut(&tun) else { return true };
                let table = &mut self.table;
                if self.outbound.forward(tun, device, table, &mut self.context).is_err() {
                    self.rest(tun);
                }
            }
        }
        true
    }

    /// Obeys all waiting orders. Returns `false` when the thread ends.
    fn obey(&mut self) -> bool {
        // The counter only wakes the thread; its value does not matter.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        loop {
            match self.commands.try_recv() {
                Ok(Command::AddTun(id, tun)) => self.add_tun(id, tun),
                Ok(Command::RemoveTun(id)) => self.remove_tun(id),
                Ok(Command::Install(tunnel)) => self.table.add(*tunnel),
                Ok(Command::Activate(spi)) => self.activate(spi),
                Ok(Command::Remove(spi)) => self.remove(spi),
                Ok(Command::MovePeer(spi, to)) => {
                    let slot = self.table.slot_of(spi);
                    if let Some(tunnel) = slot.and_then(|slot| self.table.tunnel_mut(slot)) {
                        tunnel.moved(to);
                    }
                }
                Ok(Command::Confine(rights, done)) => {
                    // The handle waits for it.
                    let _ = done.send(confine(rights));
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn add_tun(&mut self, id: TunId, tun: Tun) {
        self.devices.insert(id, Device::new(tun));
        if self.watch(id).is_err() {
            self.resting.insert(id);
        }
    }

    fn remove_tun(&mut self, id: TunId) {
        self.table.remove_tun(id);
        self.resting.remove(&id);
        if let Some(device) = self.devices.remove(&id) {
            // The descriptor may be open in another process, which would keep it in the epoll.
            let _ = epoll::delete(&self.epoll, &device.tun);
        }
    }

    fn watch(&self, id: TunId) -> io::Result<()> {
        let Some(device) = self.devices.get(&id) else { return Ok(()) };
        let data = EventData::new_u64(FIRST_TUN + id.0);
        Ok(epoll::add(&self.epoll, &device.tun, data, EventFlags::IN)?)
    }

    /// Reads a device no longer until the next turn: it is down, or its namespace is gone.
    fn rest(&mut self, id: TunId) {
        if let Some(device) = self.devices.get(&id) {
            let _ = epoll::delete(&self.epoll, &device.tun);
            self.resting.insert(id);
        }
    }

    fn activate(&mut self, spi: EspSpi) {
        let Some(slot) = self.table.slot_of(spi) else { return };
        let Some(tun) = self.table.tunnel_mut(slot).map(|tunnel| tunnel.tun) else { return };
        let Some(device) = self.devices.get_mut(&tun) else { return };
        device.activate(slot);
        self.outbound.forward_held(tun, device, &mut self.table, &mut self.context);
        self.count_held();
    }

    fn remove(&mut self, spi: EspSpi) {
        let Some((slot, tun)) = self.table.remove(spi) else { return };
        if let Some(device) = self.devices.get_mut(&tun) {
            device.deactivate(slot);
        }
    }

    /// Does what is due each second.
    fn turn(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        // Before reports of refused packets, which can fill the queue.
        for spi in self.table.rekeys_due() {
            // If the queue is full, the next turn reports it again.
            let _ = self.context.report(PacketEvent::RekeyDue(spi));
        }
        for (tun, device) in &mut self.devices {
            for late in device.turn() {
                outbound::refuse(&late.bytes, DropReason::NoSa, device, &self.context);
            }
            device.report_refused(|packet, count| {
                self.context.report(PacketEvent::Refused { tun: *tun, packet, count }).is_ok()
            });
        }
        self.count_held();
        if self.turns.is_multiple_of(TURNS_PER_PATH) {
            self.table.learn_paths(None);
        }
        for id in std::mem::take(&mut self.resting) {
            if self.watch(id).is_err() {
                self.resting.insert(id);
            }
        }
    }

    fn count_held(&self) {
        let held: usize = self.devices.values().map(Device::held_packets).sum();
        self.context.counters.held.set(u64::try_from(held).unwrap_or(0));
    }
}

/// Drops the rights of this thread that moving packets does not need.
fn confine(rights: WorkerRights) -> io::Result<()> {
    let WorkerRights { capabilities, sockets } = rights;
    sandbox::keep_capabilities(capabilities)?;
    sandbox::filter_worker(sockets)
}

/// The numbers of descriptors in the epoll: the wake-up, sockets, TUN devices.
const WAKE: u64 = 0;
const FIRST_SOCKET: u64 = 1;
const FIRST_TUN: u64 = 16;
