//! Defines [`CryptoFailed`]: the reasons why a cryptographic operation fails.

use super::random::RandomFailed;

/// Why a cryptographic operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CryptoFailed {
    /// There are no random bytes.
    Random,
    /// The public value of the peer is not one of the group.
    PublicValue,
    /// A message does not have the integrity check value that its keys require.
    Integrity,
    /// The library refuses keys or lengths that are always right, or a counter is at its end.
    Library,
}

impl From<RandomFailed> for CryptoFailed {
    fn from(_: RandomFailed) -> Self {
        Self::Random
    }
}
