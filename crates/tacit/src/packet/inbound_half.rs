//! Defines [`InboundHalf`]: the code and data for the inbound packets of IPsec tunnels. Two threads
//! can take turns to receive these packets.
//!
//! ```text
//!                       ┌─ epoll of `tacit-packet`   one thread does everything
//!  sockets to peers ────┤
//!                       └─ epoll of `tacit-receive`  while `tacit-packet` is saturated
//! ```
//!
//! At any time, one of the two epoll instances contains all sockets. When the load crosses a limit
//! of [`SpillLimits`], all sockets move to the other epoll instance.
//!
//! Packets keep their order while the sockets move. A mutex protects the [`InboundHalf`], so only
//! one thread receives packets at a time. Before a thread releases the mutex, the thread writes all
//! packets that it has received.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::context::{Context, ThreadRole};
use super::device::InboundDevice;
use super::inbound::{Inbound, Tunnels};
use super::order::Order;
use super::spill::{SpillLimits, SpillMeter};
use super::table::TunnelTable;
use super::thread::{Descriptors, OrderSender, PacketLoop};

/// The inbound direction.
pub(super) struct InboundHalf {
    pub(super) context: Context,
    pub(super) tunnels: Tunnels,
    inbound: Inbound,
    /// Where the pipeline waits for the sockets.
    of_pipeline: Descriptors,
    /// The thread beside a saturated engine; `None` if the pipeline always receives.
    second: Option<SecondThread>,
}

/// The thread that receives while the engine is saturated.
struct SecondThread {
    descriptors: Descriptors,
    /// Measures while this thread receives.
    meter: SpillMeter,
    is_receiving: bool,
}

/// The inbound direction, for both threads.
#[derive(Clone)]
pub(super) struct SharedInbound(Arc<Mutex<InboundHalf>>);

/// What the thread `tacit-receive` does.
pub(super) struct Receiving(pub(super) SharedInbound);

/// The thread `tacit-receive` gets no orders, except to give up rights and to end.
#[derive(Debug)]
pub(super) enum NoOrder {}

impl SharedInbound {
    /// Creates the inbound direction. `second` are the limits and the descriptors of a second
    /// thread.
    ///
    /// # Errors
    /// The error of `epoll_ctl`.
    pub(super) fn new(
        context: Context,
        of_pipeline: Descriptors,
        orders: OrderSender<Order>,
        second: Option<(SpillLimits, Descriptors)>,
    ) -> io::Result<Self> {
        for (number, socket) in context.underlay.sockets() {
            of_pipeline.add(number, socket)?;
        }
        let second = second.map(|(limits, descriptors)| SecondThread {
            descriptors,
            meter: SpillMeter::new(limits),
            is_receiving: false,
        });
        let tunnels = Tunnels { devices: HashMap::new(), table: TunnelTable::default(), orders };
        let half = InboundHalf { context, tunnels, inbound: Inbound::new(), of_pipeline, second };
        Ok(Self(Arc::new(Mutex::new(half))))
    }

    /// Waits until no other thread receives.
    pub(super) fn lock(&self) -> MutexGuard<'_, InboundHalf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InboundHalf {
    /// Receives packets from the socket with this number in an epoll, and delivers them.
    pub(super) fn forward(&mut self, number: u64, role: ThreadRole) {
        self.context.role = role;
        self.inbound.forward(number, &mut self.tunnels, &mut self.context);
    }

    /// Adds a device to which packets are written.
    pub(super) fn add(&mut self, id: super::TunId, device: InboundDevice) {
        self.tunnels.devices.insert(id, device);
    }

    /// Makes the second thread receive.
    pub(super) fn move_to_second(&mut self, now: Instant) {
        let busy_ns = self.context.counters.busy_ns();
        let Some(second) = &mut self.second else { return };
        if !second.is_receiving && self.context.move_sockets(&self.of_pipeline, &second.descriptors)
        {
            second.is_receiving = true;
            second.meter.restart(now, busy_ns);
        }
    }

    /// Makes the pipeline receive again if one thread is enough.
    fn move_back_if_idle(&mut self, now: Instant) {
        let busy_ns = self.context.counters.busy_ns();
        let Some(second) = &mut self.second else { return };
        if second.is_receiving
            && second.meter.ends(now, busy_ns)
            && self.context.move_sockets(&second.descriptors, &self.of_pipeline)
        {
            second.is_receiving = false;
        }
    }
}

impl Context {
    /// Moves the sockets from one epoll to another. If the kernel refuses, they stay.
    fn move_sockets(&self, from: &Descriptors, to: &Descriptors) -> bool {
        let sockets = || self.underlay.sockets();
        // While a socket is in both, the mutex decides which thread reads it.
        let added = sockets().take_while(|(number, socket)| to.add(*number, socket).is_ok());
        let is_moved = added.count() == sockets().count();
        let left = if is_moved { from } else { to };
        sockets().for_each(|(_, socket)| left.remove(socket));
        if is_moved {
            self.counters.moves.add(1);
        }
        is_moved
    }
}

impl PacketLoop for Receiving {
    type Order = NoOrder;

    fn obey(&mut self, order: NoOrder) {
        match order {}
    }

    fn forward(&mut self, number: u64) {
        self.0.lock().forward(number, ThreadRole::Second);
    }

    fn after_packets(&mut self, now: Instant) {
        self.0.lock().move_back_if_idle(now);
    }

    fn has_turns(&self) -> bool {
        false
    }

    fn turn(&mut self, _: Duration) {}
}
