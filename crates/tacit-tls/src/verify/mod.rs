//! Verifies the certificates of peers, during handshakes and for resumed sessions.
//!
//! ```text
//!   rule --> ServerCheck (we are the client)   full | chain | none
//!        \-> ClientCheck (we are the server)   any level but none
//!                 | called by rustls inside one step of a handshake
//!                 v
//!             PeerCheck   valid | invalid: reason | …     shown per connection
//! ```
//!
//! All connections of a rule share one `ServerCheck` or `ClientCheck`. The module `outcome` passes
//! the result of a check to the handshake.
//!
//! A resumed session has no certificate check in its handshake, although the chain may have expired
//! or the trust may have changed since. So the function `recheck` checks the stored chain again,
//! and `allows` decides whether the connection is allowed.
//!
//! A chain in the cache is not verified again ([`ChainCache`]).
//!
//! A rule may accept a certificate that failed its check (`preferred`, `none`). Even then the peer
//! must prove that it holds the key of the certificate. This proof is not accepted with X.509 v1
//! certificates and RSA keys below 2048 bits, so they are rejected at every level.
//!
//! If the trust has CRLs, every certificate of a chain is looked up in them. If no current CRL
//! covers a certificate, the check rejects the certificate, or accepts it with a report, as the
//! trust's settings require. OCSP is not supported.

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
