//! Why a handshake failed: who has to act, and what to do, in one line.
//!
//! The errors of the TLS library name protocol states; operators need to know whether it is the
//! peer, this host, the policy or the network. Each failure has a `kind` for counters and logs too.
//!
//! Old and foreign protocols are told from the first bytes the peer sent. They are looked at only
//! after the handshake has failed: nothing is ever delayed, or decided, by them.

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
