//! Defines the type of an accepted connection for which the agent has not chosen a rule yet.

use std::io;

use tacit_core::flow::Address;
use tokio::sync::OwnedSemaphorePermit;

use super::stream_socket::{DetachedSocket, StreamSocket};

/// A connection that was accepted, and for which no rule was chosen yet.
#[derive(Debug)]
pub struct Accepted<L = DetachedSocket> {
    /// Its socket.
    pub socket: L,
    /// The address at which the connection arrived. If a program of a run opened the connection,
    /// the address of the program.
    pub local: Address,
    /// The address of the client. If a program of a run opened the connection, the address to which
    /// it connects.
    pub remote: Address,
    /// Counts it among the open connections of the agent.
    pub permit: OwnedSemaphorePermit,
}

impl Accepted<DetachedSocket> {
    /// Registers the socket with the runtime of the calling thread.
    ///
    /// # Errors
    /// See [`DetachedSocket::watch`].
    pub fn watch(self) -> io::Result<Accepted<StreamSocket>> {
        let Self { socket, local, remote, permit } = self;
        Ok(Accepted { socket: socket.watch()?, local, remote, permit })
    }
}
