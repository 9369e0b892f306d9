//! Opens pairs of connected sockets for a link between two kernels. Over a *link*, a run (a program
//! under `tacit run`) uses the network of the other kernel. The *real socket* of a connection is on
//! the other kernel, and a socket cannot be passed to another kernel. So the agent of the run gets
//! one socket of a pair instead. The link server moves bytes between the second socket of the pair
//! and the real socket. All pairs are in a network namespace in which every address is local
//! ([`create_mirror`](crate::namespace::create_mirror)).
//!
//! ```text
//!   agent of a run ── `program` ══════ `server` ── link server ── stream ──> real socket
//!                     192.0.2.7:41000  198.51.100.1:80
//! ```
//!
//! The two sockets are the fields `program` and `server` of [`MirrorPair`]. The socket `program` is
//! for the agent of the run, and has the local address of the real socket. The socket `server`
//! stays with the link server, and has the address of the remote peer. If an earlier connection
//! still uses the address of `program`, then `program` gets another port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::datagram;
use crate::ip_version::IpVersion;
use crate::socket::{self, AcceptedSocket, OnClose};
use crate::transparent::{SocketSpec, TransparentKind, make};

/// How long a connection within the namespace may take.
const CONNECT_WAIT_MAX: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The connections that wait for the agent of a run.
const BACKLOG: i32 = 1;

/// Two connected sockets.
#[derive(Debug)]
pub struct MirrorPair {
    /// The socket for the agent of a run.
    pub program: OwnedFd,
    /// The other end.
    pub server: OwnedFd,
}

/// Opens a TCP connection from `program` to `server`. The server's end is reset when its process
/// ends.
///
/// # Errors
/// The error of a system call.
pub fn stream_pair(program: SocketAddr, server: SocketAddr) -> io::Result<MirrorPair> {
    let listener = open(TransparentKind::Tcp, server)?;
    rustix::net::bind(&listener, &server)?;
    rustix::net::listen(&listener, BACKLOG)?;
    socket::set_on_close(listener.as_fd(), OnClose::Reset)?;
    let dialled = dial(program, server)?;
    wait(listener.as_fd(), PollFlags::IN)?;
    let AcceptedSocket { socket: accepted, .. } = socket::accept(listener.as_fd())?;
    Ok(MirrorPair { program: dialled, server: accepted })
}

/// Begins to connect to the listening socket of an agent from the address of a client. The socket
/// is writable when it is connected, or if no agent listens. It is reset when its process ends.
///
/// # Errors
/// The error of a system call.
pub fn connect(client: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let dialled = begin(client, to)?;
    socket::set_on_close(dialled.as_fd(), OnClose::Reset)?;
    Ok(dialled)
}

fn dial(from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let dialled = begin(from, to)?;
    wait(dialled.as_fd(), PollFlags::OUT)?;
    socket::take_error(dialled.as_fd())?;
    Ok(dialled)
}

fn begin(from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    match begin_from(from, to) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
            ) =>
        {
            begin_from(SocketAddr::new(from.ip(), 0), to)
        }
        begun => begun,
    }
}

fn begin_from(from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let dialled = open(TransparentKind::Tcp, to)?;
    rustix::net::bind(&dialled, &from)?;
    match rustix::net::connect(&dialled, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(dialled),
        Err(errno) => Err(errno.into()),
    }
}

/// Binds an address on which the agent of a run listens later.
///
/// # Errors
/// The error of a system call.
pub fn bind(address: SocketAddr) -> io::Result<OwnedFd> {
    let bound = open(TransparentKind::Tcp, address)?;
    rustix::net::bind(&bound, &address)?;
    Ok(bound)
}

/// Whether the agent of a run connects its UDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramPeer {
    /// It sends without an address.
    Connected,
    /// It sends to the address of the server's end.
    Named,
}

/// Opens two UDP sockets that exchange datagrams.
///
/// # Errors
/// The error of a system call.
pub fn datagram_pair(
    program: SocketAddr,
    server: SocketAddr,
    peer: DatagramPeer,
) -> io::Result<MirrorPair> {
    let ours = open(TransparentKind::Udp, server)?;
    datagram::enlarge_buffers(ours.as_fd())?;
    rustix::net::bind(&ours, &server)?;
    let theirs = open(TransparentKind::Udp, program)?;
    datagram::queue_errors(theirs.as_fd(), IpVersion::of(program.ip()))?;
    datagram::enlarge_buffers(theirs.as_fd())?;
    if rustix::net::bind(&theirs, &program).is_err() {
        rustix::net::bind(&theirs, &SocketAddr::new(program.ip(), 0))?;
    }
    let local = SocketAddr::try_from(rustix::net::getsockname(&theirs)?)?;
    if peer == DatagramPeer::Connected {
        rustix::net::connect(&theirs, &server)?;
    }
    // Datagrams of other sockets to the same address then do not arrive here.
    rustix::net::connect(&ours, &local)?;
    Ok(MirrorPair { program: theirs, server: ours })
}

/// Opens the socket that sends ICMP errors, as complete packets.
///
/// # Errors
/// The error of a system call.
pub fn error_sender(version: IpVersion) -> io::Result<OwnedFd> {
    let kind = TransparentKind::Raw;
    make(SocketSpec { kind, version, transparent: false, mark: None })
}

fn open(kind: TransparentKind, like: SocketAddr) -> io::Result<OwnedFd> {
    let version = IpVersion::of(like.ip());
    make(SocketSpec { kind, version, transparent: true, mark: None })
}

fn wait(socket: BorrowedFd<'_>, flags: PollFlags) -> io::Result<()> {
    let mut polled = [PollFd::new(&socket, flags)];
    match poll(&mut polled, Some(&CONNECT_WAIT_MAX)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
