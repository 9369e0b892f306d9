//! Defines the sockets and targets that several parts of the agent use. These types are independent
//! of the policy.
//!
//! * [`stream_socket`]: reads and writes one socket of a connection;
//! * [`target`]: the addresses to which a rule connects;
//! * [`pool`]: sockets that were created in advance;
//! * [`udp_counters`]: the kernel's counters of datagrams;
//! * [`route`]: the local address from which this host sends to a remote address;
//! * [`Position`]: whether a socket is downstream or upstream;
//! * [`Security`]: whether a socket transfers data with TLS or in clear;
//! * [`Accepted`]: a connection that a listener has accepted.

mod accepted;
pub mod pool;
mod position;
pub mod route;
mod security;
pub mod stream_socket;
pub mod target;
pub mod udp_counters;

pub use accepted::Accepted;
pub use position::Position;
pub use security::Security;
