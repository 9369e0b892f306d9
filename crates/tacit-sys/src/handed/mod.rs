//! Replaces a socket of another process while the process waits in `connect`. The new socket
//! belongs to another network namespace.
//!
//! ```text
//!   program ── connect ──> kernel ── notification ──> supervisor
//!                                     Caller           the process of the descriptor, and others
//!                                     SocketOptions    what the program has set on it
//!                                     NotifyListener   puts the other socket under its number
//!                                     Registration     moves its epoll entries
//! ```
//!
//! While the process waits, its ID cannot belong to another process. So after each read from the
//! process, the caller must check that it still waits
//! ([`crate::spawn::NotifyListener::is_waiting`]).
//!
//! Limit: at most [`DESCRIPTORS_MAX`] descriptors of a process are examined.

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
