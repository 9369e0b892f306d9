//! Requests the agent's sockets for `tacit agent --host` from the helper process, which also
//! installs the nftables rules.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tacit_core::flow::Address;
use tacit_core::policy::HostSettings;
use tacit_sys::{query, socket};

use crate::address;
use crate::run::channel::HelperChannel;
use crate::run::handover::HeldAddress;
use crate::run::launchers::RunSockets;

/// The sockets of a joined namespace, and the listeners for clients of its programs.
///
/// # Errors
/// The helper or the kernel refuses, or the namespace is that of this agent, whose own packets
/// would be captured.
pub(super) async fn sockets_of_joined(
    channel: &HelperChannel,
    helper: OwnedFd,
) -> io::Result<(RunSockets, Vec<HeldAddress>)> {
    let made = sockets_of(channel, helper, HostSettings::MARK_DEFAULT).await;
    let (sockets, clients) = made.map_err(|error| {
        io::Error::other(format!(
            "{error}; if another `tacit run` captures the traffic of this namespace, end that run \
             first"
        ))
    })?;
    let of_agent = query::own_network();
    let is_own = |socket: &OwnedFd| {
        let of_socket = query::network_of(socket.as_fd());
        matches!((of_socket, &of_agent), (Ok(one), Ok(other)) if one == *other)
    };
    if sockets.tcp.iter().any(is_own) {
        let reason = "the given namespace is the agent's own network namespace; to capture the \
                      traffic of all programs of a host, use `tacit agent --host`";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok((sockets, clients))
}

/// The sockets that a helper makes for nftables rules of a host, and the listeners for clients.
///
/// # Errors
/// The helper or the kernel refuses.
pub(super) async fn sockets_of(
    channel: &HelperChannel,
    helper: OwnedFd,
    mark: u32,
) -> io::Result<(RunSockets, Vec<HeldAddress>)> {
    let mut sockets = channel.host_sockets(mark).await?;
    let clients = sockets.split_off(clients_at(sockets.len()));
    Ok((RunSockets::of_host(helper, sockets)?, held(clients)?))
}

/// Returns the index of the first listener for clients among the sockets of a host. There is one
/// for each IP version.
fn clients_at(sockets: usize) -> usize {
    // One socket for the log; for each IP version, five sockets for programs of the host and one
    // for clients.
    let versions = sockets.saturating_sub(1) / 6;
    sockets.saturating_sub(versions)
}

fn held(sockets: Vec<OwnedFd>) -> io::Result<Vec<HeldAddress>> {
    let held = sockets.into_iter().map(|socket| {
        let address: Address = address::from_socket(&socket::local_address(socket.as_fd())?);
        Ok(HeldAddress { address, socket })
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listeners_for_clients_come_last() {
        assert_eq!([clients_at(7), clients_at(13)], [6, 11]);
    }
}
