//! Replaces a program's socket with a socket from another network namespace, while the program
//! waits in `connect`.
//!
//! ```text
//!   program ── connect ──> kernel ── notification ──> helper process:
//!                            Caller          reads the program's descriptors, memory and signals
//!                            SocketOptions   copies the options of the socket
//!                            NotifyListener  installs the new socket at the same descriptor
//!                            Registration    moves the epoll entries of the socket
//! ```
//!
//! If the program is killed, another process may get the process ID of the program. So after each
//! read from the process, the helper must check that the program still waits
//! ([`crate::spawn::NotifyListener::is_waiting`]).
//!
//! Limit: this module examines at most [`DESCRIPTORS_MAX`] descriptors of a process.

mod caller;
mod epoll;
mod options;
mod socket;

pub use caller::{Caller, DESCRIPTORS_MAX, PendingSignal, References};
pub use epoll::{Registration, move_registrations};
pub use options::SocketOptions;
pub use socket::{
    ConnectState, Destination, SocketIdentity, StatusFlags, UNCONNECTED, adopt, connect,
    connect_timeout, connection_result, cookie, destination, disconnect, identity,
    interrupted_connection, namespace_cookie, new_tcp, new_tcp_from, set_blocking, state,
    status_flags, tcp_version,
};
