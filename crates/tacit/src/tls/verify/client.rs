//! Checking clients, as a server.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{Chains, Checked, Full, PeerCheck, Sent, note, proved, provider};
use crate::tls::diagnose::Peer;
use crate::tls::material::TrustMaterial;

/// How a server checks its clients: `client-cert = "required"` or `"preferred"`.
#[derive(Debug)]
pub struct ClientCheck {
    full: Full<dyn ClientCertVerifier>,
    required: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCheck {
    /// `client-cert = "required"`: absent and invalid are refused.
    ///
    /// # Errors
    /// If the trust has no anchors.
    pub fn required(trust: &TrustMaterial) -> Result<Self, VerifierBuilderError> {
        Self::new(trust, true)
    }

    /// `client-cert = "preferred"`: absent is allowed; invalid is told and allowed.
    ///
    /// # Errors
    /// If the trust has no anchors.
    pub fn preferred(trust: &TrustMaterial) -> Result<Self, VerifierBuilderError> {
        Self::new(trust, false)
    }

    fn new(trust: &TrustMaterial, required: bool) -> Result<Self, VerifierBuilderError> {
        let (roots, provider) = (trust.roots.clone(), provider());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
        Ok(Self { full: Full::new(trust, verifier), required, algorithms })
    }

    /// Has it remember the chains that it believes.
    #[must_use]
    pub fn remembering(mut self, chains: Option<&Arc<Chains>>) -> Self {
        self.full.chains = chains.cloned();
        self
    }

    /// Checks the chain of a resumed session again; an empty one is an absent certificate.
    #[must_use]
    pub fn recheck(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Checked {
        match chain.split_first() {
            Some((leaf, rest)) => self.check(leaf, rest, now).0,
            None => PeerCheck::Absent.into(),
        }
    }

    /// Whether a connection with that outcome may go on.
    #[must_use]
    pub fn allows(&self, check: &PeerCheck) -> bool {
        match check {
            PeerCheck::Valid => true,
            PeerCheck::Absent | PeerCheck::Invalid { .. } => !self.required,
            PeerCheck::NotAsked | PeerCheck::NotChecked => false,
        }
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> (Checked, Result<(), Error>) {
        self.full.check(Peer::Client, Sent { leaf, rest }, None, now, |verifier| {
            verifier.verify_client_cert(leaf, rest, now).map(|_| ())
        })
    }
}

impl ClientCertVerifier for ClientCheck {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.full.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (outcome, result) = self.check(end_entity, intermediates, now);
        note(outcome);
        match result {
            Err(error) if self.required => Err(error),
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls12_signature(message, cert, dss, &self.algorithms), Peer::Client, cert)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls13_signature(message, cert, dss, &self.algorithms), Peer::Client, cert)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
