//! Sockets that stand in for addresses that are not this machine's.
//!
//! ```text
//! program --SYN to 10.9.8.7:8080--> hold listener on :15002, drops it; a copy to the agent
//! agent   --the same SYN again--> listener on :15001 --accept--> own address = 10.9.8.7:8080
//! program --datagram to 10.1.1.1:53--> UDP socket on :15001 --receive--> says 10.1.1.1:53
//! agent   --stand_in(10.1.1.1:53 -> program)--> the program reads it as from 10.1.1.1:53
//! ```
//!
//! The listeners and the sockets that stand in are made inside the namespace ([`listener`],
//! [`receiver`], [`make`]) and used by the agent outside. Packets of marked sockets pass the
//! namespace's rules; without the mark they would be led to the agent again.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType, ipproto, sockopt};

use crate::ip_version::IpVersion;
use crate::message;
use crate::netlink::Protocol;
use crate::netlink::nft::{AGENT_MARK, AGENT_PORT, HOLD_PORT, RELEASE_MARK};
use crate::option::{OptionName, drop_all_packets, set_option};
use crate::socket::LISTEN_BACKLOG;

/// Which socket to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What travels over it.
    pub kind: Kind,
    /// Of which addresses.
    pub version: IpVersion,
    /// May be bound to an address that is not this namespace's.
    pub transparent: bool,
    /// How the namespace's rules know its packets.
    pub mark: Option<Mark>,
}

/// How the namespace's rules know the packets of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// They pass all rules.
    Agent,
    /// Each is a SYN that goes to the agent's listener.
    Release,
}

/// What travels over a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP connection.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// Whole IP packets, for answers by ICMP in the name of others.
    Raw,
}

/// Makes a non-blocking socket in the network namespace of the calling thread.
///
/// # Errors
/// Whatever `socket` or `setsockopt` answer: the last three need the namespace's rights.
pub fn make(wanted: Wanted) -> io::Result<OwnedFd> {
    let family = wanted.version.address_family();
    let (kind, protocol) = match wanted.kind {
        Kind::Tcp => (SocketType::STREAM, None),
        Kind::Udp => (SocketType::DGRAM, None),
        Kind::Raw => (SocketType::RAW, Some(ipproto::RAW)),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, kind, flags, protocol)?;
    if wanted.version == IpVersion::V6 && wanted.kind != Kind::Raw {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if wanted.transparent {
        let transparent = match wanted.version {
            IpVersion::V4 => OptionName { level: libc::IPPROTO_IP, name: libc::IP_TRANSPARENT },
            IpVersion::V6 => OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_TRANSPARENT },
        };
        set_option(socket.as_fd(), transparent, 1)?;
    }
    if let Some(mark) = wanted.mark {
        let value = match mark {
            Mark::Agent => AGENT_MARK,
            Mark::Release => RELEASE_MARK,
        };
        let option = OptionName { level: libc::SOL_SOCKET, name: libc::SO_MARK };
        set_option(socket.as_fd(), option, value.cast_signed())?;
    }
    Ok(socket)
}

/// The listener for captured TCP connections of one IP version.
///
/// # Errors
/// Whatever the system calls answer.
pub fn listener(version: IpVersion) -> io::Result<OwnedFd> {
    let wanted = Wanted { kind: Kind::Tcp, version, transparent: true, mark: None };
    let socket = make(wanted)?;
    rustix::net::bind(&socket, &any(version, AGENT_PORT))?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// The listener that takes each held SYN and drops it: as long as it is open the program waits.
///
/// # Errors
/// Whatever the system calls answer.
pub fn hold_listener(version: IpVersion) -> io::Result<OwnedFd> {
    let wanted = Wanted { kind: Kind::Tcp, version, transparent: true, mark: None };
    let socket = make(wanted)?;
    drop_all_packets(socket.as_fd())?;
    rustix::net::bind(&socket, &any(version, HOLD_PORT))?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// The socket that releases a SYN of one IP version: it sends whole packets.
///
/// # Errors
/// Whatever the system calls answer.
pub fn release_socket(version: IpVersion) -> io::Result<OwnedFd> {
    make(Wanted { kind: Kind::Raw, version, transparent: false, mark: Some(Mark::Release) })
}

/// The socket for captured datagrams of one IP version; [`receive`] says where each was sent to.
///
/// # Errors
/// Whatever the system calls answer.
pub fn receiver(version: IpVersion) -> io::Result<OwnedFd> {
    let wanted = Wanted { kind: Kind::Udp, version, transparent: true, mark: None };
    let socket = make(wanted)?;
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
/// `WouldBlock` if there is none; whatever else `recvmsg` answers; `InvalidData` if the kernel
/// did not say where it was sent to.
pub fn receive(receiver: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    let received = message::receive(receiver, buffer, 0)?;
    let missing = || io::Error::from(io::ErrorKind::InvalidData);
    let source = received.source().ok_or_else(missing)?;
    let original = received.item(&IpVersion::ALL.map(original_option));
    let destination = original.and_then(message::ip_address).ok_or_else(missing)?;
    let is_cut = received.flags & libc::MSG_TRUNC != 0;
    Ok(Datagram { bytes: received.bytes, is_cut, source, destination })
}

/// Binds a transparent socket to an address that it stands in for, and connects it to the program;
/// `Ok(true)` if it is connected already, as UDP always is.
///
/// TCP: a client's address, so that a server sees who is there. UDP: the address the program sent
/// to; its further datagrams then come to this socket.
///
/// # Errors
/// Whatever `bind` or `connect` answer.
pub fn stand_in(
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

/// The protocol's own socket of a captured flow, marked and free to take any address.
#[must_use]
pub fn stand_in_wanted(protocol: Protocol, version: IpVersion) -> Wanted {
    let kind = match protocol {
        Protocol::Tcp => Kind::Tcp,
        Protocol::Udp => Kind::Udp,
    };
    Wanted { kind, version, transparent: true, mark: Some(Mark::Agent) }
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
