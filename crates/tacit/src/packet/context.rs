//! Defines [`Context`]: the data that a packet worker uses for both directions.

use std::fmt;
use std::sync::Arc;

use tacit_ipsec::esp::DropReason;

use super::statistics::Counters;
use super::underlay::UdpUnderlay;
use super::{PacketEvent, PacketEvents};

/// What both directions use.
pub(super) struct Context {
    pub(super) underlay: Arc<UdpUnderlay>,
    pub(super) counters: Arc<Counters>,
    events: Box<dyn PacketEvents>,
}

impl Context {
    pub(super) fn new(
        underlay: Arc<UdpUnderlay>,
        counters: Arc<Counters>,
        events: Box<dyn PacketEvents>,
    ) -> Self {
        Self { underlay, counters, events }
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
