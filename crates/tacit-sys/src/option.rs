//! Sets and reads socket options for which rustix has no wrapper: integer options and socket
//! filters (`SO_ATTACH_FILTER`). Also sets the size of a receive buffer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;

/// The identity of an option. A control message for an option has the same two numbers as its level
/// and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionName {
    /// The protocol to which the option belongs.
    pub(crate) level: libc::c_int,
    /// The number of the option in this protocol.
    pub(crate) name: libc::c_int,
}

/// Sets an option whose value is an int.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    option: OptionName,
    value: libc::c_int,
) -> io::Result<()> {
    let OptionName { level, name } = option;
    let length = socklen::<libc::c_int>();
    let fd = socket.as_raw_fd();
    // SAFETY: the value is a live int of that length for the time of the call.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option whose value is an int.
pub(crate) fn option(socket: BorrowedFd<'_>, option: OptionName) -> io::Result<libc::c_int> {
    let OptionName { level, name } = option;
    let mut value = 0;
    let mut length = socklen::<libc::c_int>();
    let to = &raw mut value;
    let fd = socket.as_raw_fd();
    // SAFETY: the value is a live, writable int of that length for the time of the call.
    let result = unsafe { libc::getsockopt(fd, level, name, to.cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Reads the process and the user at the other end of a UNIX socket.
pub(crate) fn credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut value = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut length = socklen::<libc::ucred>();
    let to = (&raw mut value).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: the value is a live, writable `ucred` of that length for the time of the call.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Reads what the kernel stores for the socket, as `SO_MEMINFO` numbers it.
pub(crate) fn memory(socket: BorrowedFd<'_>) -> io::Result<[u32; MEMORY_NUMBERS]> {
    let mut numbers = [0; MEMORY_NUMBERS];
    let mut length = socklen::<[u32; MEMORY_NUMBERS]>();
    let to = (&raw mut numbers).cast();
    let fd = socket.as_raw_fd();
    // SAFETY: the value is a live, writable array of that length for the time of the call.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, to, &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(numbers) }
}

/// `SK_MEMINFO_VARS`.
pub(crate) const MEMORY_NUMBERS: usize = 9;
/// The positions of the bytes that wait to be received, of their limit, and of the packets that
/// were dropped at this limit.
pub(crate) const MEMORY_RECEIVED: usize = 0;
pub(crate) const MEMORY_RECEIVED_MAX: usize = 1;
pub(crate) const MEMORY_DROPS: usize = 8;

/// Makes the kernel drop every packet that arrives at the socket.
pub(crate) fn drop_all_packets(socket: BorrowedFd<'_>) -> io::Result<()> {
    // The only instruction returns the number of bytes to keep: none.
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or(0);
    attach_filter(socket, &mut [libc::sock_filter { code, jt: 0, jf: 0, k: 0 }])
}

/// Attaches a filter program to the socket, which decides how much of each arriving packet the
/// kernel keeps.
pub(crate) fn attach_filter(
    socket: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let len = u16::try_from(program.len()).map_err(too_long)?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let fd = socket.as_raw_fd();
    let length = socklen::<libc::sock_fprog>();
    let value = (&raw const filter).cast();
    // SAFETY: the value is a live sock_fprog of that length, which points to as many live
    // instructions as it says; the kernel copies both during the call.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a packet socket receive all packets of an interface, of any protocol.
pub(crate) fn bind_to_interface(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: every bit pattern of zeros is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be();
    address.sll_ifindex = index.cast_signed();
    let fd = socket.as_raw_fd();
    // SAFETY: the address is a live sockaddr_ll of that length for the time of the call.
    let result =
        unsafe { libc::bind(fd, (&raw const address).cast(), socklen::<libc::sockaddr_ll>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn socklen<T>() -> libc::socklen_t {
    // All structures of the socket interface have only a few bytes.
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}

/// Gives a socket a receive buffer of this size, or of the largest size that the host permits
/// (`net.core.rmem_max`). Only a process with `CAP_NET_ADMIN` for the host may exceed that limit.
///
/// # Errors
/// The error of `setsockopt`.
pub(crate) fn set_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(())
}
