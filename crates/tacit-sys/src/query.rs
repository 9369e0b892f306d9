//! Opens the query socket of a run (a program under `tacit run`). Over this socket, programs of the
//! run ask the agent about their connections. With each request, a program also sends a descriptor:
//! the socket of the connection.
//!
//! The socket has an abstract name, which exists only in the network namespace of the run. So only
//! programs of the run can connect, and no file remains.
//!
//! A program may pass any descriptor, so this module first checks whether the descriptor is a TCP
//! socket. A separate thread closes descriptors, because `close` may take a long time, for example
//! for a FUSE file.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt,
};

/// The address of the query socket in the environment of programs; `@` stands for the byte 0, as is
/// customary.
pub const ADDRESS: &str = "@tacit-query";
/// The environment variable with this address. Programs that a run starts have it; programs of a
/// network namespace that tacit has joined do not.
pub const VARIABLE: &str = "TACIT_QUERY";

/// The largest number of descriptors in a message, `SCM_MAX_FD`. With room for all of them, the
/// kernel closes no descriptor itself.
const DESCRIPTORS_MAX: usize = 253;

/// The largest number of clients that wait to be accepted.
const BACKLOG: i32 = 64;

/// Opens the query socket in the network namespace of the calling thread.
///
/// # Errors
/// The error of `socket`, `bind` or `listen`.
pub fn listener() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &name()?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether the network namespace of the calling thread is that of a run: it has a query socket.
/// Without certainty, this returns `true`.
#[must_use]
pub fn is_in_run() -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (Ok(socket), Ok(name)) = (socket, name()) else { return true };
    rustix::net::connect(&socket, &name) != Err(rustix::io::Errno::CONNREFUSED)
}

fn name() -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(ADDRESS.trim_start_matches('@').as_bytes())
}

/// Creates two connected sockets of the same kind.
///
/// # Errors
/// The error of `socketpair`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// One message.
#[derive(Debug)]
pub struct QueryMessage {
    /// The number of bytes in the buffer; 0 if the other side has closed the connection or sent an
    /// empty message.
    pub bytes: usize,
    /// Whether the message was longer than the buffer.
    pub is_cut: bool,
    /// The descriptors that were sent with the message.
    pub descriptors: Vec<OwnedFd>,
}

/// Receives one message with its descriptors.
///
/// # Errors
/// `WouldBlock` if there is no message, or another error of `recvmsg`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<QueryMessage> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let received = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::TRUNC);
    Ok(QueryMessage { bytes: received.bytes, is_cut, descriptors })
}

/// Whether a descriptor is a TCP socket, connected or not.
#[must_use]
pub fn is_tcp(descriptor: BorrowedFd<'_>) -> bool {
    let is_inet = |family| [AddressFamily::INET, AddressFamily::INET6].contains(&family);
    sockopt::socket_domain(descriptor).is_ok_and(is_inet)
        && sockopt::socket_type(descriptor).is_ok_and(|kind| kind == SocketType::STREAM)
        && sockopt::socket_protocol(descriptor).is_ok_and(|protocol| protocol == Some(ipproto::TCP))
}

/// Returns the number of the network namespace in which a socket was created. A number is not used
/// again until the machine restarts (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// The error of `getsockopt`; an older kernel does not support the option.
pub fn network_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    let to = &raw mut cookie;
    let fd = socket.as_raw_fd();
    // SAFETY: the cookie is a live, writable u64 of that length for the time of the call.
    let result = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to.cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Returns the number of the network namespace of the calling thread.
///
/// # Errors
/// The same as [`network_of`].
pub fn own_network() -> io::Result<u64> {
    let family = AddressFamily::UNIX;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    network_of(socket.as_fd())
}

/// Reads the data that has arrived at a program's socket and that the program has not read, as much
/// as fits into the buffer. Never blocks, even if the program has set the socket to block.
///
/// # Errors
/// `WouldBlock` if there is no data, or another error of `recv`.
pub fn take_unread(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_message_arrives_with_all_its_descriptors_or_is_reported_as_truncated() {
        let (near, far) = pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        crate::descriptor::send(&near, b"query", &[file.as_fd(), file.as_fd()]).unwrap();
        crate::descriptor::send(&near, b"start", &[]).unwrap();
        let mut buffer = [0; 5];
        let message = receive(far.as_fd(), &mut buffer).unwrap();
        assert_eq!((message.bytes, message.is_cut, message.descriptors.len()), (5, false, 2));
        let message = receive(far.as_fd(), &mut buffer[..4]).unwrap();
        assert_eq!((message.is_cut, message.descriptors.len()), (true, 0));
        let error = receive(far.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(near);
        assert_eq!(receive(far.as_fd(), &mut buffer).unwrap().bytes, 0);
    }

    #[test]
    fn only_tcp_sockets_are_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_tcp(listener.as_fd()));
        assert!(!is_tcp(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
        assert!(!is_tcp(pair().unwrap().0.as_fd()));
        assert!(!is_tcp(std::fs::File::open("/dev/null").unwrap().as_fd()));
        assert_eq!(network_of(listener.as_fd()).unwrap(), own_network().unwrap());
    }

    #[test]
    fn what_a_program_has_not_read_can_be_taken_without_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (program, _) = listener.accept().unwrap();
        let mut buffer = [0; 16];
        let nothing = take_unread(program.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        io::Write::write_all(&mut client, b"unread").unwrap();
        let mut taken = take_unread(program.as_fd(), &mut buffer);
        while taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            taken = take_unread(program.as_fd(), &mut buffer);
        }
        assert_eq!(taken.unwrap(), 6);
    }
}
