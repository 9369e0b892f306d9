//! Defines [`Context`]: the data that a packet worker uses for the packets of one direction. A
//! packet worker moves the packets of IPsec tunnels. The direction is inbound or outbound.

use std::fmt;
use std::sync::Arc;

use tacit_ipsec::esp::{DropCounters, DropReason};

use super::direction::Direction;
use super::statistics::{Counters, TrafficCounters};
use super::underlay::Underlay;
use super::{PacketEvent, PacketEvents};

/// The threads of a packet worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadRole {
    /// It sends and receives.
    Pipeline = 0,
    /// It receives while the engine is saturated.
    Second = 1,
}

/// The data that one direction of a packet worker uses.
pub(super) struct Context {
    pub(super) underlay: Arc<Underlay>,
    pub(super) counters: Arc<Counters>,
    direction: Direction,
    /// The thread that uses this direction.
    pub(super) role: ThreadRole,
    events: Box<dyn PacketEvents>,
}

impl Context {
    pub(super) fn new(
        underlay: &Arc<Underlay>,
        counters: &Arc<Counters>,
        direction: Direction,
        events: impl PacketEvents + 'static,
    ) -> Self {
        Self {
            underlay: Arc::clone(underlay),
            counters: Arc::clone(counters),
            direction,
            role: ThreadRole::Pipeline,
            events: Box::new(events),
        }
    }

    /// Returns the counters of the packets that this direction drops.
    pub(super) fn drops(&self) -> &DropCounters {
        self.counters.drops.of(self.direction)
    }

    /// Returns the counters of the packets that pass.
    pub(super) fn traffic(&self) -> &TrafficCounters {
        match (self.direction, self.role) {
            (Direction::Outbound, _) => &self.counters.outbound,
            (Direction::Inbound, ThreadRole::Pipeline) => &self.counters.inbound,
            (Direction::Inbound, ThreadRole::Second) => &self.counters.inbound_second,
        }
    }

    /// Reports an event. An error says why the event is lost.
    pub(super) fn report(&mut self, event: PacketEvent) -> Result<(), DropReason> {
        self.events.take(event)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
