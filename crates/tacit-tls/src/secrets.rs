//! The traffic secrets of a TLS 1.3 connection, which its next keys come from (RFC 8446 section
//! 7.2): a few bytes that live as long as it, so that nothing of the library has to.
//!
//! The library hands them to its key log (`outcome`). They are kept in memory only, and
//! zeroed when dropped.

use aws_lc_rs::aead;
use aws_lc_rs::hkdf::{Algorithm, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use tacit_core::record::{KeyRefused, Nonce};

use super::failure::Role;
use super::keys::DirectionKey;

/// The secret of one direction.
pub(super) struct Secret {
    hash: Algorithm,
    prk: Prk,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// What a connection's next keys come from.
#[derive(Debug)]
pub(super) struct Secrets {
    /// For what we send.
    pub(super) sending: Secret,
    /// For what the peer sends.
    pub(super) receiving: Secret,
}

/// The application traffic secrets that a handshake has made so far.
#[derive(Debug, Default)]
pub(super) struct TrafficSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
}

/// Names of both secrets in key logs.
const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl TrafficSecrets {
    /// None so far.
    pub(super) const NONE: Self = Self { client: None, server: None };

    /// Whether a key log's label names one of them.
    pub(super) fn are_logged_as(label: &str) -> bool {
        matches!(label, CLIENT | SERVER)
    }

    /// Keeps a secret of that label; others are dropped.
    pub(super) fn keep(&mut self, label: &str, secret: &[u8]) {
        match label {
            CLIENT => self.client = Secret::new(secret),
            SERVER => self.server = Secret::new(secret),
            _ => {}
        }
    }

    /// Whether there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.client.is_none() && self.server.is_none()
    }

    /// Adds those of a later step.
    pub(super) fn merge(&mut self, later: Self) {
        if later.client.is_some() {
            self.client = later.client;
        }
        if later.server.is_some() {
            self.server = later.server;
        }
    }

    /// Both secrets, if the handshake came so far.
    pub(super) fn into_secrets(self, role: Role) -> Option<Secrets> {
        let client = self.client?;
        let server = self.server?;
        Some(match role {
            Role::Client => Secrets { sending: client, receiving: server },
            Role::Server => Secrets { sending: server, receiving: client },
        })
    }
}

/// What protects a direction's next records.
pub(super) struct NextKey {
    pub(super) key: DirectionKey,
    pub(super) iv: Nonce,
}

impl Secret {
    fn new(secret: &[u8]) -> Option<Self> {
        let hash =
            [HKDF_SHA256, HKDF_SHA384].into_iter().find(|hash| hash.len() == secret.len())?;
        Some(Self { hash, prk: Prk::new_less_safe(hash, secret) })
    }

    /// Takes the step to the next secret; returns what it gives.
    ///
    /// # Errors
    /// The library refuses.
    pub(super) fn next(
        &mut self,
        algorithm: &'static aead::Algorithm,
    ) -> Result<NextKey, KeyRefused> {
        self.prk = expand(&self.prk, "traffic upd", self.hash, |okm| Ok(Prk::from(okm)))?;
        let mut key = [0; 32];
        let part = key.get_mut(..algorithm.key_len()).ok_or(KeyRefused)?;
        expand(&self.prk, "key", Length(part.len()), |okm| okm.fill(part))?;
        let mut iv = Nonce::default();
        expand(&self.prk, "iv", Length(iv.len()), |okm| okm.fill(&mut iv))?;
        Ok(NextKey { key: DirectionKey::new(algorithm, key), iv })
    }
}

/// How many bytes are wanted.
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
