//! Sockets: what the lanes, runs and name service share below any policy.
//!
//! [`leg`] is one socket of a connection with its readiness, [`target`] is where a rule connects
//! to, [`pool`] keeps sockets that were made in advance, [`Security`] is what protects the bytes on
//! a socket, and [`Accepted`] is a connection on its way from a listener to its lane.

mod accepted;
pub mod leg;
pub mod pool;
mod security;
pub mod target;

pub use accepted::Accepted;
pub use security::Security;
