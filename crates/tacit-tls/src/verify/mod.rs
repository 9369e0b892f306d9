//! Checking the peer's certificate, and saying what came of it.
//!
//! ```text
//!   rule --> ServerCheck (we are the client)   full | chain | none
//!        \-> ClientCheck (we are the server)   any level but none
//!                 | called by rustls inside one step of a handshake
//!                 v
//!             PeerCheck   valid | invalid: reason | …     shown per connection
//! ```
//!
//! A check is shared by all connections of a rule; `outcome` carries its result to the
//! handshake that it ran for.
//!
//! A resumed session skips the check. The chain it was opened with may have expired since, or the
//! trust may have changed: `recheck` looks at the stored chain again, `allows` says what follows.
//!
//! A chain that was believed before is not verified again ([`Chains`]).
//!
//! Whatever is waived (`preferred`, `none`), the peer must prove that it holds the certificate's
//! key. That proof cannot be checked with an X.509 v1 certificate or an RSA key below 2048 bits, so
//! those are refused at every level.
//!
//! Where the trust has lists of revoked certificates, every certificate of a chain is looked up.
//! What no current list tells of is refused, or believed and told of. Not done here: asking anybody
//! else (OCSP).

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
