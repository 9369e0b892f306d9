//! Stores the keys of a TLS connection, and creates the ciphers for its records.
//!
//! For each direction, a connection stores only the key itself, in 32 bytes. The cipher needs an
//! expanded key of more than a kilobyte. The expansion of a key takes about 0.2 us. Each worker
//! thread caches the expanded keys of about [`HOT_CONNECTIONS_MAX`] active connections.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, TlsProtocolId,
    TlsRecordOpeningKey, TlsRecordSealingKey, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;
use tacit_core::policy::TlsVersion;
use tacit_core::record::{self, KeyRefused, Open, RecordProtection, RecordSealer, Seal, TAG_BYTES};
use zeroize::Zeroizing;

/// The largest number of connections whose expanded keys a worker caches; each needs about two
/// kilobytes.
pub const HOT_CONNECTIONS_MAX: usize = 64;

/// The expanded keys that a worker caches. A connection has one slot, which another connection may
/// take over.
#[derive(Debug)]
pub struct ExpandedKeyCache {
    slots: Box<[HotKeys]>,
}

impl Default for ExpandedKeyCache {
    fn default() -> Self {
        Self { slots: (0..HOT_CONNECTIONS_MAX).map(|_| HotKeys::default()).collect() }
    }
}

impl ExpandedKeyCache {
    /// Returns the slot of the connection with this number. No other connection has the same
    /// number.
    pub fn of(&mut self, connection: u64) -> &mut HotKeys {
        let slot = self.slot(connection);
        if slot.connection != connection {
            *slot = HotKeys { connection, ..HotKeys::default() };
        }
        slot
    }

    /// Removes the keys of a connection that has ended.
    pub fn forget(&mut self, connection: u64) {
        let slot = self.slot(connection);
        if slot.connection == connection {
            *slot = HotKeys::default();
        }
    }

    fn slot(&mut self, connection: u64) -> &mut HotKeys {
        let slots = self.slots.len() as u64;
        // INVARIANT: the remainder is less than the length, which fits.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder of a division by the number of slots fits in `usize`"
        )]
        &mut self.slots[(connection % slots) as usize]
    }
}

/// The expanded keys of one connection.
#[derive(Debug, Default)]
pub struct HotKeys {
    connection: u64,
    seal: Option<HotKey<SealKey>>,
    open: Option<HotKey<OpenKey>>,
}

/// An expanded key of one direction.
#[derive(Debug)]
struct HotKey<K> {
    /// The number of keys that the direction had before this one.
    before: u32,
    expanded: K,
}

impl HotKeys {
    /// Returns the cipher for the next records that `sealer` creates. `before` distinguishes `key`
    /// from earlier keys of the direction.
    pub(super) fn seal(
        &mut self,
        before: u32,
        key: &DirectionKey,
        sealer: &RecordSealer,
    ) -> Result<&mut SealKey, KeyRefused> {
        let expanded = match self.seal.take() {
            Some(hot) if hot.before == before => hot.expanded,
            _ => key.seal(sealer)?,
        };
        Ok(&mut self.seal.insert(HotKey { before, expanded }).expanded)
    }

    /// Returns the cipher for the next records that arrive.
    pub(super) fn open(
        &mut self,
        before: u32,
        key: &DirectionKey,
        protection: RecordProtection,
    ) -> Result<&mut OpenKey, KeyRefused> {
        let expanded = match self.open.take() {
            Some(hot) if hot.before == before => hot.expanded,
            _ => key.open(protection)?,
        };
        Ok(&mut self.open.insert(HotKey { before, expanded }).expanded)
    }
}

/// The raw key of one direction. It is zeroed when dropped, and never displayed.
pub(super) struct DirectionKey {
    algorithm: &'static Algorithm,
    key: Zeroizing<[u8; KEY_BYTES_MAX]>,
}

/// The longest key. A shorter one is followed by zeros.
pub(super) const KEY_BYTES_MAX: usize = 32;

impl std::fmt::Debug for DirectionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DirectionKey(hidden)")
    }
}

/// The secrets that protect the records of one direction.
pub(super) struct DirectionSecrets {
    pub(super) key: DirectionKey,
    pub(super) protection: RecordProtection,
    pub(super) iv: record::Nonce,
}

impl DirectionSecrets {
    /// Splits the secrets of a direction into key and IV.
    ///
    /// # Errors
    /// The TLS library has negotiated an AEAD that the record layer does not support.
    pub(super) fn split(
        secrets: ConnectionTrafficSecrets,
        version: TlsVersion,
    ) -> Result<Self, KeyRefused> {
        let (gcm, chacha) = match version {
            TlsVersion::V1_2 => (RecordProtection::Tls12Gcm, RecordProtection::Tls12ChaCha),
            TlsVersion::V1_3 => (RecordProtection::Tls13Gcm, RecordProtection::Tls13ChaCha),
        };
        let (algorithm, aead_key, iv, protection) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv, gcm),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv, gcm),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&CHACHA20_POLY1305, key, iv, chacha)
            }
            _ => return Err(KeyRefused),
        };
        let iv = iv.as_ref().try_into().map_err(|_| KeyRefused)?;
        let mut key = Zeroizing::new([0; KEY_BYTES_MAX]);
        let given = aead_key.as_ref();
        key.get_mut(..given.len()).ok_or(KeyRefused)?.copy_from_slice(given);
        Ok(Self { key: DirectionKey { algorithm, key }, protection, iv })
    }
}

impl DirectionKey {
    /// Creates a key from the first bytes of `key`.
    pub(super) fn new(algorithm: &'static Algorithm, key: Zeroizing<[u8; KEY_BYTES_MAX]>) -> Self {
        Self { algorithm, key }
    }

    /// Returns the algorithm of the key.
    pub(super) fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// Creates the cipher for the next records that `sealer` creates.
    pub(super) fn seal(&self, sealer: &RecordSealer) -> Result<SealKey, KeyRefused> {
        let protection = sealer.protection();
        let Some(protocol) = record_protocol(protection) else {
            return self.less_safe().map(SealKey::ChaCha);
        };
        let mut key = TlsRecordSealingKey::new(self.algorithm, protocol, self.bytes())
            .map_err(|_| KeyRefused)?;
        if protection.is_tls13() && sealer.sequence() > 0 {
            // A TLS 1.3 record key computes the IV from the nonce of its first record, and assumes
            // that this record has the number zero. The nonce of an empty seal, which is discarded,
            // gives it the right IV.
            let first = Nonce::assume_unique_for_key(sealer.first_nonce());
            let _thrown_away = key
                .seal_in_place_separate_tag(first, Aad::empty(), &mut [])
                .map_err(|_| KeyRefused)?;
        }
        Ok(SealKey::Record(key))
    }

    /// Creates the cipher for the next records that arrive.
    pub(super) fn open(&self, protection: RecordProtection) -> Result<OpenKey, KeyRefused> {
        let Some(protocol) = record_protocol(protection) else {
            return self.less_safe().map(OpenKey::ChaCha);
        };
        TlsRecordOpeningKey::new(self.algorithm, protocol, self.bytes())
            .map(OpenKey::Record)
            .map_err(|_| KeyRefused)
    }

    /// An AES-128 key uses the first half of the 32-byte buffer.
    fn bytes(&self) -> &[u8] {
        &self.key[..self.algorithm.key_len().min(KEY_BYTES_MAX)]
    }

    fn less_safe(&self) -> Result<LessSafeKey, KeyRefused> {
        UnboundKey::new(self.algorithm, self.bytes()).map(LessSafeKey::new).map_err(|_| KeyRefused)
    }
}

/// The library has TLS record keys only for AES-GCM.
fn record_protocol(protection: RecordProtection) -> Option<TlsProtocolId> {
    match protection {
        RecordProtection::Tls13Gcm => Some(TlsProtocolId::TLS13),
        RecordProtection::Tls12Gcm => Some(TlsProtocolId::TLS12),
        RecordProtection::Tls13ChaCha | RecordProtection::Tls12ChaCha => None,
    }
}

/// Seals records.
#[derive(Debug)]
pub(super) enum SealKey {
    Record(TlsRecordSealingKey),
    ChaCha(LessSafeKey),
}

impl Seal for SealKey {
    fn seal(
        &mut self,
        nonce: record::Nonce,
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], KeyRefused> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(aad);
        let tag = match self {
            Self::Record(key) => key.seal_in_place_separate_tag(nonce, aad, data),
            Self::ChaCha(key) => key.seal_in_place_separate_tag(nonce, aad, data),
        };
        tag.ok().and_then(|tag| tag.as_ref().try_into().ok()).ok_or(KeyRefused)
    }
}

/// Opens records.
#[derive(Debug)]
pub(super) enum OpenKey {
    Record(TlsRecordOpeningKey),
    ChaCha(LessSafeKey),
}

impl Open for OpenKey {
    fn open(
        &mut self,
        nonce: record::Nonce,
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<(), KeyRefused> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(aad);
        let opened = match self {
            Self::Record(key) => key.open_in_place(nonce, aad, data),
            Self::ChaCha(key) => key.open_in_place(nonce, aad, data),
        };
        opened.map(|_| ()).map_err(|_| KeyRefused)
    }
}
