//! Determines the identity of a client, from its certificate and the identity map of the rule.
//!
//! In the handshake, the client proves that it holds the private key. So this module determines the
//! identity after the handshake. A client has an identity only if its certificate is trusted.

use std::net::IpAddr;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use tacit_core::failure_kind::FailureKind;
use tacit_core::policy::map::{CertificateSubject, MapEntry, MapOutcome, Mapped};
use tacit_core::policy::{ClientCert, IdentityMap, PeerName};

use crate::check::PeerCheck;
use crate::facts::CertificateFacts;
use crate::failure::{HandshakeFailure, Party};
use crate::subject::read_subject;

/// The source of the identities of a rule's clients.
#[derive(Clone, Debug)]
pub enum IdentityMapper {
    /// Clients have no identity.
    None,
    /// The certificate is the identity.
    Certificate,
    /// A map. Clients without an identity in the map are rejected.
    Map {
        /// The name of the map.
        name: String,
        /// The entries of the map.
        map: Arc<IdentityMap>,
    },
}

/// The result of the mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappedIdentity {
    /// No identity.
    None,
    /// The first name of the certificate.
    Certificate,
    /// An identity from a map.
    Mapped(String),
    /// No identity: an entry with a warning rejects the client, but the client is accepted.
    Warned {
        /// The entry and its line in the policy.
        entry: String,
    },
}

impl IdentityMapper {
    /// Creates the mapper of a client-certificate level. `None` if it needs a map that is missing.
    #[must_use]
    pub fn new(level: &ClientCert, map: Option<&IdentityMap>) -> Option<Self> {
        use tacit_core::policy::ChainCheck::{Made, Waived};
        Some(match level.requested().map(|policy| &policy.chain) {
            None | Some(Waived) | Some(Made { name: PeerName::None, .. }) => Self::None,
            Some(Made { name: PeerName::Certificate, .. }) => Self::Certificate,
            Some(Made { name: PeerName::Map(name), .. }) => {
                Self::Map { name: name.clone(), map: Arc::new(map?.clone()) }
            }
        })
    }

    /// Maps the trusted certificate of a client with this address.
    ///
    /// # Errors
    /// The map rejects the client.
    pub fn identify(
        &self,
        leaf: &CertificateDer<'_>,
        address: Option<IpAddr>,
    ) -> Result<MappedIdentity, HandshakeFailure> {
        let (name, map) = match self {
            Self::None => return Ok(MappedIdentity::None),
            Self::Certificate => return Ok(MappedIdentity::Certificate),
            Self::Map { name, map } => (name, map),
        };
        match read_subject(leaf, address) {
            Ok(subject) => map_identity(name, map, &subject, leaf),
            Err(_) => Err(refusal(
                FailureKind("certificate-not-mapped"),
                leaf,
                "the certificate contains too many names, or a name that is too long or is not \
                 valid text: reissue the certificate with fewer, shorter or valid names",
            )),
        }
    }
}

/// The identity of a peer, as far as it is proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerIdentity {
    /// The subject of a certificate that is not trusted. It is only a claim and must not be used
    /// for decisions.
    pub claimed_subject: Option<String>,
    /// The identity by the rule: from a map, or the first name or the subject of a trusted
    /// certificate.
    pub identity: Option<String>,
    /// The entry of a map that would reject the peer, but only causes a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warned: Option<String>,
}

/// Determines the identity of a peer after its check. A peer whose check was waived has none.
#[must_use]
pub fn identity(
    check: &PeerCheck,
    mapped: &MappedIdentity,
    facts: Option<&CertificateFacts>,
) -> PeerIdentity {
    let none = PeerIdentity::default();
    let Some(facts) = facts else { return none };
    if !check.is_trusted() {
        return PeerIdentity { claimed_subject: Some(facts.subject.clone()), ..none };
    }
    let identity = match mapped {
        MappedIdentity::None => return none,
        MappedIdentity::Warned { entry } => {
            return PeerIdentity { warned: Some(entry.clone()), ..none };
        }
        MappedIdentity::Certificate => facts.sans.first().unwrap_or(&facts.subject),
        MappedIdentity::Mapped(name) => name,
    };
    PeerIdentity { identity: Some(identity.clone()), ..none }
}

/// Maps a certificate subject.
///
/// # Errors
/// The map rejects the client.
fn map_identity(
    name: &str,
    map: &IdentityMap,
    subject: &CertificateSubject,
    leaf: &CertificateDer<'_>,
) -> Result<MappedIdentity, HandshakeFailure> {
    let line = |entry: &MapEntry| entry.position.line;
    match map.find(subject) {
        Mapped::Entry(entry) => match &entry.outcome {
            MapOutcome::Name(name) => Ok(MappedIdentity::Mapped(name.clone())),
            MapOutcome::Warn => {
                let entry = format!("[[map.{name}]] in line {}", line(entry));
                Ok(MappedIdentity::Warned { entry })
            }
            MapOutcome::Deny => Err(refusal(
                FailureKind("certificate-denied"),
                leaf,
                &format!(
                    "the entry of [[map.{name}]] in line {} denies the certificate: change the \
                     entry if you want to accept this client",
                    line(entry)
                ),
            )),
        },
        Mapped::Ambiguous(one, another) => Err(refusal(
            FailureKind("certificate-not-mapped"),
            leaf,
            &format!(
                "the certificate matches two equally specific entries of [[map.{name}]], in lines \
                 {} and {}, so tacit cannot choose one of them: add a condition to one of the two \
                 entries",
                line(one),
                line(another)
            ),
        )),
        Mapped::NoMatch => Err(refusal(
            FailureKind("certificate-not-mapped"),
            leaf,
            &format!(
                "no entry of [[map.{name}]] matches the certificate: add an entry for the \
                 certificate; `tacit explain --peer` shows why the existing entries do not match"
            ),
        )),
    }
}

fn refusal(kind: FailureKind, leaf: &CertificateDer<'_>, why: &str) -> HandshakeFailure {
    let facts = CertificateFacts::from_der(leaf).ok();
    let title = facts.as_ref().map_or("", CertificateFacts::title);
    let message = format!("the client's certificate {title} was rejected: {why}");
    HandshakeFailure { kind, party: Party::Policy, message }
}
