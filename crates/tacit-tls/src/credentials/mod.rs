//! Identities and trusts: from the files a policy names to what a handshake uses.
//!
//! ```text
//!   cert.pem, key.pem -> load_identity -> LoadedIdentity   who we are
//!   ca.pem, ca.crl …  -> load_trust    -> LoadedTrust      whom we believe
//! ```
//!
//! What cannot work is an error here, before any connection is opened: a missing or exposed key, a
//! key of another certificate, an expired certificate. What will probably not work is a warning.
//! A private key is kept by rustls alone, here or in a [signer](crate::signer), and no message
//! holds a byte of it.
//!
//! Reloading is the caller's: load again when a
//! [`FileStamp`](crate::files::FileStamp) of `sources` has changed, and keep
//! what there was if that fails. Not done here: asking for a passphrase, keys in hardware, fetching
//! lists of revoked certificates.

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
pub use pinned::{PINNED_MAX, Pinned};
pub use trust::{LoadedTrust, TrustGeneration, load_trust};
pub use verifiers::Verifiers;

#[cfg(test)]
mod tests;
