//! Defines the values that the stages of a connection pass to each other. The agent serves each
//! connection in these stages, one after the other.

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

/// The stage that a connection has reached. An engine can hand it over to a worker in each of them.
#[derive(Debug)]
pub enum Stage<L = StreamSocket> {
    /// The connection was accepted, or its SYN is held.
    Accepted(Box<AcceptedConnection<L>>),
    /// An FTP data connection that was announced and is not accepted yet.
    PendingData(Box<PendingDataConnection>),
    /// The connection has its rule.
    Admitted(Box<Admitted<L>>),
    /// Both sockets are connected, and the handshake is complete.
    Established(Box<Established<L>>),
}

/// The downstream side of a connection.
#[derive(Debug)]
pub enum Downstream<L = StreamSocket> {
    /// An accepted socket.
    Accepted(L),
    /// A held SYN, whose socket is accepted when the destination has answered.
    Held(Box<HeldSyn>),
}

/// A connection that has no rule yet.
#[derive(Debug)]
pub struct AcceptedConnection<L = StreamSocket> {
    /// The downstream side.
    pub downstream: Downstream<L>,
    /// The flow, which rules match.
    pub flow: Flow,
    /// The scope that captured it; `None` for a forwarding rule.
    pub scope: Option<Scope>,
    /// The permit from the limit of connections.
    pub permit: OwnedSemaphorePermit,
    /// The addresses of a PROXY header.
    pub claim: Option<Box<Claim>>,
    /// The CPU time that accepting it has taken.
    pub usage: Ticks,
    /// The slot on the engine that sets it up.
    pub slot: Slot,
}

/// One of the slots for connections that an engine sets up at the same time; `None` on a data
/// worker.
pub type Slot = Option<OwnedSemaphorePermit>;

/// The content of a PROXY header. The remote address of the flow is then the client's.
#[derive(Debug)]
pub struct Claim {
    /// The address of the proxy.
    pub proxy: Address,
    /// The address that the client connected to; `None` for a connection of the proxy itself.
    pub target: Option<Address>,
    /// Bytes that arrived after the header.
    pub early: Vec<u8>,
}

/// A connection that has its rule.
#[derive(Debug)]
pub struct Admitted<L = StreamSocket> {
    /// The connection.
    pub connection: Connection,
    /// The downstream side.
    pub downstream: Downstream<L>,
    /// Bytes that arrived together with a PROXY header.
    pub early: Option<Box<[u8]>>,
    /// The announcement of its control connection, for an FTP data connection.
    pub pending: Option<Box<PendingDataConnection>>,
    /// The slot on the engine that sets it up.
    pub slot: Slot,
}

/// Work that one thread hands over to another.
#[derive(Debug)]
pub enum Work {
    /// A connection with DNS queries of a run, which the worker answers.
    Question {
        /// The connection.
        accepted: Accepted,
        /// The name service of the run.
        names: Arc<Forwarder>,
    },
    /// A connection.
    Connection(Stage<DetachedSocket>),
}

impl Work {
    /// The CPU whose worker should continue it; `None` for any worker.
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
    /// The record, if the connection has its rule.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<ConnectionRecord>> {
        match self {
            Self::Accepted(_) | Self::PendingData(_) => None,
            Self::Admitted(admitted) => Some(admitted.connection.record()),
            Self::Established(established) => Some(established.connection.record()),
        }
    }

    fn scope(&self) -> Option<&Scope> {
        let record = match self {
            Self::Accepted(accepted) => return accepted.scope.as_ref(),
            Self::PendingData(pending) => &pending.parent,
            Self::Admitted(_) | Self::Established(_) => self.record()?,
        };
        record.scope.as_ref().map(|facts| &facts.scope)
    }
}

impl<L> Stage<L> {
    /// The CPU of its program, if the connection moves to the worker there.
    fn program_cpu(&self) -> Option<usize> {
        match self {
            Self::Established(established) => established.program_cpu,
            Self::Accepted(_) | Self::PendingData(_) | Self::Admitted(_) => None,
        }
    }

    /// Removes and returns the slot on the engine that has set it up.
    pub fn take_slot(&mut self) -> Slot {
        match self {
            Self::Accepted(accepted) => accepted.slot.take(),
            Self::PendingData(_) => None,
            Self::Admitted(admitted) => admitted.slot.take(),
            Self::Established(established) => established.slot.take(),
        }
    }
}

impl Stage {
    /// Detaches it from the runtime of this thread, for another one.
    #[must_use]
    pub fn park(self) -> Stage<DetachedSocket> {
        match self {
            Self::Accepted(accepted) => Stage::Accepted(Box::new(accepted.park())),
            Self::PendingData(pending) => Stage::PendingData(pending),
            Self::Admitted(admitted) => Stage::Admitted(Box::new(admitted.park())),
            Self::Established(established) => Stage::Established(Box::new(established.park())),
        }
    }
}

impl Stage<DetachedSocket> {
    /// Attaches it to the runtime of the calling thread.
    ///
    /// # Errors
    /// See [`DetachedSocket::watch`].
    pub fn watch(self) -> Result<Stage, NotWatched> {
        Ok(match self {
            Self::Accepted(accepted) => {
                let watched = accepted.watch();
                let accepted = watched.map_err(|error| NotWatched { connection: None, error })?;
                Stage::Accepted(Box::new(accepted))
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

impl AcceptedConnection {
    fn park(self) -> AcceptedConnection<DetachedSocket> {
        let Self { downstream, flow, scope, permit, claim, usage, slot } = self;
        AcceptedConnection {
            downstream: downstream.park(),
            flow,
            scope,
            permit,
            claim,
            usage,
            slot,
        }
    }
}

impl AcceptedConnection<DetachedSocket> {
    fn watch(self) -> io::Result<AcceptedConnection> {
        let Self { downstream, flow, scope, permit, claim, usage, slot } = self;
        let downstream = downstream.watch()?;
        Ok(AcceptedConnection { downstream, flow, scope, permit, claim, usage, slot })
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
