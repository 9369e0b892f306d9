//! Signs the authentication data of the driver, and verifies the signatures of the peer. The driver
//! is the process that has tacit's IKE connection. The test script has created the keys and
//! certificates of both sides. The driver trusts only the certificate that the script created for
//! the peer.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use tacit_ipsec::ike::{AuthScheme, AuthSigner, AuthVerifier, IkeFailure, SignedByPeer};

#[derive(Debug)]
enum Key {
    Ed25519(Ed25519KeyPair),
    EcdsaP256(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// The key of this side: `branch.p8` and `branch.der`.
#[derive(Debug)]
pub(crate) struct OwnKey(Key);

impl OwnKey {
    pub(crate) fn read() -> Self {
        let bytes = std::fs::read("branch.p8").unwrap();
        let ed25519 = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&bytes).map(Key::Ed25519);
        let ecdsa = || {
            let algorithm = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
            EcdsaKeyPair::from_pkcs8(algorithm, &bytes).map(Key::EcdsaP256)
        };
        let rsa = |_| RsaKeyPair::from_pkcs8(&bytes).map(Key::Rsa);
        Self(ed25519.or_else(|_| ecdsa()).or_else(rsa).unwrap())
    }
}

impl AuthSigner for OwnKey {
    fn certificates(&self) -> Vec<Vec<u8>> {
        vec![std::fs::read("branch.der").unwrap()]
    }

    fn schemes(&self) -> Vec<AuthScheme> {
        match self.0 {
            Key::Ed25519(_) => vec![AuthScheme::Ed25519],
            Key::EcdsaP256(_) => vec![AuthScheme::EcdsaP256],
            Key::Rsa(_) => vec![AuthScheme::RsaPssSha256],
        }
    }

    fn sign(&self, _: AuthScheme, message: &[u8]) -> Result<Vec<u8>, IkeFailure> {
        let random = SystemRandom::new();
        Ok(match &self.0 {
            Key::Ed25519(key) => key.sign(message).as_ref().to_vec(),
            Key::EcdsaP256(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Key::Rsa(key) => {
                let mut bytes = vec![0; key.public_modulus_len()];
                key.sign(&signature::RSA_PSS_SHA256, &random, message, &mut bytes).unwrap();
                bytes
            }
        })
    }
}

/// Trusts `gw.der`.
#[derive(Debug)]
pub(crate) struct TrustedPeer;

impl AuthVerifier for TrustedPeer {
    fn authorities(&self) -> Vec<[u8; 20]> {
        let ca = std::fs::read("ca.spki").unwrap();
        vec![digest(&SHA1_FOR_LEGACY_USE_ONLY, &ca).as_ref().try_into().unwrap()]
    }

    fn verify(&self, signed: &SignedByPeer<'_>) -> Result<(), IkeFailure> {
        let algorithm: &'static dyn VerificationAlgorithm = match signed.scheme {
            AuthScheme::Ed25519 => &signature::ED25519,
            AuthScheme::EcdsaP256 => &signature::ECDSA_P256_SHA256_ASN1,
            AuthScheme::RsaPssSha256 => &signature::RSA_PSS_2048_8192_SHA256,
            AuthScheme::RsaPssSha384 => &signature::RSA_PSS_2048_8192_SHA384,
            AuthScheme::RsaPssSha512 => &signature::RSA_PSS_2048_8192_SHA512,
            other @ AuthScheme::EcdsaP384 => panic!("{other:?}"),
        };
        println!("signed {:?}", signed.scheme);
        let key = UnparsedPublicKey::new(algorithm, std::fs::read("gw.spki").unwrap());
        assert_eq!(signed.certificates, [std::fs::read("gw.der").unwrap()]);
        assert!(key.verify(signed.message, signed.signature).is_ok(), "a wrong signature");
        Ok(())
    }
}
