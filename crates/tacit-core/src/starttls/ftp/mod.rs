//! FTP: both roles, from the greeting to the end of the control connection.
//!
//! ```text
//!   server role    client ══TLS══ tacit ──clear── server     AUTH, PBSZ, PROT answered by tacit
//!   client role    client ──clear── tacit ══TLS══ server     AUTH, PBSZ, PROT sent by tacit
//!
//!   PASV, EPSV     the client is told an address where tacit listens; the server's is dialled
//!   PORT, EPRT     the server is told an address where tacit listens; the client's is dialled
//! ```
//!
//! RFC 959, 2228, 2428, 4217. Unlike other dialogues this one never comes to an end under TLS: each
//! data connection is agreed on the control connection.
//!
//! Commands go on one at a time: the next waits for the last reply of the one before, so that what
//! tacit answers itself stands in order. Only what may interrupt a transfer does not wait.
//!
//! What is not understood fails closed: an address of the server that nobody asked for is withheld;
//! addresses other than those of the control connection's own ends are not used (RFC 2577 section
//! 3); before TLS a client that must use it gets nothing but a greeting and an answer to harmless
//! questions, and a server nothing but `AUTH TLS`.
//!
//! Limits: [`LINE_BYTES_MAX`], [`GREETING_BYTES_MAX`]. CCC, REIN under TLS, security mechanisms
//! other than TLS, RFC 1639 addresses and transfers between two servers are refused.

mod address;
mod client;
mod control;
mod line;
mod machine;
mod replies;
mod reply;
mod server;
#[cfg(test)]
mod tests;

pub use super::data::{ControlAddresses, DataRequest, UploadFlag};
pub use client::GREETING_BYTES_MAX;
pub(super) use control::FtpControl;
pub use line::LINE_BYTES_MAX;
