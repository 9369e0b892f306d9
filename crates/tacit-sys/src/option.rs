//! Options of sockets that rustix has no wrapper for: those that are one int, and packet filters.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Which option. A control message that belongs to one has the same two numbers as level and type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionName {
    /// The protocol that has it.
    pub(crate) level: libc::c_int,
    /// Its number there.
    pub(crate) name: libc::c_int,
}

/// Sets an option that is one int.
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

/// Reads an option that is one int.
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

/// Has the kernel drop every packet that arrives at the socket.
pub(crate) fn drop_all_packets(socket: BorrowedFd<'_>) -> io::Result<()> {
    // The one instruction returns how many bytes of the packet are kept: none.
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or(0);
    let mut keep_nothing = libc::sock_filter { code, jt: 0, jf: 0, k: 0 };
    let filter = libc::sock_fprog { len: 1, filter: &raw mut keep_nothing };
    let fd = socket.as_raw_fd();
    let length = socklen::<libc::sock_fprog>();
    let value = (&raw const filter).cast();
    // SAFETY: the value is a live sock_fprog of that length, which points to one live instruction;
    // the kernel copies both during the call.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn socklen<T>() -> libc::socklen_t {
    // A structure of the socket interface: some bytes.
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}
