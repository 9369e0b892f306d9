//! Configures interfaces, routes and packet rules by netlink, without external programs.
//!
//! ```text
//! Message (header, fixed part, attributes) -> Netlink::run -> one send -> one answer per message
//! ```
//!
//! One message type serves all modules: [`route`] (addresses and routes), [`tunnel`] (routes of
//! protected flows), [`nft`] (packet rules), [`nflog`] (copies of packets), [`diag`] (owners of
//! sockets) and [`usage`] (bytes of sockets). An attribute has a 16-bit length, a 16-bit type and a
//! payload padded to four bytes, all in host order. The modules encode the payloads.
//!
//! An error names the step that failed and, if the kernel reports the attribute at fault, the part
//! of the message with this attribute. For example, the error "no such file" for a packet rule does
//! not say which part the kernel lacks, such as the `socket` expression.
//!
//! A netlink socket stays in the network namespace in which it was created, even when a process
//! outside uses it. Only one caller uses it at a time (`&mut`), because the answers to two callers
//! would be mixed up.
//!
//! Limits: [`BATCH_BYTES_MAX`] for the bytes of one send, [`REPLY_WAIT`] for the time until an
//! answer.

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
pub mod usage;

pub use error::Error;
#[cfg(test)]
use message::testing;
pub use protocol::IpProtocol;
pub use socket::{BATCH_BYTES_MAX, LARGE_BATCH_BYTES_MAX, Netlink, REPLY_WAIT, Subsystem};
