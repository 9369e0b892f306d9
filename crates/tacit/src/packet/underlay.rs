//! Defines [`UdpUnderlay`]: the UDP sockets between this host and its peers, one for each IP
//! version.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use tacit_ipsec::esp::{KEEPALIVE, NON_ESP_MARKER};
use tacit_sys::datagram_batch::{BatchSocket, DatagramBatch, ReceiveQueue, is_too_big};

/// The sockets that ESP, IKE and keepalives share.
#[derive(Debug)]
pub struct UdpUnderlay {
    sockets: Vec<BatchSocket>,
}

impl UdpUnderlay {
    /// Opens a socket at each of these addresses, at most one for each IP version.
    ///
    /// # Errors
    /// Two addresses have the same IP version, or the error of a system call.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let sockets = addresses.iter().map(|address| BatchSocket::bind(*address));
        Self::new(sockets.collect::<io::Result<_>>()?)
    }

    /// Takes bound UDP sockets, at most one for each IP version.
    ///
    /// # Errors
    /// The same as [`Self::bind`], or a descriptor is not a UDP socket.
    pub fn from_sockets(sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let sockets = sockets.into_iter().map(BatchSocket::from_socket);
        Self::new(sockets.collect::<io::Result<_>>()?)
    }

    fn new(sockets: Vec<BatchSocket>) -> io::Result<Self> {
        let underlay = Self { sockets };
        let addresses = underlay.local_addresses()?;
        let of_v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
        if addresses.is_empty() || of_v4 > 1 || addresses.len() - of_v4 > 1 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(underlay)
    }

    /// Returns the addresses of the sockets.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(BatchSocket::local_address).collect()
    }

    /// Returns the sum of the receive queues.
    pub(super) fn receive_queue(&self) -> ReceiveQueue {
        let queues = self.sockets.iter().filter_map(|socket| socket.receive_queue().ok());
        queues.fold(ReceiveQueue::default(), |sum, one| ReceiveQueue {
            bytes: sum.bytes + one.bytes,
            bytes_max: sum.bytes_max + one.bytes_max,
            drops: sum.drops + one.drops,
        })
    }

    pub(super) fn sockets(&self) -> &[BatchSocket] {
        &self.sockets
    }

    /// Returns the socket for a peer.
    pub(super) fn socket_for(&self, peer: SocketAddr) -> io::Result<&BatchSocket> {
        let is_same = |socket: &&BatchSocket| socket.is_for(peer.ip());
        self.sockets.iter().find(is_same).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Sends an IKE message behind the non-ESP marker. It may be fragmented.
    pub(super) fn send_ike(&self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_one(&[&NON_ESP_MARKER, message].concat(), to)
    }

    pub(super) fn send_keepalive(&self, to: SocketAddr) -> io::Result<()> {
        self.send_one(&KEEPALIVE, to)
    }

    fn send_one(&self, payloads: &[u8], to: SocketAddr) -> io::Result<()> {
        let socket = self.socket_for(to)?;
        let datagram_bytes = payloads.len();
        let batch = DatagramBatch { payloads, datagram_bytes, to, traffic_class: 0 };
        match socket.send(&batch) {
            Err(error) if is_too_big(&error) => socket.send_fragmented(&batch),
            result => result,
        }
    }
}
