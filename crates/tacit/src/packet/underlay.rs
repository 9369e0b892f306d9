//! Defines [`Underlay`]: the sockets between this host and its IPsec peers. There is a UDP socket
//! for each IP version, and raw sockets if the policy has SAs (security associations) without UDP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tacit_ipsec::esp::{KEEPALIVE, NON_ESP_MARKER};
use tacit_sys::datagram_batch::{
    BatchSocket, DatagramBatch, Fragmentation, ReceiveQueue, is_too_big,
};
use tacit_sys::raw_ip::{RawPacket, RawProtocol, RawSocket};

/// The sockets to peers.
#[derive(Debug)]
pub struct Underlay {
    /// ESP, IKE and keepalives share them.
    sockets: Vec<BatchSocket>,
    raw: Arc<RawUnderlay>,
}

/// The sockets of SAs without UDP.
#[derive(Debug, Default)]
pub struct RawUnderlay {
    sockets: Vec<RawSocket>,
}

/// The kind of a raw socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RawKind {
    /// Its protocol.
    pub protocol: RawProtocol,
    /// Whether it is for IPv4.
    pub is_v4: bool,
}

/// Frames to send without UDP, all of one length but the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawFrames<'a> {
    pub(super) frames: &'a [u8],
    pub(super) frame_bytes: usize,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) traffic_class: u8,
}

/// A socket that receives.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReceivingSocket<'a> {
    Udp(&'a BatchSocket),
    Raw(&'a RawSocket),
}

impl RawKind {
    /// Returns the kind of socket for a protocol and an address.
    #[must_use]
    pub fn of(protocol: RawProtocol, address: IpAddr) -> Self {
        Self { protocol, is_v4: address.is_ipv4() }
    }

    fn any_address(self) -> IpAddr {
        if self.is_v4 { [0; 4].into() } else { [0_u16; 8].into() }
    }
}

impl RawUnderlay {
    /// Opens a socket of each kind.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_NET_RAW`, or another error of a system call.
    pub fn open(kinds: impl IntoIterator<Item = RawKind>) -> io::Result<Self> {
        let open = |kind: RawKind| RawSocket::open(kind.protocol, kind.any_address());
        Ok(Self { sockets: kinds.into_iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Reports whether there is a socket of a kind.
    #[must_use]
    pub fn has(&self, kind: RawKind) -> bool {
        self.socket(kind.protocol, kind.any_address()).is_some()
    }

    fn socket(&self, protocol: RawProtocol, address: IpAddr) -> Option<&RawSocket> {
        self.sockets.iter().find(|socket| socket.is_for(protocol, address))
    }
}

impl Underlay {
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
        let underlay = Self { sockets, raw: Arc::default() };
        let addresses = underlay.local_addresses()?;
        let of_v4 = addresses.iter().filter(|address| address.is_ipv4()).count();
        if addresses.is_empty() || of_v4 > 1 || addresses.len() - of_v4 > 1 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(underlay)
    }

    /// Adds raw sockets.
    #[must_use]
    pub fn with_raw(self, raw: Arc<RawUnderlay>) -> Self {
        Self { raw, ..self }
    }

    /// Returns the addresses of the UDP sockets.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(BatchSocket::local_address).collect()
    }

    /// Returns the sum of the receive queues.
    pub(super) fn receive_queue(&self) -> ReceiveQueue {
        let udp = self.sockets.iter().map(BatchSocket::receive_queue);
        let queues = udp.chain(self.raw.sockets.iter().map(RawSocket::receive_queue)).flatten();
        queues.fold(ReceiveQueue::default(), |sum, one| ReceiveQueue {
            bytes: sum.bytes + one.bytes,
            bytes_max: sum.bytes_max + one.bytes_max,
            drops: sum.drops + one.drops,
        })
    }

    /// Returns the sockets, each with its number.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let udp = self.sockets.iter().map(AsFd::as_fd);
        (0..).zip(udp.chain(self.raw.sockets.iter().map(AsFd::as_fd)))
    }

    /// Returns the socket with a number.
    pub(super) fn socket(&self, number: u64) -> Option<ReceivingSocket<'_>> {
        let number = usize::try_from(number).ok()?;
        let of_raw = || number.checked_sub(self.sockets.len());
        let raw = || self.raw.sockets.get(of_raw()?).map(ReceivingSocket::Raw);
        self.sockets.get(number).map(ReceivingSocket::Udp).or_else(raw)
    }

    /// Sends frames without UDP.
    pub(super) fn send_raw(
        &self,
        protocol: RawProtocol,
        frames: &RawFrames<'_>,
        fragmentation: Fragmentation,
    ) -> io::Result<()> {
        let RawFrames { frames, frame_bytes, from, to, traffic_class } = *frames;
        let socket = self.raw.socket(protocol, to).ok_or(io::ErrorKind::AddrNotAvailable)?;
        if fragmentation == Fragmentation::Forbidden {
            socket.check_path(to, frame_bytes)?;
        }
        frames.chunks(frame_bytes.max(1)).try_for_each(|bytes| {
            let packet = RawPacket { bytes, from, to, traffic_class };
            match fragmentation {
                Fragmentation::Forbidden => socket.send(&packet),
                Fragmentation::Allowed => socket.send_fragmented(&packet),
            }
        })
    }

    /// Returns the UDP socket for a peer.
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
