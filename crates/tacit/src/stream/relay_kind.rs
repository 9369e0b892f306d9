//! What a connection is once both its sockets are ready, by the kind of its relay.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use tacit_core::starttls::Dialogue;
use tacit_tls::Session;
use tokio::sync::OwnedSemaphorePermit;

use crate::live::LiveTls;
use crate::net::Position;
use crate::net::stream_socket::{DetachedSocket, StreamSocket};
use crate::session::Connection;
use crate::session::controls::Wishes;

/// A connection whose sockets are ready to carry bytes.
#[derive(Debug)]
pub struct Established<L = StreamSocket> {
    /// The connection.
    pub connection: Connection,
    /// How its bytes are relayed.
    pub relay: RelayKind<L>,
    /// Its place on the engine that has set it up.
    pub slot: Option<OwnedSemaphorePermit>,
    /// The CPU of its program, if it leaves its worker for that.
    pub program_cpu: Option<usize>,
}

/// A thread could not take a connection up.
#[derive(Debug)]
pub struct NotWatched {
    /// The connection, if it had its rule.
    pub connection: Option<Connection>,
    /// Why.
    pub error: io::Error,
}

/// The kinds of relay; boxed, because a connection spends its life inside one.
#[derive(Debug)]
pub enum RelayKind<L = StreamSocket> {
    /// One socket in clear, the other TLS.
    Sealed(Box<SealedRelay<L>>),
    /// The same, with a dialogue that goes on under TLS first.
    Starttls(Box<StarttlsRelay<L>>),
    /// Both sockets in clear.
    Clear(Box<ClearRelay<L>>),
    /// Both sockets in clear, and what came early is all that passes.
    Delivery(Box<ClearRelay<L>>),
    /// Both sockets in clear until the program says otherwise.
    Controlled(Box<ControlledRelay<L>>),
    /// The program has begun TLS itself under a rule that does.
    OwnTls(Box<OwnTlsRelay<L>>),
}

/// Sockets of a connection on which a program and tacit both have begun TLS.
#[derive(Debug)]
pub struct OwnTlsRelay<L = StreamSocket> {
    /// The socket towards the program.
    pub program: L,
    /// The socket that has the TLS of the rule.
    pub upstream: L,
    /// That TLS.
    pub session: Session,
    /// What must be written upstream before all else.
    pub waiting: Vec<u8>,
    /// What the program has written.
    pub first: Vec<u8>,
}

/// ConnectionSockets and session of a TLS relay, with what came early.
#[derive(Debug)]
pub struct SealedRelay<L = StreamSocket> {
    /// The socket in clear.
    pub clear: L,
    /// The TLS socket.
    pub tls: L,
    /// Its session.
    pub session: Session,
    /// Records that came with the handshake and were not opened.
    pub incomplete: Vec<u8>,
    /// Records that must go to the TLS peer before all others.
    pub initial: Vec<u8>,
}

/// A relay that is not one yet.
#[derive(Debug)]
pub struct StarttlsRelay<L = StreamSocket> {
    /// What will be relayed.
    pub next: NextRelay<L>,
    /// What is said before.
    pub dialogue: Dialogue,
    /// How connections that belong to this one shake hands, if there can be any.
    pub family: Option<Arc<LiveTls>>,
}

/// What a dialogue is held over.
#[derive(Debug)]
pub enum NextRelay<L = StreamSocket> {
    /// The peer has TLS.
    Sealed(Box<SealedRelay<L>>),
    /// The peer is the downstream socket, in clear too.
    Clear(Box<ClearRelay<L>>),
}

/// ConnectionSockets of a relay in clear, with what came early.
#[derive(Debug)]
pub struct ClearRelay<L = StreamSocket> {
    /// Towards the side that connected.
    pub downstream: L,
    /// Towards the side that was dialled.
    pub upstream: L,
    /// Bytes that came with a PROXY header, for the upstream socket.
    pub initial: Vec<u8>,
}

/// ConnectionSockets of a connection whose program says when TLS begins.
#[derive(Debug)]
pub struct ControlledRelay<L = StreamSocket> {
    /// Both sockets, in clear.
    pub clear: ClearRelay<L>,
    /// The one that gets TLS; the other one leads to the program.
    pub tls_on: Position,
    /// What the program asks for.
    pub wishes: Wishes,
    /// The rule's settings, for when it asks for TLS.
    pub tls: Arc<LiveTls>,
}

impl Established {
    /// Takes it from this thread, for another one.
    #[must_use]
    pub fn park(self) -> Established<DetachedSocket> {
        let Self { connection, relay, slot, program_cpu } = self;
        let Ok(relay) = relay.with_sockets(|socket| Ok::<_, Infallible>(socket.park()));
        Established { connection, relay, slot, program_cpu }
    }
}

impl Established<DetachedSocket> {
    /// Goes on with it on the calling thread.
    ///
    /// # Errors
    /// See [`DetachedSocket::watch`].
    pub fn watch(self) -> Result<Established, NotWatched> {
        let Self { connection, relay, slot, program_cpu } = self;
        match relay.with_sockets(DetachedSocket::watch) {
            Ok(relay) => Ok(Established { connection, relay, slot, program_cpu }),
            Err(error) => Err(NotWatched { connection: Some(connection), error }),
        }
    }
}

impl<L> RelayKind<L> {
    /// The same with both sockets changed alike.
    fn with_sockets<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<RelayKind<M>, E> {
        Ok(match self {
            Self::Sealed(relay) => RelayKind::Sealed(Box::new(relay.with_sockets(change)?)),
            Self::Starttls(relay) => {
                let StarttlsRelay { next, dialogue, family } = *relay;
                let next = match next {
                    NextRelay::Sealed(relay) => {
                        NextRelay::Sealed(Box::new(relay.with_sockets(change)?))
                    }
                    NextRelay::Clear(relay) => {
                        NextRelay::Clear(Box::new(relay.with_sockets(change)?))
                    }
                };
                RelayKind::Starttls(Box::new(StarttlsRelay { next, dialogue, family }))
            }
            Self::Controlled(relay) => {
                let ControlledRelay { clear, tls_on, wishes, tls } = *relay;
                let clear = clear.with_sockets(change)?;
                RelayKind::Controlled(Box::new(ControlledRelay { clear, tls_on, wishes, tls }))
            }
            Self::Clear(relay) => RelayKind::Clear(Box::new(relay.with_sockets(change)?)),
            Self::Delivery(relay) => RelayKind::Delivery(Box::new(relay.with_sockets(change)?)),
            Self::OwnTls(relay) => {
                let OwnTlsRelay { program, upstream, session, waiting, first } = *relay;
                let program = change(program)?;
                let upstream = change(upstream)?;
                RelayKind::OwnTls(Box::new(OwnTlsRelay {
                    program,
                    upstream,
                    session,
                    waiting,
                    first,
                }))
            }
        })
    }
}

impl<L> SealedRelay<L> {
    fn with_sockets<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<SealedRelay<M>, E> {
        let Self { clear, tls, session, incomplete, initial } = self;
        let clear = change(clear)?;
        let tls = change(tls)?;
        Ok(SealedRelay { clear, tls, session, incomplete, initial })
    }
}

impl<L> ClearRelay<L> {
    fn with_sockets<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<ClearRelay<M>, E> {
        let Self { downstream, upstream, initial } = self;
        let downstream = change(downstream)?;
        let upstream = change(upstream)?;
        Ok(ClearRelay { downstream, upstream, initial })
    }
}
