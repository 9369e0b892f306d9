//! Explains in one line why a handshake failed: who has to act, and what to do.
//!
//! The errors of the TLS library describe states of the protocol. Operators need to know whether
//! the peer, this host, the policy or the network is at fault. Each failure has a `kind` for
//! counters and logs.
//!
//! Obsolete versions and other protocols are recognised by the first bytes that the peer sent. This
//! happens only after the handshake has failed, so it does not delay or decide a handshake.

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
