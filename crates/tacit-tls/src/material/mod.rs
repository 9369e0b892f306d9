//! Identities and trusts: from the files a policy names to what a handshake uses.
//!
//! ```text
//!   cert.pem, key.pem -> load_identity -> IdentityMaterial   who we are
//!   ca.pem, ca.crl …  -> load_trust    -> TrustMaterial      whom we believe
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

mod error;
mod expiry;
mod identity;
mod lists;
mod pair;
mod path;
mod pem;
mod pinned;
mod trust;
mod verifiers;

pub use error::{MaterialError, MaterialFault};
pub use expiry::{EXPIRY_WARNING_DAYS, ends_soon};
pub use identity::{IdentityMaterial, WrongUsage, load_chain, load_identity};
pub use lists::{ListFacts, RevocationList, list_ends_soon};
#[cfg(feature = "fuzz")]
pub(super) use lists::{list_facts, parse as parse_lists, warnings as list_warnings};
pub(crate) use pair::{Pair, PairFault, read_pair};
pub use path::AnchorFacts;
pub(crate) use path::{ChainOf, PathCheck, PathFault, Unlisted, error_of};
pub use pinned::{PINNED_MAX, Pinned};
pub use trust::{TrustGeneration, TrustMaterial, load_trust};
pub use verifiers::Verifiers;

#[cfg(test)]
mod tests;
