//! Replaces a socket of another process by a socket of another network, while the process waits in
//! `connect`.
//!
//! ```text
//!   program ── connect ──> kernel ── notification ──> supervisor
//!                                     Caller           the process of the descriptor, and others
//!                                     SocketOptions    what the program has set on it
//!                                     NotifyListener   puts the other socket under its number
//!                                     Registration     moves its epoll entries
//! ```
//!
//! The caller decides; the functions only read and change. After reading the state of a process,
//! the caller must check that the process still waits for the answer to its call
//! ([`crate::spawn::NotifyListener::is_waiting`]). Otherwise the process ID may belong to another
//! process.
//!
//! Limits: [`DESCRIPTORS_MAX`] descriptors of a process are examined.

mod caller;
mod epoll;
mod options;
mod socket;

pub use caller::{Caller, DESCRIPTORS_MAX, Descriptors, PendingSignal};
pub use epoll::{Registration, can_move, move_registrations};
pub use options::SocketOptions;
pub use socket::{
    ConnectState, Destination, SocketIdentity, StatusFlags, UNCONNECTED, connect, connect_timeout,
    connection_result, destination, disconnect, identity, namespace_cookie, new_tcp, set_blocking,
    state, status_flags, tcp_version,
};
