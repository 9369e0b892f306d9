//! Creates transparent sockets: sockets with addresses that do not belong to this host. Through a
//! transparent socket, the agent receives packets to any destination. The agent's answers have the
//! address of this destination as their source.
//!
//! ```text
//! TCP, for a program that connects to 10.9.8.7:8080
//!   program ── SYN ───────────> listener on :15002 (drops the SYN; the agent gets a copy)
//!   agent ──── the same SYN ──> listener on :15001 ── accept ──> local address 10.9.8.7:8080
//! UDP, for a program that sends to 10.1.1.1:53
//!   program ── datagram ──────> socket on :15001 ── receive ──> destination 10.1.1.1:53
//!   agent ──── answer ────────> program: source 10.1.1.1:53, by bind_spoofed_source
//! ```
//!
//! The agent sends the SYN to its listener after the agent has connected to the destination.
//!
//! A helper process creates these sockets inside the network namespace of a program under `tacit
//! run` ([`listener`], [`receiver`], [`make`]). The agent uses these sockets from outside. The
//! sockets have a fwmark, so that nftables rules accept the packets that these sockets send.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType, ipproto, sockopt};

use crate::ip_version::IpVersion;
use crate::mark;
use crate::message;
use crate::netlink::IpProtocol;
use crate::netlink::nft::{AGENT_PORT, HOLD_PORT, INBOUND_PORT, SocketMarks};
use crate::option::{OptionName, drop_all_packets, set_option};
use crate::socket::LISTEN_BACKLOG;

/// The kind of a socket to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// The protocol of the socket.
    pub kind: TransparentKind,
    /// The IP version of its addresses.
    pub version: IpVersion,
    /// Whether it may be bound to an address that the namespace does not have.
    pub transparent: bool,
    /// The mark by which the nftables rules recognise its packets, one of [`SocketMarks`].
    pub mark: Option<u32>,
}

/// The protocol of a transparent socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentKind {
    /// A TCP connection.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// Complete IP packets, for ICMP messages with a foreign source address.
    Raw,
}

/// Creates a non-blocking socket in the network namespace of the calling thread.
///
/// # Errors
/// The error of `socket` or `setsockopt`, which need capabilities in the namespace.
pub fn make(spec: SocketSpec) -> io::Result<OwnedFd> {
    let family = spec.version.address_family();
    let (kind, protocol) = match spec.kind {
        TransparentKind::Tcp => (SocketType::STREAM, None),
        TransparentKind::Udp => (SocketType::DGRAM, None),
        TransparentKind::Raw => (SocketType::RAW, Some(ipproto::RAW)),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, protocol)?;
    if spec.version == IpVersion::V6 && spec.kind != TransparentKind::Raw {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if spec.transparent {
        let transparent = match spec.version {
            IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_TRANSPARENT },
            IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_TRANSPARENT },
        };
        set_option(socket.as_fd(), transparent, 1)?;
    }
    if let Some(mark) = spec.mark {
        mark::set(socket.as_fd(), mark)?;
    }
    Ok(socket)
}

/// Opens the listener for captured TCP connections of one IP version. Packets of the accepted
/// connections have this mark.
///
/// # Errors
/// The error of a system call.
pub fn listener(version: IpVersion, mark: Option<u32>) -> io::Result<OwnedFd> {
    listener_at(version, AGENT_PORT, mark)
}

/// Opens the listener of one IP version for clients of a captured host's programs.
///
/// # Errors
/// The error of a system call.
pub fn inbound_listener(version: IpVersion) -> io::Result<OwnedFd> {
    listener_at(version, INBOUND_PORT, None)
}

fn listener_at(version: IpVersion, port: u16, mark: Option<u32>) -> io::Result<OwnedFd> {
    let spec = SocketSpec { kind: TransparentKind::Tcp, version, transparent: true, mark };
    let socket = make(spec)?;
    rustix::net::bind(&socket, &any(version, port))?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Opens the listener that receives each held SYN and drops it. While this listener is open, the
/// program waits.
///
/// # Errors
/// The error of a system call.
pub fn hold_listener(version: IpVersion) -> io::Result<OwnedFd> {
    let spec = SocketSpec { kind: TransparentKind::Tcp, version, transparent: true, mark: None };
    let socket = make(spec)?;
    drop_all_packets(socket.as_fd())?;
    rustix::net::bind(&socket, &any(version, HOLD_PORT))?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// Opens the socket that releases a SYN of one IP version. It sends complete packets.
///
/// # Errors
/// The error of a system call.
pub fn release_socket(version: IpVersion, marks: SocketMarks) -> io::Result<OwnedFd> {
    let mark = Some(marks.release);
    make(SocketSpec { kind: TransparentKind::Raw, version, transparent: false, mark })
}

/// Opens the socket that sends ICMP errors with the addresses of destinations: complete packets of
/// one IP version.
///
/// # Errors
/// The error of a system call.
pub fn raw_socket(version: IpVersion, marks: SocketMarks) -> io::Result<OwnedFd> {
    let mark = Some(marks.agent);
    make(SocketSpec { kind: TransparentKind::Raw, version, transparent: false, mark })
}

/// Opens the socket for captured datagrams of one IP version; [`receive`] returns the destination
/// of each.
///
/// # Errors
/// The error of a system call.
pub fn receiver(version: IpVersion) -> io::Result<OwnedFd> {
    let spec = SocketSpec { kind: TransparentKind::Udp, version, transparent: true, mark: None };
    let socket = make(spec)?;
    set_option(socket.as_fd(), original_option(version), 1)?;
    rustix::net::bind(&socket, &any(version, AGENT_PORT))?;
    Ok(socket)
}

/// One captured datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The number of bytes in the buffer.
    pub bytes: usize,
    /// Whether the datagram was longer than the buffer.
    pub is_cut: bool,
    /// The address of the program's socket.
    pub source: SocketAddr,
    /// The address to which the program sent the datagram.
    pub destination: SocketAddr,
}

/// Receives one datagram from a [`receiver`].
///
/// # Errors
/// `WouldBlock` if there is none, `InvalidData` if the kernel does not report the destination, or
/// another error of `recvmsg`.
pub fn receive(receiver: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let received = message::receive(receiver, buffer, 0)?;
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let source = received.source().ok_or_else(missing)?;
    let original = received.item(&IpVersion::ALL.map(original_option));
    let destination = original.and_then(message::ip_address).ok_or_else(missing)?;
    let is_cut = received.flags & libc::MSG_TRUNC != 0;
    Ok(Datagram { bytes: received.bytes, is_cut, source, destination })
}

/// Binds a transparent socket to a foreign address and connects it to the program. Returns
/// whether it is connected already, as UDP sockets always are.
///
/// TCP: the foreign address is that of a client, so that a server sees the client as its peer. UDP:
/// it is the address to which the program sent; later datagrams of the program then arrive at this
/// socket.
///
/// # Errors
/// The error of `bind` or `connect`.
pub fn bind_spoofed_source(
    socket: BorrowedFd<'_>,
    address: SocketAddr,
    program: SocketAddr,
) -> io::Result<bool> {
    rustix::net::bind(socket, &address)?;
    match rustix::net::connect(socket, &program) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INPROGRESS) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Disconnects a spoofed-source UDP socket from its program, before the socket closes. `address` is
/// the address to which the socket is bound. The kernel then delivers later datagrams of the
/// program to the receiver of captured datagrams. The socket keeps the datagrams that have arrived.
///
/// # Errors
/// The error of `connect`. Then datagrams still arrive at the socket.
pub fn release_program(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    // The program sends from another address, so the socket receives nothing from it.
    Ok(rustix::net::connect(socket, &address)?)
}

/// Returns the kind of a spoofed-source socket for a captured flow. It has the agent's mark, and
/// may be bound to any address.
#[must_use]
pub fn spoofed_source_spec(
    protocol: IpProtocol,
    version: IpVersion,
    marks: SocketMarks,
) -> SocketSpec {
    let kind = match protocol {
        IpProtocol::Tcp => TransparentKind::Tcp,
        IpProtocol::Udp => TransparentKind::Udp,
    };
    SocketSpec { kind, version, transparent: true, mark: Some(marks.agent) }
}

fn any(version: IpVersion, port: u16) -> SocketAddr {
    SocketAddr::new(version.unspecified(), port)
}

/// Returns the option that requests the original destination, and the type of the control message
/// with it.
fn original_option(version: IpVersion) -> OptionName {
    match version {
        IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_RECVORIGDSTADDR },
        IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_RECVORIGDSTADDR },
    }
}
