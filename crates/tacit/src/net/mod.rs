//! Defines sockets and targets for the lanes, runs and the name service. This layer does not know
//! policies.
//!
//! [`stream_socket`] is one socket of a connection with its readiness, [`target`] has the addresses
//! that a rule connects to, [`pool`] keeps sockets that were created in advance, [`Position`] is
//! downstream or upstream, [`Security`] is the protection of a socket (clear or TLS), and
//! [`Accepted`] is a connection that a listener passes to its lane.

mod accepted;
pub mod pool;
mod position;
mod security;
pub mod stream_socket;
pub mod target;

pub use accepted::Accepted;
pub use position::Position;
pub use security::Security;
