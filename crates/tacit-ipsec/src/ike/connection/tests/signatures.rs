//! Tests AUTH payloads that contain signatures. Instead of certificates, the tests use public keys.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, UnparsedPublicKey, VerificationAlgorithm,
};

use super::pair::{Pair, config};
use crate::ike::*;

#[derive(Debug)]
pub(super) enum Key {
    Ed25519(Ed25519KeyPair),
    EcdsaP384(EcdsaKeyPair),
}

impl Key {
    pub(super) fn ed25519() -> Self {
        Self::Ed25519(Ed25519KeyPair::generate().unwrap())
    }

    pub(super) fn p384() -> Self {
        let algorithm = &signature::ECDSA_P384_SHA384_ASN1_SIGNING;
        Self::EcdsaP384(EcdsaKeyPair::generate(algorithm).unwrap())
    }

    pub(super) fn public(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(key) => key.public_key().as_ref().to_vec(),
            Self::EcdsaP384(key) => key.public_key().as_ref().to_vec(),
        }
    }
}

impl AuthSigner for Key {
    fn certificates(&self) -> Vec<Vec<u8>> {
        vec![self.public()]
    }

    fn schemes(&self) -> Vec<AuthScheme> {
        match self {
            Self::Ed25519(_) => vec![AuthScheme::Ed25519],
            Self::EcdsaP384(_) => vec![AuthScheme::EcdsaP384],
        }
    }

    fn sign(&self, _: AuthScheme, message: &[u8]) -> Result<Vec<u8>, IkeFailure> {
        Ok(match self {
            Self::Ed25519(key) => key.sign(message).as_ref().to_vec(),
            Self::EcdsaP384(key) => {
                key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
            }
        })
    }
}

/// Trusts one key.
#[derive(Debug)]
pub(super) struct Trusted(pub(super) Vec<u8>);

impl AuthVerifier for Trusted {
    fn verify(&self, signed: &SignedByPeer<'_>) -> Result<(), IkeFailure> {
        let algorithm: &'static dyn VerificationAlgorithm = match signed.scheme {
            AuthScheme::Ed25519 => &signature::ED25519,
            AuthScheme::EcdsaP384 => &signature::ECDSA_P384_SHA384_ASN1,
            other => panic!("{other:?}"),
        };
        let key = UnparsedPublicKey::new(algorithm, &self.0);
        let is_right = signed.certificates.first() == Some(&&self.0[..])
            && key.verify(signed.message, signed.signature).is_ok();
        let failure = IkeFailure::new("wrong-signature", FailureSide::Peer, "wrong signature");
        is_right.then_some(()).ok_or(failure)
    }
}

/// Two sides, of which each trusts the key of the other.
pub(super) fn configs(first: Key, second: Key) -> (IkeConfig, IkeConfig) {
    let mut a = config("a.example", "b.example", [1, 2]);
    let mut b = config("b.example", "a.example", [2, 1]);
    a.remote_auth = RemoteAuth::Signature(Arc::new(Trusted(second.public())));
    b.remote_auth = RemoteAuth::Signature(Arc::new(Trusted(first.public())));
    a.local_auth = LocalAuth::Signature(Arc::new(first));
    b.local_auth = LocalAuth::Signature(Arc::new(second));
    (a, b)
}

#[test]
fn signatures_of_both_sides_open_a_connection() {
    let (a, b) = configs(Key::ed25519(), Key::p384());
    let mut pair = Pair::with(a, b);
    pair.run(Duration::from_secs(1));
    pair.check();
}

#[test]
fn a_key_that_is_not_trusted_ends_the_connection_on_both_sides() {
    let (mut a, b) = configs(Key::ed25519(), Key::p384());
    a.local_auth = LocalAuth::Signature(Arc::new(Key::ed25519()));
    let mut pair = Pair::with(a, b);
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.sides[1].failure().unwrap().kind, "wrong-signature");
    assert_eq!(pair.sides[0].failure().unwrap().kind, "peer-refused");
    assert!(pair.sides.iter().all(|side| side.children.is_empty()));
}

#[test]
fn a_shared_key_in_place_of_a_signature_is_named() {
    let (_, b) = configs(Key::ed25519(), Key::p384());
    let a = config("a.example", "b.example", [1, 2]);
    let mut pair = Pair::with(a, b);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.sides[1].failure().unwrap().kind, "wrong-auth-method");
}
