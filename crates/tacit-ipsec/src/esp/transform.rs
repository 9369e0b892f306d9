//! Encrypts and decrypts the body of one ESP packet in place, with the cipher of an SA.
//!
//! ```text
//! AEAD:      SPI, sequence (authenticated) │ IV 8  │ ciphertext │ tag 16
//! CBC+HMAC:  SPI, sequence                 │ IV 16 │ ciphertext │ truncated HMAC over all before
//! ```
//!
//! With extended sequence numbers, the upper half is authenticated although it is not sent: inside
//! the additional data of an AEAD (RFC 4106 section 5), behind the packet for an HMAC (RFC 4303
//! section 2.2.1).

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;

use crate::child::{ChildSa, SaKeys};
use crate::cipher::{Cipher, IntegrityHash};

/// The length of SPI and sequence number (RFC 4303 section 2).
pub(crate) const ESP_HEADER_BYTES: usize = 8;
const CBC_IV_BYTES: usize = 16;
const AEAD_IV_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

/// The keys do not have the lengths that the cipher requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLengthError;

/// The ICV of a packet is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegrityError;

/// A cipher with its keys, for one direction.
pub(crate) struct Transform {
    keys: Keys,
    has_extended_sequence: bool,
}

enum Keys {
    Aead {
        key: LessSafeKey,
        salt: [u8; 4],
    },
    /// In a box, because it is much larger.
    Cbc(Box<CbcKeys>),
}

struct CbcKeys {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
    integrity: hmac::Key,
    icv_bytes: usize,
}

impl Transform {
    /// Prepares the keys of one direction of a tunnel.
    pub(crate) fn new(child: &ChildSa, keys: &SaKeys) -> Result<Self, KeyLengthError> {
        let ChildSa { cipher, has_extended_sequence, .. } = *child;
        let material = keys.encryption.as_bytes();
        let (key, salt) = material.split_at_checked(cipher.key_bytes()).ok_or(KeyLengthError)?;
        if salt.len() != cipher.salt_bytes()
            || keys.integrity.as_bytes().len() != cipher.integrity_key_bytes()
        {
            return Err(KeyLengthError);
        }
        let keys = match cipher {
            Cipher::Aes128Gcm => aead(&AES_128_GCM, key, salt)?,
            Cipher::Aes256Gcm => aead(&AES_256_GCM, key, salt)?,
            Cipher::ChaCha20Poly1305 => aead(&CHACHA20_POLY1305, key, salt)?,
            Cipher::Aes128Cbc(hash) => cbc(&AES_128, key, hash, keys.integrity.as_bytes())?,
            Cipher::Aes256Cbc(hash) => cbc(&AES_256, key, hash, keys.integrity.as_bytes())?,
        };
        Ok(Self { keys, has_extended_sequence })
    }

    /// Encrypts a packet that has SPI, sequence number, room for the IV, plaintext and room for the
    /// ICV. Writes IV and ICV. The caller never uses a sequence number twice.
    pub(crate) fn seal(&self, packet: &mut [u8], sequence: u64) -> Result<(), IntegrityError> {
        match &self.keys {
            Keys::Aead { key, salt } => self.seal_aead(key, *salt, packet, sequence),
            Keys::Cbc(keys) => {
                let CbcKeys { encrypt, integrity, icv_bytes, .. } = &**keys;
                let icv_at = packet.len().checked_sub(*icv_bytes).ok_or(IntegrityError)?;
                let (body, icv) = packet.split_at_mut(icv_at);
                encrypt_cbc(encrypt, body, sequence)?;
                let tag = self.hmac(integrity, body, sequence);
                let tag = tag.as_ref().get(..*icv_bytes).ok_or(IntegrityError)?;
                icv.copy_from_slice(tag);
                Ok(())
            }
        }
    }

    /// Authenticates and decrypts a packet. On success the plaintext stands in place of the
    /// ciphertext.
    pub(crate) fn open(&self, packet: &mut [u8], sequence: u64) -> Result<(), IntegrityError> {
        match &self.keys {
            Keys::Aead { key, salt } => self.open_aead(key, *salt, packet, sequence),
            Keys::Cbc(keys) => {
                let CbcKeys { decrypt, integrity, icv_bytes, .. } = &**keys;
                let icv_at = packet.len().checked_sub(*icv_bytes).ok_or(IntegrityError)?;
                let (body, icv) = packet.split_at_mut(icv_at);
                let tag = self.hmac(integrity, body, sequence);
                let tag = tag.as_ref().get(..*icv_bytes).ok_or(IntegrityError)?;
                verify_slices_are_equal(tag, icv).map_err(|_| IntegrityError)?;
                decrypt_cbc(decrypt, body)
            }
        }
    }

    fn seal_aead(
        &self,
        key: &LessSafeKey,
        salt: [u8; 4],
        packet: &mut [u8],
        sequence: u64,
    ) -> Result<(), IntegrityError> {
        let iv = sequence.to_be_bytes();
        let (header, rest) = packet.split_at_mut_checked(ESP_HEADER_BYTES).ok_or(IntegrityError)?;
        let (iv_field, rest) = rest.split_at_mut_checked(AEAD_IV_BYTES).ok_or(IntegrityError)?;
        let tag_at = rest.len().checked_sub(TAG_BYTES).ok_or(IntegrityError)?;
        let (body, tag_field) = rest.split_at_mut(tag_at);
        // RFC 4106 section 3.1 and RFC 7634 section 2: the IV need only be unique under the key.
        iv_field.copy_from_slice(&iv);
        let (aad, aad_bytes) = self.additional_data(header, sequence);
        let aad = Aad::from(aad.get(..aad_bytes).unwrap_or_default());
        let tag = key
            .seal_in_place_separate_tag(nonce(salt, iv), aad, body)
            .map_err(|_| IntegrityError)?;
        tag_field.copy_from_slice(tag.as_ref());
        Ok(())
    }

    fn open_aead(
        &self,
        key: &LessSafeKey,
        salt: [u8; 4],
        packet: &mut [u8],
        sequence: u64,
    ) -> Result<(), IntegrityError> {
        let (header, rest) = packet.split_at_mut_checked(ESP_HEADER_BYTES).ok_or(IntegrityError)?;
        let (iv, body) = rest.split_first_chunk_mut::<AEAD_IV_BYTES>().ok_or(IntegrityError)?;
        let (aad, aad_bytes) = self.additional_data(header, sequence);
        let aad = Aad::from(aad.get(..aad_bytes).unwrap_or_default());
        key.open_in_place(nonce(salt, *iv), aad, body).map_err(|_| IntegrityError)?;
        Ok(())
    }

    /// RFC 4106 section 5, which RFC 7634 section 2.1 adopts: SPI and sequence number, of which
    /// the extended one has its upper half first.
    fn additional_data(&self, header: &[u8], sequence: u64) -> ([u8; 12], usize) {
        let mut data = [0; 12];
        data[..4].copy_from_slice(header.get(..4).unwrap_or(&[0; 4]));
        if self.has_extended_sequence {
            data[4..].copy_from_slice(&sequence.to_be_bytes());
            (data, 12)
        } else {
            data[4..8].copy_from_slice(header.get(4..8).unwrap_or(&[0; 4]));
            (data, 8)
        }
    }

    fn hmac(&self, key: &hmac::Key, packet: &[u8], sequence: u64) -> hmac::Tag {
        let mut context = hmac::Context::with_key(key);
        context.update(packet);
        if self.has_extended_sequence {
            let [a, b, c, d, ..] = sequence.to_be_bytes();
            context.update(&[a, b, c, d]);
        }
        context.sign()
    }
}

impl std::fmt::Debug for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Transform(keys not shown)")
    }
}

fn aead(
    algorithm: &'static aws_lc_rs::aead::Algorithm,
    key: &[u8],
    salt: &[u8],
) -> Result<Keys, KeyLengthError> {
    let key = UnboundKey::new(algorithm, key).map_err(|_| KeyLengthError)?;
    let salt = salt.try_into().map_err(|_| KeyLengthError)?;
    Ok(Keys::Aead { key: LessSafeKey::new(key), salt })
}

fn cbc(
    algorithm: &'static aws_lc_rs::cipher::Algorithm,
    key: &[u8],
    hash: IntegrityHash,
    integrity: &[u8],
) -> Result<Keys, KeyLengthError> {
    let unbound = || UnboundCipherKey::new(algorithm, key).map_err(|_| KeyLengthError);
    let hmac_algorithm = match hash {
        IntegrityHash::Sha256 => hmac::HMAC_SHA256,
        IntegrityHash::Sha384 => hmac::HMAC_SHA384,
        IntegrityHash::Sha512 => hmac::HMAC_SHA512,
    };
    Ok(Keys::Cbc(Box::new(CbcKeys {
        encrypt: EncryptingKey::cbc(unbound()?).map_err(|_| KeyLengthError)?,
        decrypt: DecryptingKey::cbc(unbound()?).map_err(|_| KeyLengthError)?,
        integrity: hmac::Key::new(hmac_algorithm, integrity),
        icv_bytes: hash.icv_bytes(),
    })))
}

fn nonce(salt: [u8; 4], iv: [u8; AEAD_IV_BYTES]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    nonce[4..].copy_from_slice(&iv);
    Nonce::assume_unique_for_key(nonce)
}

/// Splits a packet without ICV into the IV and what it encrypts.
fn iv_and_text(body: &mut [u8]) -> Result<(&mut [u8; CBC_IV_BYTES], &mut [u8]), IntegrityError> {
    let rest = body.get_mut(ESP_HEADER_BYTES..).ok_or(IntegrityError)?;
    rest.split_first_chunk_mut().ok_or(IntegrityError)
}

fn encrypt_cbc(key: &EncryptingKey, body: &mut [u8], sequence: u64) -> Result<(), IntegrityError> {
    let (iv, text) = iv_and_text(body)?;
    // RFC 3602 section 2: the IV must be unpredictable. An encrypted number that is never repeated
    // is (NIST SP 800-38A appendix C), and needs no source of randomness.
    let mut block = [0; CBC_IV_BYTES];
    block[8..].copy_from_slice(&sequence.to_be_bytes());
    encrypt_with(key, [0; CBC_IV_BYTES], &mut block)?;
    *iv = block;
    encrypt_with(key, block, text)
}

fn encrypt_with(
    key: &EncryptingKey,
    iv: [u8; CBC_IV_BYTES],
    text: &mut [u8],
) -> Result<(), IntegrityError> {
    let context = EncryptionContext::Iv128(FixedLength::from(iv));
    key.less_safe_encrypt(text, context).map_err(|_| IntegrityError)?;
    Ok(())
}

fn decrypt_cbc(key: &DecryptingKey, body: &mut [u8]) -> Result<(), IntegrityError> {
    let (iv, text) = iv_and_text(body)?;
    let context = DecryptionContext::Iv128(FixedLength::from(*iv));
    key.decrypt(text, context).map_err(|_| IntegrityError)?;
    Ok(())
}
