//! Loads the certificates, private keys, CA certificates and CRLs to which a policy refers. An
//! *identity* is a certificate with its private key. A *trust* is a set of CA certificates and
//! revocation lists (CRLs).
//!
//! ```text
//!   cert.pem, key.pem -> load_identity -> LoadedIdentity   the certificate of tacit
//!   ca.pem, ca.crl …  -> load_trust    -> LoadedTrust      the CAs that tacit trusts
//! ```
//!
//! This module finds errors when it loads the files, before tacit opens any connection. Examples
//! are a missing key, a key that other users can read, and an expired certificate. Private keys are
//! held only by rustls, in this process or in a [signer](crate::signer) process.
//!
//! When a file has changed ([`FileStamp`](crate::files::FileStamp)), the caller loads it again. If
//! this fails, the caller keeps the old credentials. Not supported: passphrases, keys in hardware,
//! downloading CRLs.

mod crls;
mod error;
mod expiry;
mod identity;
mod pair;
mod path;
mod pem;
mod pinned;
mod trust;
mod verifiers;

pub use crls::{Crl, CrlFacts, crl_expires_soon};
#[cfg(feature = "fuzz")]
pub(super) use crls::{crl_facts, parse as parse_crls, warnings as crl_warnings};
pub use error::{CredentialError, CredentialFault};
pub use expiry::{EXPIRY_WARNING_DAYS, ends_soon};
pub use identity::{LoadedIdentity, WrongUsage, load_chain, load_identity};
pub(crate) use pair::{ChainAndKey, PairFault, read_pair};
pub use path::AnchorFacts;
pub(crate) use path::{ChainOf, PathCheck, PathFault, UnknownRevocation, error_of};
pub use pinned::{PINNED_MAX, Pinned, UnusablePins};
pub(crate) use trust::trust_title;
pub use trust::{LoadedTrust, TrustGeneration, load_trust};
pub use verifiers::Verifiers;

#[cfg(test)]
mod tests;
