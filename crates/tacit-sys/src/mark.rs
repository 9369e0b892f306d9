//! Sets the fwmark (`SO_MARK`) on the agent's own sockets. With `tacit agent --host`, nftables
//! rules accept packets with this fwmark. So these rules do not capture the agent's own packets.
//!
//! A global variable of the process stores the fwmark. Every function that opens a socket sets this
//! fwmark on the socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use crate::option::{OptionName, set_option};

static OWN: OnceLock<u32> = OnceLock::new();

/// Sets the mark; later calls change nothing.
pub fn set_own(mark: u32) {
    OWN.get_or_init(|| mark);
}

/// Marks a socket, if this process has a mark.
///
/// # Errors
/// The error of `setsockopt`: it needs `CAP_NET_ADMIN`, or `CAP_NET_RAW` since Linux 5.17.
pub fn apply(socket: BorrowedFd<'_>) -> io::Result<()> {
    OWN.get().map_or(Ok(()), |mark| set(socket, *mark))
}

/// Marks the packets of a socket.
///
/// # Errors
/// The same as [`apply`].
pub(crate) fn set(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    let option = OptionName { level: libc::SOL_SOCKET, name: libc::SO_MARK };
    set_option(socket, option, mark.cast_signed())
}
