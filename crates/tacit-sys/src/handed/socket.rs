//! Reads the type, state and namespace of a socket on which a program calls `connect`. Also
//! connects sockets for the program.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::ip_version::IpVersion;
use crate::{mark, option::OptionName};

/// `SO_NETNS_COOKIE` (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The state of a TCP socket, as far as `connect` distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectState {
    /// Neither connected nor listening.
    Unconnected,
    /// A connection is being established.
    Connecting,
    /// It listens.
    Listening,
    /// It is connected, or its connection is ending.
    Connected,
}

/// The address that a program passes to `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// `AF_UNSPEC`: ends the connection of the socket.
    Unspecified,
    /// An IP address with a port. An IPv4 address that is written as an IPv6 address is IPv4 here.
    Inet(SocketAddr),
    /// An IPv6 address with a scope or a flow label.
    Scoped,
    /// An address that the socket cannot connect to, or that is cut off.
    Other,
}

/// Returns the number of the network namespace of a socket, which no other namespace has.
///
/// # Errors
/// The kernel does not support it.
pub fn namespace_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = 8;
    let to = (&raw mut cookie).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: the value is a live, writable u64 of that length for the time of the call.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// The IP version of a TCP socket; `None` if the descriptor is something else.
#[must_use]
pub fn tcp_version(socket: BorrowedFd<'_>) -> Option<IpVersion> {
    let version = match sockopt::socket_domain(socket).ok()? {
        AddressFamily::INET => IpVersion::V4,
        AddressFamily::INET6 => IpVersion::V6,
        _ => return None,
    };
    let is_tcp = sockopt::socket_type(socket).ok()? == SocketType::STREAM
        && sockopt::socket_protocol(socket).ok()? == Some(ipproto::TCP);
    is_tcp.then_some(version)
}

/// Returns the state of a TCP socket.
///
/// # Errors
/// It is not a TCP socket.
pub fn state(socket: BorrowedFd<'_>) -> io::Result<ConnectState> {
    // The first byte of `tcp_info`; the numbers are those of <net/tcp_states.h>.
    let name = OptionName { level: libc::IPPROTO_TCP, name: libc::TCP_INFO };
    let [number, ..] = crate::option::option(socket, name)?.to_ne_bytes();
    Ok(match number {
        7 => ConnectState::Unconnected,
        2 | 3 | 12 => ConnectState::Connecting,
        10 => ConnectState::Listening,
        _ => ConnectState::Connected,
    })
}

/// Makes a TCP socket in the network namespace of the calling thread, without options.
///
/// # Errors
/// The error of `socket`, or of the mark of this process.
pub fn new_tcp(version: IpVersion) -> io::Result<OwnedFd> {
    let family = match version {
        IpVersion::V4 => AddressFamily::INET,
        IpVersion::V6 => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    mark::apply(std::os::fd::AsFd::as_fd(&socket))?;
    Ok(socket)
}

/// The same, with a local address. A socket for IPv6 has an IPv4 address in its IPv6 form.
///
/// # Errors
/// The error of `socket` or `bind`.
pub fn new_tcp_from(version: IpVersion, local: IpAddr) -> io::Result<OwnedFd> {
    let socket = new_tcp(version)?;
    let local = match (version, local) {
        (IpVersion::V6, IpAddr::V4(local)) => local.to_ipv6_mapped().into(),
        _ => local,
    };
    crate::socket::bind_address(std::os::fd::AsFd::as_fd(&socket), local)?;
    Ok(socket)
}

/// Checks a socket that another process has made for a program: it is a TCP socket of this version
/// and network namespace, and is not connected. Returns its identity.
///
/// # Errors
/// It is another kind of socket, or a system call fails.
pub fn adopt(
    socket: BorrowedFd<'_>,
    version: IpVersion,
    namespace: u64,
) -> io::Result<SocketIdentity> {
    let is_wanted = tcp_version(socket) == Some(version)
        && namespace_cookie(socket)? == namespace
        && state(socket)? == ConnectState::Unconnected;
    if !is_wanted {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // The process that connects it must not wait.
    rustix::io::ioctl_fionbio(socket, true)?;
    identity(socket)
}

/// Reads the address that was passed to `connect` for a socket of this version.
#[must_use]
pub fn destination(bytes: &[u8], version: IpVersion) -> Destination {
    let Some(family) = bytes.first_chunk::<2>() else { return Destination::Other };
    let family = i32::from(u16::from_ne_bytes(*family));
    let port = bytes.get(2..4).and_then(|port| port.try_into().ok()).map(u16::from_be_bytes);
    let number = |at: usize| {
        bytes.get(at..at + 4).and_then(|field| field.try_into().ok()).map(u32::from_be_bytes)
    };
    match (family, version, port) {
        (libc::AF_UNSPEC, ..) => Destination::Unspecified,
        (libc::AF_INET, IpVersion::V4, Some(port)) if bytes.len() >= 16 => {
            let ip = number(4).map(Ipv4Addr::from_bits);
            ip.map_or(Destination::Other, |ip| Destination::Inet((ip, port).into()))
        }
        (libc::AF_INET6, IpVersion::V6, Some(port)) if bytes.len() >= 24 => {
            let ip = bytes.get(8..24).and_then(|ip| <[u8; 16]>::try_from(ip).ok());
            let Some(ip) = ip.map(Ipv6Addr::from) else { return Destination::Other };
            // The scope is absent in the oldest form of the address.
            if number(4) != Some(0) || number(24).is_some_and(|scope| scope != 0) {
                return Destination::Scoped;
            }
            Destination::Inet(SocketAddr::new(IpAddr::V6(ip).to_canonical(), port))
        }
        _ => Destination::Other,
    }
}

/// Calls `connect`. A socket for IPv6 connects to an IPv4 address in its IPv6 form.
///
/// # Errors
/// The error of `connect`.
pub fn connect(socket: BorrowedFd<'_>, version: IpVersion, to: SocketAddr) -> io::Result<()> {
    let to = match (version, to) {
        (IpVersion::V6, SocketAddr::V4(to)) => {
            SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0).into()
        }
        _ => to,
    };
    Ok(rustix::net::connect(socket, &to)?)
}

/// Returns what `connect` returns for a socket that is connecting or connected, or whose last
/// attempt to connect has failed. On a socket that is unconnected it fails with `EAFNOSUPPORT`,
/// because the address that it passes is of no IP version: it never begins to connect.
///
/// # Errors
/// The error of `connect`.
pub fn connection_result(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Long enough for an IPv6 address, so that the kernel checks the family.
    // SAFETY: every bit pattern of zeros is a valid sockaddr_in6.
    let mut none: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    none.sin6_family = u16::try_from(libc::AF_UNIX).unwrap_or(1);
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_in6>()).unwrap_or(0);
    let fd = socket.as_raw_fd();
    // SAFETY: the address is live and has that length.
    let result = unsafe { libc::connect(fd, (&raw const none).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a `connect` that waits returns after another thread has ended the connection: the error of
/// the socket, if it has one, as from the kernel.
#[must_use]
pub fn interrupted_connection(socket: BorrowedFd<'_>) -> io::Error {
    match sockopt::socket_error(socket) {
        Ok(Err(error)) => error.into(),
        _ => rustix::io::Errno::CONNABORTED.into(),
    }
}

/// The error of [`connection_result`] for an unconnected socket.
pub const UNCONNECTED: libc::c_int = libc::EAFNOSUPPORT;

/// The status flags of an open file that matter for a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusFlags {
    /// `O_NONBLOCK`: a call does not wait.
    pub is_nonblocking: bool,
    /// `O_ASYNC`: the process gets signals when the state changes.
    pub is_asynchronous: bool,
}

/// Returns the status flags.
///
/// # Errors
/// The error of `fcntl`.
pub fn status_flags(socket: BorrowedFd<'_>) -> io::Result<StatusFlags> {
    let flags = rustix::fs::fcntl_getfl(socket)?.bits();
    let has = |flag: libc::c_int| flags & flag.cast_unsigned() != 0;
    Ok(StatusFlags { is_nonblocking: has(libc::O_NONBLOCK), is_asynchronous: has(libc::O_ASYNC) })
}

/// Makes calls on a socket wait.
///
/// # Errors
/// The error of `ioctl`.
pub fn set_blocking(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, false)?)
}

/// How long `connect` waits on a blocking socket; `None`: as long as the kernel tries.
///
/// # Errors
/// The error of `getsockopt`.
pub fn connect_timeout(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    Ok(sockopt::socket_timeout(socket, sockopt::Timeout::Send)?)
}

/// The numbers by which the kernel identifies a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    /// The inode, which `/proc/PID/fd` shows as `socket:[NUMBER]`.
    pub inode: u32,
    /// The number that socket diagnosis shows.
    pub cookie: u64,
}

/// Returns the identity of a socket.
///
/// # Errors
/// The error of a system call.
pub fn identity(socket: BorrowedFd<'_>) -> io::Result<SocketIdentity> {
    let inode = u32::try_from(rustix::fs::fstat(socket)?.st_ino);
    Ok(SocketIdentity {
        inode: inode.map_err(io::Error::other)?,
        cookie: sockopt::socket_cookie(socket)?,
    })
}

/// Returns the cookie of a socket: a number that no other socket has had since the kernel started.
///
/// # Errors
/// The error of a system call.
pub fn cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// Resets the connection of a socket, which is unconnected afterwards.
///
/// # Errors
/// The error of `connect`.
pub fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    fn bytes_of(family: i32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(family).unwrap().to_ne_bytes().to_vec();
        bytes.extend_from_slice(rest);
        bytes
    }

    #[test]
    fn an_address_is_read_as_the_kernel_reads_it() {
        let mut v4 = bytes_of(libc::AF_INET, &[0x1f, 0x90, 10, 9, 8, 7]);
        v4.resize(16, 0);
        let at = Destination::Inet("10.9.8.7:8080".parse().unwrap());
        assert_eq!(destination(&v4, IpVersion::V4), at);
        assert_eq!(destination(&v4, IpVersion::V6), Destination::Other);
        assert_eq!(destination(&v4[..15], IpVersion::V4), Destination::Other);
        v4.resize(110, 0);
        assert_eq!(destination(&v4, IpVersion::V4), at, "longer than the kernel needs");
        let mut v6 = bytes_of(libc::AF_INET6, &[0x1f, 0x90, 0, 0, 0, 0]);
        v6.extend_from_slice(&Ipv4Addr::new(10, 9, 8, 7).to_ipv6_mapped().octets());
        assert_eq!(destination(&v6, IpVersion::V6), at, "the form without a scope");
        v6.extend_from_slice(&[0; 4]);
        assert_eq!(destination(&v6, IpVersion::V6), at);
        v6[27] = 1;
        assert_eq!(destination(&v6, IpVersion::V6), Destination::Scoped);
        let unspecified = bytes_of(libc::AF_UNSPEC, &[]);
        assert_eq!(destination(&unspecified, IpVersion::V4), Destination::Unspecified);
        assert_eq!(destination(&[0], IpVersion::V4), Destination::Other);
    }

    #[test]
    fn sockets_are_distinguished() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fresh = new_tcp(IpVersion::V6).unwrap();
        assert_eq!(tcp_version(client.as_fd()), Some(IpVersion::V4));
        assert_eq!(tcp_version(fresh.as_fd()), Some(IpVersion::V6));
        assert_eq!(tcp_version(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()), None);
        assert_eq!(state(client.as_fd()).unwrap(), ConnectState::Connected);
        assert_eq!(state(listener.as_fd()).unwrap(), ConnectState::Listening);
        assert_eq!(state(fresh.as_fd()).unwrap(), ConnectState::Unconnected);
        let cookies = [fresh.as_fd(), client.as_fd()].map(|one| namespace_cookie(one).unwrap());
        assert_eq!(cookies[0], cookies[1]);
        assert_eq!(
            connection_result(client.as_fd()).unwrap_err().raw_os_error(),
            Some(libc::EISCONN)
        );
        disconnect(client.as_fd()).unwrap();
        assert_eq!(
            connection_result(client.as_fd()).unwrap_err().raw_os_error(),
            Some(UNCONNECTED)
        );
        assert_eq!(connection_result(fresh.as_fd()).unwrap_err().raw_os_error(), Some(UNCONNECTED));
        assert_eq!(state(client.as_fd()).unwrap(), ConnectState::Unconnected);
    }

    #[test]
    fn an_ipv6_socket_connects_to_an_ipv4_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = new_tcp(IpVersion::V6).unwrap();
        let to = listener.local_addr().unwrap();
        let begun = connect(socket.as_fd(), IpVersion::V6, to);
        assert!(
            begun.is_ok_and(|()| true)
                || state(socket.as_fd()).unwrap() != ConnectState::Unconnected
        );
        listener.accept().unwrap();
    }
}
