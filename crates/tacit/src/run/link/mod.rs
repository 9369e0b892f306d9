//! The side of a link that has no network: requests sockets from `tacit link serve` on the side
//! that has one. [`protocol`] has the messages, which both sides use.

pub mod client;
pub mod protocol;
