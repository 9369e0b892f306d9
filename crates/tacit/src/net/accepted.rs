//! Defines an accepted connection that does not have a rule yet. A listener passes it to the stream
//! lane, which serves connections.

use std::io;

use tacit_core::flow::Address;
use tokio::sync::OwnedSemaphorePermit;

use super::stream_socket::{DetachedSocket, StreamSocket};

/// A connection that was accepted and has no rule yet.
#[derive(Debug)]
pub struct Accepted<L = DetachedSocket> {
    /// Its socket.
    pub socket: L,
    /// Where it arrived; for what a run's program opened, the program's own end.
    pub local: Address,
    /// Who connected; for what a run's program opened, where it connects to.
    pub remote: Address,
    /// Counts it among the open connections of the agent.
    pub permit: OwnedSemaphorePermit,
}

impl Accepted<DetachedSocket> {
    /// Has the runtime of the calling thread watch its socket.
    ///
    /// # Errors
    /// See [`DetachedSocket::watch`].
    pub fn watch(self) -> io::Result<Accepted<StreamSocket>> {
        let Self { socket, local, remote, permit } = self;
        Ok(Accepted { socket: socket.watch()?, local, remote, permit })
    }
}
