//! The values that one stage of a connection returns for the next stage, and that an engine hands
//! over to a worker.

use std::io;
use std::sync::Arc;

use tacit_core::flow::Flow;
use tokio::sync::OwnedSemaphorePermit;

use crate::dns::Forwarder;
use crate::ledger::meter::Ticks;
use crate::net::Accepted;
use crate::net::stream_socket::{DetachedSocket, StreamSocket};
use crate::run::Scope;
use crate::run::hold::HeldSyn;
use crate::session::{Connection, ConnectionRecord};
use tacit_core::flow::Address;

use super::data::PendingDataConnection;
use super::relay_kind::{Established, NotWatched};

/// How far a connection is. An engine hands a connection over to a worker in one of these stages.
#[derive(Debug)]
pub enum Stage<L = StreamSocket> {
    /// It has arrived.
    Arrived(Box<Arrival<L>>),
    /// Its control connection has agreed on it; it is not accepted yet.
    PendingData(Box<PendingDataConnection>),
    /// It has its rule.
    Admitted(Box<Admitted<L>>),
    /// Both sockets are connected, and the handshake is complete.
    Established(Box<Established<L>>),
}

/// The side that connects.
#[derive(Debug)]
pub enum Downstream<L = StreamSocket> {
    /// It is connected to this socket.
    Accepted(L),
    /// It waits until its destination has answered.
    Held(Box<HeldSyn>),
}

/// A connection that has arrived.
#[derive(Debug)]
pub struct Arrival<L = StreamSocket> {
    /// The side that connects.
    pub downstream: Downstream<L>,
    /// What rules see of it.
    pub flow: Flow,
    /// Where it was captured; `None`: it came to a forwarding rule.
    pub scope: Option<Scope>,
    /// Counts it among the open connections.
    pub permit: OwnedSemaphorePermit,
    /// What a PROXY header said.
    pub claim: Option<Box<Claim>>,
    /// What it took to accept it.
    pub spent: Ticks,
    /// Its place on the engine that sets it up.
    pub slot: Slot,
}

/// A place among the connections that an engine sets up; none on a data worker.
pub type Slot = Option<OwnedSemaphorePermit>;

/// What a proxy says of a connection. The flow's remote end is then the client it names.
#[derive(Debug)]
pub struct Claim {
    /// The proxy; the client is the flow's remote end.
    pub proxy: Address,
    /// Where the client connected to; `None`: the proxy speaks for itself.
    pub target: Option<Address>,
    /// Bytes that came after the header.
    pub early: Vec<u8>,
}

/// A connection that has its rule.
#[derive(Debug)]
pub struct Admitted<L = StreamSocket> {
    /// The connection.
    pub connection: Connection,
    /// The side that connects.
    pub downstream: Downstream<L>,
    /// What came with a PROXY header.
    pub early: Option<Box<[u8]>>,
    /// What its control connection agreed on, for a data connection.
    pub pending: Option<Box<PendingDataConnection>>,
    /// Its place on the engine that sets it up.
    pub slot: Slot,
}

/// What one thread gives to another: work that has arrived there or was begun there.
#[derive(Debug)]
pub enum Work {
    /// A question to a run's name service; the worker that gets it answers.
    Question {
        /// The connection that it comes on.
        accepted: Accepted,
        /// Answers it.
        names: Arc<Forwarder>,
    },
    /// A connection.
    Connection(Stage<DetachedSocket>),
}

impl Work {
    /// The CPU of the worker that should continue it; `None`: any.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        match self {
            Self::Question { names, .. } => names.run().cpu(),
            Self::Connection(stage) => {
                stage.program_cpu().or_else(|| stage.scope().and_then(Scope::cpu))
            }
        }
    }
}

impl<L> Stage<L> {
    /// What displays see of it, once it has its rule.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<ConnectionRecord>> {
        match self {
            Self::Arrived(_) | Self::PendingData(_) => None,
            Self::Admitted(admitted) => Some(admitted.connection.record()),
            Self::Established(established) => Some(established.connection.record()),
        }
    }

    fn scope(&self) -> Option<&Scope> {
        let record = match self {
            Self::Arrived(arrival) => return arrival.scope.as_ref(),
            Self::PendingData(pending) => &pending.parent,
            Self::Admitted(_) | Self::Established(_) => self.record()?,
        };
        record.scope.as_ref().map(|facts| &facts.scope)
    }
}

impl<L> Stage<L> {
    /// The CPU of its program, if the connection leaves its worker for that.
    fn program_cpu(&self) -> Option<usize> {
        match self {
            Self::Established(established) => established.program_cpu,
            Self::Arrived(_) | Self::PendingData(_) | Self::Admitted(_) => None,
        }
    }

    /// Takes out its place on the engine that has set it up.
    pub fn take_slot(&mut self) -> Slot {
        match self {
            Self::Arrived(arrival) => arrival.slot.take(),
            Self::PendingData(_) => None,
            Self::Admitted(admitted) => admitted.slot.take(),
            Self::Established(established) => established.slot.take(),
        }
    }
}

impl Stage {
    /// Takes it from this thread, for another one.
    #[must_use]
    pub fn park(self) -> Stage<DetachedSocket> {
        match self {
            Self::Arrived(arrival) => Stage::Arrived(Box::new(arrival.park())),
            Self::PendingData(pending) => Stage::PendingData(pending),
            Self::Admitted(admitted) => Stage::Admitted(Box::new(admitted.park())),
            Self::Established(established) => Stage::Established(Box::new(established.park())),
        }
    }
}

impl Stage<DetachedSocket> {
    /// Continues with it on the calling thread.
    ///
    /// # Errors
    /// See [`DetachedSocket::watch`].
    pub fn watch(self) -> Result<Stage, NotWatched> {
        Ok(match self {
            Self::Arrived(arrival) => {
                let watched = arrival.watch();
                let arrival = watched.map_err(|error| NotWatched { connection: None, error })?;
                Stage::Arrived(Box::new(arrival))
            }
            Self::PendingData(pending) => Stage::PendingData(pending),
            Self::Admitted(admitted) => Stage::Admitted(Box::new(admitted.watch()?)),
            Self::Established(established) => Stage::Established(Box::new(established.watch()?)),
        })
    }
}

impl Downstream {
    fn park(self) -> Downstream<DetachedSocket> {
        match self {
            Self::Accepted(socket) => Downstream::Accepted(socket.park()),
            Self::Held(held) => Downstream::Held(held),
        }
    }
}

impl Downstream<DetachedSocket> {
    fn watch(self) -> io::Result<Downstream> {
        Ok(match self {
            Self::Accepted(socket) => Downstream::Accepted(socket.watch()?),
            Self::Held(held) => Downstream::Held(held),
        })
    }
}

impl Arrival {
    fn park(self) -> Arrival<DetachedSocket> {
        let Self { downstream, flow, scope, permit, claim, spent, slot } = self;
        Arrival { downstream: downstream.park(), flow, scope, permit, claim, spent, slot }
    }
}

impl Arrival<DetachedSocket> {
    fn watch(self) -> io::Result<Arrival> {
        let Self { downstream, flow, scope, permit, claim, spent, slot } = self;
        let downstream = downstream.watch()?;
        Ok(Arrival { downstream, flow, scope, permit, claim, spent, slot })
    }
}

impl Admitted {
    fn park(self) -> Admitted<DetachedSocket> {
        let Self { connection, downstream, early, pending, slot } = self;
        Admitted { connection, downstream: downstream.park(), early, pending, slot }
    }
}

impl Admitted<DetachedSocket> {
    fn watch(self) -> Result<Admitted, NotWatched> {
        let Self { connection, downstream, early, pending, slot } = self;
        match downstream.watch() {
            Ok(downstream) => Ok(Admitted { connection, downstream, early, pending, slot }),
            Err(error) => Err(NotWatched { connection: Some(connection), error }),
        }
    }
}
