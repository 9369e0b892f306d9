//! Stores the traffic secrets of a TLS 1.3 connection, and derives the next keys of the connection
//! (RFC 8446 section 7.2).
//!
//! The TLS library passes the secrets to its key log callback. The secrets exist in memory only.
//! Each secret is overwritten with zeros when it is dropped.

use aws_lc_rs::aead::{self, AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};
use aws_lc_rs::hkdf::{Algorithm, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::CipherSuite;
use tacit_core::record::{KeyRefused, Nonce, RecordOpener, RecordProtection};
use zeroize::Zeroizing;

use super::failure::HandshakeRole;
use super::keys::{DirectionKey, KEY_BYTES_MAX};

/// The longest secret: that of a suite with SHA-384.
const SECRET_BYTES_MAX: usize = 48;

/// The secret of one direction. It is stored as bytes, because the library's form of it is twice as
/// long, and a connection uses it only when it changes its keys. A shorter secret is at the
/// beginning of the bytes. Its length is that of the hash, which follows from the algorithm of the
/// records.
pub(super) struct Secret(Zeroizing<[u8; SECRET_BYTES_MAX]>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The secrets from which the next keys of a connection are derived.
#[derive(Debug)]
pub(super) struct Secrets {
    /// The secret for the bytes that we send.
    pub(super) sending: Secret,
    /// The secret for the bytes that the peer sends.
    pub(super) receiving: Secret,
}

/// The traffic secrets of a handshake so far.
#[derive(Debug, Default)]
pub(super) struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
    /// The secret that protects the rest of the client's handshake.
    pub(super) client_handshake: Option<Secret>,
}

/// The labels of the secrets in key logs.
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";
const CLIENT_HANDSHAKE: &str = "CLIENT_HANDSHAKE_TRAFFIC_SECRET";

impl TrafficSecrets {
    /// No secrets.
    pub(super) const NONE: Self = Self { client: None, server: None, client_handshake: None };

    /// Whether this label of a key log names one of them.
    pub(super) fn are_logged_as(label: &str) -> bool {
        matches!(label, CLIENT | SERVER | CLIENT_HANDSHAKE)
    }

    /// Stores the secret with this label; secrets with other labels are dropped.
    pub(super) fn keep(&mut self, label: &str, secret: &[u8]) {
        match label {
            CLIENT => self.client = Secret::new(secret),
            SERVER => self.server = Secret::new(secret),
            CLIENT_HANDSHAKE => self.client_handshake = Secret::new(secret),
            _ => {}
        }
    }

    /// Whether there are no secrets.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.client.is_none() && self.server.is_none() && self.client_handshake.is_none()
    }

    /// Adds the secrets of a later step.
    pub(super) fn merge(&mut self, later: Self) {
        if later.client.is_some() {
            self.client = later.client;
        }
        if later.server.is_some() {
            self.server = later.server;
        }
        if later.client_handshake.is_some() {
            self.client_handshake = later.client_handshake;
        }
    }

    /// Returns both secrets, if the handshake has reached them.
    pub(super) fn into_secrets(self, role: HandshakeRole) -> Option<Secrets> {
        let client = self.client?;
        let server = self.server?;
        Some(match role {
            HandshakeRole::Client => Secrets { sending: client, receiving: server },
            HandshakeRole::Server => Secrets { sending: server, receiving: client },
        })
    }
}

/// The key and IV that protect the next records of a direction.
pub(super) struct NextKey {
    pub(super) key: DirectionKey,
    pub(super) iv: Nonce,
}

impl Secret {
    fn new(secret: &[u8]) -> Option<Self> {
        if ![HKDF_SHA256, HKDF_SHA384].iter().any(|hash| hash.len() == secret.len()) {
            return None;
        }
        let mut bytes = Zeroizing::new([0; SECRET_BYTES_MAX]);
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Self(bytes))
    }

    /// The secret in the library's form.
    fn prk(&self, hash: Algorithm) -> Result<Prk, KeyRefused> {
        let bytes = self.0.get(..hash.len()).ok_or(KeyRefused)?;
        Ok(Prk::new_less_safe(hash, bytes))
    }

    /// Replaces the secret by the next one, and returns the key and IV of the next one.
    ///
    /// # Errors
    /// The library has refused an operation.
    pub(super) fn next(
        &mut self,
        algorithm: &'static aead::Algorithm,
    ) -> Result<NextKey, KeyRefused> {
        let hash = hash_of(algorithm);
        let prk = self.prk(hash)?;
        let bytes = self.0.get_mut(..hash.len()).ok_or(KeyRefused)?;
        expand(&prk, "traffic upd", Length(hash.len()), |okm| okm.fill(bytes))?;
        self.key(algorithm)
    }

    /// Whether a TLS 1.3 record is the first one that this secret protects. The bytes of the record
    /// are lost.
    pub(super) fn opens_first(&self, suite: CipherSuite, record: &mut [u8]) -> bool {
        let (algorithm, protection) = match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => (&AES_128_GCM, RecordProtection::Tls13Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => (&AES_256_GCM, RecordProtection::Tls13Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => {
                (&CHACHA20_POLY1305, RecordProtection::Tls13ChaCha)
            }
            _ => return false,
        };
        let Ok(NextKey { key, iv }) = self.key(algorithm) else { return false };
        let Ok(mut key) = key.open(protection) else { return false };
        let opened = RecordOpener::new(protection, iv, 0).open_record(&mut key, record);
        opened.is_ok_and(|record| record.is_some())
    }

    /// Returns the key and IV of this secret.
    ///
    /// # Errors
    /// The library has refused an operation.
    pub(super) fn key(&self, algorithm: &'static aead::Algorithm) -> Result<NextKey, KeyRefused> {
        let prk = self.prk(hash_of(algorithm))?;
        let mut key = Zeroizing::new([0; KEY_BYTES_MAX]);
        let part = key.get_mut(..algorithm.key_len()).ok_or(KeyRefused)?;
        expand(&prk, "key", Length(part.len()), |okm| okm.fill(part))?;
        let mut iv = Nonce::default();
        expand(&prk, "iv", Length(iv.len()), |okm| okm.fill(&mut iv))?;
        Ok(NextKey { key: DirectionKey::new(algorithm, key), iv })
    }
}

/// The hash of the TLS 1.3 cipher suite whose records use this algorithm (RFC 8446 appendix B.4).
fn hash_of(algorithm: &aead::Algorithm) -> Algorithm {
    if *algorithm == AES_256_GCM { HKDF_SHA384 } else { HKDF_SHA256 }
}

/// The requested number of bytes.
#[derive(Clone, Copy, Debug)]
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand<L: KeyType, R>(
    prk: &Prk,
    label: &str,
    length: L,
    take: impl FnOnce(aws_lc_rs::hkdf::Okm<'_, L>) -> Result<R, aws_lc_rs::error::Unspecified>,
) -> Result<R, KeyRefused> {
    const PREFIX: &[u8] = b"tls13 ";
    let bytes = u16::try_from(length.len()).map_err(|_| KeyRefused)?.to_be_bytes();
    let label_bytes = u8::try_from(PREFIX.len() + label.len()).map_err(|_| KeyRefused)?;
    let info = [&bytes, &[label_bytes][..], PREFIX, label.as_bytes(), &[0]];
    prk.expand(&info, length).and_then(take).map_err(|_| KeyRefused)
}
