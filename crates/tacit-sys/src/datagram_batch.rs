//! Sends many UDP datagrams to a peer in one call (`UDP_SEGMENT`), and receives many datagrams from
//! a peer in one call (`UDP_GRO`).
//!
//! ```text
//! BatchSocket::send:     [ 1,456 B │ 1,456 B │ 1,456 B │ 900 B ]  one call, four datagrams
//! BatchSocket::receive:  the same batch, if the kernel has joined the datagrams; otherwise one
//!                        datagram
//! ```
//!
//! A batch consists of the datagrams of one call. All datagrams of a batch have the same length,
//! but the last datagram may be shorter. If the kernel does not support batches, each call sends
//! one datagram.
//!
//! Datagrams are fragmented only if the caller allows it. Otherwise [`BatchSocket::send`] reports
//! datagrams that exceed the MTU of the path.
//!
//! Limits: a batch has at most [`BATCH_DATAGRAMS_MAX`] datagrams and [`BATCH_BYTES_MAX`] bytes; the
//! receive buffer of a socket has `RECEIVE_BUFFER_BYTES`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{SocketFlags, SocketType, sockopt};

use crate::datagram::enlarge_buffers;
use crate::ip_version::IpVersion;
use crate::mark;
use crate::message::{self, ControlItem};
use crate::option::{self, OptionName, option, set_option};

/// The largest number of datagrams in a batch (`UDP_MAX_SEGMENTS` of older kernels).
pub const BATCH_DATAGRAMS_MAX: usize = 64;
/// The largest number of bytes in a batch: the longest payload of an IPv4 datagram.
pub const BATCH_BYTES_MAX: usize = 65_507;
/// The room for datagrams that arrive in a burst, if the kernel allows it.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct BatchSocket {
    socket: OwnedFd,
    version: IpVersion,
    /// Whether the kernel divides batches.
    has_segmentation: AtomicBool,
}

/// Datagrams to send to one peer.
#[derive(Clone, Copy, Debug)]
pub struct DatagramBatch<'a> {
    /// The payloads, one behind the other.
    pub payloads: &'a [u8],
    /// The length of each payload but the last.
    pub datagram_bytes: usize,
    /// The receiver.
    pub to: SocketAddr,
    /// DSCP and ECN of the IP header.
    pub traffic_class: u8,
}

/// Whether IP may fragment datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragmentation {
    /// Datagrams that exceed the MTU of the path are errors.
    Forbidden,
    /// This host may fragment them.
    Allowed,
}

/// Datagrams that were received from one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedBatch {
    /// The number of bytes in the buffer.
    pub bytes: usize,
    /// The length of each payload but the last; 0 if the only one is empty.
    pub datagram_bytes: usize,
    /// Whether the last payload was longer than the buffer.
    pub is_cut: bool,
    /// The sender.
    pub source: SocketAddr,
    /// DSCP and ECN of the IP header.
    pub traffic_class: u8,
}

/// The datagrams that wait to be received from a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// The memory that they use, in bytes.
    pub bytes: u64,
    /// The limit for this memory.
    pub bytes_max: u64,
    /// How many datagrams were dropped at this limit.
    pub drops: u64,
}

impl BatchSocket {
    /// Opens a socket at a local address.
    ///
    /// # Errors
    /// The error of a system call, for example that the port is in use.
    pub fn bind(local: SocketAddr) -> io::Result<Self> {
        let family = IpVersion::of(local.ip()).address_family();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        if local.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        mark::apply(socket.as_fd())?;
        rustix::net::bind(&socket, &local)?;
        Self::from_socket(socket)
    }

    /// Takes a bound UDP socket.
    ///
    /// # Errors
    /// It is not a UDP socket, or the error of a system call.
    pub fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        let version = IpVersion::of(local.ip());
        rustix::io::ioctl_fionbio(&socket, true)?;
        enlarge_buffers(socket.as_fd())?;
        // Only a process with CAP_NET_ADMIN may exceed net.core.rmem_max.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
        set_option(socket.as_fd(), receive_class(version), 1)?;
        let batch = Self { socket, version, has_segmentation: AtomicBool::new(true) };
        batch.set_fragmentation(Fragmentation::Forbidden)?;
        // Without it (Linux before 5.0) every call receives one datagram.
        match set_option(batch.as_fd(), GRO, 1) {
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => Err(error),
            _ => Ok(batch),
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The error of `getsockname`.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(rustix::net::getsockname(&self.socket)?)?)
    }

    /// Returns the state of the receive queue.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn receive_queue(&self) -> io::Result<ReceiveQueue> {
        Ok(ReceiveQueue::of(option::memory(self.as_fd())?))
    }

    /// Reports whether the socket has the IP version of an address.
    #[must_use]
    pub fn is_for(&self, address: IpAddr) -> bool {
        IpVersion::of(address) == self.version
    }

    /// Sends a batch. Waits for a short time if the socket's buffer is full.
    ///
    /// # Errors
    /// A datagram exceeds the MTU of the path ([`is_too_big`]), or another error of `sendmsg`. A
    /// part of the batch may have been sent.
    pub fn send(&self, batch: &DatagramBatch<'_>) -> io::Result<()> {
        let is_one = batch.payloads.len() <= batch.datagram_bytes;
        if is_one || !self.has_segmentation.load(Ordering::Relaxed) {
            return self.send_each(batch);
        }
        let result = self.send_call(batch, batch.payloads, Some(batch.datagram_bytes));
        match result.as_ref().err().and_then(io::Error::raw_os_error) {
            // EIO: the device does not compute checksums, or transforms packets. EINVAL: this is
            // not possible with an option of the socket, or a datagram exceeds the MTU.
            Some(libc::EIO | libc::EINVAL) => {}
            _ => return result,
        }
        self.send_each(batch)?;
        // Each datagram alone has no error, so batches are the reason.
        self.has_segmentation.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Sends datagrams that may exceed the MTU of the path, as fragments if they do.
    ///
    /// # Errors
    /// The error of `setsockopt` or `sendmsg`.
    pub fn send_fragmented(&self, batch: &DatagramBatch<'_>) -> io::Result<()> {
        self.set_fragmentation(Fragmentation::Allowed)?;
        let result = self.send_each(batch);
        self.set_fragmentation(Fragmentation::Forbidden)?;
        result
    }

    /// Receives datagrams of one peer. A buffer of 65,535 bytes suffices for all that the kernel
    /// joins.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, `InvalidData` if the sender is unknown, or another error of
    /// `recvmsg`.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<ReceivedBatch> {
        let received = message::receive(self.as_fd(), buffer, 0)?;
        let joined = received.item(&[GRO]).and_then(|item| item.first_chunk::<4>());
        let joined = joined.and_then(|bytes| usize::try_from(i32::from_ne_bytes(*bytes)).ok());
        let class = received.item(&IpVersion::ALL.map(traffic_class)).and_then(class_in);
        Ok(ReceivedBatch {
            bytes: received.bytes,
            datagram_bytes: joined.unwrap_or(received.bytes),
            is_cut: received.flags & libc::MSG_TRUNC != 0,
            source: received.source().ok_or(io::ErrorKind::InvalidData)?,
            traffic_class: class.unwrap_or(0),
        })
    }

    /// Sends each datagram of a batch with a call of its own.
    fn send_each(&self, batch: &DatagramBatch<'_>) -> io::Result<()> {
        if batch.payloads.is_empty() {
            return self.send_call(batch, &[], None);
        }
        let mut payloads = batch.payloads.chunks(batch.datagram_bytes.max(1));
        payloads.try_for_each(|payload| self.send_call(batch, payload, None))
    }

    fn send_call(
        &self,
        batch: &DatagramBatch<'_>,
        payload: &[u8],
        datagram_bytes: Option<usize>,
    ) -> io::Result<()> {
        let class = libc::c_int::from(batch.traffic_class).to_ne_bytes();
        let size = u16::try_from(datagram_bytes.unwrap_or(0)).unwrap_or(u16::MAX).to_ne_bytes();
        let class = ControlItem { kind: traffic_class(self.version), data: &class };
        let size = ControlItem { kind: SEGMENT, data: &size };
        let items = match (batch.traffic_class, datagram_bytes) {
            (0, None) => &[][..],
            (0, Some(_)) => &[size],
            (_, None) => &[class],
            (_, Some(_)) => &[class, size],
        };
        message::send_waiting(self.as_fd(), payload, batch.to, items)
    }

    fn set_fragmentation(&self, fragmentation: Fragmentation) -> io::Result<()> {
        set_fragmentation(self.as_fd(), self.version, fragmentation)
    }
}

/// Decides whether this host may fragment what a socket sends.
pub(crate) fn set_fragmentation(
    socket: BorrowedFd<'_>,
    version: IpVersion,
    fragmentation: Fragmentation,
) -> io::Result<()> {
    let (name, forbidden, allowed) = match version {
        IpVersion::V4 => (DISCOVERY_V4, libc::IP_PMTUDISC_DO, libc::IP_PMTUDISC_WANT),
        IpVersion::V6 => (DISCOVERY_V6, libc::IPV6_PMTUDISC_DO, libc::IPV6_PMTUDISC_WANT),
    };
    let value = match fragmentation {
        Fragmentation::Forbidden => forbidden,
        Fragmentation::Allowed => allowed,
    };
    set_option(socket, name, value)
}

impl ReceiveQueue {
    /// Takes the numbers of [`option::memory`].
    pub(crate) fn of(numbers: [u32; option::MEMORY_NUMBERS]) -> Self {
        Self {
            bytes: numbers[option::MEMORY_RECEIVED].into(),
            bytes_max: numbers[option::MEMORY_RECEIVED_MAX].into(),
            drops: numbers[option::MEMORY_DROPS].into(),
        }
    }
}

impl AsFd for BatchSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reports whether a datagram was not sent because it exceeds the MTU of the path.
#[must_use]
pub fn is_too_big(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

/// Returns the MTU of the path to an address, as far as the kernel knows it.
///
/// # Errors
/// The error of a system call, for example that there is no route.
pub fn path_mtu(to: IpAddr) -> io::Result<usize> {
    let version = IpVersion::of(to);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(version.address_family(), SocketType::DGRAM, flags, None)?;
    mark::apply(socket.as_fd())?;
    rustix::net::connect(&socket, &SocketAddr::new(to, DISCARD_PORT))?;
    let name = match version {
        IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_MTU },
        IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_MTU },
    };
    let mtu = option(socket.as_fd(), name)?;
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads a traffic class: one byte for IPv4, an int for IPv6.
fn class_in(item: &[u8]) -> Option<u8> {
    match *item {
        [class] => Some(class),
        [a, b, c, d] => u8::try_from(i32::from_ne_bytes([a, b, c, d])).ok(),
        _ => None,
    }
}

/// The type of the control message with the traffic class.
fn traffic_class(version: IpVersion) -> OptionName {
    match version {
        IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_TOS },
        IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_TCLASS },
    }
}

/// The option that requests this control message for received datagrams.
fn receive_class(version: IpVersion) -> OptionName {
    match version {
        IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_RECVTOS },
        IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_RECVTCLASS },
    }
}

const SEGMENT: OptionName = OptionName { level: libc::SOL_UDP, name: libc::UDP_SEGMENT };
const GRO: OptionName = OptionName { level: libc::SOL_UDP, name: libc::UDP_GRO };
const DISCOVERY_V4: OptionName =
    OptionName { level: libc::IPPROTO_IP, name: libc::IP_MTU_DISCOVER };
const DISCOVERY_V6: OptionName =
    OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_MTU_DISCOVER };
/// Any port: connecting a UDP socket sends nothing.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESSES: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

    fn pair(address: &str) -> (BatchSocket, BatchSocket) {
        let open = || BatchSocket::bind(address.parse().unwrap()).unwrap();
        (open(), open())
    }

    /// Receives until this many bytes have arrived. Returns the datagrams, and the largest number
    /// of them in one call.
    fn receive(socket: &BatchSocket, bytes: usize) -> (Vec<Vec<u8>>, usize, ReceivedBatch) {
        let mut datagrams = Vec::new();
        let mut most = 0;
        let mut arrived = 0;
        let mut buffer = vec![0; 65_535];
        loop {
            let batch = match socket.receive(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                batch => batch.unwrap(),
            };
            arrived += batch.bytes;
            let parts = buffer[..batch.bytes].chunks(batch.datagram_bytes.max(1));
            most = most.max(parts.len());
            datagrams.extend(parts.map(<[u8]>::to_vec));
            if arrived >= bytes {
                return (datagrams, most, batch);
            }
        }
    }

    #[test]
    fn a_batch_arrives_as_its_datagrams() {
        for address in ADDRESSES {
            let (sender, receiver) = pair(address);
            let payloads: Vec<u8> = (0..20_300_u32).map(|at| at.to_le_bytes()[0]).collect();
            let to = receiver.local_address().unwrap();
            for (datagram_bytes, class) in [(1_000, 0), (1_000, 0xb9), (20_300, 0)] {
                let batch =
                    DatagramBatch { payloads: &payloads, datagram_bytes, to, traffic_class: class };
                sender.send(&batch).unwrap();
                let (datagrams, most, last) = receive(&receiver, payloads.len());
                let wanted: Vec<_> = payloads.chunks(datagram_bytes).collect();
                assert_eq!(datagrams, wanted);
                assert_eq!(most, wanted.len(), "loopback keeps a batch in one piece");
                let source = sender.local_address().unwrap();
                assert_eq!((last.source, last.traffic_class), (source, class));
                assert!(!last.is_cut);
            }
        }
    }

    #[test]
    fn a_socket_that_cannot_send_batches_sends_each_datagram() {
        let (sender, receiver) = pair(ADDRESSES[0]);
        // The kernel refuses batches without checksums with EINVAL.
        let no_checksum = OptionName { level: libc::SOL_SOCKET, name: libc::SO_NO_CHECK };
        set_option(sender.as_fd(), no_checksum, 1).unwrap();
        let to = receiver.local_address().unwrap();
        let payloads = [7; 2_500];
        let batch =
            DatagramBatch { payloads: &payloads, datagram_bytes: 1_000, to, traffic_class: 0 };
        for _ in 0..2 {
            sender.send(&batch).unwrap();
            assert!(!sender.has_segmentation.load(Ordering::Relaxed));
            let (datagrams, most, _) = receive(&receiver, payloads.len());
            let lengths: Vec<_> = datagrams.iter().map(Vec::len).collect();
            assert_eq!((lengths, most), (vec![1_000, 1_000, 500], 1));
        }
    }

    #[test]
    fn a_batch_that_exceeds_the_buffer_is_cut_at_its_end() {
        let (sender, receiver) = pair(ADDRESSES[0]);
        let to = receiver.local_address().unwrap();
        let payloads = [7; 3_000];
        let batch =
            DatagramBatch { payloads: &payloads, datagram_bytes: 1_000, to, traffic_class: 0 };
        sender.send(&batch).unwrap();
        let cut = receiver.receive(&mut [0; 2_500]).unwrap();
        assert_eq!((cut.bytes, cut.datagram_bytes, cut.is_cut), (2_500, 1_000, true));
    }

    #[test]
    fn datagrams_beyond_the_limit_of_the_queue_are_dropped_and_counted() {
        let (sender, receiver) = pair(ADDRESSES[0]);
        let to = receiver.local_address().unwrap();
        let empty = receiver.receive_queue().unwrap();
        assert_eq!((empty.bytes, empty.drops), (0, 0));
        let payloads = [7; 60_000];
        let batch =
            DatagramBatch { payloads: &payloads, datagram_bytes: 60_000, to, traffic_class: 0 };
        let most = empty.bytes_max / 60_000 + 2;
        (0..most).for_each(|_| sender.send(&batch).unwrap());
        let full = receiver.receive_queue().unwrap();
        assert!(full.drops >= 1 && full.drops < most, "{full:?}");
        assert!(full.bytes > 0 && full.bytes <= full.bytes_max + 70_000, "{full:?}");
    }

    #[test]
    fn a_longer_datagram_is_cut_and_empty_ones_are_received() {
        let (sender, receiver) = pair(ADDRESSES[0]);
        let to = receiver.local_address().unwrap();
        for payloads in [&[1, 2, 3, 4][..], &[]] {
            let batch = DatagramBatch { payloads, datagram_bytes: 4, to, traffic_class: 0 };
            sender.send(&batch).unwrap();
        }
        let cut = receiver.receive(&mut [0; 3]).unwrap();
        assert_eq!((cut.bytes, cut.is_cut), (3, true));
        let empty = receiver.receive(&mut [0; 3]).unwrap();
        assert_eq!((empty.bytes, empty.datagram_bytes, empty.is_cut), (0, 0, false));
        let nothing = receiver.receive(&mut [0; 3]).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
