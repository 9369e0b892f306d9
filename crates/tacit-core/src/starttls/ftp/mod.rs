//! Implements TLS for FTP, for programs that act as client or server, from the greeting to the end
//! of the control connection.
//!
//! ```text
//!   server role    client ══TLS══ tacit ──clear── server     AUTH, PBSZ, PROT answered by tacit
//!   client role    client ──clear── tacit ══TLS══ server     AUTH, PBSZ, PROT sent by tacit
//!
//!   PASV, EPSV     the client gets an address where tacit listens; the server's is dialled
//!   PORT, EPRT     the server gets an address where tacit listens; the client's is dialled
//! ```
//!
//! See RFC 959, 2228, 2428 and 4217. The exchanges of other STARTTLS protocols end when TLS begins.
//! The exchange of FTP continues under TLS, because each data connection is negotiated on the
//! control connection.
//!
//! Commands are forwarded one at a time. A command waits until the previous command has its final
//! reply, so that tacit's own replies stay in order. Commands that may interrupt a transfer are the
//! exception: they do not wait.
//!
//! Unexpected input never leads to clear text. If the server sends a data address that was not
//! requested, tacit does not forward the address. Data connections use only the addresses of the
//! two ends of the control connection (RFC 2577 section 3). If TLS is required, a client gets only
//! a greeting and replies to harmless commands before TLS begins, and a server gets only `AUTH
//! TLS`.
//!
//! Limits: [`LINE_BYTES_MAX`] for a line and [`GREETING_BYTES_MAX`] for a greeting. CCC, REIN under
//! TLS, security mechanisms other than TLS, RFC 1639 addresses and transfers between two servers
//! are rejected.

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
