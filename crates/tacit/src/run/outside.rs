//! Opens the sockets of a run for traffic to other hosts. The sockets belong to the network of the
//! agent, or to the network at the other side of a link.
//!
//! ```text
//!   Outside::Host ── socket, connect ─────────> kernel of the agent
//!   Outside::Link ── request ──> tacit link serve ── socket, connect ──> kernel of the other side
//!                 <── the socket itself, or the error of `connect`
//! ```
//!
//! A socket from a link is an ordinary socket. So the agent uses this socket like a socket of its
//! own host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::dns::{Query, ResponseCode, address_answer, asked_address, name_answer};
use tacit_sys::datagram::{self, AnswerSources};
use tacit_sys::socket::{self, SocketAddress, StreamOptions};

use super::link::client::LinkClient;
use super::link::protocol::{LinkWelcome, ListenOrder, OpenKind};
use crate::net::Security;
use crate::net::route::source_towards;
use crate::net::stream_socket::StreamSocket;

/// How long the other side of a link may take to bind an address: nothing is sent for that.
const BIND_WAIT_MAX: Duration = Duration::from_secs(3);

/// Where the sockets of a run are opened.
#[derive(Clone, Debug)]
pub enum Outside {
    /// In the network of the agent.
    Host,
    /// On the other side of a link.
    Link(Arc<LinkClient>),
}

impl Outside {
    /// Connects a TCP socket.
    ///
    /// # Errors
    /// The error of `connect`, of either kernel; `ConnectionRefused` if the other side of the link
    /// refuses the socket.
    pub async fn dial(
        &self,
        to: &SocketAddress,
        options: &StreamOptions,
        security: Security,
    ) -> io::Result<StreamSocket> {
        let options = options.for_address(to);
        match self {
            Self::Host => {
                let dialled = socket::dial(to, &options)?;
                let socket = StreamSocket::new(dialled.socket, security)?;
                if !dialled.is_connected {
                    socket.wait_connected().await?;
                }
                Ok(socket)
            }
            Self::Link(link) => {
                let to = SocketAddr::try_from(to.clone())?;
                let socket = link.socket(OpenKind::Connected, to).await?;
                socket::adopt(socket.as_fd(), &options)?;
                StreamSocket::new(socket, security)
            }
        }
    }

    /// Binds a TCP socket, on which clients can connect as soon as it listens.
    ///
    /// # Errors
    /// The error of `bind`, of either kernel; `ConnectionRefused` if the other side of the link
    /// refuses the socket.
    pub async fn reserve(
        &self,
        at: &SocketAddress,
        options: &StreamOptions,
    ) -> io::Result<OwnedFd> {
        let options = options.for_address(at);
        match self {
            Self::Host => socket::reserve(at, &options),
            Self::Link(link) => {
                let at = SocketAddr::try_from(at.clone())?;
                let bound = tokio::time::timeout(BIND_WAIT_MAX, link.socket(OpenKind::Bound, at));
                let socket = bound.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
                socket::adopt(socket.as_fd(), &options)?;
                Ok(socket)
            }
        }
    }

    /// Listens at an address, or at any port of it.
    ///
    /// # Errors
    /// As [`Self::reserve`], or the error of `listen`.
    pub async fn listen(&self, at: SocketAddr, options: &StreamOptions) -> io::Result<OwnedFd> {
        let address = SocketAddress::from(at);
        match self {
            Self::Host => socket::listen(&address, &options.for_address(&address)),
            Self::Link(link) => {
                let socket = self.reserve(&address, options).await?;
                let bound = socket::local_address(socket.as_fd())?;
                let listening = match socket::resume_listening(socket.as_fd()) {
                    Ok(()) => self.set_listening(&bound, ListenOrder::Listen).await,
                    Err(error) => Err(error),
                };
                link.forget_bound(SocketAddr::try_from(bound)?).await;
                listening.map(|()| socket)
            }
        }
    }

    /// Waits until clients no longer arrive at sockets of [`Self::reserve`].
    pub async fn must_rebind(&self) {
        match self {
            Self::Host => std::future::pending().await,
            Self::Link(link) => link.must_rebind().await,
        }
    }

    /// Whether sockets of [`Self::reserve`] get clients only as long as the agent that has bound
    /// them uses the link.
    #[must_use]
    pub fn binds_for_agent(&self) -> bool {
        matches!(self, Self::Link(link) if link.offer().remote)
    }

    /// Makes [`Self::must_rebind`] return, if sockets are bound for this agent.
    pub fn rebind_soon(&self) {
        if let Self::Link(link) = self
            && self.binds_for_agent()
        {
            link.rebind_soon();
        }
    }

    /// Makes [`Self::must_rebind`] return once more after a pause.
    pub fn rebind_later(&self) {
        if let Self::Link(link) = self {
            link.rebind_later();
        }
    }

    /// Clients arrive at a socket of [`Self::reserve`] as long as this number stays the same.
    #[must_use]
    pub fn generation(&self) -> u64 {
        match self {
            Self::Host => 0,
            Self::Link(link) => link.generation(),
        }
    }

    /// Called when a socket of [`Self::reserve`] has begun or ended to listen.
    ///
    /// # Errors
    /// The other side of the link does not listen at the address.
    pub async fn set_listening(&self, at: &SocketAddress, order: ListenOrder) -> io::Result<()> {
        match self {
            Self::Host => Ok(()),
            Self::Link(link) => {
                let at = SocketAddr::try_from(at.clone())?;
                let set = tokio::time::timeout(BIND_WAIT_MAX, link.set_listening(at, order));
                set.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }

    /// Opens a UDP socket that is not connected, for one destination.
    ///
    /// # Errors
    /// See [`Self::dial`].
    pub async fn datagrams(&self, to: SocketAddr, sources: AnswerSources) -> io::Result<OwnedFd> {
        match self {
            Self::Host => datagram::dial_unconnected(to, sources),
            Self::Link(link) => {
                let kind = match sources {
                    AnswerSources::Destination => OpenKind::DatagramsOfHost,
                    AnswerSources::Any => OpenKind::DatagramsOfAll,
                };
                link.socket(kind, to).await
            }
        }
    }

    /// The number of the network namespace of the link's sockets that programs connect themselves;
    /// `None` without a link, or if programs get none of it.
    #[must_use]
    pub fn handed_namespace(&self) -> Option<u64> {
        match self {
            Self::Host => None,
            Self::Link(link) => link.handed_namespace(),
        }
    }

    /// Whether connections of the run stay open after its end, until programs close them.
    #[must_use]
    pub fn outlives_run(&self) -> bool {
        match self {
            Self::Host => false,
            Self::Link(link) => link.offer().share,
        }
    }

    /// Reports that the run has ended, if its connections stay open.
    pub fn report_run_end(&self) {
        if let Self::Link(link) = self
            && self.outlives_run()
        {
            link.report_end();
        }
    }

    /// The link, if there is one.
    #[must_use]
    pub fn link(&self) -> Option<&LinkClient> {
        match self {
            Self::Host => None,
            Self::Link(link) => Some(link),
        }
    }

    /// The socket of the link, at which a program could evade the policy of its run.
    #[must_use]
    pub fn link_path(&self) -> Option<PathBuf> {
        match self {
            Self::Host => None,
            Self::Link(link) => Some(link.path().to_owned()),
        }
    }

    /// Whether packets to the address have a route. Of a link only the address family is known.
    #[must_use]
    pub fn has_route(&self, address: IpAddr) -> bool {
        match self {
            Self::Host => is_routable(address),
            Self::Link(link) => link.offer().reaches(address),
        }
    }

    /// The answer to a query for the host name of the other side of a link, or for the name of one
    /// of its addresses; `None` if the query has another name or type.
    #[must_use]
    pub fn host_answer(&self, query: &Query) -> Option<Vec<u8>> {
        let Self::Link(link) = self else { return None };
        let LinkWelcome { host, addresses, .. } = link.offer();
        // Such a name leads every program to its own host.
        if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
            return None;
        }
        let empty = query.refused(ResponseCode::NoRecords);
        match asked_address(&query.question) {
            Some(address) if addresses.contains(&address) => name_answer(&empty, host),
            Some(_) => None,
            None if query.question.name.eq_ignore_ascii_case(host) => {
                address_answer(&empty, addresses)
            }
            None => None,
        }
    }

    /// The resolvers of the other side; `None`: those of this host.
    #[must_use]
    pub fn resolvers(&self) -> Option<&[SocketAddr]> {
        match self {
            Self::Host => None,
            Self::Link(link) => Some(&link.offer().resolvers),
        }
    }
}

/// Whether the host has a route.
pub(crate) fn is_routable(address: IpAddr) -> bool {
    source_towards(address).is_some()
}
