//! Verifies the certificates of servers, when tacit is the TLS client.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::VerifierBuilderError;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::chain_cache::{ChainCache, SentChain};
use super::proof::{algorithms, proved};
use super::trust_check::{ChainCheckResult, TrustCheck};
use crate::check::{CheckedPeer, PeerChain, PeerCheck};
use crate::credentials::LoadedTrust;
use crate::diagnose::PeerRole;
use crate::outcome::report_check;

/// How a client checks its servers: `verify` of a rule in the client role.
#[derive(Debug)]
pub struct ServerCheck {
    full: Option<TrustCheck>,
    /// Whether the certificate must match the name.
    wants_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCheck {
    /// `verify = "full"`: the chain leads to the trust, and the certificate matches the name.
    ///
    /// # Errors
    /// The trust has no anchors.
    pub fn full(trust: &LoadedTrust) -> Result<Self, VerifierBuilderError> {
        Ok(Self { full: Some(TrustCheck::new(trust)?), wants_name: true, ..Self::none() })
    }

    /// `verify = "chain"`: the chain leads to the trust; the name is not checked.
    ///
    /// # Errors
    /// The trust has no anchors.
    pub fn chain(trust: &LoadedTrust) -> Result<Self, VerifierBuilderError> {
        Ok(Self { wants_name: false, ..Self::full(trust)? })
    }

    /// `verify = "none"`: neither chain nor name are checked. The server must only prove that it
    /// holds its key.
    #[must_use]
    pub fn none() -> Self {
        Self { full: None, wants_name: false, algorithms: algorithms() }
    }

    /// Caches verified chains in `chains`.
    #[must_use]
    pub fn remembering(mut self, chains: Option<&Arc<ChainCache>>) -> Self {
        if let Some(full) = &mut self.full {
            full.chains = chains.cloned();
        }
        self
    }

    /// Checks the chain of a resumed session again.
    #[must_use]
    pub fn recheck(
        &self,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> CheckedPeer {
        match chain.split_first() {
            Some((leaf, rest)) => self.check(leaf, rest, name, now).checked,
            None if self.full.is_none() => PeerCheck::NotChecked.into(),
            None => PeerCheck::Absent.into(),
        }
    }

    /// Checks the peer of an open connection again, for each of these names. The peer was trusted
    /// when the connection was opened.
    #[must_use]
    pub fn check_open(
        &self,
        chain: &PeerChain,
        names: &[ServerName<'_>],
        now: UnixTime,
    ) -> PeerCheck {
        let Some((leaf, rest)) = chain.certificates().split_first() else {
            return PeerCheck::Absent;
        };
        let unnamed = [unnamed()];
        let names = if names.is_empty() { &unnamed } else { names };
        let mut checks = names.iter().map(|name| self.check(leaf, rest, name, now).of_open());
        let first = checks.next().unwrap_or(PeerCheck::Absent);
        if first.is_rejected() {
            return first;
        }
        checks.find(PeerCheck::is_rejected).unwrap_or(first)
    }

    /// Whether a connection with this result may continue.
    #[must_use]
    pub fn allows(&self, check: &PeerCheck) -> bool {
        match check {
            PeerCheck::Valid | PeerCheck::RevocationUnknown { .. } => self.full.is_some(),
            PeerCheck::ChainValid => self.full.is_some() && !self.wants_name,
            PeerCheck::NotChecked => self.full.is_none(),
            PeerCheck::NotAsked
            | PeerCheck::Absent
            | PeerCheck::Invalid { .. }
            | PeerCheck::Expired { .. }
            | PeerCheck::Revoked { .. } => false,
        }
    }

    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> ChainCheckResult {
        let Some(full) = &self.full else {
            return ChainCheckResult::passed(PeerCheck::NotChecked.into());
        };
        let wanted = self.wants_name.then_some(name);
        full.check(PeerRole::Server, SentChain { leaf, rest }, wanted, now)
    }
}

/// The server name for a client that has no name to verify and no name to send. It is only a key
/// for tickets, and no certificate matches it.
pub(crate) fn unnamed() -> ServerName<'static> {
    ServerName::from(IpAddr::from(Ipv6Addr::UNSPECIFIED))
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ChainCheckResult { checked, verdict } =
            self.check(end_entity, intermediates, server_name, now);
        report_check(checked);
        verdict.map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls12_signature(message, cert, dss, &self.algorithms), PeerRole::Server, cert)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        proved(verify_tls13_signature(message, cert, dss, &self.algorithms), PeerRole::Server, cert)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
