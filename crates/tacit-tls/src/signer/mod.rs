//! Lets the agent sign handshakes with private keys that only the signer holds. The signer is a
//! separate process.
//!
//! ```text
//! agent                                      signer
//!   load_identity ── paths ───────────────>  KeyStore::load     reads the files, keeps the key
//!              <── chain, public key ──────
//!   handshake: RemoteKey ── message ──────>  KeyStore::sign     checks the message, signs it
//!              <── signature ──────────────
//! ```
//!
//! The agent parses bytes of untrusted peers, so its memory must not contain a private key. The
//! agent sends the whole message to the signer, which signs only messages of TLS and IKE handshakes
//! ([`Signable`]). This module does no I/O: the caller implements [`SignerClient`].

mod signable;
pub mod wire;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use serde::{Deserialize, Serialize};

pub use signable::Signable;

/// A signature scheme, by its number in RFC 8446.
pub use rustls::SignatureScheme as Scheme;

use crate::fault::FaultText;
use crate::files::FileStamp;

/// The chain and the public key of an identity, and the signature schemes of its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicPair {
    /// The certificates in DER, the leaf first.
    pub chain: Vec<Vec<u8>>,
    /// The key's `SubjectPublicKeyInfo` in DER.
    pub public_key: Vec<u8>,
    /// The signature schemes, best first, by their numbers in RFC 8446.
    pub schemes: Vec<u16>,
    /// The file of the chain.
    pub cert: FileStamp,
    /// The file of the key.
    pub key: FileStamp,
}

/// The name of a key at its signer: a hash of the public key, and the generation in which it was
/// loaded. If a file gets another key, the name changes. So no message is signed with the wrong
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct KeyName {
    /// The SHA-256 hash of the key's `SubjectPublicKeyInfo`.
    pub spki_sha256: [u8; 32],
    /// The generation in which the key was loaded. So forgetting an old key does not remove a key
    /// that was loaded later.
    pub generation: u64,
}

impl PublicPair {
    /// Returns the name of the key in a generation.
    #[must_use]
    pub fn name(&self, generation: u64) -> KeyName {
        let hash = digest::digest(&digest::SHA256, &self.public_key);
        let mut spki_sha256 = [0; 32];
        spki_sha256.copy_from_slice(hash.as_ref());
        KeyName { spki_sha256, generation }
    }
}

/// The reason why a pair could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairError {
    /// The file with the fault.
    pub at: PairFile,
    /// The fault and its fix.
    pub fault: FaultText,
}

/// One of the two files of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairFile {
    /// The file of the chain.
    Cert,
    /// The file of the key.
    Key,
}

/// The agent's interface to the signer, which has the private keys and signs.
pub trait SignerClient: fmt::Debug + Send + Sync {
    /// Makes the signer read a pair, and store the key under its name in this generation.
    ///
    /// # Errors
    /// A fault of one of the files, or the signer cannot be reached.
    fn load(&self, generation: u64, cert: &Path, key: &Path) -> Result<PublicPair, PairError>;

    /// Returns a generation that was not used before.
    fn next_generation(&self) -> u64;

    /// Makes the signer sign a message, and waits for the signature.
    ///
    /// # Errors
    /// The signer cannot be reached, does not have the key, or refuses the message.
    fn sign(
        &self,
        name: KeyName,
        scheme: SignatureScheme,
        message: &[u8],
    ) -> Result<Vec<u8>, String>;

    /// Registers a key in use, so that it is loaded again if the signer is restarted.
    fn register(&self, key: &Arc<RemoteKey>);

    /// Reports that a key is no longer used.
    fn forget(&self, name: KeyName);
}

/// A private key that a signer holds.
#[derive(Debug)]
pub struct RemoteKey {
    name: KeyName,
    public_key: Vec<u8>,
    schemes: Arc<[SignatureScheme]>,
    cert: FileStamp,
    key: FileStamp,
    signer_client: Arc<dyn SignerClient>,
}

impl RemoteKey {
    /// Creates the key of a pair that was loaded in this generation.
    #[must_use]
    pub fn new(
        generation: u64,
        pair: &PublicPair,
        signer_client: &Arc<dyn SignerClient>,
    ) -> Arc<Self> {
        let key = Arc::new(Self {
            name: pair.name(generation),
            public_key: pair.public_key.clone(),
            schemes: pair.schemes.iter().copied().map(SignatureScheme::from).collect(),
            cert: pair.cert.clone(),
            key: pair.key.clone(),
            signer_client: Arc::clone(signer_client),
        });
        signer_client.register(&key);
        key
    }

    /// Makes a restarted signer load the key again. Returns whether the file still has the same
    /// key.
    ///
    /// # Errors
    /// The same as [`SignerClient::load`].
    pub fn load_again(&self) -> Result<bool, PairError> {
        let generation = self.name.generation;
        let pair = self.signer_client.load(generation, &self.cert.path, &self.key.path)?;
        let name = pair.name(generation);
        let is_same = name == self.name;
        if !is_same {
            self.signer_client.forget(name);
        }
        Ok(is_same)
    }
}

impl Drop for RemoteKey {
    fn drop(&mut self) {
        self.signer_client.forget(self.name);
    }
}

/// A [`RemoteKey`] with the interface that rustls needs.
#[derive(Debug)]
struct Remote(Arc<RemoteKey>);

impl SigningKey for Remote {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = self.0.schemes.iter().copied().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner { key: Arc::clone(&self.0), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.0.public_key.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        let first = self.0.schemes.first().copied();
        first.map_or(SignatureAlgorithm::Anonymous, algorithm_of)
    }
}

/// Returns the kind of key for a signature scheme.
fn algorithm_of(scheme: SignatureScheme) -> SignatureAlgorithm {
    use SignatureScheme as S;
    match scheme {
        S::ED25519 => SignatureAlgorithm::ED25519,
        S::ED448 => SignatureAlgorithm::ED448,
        S::ECDSA_NISTP256_SHA256 | S::ECDSA_NISTP384_SHA384 | S::ECDSA_NISTP521_SHA512 => {
            SignatureAlgorithm::ECDSA
        }
        _ => SignatureAlgorithm::RSA,
    }
}

/// Signs one message with a [`RemoteKey`].
#[derive(Debug)]
struct RemoteSigner {
    key: Arc<RemoteKey>,
    scheme: SignatureScheme,
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let RemoteKey { name, signer_client, .. } = &*self.key;
        let signed = signer_client.sign(*name, self.scheme, message);
        signed.map_err(|reason| Error::General(format!("{NOT_SIGNED}{reason}")))
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// The beginning of the errors of handshakes that the signer did not sign.
pub(crate) const NOT_SIGNED: &str = "the signer did not sign the handshake: ";

/// All signature schemes that keys may have, in the order of preference.
pub(crate) const SCHEMES: [SignatureScheme; 10] = [
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
];

/// Determines which process holds the private keys.
#[derive(Clone, Debug, Default)]
pub struct KeyProvider(Option<Arc<dyn SignerClient>>);

impl KeyProvider {
    /// Keys in this process.
    #[must_use]
    pub fn local() -> Self {
        Self(None)
    }

    /// Keys in a signer.
    #[must_use]
    pub fn remote(signer_client: Arc<dyn SignerClient>) -> Self {
        Self(Some(signer_client))
    }

    /// Returns the same provider if a signer is enabled, otherwise keys in this process.
    #[must_use]
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "the parameter is the value of the boolean policy key `signer`"
    )]
    pub fn if_enabled(&self, enabled: bool) -> Self {
        if enabled { self.clone() } else { Self::local() }
    }

    /// Returns the signer; `None`: keys are in this process.
    pub(crate) fn signer_client(&self) -> Option<&Arc<dyn SignerClient>> {
        self.0.as_ref()
    }
}

/// Returns the key with the interface that rustls needs.
pub(crate) fn signing_key(key: Arc<RemoteKey>) -> Arc<dyn SigningKey> {
    Arc::new(Remote(key))
}
