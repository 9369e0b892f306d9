//! Defines [`Cipher`]: the combinations of encryption and integrity algorithms that tacit accepts.
//!
//! tacit does not support weak algorithms: DES, 3DES, HMAC-MD5 and HMAC-SHA-1 (RFC 8221 sections 5
//! and 6).

/// How ESP packets or IKE messages are encrypted and authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-128-GCM with a tag of 16 bytes (RFC 4106, RFC 5282).
    Aes128Gcm,
    /// AES-256-GCM with a tag of 16 bytes (RFC 4106, RFC 5282).
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-128-CBC (RFC 3602), then HMAC-SHA2 (RFC 4868).
    Aes128Cbc(IntegrityHash),
    /// AES-256-CBC (RFC 3602), then HMAC-SHA2 (RFC 4868).
    Aes256Cbc(IntegrityHash),
}

/// The hash of the HMAC that authenticates what CBC has encrypted (RFC 4868).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntegrityHash {
    /// HMAC-SHA-256, truncated to 128 bits.
    Sha256,
    /// HMAC-SHA-384, truncated to 192 bits.
    Sha384,
    /// HMAC-SHA-512, truncated to 256 bits.
    Sha512,
}

impl Cipher {
    /// Returns the length of the encryption key in bytes, without the salt.
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::Aes128Cbc(_) => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 | Self::Aes256Cbc(_) => 32,
        }
    }

    /// Returns the length in bytes of the salt that follows the encryption key in key material: 4
    /// for an AEAD, 0 for CBC (RFC 4106 section 8.1, RFC 7634 section 2).
    #[must_use]
    pub fn salt_bytes(self) -> usize {
        if self.is_aead() { 4 } else { 0 }
    }

    /// Returns the length of the integrity key in bytes: 0 for an AEAD (RFC 7296 section 2.14).
    #[must_use]
    pub fn integrity_key_bytes(self) -> usize {
        self.integrity().map_or(0, IntegrityHash::key_bytes)
    }

    /// Returns the length in bytes of the IV that precedes the ciphertext.
    #[must_use]
    pub fn iv_bytes(self) -> usize {
        if self.is_aead() { 8 } else { 16 }
    }

    /// Returns the length in bytes of the tag or the truncated HMAC that ends a packet.
    #[must_use]
    pub fn icv_bytes(self) -> usize {
        self.integrity().map_or(16, IntegrityHash::icv_bytes)
    }

    /// Returns the number of bytes to which the plaintext is padded: 16 for CBC, 1 for an AEAD.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        if self.is_aead() { 1 } else { 16 }
    }

    /// Returns the hash of the HMAC; an AEAD has none.
    #[must_use]
    pub fn integrity(self) -> Option<IntegrityHash> {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 => None,
            Self::Aes128Cbc(hash) | Self::Aes256Cbc(hash) => Some(hash),
        }
    }

    /// Reports whether the cipher authenticates by itself.
    #[must_use]
    pub fn is_aead(self) -> bool {
        self.integrity().is_none()
    }
}

impl IntegrityHash {
    /// Returns the length of the key in bytes: the output of the hash (RFC 4868 section 2.1.1).
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the length of the truncated HMAC in bytes: half of the output.
    #[must_use]
    pub fn icv_bytes(self) -> usize {
        self.key_bytes() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_rfcs() {
        let cbc = Cipher::Aes256Cbc(IntegrityHash::Sha384);
        for (cipher, key, salt, integrity, iv, icv, block) in [
            (Cipher::Aes128Gcm, 16, 4, 0, 8, 16, 1),
            (Cipher::ChaCha20Poly1305, 32, 4, 0, 8, 16, 1),
            (cbc, 32, 0, 48, 16, 24, 16),
        ] {
            assert_eq!(cipher.key_bytes(), key, "{cipher:?}");
            assert_eq!(cipher.salt_bytes(), salt, "{cipher:?}");
            assert_eq!(cipher.integrity_key_bytes(), integrity, "{cipher:?}");
            assert_eq!(cipher.iv_bytes(), iv, "{cipher:?}");
            assert_eq!(cipher.icv_bytes(), icv, "{cipher:?}");
            assert_eq!(cipher.block_bytes(), block, "{cipher:?}");
        }
    }
}
