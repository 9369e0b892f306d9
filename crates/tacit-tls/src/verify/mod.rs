//! Verifies the certificates of peers.
//!
//! ```text
//!   rule --> ServerCheck (we are the client)   full | chain | none
//!        \-> ClientCheck (we are the server)   any level but none
//!                 | called by rustls inside one step of a handshake
//!                 v
//!             PeerCheck   valid | invalid: reason | …     shown per connection
//! ```
//!
//! All connections of a rule share one `ServerCheck` or `ClientCheck`; `outcome` passes its result
//! to the handshake.
//!
//! A resumed session skips the check. Its chain may have expired since, or the trust may have
//! changed: `recheck` checks the stored chain again, and `allows` decides about the connection.
//!
//! A chain in the cache is not verified again ([`ChainCache`]).
//!
//! Even if the check is waived (`preferred`, `none`), the peer must prove that it holds the key of
//! its certificate. X.509 v1 certificates and RSA keys below 2048 bits allow no such proof and are
//! rejected at every level.
//!
//! If the trust has CRLs, every certificate of a chain is looked up in them. If no current CRL
//! covers a certificate, the check rejects it, or accepts it and reports that. OCSP is not
//! supported.

mod chain_cache;
mod client;
mod identity;
mod proof;
mod server;
mod trust_check;

pub use chain_cache::{CHAINS_MAX, ChainCache};
pub use client::ClientCheck;
pub use identity::{IdentityMapper, MappedIdentity, PeerIdentity, identity};
pub(crate) use proof::provable;
pub use server::ServerCheck;
pub(crate) use server::unnamed;

#[cfg(test)]
mod tests;
