//! Netlink: asking the kernel for interfaces, packet rules and sockets, without any program.
//!
//! ```text
//! Message (header, fixed part, attributes) -> Netlink::run -> one send -> an answer a message
//! ```
//!
//! One builder serves all four users: [`route`] (addresses), [`nft`] (packet rules), [`nflog`]
//! (copies of packets) and [`diag`] (who owns a socket). Attributes are a 16-bit length, a 16-bit
//! type and a payload padded to four bytes, all in host order; what is inside a payload is the
//! user's matter.
//!
//! A refusal names the step and, where the kernel says which attribute it disliked, the part of
//! the message that holds it: "no such file" for a packet rule means nothing until one knows that
//! it was the `socket` expression.
//!
//! A socket may be made in one network namespace and used from another process outside: it stays
//! in the namespace that made it. One at a time uses it (`&mut`): two threads would mix answers.
//!
//! Limits: [`BATCH_BYTES_MAX`] a send, [`REPLY_WAIT`] for an answer.

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
mod socket;

pub use error::Error;
#[cfg(test)]
use message::testing;
pub use protocol::IpProtocol;
pub use socket::{BATCH_BYTES_MAX, Netlink, REPLY_WAIT, Subsystem};
