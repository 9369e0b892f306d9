//! Verifies the certificates of peers, during handshakes and for resumed sessions. The rule sets
//! the level of verification, such as `full`.
//!
//! ```text
//!   rule --> ServerCheck (tacit is the client)   full | chain | none
//!        \-> ClientCheck (tacit is the server)   every level except `none`
//!                 | called by rustls inside one step of a handshake
//!                 v
//!             PeerCheck   valid | invalid: reason | …     shown per connection
//! ```
//!
//! The handshake of a resumed session contains no certificates, and the certificates of the first
//! handshake may have expired meanwhile. So the function `recheck` checks the chain of the first
//! handshake again, and `allows` decides whether the connection may continue.
//!
//! A rule may accept a certificate that failed the check. Even then, the peer must prove that it
//! holds the private key. tacit always rejects X.509 v1 certificates and RSA keys below 2048 bits.
//! The reason is that tacit cannot use these certificates and keys to verify a handshake signature.
//!
//! If the `[trust.NAME]` table names revocation lists (CRLs), this module looks up every
//! certificate of a chain in these CRLs. If no current CRL covers a certificate, the setting
//! `revocation` of the table decides whether tacit accepts the certificate. OCSP is not supported.

mod chain_cache;
mod client;
mod identity;
mod proof;
mod server;
mod trust_check;

pub use chain_cache::{CHAINS_MAX, ChainCache};
pub use client::ClientCheck;
pub use identity::{IdentityMapper, MappedIdentity, PeerIdentity, identity};
pub(crate) use proof::{algorithms, provable};
pub use server::ServerCheck;
pub(crate) use server::unnamed;

#[cfg(test)]
mod tests;
