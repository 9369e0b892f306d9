//! Implements the cryptography of IKE with aws-lc-rs: key exchange, pseudorandom functions, key
//! derivation and encryption. The library aws-lc-rs has no MODP groups, so MODP groups use the
//! library crypto-bigint.

mod failed;
mod group;
mod keys;
mod modp;
mod prf;
mod random;
mod seal;

pub(crate) use failed::CryptoFailed;
pub use group::KeGroup;
pub(crate) use group::KeySecret;
#[cfg(test)]
pub(crate) use group::wrong_values;
pub(crate) use keys::{IkeKeys, IkeSpis, Nonces, child_keys, rekeyed_seed, seed};
pub use prf::Prf;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use random::TestRandom;
pub use random::{RandomFailed, RandomSource};
pub(crate) use random::{random_array, random_nonce, random_spi};
