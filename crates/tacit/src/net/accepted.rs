//! A connection between its listener and the lane that takes it.

use std::io;

use tacit_core::flow::Address;
use tokio::sync::OwnedSemaphorePermit;

use super::leg::{Leg, Parked};

/// A connection that was accepted and has no rule yet.
#[derive(Debug)]
pub struct Accepted<L = Parked> {
    /// Its socket.
    pub leg: L,
    /// Where it arrived; for what a run's program opened, the program's own end.
    pub local: Address,
    /// Who connected; for what a run's program opened, where it connects to.
    pub remote: Address,
    /// Counts it among the open connections of the agent.
    pub permit: OwnedSemaphorePermit,
}

impl Accepted<Parked> {
    /// Has the runtime of the calling thread watch its socket.
    ///
    /// # Errors
    /// See [`Parked::watch`].
    pub fn watch(self) -> io::Result<Accepted<Leg>> {
        let Self { leg, local, remote, permit } = self;
        Ok(Accepted { leg: leg.watch()?, local, remote, permit })
    }
}
