//! Receives a message whenever the interfaces, addresses or routes of a network namespace change.
//!
//! This module does not read the content of the messages: after a message, the caller reads the
//! whole new state. So the caller misses no change if messages are lost: the kernel drops a message
//! only while earlier messages wait, and these wake the caller.
//!
//! Limit: at most [`ROUTE_BYTES_MAX`] bytes of messages about routes wait, because a host may
//! change thousands of routes at once.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

/// The largest number of messages about changes that are read at a time.
const CHANGES_AT_ONCE_MAX: usize = 1000;
/// The size of the receive buffer for messages about routes, as the kernel counts it.
pub const ROUTE_BYTES_MAX: usize = 16 * 1024;
/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`.
const INTERFACE_GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// The bits of `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV4_RULE`, `RTNLGRP_IPV6_ROUTE`, `RTNLGRP_IPV6_RULE`
/// and `RTNLGRP_NEXTHOP` (next hops that several routes share).
const ROUTE_GROUPS: u32 = 0x40 | 0x80 | 0x400 | 0x4_0000 | 0x8000_0000;

/// Opens a non-blocking socket that receives a message whenever an interface or an address of this
/// namespace changes. [`discard`] reads the messages.
///
/// # Errors
/// The error of a system call.
pub fn of_interfaces() -> io::Result<OwnedFd> {
    subscribe(INTERFACE_GROUPS)
}

/// Opens a non-blocking socket that receives a message whenever a route or a routing rule of this
/// namespace changes. [`discard`] reads the messages. The kernel may report the removal of a route
/// just before it removes the route.
///
/// # Errors
/// The error of a system call.
pub fn of_routes() -> io::Result<OwnedFd> {
    let socket = subscribe(ROUTE_GROUPS)?;
    // The kernel doubles the size.
    sockopt::set_socket_recv_buffer_size(&socket, ROUTE_BYTES_MAX / 2)?;
    Ok(socket)
}

/// Reads and discards all messages about changes. The caller then reads the new state.
pub fn discard(changes: BorrowedFd<'_>) {
    let mut message = [0; 4096];
    // The loop continues after an error, because the kernel reports lost messages by one error.
    for _ in 0..CHANGES_AT_ONCE_MAX {
        let read = rustix::net::recv(changes, &mut message[..], RecvFlags::empty());
        if read == Err(rustix::io::Errno::AGAIN) {
            return;
        }
    }
}

fn subscribe(groups: u32) -> io::Result<OwnedFd> {
    let family = AddressFamily::NETLINK;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}
