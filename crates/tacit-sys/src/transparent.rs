//! Creates transparent sockets, which use addresses that do not belong to this host.
//!
//! ```text
//! program --SYN to 10.9.8.7:8080--> hold listener on :15002 drops it; the agent gets a copy
//! agent   --the same SYN again--> listener on :15001 --accept--> own address = 10.9.8.7:8080
//! program --datagram to 10.1.1.1:53--> UDP socket on :15001 --receive--> 10.1.1.1:53
//! agent   --bind_spoofed_source(10.1.1.1:53)--> the program receives it from 10.1.1.1:53
//! ```
//!
//! The helper creates the listeners and the spoofed-source sockets inside the namespace
//! ([`listener`], [`receiver`], [`make`]), and the agent uses them from outside. The packet rules
//! accept the packets of these sockets by their mark, and redirect all other packets to the agent.

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

/// What kind of socket to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSpec {
    /// What travels over it.
    pub kind: TransparentKind,
    /// Of which addresses.
    pub version: IpVersion,
    /// May be bound to an address that the namespace does not have.
    pub transparent: bool,
    /// The mark by which the namespace's rules know its packets, one of [`SocketMarks`].
    pub mark: Option<u32>,
}

/// What travels over a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransparentKind {
    /// A TCP connection.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// Whole IP packets, for ICMP replies with a foreign source address.
    Raw,
}

/// Makes a non-blocking socket in the network namespace of the calling thread.
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

/// The listener for captured TCP connections of one IP version.
///
/// # Errors
/// The error of a system call.
pub fn listener(version: IpVersion) -> io::Result<OwnedFd> {
    listener_at(version, AGENT_PORT)
}

/// The listener of one IP version for clients of a captured host's programs.
///
/// # Errors
/// The error of a system call.
pub fn inbound_listener(version: IpVersion) -> io::Result<OwnedFd> {
    listener_at(version, INBOUND_PORT)
}

fn listener_at(version: IpVersion, port: u16) -> io::Result<OwnedFd> {
    let spec = SocketSpec { kind: TransparentKind::Tcp, version, transparent: true, mark: None };
    let socket = make(spec)?;
    rustix::net::bind(&socket, &any(version, port))?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// The listener that receives each held SYN and drops it: while it is open, the program waits.
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

/// The socket that releases a SYN of one IP version: it sends whole packets.
///
/// # Errors
/// The error of a system call.
pub fn release_socket(version: IpVersion, marks: SocketMarks) -> io::Result<OwnedFd> {
    let mark = Some(marks.release);
    make(SocketSpec { kind: TransparentKind::Raw, version, transparent: false, mark })
}

/// The socket that sends errors in the name of destinations: whole packets of one IP version.
///
/// # Errors
/// The error of a system call.
pub fn raw_socket(version: IpVersion, marks: SocketMarks) -> io::Result<OwnedFd> {
    let mark = Some(marks.agent);
    make(SocketSpec { kind: TransparentKind::Raw, version, transparent: false, mark })
}

/// The socket for captured datagrams of one IP version; [`receive`] returns where each was
/// sent to.
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
    /// Bytes of it in the buffer.
    pub bytes: usize,
    /// Whether the buffer was too small for all of it.
    pub is_cut: bool,
    /// The program's socket.
    pub source: SocketAddr,
    /// Where the program sent it.
    pub destination: SocketAddr,
}

/// Takes one datagram from a [`receiver`].
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
/// TCP: the address of a client, so that a server sees it as its peer. UDP: the address that the
/// program sent to; later datagrams of the program then arrive at this socket.
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

/// The spoofed-source socket of a captured flow: marked, and may be bound to any address.
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

/// The option that asks for the original destination, and the kind of the answer.
fn original_option(version: IpVersion) -> OptionName {
    match version {
        IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_RECVORIGDSTADDR },
        IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_RECVORIGDSTADDR },
    }
}
