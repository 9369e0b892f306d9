//! Opens AF_VSOCK sockets. Over these sockets, a virtual machine and its host communicate without a
//! network.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The connections that wait until they are accepted.
const BACKLOG: i32 = 4096;

/// A connection that was accepted.
#[derive(Debug)]
pub struct AcceptedVsock {
    /// The non-blocking socket.
    pub socket: OwnedFd,
    /// The context of the other side, as the kernel reports it.
    pub cid: u32,
}

/// Begins to connect a non-blocking socket. It is connected when it is writable and has no error.
///
/// # Errors
/// The kernel has no vsock, or another error of `socket` or `connect`.
pub fn dial(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let socket = open()?;
    let address = address(cid, port);
    let pointer = (&raw const address).cast::<libc::sockaddr>();
    // SAFETY: the address is valid for the length, and the descriptor is open.
    let connected = unsafe { libc::connect(socket.as_raw_fd(), pointer, ADDRESS_BYTES) };
    if connected == 0 {
        return Ok(socket);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
        error => Err(error),
    }
}

/// Listens at a port of this kernel, for all contexts.
///
/// # Errors
/// The kernel has no vsock, or another error of `socket`, `bind` or `listen`.
pub fn listen(port: u32) -> io::Result<OwnedFd> {
    let socket = open()?;
    let address = address(libc::VMADDR_CID_ANY, port);
    let pointer = (&raw const address).cast::<libc::sockaddr>();
    // SAFETY: the address is valid for the length, and the descriptor is open.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), pointer, ADDRESS_BYTES) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection.
///
/// # Errors
/// `WouldBlock` if there is none; otherwise the error of `accept`.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<AcceptedVsock> {
    let mut address = address(0, 0);
    let mut length = ADDRESS_BYTES;
    let pointer = (&raw mut address).cast::<libc::sockaddr>();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: both pointers are valid, and the kernel writes at most `length` bytes.
    let accepted = unsafe { libc::accept4(listener.as_raw_fd(), pointer, &raw mut length, flags) };
    if accepted < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `accept4` has returned this descriptor, which nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(accepted) };
    Ok(AcceptedVsock { socket, cid: address.svm_cid })
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::VSOCK, SocketType::STREAM, flags, None)?)
}

fn address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = AddressFamily::VSOCK.as_raw();
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

#[expect(clippy::cast_possible_truncation, reason = "the type sockaddr_vm has 16 bytes")]
const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
