//! Checking the peer's certificate, and saying what came of it.
//!
//! ```text
//!   rule --> ServerCheck (we are the client)   full | none
//!        \-> ClientCheck (we are the server)   required | preferred
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
//! those are refused at every level. Not done here: revocation, mapping certificates to users.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::Error;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Serialize;

use self::chains::Key;
use super::diagnose::{Case, Peer, diagnose_chain, diagnose_proof};
use super::facts::CertificateFacts;
use super::material::{TrustGeneration, TrustMaterial};

mod chains;
mod client;
mod server;

pub use chains::{CHAINS_MAX, Chains};
pub use client::ClientCheck;
pub use server::ServerCheck;

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
    /// The certificate is not believed.
    Invalid {
        /// Why, in one line with the next step.
        reason: String,
    },
    /// The rule says `verify = "none"`.
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
            Self::Invalid { .. } => "invalid",
            Self::NotChecked => "not-checked",
        }
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
    /// The first name of a certificate that was believed, or else its subject.
    pub identity: Option<String>,
}

/// The identity that a check leaves a peer with. A waived chain has none.
#[must_use]
pub fn identity(check: &PeerCheck, facts: Option<&CertificateFacts>) -> PeerIdentity {
    let Some(facts) = facts else { return PeerIdentity::default() };
    if *check == PeerCheck::Valid {
        let name = facts.sans.first().unwrap_or(&facts.subject);
        PeerIdentity { claimed_subject: None, identity: Some(name.clone()) }
    } else {
        PeerIdentity { claimed_subject: Some(facts.subject.clone()), identity: None }
    }
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
    chains: Option<Arc<Chains>>,
}

/// A chain as it was sent.
#[derive(Clone, Copy)]
struct Sent<'a> {
    leaf: &'a CertificateDer<'a>,
    rest: &'a [CertificateDer<'a>],
}

impl<V: ?Sized> Full<V> {
    fn new(trust: &TrustMaterial, verifier: Arc<V>) -> Self {
        let (trust, generation) = (trust.name.clone(), trust.generation);
        Self { trust, generation, verifier, chains: None }
    }

    /// Has `verify` look at a chain, unless it did before.
    fn check(
        &self,
        peer: Peer,
        Sent { leaf, rest }: Sent<'_>,
        name: Option<&ServerName<'_>>,
        now: UnixTime,
        verify: impl FnOnce(&V) -> Result<(), Error>,
    ) -> (Checked, Result<(), Error>) {
        let chains = self.chains.as_deref();
        let key = chains.and_then(|_| Key::of(peer, self.generation, name, leaf, rest));
        let known = chains.zip(key);
        if let Some(leaf) = known.and_then(|(chains, key)| chains.find(key, now)) {
            return (Checked { check: PeerCheck::Valid, leaf: Some(leaf) }, Ok(()));
        }
        match verify(&self.verifier) {
            Ok(()) => {
                let leaf = known.and_then(|(chains, key)| chains.keep(key, leaf, rest, now));
                (Checked { check: PeerCheck::Valid, leaf }, Ok(()))
            }
            Err(error) => {
                let trust = self.trust.as_str();
                let reason = diagnose_chain(&error, &Case { peer, trust, name, leaf, rest, now });
                (PeerCheck::Invalid { reason }.into(), Err(error))
            }
        }
    }
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
