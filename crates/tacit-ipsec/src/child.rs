//! Defines [`ChildSa`]: the keys and settings of an IPsec tunnel. IKE negotiates them, and the code
//! that encrypts packets uses them.

use crate::cipher::Cipher;
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

/// The SPI of an ESP SA: the number by which its receiver finds the keys. Values below 256 are
/// reserved (RFC 4303 section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EspSpi(u32);

impl EspSpi {
    /// Returns an SPI, unless the number is reserved.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number >= 256).then_some(Self(number))
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The keys of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaKeys {
    /// The SPI in the packets of this direction; their receiver has chosen it.
    pub spi: EspSpi,
    /// The encryption key, followed by the salt: `key_bytes() + salt_bytes()` of the cipher.
    pub encryption: SecretBytes,
    /// The integrity key: `integrity_key_bytes()` of the cipher; empty for an AEAD.
    pub integrity: SecretBytes,
}

/// A pair of ESP SAs in tunnel mode (RFC 7296 section 1.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSa {
    /// The cipher of both directions.
    pub cipher: Cipher,
    /// Whether sequence numbers have 64 bits (RFC 4303 section 2.2.1).
    pub has_extended_sequence: bool,
    /// Packets that tacit receives.
    pub inbound: SaKeys,
    /// Packets that tacit sends.
    pub outbound: SaKeys,
    /// The end of tacit: sources of what it sends, destinations of what it receives.
    pub local: Vec<TrafficSelector>,
    /// The end of the peer.
    pub remote: Vec<TrafficSelector>,
}
