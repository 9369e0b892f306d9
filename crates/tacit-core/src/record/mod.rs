//! Implements the TLS record layer: encrypts (seals) and decrypts (opens) records in place, without
//! I/O. One call processes many records.
//!
//! This module handles the headers, nonces and sequence numbers of records after a handshake. RFC
//! 8446 section 5 defines them for TLS 1.3. RFC 5246 section 6, RFC 5288 and RFC 7905 define them
//! for TLS 1.2. The caller provides the cipher as [`Seal`] and [`Open`].
//!
//! A *slot* is the part of a send buffer that holds one record. The caller fills the payloads of
//! the slots with plaintext. Sealed records are adjacent, so one write can send all of them. The
//! sizes are in bytes:
//!
//! ```text
//!   slot:  | header 5 | explicit nonce 0/8 | payload <= 16384 | type 0/1 | tag 16 |
//! ```
//!
//! Limits: [`PAYLOAD_BYTES_MAX`] for each record; [`RecordProtection::records_max`] records for
//! each sealing key; [`EMPTY_RECORDS_MAX`] empty records in a row.

mod hello;

use std::fmt;
use std::ops::Range;

pub use hello::begins_client_hello;

/// The length of content type, version and length (RFC 8446 section 5.1).
pub const HEADER_BYTES: usize = 5;
/// The largest plaintext of one record (RFC 8446 section 5.1).
pub const PAYLOAD_BYTES_MAX: usize = 1 << 14;
/// The length of the tag, for every suite.
pub const TAG_BYTES: usize = 16;
/// The largest protected part of a record, without the header (RFC 8446 section 5.2: 256 more than
/// the plaintext). RFC 5246 allows 2048 more, but no AEAD suite needs more than 24.
pub const PROTECTED_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 256;
/// The largest record with its header. A reader must be able to store it.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PROTECTED_BYTES_MAX;
/// 2^24.5, rounded down.
const GCM_RECORDS_MAX: u64 = 23_726_566;
/// The length of an AES block.
const BLOCK_BYTES: usize = 16;
/// The result of [`blocks_of`] for a full-size record.
const FULL_RECORD_BLOCKS: u64 = blocks_of(PAYLOAD_BYTES_MAX);
/// Maximum number of consecutive records without payload.
pub const EMPTY_RECORDS_MAX: u32 = 32;

/// A nonce. It has twelve bytes for every suite.
pub type Nonce = [u8; 12];

/// Seals one record in place.
pub trait Seal {
    /// Encrypts `data` in place and returns its tag.
    ///
    /// # Errors
    /// The key cannot be used: it is used up, or was used wrongly.
    fn seal(
        &mut self,
        nonce: Nonce,
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], KeyRefused>;
}

/// Opens one record in place.
pub trait Open {
    /// Decrypts `data`, which ends in its tag, in place.
    ///
    /// # Errors
    /// The tag does not match.
    fn open(&mut self, nonce: Nonce, aad: &[u8], data: &mut [u8]) -> Result<(), KeyRefused>;
}

/// The error of an AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRefused;

/// Content types (RFC 8446 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// 20; not valid after a handshake.
    ChangeCipherSpec = 20,
    /// 21.
    Alert = 21,
    /// 22.
    Handshake = 22,
    /// 23.
    ApplicationData = 23,
}

impl ContentType {
    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            20 => Some(Self::ChangeCipherSpec),
            21 => Some(Self::Alert),
            22 => Some(Self::Handshake),
            23 => Some(Self::ApplicationData),
            _ => None,
        }
    }
}

/// How records of a connection are protected: the version and the kind of AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordProtection {
    /// TLS 1.3, AES-GCM.
    Tls13Gcm,
    /// TLS 1.3, ChaCha20-Poly1305.
    Tls13ChaCha,
    /// TLS 1.2, AES-GCM: a part of the nonce is sent with the record (RFC 5288 section 3).
    Tls12Gcm,
    /// TLS 1.2, ChaCha20-Poly1305 (RFC 7905 section 2).
    Tls12ChaCha,
}

impl RecordProtection {
    /// Whether it is TLS 1.3.
    #[must_use]
    pub fn is_tls13(self) -> bool {
        matches!(self, Self::Tls13Gcm | Self::Tls13ChaCha)
    }

    /// Returns the number of bytes before the payload in a slot.
    #[must_use]
    pub fn prefix_bytes(self) -> usize {
        HEADER_BYTES + self.explicit_nonce_bytes()
    }

    /// Returns the number of bytes after the payload in a slot.
    #[must_use]
    pub fn suffix_bytes(self) -> usize {
        usize::from(self.is_tls13()) + TAG_BYTES
    }

    /// Returns the distance between the beginnings of two slots.
    #[must_use]
    pub fn slot_bytes(self) -> usize {
        self.prefix_bytes() + PAYLOAD_BYTES_MAX + self.suffix_bytes()
    }

    /// Returns the number of full-size records that one key may protect; for smaller records, the
    /// number of AES blocks is limited accordingly. With AES-GCM, 2^24.5 full-size records keep the
    /// advantage of an attacker below 2^-57 (RFC 8446 section 5.5). TLS 1.3 uses only a third of
    /// this limit, so that a KeyUpdate happens in time. TLS 1.2 has no KeyUpdate and uses the whole
    /// limit. ChaCha20-Poly1305 has no such limit before the sequence number ends.
    #[must_use]
    pub fn records_max(self) -> u64 {
        match self {
            Self::Tls13Gcm => 1 << 23,
            Self::Tls12Gcm => GCM_RECORDS_MAX,
            Self::Tls13ChaCha | Self::Tls12ChaCha => 1 << 48,
        }
    }

    fn explicit_nonce_bytes(self) -> usize {
        if self == Self::Tls12Gcm { 8 } else { 0 }
    }
}

/// The fault of a record, and which side caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The peer sent a content type that is not allowed here.
    PeerSentContentType(u8),
    /// The peer sent a version that is not TLS.
    PeerSentVersion(u16),
    /// The peer sent a record longer than the RFC allows.
    PeerSentTooLong,
    /// The peer sent a record too short to contain a tag.
    PeerSentTooShort,
    /// The peer sent a record whose authentication failed.
    PeerSentForged,
    /// The peer sent a record that contains only padding (RFC 8446 section 5.4).
    PeerSentNoContentType,
    /// The peer sent [`EMPTY_RECORDS_MAX`] empty records in a row.
    PeerSentEmptyRecords,
    /// The key must not protect another record; no KeyUpdate happened in time.
    KeyUsedUp,
}

impl RecordError {
    /// Returns the alert for the peer (RFC 8446 section 6.2).
    #[must_use]
    pub fn alert(self) -> AlertDescription {
        match self {
            Self::PeerSentContentType(_)
            | Self::PeerSentNoContentType
            | Self::PeerSentEmptyRecords => AlertDescription::UNEXPECTED_MESSAGE,
            Self::PeerSentVersion(_) => AlertDescription::PROTOCOL_VERSION,
            Self::PeerSentTooLong => AlertDescription::RECORD_OVERFLOW,
            Self::PeerSentTooShort | Self::PeerSentForged => AlertDescription::BAD_RECORD_MAC,
            Self::KeyUsedUp => AlertDescription::INTERNAL_ERROR,
        }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerSentContentType(byte) => {
                write!(
                    f,
                    "the peer sent a record of type {byte}, which is not allowed at this point of \
                     the connection"
                )
            }
            Self::PeerSentVersion(version) => {
                write!(
                    f,
                    "the peer sent a record of version {version:#06x}, which is not a TLS version"
                )
            }
            Self::PeerSentTooLong => f.write_str("the peer sent a record longer than TLS allows"),
            Self::PeerSentTooShort => {
                f.write_str("the peer sent a record that is too short for its authentication tag")
            }
            Self::PeerSentForged => f.write_str(
                "a record from the peer failed authentication: the bytes of the record were \
                 modified in transit",
            ),
            Self::PeerSentNoContentType => {
                f.write_str("the peer sent a record that consists of padding only")
            }
            Self::PeerSentEmptyRecords => {
                write!(f, "the peer sent {EMPTY_RECORDS_MAX} empty records in a row")
            }
            Self::KeyUsedUp => {
                f.write_str("the TLS key has encrypted the maximum number of records")
            }
        }
    }
}

impl std::error::Error for RecordError {}

/// An alert description, the second byte of an alert (RFC 8446 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertDescription(pub u8);

impl AlertDescription {
    /// The end of the peer's data.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message or record is not allowed now.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// The authentication of a record failed.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record was too long.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// A certificate is not accepted.
    pub const BAD_CERTIFICATE: Self = Self(42);
    /// A field has an illegal value.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A certificate is valid, but access is denied.
    pub const ACCESS_DENIED: Self = Self(49);
    /// A message could not be decoded.
    pub const DECODE_ERROR: Self = Self(50);
    /// An unsupported version.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// An internal error.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The user canceled; a `close_notify` follows.
    pub const USER_CANCELED: Self = Self(90);
    /// No renegotiation; TLS 1.2 only.
    pub const NO_RENEGOTIATION: Self = Self(100);
    /// The client offers no application protocol that is allowed here (RFC 7301 section 3.2).
    pub const NO_APPLICATION_PROTOCOL: Self = Self(120);
}

/// Returns the number of blocks that a record uses of its key: the blocks of the payload with the
/// content type of TLS 1.3, and the block that masks the tag.
const fn blocks_of(payload_bytes: usize) -> u64 {
    (payload_bytes / BLOCK_BYTES) as u64 + 2
}

/// The sending side of one connection.
#[derive(Clone, Debug)]
pub struct RecordSealer {
    protection: RecordProtection,
    iv: Nonce,
    sequence: u64,
    /// The number of blocks that the key may still protect.
    blocks_left: u64,
}

impl RecordSealer {
    /// Creates a sealer with the write IV and the next sequence number after the handshake.
    ///
    /// TLS 1.2 with AES-GCM: the first four bytes of the IV are the salt, and the last eight are
    /// the start of the explicit nonces. The records of the handshake used `start ^ sequence`.
    /// Later records use `start' + sequence`, where `start'` is `start` with its top bit cleared.
    /// These nonces always rise, as a TLS record key requires, never wrap, and differ from the one
    /// or two nonces used before.
    #[must_use]
    pub fn new(protection: RecordProtection, iv: Nonce, sequence: u64) -> Self {
        // It is not known how much the records of the handshake used, so each counts as a full-size
        // record.
        let records = protection.records_max().saturating_sub(sequence);
        Self { protection, iv, sequence, blocks_left: records * FULL_RECORD_BLOCKS }
    }

    /// How records are protected.
    #[must_use]
    pub fn protection(&self) -> RecordProtection {
        self.protection
    }

    /// The next record's sequence number.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the nonce of sequence number zero, which a TLS 1.3 record key must use first.
    #[must_use]
    pub fn first_nonce(&self) -> Nonce {
        self.iv
    }

    /// Returns the number of full-size records that the key may still protect; it may protect more
    /// smaller ones.
    #[must_use]
    pub fn records_left(&self) -> u64 {
        self.blocks_left / FULL_RECORD_BLOCKS
    }

    /// Lowers the number of full-size records that the key may still protect.
    pub fn limit_records(&mut self, records: u64) {
        self.blocks_left = self.blocks_left.min(records.saturating_mul(FULL_RECORD_BLOCKS));
    }

    /// Seals the `payload_bytes` in the slots of `buffer`; the last slot may be partly full.
    /// Returns how many bytes at the beginning of the buffer are now records to send.
    ///
    /// # Errors
    /// [`RecordError::KeyUsedUp`].
    ///
    /// # Panics
    /// `buffer` is shorter than the slots that the payload fills.
    pub fn seal_slots(
        &mut self,
        key: &mut impl Seal,
        buffer: &mut [u8],
        payload_bytes: usize,
    ) -> Result<usize, RecordError> {
        let mut sealed = 0;
        let mut left = payload_bytes;
        while left > 0 {
            let payload = left.min(PAYLOAD_BYTES_MAX);
            let slot = &mut buffer[sealed..];
            sealed += self.seal_record(key, ContentType::ApplicationData, slot, payload)?;
            left -= payload;
        }
        Ok(sealed)
    }

    /// Seals one message as one record, and appends it to `out`.
    ///
    /// # Errors
    /// [`RecordError::KeyUsedUp`].
    pub fn seal_message(
        &mut self,
        key: &mut impl Seal,
        content: ContentType,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let start = out.len();
        out.resize(start + self.protection.prefix_bytes(), 0);
        out.extend_from_slice(message);
        out.resize(out.len() + self.protection.suffix_bytes(), 0);
        let sealed = self.seal_record(key, content, &mut out[start..], message.len());
        out.truncate(start + *sealed.as_ref().unwrap_or(&0));
        sealed.map(|_| ())
    }

    fn seal_record(
        &mut self,
        key: &mut impl Seal,
        content: ContentType,
        slot: &mut [u8],
        payload_bytes: usize,
    ) -> Result<usize, RecordError> {
        let Some(blocks_left) = self.blocks_left.checked_sub(blocks_of(payload_bytes)) else {
            return Err(RecordError::KeyUsedUp);
        };
        let prefix = self.protection.prefix_bytes();
        let suffix = self.protection.suffix_bytes();
        let total = prefix + payload_bytes + suffix;
        let (head, body) = slot[..total].split_at_mut(prefix);
        let (data, tag) = body.split_at_mut(body.len() - TAG_BYTES);
        let outer = if self.protection.is_tls13() {
            data[payload_bytes] = content as u8;
            ContentType::ApplicationData
        } else {
            content
        };
        head[..HEADER_BYTES].copy_from_slice(&header(outer, total - HEADER_BYTES));
        let nonce = self.nonce();
        head[HEADER_BYTES..].copy_from_slice(&nonce[4..4 + prefix - HEADER_BYTES]);
        let mut aad = [0; AAD_BYTES_MAX];
        let aad = associated_data(self.protection, self.sequence, head, payload_bytes, &mut aad);
        let sealed = key.seal(nonce, aad, data).map_err(|_| RecordError::KeyUsedUp)?;
        tag.copy_from_slice(&sealed);
        self.sequence += 1;
        self.blocks_left = blocks_left;
        Ok(total)
    }

    fn nonce(&self) -> Nonce {
        if self.protection != RecordProtection::Tls12Gcm {
            return xor_sequence(self.iv, self.sequence);
        }
        let mut nonce = self.iv;
        let mut start = [0; 8];
        start.copy_from_slice(&nonce[4..]);
        let start = u64::from_be_bytes(start) & (u64::MAX >> 1);
        nonce[4..].copy_from_slice(&(start + self.sequence).to_be_bytes());
        nonce
    }
}

/// The receiving side of one connection.
#[derive(Clone, Debug)]
pub struct RecordOpener {
    protection: RecordProtection,
    iv: Nonce,
    sequence: u64,
    /// Always fewer than [`EMPTY_RECORDS_MAX`].
    empty_records: u8,
}

/// An opened record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedRecord {
    /// The content type of the record.
    pub content: ContentType,
    /// The range of its payload in the buffer.
    pub payload: Range<usize>,
    /// The number of bytes of the record in the buffer.
    pub consumed: usize,
}

impl RecordOpener {
    /// Creates an opener with the read IV and the next sequence number after the handshake.
    #[must_use]
    pub fn new(protection: RecordProtection, iv: Nonce, sequence: u64) -> Self {
        Self { protection, iv, sequence, empty_records: 0 }
    }

    /// How records are protected.
    #[must_use]
    pub fn protection(&self) -> RecordProtection {
        self.protection
    }

    /// Opens the record at the beginning of `buffer` in place; `None` if it is not complete yet.
    ///
    /// # Errors
    /// The record is invalid. An invalid header is reported as soon as its five bytes are there.
    pub fn open_record(
        &mut self,
        key: &mut impl Open,
        buffer: &mut [u8],
    ) -> Result<Option<OpenedRecord>, RecordError> {
        let Some(length) = self.protected_bytes(buffer)? else { return Ok(None) };
        let consumed = HEADER_BYTES + length;
        if buffer.len() < consumed {
            return Ok(None);
        }
        let prefix = self.protection.prefix_bytes();
        let (head, data) = buffer[..consumed].split_at_mut(prefix);
        let payload_bytes = data.len() - TAG_BYTES;
        let nonce = if self.protection == RecordProtection::Tls12Gcm {
            let mut nonce = self.iv;
            nonce[4..].copy_from_slice(&head[HEADER_BYTES..]);
            nonce
        } else {
            xor_sequence(self.iv, self.sequence)
        };
        let mut aad = [0; AAD_BYTES_MAX];
        let aad = associated_data(self.protection, self.sequence, head, payload_bytes, &mut aad);
        key.open(nonce, aad, data).map_err(|_| RecordError::PeerSentForged)?;
        self.sequence += 1;
        let (content, payload_bytes) =
            inner_content(self.protection, head[0], &data[..payload_bytes])?;
        self.count_empty(payload_bytes)?;
        Ok(Some(OpenedRecord { content, payload: prefix..prefix + payload_bytes, consumed }))
    }

    /// Checks the header, if it is complete, and returns the number of bytes that follow it.
    fn protected_bytes(&self, buffer: &[u8]) -> Result<Option<usize>, RecordError> {
        let Some((&[kind, major, minor, high, low], _)) =
            buffer.split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let legal = match ContentType::from_byte(kind) {
            // RFC 8446 section 5.2: the outer type of a protected record is application data.
            // Section 5: a change_cipher_spec after the handshake is an unexpected message.
            Some(ContentType::ApplicationData) => true,
            Some(ContentType::Alert | ContentType::Handshake) => !self.protection.is_tls13(),
            Some(ContentType::ChangeCipherSpec) | None => false,
        };
        if !legal {
            return Err(RecordError::PeerSentContentType(kind));
        }
        // RFC 8446 section 5.1 requires readers to ignore the version. But if it is not 3.x, the
        // bytes are not TLS.
        if major != 3 || (!self.protection.is_tls13() && minor != 3) {
            return Err(RecordError::PeerSentVersion(u16::from_be_bytes([major, minor])));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > PROTECTED_BYTES_MAX {
            return Err(RecordError::PeerSentTooLong);
        }
        if length < self.protection.prefix_bytes() - HEADER_BYTES + self.protection.suffix_bytes() {
            return Err(RecordError::PeerSentTooShort);
        }
        Ok(Some(length))
    }

    fn count_empty(&mut self, payload_bytes: usize) -> Result<(), RecordError> {
        self.empty_records = if payload_bytes == 0 { self.empty_records + 1 } else { 0 };
        if u32::from(self.empty_records) >= EMPTY_RECORDS_MAX {
            return Err(RecordError::PeerSentEmptyRecords);
        }
        Ok(())
    }
}

/// Returns the content type and the length of the decrypted data. TLS 1.3 puts the content type and
/// padding at the end.
fn inner_content(
    protection: RecordProtection,
    outer: u8,
    plaintext: &[u8],
) -> Result<(ContentType, usize), RecordError> {
    let (byte, length) = if protection.is_tls13() {
        // RFC 8446 section 5.4: padding counts as plaintext.
        if plaintext.len() > PAYLOAD_BYTES_MAX + 1 {
            return Err(RecordError::PeerSentTooLong);
        }
        let end = plaintext.iter().rposition(|&byte| byte != 0);
        let end = end.ok_or(RecordError::PeerSentNoContentType)?;
        (plaintext[end], end)
    } else {
        (outer, plaintext.len())
    };
    if length > PAYLOAD_BYTES_MAX {
        return Err(RecordError::PeerSentTooLong);
    }
    match ContentType::from_byte(byte) {
        None | Some(ContentType::ChangeCipherSpec) => Err(RecordError::PeerSentContentType(byte)),
        // RFC 8446 section 5.1: zero-length fragments of these are not allowed.
        Some(ContentType::Alert | ContentType::Handshake) if length == 0 => {
            Err(RecordError::PeerSentContentType(byte))
        }
        Some(content) => Ok((content, length)),
    }
}

const AAD_BYTES_MAX: usize = 13;

/// RFC 8446 section 5.2: the header. RFC 5246 section 6.2.3.3: the sequence number, then the header
/// with the length of the plaintext.
fn associated_data<'a>(
    protection: RecordProtection,
    sequence: u64,
    head: &[u8],
    plaintext_bytes: usize,
    out: &'a mut [u8; AAD_BYTES_MAX],
) -> &'a [u8] {
    if protection.is_tls13() {
        out[..HEADER_BYTES].copy_from_slice(&head[..HEADER_BYTES]);
        return &out[..HEADER_BYTES];
    }
    out[..8].copy_from_slice(&sequence.to_be_bytes());
    out[8..11].copy_from_slice(&head[..3]);
    out[11..].copy_from_slice(&length_bytes(plaintext_bytes));
    out
}

/// RFC 8446 section 5.3: the IV, whose end is combined with the sequence number by XOR.
fn xor_sequence(mut iv: Nonce, sequence: u64) -> Nonce {
    for (byte, mask) in iv[4..].iter_mut().zip(sequence.to_be_bytes()) {
        *byte ^= mask;
    }
    iv
}

fn header(content: ContentType, length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = length_bytes(length);
    [content as u8, 3, 3, high, low]
}

fn length_bytes(length: usize) -> [u8; 2] {
    // Every caller's length is at most PROTECTED_BYTES_MAX, which fits.
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests;
