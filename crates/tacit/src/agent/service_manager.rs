//! Notifies systemd that the service is ready.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tacit_core::message_id::MessageId;

use crate::exit::complain_of;

/// Notifies the service manager, if there is one, that the agent serves. The main process of the
/// service calls this: the supervisor, or an agent without one.
pub(super) fn notify_ready(agent: u32) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let state = format!("READY=1\nSTATUS=agent {agent} is ready");
    if let Err(error) = send(&path, state.as_bytes()) {
        complain_of(
            MessageId("not-notified"),
            format_args!("cannot notify the service manager: {error}"),
        );
    }
}

fn send(path: &OsStr, state: &[u8]) -> io::Result<usize> {
    let socket = UnixDatagram::unbound()?;
    match path.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.send_to_addr(state, &SocketAddr::from_abstract_name(name)?),
        None => socket.send_to(state, path),
    }
}
