//! Verifies a certificate chain, unless the chain is in the chain cache. The verification uses the
//! CA certificates and CRLs of one `[trust.NAME]` table.

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::{CertificateError, Error};
use rustls_pki_types::{ServerName, UnixTime};
use tacit_core::policy::Revocation;

use super::chain_cache::{ChainCache, ChainKey, KnownChain, SentChain};
use crate::check::{CheckedPeer, PeerChain, PeerCheck};
use crate::credentials::{
    ChainOf, CrlFacts, LoadedTrust, PathCheck, PathFault, TrustGeneration, UnknownRevocation,
};
use crate::diagnose::{FailedChain, PeerRole, diagnose_chain};

/// The check of chains against one trust.
#[derive(Debug)]
pub(super) struct TrustCheck<V = PathCheck> {
    pub(super) trust: String,
    pub(super) generation: TrustGeneration,
    pub(super) verifier: Arc<V>,
    /// The check that accepts an unknown revocation status, if the trust allows this.
    pub(super) accepting_unknown: Option<Arc<V>>,
    pub(super) crls: Vec<CrlFacts>,
    pub(super) chains: Option<Arc<ChainCache>>,
}

/// The result of the check of a chain.
pub(super) struct ChainCheckResult {
    pub(super) checked: CheckedPeer,
    /// The library's result.
    pub(super) verdict: Result<(), Error>,
}

impl ChainCheckResult {
    /// The result for a chain that the library accepts.
    pub(super) fn passed(checked: CheckedPeer) -> Self {
        Self { checked, verdict: Ok(()) }
    }

    /// Returns the result for an open connection. The peer was trusted when the connection was
    /// opened.
    pub(super) fn of_open(self) -> PeerCheck {
        let error = self.verdict.err();
        let PeerCheck::Invalid { reason } = self.checked.check else { return self.checked.check };
        match error {
            // A CRL was current when the connection was opened, and did not list the peer.
            Some(error) if is_revocation_unknown(&error) => PeerCheck::RevocationUnknown { reason },
            Some(Error::InvalidCertificate(CertificateError::Revoked)) => {
                PeerCheck::Revoked { reason }
            }
            Some(Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => PeerCheck::Expired { reason },
            _ => PeerCheck::Invalid { reason },
        }
    }
}

impl TrustCheck {
    pub(super) fn new(trust: &LoadedTrust) -> Result<Self, VerifierBuilderError> {
        let accepting_unknown = match trust.revocation {
            Revocation::Soft => Some(trust.path_check(UnknownRevocation::Accept)?),
            Revocation::Off | Revocation::Hard => None,
        };
        Ok(Self {
            trust: trust.name.clone(),
            generation: trust.generation,
            verifier: trust.path_check(UnknownRevocation::Reject)?,
            accepting_unknown,
            crls: trust.crls.iter().map(|crl| crl.facts.clone()).collect(),
            chains: None,
        })
    }

    /// Checks a chain unless it is in the cache. Without a name, the check ignores names.
    pub(super) fn check(
        &self,
        peer: PeerRole,
        sent: SentChain<'_>,
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> ChainCheckResult {
        let SentChain { leaf, rest } = sent;
        self.check_by(peer, sent, name, now, |verifier| {
            let of = match peer {
                PeerRole::Server => ChainOf::Server,
                PeerRole::Client => ChainOf::Client,
            };
            let anchor_end = verifier.check(of, leaf, rest, now)?;
            // The name is checked last, when everything else is valid.
            if let Some(name) = name {
                verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
            }
            Ok(anchor_end)
        })
    }
}

impl<V> TrustCheck<V> {
    /// Checks with `verify`, which returns when the anchor expires, in unix seconds, if expired
    /// anchors are rejected.
    pub(super) fn check_by(
        &self,
        peer: PeerRole,
        SentChain { leaf, rest }: SentChain<'_>,
        name: Option<&ServerName<'_>>,
        now: UnixTime,
        verify: impl Fn(&V) -> Result<Option<i64>, Error>,
    ) -> ChainCheckResult {
        let valid = match (peer, name) {
            (PeerRole::Server, None) => PeerCheck::ChainValid,
            (PeerRole::Server, Some(_)) | (PeerRole::Client, _) => PeerCheck::Valid,
        };
        let chains = self.chains.as_deref();
        let key = chains.and_then(|_| ChainKey::of(peer, self.generation, name, leaf, rest));
        let known = chains.zip(key);
        if let Some(known) = known.and_then(|(chains, key)| chains.find(key, now)) {
            let KnownChain { leaf, chain } = known;
            return ChainCheckResult::passed(CheckedPeer {
                check: valid,
                leaf: Some(leaf),
                chain: Some(chain),
            });
        }
        let reason = |error: &Error| {
            let trust = self.trust.as_str();
            let crls = self.crls.as_slice();
            diagnose_chain(error, &FailedChain { peer, trust, crls, name, leaf, rest, now })
        };
        let sent = SentChain { leaf, rest };
        let error = match verify(&self.verifier) {
            Ok(anchor_end) => {
                let until = self.crls_until(now).into_iter().chain(anchor_end).min();
                let chain = Arc::new(PeerChain::new(leaf, rest, anchor_end));
                let kept = known.and_then(|(chains, key)| {
                    chains.keep(key, sent, Arc::clone(&chain), until, now)
                });
                return ChainCheckResult::passed(CheckedPeer {
                    check: valid,
                    leaf: kept,
                    chain: Some(chain),
                });
            }
            Err(error) => error,
        };
        let accepting_unknown =
            self.accepting_unknown.as_deref().filter(|_| is_revocation_unknown(&error));
        match accepting_unknown.map_or(Err(error.clone()), verify) {
            // Only chains with a known revocation status are cached.
            Ok(anchor_end) => {
                let check = PeerCheck::RevocationUnknown { reason: reason(&error) };
                let chain = Some(Arc::new(PeerChain::new(leaf, rest, anchor_end)));
                ChainCheckResult::passed(CheckedPeer { check, leaf: None, chain })
            }
            Err(error) => {
                let checked = PeerCheck::Invalid { reason: reason(&error) }.into();
                ChainCheckResult { checked, verdict: Err(answered(error)) }
            }
        }
    }

    /// Returns when the first current CRL becomes outdated, in unix seconds.
    fn crls_until(&self, now: UnixTime) -> Option<i64> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let dates = self.crls.iter().map(|crl| crl.next_update);
        dates.filter(|date| *date >= now).min()
    }
}

/// Sets the alert for the peer. The library would send decrypt_error or handshake_failure, although
/// a certificate is at fault.
fn answered(error: Error) -> Error {
    use webpki::Error as Why;
    let word = match PathFault::within(&error) {
        Some(PathFault::AnchorExpired { .. }) => CertificateError::Expired,
        Some(PathFault::CaMayNotSign { .. } | PathFault::LeafMayNotSign) => {
            CertificateError::InvalidPurpose
        }
        // For these errors the alert stays certificate_unknown: the certificate is not at fault, or
        // its check is too expensive.
        Some(
            PathFault::NotPinned
            | PathFault::CaMayNotSignCrls { .. }
            | PathFault::Library(
                Why::IssuerNotCrlSigner
                | Why::InvalidCrlSignatureForPublicKey
                | Why::UnsupportedCrlSignatureAlgorithmContext(_)
                | Why::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_)
                | Why::MaximumNameConstraintComparisonsExceeded
                | Why::MaximumPathBuildCallsExceeded
                | Why::MaximumPathDepthExceeded
                | Why::MaximumSignatureChecksExceeded,
            ),
        ) => return error,
        Some(PathFault::Library(_)) => CertificateError::BadEncoding,
        None if error == CertificateError::BadSignature.into() => CertificateError::BadEncoding,
        None => return error,
    };
    word.into()
}

/// Whether the error is an unknown revocation status.
fn is_revocation_unknown(error: &Error) -> bool {
    use CertificateError as Why;
    matches!(
        error,
        Error::InvalidCertificate(
            Why::UnknownRevocationStatus
                | Why::ExpiredRevocationList
                | Why::ExpiredRevocationListContext { .. }
        )
    )
}
