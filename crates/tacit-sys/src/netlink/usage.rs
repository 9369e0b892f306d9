//! Reads how many bytes TCP sockets have transferred, including sockets of other processes. For an
//! open socket, the kernel reports the number of bytes on request. For a closed socket, the kernel
//! reports the number once, when it destroys the socket.
//!
//! The kernel destroys a socket when no process has it open and its connection has ended. The
//! number of bytes includes one byte for the end of the stream (FIN).
//!
//! Limit: the kernel drops reports if it destroys too many sockets at a time ([`Destroyed::Lost`]).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{self as families, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::diag::{self, SOCK_DIAG_BY_FAMILY};
use super::error::Error;
use super::message::{NetlinkRequest, answers};
use super::protocol::IpProtocol;
use super::socket::{Netlink, REPLY_WAIT, ReplyCount, Subsystem};
use crate::handed::namespace_cookie;
use crate::option::{OptionName, set_option, set_receive_buffer};

/// How much a TCP socket has transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpUsage {
    /// The number of the socket, which no other socket has.
    pub cookie: u64,
    /// Whether its connection is or was established.
    pub was_established: bool,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
    /// Bytes that it has received. After the end of the connection this is one less than the kernel
    /// counts, for the FIN of the peer; so it is one too few if the peer has sent none.
    pub received_bytes: u64,
}

/// A message about destroyed sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destroyed {
    /// A socket was destroyed.
    Socket(TcpUsage),
    /// The kernel has dropped messages.
    Lost,
}

/// Opens a socket on which the kernel reports each TCP socket of the network namespace that is
/// destroyed.
///
/// # Errors
/// The error of `socket` or `bind`.
pub fn watch_destroyed() -> io::Result<OwnedFd> {
    watch_groups(DESTROY_GROUP_BITS)
}

/// Ends the reports on a socket of [`watch_destroyed`]. Each report costs CPU time, and there is
/// one for each TCP socket of the network namespace. Reports that the kernel has sent stay in the
/// socket; those of the last sockets that were destroyed before may be missing.
///
/// # Errors
/// The error of `setsockopt`.
pub fn pause_destroyed(watched: BorrowedFd<'_>) -> io::Result<()> {
    change_memberships(watched, libc::NETLINK_DROP_MEMBERSHIP)
}

/// Begins the reports again after [`pause_destroyed`].
///
/// # Errors
/// The error of `setsockopt`.
pub fn resume_destroyed(watched: BorrowedFd<'_>) -> io::Result<()> {
    change_memberships(watched, libc::NETLINK_ADD_MEMBERSHIP)
}

fn change_memberships(watched: BorrowedFd<'_>, name: libc::c_int) -> io::Result<()> {
    let option = OptionName { level: libc::SOL_NETLINK, name };
    DESTROY_GROUPS.into_iter().try_for_each(|group| set_option(watched, option, group))
}

/// The two sockets with which another process reads the usage of the sockets of a network
/// namespace.
#[derive(Debug)]
pub struct UsageSockets {
    /// Reports destroyed sockets: [`watch_destroyed`].
    pub destroyed: OwnedFd,
    /// Answers questions about open ones: [`of_socket`].
    pub diagnosis: Netlink,
}

impl UsageSockets {
    /// Opens them in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn open() -> io::Result<Self> {
        let diagnosis = Netlink::open(Subsystem::SocketDiagnosis)?;
        Ok(Self { destroyed: watch_destroyed()?, diagnosis })
    }

    /// Uses those that another process has opened.
    ///
    /// # Errors
    /// They are other sockets, or do not belong to one network namespace.
    pub fn adopt(destroyed: OwnedFd, diagnosis: OwnedFd) -> io::Result<Self> {
        let namespace = |socket: &OwnedFd| namespace_cookie(socket.as_fd());
        let is_diagnosis = |socket: &OwnedFd| {
            matches!(sockopt::socket_domain(socket), Ok(AddressFamily::NETLINK))
                && matches!(sockopt::socket_protocol(socket), Ok(Some(families::SOCK_DIAG)))
        };
        if ![&destroyed, &diagnosis].into_iter().all(is_diagnosis)
            || namespace(&destroyed)? != namespace(&diagnosis)?
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::io::ioctl_fionbio(&destroyed, true)?;
        rustix::io::ioctl_fionbio(&diagnosis, false)?;
        sockopt::set_socket_timeout(&diagnosis, Timeout::Recv, Some(REPLY_WAIT))?;
        Ok(Self { destroyed, diagnosis: Netlink::adopt(diagnosis) })
    }

    /// The number of their network namespace.
    ///
    /// # Errors
    /// The kernel does not number network namespaces.
    pub fn namespace(&self) -> io::Result<u64> {
        namespace_cookie(self.destroyed.as_fd())
    }
}

/// Whether the kernel can store the messages about a thousand destroyed sockets on a socket of
/// [`watch_destroyed`]. The limit of the system may be lower (`net.core.rmem_max`).
#[must_use]
pub fn stores_many(watched: BorrowedFd<'_>) -> bool {
    sockopt::socket_recv_buffer_size(watched)
        .is_ok_and(|bytes| bytes >= 1000 * STORED_MESSAGE_BYTES)
}

/// Reads the next message about a destroyed socket; `None` if none waits.
///
/// # Errors
/// The error of `recv`.
pub fn next_destroyed(watched: BorrowedFd<'_>) -> io::Result<Option<Destroyed>> {
    next(watched, Destroyed::Lost, |payload| usage_of(payload).map(Destroyed::Socket))
}

fn watch_groups(groups: u32) -> io::Result<OwnedFd> {
    let family = AddressFamily::NETLINK;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(families::SOCK_DIAG);
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
    set_receive_buffer(socket.as_fd(), BUFFER_BYTES)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

fn next<T>(
    watched: BorrowedFd<'_>,
    lost: T,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    loop {
        let count = match rustix::net::recv(watched, &mut bytes[..], RecvFlags::empty()) {
            Ok((_, count)) => count.min(bytes.len()),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::NOBUFS) => return Ok(Some(lost)),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let first = answers(&bytes[..count]).find_map(Result::ok);
        if let Some(found) = first.and_then(|message| parse(message.payload)) {
            return Ok(Some(found));
        }
    }
}

/// A message about sockets that were closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All processes have closed the socket.
    Socket {
        /// Its number.
        cookie: u64,
        /// Whether it is a TCP socket whose connection was established.
        was_established: bool,
    },
    /// The kernel has dropped messages.
    Lost,
}

/// Opens a socket on which the kernel reports each TCP and UDP socket of the network namespace that
/// is destroyed.
///
/// # Errors
/// The error of `socket` or `bind`.
pub fn watch_ended() -> io::Result<OwnedFd> {
    watch_groups(DESTROY_GROUP_BITS | DATAGRAM_DESTROY_GROUP_BITS)
}

/// Reads the next message about a socket that was destroyed; `None` if none waits.
///
/// # Errors
/// The error of `recv`.
pub fn next_ended(watched: BorrowedFd<'_>) -> io::Result<Option<Ended>> {
    let cookie = |payload: &[u8]| {
        let cookie = payload.get(COOKIE_AT..)?.first_chunk()?;
        let was_established = usage_of(payload).is_some_and(|usage| usage.was_established);
        Some(Ended::Socket { cookie: u64::from_ne_bytes(*cookie), was_established })
    };
    next(watched, Ended::Lost, cookie)
}

/// Reads the usage of an open socket; `None` if there is none with these addresses.
///
/// # Errors
/// The error of the netlink socket.
pub fn of_socket(
    diag: &mut Netlink,
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<TcpUsage>, Error> {
    let mut body = diag::request(IpProtocol::Tcp, u32::MAX, local, peer);
    body[EXTENSIONS_AT] = WITH_INFO;
    let step = "reading the counters of a socket";
    let question = NetlinkRequest::new(step, SOCK_DIAG_BY_FAMILY, 0).fixed(&body);
    let mut found = None;
    let requested = diag.ask(question, ReplyCount::One, |answer| {
        found = usage_of(answer);
        Ok(())
    });
    match requested {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        requested => requested.map(|()| found),
    }
}

/// Parses an `inet_diag_msg` with the attribute `INET_DIAG_INFO`.
fn usage_of(message: &[u8]) -> Option<TcpUsage> {
    let cookie = message.get(COOKIE_AT..).and_then(|rest| rest.first_chunk())?;
    let info = diag::attribute(message, INET_DIAG_INFO)?;
    // The offsets are those of `tcp_info` in <linux/tcp.h>. An older kernel sends fewer fields.
    let number = |at: usize| {
        info.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |one| u64::from_ne_bytes(*one))
    };
    let [acknowledged, received, sent, sent_again] = [120, 128, 200, 208].map(number);
    let state = *info.first()?;
    let has_fin = !HAVE_NO_FIN.contains(&state);
    Some(TcpUsage {
        cookie: u64::from_ne_bytes(*cookie),
        // The SYN counts as a byte.
        was_established: acknowledged > 0,
        sent_bytes: sent.saturating_sub(sent_again),
        received_bytes: received.saturating_sub(u64::from(has_fin)),
    })
}

/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY`.
const DESTROY_GROUPS: [i32; 2] = [1, 3];
/// The same as bits.
const DESTROY_GROUP_BITS: u32 = 1 << 0 | 1 << 2;
/// The groups for UDP as bits.
const DATAGRAM_DESTROY_GROUP_BITS: u32 = 1 << 1 | 1 << 3;
/// Has room for some thousand sockets; the system may limit this size.
const BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// The memory that a message needs in the socket's buffer, at most.
const STORED_MESSAGE_BYTES: usize = 2048;
/// The kernel sends less than 600 bytes for each socket.
const MESSAGE_BYTES_MAX: usize = 2048;
/// The offset of the extensions in a request.
const EXTENSIONS_AT: usize = 2;
/// The extension `INET_DIAG_INFO` as a bit.
const WITH_INFO: u8 = 1 << 1;
const INET_DIAG_INFO: u16 = 2;
/// The offset of the cookie in an `inet_diag_msg`.
const COOKIE_AT: usize = 44;
/// The states before the FIN of the peer: `ESTABLISHED`, `SYN_SENT`, `SYN_RECV`, `FIN_WAIT1` and
/// `FIN_WAIT2`.
const HAVE_NO_FIN: [u8; 5] = [1, 2, 3, 4, 5];

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_sockets_of_one_namespace_that_report_about_it_are_adopted() {
        let open = || UsageSockets::open().unwrap();
        let into = |sockets: UsageSockets| (sockets.destroyed, sockets.diagnosis.into_socket());
        let (destroyed, diagnosis) = into(open());
        let cookie = namespace_cookie(destroyed.as_fd()).unwrap();
        let adopted = UsageSockets::adopt(destroyed, diagnosis).unwrap();
        assert_eq!(adopted.namespace().unwrap(), cookie);
        let route = Netlink::open(Subsystem::Route).unwrap().into_socket();
        assert!(UsageSockets::adopt(into(open()).0, route).is_err());
        let pair = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
        assert!(UsageSockets::adopt(pair(), into(open()).1).is_err());
    }

    #[test]
    fn bytes_are_counted_exactly_while_a_socket_is_open_and_when_it_is_destroyed() {
        let watched = watch_destroyed().unwrap();
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut server = listener.accept().unwrap().0;
            client.write_all(&[1; 70_000]).unwrap();
            server.read_exact(&mut [0; 70_000]).unwrap();
            server.write_all(b"answer").unwrap();
            client.read_exact(&mut [0; 6]).unwrap();
            let cookie = sockopt::socket_cookie(&client).unwrap();
            let wanted =
                TcpUsage { cookie, was_established: true, sent_bytes: 70_000, received_bytes: 6 };
            let [local, peer] = [client.local_addr(), client.peer_addr()].map(Result::unwrap);
            let mut diag = Netlink::open(Subsystem::SocketDiagnosis).unwrap();
            assert_eq!(of_socket(&mut diag, local, peer).unwrap(), Some(wanted));
            drop(server);
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
            assert_eq!(of_socket(&mut diag, local, peer).unwrap(), Some(wanted), "after the FIN");
            drop(client);
            assert_eq!(find(&watched, cookie), wanted);
            assert_eq!(of_socket(&mut diag, local, peer).unwrap(), None);
        }
    }

    #[test]
    fn sockets_of_all_kinds_are_reported_when_they_are_closed() {
        let watched = watch_ended().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = std::net::UdpSocket::bind("[::1]:0").unwrap();
        let cookie = |socket: &dyn AsFd| sockopt::socket_cookie(socket.as_fd());
        let wanted = [cookie(&listener).unwrap(), cookie(&datagrams).unwrap()];
        drop((listener, datagrams));
        let mut found = Vec::new();
        while !wanted.iter().all(|one| found.contains(one)) {
            let mut polled = [PollFd::new(&watched, PollFlags::IN)];
            let wait = Timespec { tv_sec: 10, tv_nsec: 0 };
            assert_eq!(poll(&mut polled, Some(&wait)).unwrap(), 1, "no message");
            if let Some(Ended::Socket { cookie, was_established }) =
                next_ended(watched.as_fd()).unwrap()
            {
                assert!(!was_established || !wanted.contains(&cookie));
                found.push(cookie);
            }
        }
    }

    #[test]
    fn a_socket_that_was_refused_was_not_established() {
        let watched = watch_destroyed().unwrap();
        let socket = crate::handed::new_tcp(crate::IpVersion::V4).unwrap();
        let cookie = sockopt::socket_cookie(&socket).unwrap();
        let nowhere = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let _ = crate::handed::connect(socket.as_fd(), crate::IpVersion::V4, nowhere);
        drop(socket);
        let found = find(&watched, cookie);
        assert_eq!((found.was_established, found.sent_bytes, found.received_bytes), (false, 0, 0));
    }

    fn find(watched: &OwnedFd, cookie: u64) -> TcpUsage {
        loop {
            let mut polled = [PollFd::new(watched, PollFlags::IN)];
            let wait = Timespec { tv_sec: 10, tv_nsec: 0 };
            assert_eq!(poll(&mut polled, Some(&wait)).unwrap(), 1, "no message");
            match next_destroyed(watched.as_fd()).unwrap() {
                Some(Destroyed::Socket(usage)) if usage.cookie == cookie => return usage,
                _ => {}
            }
        }
    }
}
