//! Implements TLS for tacit: handshakes, the certificate checks that a rule requires, and the
//! encryption and decryption of records.
//!
//! Only this crate uses rustls. This crate opens no socket and looks up no rule: the caller passes
//! bytes, the time and the rule.
//!
//! ```text
//!   certificate and key files          rule (tacit-core::policy)
//!            │                                   │
//!            v                                   v
//!       credentials ─────────────────────> ClientSettings, ServerSettings     for each rule
//!   identities, trusts, CRLs                     │
//!                                                v
//!   bytes of the peer ──> Handshake::advance ──> Handshake::finish           for each connection
//!                              │                 │
//!                              v                 v
//!                      HandshakeFailure     CompletedHandshake
//!                      kind, party,          ├ session: Session     encrypts, decrypts records
//!                      next step             ├ agreed     negotiated version, suite, ALPN, name
//!                                            ├ check      result of the certificate check
//!                                            └ named, peer   names and certificates of the peer
//! ```
//!
//! rustls runs the handshake, and [`verify`] checks certificates during the handshake. After the
//! handshake, a [`Session`] encrypts and decrypts the records in buffers of the caller. [`failure`]
//! explains failures to operators in one line. An example of a handshake without I/O:
//!
//! ```
//! use std::time::Instant;
//!
//! use rustls_pki_types::UnixTime;
//! use tacit_core::policy::Rekey;
//! use tacit_tls::{CompletedHandshake, Handshake, HandshakeFailure, HandshakeProgress};
//!
//! /// `exchange` sends `outgoing`, empties it, and appends received bytes to `incoming`.
//! fn run(
//!     mut handshake: Handshake,
//!     mut exchange: impl FnMut(&mut Vec<u8>, &mut Vec<u8>),
//! ) -> Result<CompletedHandshake, HandshakeFailure> {
//!     let mut incoming = Vec::new();
//!     let mut outgoing = Vec::new();
//!     while handshake.advance(&mut incoming, &mut outgoing)? == HandshakeProgress::Blocked {
//!         exchange(&mut outgoing, &mut incoming);
//!     }
//!     exchange(&mut outgoing, &mut incoming);
//!     handshake
//!         .finish(Rekey::default(), Instant::now(), UnixTime::now())
//!         .map_err(|refused| refused.failure)
//! }
//! ```
//!
//! Each module uses only earlier modules of this list: [`facts`], [`files`], [`fault`],
//! [`subject`], [`check`], [`failure`], `keys`, `secrets`, `key_log`, `outcome` (what rustls
//! reports in callbacks), [`signer`], [`credentials`], [`key_store`], `diagnose`, [`verify`],
//! `config`, [`dry_run`], [`tunnel_auth`], [`recheck`], `session`, `machine`, `handshake`,
//! `settings_pair`, [`measure`].
#![forbid(unsafe_code)]

pub mod check;
mod config;
pub mod credentials;
mod diagnose;
pub mod dry_run;
pub mod facts;
pub mod failure;
pub mod fault;
pub mod files;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod handshake;
mod key_log;
pub mod key_store;
mod keys;
mod machine;
pub mod measure;
mod outcome;
pub mod recheck;
mod secrets;
mod session;
mod settings_pair;
pub mod signer;
pub mod subject;
pub mod tunnel_auth;
pub mod verify;

#[cfg(any(test, feature = "testing"))]
pub mod test_certificates;
#[cfg(feature = "testing")]
pub mod testing;

pub use check::PeerCheck;
pub use config::{ClientSettings, ServerSettings, SettingsError};
pub use facts::CertificateFacts;
pub use failure::{HandshakeFailure, HandshakeRole};
pub use handshake::{
    CompletedHandshake, FinishError, Handshake, INCOMING_BYTES_MAX, NegotiatedParameters,
};
pub use key_log::KeyLogLine;
pub use keys::{ExpandedKeyCache, HOT_CONNECTIONS_MAX, HotKeys};
pub use machine::HandshakeProgress;
pub use session::{KeyUse, NoRekey, OpenedBatch, Session, SessionError};
