//! Defines [`SecretBytes`]: key bytes that never appear in logs.

use std::fmt;

/// Key material. Its `Debug` output shows only the length, and the bytes are overwritten when the
/// value is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Takes ownership of key material.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the key material.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the writes to memory that is about to be freed.
        std::hint::black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_byte() {
        let secret = SecretBytes::new(vec![0xab; 3]);
        assert_eq!(format!("{secret:?}"), "SecretBytes(3 bytes)");
    }
}
