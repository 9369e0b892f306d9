//! Opens UDP sockets to the outside network, and reads the ICMP errors that they receive.
//!
//! ```text
//! dial(10.9.8.7:123) ── rustix send, recv ──> datagrams
//!        └── take_notice ──> the ICMP errors about datagrams that did not arrive
//! ```
//!
//! The kernel puts each error into the error queue of the socket, with the first bytes of the
//! datagram that caused it. The next call on the socket also fails with this error, without doing
//! anything else: the caller reads the error queue and repeats the call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::ip_version::IpVersion;
use crate::mark;
use crate::message;
use crate::option::{OptionName, option, set_option};

/// What sockets ask for, in each direction. The kernel gives no more than its own limit
/// (`net.core.rmem_max`, `wmem_max`): a burst has to wait somewhere, and datagrams cannot be held
/// back at their source.
const BUFFER_BYTES: usize = 4 * 1024 * 1024;
/// The most that one datagram carries.
pub const PAYLOAD_BYTES_MAX: usize = 65_535;

/// An error about a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is.
    pub kind: NoticeKind,
    /// Who says so; `None`: this host.
    pub reporter: Option<IpAddr>,
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
        /// The four bytes behind the checksum: the MTU, where it is about that.
        info: u32,
    },
    /// The same of ICMPv6.
    Icmpv6 {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
        /// The four bytes behind the checksum: the MTU, where it is about that.
        info: u32,
    },
    /// This host's own error.
    Local(i32),
}

/// A non-blocking socket that sends to one address and receives from it alone.
///
/// # Errors
/// Whatever the system calls answer: there may be no route.
pub fn dial(destination: SocketAddr) -> io::Result<OwnedFd> {
    let version = IpVersion::of(destination.ip());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(version.address_family(), SocketType::DGRAM, flags, None)?;
    let receive_errors = match version {
        IpVersion::V4 => RECVERR_V4,
        IpVersion::V6 => RECVERR_V6,
    };
    set_option(socket.as_fd(), receive_errors, 1)?;
    mark::apply(socket.as_fd())?;
    enlarge_buffers(socket.as_fd())?;
    rustix::net::connect(&socket, &destination)?;
    Ok(socket)
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
/// `WouldBlock` if there is no room; the error of an earlier datagram; whatever else `send`
/// answers.
pub fn send(socket: BorrowedFd<'_>, payload: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, payload, rustix::net::SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes one datagram from a connected socket; the length of its payload, of which the buffer holds
/// as much as fits.
///
/// # Errors
/// `WouldBlock` if there is none; the error of an earlier datagram; whatever else `recv` answers.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, bytes) = rustix::net::recv(socket, buffer, rustix::net::RecvFlags::TRUNC)?;
    Ok(bytes)
}

/// The longest packet that goes undivided to where the socket is connected to, as far as is known.
///
/// # Errors
/// The error of `getsockopt`.
pub fn mtu_bytes(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let is_ipv6 = sockopt::socket_domain(socket)? == AddressFamily::INET6;
    let mtu = option(socket, if is_ipv6 { MTU_V6 } else { MTU_V4 })?;
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// Takes one error from the socket's queue, with the head of the payload it is about; `None` if
/// there is none.
///
/// # Errors
/// The error of `recvmsg`.
pub fn take_notice(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Notice>> {
    let received = match message::receive(socket, buffer, libc::MSG_ERRQUEUE) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    };
    Ok(received.item(&[RECVERR_V4, RECVERR_V6]).and_then(|item| notice(item, received.bytes)))
}

/// `sock_extended_err`, with the address of who reports it behind.
fn notice(item: &[u8], bytes: usize) -> Option<Notice> {
    let (error, rest) = item.split_first_chunk::<4>()?;
    let (&[origin, kind, code, _], rest) = rest.split_first_chunk::<4>()?;
    let (info, rest) = rest.split_first_chunk::<4>()?;
    let (_data, reporter) = rest.split_first_chunk::<4>()?;
    let info = u32::from_ne_bytes(*info);
    let kind = match origin {
        libc::SO_EE_ORIGIN_ICMP => NoticeKind::Icmp { kind, code, info },
        libc::SO_EE_ORIGIN_ICMP6 => NoticeKind::Icmpv6 { kind, code, info },
        _ => NoticeKind::Local(i32::from_ne_bytes(*error)),
    };
    let reporter = message::ip_address(reporter).map(|address| address.ip());
    Some(Notice { kind, reporter, bytes })
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
const MTU_V4: OptionName = OptionName { level: libc::IPPROTO_IP, name: libc::IP_MTU };
const MTU_V6: OptionName = OptionName { level: libc::IPPROTO_IPV6, name: libc::IPV6_MTU };

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_closed_port_is_told_with_the_datagram_it_is_about() {
        for ip in ["127.0.0.1", "::1"] {
            let closed = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap();
            let socket = dial(closed).unwrap();
            assert_eq!(take_notice(socket.as_fd(), &mut [0; 64]).unwrap(), None);
            send(socket.as_fd(), b"anybody there?").unwrap();
            let refused = send(socket.as_fd(), b"not sent").unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let mut buffer = [0; 64];
            let notice = take_notice(socket.as_fd(), &mut buffer).unwrap().unwrap();
            assert_eq!(&buffer[..notice.bytes], b"anybody there?");
            assert_eq!(notice.reporter, Some(closed.ip()));
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
        let socket = dial(server.local_addr().unwrap()).unwrap();
        assert!(mtu_bytes(socket.as_fd()).unwrap() >= 1500);
        send(socket.as_fd(), b"question").unwrap();
        let mut buffer = [0; 64];
        let (count, client) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"question");
        server.send_to(b"the answer", client).unwrap();
        assert_eq!(receive(socket.as_fd(), &mut buffer[..3]).unwrap(), 10);
        assert_eq!(&buffer[..3], b"the");
        let nothing = receive(socket.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
