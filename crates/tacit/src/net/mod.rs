//! Sockets: what the lanes, runs and name service share below any policy.
//!
//! [`stream_socket`] is one socket of a connection with its readiness, [`target`] is where a rule
//! connects to, [`pool`] keeps sockets that were made in advance, [`Position`] says which of the
//! two sockets of a connection is meant, [`Security`] is what protects the bytes on one, and
//! [`Accepted`] is a connection on its way from a listener to its lane.

mod accepted;
pub mod pool;
mod position;
mod security;
pub mod stream_socket;
pub mod target;

pub use accepted::Accepted;
pub use position::Position;
pub use security::Security;
