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
//! Whatever is waived (`preferred`, `none`), the peer must prove that it holds the certificate's
//! key. That proof cannot be checked with an X.509 v1 certificate or an RSA key below 2048 bits, so
//! those are refused at every level. Not done here: revocation, mapping certificates to users.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::Error;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use super::diagnose::{Peer, diagnose_proof};
use super::facts::CertificateFacts;

mod client;
mod server;

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
    static OUTCOME: RefCell<Option<PeerCheck>> = const { RefCell::new(None) };
}

/// Runs one step of a handshake and says what a check found within it; `None`: no check was called
/// (it is not its turn yet, no certificate was sent, or the session is resumed).
///
/// The step must not wait: an outcome belongs to what ran on this thread since it began.
pub fn observe<R>(step: impl FnOnce() -> R) -> (R, Option<PeerCheck>) {
    OUTCOME.set(None);
    let result = step();
    (result, OUTCOME.take())
}

fn note(outcome: PeerCheck) {
    OUTCOME.set(Some(outcome));
}

/// The whole check against one trust.
#[derive(Debug)]
struct Full<V: ?Sized> {
    trust: String,
    verifier: Arc<V>,
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
