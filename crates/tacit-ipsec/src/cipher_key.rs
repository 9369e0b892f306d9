//! Encrypts and authenticates bytes with the keys of a [`Cipher`], for one direction. ESP packets
//! and IKE messages use this module.

use std::fmt;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    self, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;

use crate::cipher::{Cipher, IntegrityHash};

pub(crate) const AEAD_IV_BYTES: usize = 8;
pub(crate) const CBC_IV_BYTES: usize = 16;
pub(crate) const TAG_BYTES: usize = 16;

/// The keys do not have the lengths that the cipher requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLengthError;

/// The ICV is wrong, or a length does not fit the cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntegrityError;

/// The keys of one direction.
pub(crate) enum CipherKey {
    Aead(AeadKey),
    /// In a box, because it is much larger.
    Cbc(Box<CbcKey>),
}

/// The key and the salt of an AEAD.
pub(crate) struct AeadKey {
    key: LessSafeKey,
    salt: [u8; 4],
}

/// The keys of CBC and of the HMAC over what it has encrypted.
pub(crate) struct CbcKey {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    integrity: IntegrityKey,
}

/// The key of an HMAC, whose output is truncated to half its length (RFC 4868 section 2.1.1).
pub(crate) struct IntegrityKey {
    key: hmac::Key,
    icv_bytes: usize,
}

impl CipherKey {
    /// Prepares keys. `encryption` ends with the salt of an AEAD; `integrity` is empty for an AEAD.
    pub(crate) fn new(
        cipher: Cipher,
        encryption: &[u8],
        integrity: &[u8],
    ) -> Result<Self, KeyLengthError> {
        let (key, salt) = encryption.split_at_checked(cipher.key_bytes()).ok_or(KeyLengthError)?;
        if salt.len() != cipher.salt_bytes() || integrity.len() != cipher.integrity_key_bytes() {
            return Err(KeyLengthError);
        }
        match cipher {
            Cipher::Aes128Gcm => AeadKey::new(&aead::AES_128_GCM, key, salt).map(Self::Aead),
            Cipher::Aes256Gcm => AeadKey::new(&aead::AES_256_GCM, key, salt).map(Self::Aead),
            Cipher::ChaCha20Poly1305 => {
                AeadKey::new(&aead::CHACHA20_POLY1305, key, salt).map(Self::Aead)
            }
            Cipher::Aes128Cbc(hash) => {
                CbcKey::new(&cipher::AES_128, key, hash, integrity).map(Box::new).map(Self::Cbc)
            }
            Cipher::Aes256Cbc(hash) => {
                CbcKey::new(&cipher::AES_256, key, hash, integrity).map(Box::new).map(Self::Cbc)
            }
        }
    }
}

impl AeadKey {
    fn new(
        algorithm: &'static aead::Algorithm,
        key: &[u8],
        salt: &[u8],
    ) -> Result<Self, KeyLengthError> {
        let key = UnboundKey::new(algorithm, key).map_err(|_| KeyLengthError)?;
        let salt = salt.try_into().map_err(|_| KeyLengthError)?;
        Ok(Self { key: LessSafeKey::new(key), salt })
    }

    /// Encrypts in place, and returns the tag. The caller never uses an IV twice.
    pub(crate) fn seal(
        &self,
        iv: [u8; AEAD_IV_BYTES],
        additional: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], IntegrityError> {
        let additional = Aad::from(additional);
        let tag = self.key.seal_in_place_separate_tag(self.nonce(iv), additional, data);
        let tag = tag.map_err(|_| IntegrityError)?;
        tag.as_ref().try_into().map_err(|_| IntegrityError)
    }

    /// Authenticates and decrypts data with a tag behind it, in place.
    pub(crate) fn open(
        &self,
        iv: [u8; AEAD_IV_BYTES],
        additional: &[u8],
        data: &mut [u8],
    ) -> Result<(), IntegrityError> {
        let opened = self.key.open_in_place(self.nonce(iv), Aad::from(additional), data);
        opened.map(drop).map_err(|_| IntegrityError)
    }

    /// The salt, then the IV (RFC 4106 section 4, RFC 5282 section 4, RFC 7634 section 2).
    fn nonce(&self, iv: [u8; AEAD_IV_BYTES]) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(&iv);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl CbcKey {
    fn new(
        algorithm: &'static cipher::Algorithm,
        key: &[u8],
        hash: IntegrityHash,
        integrity: &[u8],
    ) -> Result<Self, KeyLengthError> {
        let unbound = || UnboundCipherKey::new(algorithm, key).map_err(|_| KeyLengthError);
        Ok(Self {
            encrypting: EncryptingKey::cbc(unbound()?).map_err(|_| KeyLengthError)?,
            decrypting: DecryptingKey::cbc(unbound()?).map_err(|_| KeyLengthError)?,
            integrity: IntegrityKey::new(hash, integrity),
        })
    }

    /// Encrypts whole blocks in place.
    pub(crate) fn encrypt(
        &self,
        iv: [u8; CBC_IV_BYTES],
        data: &mut [u8],
    ) -> Result<(), IntegrityError> {
        let context = EncryptionContext::Iv128(FixedLength::from(iv));
        let encrypted = self.encrypting.less_safe_encrypt(data, context);
        encrypted.map(drop).map_err(|_| IntegrityError)
    }

    /// Decrypts whole blocks in place.
    pub(crate) fn decrypt(
        &self,
        iv: [u8; CBC_IV_BYTES],
        data: &mut [u8],
    ) -> Result<(), IntegrityError> {
        let context = DecryptionContext::Iv128(FixedLength::from(iv));
        self.decrypting.decrypt(data, context).map(drop).map_err(|_| IntegrityError)
    }

    /// Divides bytes into what the ICV covers and the ICV.
    pub(crate) fn split<'a>(
        &self,
        bytes: &'a mut [u8],
    ) -> Result<(&'a mut [u8], &'a mut [u8]), IntegrityError> {
        let icv_at = bytes.len().checked_sub(self.integrity.icv_bytes).ok_or(IntegrityError)?;
        Ok(bytes.split_at_mut(icv_at))
    }

    /// Writes the ICV over these parts, as [`Self::split`] has divided the bytes.
    pub(crate) fn sign(&self, parts: [&[u8]; 2], icv: &mut [u8]) -> Result<(), IntegrityError> {
        self.integrity.sign(parts, icv)
    }

    /// Verifies the ICV over these parts.
    pub(crate) fn verify(&self, parts: [&[u8]; 2], icv: &[u8]) -> Result<(), IntegrityError> {
        self.integrity.verify(parts, icv)
    }
}

impl IntegrityKey {
    /// Prepares a key of any length.
    fn new(hash: IntegrityHash, key: &[u8]) -> Self {
        let algorithm = match hash {
            IntegrityHash::Sha256 => hmac::HMAC_SHA256,
            IntegrityHash::Sha384 => hmac::HMAC_SHA384,
            IntegrityHash::Sha512 => hmac::HMAC_SHA512,
        };
        Self { key: hmac::Key::new(algorithm, key), icv_bytes: hash.icv_bytes() }
    }

    /// Prepares a key of the length that RFC 4868 section 2.1.1 requires.
    pub(crate) fn of_hash(hash: IntegrityHash, key: &[u8]) -> Result<Self, KeyLengthError> {
        if key.len() == hash.key_bytes() { Ok(Self::new(hash, key)) } else { Err(KeyLengthError) }
    }

    /// Writes the ICV over these parts. The place has the length of the ICV.
    pub(crate) fn sign(&self, parts: [&[u8]; 2], icv: &mut [u8]) -> Result<(), IntegrityError> {
        let tag = self.tag(parts);
        let computed = self.icv(&tag)?;
        if icv.len() != computed.len() {
            return Err(IntegrityError);
        }
        icv.copy_from_slice(computed);
        Ok(())
    }

    /// Verifies the ICV over these parts.
    pub(crate) fn verify(&self, parts: [&[u8]; 2], icv: &[u8]) -> Result<(), IntegrityError> {
        let tag = self.tag(parts);
        verify_slices_are_equal(self.icv(&tag)?, icv).map_err(|_| IntegrityError)
    }

    fn tag(&self, parts: [&[u8]; 2]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        parts.into_iter().for_each(|part| context.update(part));
        context.sign()
    }

    fn icv<'a>(&self, tag: &'a hmac::Tag) -> Result<&'a [u8], IntegrityError> {
        tag.as_ref().get(..self.icv_bytes).ok_or(IntegrityError)
    }
}

impl fmt::Debug for IntegrityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IntegrityKey(not shown)")
    }
}

impl fmt::Debug for CipherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CipherKey(not shown)")
    }
}
