//! Defines [`Context`]: the data that a packet worker uses for both directions.

use std::fmt;
use std::sync::Arc;

use super::PacketEvent;
use super::statistics::Counters;
use super::underlay::UdpUnderlay;

/// What both directions use.
pub(super) struct Context {
    pub(super) underlay: Arc<UdpUnderlay>,
    pub(super) counters: Arc<Counters>,
    events: Box<dyn FnMut(PacketEvent) -> bool + Send>,
}

impl Context {
    pub(super) fn new(
        underlay: Arc<UdpUnderlay>,
        counters: Arc<Counters>,
        events: Box<dyn FnMut(PacketEvent) -> bool + Send>,
    ) -> Self {
        Self { underlay, counters, events }
    }

    /// Reports an event. Returns `false` if the queue is full; the event is then lost.
    pub(super) fn report(&mut self, event: PacketEvent) -> bool {
        (self.events)(event)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
