//! Encrypts and decrypts IKE messages (RFC 7296 section 3.14, RFC 5282 for AEADs).
//!
//! ```text
//!   header, payload header │ IV │ payloads, padding, pad length │ ICV
//!   authenticated          │    │ encrypted                     │
//! ```

use super::failed::CryptoFailed;
use super::random::{RandomSource, random_array};
use crate::cipher::Cipher;
use crate::cipher_key::{CBC_IV_BYTES, CipherKey, IntegrityError};
use crate::ike::codec::{FRAGMENT_PREFIX_BYTES, Fragment, IkeHeader, encode_prefix};

/// The keys of one direction of an IKE SA.
#[derive(Debug)]
pub(crate) struct SealKey {
    cipher: Cipher,
    key: CipherKey,
    /// The next IV of an AEAD; it is never used twice with a key.
    counter: u64,
}

impl SealKey {
    /// Creates the keys from SK_e, which ends with the salt of an AEAD, and SK_a.
    pub(crate) fn new(
        cipher: Cipher,
        encryption: &[u8],
        integrity: &[u8],
    ) -> Result<Self, CryptoFailed> {
        let key = CipherKey::new(cipher, encryption, integrity);
        Ok(Self { cipher, key: key.map_err(|_| CryptoFailed::Library)?, counter: 0 })
    }

    /// Returns how many bytes of payloads fit into a fragment in a message of `message_bytes`.
    pub(crate) fn fragment_room(&self, message_bytes: usize) -> usize {
        let around = FRAGMENT_PREFIX_BYTES + self.cipher.iv_bytes() + self.cipher.icv_bytes();
        let text = message_bytes.saturating_sub(around);
        // The last byte of whole blocks is the length of the padding.
        (text - text % self.cipher.block_bytes()).saturating_sub(1).max(1)
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
        match &self.key {
            CipherKey::Aead(_) => {
                out.extend(self.counter.to_be_bytes());
                self.counter = self.counter.checked_add(1).ok_or(CryptoFailed::Library)?;
            }
            CipherKey::Cbc(_) => out.extend(random_array::<CBC_IV_BYTES>(random)?),
        }
        out.extend(payloads);
        out.resize(out.len() + padding, 0);
        out.push(u8::try_from(padding).unwrap_or_default());
        self.encrypt(&mut out, start).map_err(|_| CryptoFailed::Library)?;
        Ok(out)
    }

    /// Encrypts what follows the IV at `start`, and appends the ICV.
    fn encrypt(&self, out: &mut Vec<u8>, start: usize) -> Result<(), IntegrityError> {
        let (front, rest) = out.split_at_mut_checked(start).ok_or(IntegrityError)?;
        match &self.key {
            CipherKey::Aead(key) => {
                let (iv, data) = rest.split_first_chunk_mut().ok_or(IntegrityError)?;
                let tag = key.seal(*iv, front, data)?;
                out.extend(tag);
                Ok(())
            }
            CipherKey::Cbc(key) => {
                let (iv, data) = rest.split_first_chunk_mut().ok_or(IntegrityError)?;
                key.encrypt(*iv, data)?;
                out.resize(out.len() + self.cipher.icv_bytes(), 0);
                let (covered, icv) = key.split(out)?;
                key.sign([covered, &[]], icv)
            }
        }
    }

    /// Opens a message whose IV is at `start`, and returns the payloads inside.
    pub(crate) fn open(&self, message: &[u8], start: usize) -> Result<Vec<u8>, CryptoFailed> {
        let mut opened = self.decrypt(message, start).map_err(|_| CryptoFailed::Integrity)?;
        let padding = usize::from(opened.pop().ok_or(CryptoFailed::Integrity)?);
        let kept = opened.len().checked_sub(padding).ok_or(CryptoFailed::Integrity)?;
        opened.truncate(kept);
        Ok(opened)
    }

    /// Verifies a message, and decrypts what follows the IV at `start`.
    fn decrypt(&self, message: &[u8], start: usize) -> Result<Vec<u8>, IntegrityError> {
        let text_at = start + self.cipher.iv_bytes();
        let icv_at = message.len().checked_sub(self.cipher.icv_bytes()).ok_or(IntegrityError)?;
        let mut message = message.to_vec();
        match &self.key {
            CipherKey::Aead(key) => {
                let (front, rest) = message.split_at_mut_checked(start).ok_or(IntegrityError)?;
                let (iv, data) = rest.split_first_chunk_mut().ok_or(IntegrityError)?;
                key.open(*iv, front, data)?;
            }
            CipherKey::Cbc(key) => {
                let (covered, icv) = key.split(&mut message)?;
                key.verify([covered, &[]], icv)?;
                let rest = covered.get_mut(start..).ok_or(IntegrityError)?;
                let (iv, data) = rest.split_first_chunk_mut().ok_or(IntegrityError)?;
                key.decrypt(*iv, data)?;
            }
        }
        Ok(message.get(text_at..icv_at).ok_or(IntegrityError)?.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::IntegrityHash;
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
    fn a_fragment_fills_its_datagram_and_no_more() {
        for cipher in CIPHERS {
            for message_bytes in 500..540 {
                let mut key = key(cipher);
                let fragment = Some(Fragment { number: 2, total: 2 });
                let mut seal = |payloads: usize| {
                    let payloads = vec![0; payloads];
                    let sealed = key.seal(&header(), 0, fragment, &payloads, &mut TestRandom(1));
                    sealed.unwrap().len()
                };
                let room = self::key(cipher).fragment_room(message_bytes);
                assert!(seal(room) <= message_bytes, "{cipher:?}");
                assert!(seal(room + 1) > message_bytes, "{cipher:?}");
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
