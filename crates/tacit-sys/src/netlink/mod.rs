//! Configures interfaces, routes and nftables rules by netlink, without external programs.
//!
//! ```text
//! Message (header, fixed part, attributes) -> Netlink::run -> one send -> one answer per message
//! ```
//!
//! The modules are [`route`] (addresses and routes), [`tunnel`] (routes into IPsec tunnels),
//! [`destinations`] (the destinations of all routes), [`changes`] (messages about changes of
//! interfaces and routes), [`nft`] (nftables rules), [`nflog`] (copies of packets), [`diag`]
//! (owners of sockets) and [`usage`] (bytes of sockets).
//!
//! An error contains the step that failed. If the kernel reports the rejected attribute, such as
//! the `socket` expression of an nftables rule, the error also contains this attribute.
//!
//! A netlink socket belongs to the network namespace in which it was created, even if a process in
//! another namespace uses it. Only one caller can use a socket at a time (`&mut`).
//!
//! Limits: [`BATCH_BYTES_MAX`] for one send, [`REPLY_WAIT`] for an answer.

pub mod changes;
pub mod destinations;
pub mod diag;
mod error;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod interfaces;
mod message;
pub mod nflog;
pub mod nft;
mod protocol;
pub mod route;
pub mod routing_rule;
mod socket;
pub mod tunnel;
pub mod unix_diag;
pub mod usage;

pub use error::Error;
#[cfg(test)]
use message::testing;
pub use protocol::IpProtocol;
pub use socket::{BATCH_BYTES_MAX, LARGE_BATCH_BYTES_MAX, Netlink, REPLY_WAIT, Subsystem};
