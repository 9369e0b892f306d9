//! The traffic secrets of a TLS 1.3 connection, which its next keys come from (RFC 8446 section
//! 7.2): a few bytes that live as long as it, so that nothing of the library has to.
//!
//! The library shows secrets to those who log keys. Here that is a cell of the thread, as with the
//! outcome of a check: they are made within one step of one handshake, and [`observe`] carries them
//! out of it. They are kept in memory only, and zeroed when dropped.

use std::cell::RefCell;
use std::sync::Arc;

use aws_lc_rs::aead;
use aws_lc_rs::hkdf::{Algorithm, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::KeyLog;
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

/// What a handshake has shown so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    client: Option<Secret>,
    server: Option<Secret>,
}

impl Shown {
    /// Both secrets, if the handshake came so far.
    pub(super) fn into_secrets(self, role: Role) -> Option<Secrets> {
        let (client, server) = (self.client?, self.server?);
        let (sending, receiving) = match role {
            Role::Client => (client, server),
            Role::Server => (server, client),
        };
        Some(Secrets { sending, receiving })
    }
}

impl Secret {
    fn new(secret: &[u8]) -> Option<Self> {
        let hash =
            [HKDF_SHA256, HKDF_SHA384].into_iter().find(|hash| hash.len() == secret.len())?;
        Some(Self { hash, prk: Prk::new_less_safe(hash, secret) })
    }

    /// Takes the step to the next secret; returns the key and the IV that it gives.
    ///
    /// # Errors
    /// The library refuses.
    pub(super) fn next(
        &mut self,
        algorithm: &'static aead::Algorithm,
    ) -> Result<(DirectionKey, Nonce), KeyRefused> {
        self.prk = expand(&self.prk, "traffic upd", self.hash, |okm| Ok(Prk::from(okm)))?;
        let mut key = [0; 32];
        let part = key.get_mut(..algorithm.key_len()).ok_or(KeyRefused)?;
        expand(&self.prk, "key", Length(part.len()), |okm| okm.fill(part))?;
        let mut iv = Nonce::default();
        expand(&self.prk, "iv", Length(iv.len()), |okm| okm.fill(&mut iv))?;
        Ok((DirectionKey::new(algorithm, key), iv))
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

thread_local! {
    static SHOWN: RefCell<Shown> = const { RefCell::new(Shown { client: None, server: None }) };
}

/// Runs one step of a handshake, which must not wait, and adds what it shows to `shown`.
pub(super) fn observe<R>(shown: &mut Shown, step: impl FnOnce() -> R) -> R {
    SHOWN.take();
    let result = step();
    let Shown { client, server } = SHOWN.take();
    if client.is_some() {
        shown.client = client;
    }
    if server.is_some() {
        shown.server = server;
    }
    result
}

/// What the library takes for a log.
#[derive(Debug)]
struct ToObserver;

/// What settings give the library for a log of keys.
pub(super) fn to_observer() -> Arc<dyn KeyLog> {
    Arc::new(ToObserver)
}

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for ToObserver {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let secret = Secret::new(secret);
        SHOWN.with_borrow_mut(|shown| match label {
            CLIENT => shown.client = secret,
            SERVER => shown.server = secret,
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT | SERVER)
    }
}
