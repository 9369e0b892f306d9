//! Registers sockets with the async runtime, so that tasks can wait until a socket is readable or
//! writable.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that is registered with the runtime. Several owners share it; it is closed when the
/// last owner drops it.
pub type Watched = AsyncFd<Arc<OwnedFd>>;

/// What a datagram socket is watched for: a datagram, or an error about a datagram that it has
/// sent. A socket that has only an error is not readable.
pub const READABLE_OR_ERROR: Interest = Interest::READABLE.add(Interest::ERROR);

/// Registers a socket with the current runtime.
///
/// # Errors
/// The kernel's limit of watched descriptors is reached (`fs.epoll.max_user_watches`), or memory is
/// exhausted.
pub fn watch(socket: Arc<OwnedFd>, interest: Interest) -> io::Result<Watched> {
    // SAFETY: `Arc<OwnedFd>` always names the same descriptor, which stays open for as long as the
    // `Arc` lives, and `AsyncFd` owns the `Arc`.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}
