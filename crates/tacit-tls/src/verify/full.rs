//! The whole check of a chain against one trust, remembered chains and lists of revoked
//! certificates included.

use std::sync::Arc;

use rustls::server::VerifierBuilderError;
use rustls::{CertificateError, Error};
use rustls_pki_types::{ServerName, UnixTime};
use tacit_core::policy::Revocation;

use super::chains::{Chains, Key, Known, Sent};
use crate::check::{Checked, PeerCheck};
use crate::diagnose::{Case, Peer, diagnose_chain};
use crate::material::{ListFacts, TrustGeneration, TrustMaterial, Unlisted};

/// The whole check against one trust.
#[derive(Debug)]
pub(super) struct Full<V: ?Sized> {
    pub(super) trust: String,
    pub(super) generation: TrustGeneration,
    pub(super) verifier: Arc<V>,
    /// Believes what no current list tells of; `None`: nothing does.
    pub(super) lenient: Option<Arc<V>>,
    pub(super) lists: Vec<ListFacts>,
    pub(super) chains: Option<Arc<Chains>>,
}

/// What came of looking at a chain.
pub(super) struct Examined {
    pub(super) checked: Checked,
    /// What the library says.
    pub(super) verdict: Result<(), Error>,
}

impl Examined {
    /// The library has no objection.
    pub(super) fn passed(checked: Checked) -> Self {
        Self { checked, verdict: Ok(()) }
    }

    /// What it means for a connection that is open: the peer was trusted when it opened.
    pub(super) fn of_open(self) -> PeerCheck {
        let error = self.verdict.err();
        let PeerCheck::Invalid { reason } = self.checked.check else { return self.checked.check };
        match error {
            // A list was current when the connection opened, and did not name the peer.
            Some(error) if is_unlisted(&error) => PeerCheck::RevocationUnknown { reason },
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

impl<V: ?Sized> Full<V> {
    pub(super) fn new(
        trust: &TrustMaterial,
        verifier: impl Fn(&TrustMaterial, Unlisted) -> Result<Arc<V>, VerifierBuilderError>,
    ) -> Result<Self, VerifierBuilderError> {
        let lenient = match trust.revocation {
            Revocation::Soft => Some(verifier(trust, Unlisted::Believed)?),
            Revocation::Off | Revocation::Hard => None,
        };
        Ok(Self {
            trust: trust.name.clone(),
            generation: trust.generation,
            verifier: verifier(trust, Unlisted::Refused)?,
            lenient,
            lists: trust.lists.iter().map(|list| list.facts.clone()).collect(),
            chains: None,
        })
    }

    /// Has `verify` look at a chain, unless it did before. Without a name none is asked about.
    pub(super) fn check(
        &self,
        peer: Peer,
        Sent { leaf, rest }: Sent<'_>,
        name: Option<&ServerName<'_>>,
        now: UnixTime,
        verify: impl Fn(&V) -> Result<(), Error>,
    ) -> Examined {
        let valid = match (peer, name) {
            (Peer::Server, None) => PeerCheck::ChainValid,
            (Peer::Server, Some(_)) | (Peer::Client, _) => PeerCheck::Valid,
        };
        let chains = self.chains.as_deref();
        let key = chains.and_then(|_| Key::of(peer, self.generation, name, leaf, rest));
        let known = chains.zip(key);
        if let Some(known) = known.and_then(|(chains, key)| chains.find(key, now)) {
            return Examined::passed(believed(valid, Some(known)));
        }
        let reason = |error: &Error| {
            let trust = self.trust.as_str();
            let lists = self.lists.as_slice();
            diagnose_chain(error, &Case { peer, trust, lists, name, leaf, rest, now })
        };
        let error = match verify(&self.verifier) {
            Ok(()) => {
                let sent = Sent { leaf, rest };
                let until = self.lists_until(now);
                let known = known.and_then(|(chains, key)| chains.keep(key, sent, until, now));
                return Examined::passed(believed(valid, known));
            }
            Err(error) => error,
        };
        let lenient = self.lenient.as_deref().filter(|_| is_unlisted(&error));
        match lenient.map_or(Err(error.clone()), verify) {
            // Only what lists told of is remembered.
            Ok(()) => {
                Examined::passed(PeerCheck::RevocationUnknown { reason: reason(&error) }.into())
            }
            Err(error) => {
                let checked = PeerCheck::Invalid { reason: reason(&error) }.into();
                Examined { checked, verdict: Err(error) }
            }
        }
    }

    /// Until when what current lists said counts, in unix seconds.
    fn lists_until(&self, now: UnixTime) -> Option<i64> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let dates = self.lists.iter().map(|list| list.next_update);
        dates.filter(|date| *date >= now).min()
    }
}

fn believed(check: PeerCheck, known: Option<Known>) -> Checked {
    match known {
        Some(Known { leaf, chain }) => Checked { check, leaf: Some(leaf), chain: Some(chain) },
        None => check.into(),
    }
}

/// Whether the error is that no current list tells of the certificate.
fn is_unlisted(error: &Error) -> bool {
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
