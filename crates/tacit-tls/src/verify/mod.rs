//! Checking the peer's certificate, and saying what came of it.
//!
//! ```text
//!   rule --> ServerCheck (we are the client)   full | chain | none
//!        \-> ClientCheck (we are the server)   any level but none
//!                 | called by rustls inside one step of a handshake
//!                 v
//!             PeerCheck   valid | invalid: reason | …     shown per connection
//! ```
//!
//! A check is shared by all connections of a rule and rustls tells it nothing of the connection it
//! is called for. It can still leave its outcome with the right one: rustls calls it synchronously,
//! within one step of one handshake on one thread, so the outcome goes into a cell of the thread,
//! and [`observe`] carries it out of the step.
//!
//! A resumed session skips the check. The chain it was opened with may have expired since, or the
//! trust may have changed: `recheck` looks at the stored chain again, `allows` says what follows.
//!
//! A chain that was believed before is not verified again ([`Chains`]).
//!
//! Whatever is waived (`preferred`, `none`), the peer must prove that it holds the certificate's
//! key. That proof cannot be checked with an X.509 v1 certificate or an RSA key below 2048 bits, so
//! those are refused at every level.
//!
//! Where the trust has lists of revoked certificates, every certificate of a chain is looked up.
//! What no current list tells of is refused, or believed and told of. Not done here: asking anybody
//! else (OCSP).

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::VerifierBuilderError;
use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Serialize;
use tacit_core::policy::Revocation;

use self::chains::Key;
use self::verifiers::Unlisted;
use super::diagnose::{Case, Peer, diagnose_chain, diagnose_proof};
use super::facts::CertificateFacts;
use super::material::{ListFacts, TrustGeneration, TrustMaterial};

mod chains;
mod client;
mod naming;
mod server;
mod verifiers;

pub use chains::{CHAINS_MAX, Chains};
pub use client::ClientCheck;
pub use naming::{Named, Naming};
pub use server::ServerCheck;
pub use verifiers::Verifiers;

/// What came of checking the peer's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum PeerCheck {
    /// The rule asks for no certificate.
    NotAsked,
    /// Asked, and the peer sent none.
    Absent,
    /// Chain, time and usage are in order; a server's name too.
    Valid,
    /// Chain, time and usage are in order; a server's name was not asked about.
    ChainValid,
    /// The same, but no current list tells whether it is revoked, and the trust says `soft`.
    RevocationUnknown {
        /// Which list is missing, in one line with the next step.
        reason: String,
    },
    /// The certificate is not believed.
    Invalid {
        /// Why, in one line with the next step.
        reason: String,
    },
    /// The rule says `verify = "none"`, or `invalid = "allow"`.
    NotChecked,
}

impl PeerCheck {
    /// The word shown for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotAsked => "not-asked",
            Self::Absent => "absent",
            Self::Valid => "valid",
            Self::ChainValid => "chain-valid",
            Self::RevocationUnknown { .. } => "revocation-unknown",
            Self::Invalid { .. } => "invalid",
            Self::NotChecked => "not-checked",
        }
    }

    /// Whether what the certificate says of its holder is believed.
    #[must_use]
    pub fn is_believed(&self) -> bool {
        matches!(self, Self::Valid | Self::ChainValid | Self::RevocationUnknown { .. })
    }
}

/// What came of a check, and what the leaf says where that is known by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What came of it.
    pub check: PeerCheck,
    /// What a leaf that was believed says.
    pub leaf: Option<Arc<CertificateFacts>>,
}

impl From<PeerCheck> for Checked {
    fn from(check: PeerCheck) -> Self {
        Self { check, leaf: None }
    }
}

/// Who the peer is, as far as that was proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerIdentity {
    /// The subject of a certificate that was not believed: a claim, never a ground for a decision.
    pub claimed_subject: Option<String>,
    /// The name that it has by its rule: one of a map, or the first name of a certificate that was
    /// believed, or else its subject.
    pub identity: Option<String>,
    /// The entry of a map that would refuse it, but only warns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warned: Option<String>,
}

/// The identity that a check leaves a peer with. A waived chain has none.
#[must_use]
pub fn identity(
    check: &PeerCheck,
    named: &Named,
    facts: Option<&CertificateFacts>,
) -> PeerIdentity {
    let nobody = PeerIdentity::default();
    let Some(facts) = facts else { return nobody };
    if !check.is_believed() {
        return PeerIdentity { claimed_subject: Some(facts.subject.clone()), ..nobody };
    }
    let identity = match named {
        Named::Nobody => return nobody,
        Named::Warned { entry } => return PeerIdentity { warned: Some(entry.clone()), ..nobody },
        Named::Certificate => facts.sans.first().unwrap_or(&facts.subject),
        Named::Mapped(name) => name,
    };
    PeerIdentity { identity: Some(identity.clone()), ..nobody }
}

thread_local! {
    static OUTCOME: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// Runs one step of a handshake and says what a check found within it; `None`: no check was called
/// (it is not its turn yet, no certificate was sent, or the session is resumed).
///
/// The step must not wait: an outcome belongs to what ran on this thread since it began.
pub fn observe<R>(step: impl FnOnce() -> R) -> (R, Option<Checked>) {
    OUTCOME.set(None);
    let result = step();
    (result, OUTCOME.take())
}

fn note(outcome: impl Into<Checked>) {
    OUTCOME.set(Some(outcome.into()));
}

/// The whole check against one trust.
#[derive(Debug)]
struct Full<V: ?Sized> {
    trust: String,
    generation: TrustGeneration,
    verifier: Arc<V>,
    /// Believes what no current list tells of; `None`: nothing does.
    lenient: Option<Arc<V>>,
    lists: Vec<ListFacts>,
    chains: Option<Arc<Chains>>,
}

/// A chain as it was sent.
#[derive(Clone, Copy)]
struct Sent<'a> {
    leaf: &'a CertificateDer<'a>,
    rest: &'a [CertificateDer<'a>],
}

impl<V: ?Sized> Full<V> {
    fn new(
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
    fn check(
        &self,
        peer: Peer,
        Sent { leaf, rest }: Sent<'_>,
        name: Option<&ServerName<'_>>,
        now: UnixTime,
        verify: impl Fn(&V) -> Result<(), Error>,
    ) -> (Checked, Result<(), Error>) {
        let valid = match (peer, name) {
            (Peer::Server, None) => PeerCheck::ChainValid,
            (Peer::Server, Some(_)) | (Peer::Client, _) => PeerCheck::Valid,
        };
        let chains = self.chains.as_deref();
        let key = chains.and_then(|_| Key::of(peer, self.generation, name, leaf, rest));
        let known = chains.zip(key);
        if let Some(leaf) = known.and_then(|(chains, key)| chains.find(key, now)) {
            return (Checked { check: valid, leaf: Some(leaf) }, Ok(()));
        }
        let reason = |error: &Error| {
            let (trust, lists) = (self.trust.as_str(), self.lists.as_slice());
            diagnose_chain(error, &Case { peer, trust, lists, name, leaf, rest, now })
        };
        let error = match verify(&self.verifier) {
            Ok(()) => {
                let sent = Sent { leaf, rest };
                let until = self.lists_until(now);
                let leaf = known.and_then(|(chains, key)| chains.keep(key, sent, until, now));
                return (Checked { check: valid, leaf }, Ok(()));
            }
            Err(error) => error,
        };
        let lenient = self.lenient.as_deref().filter(|_| is_unlisted(&error));
        match lenient.map_or(Err(error.clone()), verify) {
            // Only what lists told of is remembered.
            Ok(()) => (PeerCheck::RevocationUnknown { reason: reason(&error) }.into(), Ok(())),
            Err(error) => (PeerCheck::Invalid { reason: reason(&error) }.into(), Err(error)),
        }
    }

    /// Until when what current lists said counts, in unix seconds.
    fn lists_until(&self, now: UnixTime) -> Option<i64> {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let dates = self.lists.iter().map(|list| list.next_update);
        dates.filter(|date| *date >= now).min()
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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Puts the reason for a failed proof of possession in the place of what the chain gave.
fn proved(
    result: Result<HandshakeSignatureValid, Error>,
    peer: Peer,
    leaf: &CertificateDer<'_>,
) -> Result<HandshakeSignatureValid, Error> {
    result.inspect_err(|error| {
        note(PeerCheck::Invalid { reason: diagnose_proof(error, peer, leaf) });
    })
}

#[cfg(test)]
mod tests;
