//! Runs a thread of a packet worker, which moves the packets of IPsec tunnels. The thread waits for
//! packets, and for commands (`Order`) from other threads.
//!
//! Limit: at most [`ORDERS_MAX`] commands are pending.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use tacit_core::meter::Component;
use tacit_sys::cpu;
use tacit_sys::sandbox::{self, WorkerRights};
use tacit_sys::schedule::{self, Scheduling};

use super::PacketWorkerError;
use super::context::ThreadRole;
use super::plan::PacketEngine;
use super::polling::Polling;
use super::statistics::{BusyTime, Counters, PacketThreadState};
use crate::ledger::{Account, ThreadKind, meter};

/// The largest number of orders that wait.
const ORDERS_MAX: usize = 1_024;
/// How often [`PacketLoop::turn`] is called.
const TURN: Duration = Duration::from_secs(1);
/// How many events one wait returns.
const EVENTS_MAX: usize = 64;

/// What a thread does with packets and orders.
pub(super) trait PacketLoop {
    /// An order of another thread.
    type Order: Send;

    /// Obeys an order.
    fn obey(&mut self, order: Self::Order);

    /// Moves packets from a descriptor that can be read.
    fn forward(&mut self, number: u64);

    /// Called after each round of events.
    fn after_packets(&mut self, now: Instant);

    /// Whether something has to be done in time.
    fn has_turns(&self) -> bool;

    /// Does what is due each second; `since` is the time since the last turn.
    fn turn(&mut self, since: Duration);
}

/// What a thread is, and where it runs.
#[derive(Debug)]
pub(super) struct ThreadSetup {
    pub(super) name: &'static str,
    pub(super) role: ThreadRole,
    /// `None`: the CPUs of the thread that starts it.
    pub(super) engine: Option<PacketEngine>,
    pub(super) counters: Arc<Counters>,
}

/// What a running thread has found out about itself.
#[derive(Clone, Copy, Debug)]
struct ThreadFacts {
    number: u32,
    scheduling: Option<Scheduling>,
}

/// The handle of a thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct PacketThread<O> {
    setup: Arc<ThreadSetup>,
    facts: ThreadFacts,
    orders: OrderSender<O>,
    thread: Option<JoinHandle<()>>,
}

/// What a thread needs to begin.
#[derive(Debug)]
pub(super) struct ThreadParts<O> {
    sender: OrderSender<O>,
    orders: Receiver<Message<O>>,
    descriptors: Descriptors,
}

/// Gives orders to a thread.
#[derive(Debug)]
pub(super) struct OrderSender<O> {
    queue: SyncSender<Message<O>>,
    wake: Arc<OwnedFd>,
}

/// The descriptors from which a thread reads packets.
#[derive(Clone, Debug)]
pub(super) struct Descriptors(Arc<OwnedFd>);

/// What the queue contains.
#[derive(Debug)]
enum Message<O> {
    Order(O),
    /// Gives up rights, and sends the result.
    Confine(WorkerRights, SyncSender<io::Result<()>>),
    Stop,
}

/// The thread itself.
struct Runner<L: PacketLoop> {
    work: L,
    descriptors: Descriptors,
    orders: Receiver<Message<L::Order>>,
    wake: Arc<OwnedFd>,
    setup: Arc<ThreadSetup>,
}

impl<O: Send + 'static> ThreadParts<O> {
    /// Creates the queue and the descriptors of a thread.
    ///
    /// # Errors
    /// The kernel refuses a descriptor.
    pub(super) fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let descriptors = Descriptors(Arc::new(epoll::create(CreateFlags::CLOEXEC)?));
        descriptors.add(WAKE, &wake)?;
        let (queue, orders) = sync_channel(ORDERS_MAX);
        Ok(Self { sender: OrderSender { queue, wake }, orders, descriptors })
    }

    pub(super) fn sender(&self) -> OrderSender<O> {
        self.sender.clone()
    }

    pub(super) fn descriptors(&self) -> Descriptors {
        self.descriptors.clone()
    }

    /// Starts the thread, and waits until it is on its CPU.
    ///
    /// # Errors
    /// The thread cannot be created, or the kernel refuses its CPU or its scheduling class.
    pub(super) fn start<L>(self, setup: ThreadSetup, work: L) -> io::Result<PacketThread<O>>
    where
        L: PacketLoop<Order = O> + Send + 'static,
    {
        let Self { sender, orders, descriptors } = self;
        let wake = Arc::clone(&sender.wake);
        let setup = Arc::new(setup);
        let runner = Runner { work, descriptors, orders, wake, setup: Arc::clone(&setup) };
        let (started, result) = sync_channel(1);
        let thread = std::thread::Builder::new().name(setup.name.to_owned()).spawn(move || {
            let facts = runner.setup.occupy().map(|()| ThreadFacts {
                number: cpu::thread_id(),
                scheduling: schedule::own_scheduling().ok(),
            });
            let is_ready = facts.is_ok();
            // The thread that started this one waits for it.
            let _ = started.send(facts);
            if is_ready {
                runner.run();
            }
        })?;
        let facts = result.recv().map_err(io::Error::other)??;
        Ok(PacketThread { setup, facts, orders: sender, thread: Some(thread) })
    }
}

impl ThreadSetup {
    /// Brings the calling thread to its CPU.
    fn occupy(&self) -> io::Result<()> {
        self.engine.map_or(Ok(()), |engine| engine.occupy(self.name))
    }

    fn busy(&self) -> &BusyTime {
        &self.counters.busy[self.role as usize]
    }
}

impl<O> PacketThread<O> {
    /// Returns the state for displays.
    pub(super) fn state(&self) -> PacketThreadState {
        PacketThreadState {
            name: self.setup.name,
            cpu: self.setup.engine.map(|engine| engine.cpu),
            scheduling: self.facts.scheduling,
            cpu_ns: cpu::thread_ns_of(self.facts.number).unwrap_or(0),
            waited_ns: cpu::thread_waited_ns_of(self.facts.number).ok(),
            is_engine: self.setup.engine.is_some(),
            busy_permille: self.setup.busy().permille(),
        }
    }

    /// Gives an order. Waits if too many orders wait.
    pub(super) fn order(&self, order: O) -> Result<(), PacketWorkerError> {
        self.orders.send(Message::Order(order))
    }

    /// Makes the thread give up rights.
    pub(super) fn confine(&self, rights: WorkerRights) -> io::Result<()> {
        let (done, result) = sync_channel(1);
        self.orders.send(Message::Confine(rights, done)).map_err(io::Error::other)?;
        result.recv().map_err(io::Error::other)?
    }
}

impl<O> Drop for PacketThread<O> {
    fn drop(&mut self) {
        // If the thread has ended already, it needs no order.
        let _ = self.orders.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<O> OrderSender<O> {
    /// Gives an order, without waiting. Returns `false` if the queue is full or the thread has
    /// ended.
    pub(super) fn try_order(&self, order: O) -> bool {
        self.queue.try_send(Message::Order(order)).is_ok() && self.wake().is_ok()
    }

    fn send(&self, message: Message<O>) -> Result<(), PacketWorkerError> {
        self.queue.send(message).map_err(|_| PacketWorkerError::Ended)?;
        self.wake()
    }

    fn wake(&self) -> Result<(), PacketWorkerError> {
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes())
            .map_err(|_| PacketWorkerError::Ended)?;
        Ok(())
    }
}

impl<O> Clone for OrderSender<O> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl Descriptors {
    /// Reads packets from a descriptor from now on.
    pub(super) fn add(&self, number: u64, descriptor: impl AsFd) -> io::Result<()> {
        let data = EventData::new_u64(number);
        Ok(epoll::add(&self.0, descriptor, data, EventFlags::IN)?)
    }

    /// Reads no longer from a descriptor.
    pub(super) fn remove(&self, descriptor: impl AsFd) {
        // A descriptor that is not there needs no removal.
        let _ = epoll::delete(&self.0, descriptor);
    }
}

impl<L: PacketLoop> Runner<L> {
    /// Runs until the handle is dropped. A batch has packets of several rules, so its CPU time is
    /// divided among them. The CPU time of orders is charged to the agent itself.
    fn run(mut self) {
        let is_engine = self.setup.engine.is_some();
        meter::start(if is_engine { ThreadKind::Engine } else { ThreadKind::General });
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut woken = Instant::now();
        let poll = self.setup.engine.map_or(Duration::ZERO, |engine| engine.poll);
        let mut polling = Polling::new(poll, woken);
        let mut turned = woken;
        loop {
            let now = Instant::now();
            if !events.is_empty() {
                self.setup.busy().add(now.saturating_duration_since(woken));
                self.work.after_packets(now);
                polling.note_packets(woken, now);
            }
            let mut wait = None;
            if self.work.has_turns() {
                let since = now.saturating_duration_since(turned);
                if since >= TURN {
                    self.work.turn(since);
                    turned = now;
                }
                wait = Timespec::try_from((turned + TURN).saturating_duration_since(now)).ok();
            }
            if polling.polls(now) {
                // A thread that needs the CPU runs first.
                std::thread::yield_now();
                wait = Some(Timespec { tv_sec: 0, tv_nsec: 0 });
            }
            events.clear();
            // An interrupted wait has no events.
            meter::waits();
            let _ = epoll::wait(&self.descriptors.0, spare_capacity(&mut events), wait.as_ref());
            meter::wakes();
            if !events.is_empty() {
                woken = Instant::now();
            }
            for event in &events {
                let mut component = Component::Receive;
                let is_running = match event.data.u64() {
                    WAKE => {
                        let obey = || self.handle(event);
                        meter::turn(Account::agent(), &mut component, obey).output
                    }
                    _ => meter::shared_turn(Account::packets(), component, || self.handle(event)),
                };
                if !is_running {
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
                self.obey()
            }
            number => {
                self.work.forward(number);
                true
            }
        }
    }

    /// Obeys all waiting orders. Returns `false` when the thread ends.
    fn obey(&mut self) -> bool {
        // The counter only wakes the thread; its value does not matter.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        loop {
            match self.orders.try_recv() {
                Ok(Message::Order(order)) => self.work.obey(order),
                Ok(Message::Confine(rights, done)) => {
                    // The handle waits for it.
                    let _ = done.send(confine(rights));
                }
                Ok(Message::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }
}

/// Drops the rights of this thread that moving packets does not need.
fn confine(rights: WorkerRights) -> io::Result<()> {
    let WorkerRights { capabilities, sockets } = rights;
    sandbox::keep_capabilities(capabilities)?;
    sandbox::filter_worker(sockets)
}

/// The number of the descriptor that wakes the thread.
const WAKE: u64 = u64::MAX;
