//! Uses certificates to authenticate both peers of an IPsec tunnel. In the policy, the keys
//! `identity` and `trust` of the table `[ike.NAME]` select these certificates.

use std::sync::{Arc, Mutex, PoisonError};

use rustls_pki_types::UnixTime;
use tacit_ipsec::ike::{
    AuthScheme, AuthSigner, AuthVerifier, FailureSide, IkeFailure, IkeIdentity, SignedByPeer,
};
use tacit_tls::credentials::{LoadedIdentity, LoadedTrust};
use tacit_tls::signer::Scheme;
use tacit_tls::tunnel_auth::{
    TunnelPeerChain, TunnelPeerName, TunnelProof, authority_hashes, sign_tunnel_auth, subject_of,
    supports_scheme, verify_tunnel_peer,
};

/// The most authorities that a request names.
const AUTHORITIES_MAX: usize = 32;

/// Signs with an identity of the policy; its key may be in the signer.
#[derive(Debug)]
pub(super) struct IdentitySigner(pub(super) Arc<LoadedIdentity>);

/// Checks peers with a trust of the policy.
#[derive(Debug)]
pub(super) struct TrustVerifier {
    trust: Arc<LoadedTrust>,
    /// The certificates of the peer that was verified last.
    verified: Mutex<Option<TunnelPeerChain>>,
}

impl TrustVerifier {
    pub(super) fn new(trust: Arc<LoadedTrust>) -> Self {
        Self { trust, verified: Mutex::default() }
    }

    /// The certificates of the peer that was verified last, to check them again.
    pub(super) fn take_verified(&self) -> Option<TunnelPeerChain> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Checks a peer again that was trusted.
    pub(super) fn check_again(&self, chain: &TunnelPeerChain) -> Result<(), IkeFailure> {
        chain.check_again(&self.trust, UnixTime::now()).map_err(|reason| {
            IkeFailure::new(
                "peer-no-longer-trusted",
                FailureSide::Both,
                format!(
                "the peer's certificate no longer passes verification with [trust.{}]: {reason}; \
                 renew the peer's certificate",
                self.trust.name
            ))
        })
    }
}

impl AuthSigner for IdentitySigner {
    fn certificates(&self) -> Vec<Vec<u8>> {
        self.0.certified_key.cert.iter().map(|der| der.to_vec()).collect()
    }

    fn schemes(&self) -> Vec<AuthScheme> {
        let fits = |one: &AuthScheme| supports_scheme(&self.0, scheme(*one));
        AuthScheme::ALL.into_iter().filter(fits).collect()
    }

    fn sign(&self, with: AuthScheme, message: &[u8]) -> Result<Vec<u8>, IkeFailure> {
        sign_tunnel_auth(&self.0, scheme(with), message).map_err(|reason| {
            IkeFailure::new(
                "not-signed",
                FailureSide::Host,
                format!("cannot sign with identity `{}`: {reason}", self.0.name),
            )
        })
    }
}

impl AuthVerifier for TrustVerifier {
    fn authorities(&self) -> Vec<[u8; 20]> {
        authority_hashes(&self.trust, AUTHORITIES_MAX)
    }

    fn verify(&self, signed: &SignedByPeer<'_>) -> Result<(), IkeFailure> {
        let SignedByPeer { certificates, identity, scheme: with, message, signature } = *signed;
        let refused = |reason: String| {
            IkeFailure::new(
                "peer-not-trusted",
                FailureSide::Both,
                format!("cannot verify the peer with [trust.{}]: {reason}", self.trust.name),
            )
        };
        let subject = certificates.first().and_then(|leaf| subject_of(leaf)).unwrap_or_default();
        let name = match identity {
            IkeIdentity::Address(address) => TunnelPeerName::Address(*address),
            IkeIdentity::Fqdn(name) => TunnelPeerName::Host(name),
            IkeIdentity::UserFqdn(name) => TunnelPeerName::Email(name),
            IkeIdentity::DistinguishedName(_) => {
                let of_certificate = IkeIdentity::DistinguishedName(subject.clone());
                if of_certificate != *identity {
                    return Err(refused(format!(
                        "the subject of the peer's certificate is `{of_certificate}`, but the peer \
                         claims the identity `{identity}`"
                    )));
                }
                TunnelPeerName::Subject(&subject)
            }
            IkeIdentity::KeyId(_) => {
                return Err(refused(
                    "tacit does not support this kind of peer identity".to_owned(),
                ));
            }
        };
        let proof = TunnelProof { certificates, name, scheme: scheme(with), message, signature };
        let chain = verify_tunnel_peer(&self.trust, &proof, UnixTime::now()).map_err(refused)?;
        *self.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some(chain);
        Ok(())
    }
}

fn scheme(scheme: AuthScheme) -> Scheme {
    match scheme {
        AuthScheme::Ed25519 => Scheme::ED25519,
        AuthScheme::EcdsaP256 => Scheme::ECDSA_NISTP256_SHA256,
        AuthScheme::EcdsaP384 => Scheme::ECDSA_NISTP384_SHA384,
        AuthScheme::RsaPssSha256 => Scheme::RSA_PSS_SHA256,
        AuthScheme::RsaPssSha384 => Scheme::RSA_PSS_SHA384,
        AuthScheme::RsaPssSha512 => Scheme::RSA_PSS_SHA512,
    }
}
