//! Copies the packets of a network namespace that show its connections, the names of servers, and
//! where servers begin TLS.
//!
//! A packet socket receives the copies. Its filter runs in the kernel, so other packets cost only
//! the filter. Packets pass unchanged, also if the kernel has no room for a copy.
//!
//! ```text
//!   outgoing SYN without ACK         a program connects, or a forwarded flow begins
//!   SYN with ACK                     a server accepts a connection
//!   TCP data 16 03 .. .. .. 02       a ServerHello of TLS at the beginning of a segment
//!   outgoing UDP to port 53          a question to a DNS server
//!   UDP from port 53                 its answer
//! ```
//!
//! Of `lo`, only DNS messages are copied. A copy may also be of a packet that was not asked for.
//!
//! Limits: the kernel keeps [`BUFFER_BYTES`] of copies, and of each packet at most
//! [`COPY_BYTES_MAX`] bytes. Fragments after the first one and packets with IPv6 extension headers
//! are not copied.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::netlink::route::LO;
use crate::option::{
    MEMORY_DROPS, attach_filter, bind_to_interface, drop_all_packets, memory, set_receive_buffer,
};
use crate::packet_filter::Target::{Next, To};
use crate::packet_filter::{
    ACK, ADD, ADD_X, AND, COPY_TO_X, ETHERTYPE_V4, ETHERTYPE_V6, INTERFACE, JUMP_EQUAL, JUMP_SET,
    LOAD_BYTE, LOAD_BYTE_BEHIND_X, LOAD_HALF, LOAD_HALF_BEHIND_X, LOAD_HEADER_LENGTH, LOAD_WORD,
    PACKET_OUTGOING, PACKET_TYPE, PROTOCOL, RETURN, SHIFT_RIGHT, SYN, Statement, TCP, UDP,
    assemble, go, jump, next,
};

/// The largest number of bytes of one copy.
pub const COPY_BYTES_MAX: usize = MESSAGE_BYTES_KEPT as usize;
/// The room for copies. The kernel counts each copy with its administration.
pub const BUFFER_BYTES: usize = 4 << 20;
/// The bytes that are kept of a DNS message. Larger ones are cut off.
const MESSAGE_BYTES_KEPT: u32 = 1500;
/// The bytes that are kept of a TCP segment: all headers with their options.
const SEGMENT_BYTES_KEPT: u32 = 128;
/// The index that stands for all interfaces.
const ALL_INTERFACES: u32 = 0;

/// Receives the copies.
#[derive(Debug)]
pub struct PacketWatch {
    socket: Arc<OwnedFd>,
}

impl PacketWatch {
    /// Begins to copy the packets of all interfaces of the network namespace.
    ///
    /// # Errors
    /// The process lacks `CAP_NET_RAW`, or the kernel has no packet sockets.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol the socket receives nothing until the filter is attached.
        let family = AddressFamily::PACKET;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        set_receive_buffer(socket.as_fd(), BUFFER_BYTES)?;
        attach_filter(socket.as_fd(), &mut assemble(STATEMENTS))?;
        bind_to_interface(socket.as_fd(), ALL_INTERFACES)?;
        Ok(Self { socket: Arc::new(socket) })
    }

    /// Returns the socket, so that the caller can wait for it.
    #[must_use]
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Receives a copy, which begins with the IP header.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; otherwise the error of the kernel.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<PacketCopy> {
        // SAFETY: every bit pattern of zeros is a valid sockaddr_ll.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
        let fd = self.socket.as_raw_fd();
        let to = buffer.as_mut_ptr().cast();
        let address = (&raw mut from).cast();
        // SAFETY: the buffer is live and writable for its length, and the address for the length
        // that the kernel receives.
        let received = unsafe { libc::recvfrom(fd, to, buffer.len(), 0, address, &raw mut length) };
        let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(PacketCopy { bytes, is_sent: u32::from(from.sll_pkttype) == PACKET_OUTGOING })
    }

    /// Ends the copies. Those that the kernel has made can still be received.
    ///
    /// # Errors
    /// The error of `setsockopt`.
    pub fn end(&self) -> io::Result<()> {
        drop_all_packets(self.socket.as_fd())
    }

    /// Returns the number of copies for which the kernel had no room.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn dropped(&self) -> io::Result<u32> {
        Ok(memory(self.socket.as_fd())?[MEMORY_DROPS])
    }
}

/// A copy that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCopy {
    /// The number of bytes.
    pub bytes: usize,
    /// Whether this host sends the packet. Otherwise it has arrived.
    pub is_sent: bool,
}

/// A position in the filter to which conditions jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    V4,
    Tcp4,
    V6,
    Tcp6,
    Payload,
    /// Keeps the headers of a packet that this host sends.
    OutgoingSegment,
    /// Keeps a DNS message that this host sends.
    OutgoingMessage,
    KeepSegment,
    KeepMessage,
    Drop,
}

/// The conditions of the filter. In both branches, X is the offset of the TCP data at
/// [`Label::Payload`].
const STATEMENTS: &[Statement<Label>] = &[
    next(LOAD_WORD, PROTOCOL),
    jump(JUMP_EQUAL, ETHERTYPE_V4, To(Label::V4), Next),
    jump(JUMP_EQUAL, ETHERTYPE_V6, To(Label::V6), To(Label::Drop)),
    // IPv4.
    next(LOAD_HALF, 6).at(Label::V4),
    jump(JUMP_SET, FRAGMENT_OFFSET, To(Label::Drop), Next),
    next(LOAD_HEADER_LENGTH, 0),
    next(LOAD_BYTE, 9),
    jump(JUMP_EQUAL, TCP, To(Label::Tcp4), Next),
    jump(JUMP_EQUAL, UDP, Next, To(Label::Drop)),
    next(LOAD_HALF_BEHIND_X, 0),
    jump(JUMP_EQUAL, DNS_PORT, To(Label::KeepMessage), Next),
    next(LOAD_HALF_BEHIND_X, 2),
    jump(JUMP_EQUAL, DNS_PORT, To(Label::OutgoingMessage), To(Label::Drop)),
    next(LOAD_WORD, INTERFACE).at(Label::Tcp4),
    jump(JUMP_EQUAL, LO, To(Label::Drop), Next),
    next(LOAD_BYTE_BEHIND_X, 13),
    next(AND, SYN | ACK),
    jump(JUMP_EQUAL, SYN, To(Label::OutgoingSegment), Next),
    jump(JUMP_EQUAL, SYN | ACK, To(Label::KeepSegment), Next),
    next(LOAD_BYTE_BEHIND_X, 12),
    next(AND, 0xf0),
    next(SHIFT_RIGHT, 2),
    next(ADD_X, 0),
    next(COPY_TO_X, 0),
    go(Label::Payload),
    // IPv6.
    next(LOAD_BYTE, 6).at(Label::V6),
    jump(JUMP_EQUAL, TCP, To(Label::Tcp6), Next),
    jump(JUMP_EQUAL, UDP, Next, To(Label::Drop)),
    next(LOAD_HALF, 40),
    jump(JUMP_EQUAL, DNS_PORT, To(Label::KeepMessage), Next),
    next(LOAD_HALF, 42),
    jump(JUMP_EQUAL, DNS_PORT, To(Label::OutgoingMessage), To(Label::Drop)),
    next(LOAD_WORD, INTERFACE).at(Label::Tcp6),
    jump(JUMP_EQUAL, LO, To(Label::Drop), Next),
    next(LOAD_BYTE, 53),
    next(AND, SYN | ACK),
    jump(JUMP_EQUAL, SYN, To(Label::OutgoingSegment), Next),
    jump(JUMP_EQUAL, SYN | ACK, To(Label::KeepSegment), Next),
    next(LOAD_BYTE, 52),
    next(AND, 0xf0),
    next(SHIFT_RIGHT, 2),
    next(ADD, 40),
    next(COPY_TO_X, 0),
    // The record header of a handshake, and the type of its first message.
    next(LOAD_HALF_BEHIND_X, 0).at(Label::Payload),
    jump(JUMP_EQUAL, HANDSHAKE_RECORD, Next, To(Label::Drop)),
    next(LOAD_BYTE_BEHIND_X, 5),
    jump(JUMP_EQUAL, SERVER_HELLO, To(Label::KeepSegment), To(Label::Drop)),
    next(LOAD_WORD, PACKET_TYPE).at(Label::OutgoingSegment),
    jump(JUMP_EQUAL, PACKET_OUTGOING, To(Label::KeepSegment), To(Label::Drop)),
    next(LOAD_WORD, PACKET_TYPE).at(Label::OutgoingMessage),
    jump(JUMP_EQUAL, PACKET_OUTGOING, To(Label::KeepMessage), To(Label::Drop)),
    next(RETURN, SEGMENT_BYTES_KEPT).at(Label::KeepSegment),
    next(RETURN, MESSAGE_BYTES_KEPT).at(Label::KeepMessage),
    next(RETURN, 0).at(Label::Drop),
];

const FRAGMENT_OFFSET: u32 = 0x1fff;
const DNS_PORT: u32 = 53;
/// The type of a handshake record, and the first byte of all its versions.
const HANDSHAKE_RECORD: u32 = 0x1603;
const SERVER_HELLO: u32 = 2;
