//! Connects AF_VSOCK sockets. Over these sockets, a virtual machine and its host communicate
//! without a network.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Begins to connect a non-blocking socket. It is connected when it is writable and has no error.
///
/// # Errors
/// The kernel has no vsock, or another error of `socket` or `connect`.
pub fn dial(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?;
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = AddressFamily::VSOCK.as_raw();
    address.svm_cid = cid;
    address.svm_port = port;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_vm>()).unwrap_or(0);
    let pointer = (&raw const address).cast::<libc::sockaddr>();
    // SAFETY: the address is valid for the length, and the descriptor is open.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), pointer, length) };
    if connected == 0 {
        return Ok(socket);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        error => Err(error),
    }
}
