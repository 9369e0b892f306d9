//! Defines the kinds of relay, for example a relay in clear or a relay with TLS. A value of each
//! kind contains the two sockets of its connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use tacit_core::starttls::StarttlsExchange;
use tacit_tls::Session;
use tokio::sync::OwnedSemaphorePermit;

use crate::live::LiveTls;
use crate::net::Position;
use crate::net::stream_socket::{DetachedSocket, StreamSocket};
use crate::session::Connection;
use crate::session::tls_control::TlsRequests;

/// A connection with both sockets ready to relay bytes.
#[derive(Debug)]
pub struct Established<L = StreamSocket> {
    /// The connection.
    pub connection: Connection,
    /// The kind of its relay, with sockets and state.
    pub relay: RelayKind<L>,
    /// The slot on the engine that has set it up.
    pub slot: Option<OwnedSemaphorePermit>,
    /// The CPU of its program, if it moves to the worker there.
    pub program_cpu: Option<usize>,
}

/// The error of a thread that cannot watch the sockets of a connection.
#[derive(Debug)]
pub struct NotWatched {
    /// The connection, if it had its rule.
    pub connection: Option<Connection>,
    /// The error of the kernel.
    pub error: io::Error,
}

/// The kinds of relay. Each is boxed to keep the future of a connection small.
#[derive(Debug)]
pub enum RelayKind<L = StreamSocket> {
    /// One socket is in clear, and the other has TLS.
    Sealed(Box<SealedRelay<L>>),
    /// A STARTTLS exchange that must be followed, and then another relay.
    Starttls(Box<StarttlsRelay<L>>),
    /// Both sockets in clear.
    Clear(Box<ClearRelay<L>>),
    /// Both sockets in clear, and only the bytes that were read already are sent.
    Delivery(Box<ClearRelay<L>>),
    /// Both sockets in clear until the program requests TLS.
    Controlled(Box<ControlledRelay<L>>),
    /// The program itself has started TLS, under a TLS rule.
    OwnTls(Box<OwnTlsRelay<L>>),
    /// The first message starts the program.
    Waiting(Box<WaitingRelay<L>>),
}

/// A connection that gets its program when its first message arrives. It has one socket.
#[derive(Debug)]
pub struct WaitingRelay<L = StreamSocket> {
    /// The accepted socket.
    pub downstream: L,
    /// The TLS of this socket.
    pub tls: Option<WaitingTls>,
    /// Bytes that arrived together with a PROXY header, for the program.
    pub initial: Vec<u8>,
}

/// The TLS session of a connection that waits for its first message.
#[derive(Debug)]
pub struct WaitingTls {
    /// The session.
    pub session: Session,
    /// Records that arrived together with the handshake and are not opened yet.
    pub incomplete: Vec<u8>,
    /// Records that must be sent to the TLS peer first.
    pub initial: Vec<u8>,
}

/// A connection on which both the program and tacit have started TLS.
#[derive(Debug)]
pub struct OwnTlsRelay<L = StreamSocket> {
    /// The program-side socket.
    pub program: L,
    /// The socket with the TLS of the rule.
    pub upstream: L,
    /// The TLS session of the rule.
    pub session: Session,
    /// Bytes that must be written upstream first.
    pub waiting: Vec<u8>,
    /// The bytes that the program has written.
    pub first: Vec<u8>,
}

/// The sockets and the session of a TLS relay, with bytes that were received already.
#[derive(Debug)]
pub struct SealedRelay<L = StreamSocket> {
    /// The socket in clear.
    pub clear: L,
    /// The TLS socket.
    pub tls: L,
    /// Its session.
    pub session: Session,
    /// Records that arrived together with the handshake and are not opened yet.
    pub incomplete: Vec<u8>,
    /// Records that must be sent to the TLS peer first.
    pub initial: Vec<u8>,
}

/// A STARTTLS exchange, with the relay that follows it.
#[derive(Debug)]
pub struct StarttlsRelay<L = StreamSocket> {
    /// The relay that follows.
    pub next: NextRelay<L>,
    /// The exchange.
    pub exchange: StarttlsExchange,
    /// The TLS settings of its data connections, if it can have any.
    pub data_tls: Option<Arc<LiveTls>>,
}

/// The relay after a STARTTLS exchange.
#[derive(Debug)]
pub enum NextRelay<L = StreamSocket> {
    /// The peer has TLS.
    Sealed(Box<SealedRelay<L>>),
    /// The peer is the downstream socket, in clear too.
    Clear(Box<ClearRelay<L>>),
}

/// The sockets of a relay in clear, with bytes that were received already.
#[derive(Debug)]
pub struct ClearRelay<L = StreamSocket> {
    /// The accepted socket.
    pub downstream: L,
    /// The connected socket.
    pub upstream: L,
    /// Bytes that arrived together with a PROXY header, for the upstream socket.
    pub initial: Vec<u8>,
}

/// The sockets of a connection whose program decides when TLS begins.
#[derive(Debug)]
pub struct ControlledRelay<L = StreamSocket> {
    /// Both sockets, in clear.
    pub clear: ClearRelay<L>,
    /// The position of the socket with TLS; the other socket is the program's.
    pub tls_on: Position,
    /// The program's requests.
    pub requests: TlsRequests,
    /// The rule's TLS settings.
    pub tls: Arc<LiveTls>,
}

impl Established {
    /// Detaches it from the runtime of this thread, for another thread.
    #[must_use]
    pub fn park(self) -> Established<DetachedSocket> {
        let Self { connection, relay, slot, program_cpu } = self;
        let Ok(relay) = relay.with_sockets(|socket| Ok::<_, Infallible>(socket.park()));
        Established { connection, relay, slot, program_cpu }
    }
}

impl Established<DetachedSocket> {
    /// Attaches it to the runtime of the calling thread.
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
    /// Applies a function to both sockets.
    fn with_sockets<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<RelayKind<M>, E> {
        Ok(match self {
            Self::Sealed(relay) => RelayKind::Sealed(Box::new(relay.with_sockets(change)?)),
            Self::Starttls(relay) => {
                let StarttlsRelay { next, exchange, data_tls } = *relay;
                let next = match next {
                    NextRelay::Sealed(relay) => {
                        NextRelay::Sealed(Box::new(relay.with_sockets(change)?))
                    }
                    NextRelay::Clear(relay) => {
                        NextRelay::Clear(Box::new(relay.with_sockets(change)?))
                    }
                };
                RelayKind::Starttls(Box::new(StarttlsRelay { next, exchange, data_tls }))
            }
            Self::Controlled(relay) => {
                let ControlledRelay { clear, tls_on, requests, tls } = *relay;
                let clear = clear.with_sockets(change)?;
                RelayKind::Controlled(Box::new(ControlledRelay { clear, tls_on, requests, tls }))
            }
            Self::Clear(relay) => RelayKind::Clear(Box::new(relay.with_sockets(change)?)),
            Self::Delivery(relay) => RelayKind::Delivery(Box::new(relay.with_sockets(change)?)),
            Self::Waiting(relay) => {
                let WaitingRelay { downstream, tls, initial } = *relay;
                let downstream = change(downstream)?;
                RelayKind::Waiting(Box::new(WaitingRelay { downstream, tls, initial }))
            }
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
