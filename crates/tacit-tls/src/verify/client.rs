//! Verifies the certificates of clients, when tacit is the TLS server.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::VerifierBuilderError;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::sync::Arc;
use tacit_core::policy::{Absent, Invalid};

use super::chain_cache::{ChainCache, SentChain};
use super::proof::{algorithms, proved};
use super::trust_check::{ChainCheckResult, TrustCheck};
use crate::check::{CheckedPeer, PeerChain, PeerCheck};
use crate::credentials::LoadedTrust;
use crate::diagnose::PeerRole;
use crate::outcome::report_check;

/// How a server checks its clients, for every value of `client-cert` except `"none"`.
#[derive(Debug)]
pub struct ClientCheck {
    /// `None` if chains are not verified.
    made: Option<Made>,
    absent: Absent,
    algorithms: WebPkiSupportedAlgorithms,
}

/// How chains are verified.
#[derive(Debug)]
struct Made {
    full: TrustCheck,
    /// The names of the trusted CAs. The handshake sends these names to the client.
    hints: Vec<DistinguishedName>,
    /// What happens to invalid certificates.
    invalid: Invalid,
}

impl ClientCheck {
    /// Verifies chains with the CA certificates of `trust`. `invalid` decides what happens to
    /// invalid chains.
    ///
    /// # Errors
    /// `trust` contains no CA certificate.
    pub fn made(
        trust: &LoadedTrust,
        absent: Absent,
        invalid: Invalid,
    ) -> Result<Self, VerifierBuilderError> {
        let full = TrustCheck::new(trust)?;
        let hints = full.verifier.roots().subjects();
        Ok(Self { made: Some(Made { full, hints, invalid }), absent, algorithms: algorithms() })
    }

    /// Does not verify chains. Clients must only prove that they hold the keys of their
    /// certificates.
    #[must_use]
    pub fn waived(absent: Absent) -> Self {
        Self { made: None, absent, algorithms: algorithms() }
    }

    /// Caches verified chains in `chains`.
    #[must_use]
    pub fn remembering(mut self, chains: Option<&Arc<ChainCache>>) -> Self {
        if let Some(made) = &mut self.made {
            made.full.chains = chains.cloned();
        }
        self
    }

    /// Checks the chain of a resumed session again; an empty chain counts as an absent certificate.
    #[must_use]
    pub fn recheck(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> CheckedPeer {
        match chain.split_first() {
            Some((leaf, rest)) => self.check(leaf, rest, now).checked,
            None => PeerCheck::Absent.into(),
        }
    }

    /// Checks the peer of an open connection again. The peer was trusted when the connection was
    /// opened.
    #[must_use]
    pub fn check_open(&self, chain: &PeerChain, now: UnixTime) -> PeerCheck {
        match chain.certificates().split_first() {
            Some((leaf, rest)) => self.check(leaf, rest, now).of_open(),
            None => PeerCheck::Absent,
        }
    }

    /// Whether a connection may continue after a check with this result.
    #[must_use]
    pub fn allows(&self, check: &PeerCheck) -> bool {
        let invalid = self.made.as_ref().map(|made| made.invalid);
        match check {
            PeerCheck::Valid | PeerCheck::RevocationUnknown { .. } => invalid.is_some(),
            PeerCheck::Absent => self.absent == Absent::Allow,
            PeerCheck::Invalid { .. } | PeerCheck::Expired { .. } | PeerCheck::Revoked { .. } => {
                invalid == Some(Invalid::Log)
            }
            PeerCheck::NotChecked => invalid.is_none(),
            PeerCheck::NotAsked | PeerCheck::ChainValid => false,
        }
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> ChainCheckResult {
        let Some(Made { full, .. }) = &self.made else {
            return ChainCheckResult::passed(PeerCheck::NotChecked.into());
        };
        full.check(PeerRole::Client, SentChain { leaf, rest }, None, now)
    }
}

impl ClientCertVerifier for ClientCheck {
    fn client_auth_mandatory(&self) -> bool {
        self.absent == Absent::Deny
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.made.as_ref().map_or(&[], |made| &made.hints)
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let ChainCheckResult { checked, verdict } = self.check(end_entity, intermediates, now);
        let allowed = self.allows(&checked.check);
        report_check(checked);
        match verdict {
            Err(error) if !allowed => Err(error),
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls12_signature(message, cert, dss, &self.algorithms), PeerRole::Client, cert)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls13_signature(message, cert, dss, &self.algorithms), PeerRole::Client, cert)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
