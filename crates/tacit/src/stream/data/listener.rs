//! Waits for one FTP data connection and accepts it.
//!
//! ```text
//!   network side   a listening socket that accepts only the peer of the control connection
//!   program side   an address in the run's network namespace; the kernel captures connections to
//!                  this address until the program has connected
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_sys::socket::{self, AcceptedSocket, StreamOptions};
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::address;
use crate::net::stream_socket::StreamSocket;
use crate::net::{Accepted, Security};
use crate::run::{Expected, Outside, Run};

/// Accepts one data connection.
#[derive(Debug)]
pub enum DataListener {
    /// A listening socket on the host, or on the other side of the run's link.
    Outside {
        /// The socket.
        socket: Arc<OwnedFd>,
        /// The only address that may connect.
        from: IpAddr,
    },
    /// An address that a program of a run connects to.
    Inside(Expected),
    /// Accepts no connection any more.
    Closed,
}

/// A listener that is open.
#[derive(Debug)]
pub struct OpenListener {
    /// The port that it listens on.
    pub port: u16,
    /// The listener.
    pub listener: DataListener,
}

impl DataListener {
    /// Listens on one of the ports, or on any port if the list is empty.
    ///
    /// # Errors
    /// No port is free; the text is for the log.
    pub async fn outside(
        network: &Outside,
        ip: IpAddr,
        ports: &[RangeInclusive<u16>],
        from: IpAddr,
        options: &StreamOptions,
    ) -> Result<OpenListener, String> {
        let listen = async |port| network.listen(SocketAddr::new(ip, port), options).await;
        let socket = match ports {
            [] => listen(0).await.map_err(|error| format!("cannot listen on {ip}: {error}"))?,
            ports => {
                let mut found = Err(format!(
                    "all ports of `data-ports` are in use on {ip}: add ports to `data-ports`"
                ));
                for port in ports.iter().cloned().flatten() {
                    match listen(port).await {
                        Ok(socket) => {
                            found = Ok(socket);
                            break;
                        }
                        // Rules of the other side of a link may permit none of the ports.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                            found = Err(format!("cannot listen on {ip}: {error}"));
                        }
                        Err(_) => {}
                    }
                }
                found?
            }
        };
        let address = socket::local_address(socket.as_fd()).map_err(|error| error.to_string())?;
        let port = address::from_socket(&address).port().unwrap_or_default();
        Ok(OpenListener { port, listener: Self::Outside { socket: Arc::new(socket), from } })
    }

    /// Captures the next connection of a run's program to that address.
    ///
    /// # Errors
    /// It cannot be captured; the text is for the log.
    pub async fn inside(run: &Arc<Run>, address: SocketAddr) -> Result<Self, String> {
        let expected = run.expect(address).await.map_err(|error| {
            format!("cannot capture the run's FTP data connection to {address}: {error}")
        })?;
        Ok(Self::Inside(expected))
    }

    /// Waits for the connection.
    ///
    /// # Errors
    /// The socket cannot be watched, or the listener is closed.
    pub async fn wait(&mut self, places: &Arc<Semaphore>) -> io::Result<Accepted<StreamSocket>> {
        match self {
            Self::Outside { socket, from } => {
                let permit = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
                accept(socket, *from, permit).await
            }
            Self::Inside(expected) => expected.arrive().await?.watch(),
            Self::Closed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Stops listening.
    pub async fn close(&mut self) {
        if let Self::Inside(expected) = std::mem::replace(self, Self::Closed) {
            expected.end().await;
        }
    }
}

/// Accepts the first connection from an address; others are closed (RFC 2577 section 5).
async fn accept(
    socket: &Arc<OwnedFd>,
    from: IpAddr,
    permit: OwnedSemaphorePermit,
) -> io::Result<Accepted<StreamSocket>> {
    let watched = watch(Arc::clone(socket), Interest::READABLE)?;
    loop {
        let mut ready = watched.readable().await?;
        match socket::accept(socket.as_fd()) {
            Ok(AcceptedSocket { socket: accepted, peer }) => {
                let remote = peer.as_ref().map_or(Address::Unnamed, address::from_socket);
                if remote.ip() == Some(from) {
                    let local = address::from_socket(&socket::local_address(accepted.as_fd())?);
                    // The actual security is set when the connection is admitted.
                    let socket = StreamSocket::new(accepted, Security::Tls)?;
                    return Ok(Accepted { socket, local, remote, permit });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            // The error concerns only this connection.
            Err(_) => {}
        }
    }
}
