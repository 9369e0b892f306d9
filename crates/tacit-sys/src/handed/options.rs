//! Copies the options of a program's socket to another socket.
//!
//! An option with its default value is not copied. So the other socket keeps the default value of
//! its own network namespace, which may be different.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::ip_version::IpVersion;

/// The largest value of a copied option, in bytes. The longest values are a `timeval` and the name
/// of a congestion control. `read` truncates longer values, which are only compared.
const VALUE_BYTES_MAX: usize = 16;

/// How this module copies an option to another socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// Set the value that the kernel reported for the program's socket.
    Copy,
    /// Set half of the reported value. For these options, the kernel reports twice the value that
    /// the program has set.
    Half,
    /// Do not copy the option. If the program has set this option, its socket cannot be replaced.
    Never,
}

struct KnownOption {
    level: libc::c_int,
    name: libc::c_int,
    transfer: Transfer,
}

const fn socket(name: libc::c_int, transfer: Transfer) -> KnownOption {
    KnownOption { level: libc::SOL_SOCKET, name, transfer }
}

const fn tcp(name: libc::c_int, transfer: Transfer) -> KnownOption {
    KnownOption { level: libc::IPPROTO_TCP, name, transfer }
}

const fn ip(name: libc::c_int, transfer: Transfer) -> KnownOption {
    KnownOption { level: libc::IPPROTO_IP, name, transfer }
}

const fn ipv6(name: libc::c_int, transfer: Transfer) -> KnownOption {
    KnownOption { level: libc::IPPROTO_IPV6, name, transfer }
}

/// Option names from the kernel's headers. The crate `libc` lacks these names on some targets.
const TCP_ULP: libc::c_int = 31;
const SO_BINDTOIFINDEX: libc::c_int = 62;
const SO_GET_FILTER: libc::c_int = libc::SO_ATTACH_FILTER;

const KNOWN: &[KnownOption] = &[
    socket(libc::SO_REUSEADDR, Transfer::Copy),
    socket(libc::SO_REUSEPORT, Transfer::Copy),
    socket(libc::SO_KEEPALIVE, Transfer::Copy),
    socket(libc::SO_LINGER, Transfer::Copy),
    socket(libc::SO_RCVBUF, Transfer::Half),
    socket(libc::SO_SNDBUF, Transfer::Half),
    socket(libc::SO_RCVLOWAT, Transfer::Copy),
    socket(libc::SO_RCVTIMEO, Transfer::Copy),
    socket(libc::SO_SNDTIMEO, Transfer::Copy),
    socket(libc::SO_OOBINLINE, Transfer::Copy),
    socket(libc::SO_PRIORITY, Transfer::Copy),
    socket(libc::SO_TIMESTAMP, Transfer::Copy),
    socket(libc::SO_TIMESTAMPNS, Transfer::Copy),
    socket(libc::SO_TIMESTAMPING, Transfer::Copy),
    socket(libc::SO_ZEROCOPY, Transfer::Copy),
    socket(libc::SO_BUSY_POLL, Transfer::Copy),
    socket(libc::SO_MAX_PACING_RATE, Transfer::Copy),
    socket(libc::SO_DONTROUTE, Transfer::Never),
    socket(libc::SO_MARK, Transfer::Never),
    socket(SO_BINDTOIFINDEX, Transfer::Never),
    socket(SO_GET_FILTER, Transfer::Never),
    tcp(libc::TCP_NODELAY, Transfer::Copy),
    tcp(libc::TCP_CORK, Transfer::Copy),
    tcp(libc::TCP_KEEPIDLE, Transfer::Copy),
    tcp(libc::TCP_KEEPINTVL, Transfer::Copy),
    tcp(libc::TCP_KEEPCNT, Transfer::Copy),
    tcp(libc::TCP_SYNCNT, Transfer::Copy),
    tcp(libc::TCP_LINGER2, Transfer::Copy),
    tcp(libc::TCP_DEFER_ACCEPT, Transfer::Copy),
    tcp(libc::TCP_WINDOW_CLAMP, Transfer::Copy),
    tcp(libc::TCP_USER_TIMEOUT, Transfer::Copy),
    tcp(libc::TCP_NOTSENT_LOWAT, Transfer::Copy),
    tcp(libc::TCP_MAXSEG, Transfer::Copy),
    tcp(libc::TCP_THIN_LINEAR_TIMEOUTS, Transfer::Copy),
    tcp(libc::TCP_CONGESTION, Transfer::Copy),
    tcp(libc::TCP_FASTOPEN_CONNECT, Transfer::Never),
    tcp(TCP_ULP, Transfer::Never),
    ip(libc::IP_TOS, Transfer::Copy),
    ip(libc::IP_TTL, Transfer::Copy),
    ip(libc::IP_MTU_DISCOVER, Transfer::Copy),
    ip(libc::IP_RECVERR, Transfer::Copy),
    ip(libc::IP_BIND_ADDRESS_NO_PORT, Transfer::Copy),
    ip(libc::IP_OPTIONS, Transfer::Never),
    ip(libc::IP_TRANSPARENT, Transfer::Never),
    ip(libc::IP_UNICAST_IF, Transfer::Never),
    ipv6(libc::IPV6_V6ONLY, Transfer::Copy),
    ipv6(libc::IPV6_TCLASS, Transfer::Copy),
    ipv6(libc::IPV6_UNICAST_HOPS, Transfer::Copy),
    ipv6(libc::IPV6_MTU_DISCOVER, Transfer::Copy),
    ipv6(libc::IPV6_RECVERR, Transfer::Copy),
    ipv6(libc::IPV6_HOPOPTS, Transfer::Never),
    ipv6(libc::IPV6_RTHDRDSTOPTS, Transfer::Never),
    ipv6(libc::IPV6_RTHDR, Transfer::Never),
    ipv6(libc::IPV6_DSTOPTS, Transfer::Never),
    ipv6(libc::IPV6_UNICAST_IF, Transfer::Never),
];

/// The value of a socket option; `None` if the socket does not have the option.
type Value = Option<([u8; VALUE_BYTES_MAX], usize)>;

/// The values of a socket's options, in the order of `KNOWN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions(Vec<Value>);

impl SocketOptions {
    /// Reads the options of a socket. `version` is the IP version of the socket.
    #[must_use]
    pub fn read(socket: BorrowedFd<'_>, version: IpVersion) -> Self {
        let has =
            |known: &KnownOption| version == IpVersion::V6 || known.level != libc::IPPROTO_IPV6;
        Self(KNOWN.iter().map(|known| has(known).then(|| read(socket, known)).flatten()).collect())
    }

    /// Returns whether all changed options can be copied to another socket. An option is changed if
    /// its value differs from `fresh`, the options of a new socket in the same network namespace.
    #[must_use]
    pub fn can_transfer(&self, fresh: &Self) -> bool {
        let all = KNOWN.iter().zip(self.0.iter().zip(&fresh.0));
        all.filter(|(_, (own, fresh))| own != fresh)
            .all(|(known, (own, _))| known.transfer != Transfer::Never && own.is_some())
    }

    /// Copies the changed options to the socket `to`. An option is changed if its value differs
    /// from `fresh`, the options of a new socket in the same network namespace.
    ///
    /// # Errors
    /// An option cannot be copied.
    pub fn transfer(&self, fresh: &Self, to: BorrowedFd<'_>) -> io::Result<()> {
        let all = KNOWN.iter().zip(self.0.iter().zip(&fresh.0));
        for (known, (own, _)) in all.filter(|(_, (own, fresh))| own != fresh) {
            match own {
                Some(value) => write(to, known, *value)?,
                None => return Err(io::ErrorKind::Unsupported.into()),
            }
        }
        Ok(())
    }
}

fn read(socket: BorrowedFd<'_>, known: &KnownOption) -> Value {
    let mut value = [0_u8; VALUE_BYTES_MAX];
    let is_filter = known.name == SO_GET_FILTER && known.level == libc::SOL_SOCKET;
    // The kernel counts the instructions of a filter, and with no room it returns their number.
    let room = if is_filter { 0 } else { VALUE_BYTES_MAX };
    let mut length = libc::socklen_t::try_from(room).unwrap_or(0);
    let fd = socket.as_raw_fd();
    let to = value.as_mut_ptr().cast();
    // SAFETY: the buffer is live and writable for the length that the kernel receives.
    let result = unsafe { libc::getsockopt(fd, known.level, known.name, to, &raw mut length) };
    let length = usize::try_from(length).ok()?;
    if result < 0 {
        return None;
    }
    if is_filter {
        // Any instructions make the values differ from those of a fresh socket.
        return (length > 0).then_some((value, 0));
    }
    Some((value, length.min(VALUE_BYTES_MAX)))
}

fn write(
    socket: BorrowedFd<'_>,
    known: &KnownOption,
    (mut value, mut length): ([u8; VALUE_BYTES_MAX], usize),
) -> io::Result<()> {
    match known.transfer {
        Transfer::Never => return Err(io::ErrorKind::Unsupported.into()),
        Transfer::Half => {
            let [a, b, c, d, ..] = value;
            value[..4].copy_from_slice(&(i32::from_ne_bytes([a, b, c, d]) / 2).to_ne_bytes());
        }
        Transfer::Copy
            if known.name == libc::TCP_CONGESTION && known.level == libc::IPPROTO_TCP =>
        {
            length = value.iter().position(|byte| *byte == 0).unwrap_or(length);
        }
        Transfer::Copy => {}
    }
    let length = libc::socklen_t::try_from(length).unwrap_or(0);
    let fd = socket.as_raw_fd();
    let from = value.as_ptr().cast();
    // SAFETY: the value is live and has at least that length.
    let result = unsafe { libc::setsockopt(fd, known.level, known.name, from, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::net::sockopt;

    use crate::handed::new_tcp;

    #[test]
    fn what_the_program_set_is_copied_and_nothing_else() {
        for version in IpVersion::ALL {
            let [fresh, own, to] = [(); 3].map(|()| new_tcp(version).unwrap());
            let template = SocketOptions::read(fresh.as_fd(), version);
            let own_options = SocketOptions::read(own.as_fd(), version);
            assert_eq!(own_options, template);
            sockopt::set_tcp_nodelay(&own, true).unwrap();
            sockopt::set_socket_keepalive(&own, true).unwrap();
            sockopt::set_socket_linger(&own, Some(Duration::from_secs(3))).unwrap();
            sockopt::set_socket_recv_buffer_size(&own, 40_000).unwrap();
            sockopt::set_tcp_congestion(&own, "reno").unwrap();
            sockopt::set_ip_tos(&own, 0x10).unwrap();
            let limit = Some(Duration::from_millis(1500));
            sockopt::set_socket_timeout(&own, sockopt::Timeout::Send, limit).unwrap();
            let set = SocketOptions::read(own.as_fd(), version);
            set.transfer(&template, to.as_fd()).unwrap();
            let there = SocketOptions::read(to.as_fd(), version);
            assert_eq!(there, set);
        }
    }

    #[test]
    fn options_that_cannot_be_transferred_are_refused() {
        let version = IpVersion::V4;
        let fresh = new_tcp(version).unwrap();
        let template = SocketOptions::read(fresh.as_fd(), version);
        let refuses = |own: BorrowedFd<'_>| {
            let to = new_tcp(version).unwrap();
            SocketOptions::read(own, version).transfer(&template, to.as_fd()).is_err()
        };
        let plain = new_tcp(version).unwrap();
        assert!(!refuses(plain.as_fd()));
        let name = crate::option::OptionName {
            level: libc::IPPROTO_TCP,
            name: libc::TCP_FASTOPEN_CONNECT,
        };
        crate::option::set_option(plain.as_fd(), name, 1).unwrap();
        assert!(refuses(plain.as_fd()));
        let routed = new_tcp(version).unwrap();
        let name = crate::option::OptionName { level: libc::SOL_SOCKET, name: libc::SO_DONTROUTE };
        crate::option::set_option(routed.as_fd(), name, 1).unwrap();
        assert!(refuses(routed.as_fd()));
    }
}
