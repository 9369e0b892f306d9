//! Implements TLS for FTP clients and servers that do not support TLS. tacit parses the control
//! connection from the greeting to the end.
//!
//! ```text
//!   server role    client ══TLS══ tacit ──clear── server     tacit answers AUTH, PBSZ, PROT
//!   client role    client ──clear── tacit ══TLS══ server     tacit sends AUTH, PBSZ, PROT
//!
//!   PASV, EPSV     tacit accepts the client's data connection, and opens one to the server
//!   PORT, EPRT     tacit accepts the server's data connection, and opens one to the client
//! ```
//!
//! See RFC 959, 2228, 2428 and 4217. For other protocols, tacit stops parsing when TLS begins, or
//! soon after. For FTP, tacit continues to parse under TLS, because FTP announces each data
//! connection on the control connection.
//!
//! tacit forwards a command only after the final reply to the previous command. So the replies stay
//! in order. During a transfer, tacit forwards ABOR, NOOP, QUIT and STAT immediately.
//!
//! If TLS is required, tacit forwards only FEAT, HELP, NOOP, QUIT and SYST before TLS begins.
//! Servers answer these commands without a login. A data connection uses only the IP addresses of
//! the control connection's two ends (RFC 2577 section 3).
//!
//! Limits: [`LINE_BYTES_MAX`] for a line and [`GREETING_BYTES_MAX`] for a greeting. Rejected: CCC,
//! REIN under TLS, security mechanisms other than TLS, RFC 1639 addresses, and transfers between
//! two servers.

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
