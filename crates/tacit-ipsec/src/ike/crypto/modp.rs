//! Implements the Diffie-Hellman key exchange with the group MODP-2048 (RFC 3526 section 3). The
//! group consists of integers modulo a prime of 2,048 bits.
//!
//! The computation takes the same time for all exponents of the same length, so its duration does
//! not reveal the exponent.

use crypto_bigint::modular::{ConstMontyForm, ConstMontyParams as _};
use crypto_bigint::{U320, U2048, const_monty_params};

use super::failed::CryptoFailed;
use crate::secret::SecretBytes;

/// The length of a public value and of the shared secret in bytes (RFC 7296 sections 2.14 and 3.4:
/// with leading zeros).
pub(super) const VALUE_BYTES: usize = 256;
/// The length of a private exponent in bytes: twice the strength of the group (RFC 3526 section 8).
pub(super) const PRIVATE_BYTES: usize = 40;

/// Computes the public value of a private exponent.
pub(super) fn public_value(private: &[u8; PRIVATE_BYTES]) -> [u8; VALUE_BYTES] {
    power(&GENERATOR, private)
}

/// Whether a public value is greater than 1 and less than p - 1 (RFC 6989 section 2.1); p is a safe
/// prime, so no other subgroup is small.
pub(super) fn is_value(bytes: &[u8; VALUE_BYTES]) -> bool {
    let value = U2048::from_be_slice(bytes);
    let last = Modulus::PARAMS.modulus().as_ref().wrapping_sub(&U2048::ONE);
    value > U2048::ONE && value < last
}

/// Computes the shared secret with the public value of a peer.
pub(super) fn agree(
    private: &[u8; PRIVATE_BYTES],
    peer_value: &[u8; VALUE_BYTES],
) -> Result<SecretBytes, CryptoFailed> {
    if !is_value(peer_value) {
        return Err(CryptoFailed::PublicValue);
    }
    Ok(SecretBytes::new(power(&U2048::from_be_slice(peer_value), private).to_vec()))
}

fn power(base: &U2048, private: &[u8; PRIVATE_BYTES]) -> [u8; VALUE_BYTES] {
    let exponent = U320::from_be_slice(private);
    let power = ConstMontyForm::<Modulus, { U2048::LIMBS }>::new(base).pow(&exponent);
    let mut bytes = [0; VALUE_BYTES];
    bytes.copy_from_slice(power.retrieve().to_be_bytes().as_ref());
    bytes
}

const GENERATOR: U2048 = U2048::from_u8(2);

const_monty_params!(
    Modulus,
    U2048,
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74\
     020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F1437\
     4FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED\
     EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF05\
     98DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB\
     9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B\
     E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718\
     3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    "The prime: 2^2048 - 2^1984 - 1 + 2^64 * (floor(2^1918 * pi) + 124476)."
);

/// 0, 1, p - 1, p, and the largest number of this length.
#[cfg(test)]
pub(super) fn outside_values() -> [[u8; VALUE_BYTES]; 5] {
    let modulus = Modulus::PARAMS.modulus().as_ref();
    let bytes =
        |value: U2048| -> [u8; VALUE_BYTES] { value.to_be_bytes().as_ref().try_into().unwrap() };
    let last = bytes(modulus.wrapping_sub(&U2048::ONE));
    [bytes(U2048::ZERO), bytes(U2048::ONE), last, bytes(*modulus), [0xff; VALUE_BYTES]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> String {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Consecutive bytes.
    fn private(first: u8) -> [u8; PRIVATE_BYTES] {
        std::array::from_fn(|at| first + u8::try_from(at).unwrap())
    }

    #[test]
    fn powers_are_those_of_another_implementation() {
        // Computed with `pow` of Python; the digests are SHA-256.
        let first = public_value(&private(1));
        let second = public_value(&private(101));
        let shared = "fa3c03485316a6af1790afc87fcae4d9ed0ebcfdd4b2e528ed2bc3c53fdc0b7c";
        assert_eq!(
            digest(&first),
            "3ae26e14ac54744ba175a8b2c76205eebfc4fdb8314c4c40ae2ea47b3c0e28a3"
        );
        assert_eq!(
            digest(&second),
            "25e0fa93d961c8c5f43386c61d9b398f231ed0da6223f7504560aa6679347ede"
        );
        assert_eq!(digest(agree(&private(1), &second).unwrap().as_bytes()), shared);
        assert_eq!(digest(agree(&private(101), &first).unwrap().as_bytes()), shared);
    }

    #[test]
    fn values_of_small_subgroups_are_refused() {
        let modulus = Modulus::PARAMS.modulus().as_ref();
        let bytes = |value: U2048| -> [u8; VALUE_BYTES] {
            value.to_be_bytes().as_ref().try_into().unwrap()
        };
        for value in outside_values() {
            assert_eq!(agree(&private(1), &value), Err(CryptoFailed::PublicValue));
        }
        assert!(agree(&private(1), &bytes(U2048::from_u8(2))).is_ok());
        assert!(agree(&private(1), &bytes(modulus.wrapping_sub(&U2048::from_u8(2)))).is_ok());
    }
}
