//! Defines the source of random numbers, which the caller of this crate supplies.

use std::fmt;

/// Supplies random bytes that an attacker cannot predict.
pub trait RandomSource: fmt::Debug + Send {
    /// Fills `bytes`.
    ///
    /// # Errors
    ///
    /// If the system supplies no random bytes. The exchange that needs them fails.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed>;
}

/// There are no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomFailed;

impl fmt::Display for RandomFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel returned no random bytes")
    }
}

impl std::error::Error for RandomFailed {}

/// Returns an array of random bytes.
pub(crate) fn random_array<const N: usize>(
    random: &mut dyn RandomSource,
) -> Result<[u8; N], RandomFailed> {
    let mut bytes = [0; N];
    random.fill(&mut bytes)?;
    Ok(bytes)
}

/// Returns the SPI of an IKE SA, which is not zero (RFC 7296 section 3.1).
pub(crate) fn random_spi(random: &mut dyn RandomSource) -> Result<u64, RandomFailed> {
    let number = u64::from_be_bytes(random_array(random)?);
    // The first bit keeps it from zero, and leaves 63 random bits.
    Ok(number | 1 << 63)
}

/// Returns a nonce: at least half the size of the largest key of the PRF, and 128 bits (RFC 7296
/// section 2.10).
pub(crate) fn random_nonce(random: &mut dyn RandomSource) -> Result<Vec<u8>, RandomFailed> {
    Ok(random_array::<NONCE_BYTES>(random)?.to_vec())
}

const NONCE_BYTES: usize = 32;

/// Random bytes from a seed, the same in each run. For tests and fuzzing only.
#[cfg(any(test, feature = "fuzz"))]
#[derive(Debug)]
pub(crate) struct TestRandom(pub(crate) u64);

#[cfg(any(test, feature = "fuzz"))]
impl RandomSource for TestRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        for byte in bytes {
            // SplitMix64.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *byte = (mixed ^ (mixed >> 31)).to_be_bytes()[0];
        }
        Ok(())
    }
}
