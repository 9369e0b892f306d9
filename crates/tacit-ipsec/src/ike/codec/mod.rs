//! Reads and writes IKEv2 messages (RFC 7296 section 3).
//!
//! ```text
//!   header: SPIs, exchange, flags, message ID, length
//!   payload ─> payload ─> ... each names the type of the next
//!   the last may be SK or SKF, which contains further payloads, encrypted
//! ```
//!
//! Each payload has a file. Lengths are checked strictly: a field that is too short or too long is
//! an error that names the field. Section 2.5 defines what happens to unknown parts. The parser
//! skips an unknown payload, or reports an error if its critical bit is set. It keeps an unknown
//! transform in its proposal, so that this proposal cannot be chosen by mistake. Lists and lengths
//! have limits.

mod auth;
mod cert;
mod chain;
mod config;
mod delete;
mod encrypted;
mod error;
mod header;
mod identification;
mod key_exchange;
mod message;
pub(crate) mod notify;
mod reader;
mod security_association;
mod traffic_selectors;
mod version;

pub(crate) use auth::{AuthMethod, AuthPayload};
pub(crate) use cert::{CertPayload, CertRequestPayload};
pub(crate) use chain::{IkePayload, encode_payloads, parse_payloads};
pub(crate) use config::{ConfigAttribute, ConfigKind, ConfigPayload};
pub(crate) use delete::DeletePayload;
pub(crate) use encrypted::{FRAGMENT_PREFIX_BYTES, Fragment, encode_prefix};
pub use error::CodecError;
pub(crate) use header::{ExchangeType, IkeHeader};
pub(crate) use identification::IdPayload;
pub(crate) use key_exchange::KePayload;
pub(crate) use message::{IkeMessage, MESSAGE_BYTES_MAX, encode_message};
pub(crate) use notify::NotifyPayload;
pub(crate) use security_association::{Proposal, ProtocolId, Transform, TransformKind};
pub(crate) use traffic_selectors::TsPayload;
pub(crate) use version::refuse_version;
#[cfg(test)]
mod tests;
