//! Reads and writes IKEv2 messages (RFC 7296 section 3).
//!
//! ```text
//!   header: SPIs, exchange, flags, message ID, length
//!   payload ─> payload ─> ... each contains the type of the next payload
//!   the last payload may be SK or SKF; it contains encrypted payloads
//! ```
//!
//! There is one module for each payload. Every length is checked, and an error names the field with
//! the wrong length. Unknown payloads are skipped, unless their critical bit is set (section 2.5).
//! A proposal with an unknown transform is parsed, but never chosen.

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
mod route;
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
pub use route::IkeRoute;
pub(crate) use security_association::{Proposal, ProtocolId, Transform, TransformKind};
pub(crate) use traffic_selectors::TsPayload;
pub(crate) use version::refuse_version;
#[cfg(test)]
mod tests;
