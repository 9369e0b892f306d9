//! Checks whether a peer's certificate is pinned. If a `[trust]` table lists pinned certificates
//! (`pinned`), the peer's own certificate must be identical to one of them, byte for byte. tacit
//! rejects another certificate with the same name or key. tacit also rejects a certificate that a
//! pinned CA certificate has signed.
//!
//! The table can also list CA certificates (`ca`), the anchors:
//!
//! ```text
//!   `ca`   `pinned`   the peer is trusted if
//!   yes    -          its chain leads to an anchor
//!   yes    yes        its chain leads to an anchor, and its certificate is pinned
//!   -      yes        its certificate is pinned, is valid now, and allows the usage
//!                     (tacit builds no chain)
//! ```

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::error::{CredentialError, CredentialFault};
use super::expiry::expiry_warning;
use super::pem::{certificates, facts_of, read};
use crate::facts::CertificateFacts;
use crate::failure::HandshakeRole;
use crate::fault::FaultText;
use crate::files::{FileContent, FileStamp};

/// The largest number of certificates that one trust can pin.
pub const PINNED_MAX: usize = 4096;

/// The pinned certificates of a trust; at least one.
#[derive(Clone, Debug)]
pub struct Pinned {
    certificates: Arc<[CertificateDer<'static>]>,
    facts: Arc<[CertificateFacts]>,
    chain: Chain,
}

/// How the chain of a pinned certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    /// The chain must lead to an anchor.
    Checked,
    /// The trust has no anchors, so no chain is built.
    NotBuilt,
}

impl Pinned {
    /// Returns the facts of the certificates, in their order.
    #[must_use]
    pub fn facts(&self) -> &[CertificateFacts] {
        &self.facts
    }

    /// Whether both have the same pinned certificates, and both or neither have anchors.
    pub(super) fn same(&self, other: &Self) -> bool {
        self.chain == other.chain && self.certificates == other.certificates
    }

    /// Whether the trust has no anchors, so that no chain is built.
    pub(super) fn is_alone(&self) -> bool {
        self.chain == Chain::NotBuilt
    }

    /// Returns why a peer of tacit in this role can never be accepted with any of these
    /// certificates; `None` if one of them can be accepted.
    pub(super) fn unusable(&self, trust: &str, role: HandshakeRole) -> Option<UnusablePins> {
        let fault = |facts| self.fault(facts, role);
        let faults: Option<Vec<_>> = self.facts.iter().map(fault).collect();
        let first = faults?.into_iter().next()?;
        let subject = self.facts.first()?.title().to_owned();
        Some(UnusablePins { trust: trust.to_owned(), role, subject, fault: first })
    }

    /// Returns why a peer of tacit in this role can never be accepted with this pinned certificate,
    /// by the checks of a handshake.
    fn fault(&self, facts: &CertificateFacts, role: HandshakeRole) -> Option<PinFault> {
        if facts.is_ca && self.chain == Chain::Checked {
            return Some(PinFault::Ca);
        }
        if !facts.may_sign {
            return Some(PinFault::MayNotSign);
        }
        let usages = &facts.usages;
        let needed = role.peer_usage();
        let is_for_peer = usages.is_empty() || usages.iter().any(|usage| usage == needed);
        (!is_for_peer).then(|| PinFault::OtherUsage { usages: usages.join(", "), needed })
    }

    /// Whether this certificate is pinned.
    pub(super) fn holds(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|pinned| pinned.as_ref() == certificate.as_ref())
    }
}

/// None of the pinned certificates of a trust can ever be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusablePins {
    trust: String,
    role: HandshakeRole,
    /// The subject of the first certificate.
    subject: String,
    fault: PinFault,
}

/// The reason why a pinned certificate can never be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PinFault {
    /// It is the certificate of a CA, and a chain cannot begin with one.
    Ca,
    /// Its keyUsage does not allow the signature in a handshake.
    MayNotSign,
    /// Its extended key usage is only for other purposes.
    OtherUsage { usages: String, needed: &'static str },
}

impl UnusablePins {
    /// What is wrong, and what to do.
    #[must_use]
    pub fn text(&self) -> FaultText {
        let Self { trust, role, subject, fault } = self;
        let peer = role.peer();
        let why = match fault {
            PinFault::Ca => "the certificate is a CA certificate, but tacit pins only leaf \
                             certificates"
                .to_owned(),
            PinFault::MayNotSign => {
                "the keyUsage of the certificate does not include digitalSignature, so a peer \
                 cannot use the certificate in a handshake"
                    .to_owned()
            }
            PinFault::OtherUsage { usages, needed } => {
                format!("the extendedKeyUsage of the certificate allows {usages}, but not {needed}")
            }
        };
        FaultText {
            message: format!(
                "[trust.{trust}] pins the certificate of {subject}, but tacit rejects every {peer} \
                 that sends this certificate: {why}"
            ),
            fix: Some(format!("pin the certificate that the {peer} sends")),
        }
    }
}

impl fmt::Display for UnusablePins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

/// Pinned certificates with the stamps of their files.
pub(super) struct LoadedPins {
    pub(super) pinned: Pinned,
    pub(super) sources: Vec<FileStamp>,
}

/// Loads the files; each must contain at least one certificate.
pub(super) fn load(
    owner: &str,
    paths: Vec<PathBuf>,
    chain: Chain,
) -> Result<LoadedPins, CredentialError> {
    let mut pinned: Vec<CertificateDer<'static>> = Vec::new();
    let mut facts = Vec::new();
    let mut sources = Vec::new();
    for path in paths {
        let fail = |fault| CredentialError { owner: owner.to_owned(), path: path.clone(), fault };
        let FileContent { bytes, stamp, .. } = read(&path).map_err(fail)?;
        let read = certificates(&bytes).map_err(fail)?;
        if pinned.len() + read.len() > PINNED_MAX {
            return Err(fail(CredentialFault::TooManyPinned { max: PINNED_MAX }));
        }
        for (index, der) in read.iter().enumerate() {
            let fact = facts_of(&read, index).map_err(fail)?;
            if EndEntityCert::try_from(der).is_err() {
                return Err(fail(CredentialFault::BadPin { subject: fact.title().to_owned() }));
            }
            facts.push(fact);
        }
        pinned.extend(read);
        sources.push(stamp);
    }
    if pinned.is_empty() {
        let path = sources.first().map_or_else(PathBuf::new, |source| source.path.clone());
        return Err(CredentialError {
            owner: owner.to_owned(),
            path,
            fault: CredentialFault::NoCertificate,
        });
    }
    let pinned = Pinned { certificates: pinned.into(), facts: facts.into(), chain };
    Ok(LoadedPins { pinned, sources })
}

/// Returns warnings about certificates that will probably not work, in one line each.
pub(super) fn warnings(owner: &str, pinned: &Pinned, now: i64) -> Vec<String> {
    let mut warnings = Vec::new();
    for facts in &*pinned.facts {
        let title = facts.title();
        let certificate = format!("{owner}: the pinned certificate of {title}");
        // If the trust has anchors, the file may also contain the chain.
        if pinned.is_alone() && facts.is_ca && (!facts.is_self_signed || !facts.may_sign) {
            warnings.push(format!(
                "{certificate} is a CA certificate. A pinned certificate must be identical to the \
                 peer's certificate, so tacit rejects peers with certificates that this CA issued: \
                 pin the peer's own certificate, or add the CA to `ca`"
            ));
        }
        if facts.has_weak_key() {
            let key = &facts.key;
            warnings.push(format!(
                "{certificate} has a key that is too weak ({key}): every handshake with this \
                 certificate fails"
            ));
        }
        if let Some(warning) = expiry_warning(facts, now) {
            let consequence = if facts.not_after < now {
                ": tacit rejects a peer with this certificate"
            } else {
                ""
            };
            warnings.push(format!("{certificate} {warning}{consequence}"));
        }
    }
    warnings
}
