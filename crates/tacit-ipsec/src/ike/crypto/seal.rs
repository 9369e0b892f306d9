//! Encryption of messages (RFC 7296 section 3.14, RFC 5282 for AEADs).
//!
//! ```text
//!   header, payload header │ IV │ payloads, padding, pad length │ ICV
//!   authenticated          │    │ encrypted                     │
//! ```

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, DecryptingKey, EncryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{constant_time, hmac};

use super::failed::CryptoFailed;
use super::random::{RandomSource, random_array};
use crate::cipher::{Cipher, IntegrityHash};
use crate::ike::codec::{Fragment, IkeHeader, encode_prefix};

/// The keys of one direction of an IKE SA.
#[derive(Debug)]
pub(crate) struct SealKey {
    cipher: Cipher,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Aead {
        key: LessSafeKey,
        salt: [u8; 4],
        /// The next IV; it is never used twice with a key.
        counter: u64,
    },
    Cbc(Box<CbcKeys>),
}

#[derive(Debug)]
struct CbcKeys {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    integrity: hmac::Key,
}

impl SealKey {
    /// Creates the keys from SK_e, which ends with the salt of an AEAD, and SK_a.
    pub(crate) fn new(
        cipher: Cipher,
        encryption: &[u8],
        integrity: &[u8],
    ) -> Result<Self, CryptoFailed> {
        let (algorithm, hash) = match cipher {
            Cipher::Aes128Gcm => return Self::aead(cipher, &aead::AES_128_GCM, encryption),
            Cipher::Aes256Gcm => return Self::aead(cipher, &aead::AES_256_GCM, encryption),
            Cipher::ChaCha20Poly1305 => {
                return Self::aead(cipher, &aead::CHACHA20_POLY1305, encryption);
            }
            Cipher::Aes128Cbc(hash) => (&cipher::AES_128, hash),
            Cipher::Aes256Cbc(hash) => (&cipher::AES_256, hash),
        };
        let key =
            || UnboundCipherKey::new(algorithm, encryption).map_err(|_| CryptoFailed::Library);
        let encrypting = EncryptingKey::cbc(key()?).map_err(|_| CryptoFailed::Library)?;
        let decrypting = DecryptingKey::cbc(key()?).map_err(|_| CryptoFailed::Library)?;
        let integrity = hmac::Key::new(hmac_algorithm(hash), integrity);
        Ok(Self {
            cipher,
            inner: Inner::Cbc(Box::new(CbcKeys { encrypting, decrypting, integrity })),
        })
    }

    fn aead(
        cipher: Cipher,
        algorithm: &'static aead::Algorithm,
        encryption: &[u8],
    ) -> Result<Self, CryptoFailed> {
        let (key, salt) = encryption.split_last_chunk().ok_or(CryptoFailed::Library)?;
        let key = UnboundKey::new(algorithm, key).map_err(|_| CryptoFailed::Library)?;
        let key = LessSafeKey::new(key);
        Ok(Self { cipher, inner: Inner::Aead { key, salt: *salt, counter: 0 } })
    }

    /// Writes a message with encrypted payloads.
    pub(crate) fn seal(
        &mut self,
        header: &IkeHeader,
        first_payload: u8,
        fragment: Option<Fragment>,
        payloads: &[u8],
        random: &mut dyn RandomSource,
    ) -> Result<Vec<u8>, CryptoFailed> {
        let block = self.cipher.block_bytes();
        let padding = (block - (payloads.len() + 1) % block) % block;
        let padded = payloads.len() + padding + 1;
        let length = self.cipher.iv_bytes() + padded + self.cipher.icv_bytes();
        let mut out = encode_prefix(header, first_payload, fragment, length);
        let start = out.len();
        match &mut self.inner {
            Inner::Aead { counter, .. } => {
                out.extend(counter.to_be_bytes());
                *counter = counter.checked_add(1).ok_or(CryptoFailed::Library)?;
            }
            Inner::Cbc(_) => out.extend(random_array::<16>(random)?),
        }
        out.extend(payloads);
        out.resize(out.len() + padding, 0);
        out.push(u8::try_from(padding).unwrap_or_default());
        self.encrypt(&mut out, start)?;
        Ok(out)
    }

    /// Encrypts what follows the IV at `start`, and appends the ICV.
    fn encrypt(&self, out: &mut Vec<u8>, start: usize) -> Result<(), CryptoFailed> {
        let (front, rest) = out.split_at_mut_checked(start).ok_or(CryptoFailed::Library)?;
        let iv_bytes = self.cipher.iv_bytes();
        let (iv, data) = rest.split_at_mut_checked(iv_bytes).ok_or(CryptoFailed::Library)?;
        match &self.inner {
            Inner::Aead { key, salt, .. } => {
                let nonce = nonce(*salt, iv)?;
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::from(front), data)
                    .map_err(|_| CryptoFailed::Library)?;
                out.extend(tag.as_ref());
            }
            Inner::Cbc(keys) => {
                let iv: [u8; 16] = (&*iv).try_into().map_err(|_| CryptoFailed::Library)?;
                let context = cipher::EncryptionContext::Iv128(FixedLength::from(iv));
                keys.encrypting
                    .less_safe_encrypt(data, context)
                    .map_err(|_| CryptoFailed::Library)?;
                let tag = hmac::sign(&keys.integrity, out);
                out.extend(tag.as_ref().iter().take(self.cipher.icv_bytes()));
            }
        }
        Ok(())
    }

    /// Opens a message whose IV is at `start`, and returns the payloads inside.
    pub(crate) fn open(&self, message: &[u8], start: usize) -> Result<Vec<u8>, CryptoFailed> {
        let (front, rest) = message.split_at_checked(start).ok_or(CryptoFailed::Integrity)?;
        let iv_bytes = self.cipher.iv_bytes();
        let (iv, rest) = rest.split_at_checked(iv_bytes).ok_or(CryptoFailed::Integrity)?;
        let data_bytes =
            rest.len().checked_sub(self.cipher.icv_bytes()).ok_or(CryptoFailed::Integrity)?;
        let mut opened = match &self.inner {
            Inner::Aead { key, salt, .. } => {
                let mut data = rest.to_vec();
                let nonce = nonce(*salt, iv)?;
                key.open_in_place(nonce, Aad::from(front), &mut data)
                    .map_err(|_| CryptoFailed::Integrity)?;
                data.truncate(data_bytes);
                data
            }
            Inner::Cbc(keys) => {
                let (covered, icv) = message
                    .split_at_checked(start + iv_bytes + data_bytes)
                    .ok_or(CryptoFailed::Integrity)?;
                let tag = hmac::sign(&keys.integrity, covered);
                let expected = tag.as_ref().get(..icv.len()).unwrap_or_default();
                constant_time::verify_slices_are_equal(expected, icv)
                    .map_err(|_| CryptoFailed::Integrity)?;
                let iv: [u8; 16] = iv.try_into().map_err(|_| CryptoFailed::Integrity)?;
                let context = cipher::DecryptionContext::Iv128(FixedLength::from(iv));
                let mut data = rest.get(..data_bytes).unwrap_or_default().to_vec();
                keys.decrypting.decrypt(&mut data, context).map_err(|_| CryptoFailed::Integrity)?;
                data
            }
        };
        let padding = usize::from(opened.pop().ok_or(CryptoFailed::Integrity)?);
        let kept = opened.len().checked_sub(padding).ok_or(CryptoFailed::Integrity)?;
        opened.truncate(kept);
        Ok(opened)
    }
}

/// The nonce of an AEAD: the salt, then the IV (RFC 5282 section 4).
fn nonce(salt: [u8; 4], iv: &[u8]) -> Result<Nonce, CryptoFailed> {
    Nonce::try_assume_unique_for_key(&[&salt, iv].concat()).map_err(|_| CryptoFailed::Library)
}

fn hmac_algorithm(hash: IntegrityHash) -> hmac::Algorithm {
    match hash {
        IntegrityHash::Sha256 => hmac::HMAC_SHA256,
        IntegrityHash::Sha384 => hmac::HMAC_SHA384,
        IntegrityHash::Sha512 => hmac::HMAC_SHA512,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ike::codec::{ExchangeType, IkeMessage};
    use crate::ike::crypto::TestRandom;

    const CIPHERS: [Cipher; 6] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
        Cipher::Aes128Cbc(IntegrityHash::Sha256),
        Cipher::Aes256Cbc(IntegrityHash::Sha384),
        Cipher::Aes256Cbc(IntegrityHash::Sha512),
    ];

    fn key(cipher: Cipher) -> SealKey {
        let encryption = vec![7; cipher.key_bytes() + cipher.salt_bytes()];
        SealKey::new(cipher, &encryption, &vec![9; cipher.integrity_key_bytes()]).unwrap()
    }

    fn header() -> IkeHeader {
        IkeHeader {
            initiator_spi: 1,
            responder_spi: 2,
            exchange: ExchangeType::Informational,
            from_initiator: true,
            is_response: false,
            message_id: 3,
        }
    }

    #[test]
    fn what_is_sealed_can_be_opened_at_every_length() {
        for cipher in CIPHERS {
            for length in 0..40 {
                let payloads = vec![0xab; length];
                let mut key = key(cipher);
                let sealed = key.seal(&header(), 41, None, &payloads, &mut TestRandom(1)).unwrap();
                let part = IkeMessage::parse(&sealed).unwrap().encrypted.unwrap();
                assert_eq!(part.first_payload, 41);
                assert_eq!(key.open(&sealed, part.offset).unwrap(), payloads, "{cipher:?}");
            }
        }
    }

    #[test]
    fn a_changed_bit_anywhere_is_refused() {
        for cipher in CIPHERS {
            let mut key = key(cipher);
            let fragment = Some(Fragment { number: 1, total: 2 });
            let sealed = key.seal(&header(), 41, fragment, b"hello", &mut TestRandom(1)).unwrap();
            let offset = IkeMessage::parse(&sealed).unwrap().encrypted.unwrap().offset;
            for at in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                let opened = key.open(&changed, offset);
                assert_eq!(opened, Err(CryptoFailed::Integrity), "{cipher:?} {at}");
            }
            for length in 0..sealed.len() {
                let opened = key.open(&sealed[..length], offset);
                assert_eq!(opened, Err(CryptoFailed::Integrity), "{cipher:?} {length}");
            }
        }
    }

    #[test]
    fn no_iv_is_used_twice() {
        for cipher in CIPHERS {
            let mut key = key(cipher);
            let mut random = TestRandom(1);
            let mut seal = || key.seal(&header(), 41, None, b"hello", &mut random).unwrap();
            assert_ne!(seal(), seal(), "{cipher:?}");
        }
    }
}
