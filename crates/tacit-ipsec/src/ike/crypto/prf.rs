//! Computes pseudorandom functions (RFC 7296 section 2.13, RFC 4868).

use aws_lc_rs::hmac;

use super::failed::CryptoFailed;
use crate::secret::SecretBytes;

/// The function from which an IKE SA derives its keys. HMAC-MD5 and HMAC-SHA-1 have no variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prf {
    /// HMAC-SHA-256.
    HmacSha256,
    /// HMAC-SHA-384.
    HmacSha384,
    /// HMAC-SHA-512.
    HmacSha512,
}

impl Prf {
    fn algorithm(self) -> hmac::Algorithm {
        match self {
            Self::HmacSha256 => hmac::HMAC_SHA256,
            Self::HmacSha384 => hmac::HMAC_SHA384,
            Self::HmacSha512 => hmac::HMAC_SHA512,
        }
    }

    /// The length of the output, which is also the length of SK_d and SK_p.
    pub(crate) fn output_bytes(self) -> usize {
        match self {
            Self::HmacSha256 => 32,
            Self::HmacSha384 => 48,
            Self::HmacSha512 => 64,
        }
    }

    /// Computes prf(key, parts).
    pub(crate) fn compute(self, key: &[u8], parts: &[&[u8]]) -> SecretBytes {
        let mut context = hmac::Context::with_key(&hmac::Key::new(self.algorithm(), key));
        for part in parts {
            context.update(part);
        }
        SecretBytes::new(context.sign().as_ref().to_vec())
    }

    /// Computes prf+(key, parts): T1 = prf(K, S | 1), T2 = prf(K, T1 | S | 2), ... (RFC 7296
    /// section 2.13).
    pub(crate) fn expand(
        self,
        key: &[u8],
        parts: &[&[u8]],
        length: usize,
    ) -> Result<SecretBytes, CryptoFailed> {
        let key = hmac::Key::new(self.algorithm(), key);
        let mut out = Vec::with_capacity(length + self.output_bytes());
        let mut block: Option<hmac::Tag> = None;
        let mut counter = 0u8;
        while out.len() < length {
            // The counter is one byte and must not wrap.
            counter = counter.checked_add(1).ok_or(CryptoFailed::Library)?;
            let mut context = hmac::Context::with_key(&key);
            context.update(block.as_ref().map(AsRef::as_ref).unwrap_or_default());
            for part in parts {
                context.update(part);
            }
            context.update(&[counter]);
            let tag = context.sign();
            out.extend(tag.as_ref());
            block = Some(tag);
        }
        out.truncate(length);
        Ok(SecretBytes::new(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prf_gives_the_value_of_rfc_4868_section_2_7_2_1() {
        let output = Prf::HmacSha256.compute(b"Jefe", &[b"what do ya ", b"want for nothing?"]);
        let expected = [
            0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95,
            0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9,
            0x64, 0xec, 0x38, 0x43,
        ];
        assert_eq!(output.as_bytes(), expected);
    }

    #[test]
    fn expansion_chains_the_blocks_of_the_prf() {
        let prf = Prf::HmacSha384;
        let first = prf.compute(b"k", &[b"seed", &[1]]);
        let second = prf.compute(b"k", &[first.as_bytes(), b"seed", &[2]]);
        let expected = [first.as_bytes(), &second.as_bytes()[..2]].concat();
        let output = prf.expand(b"k", &[b"se", b"ed"], 50).unwrap();
        assert_eq!(output.as_bytes(), expected);
    }

    #[test]
    fn expansion_ends_after_255_blocks() {
        let prf = Prf::HmacSha256;
        assert!(prf.expand(b"k", &[], 255 * 32).is_ok());
        assert_eq!(prf.expand(b"k", &[], 255 * 32 + 1), Err(CryptoFailed::Library));
    }
}
