//! Encrypts and decrypts the body of one ESP packet in place, with the cipher of an SA (security
//! association).
//!
//! ```text
//! AEAD:      SPI, sequence (authenticated) │ IV 8  │ ciphertext │ tag 16
//! CBC+HMAC:  SPI, sequence                 │ IV 16 │ ciphertext │ truncated HMAC over the rest
//! ```
//!
//! An AEAD cipher, such as AES-GCM, encrypts and authenticates in one step.
//!
//! An extended sequence number has 64 bits. A packet contains only the lower half, but both halves
//! are authenticated. An AEAD cipher authenticates the upper half as additional data (RFC 4106
//! section 5). With an HMAC, the upper half follows the packet in the input of the HMAC (RFC 4303
//! section 2.2.1).

use crate::child::{ChildSa, SaKeys};
use crate::cipher::Cipher;
use crate::cipher_key::{
    AEAD_IV_BYTES, AeadKey, CBC_IV_BYTES, CbcKey, CipherKey, IntegrityError, KeyLengthError,
    TAG_BYTES,
};

/// The length of SPI and sequence number (RFC 4303 section 2).
pub(crate) const ESP_HEADER_BYTES: usize = 8;

/// A cipher with its keys, for one direction.
#[derive(Debug)]
pub(crate) struct Transform {
    key: CipherKey,
    has_extended_sequence: bool,
    /// What precedes the sequence number in the block from which an IV of CBC is made.
    nonce: [u8; 8],
}

impl Transform {
    /// Prepares the keys of one direction of a tunnel.
    pub(crate) fn new(
        cipher: Cipher,
        child: &ChildSa,
        keys: &SaKeys,
    ) -> Result<Self, KeyLengthError> {
        let ChildSa { origin, has_extended_sequence, .. } = *child;
        let key = CipherKey::new(cipher, keys.encryption.as_bytes(), keys.integrity.as_bytes())?;
        Ok(Self { key, has_extended_sequence, nonce: origin.nonce() })
    }

    /// Encrypts a packet that has SPI, sequence number, room for the IV, plaintext and room for the
    /// ICV. Writes IV and ICV. The caller never uses a sequence number twice.
    pub(crate) fn seal(&self, packet: &mut [u8], sequence: u64) -> Result<(), IntegrityError> {
        match &self.key {
            CipherKey::Aead(key) => self.seal_aead(key, packet, sequence),
            CipherKey::Cbc(key) => {
                let (body, icv) = key.split(packet)?;
                encrypt_cbc(key, body, self.nonce, sequence)?;
                key.sign([body, self.unsent_half(&sequence.to_be_bytes())], icv)
            }
        }
    }

    /// Authenticates and decrypts a packet. On success the plaintext stands in place of the
    /// ciphertext.
    pub(crate) fn open(&self, packet: &mut [u8], sequence: u64) -> Result<(), IntegrityError> {
        match &self.key {
            CipherKey::Aead(key) => self.open_aead(key, packet, sequence),
            CipherKey::Cbc(key) => {
                let (body, icv) = key.split(packet)?;
                key.verify([body, self.unsent_half(&sequence.to_be_bytes())], icv)?;
                let (iv, text) = iv_and_text(body)?;
                key.decrypt(*iv, text)
            }
        }
    }

    fn seal_aead(
        &self,
        key: &AeadKey,
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
        tag_field.copy_from_slice(&key.seal(iv, &aad[..aad_bytes], body)?);
        Ok(())
    }

    fn open_aead(
        &self,
        key: &AeadKey,
        packet: &mut [u8],
        sequence: u64,
    ) -> Result<(), IntegrityError> {
        let (header, rest) = packet.split_at_mut_checked(ESP_HEADER_BYTES).ok_or(IntegrityError)?;
        let (iv, body) = rest.split_first_chunk_mut::<AEAD_IV_BYTES>().ok_or(IntegrityError)?;
        let (aad, aad_bytes) = self.additional_data(header, sequence);
        key.open(*iv, &aad[..aad_bytes], body)
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

    /// The part of a sequence number that only the HMAC covers.
    fn unsent_half<'a>(&self, sequence: &'a [u8; 8]) -> &'a [u8] {
        if self.has_extended_sequence { &sequence[..4] } else { &[] }
    }
}

/// Splits a packet without ICV into the IV and what it encrypts.
fn iv_and_text(body: &mut [u8]) -> Result<(&mut [u8; CBC_IV_BYTES], &mut [u8]), IntegrityError> {
    let rest = body.get_mut(ESP_HEADER_BYTES..).ok_or(IntegrityError)?;
    rest.split_first_chunk_mut().ok_or(IntegrityError)
}

fn encrypt_cbc(
    key: &CbcKey,
    body: &mut [u8],
    nonce: [u8; 8],
    sequence: u64,
) -> Result<(), IntegrityError> {
    let (iv, text) = iv_and_text(body)?;
    // RFC 3602 section 2: the IV must be unpredictable. An encrypted number that is never repeated
    // is (NIST SP 800-38A appendix C). With manual keys, the sequence numbers repeat after a
    // restart, but the nonce is another one.
    let mut block = [0; CBC_IV_BYTES];
    block[..8].copy_from_slice(&nonce);
    block[8..].copy_from_slice(&sequence.to_be_bytes());
    key.encrypt([0; CBC_IV_BYTES], &mut block)?;
    *iv = block;
    key.encrypt(block, text)
}
