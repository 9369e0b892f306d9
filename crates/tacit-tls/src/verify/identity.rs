//! What name a client has whose certificate was looked at.
//!
//! It is asked for when the handshake is complete, in full and resumed ones alike: only then is
//! proved that the client holds the key, and only the connection knows where it comes from. A
//! certificate that is not believed gives nobody a name, and no map is asked about it.

use std::net::IpAddr;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use serde::Serialize;
use tacit_core::policy::map::{CertificateSubject, MapEntry, MapOutcome, Mapped};
use tacit_core::policy::{ClientCert, IdentityMap, PeerName};

use crate::check::PeerCheck;
use crate::facts::CertificateFacts;
use crate::failure::{HandshakeFailure, Party};
use crate::holder::holder;

/// Where the names of a rule's clients come from.
#[derive(Clone, Debug)]
pub enum IdentityMapper {
    /// They have none.
    None,
    /// Their certificates.
    Certificate,
    /// A map; who has no name there is refused.
    Map {
        /// Its name.
        name: String,
        /// What it says.
        map: Arc<IdentityMap>,
    },
}

/// The name that a peer was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappedIdentity {
    /// None.
    None,
    /// The one that its certificate says.
    Certificate,
    /// One of a map.
    Mapped(String),
    /// None: an entry would refuse it, but only warns.
    Warned {
        /// Which entry, in words.
        entry: String,
    },
}

impl IdentityMapper {
    /// What a level says; `None`: it asks for a map that is not there.
    #[must_use]
    pub fn new(level: &ClientCert, map: Option<&IdentityMap>) -> Option<Self> {
        use tacit_core::policy::ChainCheck::{Made, Waived};
        Some(match level.asked().map(|asked| &asked.chain) {
            None | Some(Waived) | Some(Made { name: PeerName::None, .. }) => Self::None,
            Some(Made { name: PeerName::Certificate, .. }) => Self::Certificate,
            Some(Made { name: PeerName::Map(name), .. }) => {
                Self::Map { name: name.clone(), map: Arc::new(map?.clone()) }
            }
        })
    }

    /// The name of who shows a certificate that is believed, and comes from that address.
    ///
    /// # Errors
    /// The map refuses it.
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
        match holder(leaf, address) {
            Ok(holder) => map_identity(name, map, &holder, leaf),
            Err(_) => Err(refusal(
                "certificate-not-mapped",
                leaf,
                "has names that are not text, too long or too many to be compared: reissue it with \
                 fewer",
            )),
        }
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
    mapped: &MappedIdentity,
    facts: Option<&CertificateFacts>,
) -> PeerIdentity {
    let nobody = PeerIdentity::default();
    let Some(facts) = facts else { return nobody };
    if !check.is_trusted() {
        return PeerIdentity { claimed_subject: Some(facts.subject.clone()), ..nobody };
    }
    let identity = match mapped {
        MappedIdentity::None => return nobody,
        MappedIdentity::Warned { entry } => {
            return PeerIdentity { warned: Some(entry.clone()), ..nobody };
        }
        MappedIdentity::Certificate => facts.sans.first().unwrap_or(&facts.subject),
        MappedIdentity::Mapped(name) => name,
    };
    PeerIdentity { identity: Some(identity.clone()), ..nobody }
}

/// What a map says of a holder.
///
/// # Errors
/// It refuses.
fn map_identity(
    name: &str,
    map: &IdentityMap,
    holder: &CertificateSubject,
    leaf: &CertificateDer<'_>,
) -> Result<MappedIdentity, HandshakeFailure> {
    let line = |entry: &MapEntry| entry.position.line;
    match map.find(holder) {
        Mapped::Entry(entry) => match &entry.outcome {
            MapOutcome::Name(name) => Ok(MappedIdentity::Mapped(name.clone())),
            MapOutcome::Warn => {
                let entry = format!("[[map.{name}]] in line {}", line(entry));
                Ok(MappedIdentity::Warned { entry })
            }
            MapOutcome::Deny => Err(refusal(
                "certificate-denied",
                leaf,
                &format!(
                    "is denied by [[map.{name}]] in line {}: change the entry if this client is \
                     wanted",
                    line(entry)
                ),
            )),
        },
        Mapped::Ambiguous(one, another) => Err(refusal(
            "certificate-not-mapped",
            leaf,
            &format!(
                "meets two entries of [[map.{name}]] that are equally specific, in lines {} and \
                 {}: give one of them another condition",
                line(one),
                line(another)
            ),
        )),
        Mapped::Nobody => Err(refusal(
            "certificate-not-mapped",
            leaf,
            &format!(
                "has no name in [[map.{name}]]: add an entry for it; `tacit explain --peer` says \
                 why those there do not match"
            ),
        )),
    }
}

fn refusal(kind: &'static str, leaf: &CertificateDer<'_>, why: &str) -> HandshakeFailure {
    let facts = CertificateFacts::from_der(leaf).ok();
    let title = facts.as_ref().map_or("", CertificateFacts::title);
    let message = format!("the client's certificate of {title} {why}");
    HandshakeFailure { kind, party: Party::Policy, message }
}
