//! Explains in one line why a handshake failed, which side must act, and what to do.
//!
//! The errors of the TLS library are written in terms of the TLS protocol. But operators need to
//! know whether the cause is the peer, this host, the policy or the network. Each failure has a
//! `kind` for counters and logs.
//!
//! If a handshake fails, this module examines the first bytes that the peer has sent. These bytes
//! show whether the peer used an obsolete version of TLS or another protocol.

mod alert;
mod describe;
mod first_bytes;
mod handshake_failure;

pub use alert::describe_alert_number;
pub use describe::{FailedHandshake, describe_error, describe_lacking_alpn};
pub use first_bytes::{FIRST_BYTES_MAX, looks_like_plaintext, offered_version};
pub use handshake_failure::{HandshakeFailure, HandshakeRole, Party};

#[cfg(test)]
mod tests;
