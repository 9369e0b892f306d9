//! Opens UDP sockets, through which the agent sends datagrams to the network. Also reads the ICMP
//! errors that these sockets receive.
//!
//! ```text
//! dial_unconnected(10.9.8.7:123) ── send_to, receive_from ──> datagrams, also from other ports
//!        └── take_notice ──> the ICMP errors about datagrams that did not arrive
//! ```
//!
//! The kernel puts each error into the error queue of the socket, with the first bytes of the lost
//! datagram. Then the next call on the socket fails with this error. The caller reads the error
//! queue and repeats the call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, SocketType, sockopt};

use crate::ip_version::IpVersion;
use crate::mark;
use crate::message;
use crate::option::{OptionName, attach_filter, set_option};
use crate::seccomp::{LOAD, RETURN, jump, statement};

/// The buffer size that sockets request in each direction. The kernel may give less
/// (`net.core.rmem_max`, `wmem_max`). The buffers must hold bursts, because a sender of datagrams
/// cannot be slowed down.
const BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// The largest payload of a datagram.
pub const PAYLOAD_BYTES_MAX: usize = 65_535;

/// Which datagrams a dialled socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSources {
    /// Datagrams from the address of its destination, from any port.
    Destination,
    /// Datagrams from any address.
    Any,
}

/// An error about a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The kind of the error.
    pub kind: NoticeKind,
    /// The host that reports the error; `None`: this host.
    pub reporter: Option<IpAddr>,
    /// The destination of the datagram, if the kernel reports it.
    pub destination: Option<SocketAddr>,
    /// Bytes of the datagram's payload in the buffer.
    pub bytes: usize,
}

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// An ICMP message.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The four bytes after the checksum; in a "packet too big" message they contain the MTU.
        info: u32,
    },
    /// An ICMPv6 message.
    Icmpv6 {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The four bytes after the checksum; in a "packet too big" message they contain the MTU.
        info: u32,
    },
    /// An error of this host.
    Local {
        /// The error number.
        errno: i32,
        /// The MTU, if the error is about the MTU.
        info: u32,
    },
}

/// Opens a non-blocking socket that sends to one address and receives only from this address.
///
/// # Errors
/// The error of a system call, for example that there is no route.
pub fn dial(destination: SocketAddr) -> io::Result<OwnedFd> {
    dial_from(None, destination)
}

/// Opens a socket like [`dial`], with a local address, if there is one.
///
/// # Errors
/// The error of a system call, for example that there is no route.
pub fn dial_from(local: Option<IpAddr>, destination: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket(destination)?;
    if let Some(local) = local {
        rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    }
    rustix::net::connect(&socket, &destination)?;
    Ok(socket)
}

/// Opens a non-blocking socket that sends to a destination from the local address that the host
/// uses for it. The socket is not connected, because the kernel would then drop answers from other
/// ports.
///
/// # Errors
/// The error of a system call, for example that there is no route.
pub fn dial_unconnected(destination: SocketAddr, sources: AnswerSources) -> io::Result<OwnedFd> {
    dial_unconnected_from(None, destination, sources)
}

/// Opens a socket like [`dial_unconnected`], with a local address, if there is one.
///
/// # Errors
/// The error of a system call, for example that there is no route.
pub fn dial_unconnected_from(
    local: Option<IpAddr>,
    destination: SocketAddr,
    sources: AnswerSources,
) -> io::Result<OwnedFd> {
    let socket = socket(destination)?;
    if sources == AnswerSources::Destination {
        attach_filter(socket.as_fd(), &mut from_address(destination.ip()))?;
    }
    if let Some(local) = local {
        // A bound socket cannot be connected and bound again: another one finds out whether there
        // is a route.
        drop(dial_from(Some(local), destination)?);
        rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
        return Ok(socket);
    }
    // Connecting the socket determines the local address, and fails if there is no route.
    rustix::net::connect(&socket, &destination)?;
    let mut local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    rustix::net::connect_unspec(&socket)?;
    local.set_port(0);
    rustix::net::bind(&socket, &local)?;
    Ok(socket)
}

/// Opens a non-blocking socket of the destination's address family that queues errors.
fn socket(destination: SocketAddr) -> io::Result<OwnedFd> {
    let version = IpVersion::of(destination.ip());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(version.address_family(), SocketType::DGRAM, flags, None)?;
    queue_errors(socket.as_fd(), version)?;
    mark::apply(socket.as_fd())?;
    enlarge_buffers(socket.as_fd())?;
    Ok(socket)
}

/// Lets the kernel queue errors for [`take_notice`].
pub(crate) fn queue_errors(socket: BorrowedFd<'_>, version: IpVersion) -> io::Result<()> {
    let receive_errors = match version {
        IpVersion::V4 => RECVERR_V4,
        IpVersion::V6 => RECVERR_V6,
    };
    set_option(socket, receive_errors, 1)
}

/// Builds the filter that accepts only datagrams from one address.
fn from_address(source: IpAddr) -> Vec<libc::sock_filter> {
    let (at, bytes) = match source {
        IpAddr::V4(source) => (SOURCE_V4_AT, source.octets().to_vec()),
        IpAddr::V6(source) => (SOURCE_V6_AT, source.octets().to_vec()),
    };
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| word.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
        .collect();
    let mut program = Vec::with_capacity(words.len() * 2 + 2);
    let mut offset = at;
    for (place, word) in words.iter().enumerate() {
        program.push(statement(LOAD, NETWORK_HEADER.wrapping_add(offset)));
        // The last instruction drops the datagram.
        let to_drop = u8::try_from((words.len() - place) * 2 - 1).unwrap_or(u8::MAX);
        program.push(jump(*word, 0, to_drop));
        offset += 4;
    }
    program.push(statement(RETURN, u32::MAX));
    program.push(statement(RETURN, 0));
    program
}

/// Gives a datagram socket as much room for bursts as the kernel allows.
///
/// # Errors
/// The error of `setsockopt`.
pub fn enlarge_buffers(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES)?;
    Ok(sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES)?)
}

/// Sends one datagram on a connected socket.
///
/// # Errors
/// `WouldBlock` if the socket's buffer is full; the error of an earlier datagram; another error of
/// `send`.
pub fn send(socket: BorrowedFd<'_>, payload: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, payload, rustix::net::SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends one datagram to an address.
///
/// # Errors
/// The same as [`send`].
pub fn send_to(socket: BorrowedFd<'_>, payload: &[u8], to: SocketAddr) -> io::Result<()> {
    rustix::net::sendto(socket, payload, rustix::net::SendFlags::NOSIGNAL, &to)?;
    Ok(())
}

/// Receives one datagram from a socket that is not connected. Returns the length of the payload, as
/// [`receive`] does, and the source.
///
/// # Errors
/// The same as [`receive`].
pub fn receive_from(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    let flags = rustix::net::RecvFlags::TRUNC;
    let (_, bytes, source) = rustix::net::recvfrom(socket, buffer, flags)?;
    let source = source.ok_or(io::ErrorKind::InvalidData)?;
    Ok((bytes, SocketAddr::try_from(source)?))
}

/// Receives one datagram from a connected socket. Returns the length of the payload; the buffer
/// holds as much of the payload as fits.
///
/// # Errors
/// `WouldBlock` if there is no datagram; the error of an earlier datagram; another error of `recv`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, bytes) = rustix::net::recv(socket, buffer, rustix::net::RecvFlags::TRUNC)?;
    Ok(bytes)
}

/// Takes one error from the socket's queue, with the beginning of the payload of the datagram that
/// caused it. Returns `None` if the queue is empty.
///
/// # Errors
/// The error of `recvmsg`.
pub fn take_notice(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Notice>> {
    let received = match message::receive(socket, buffer, libc::MSG_ERRQUEUE) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    };
    let found = received.item(&[RECVERR_V4, RECVERR_V6]);
    let found = found.and_then(|item| notice(item, received.bytes));
    Ok(found.map(|notice| Notice { destination: received.source(), ..notice }))
}

/// Parses a `sock_extended_err`, which the address of the reporting host follows.
fn notice(item: &[u8], bytes: usize) -> Option<Notice> {
    let (error, rest) = item.split_first_chunk::<4>()?;
    let (&[origin, kind, code, _], rest) = rest.split_first_chunk::<4>()?;
    let (info, rest) = rest.split_first_chunk::<4>()?;
    let (_data, reporter) = rest.split_first_chunk::<4>()?;
    let info = u32::from_ne_bytes(*info);
    let kind = match origin {
        libc::SO_EE_ORIGIN_ICMP => NoticeKind::Icmp { kind, code, info },
        libc::SO_EE_ORIGIN_ICMP6 => NoticeKind::Icmpv6 { kind, code, info },
        _ => NoticeKind::Local { errno: i32::from_ne_bytes(*error), info },
    };
    let reporter = message::ip_address(reporter).map(|address| address.ip());
    Some(Notice { kind, reporter, destination: None, bytes })
}

/// Sends a whole IP packet from a raw socket.
///
/// # Errors
/// The error of `sendto`.
pub fn send_packet(raw: BorrowedFd<'_>, packet: &[u8], to: IpAddr) -> io::Result<()> {
    let to = SocketAddr::new(to, 0);
    rustix::net::sendto(raw, packet, rustix::net::SendFlags::NOSIGNAL, &to)?;
    Ok(())
}

const RECVERR_V4: OptionName = OptionName { level: libc::IPPROTO_IP, name: libc::IP_RECVERR };
const RECVERR_V6: OptionName = OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_RECVERR };
/// `SKF_NET_OFF`: added to an offset in a filter, it makes the offset count from the IP header.
const NETWORK_HEADER: u32 = 0xfff0_0000;
const SOURCE_V4_AT: u32 = 12;
const SOURCE_V6_AT: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_closed_port_is_reported_with_its_datagram() {
        for ip in ["127.0.0.1", "::1"] {
            let closed = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap();
            let socket = dial_unconnected(closed, AnswerSources::Destination).unwrap();
            assert_eq!(take_notice(socket.as_fd(), &mut [0; 64]).unwrap(), None);
            send_to(socket.as_fd(), b"anybody there?", closed).unwrap();
            let refused = send_to(socket.as_fd(), b"not sent", closed).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let mut buffer = [0; 64];
            let notice = take_notice(socket.as_fd(), &mut buffer).unwrap().unwrap();
            assert_eq!(&buffer[..notice.bytes], b"anybody there?");
            assert_eq!(notice.reporter, Some(closed.ip()));
            assert_eq!(notice.destination, Some(closed));
            let wanted = match closed {
                SocketAddr::V4(_) => NoticeKind::Icmp { kind: 3, code: 3, info: 0 },
                SocketAddr::V6(_) => NoticeKind::Icmpv6 { kind: 1, code: 4, info: 0 },
            };
            assert_eq!(notice.kind, wanted);
            assert_eq!(take_notice(socket.as_fd(), &mut buffer).unwrap(), None);
        }
    }

    #[test]
    fn datagrams_go_and_come_and_long_ones_say_so() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let socket = dial_unconnected(to, AnswerSources::Destination).unwrap();
        send_to(socket.as_fd(), b"question", to).unwrap();
        let mut buffer = [0; 64];
        let (count, client) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"question");
        server.send_to(b"the answer", client).unwrap();
        assert_eq!(receive_from(socket.as_fd(), &mut buffer[..3]).unwrap(), (10, to));
        assert_eq!(&buffer[..3], b"the");
        let nothing = receive_from(socket.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn answers_from_other_addresses_are_received_only_where_any_may_answer() {
        let [server, elsewhere] =
            ["127.0.0.2:0", "127.0.0.3:0"].map(|at| UdpSocket::bind(at).unwrap());
        let other_port = UdpSocket::bind("127.0.0.2:0").unwrap();
        let to = server.local_addr().unwrap();
        for (sources, wanted) in [
            (AnswerSources::Destination, vec![&other_port]),
            (AnswerSources::Any, vec![&elsewhere, &other_port]),
        ] {
            let socket = dial_unconnected(to, sources).unwrap();
            send_to(socket.as_fd(), b"question", to).unwrap();
            let (_, client) = server.recv_from(&mut [0; 8]).unwrap();
            for answerer in [&elsewhere, &other_port] {
                answerer.send_to(b"answer", client).unwrap();
            }
            let received: Vec<_> =
                std::iter::from_fn(|| Some(receive_from(socket.as_fd(), &mut [0; 8]).ok()?.1))
                    .collect();
            let wanted: Vec<_> = wanted.iter().map(|one| one.local_addr().unwrap()).collect();
            assert_eq!(received, wanted, "{sources:?}");
        }
    }

    #[test]
    fn the_filter_compares_whole_ipv6_addresses() {
        let Ok(server) = UdpSocket::bind("[::1]:0") else {
            println!("skipped: there is no IPv6 here");
            return;
        };
        let to = server.local_addr().unwrap();
        let socket = dial_unconnected(to, AnswerSources::Destination).unwrap();
        send_to(socket.as_fd(), b"question", to).unwrap();
        let (_, client) = server.recv_from(&mut [0; 8]).unwrap();
        server.send_to(b"answer", client).unwrap();
        assert_eq!(receive_from(socket.as_fd(), &mut [0; 8]).unwrap(), (6, to));
        for place in [4_u8, 11, 13, 15] {
            let mut other = std::net::Ipv6Addr::LOCALHOST.octets();
            other[usize::from(place)] ^= 2;
            let filtered = dial_unconnected(to, AnswerSources::Any).unwrap();
            attach_filter(filtered.as_fd(), &mut from_address(IpAddr::from(other))).unwrap();
            let local = SocketAddr::try_from(rustix::net::getsockname(&filtered).unwrap()).unwrap();
            server.send_to(b"answer", local).unwrap();
            assert!(receive_from(filtered.as_fd(), &mut [0; 8]).is_err(), "{place}");
        }
    }
}
