//! Runs the helper process of a network namespace that another program has created, for example for
//! a container. The helper installs nftables rules in this namespace, and creates sockets for the
//! agent.
//!
//! When the helper ends, the nftables rules remain, and refuse the flows that they capture.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use tacit_sys::namespace::{self, JoinedNamespaces};
use tacit_sys::sandbox;

use super::helper::{RIGHTS, serve_requests};

/// Joins the namespace, calls `ready` with the channel, and serves until no agent has a channel.
/// `parent` is the process that started this one, as [`namespace::join`] needs it.
///
/// # Errors
/// The namespace cannot be joined, or `ready` fails.
pub fn serve_joined(
    channel: UnixStream,
    parent: u32,
    namespaces: JoinedNamespaces<'_>,
    ready: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let JoinedNamespaces { network, user } = namespaces;
    namespace::join(parent, network, user).map_err(io::Error::other)?;
    sandbox::keep_capabilities(RIGHTS & sandbox::capabilities()?)?;
    ready(channel.as_fd())?;
    serve_requests(channel)
}
