//! TLS: the only module that names rustls and aws-lc-rs, so that a new version of either is one
//! change in one place.
//!
//! ```text
//!   files ──> material ──> config ──> handshake ──> session
//!   (PEM)     (checked)    (a rule)   (one peer)    (records)
//! ```
//!
//! The library runs handshakes; everything after is the record layer of `tacit-core` with the
//! library's AEADs. Peers are checked by [`verify`], failures are put in words by [`failure`].
#![forbid(unsafe_code)]

pub mod check;
mod config;
mod diagnose;
pub mod dry_run;
pub mod facts;
pub mod failure;
pub mod files;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
pub mod holder;
mod keys;
pub mod material;
pub mod measure;
mod observe;
mod pair;
mod secrets;
mod session;
pub mod verify;

#[cfg(any(test, feature = "testing"))]
pub mod test_certificates;

pub use check::PeerCheck;
pub use config::{ClientSettings, ServerSettings, SettingsRefused};
pub use facts::CertificateFacts;
pub use failure::{HandshakeFailure, Role};
pub use handshake::{Agreed, Established, Handshake, INCOMING_BYTES_MAX, Progress};
pub use keys::{HOT_CONNECTIONS_MAX, HotKeys, Keyring};
pub use session::{Batch, NoRekey, Session, SessionError};
