//! Registers sockets with the async runtime, so that tasks can wait until a socket is readable or
//! writable.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket with its readiness. The socket is shared so that others can look at it; it closes
/// when the last of them lets go.
pub type Watched = AsyncFd<Arc<OwnedFd>>;

/// Watches a socket on the current runtime.
///
/// # Errors
/// The kernel watches no more (`fs.epoll.max_user_watches`), or memory is short.
pub fn watch(socket: Arc<OwnedFd>, interest: Interest) -> io::Result<Watched> {
    // SAFETY: `Arc<OwnedFd>` always names the same descriptor, which stays open for as long as the
    // `Arc` lives, and `AsyncFd` owns the `Arc`.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}
