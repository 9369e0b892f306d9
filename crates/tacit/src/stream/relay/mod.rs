//! Moves the bytes of a connection between its two sockets until both directions have ended. Relay
//! is stage 4 of the five stages of a connection.
//!
//! ```text
//!          read a batch    seal in place       write once
//!   clear ──────────────> records ─────────────────────> TLS
//!   clear <────────────── records <───────────────────── TLS
//!          write once      open in place      read a batch
//! ```
//!
//! * Batches: each batch needs one read and one write. A connection stores bytes only while a write
//!   is blocked or a record is incomplete. The limit is [`BATCH_RECORDS_MAX`] records for each
//!   direction.
//! * Backpressure: while bytes wait to be written to one socket, the relay does not read the other
//!   socket.
//! * Ends: the two directions end independently. An end of file in clear becomes `close_notify` in
//!   TLS, and vice versa. If a TLS stream ends without `close_notify`, the relay delivers
//!   the bytes that it has received, for at most [`DELIVERY_WAIT_MAX`]. Then the relay resets the
//!   clear socket.
//! * Key limit: TLS 1.2 cannot replace a key. So the relay ends the connection when the key has
//!   nearly reached its data limit.
//! * Fairness: short messages wait only briefly for the large transfers of other connections
//!   (`stream/bulk/mod.rs`).

mod clear;
mod controlled;
mod delivery;
mod follow;
mod own_tls;
mod sealed;
mod starttls;
mod waiting;

pub use super::scratch::{BATCH_RECORDS_MAX, HELD_BYTES_MAX};

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tacit_core::meter::Component;
use tokio::time::{Instant, Sleep};

use crate::ledger::meter;
use crate::net::stream_socket::{DELIVERY_WAIT_MAX, Outgoing, StreamSocket};
use crate::session::{BrokenSocket, Connection, ConnectionEnd};

use super::lane::StreamLane;
use super::relay_kind::{Established, RelayKind};
use super::scratch::{Buffers, HeldBytes, Scratch};

/// The same limit for ChaCha20-Poly1305. This cipher is slow enough that the peer should open the
/// first records while later ones are sealed. With this limit, sending a megabyte and receiving it
/// back takes 10 % less time, for 1 to 2 % more CPU time. A limit of half this size is no better.
pub const CHACHA_BATCH_RECORDS_MAX: usize = 16;
/// A socket that has failed while the other may still accept valid bytes.
#[derive(Debug)]
struct Broken {
    end: ConnectionEnd,
    give_up: Pin<Box<Sleep>>,
    progress: u64,
}

impl Broken {
    fn new(socket: BrokenSocket, error: io::Error) -> Box<Self> {
        let give_up = Box::pin(tokio::time::sleep(DELIVERY_WAIT_MAX));
        Box::new(Self { end: ConnectionEnd::Broken { socket, error }, give_up, progress: 0 })
    }

    /// Whether an end of file of that socket is the rest of a reset whose error another call has
    /// returned. After `BrokenPipe` it is not: then the peer has ended its stream in order before.
    fn hides_reset(&self, of: BrokenSocket) -> bool {
        matches!(&self.end, ConnectionEnd::Broken { socket, error }
            if *socket == of && error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Ready when no bytes have moved for too long. `progress` is any number that changes when
    /// bytes move.
    fn poll_give_up(&mut self, progress: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.progress != progress {
            self.progress = progress;
            self.give_up.as_mut().reset(Instant::now() + DELIVERY_WAIT_MAX);
        }
        self.give_up.as_mut().poll(cx)
    }
}

/// The bytes that wait for a socket.
struct Delivery<'a> {
    waiting: &'a mut Outgoing,
    socket: &'a StreamSocket,
}

/// Delivers the waiting bytes of both sockets, as far as the sockets accept them in time. The
/// future is boxed, because a connection needs this memory only at its end.
fn deliver<'a>(one: Delivery<'a>, other: Delivery<'a>) -> Pin<Box<impl Future<Output = ()> + 'a>> {
    Box::pin(async move {
        let both = async {
            tokio::join!(one.waiting.deliver(one.socket), other.waiting.deliver(other.socket))
        };
        let _ = tokio::time::timeout(DELIVERY_WAIT_MAX, both).await;
    })
}

/// Returns how many bytes a write has accepted; 0 if the socket is full.
fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if is_passing(&error) => Ok(0),
        other => other,
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Relays the bytes of a connection until it ends. `None`: a handshake that its program requested
/// failed, and its failure was logged and counted.
#[expect(clippy::boxed_local, reason = "every caller already has the `Established` in a `Box`")]
pub fn run(
    lane: &StreamLane,
    established: Box<Established>,
) -> impl Future<Output = Option<Relayed>> {
    meter::switch(Component::Receive);
    // The box is freed here: in the future it would live as long as the connection. The slot on the
    // engine is released, because the relay needs none.
    let Established { connection, relay, slot, .. } = *established;
    drop(slot);
    async move {
        let _held = lane.load.hold_relay();
        let left = match relay {
            RelayKind::Sealed(sealed) => sealed::run(lane, sealed, &connection).await,
            RelayKind::Clear(clear) => clear::run(lane, clear, &connection).await,
            // Boxed, so that other connections need no memory for these futures.
            other => Box::pin(run_any(lane, other, &connection)).await?,
        };
        Some(match left {
            Left::Ended(end) => Relayed::Finished(Finished { connection, end }),
            Left::Leaves { relay, program_cpu } => {
                let leaving = Established { connection, relay, slot: None, program_cpu };
                Relayed::Leaves(Box::new(leaving))
            }
        })
    }
}

/// Relays a connection of any kind, whose future may be large. `None`: as for [`run`].
async fn run_any(lane: &StreamLane, relay: RelayKind, connection: &Connection) -> Option<Left> {
    Some(match relay {
        RelayKind::Sealed(relay) => sealed::run(lane, relay, connection).await,
        RelayKind::Clear(relay) => clear::run(lane, relay, connection).await,
        RelayKind::Starttls(relay) => starttls::run(lane, relay, connection).await,
        RelayKind::Delivery(relay) => Left::Ended(delivery::run(*relay, connection).await),
        RelayKind::Controlled(relay) => {
            Left::Ended(controlled::run(lane, *relay, connection).await?)
        }
        RelayKind::OwnTls(relay) => Left::Ended(own_tls::run(lane, relay, connection).await),
        RelayKind::Waiting(relay) => waiting::run(lane, relay, connection).await,
    })
}

/// Why a relay has stopped.
enum Left {
    /// The connection has ended.
    Ended(ConnectionEnd),
    /// The connection continues on the CPU of its program.
    Leaves { relay: RelayKind, program_cpu: Option<usize> },
}

/// The result of a relay.
#[derive(Debug)]
pub enum Relayed {
    /// The connection has ended.
    Finished(Finished),
    /// The connection continues on another thread. No bytes wait to be written, and both directions
    /// are open.
    Leaves(Box<Established>),
}

/// A connection that has relayed bytes and ended.
#[derive(Debug)]
pub struct Finished {
    /// The connection.
    pub connection: Connection,
    /// How it ended.
    pub end: ConnectionEnd,
}
