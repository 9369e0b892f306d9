//! Defines sockets and targets for the code that serves connections, datagrams, runs and DNS
//! queries. This module does not know policies.
//!
//! * [`stream_socket`]: one socket of a connection, with its readiness;
//! * [`target`]: the addresses that a rule connects to;
//! * [`pool`]: sockets that were created in advance;
//! * [`Position`]: whether a socket is downstream or upstream;
//! * [`Security`]: whether a socket is protected by TLS or clear;
//! * [`Accepted`]: a connection that a listener has accepted.

mod accepted;
pub mod pool;
mod position;
mod security;
pub mod stream_socket;
pub mod target;

pub use accepted::Accepted;
pub use position::Position;
pub use security::Security;
