//! Starts a program for a new connection, if the rule of the connection has the key `activate`. If
//! one process of the program serves all connections, connects to this process instead.

use tacit_core::flow::Address;

use crate::activate::client::ActivatedProgram;
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::session::{ConnectionRecord, Unreached};

use super::dial::Upstream;
use super::lane::Shared;

/// Starts the program of a connection, or connects to the process for all connections.
///
/// # Errors
/// The program was not started.
pub(super) async fn start(
    shared: &Shared,
    record: &ConnectionRecord,
) -> Result<Upstream, Unreached> {
    let activation = record.rule.rule.activation();
    let (Some(activation), Some(starter)) = (activation, &shared.starter) else {
        return Err(Unreached::from(
            "the agent has no process that starts programs of [activate] tables: run `tacit \
             restart`",
        ));
    };
    let remote = match record.client() {
        Address::Inet(remote) => Some(*remote),
        Address::Path(_) | Address::Abstract(_) | Address::Unnamed => None,
    };
    let started = starter.activate(&activation.name, remote).await;
    let ActivatedProgram { socket, .. } =
        started.map_err(|reason| Unreached { reason, error: None, is_ours: false })?;
    let failed = |error| Unreached::new(&"the program", &error);
    rustix::io::ioctl_fionbio(&socket, true).map_err(|error| failed(error.into()))?;
    let socket = StreamSocket::new(socket, Security::Clear).map_err(failed)?;
    Ok(Upstream { socket, target: Address::Unnamed })
}
