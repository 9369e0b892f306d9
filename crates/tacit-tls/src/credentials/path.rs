//! Verifies that a certificate chain leads to a trusted CA (an anchor).
//!
//! The TLS library checks signatures, validity, basic constraints, name constraints, extended key
//! usage and revocation. This module also checks keyUsage (RFC 5280 sections 6.1 and 4.2.1.3), and
//! whether the anchor has expired. If the `[trust]` table lists pinned certificates, this module
//! first checks that the peer's certificate is [pinned](super::pinned).

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use ::aws_lc_rs::digest::{SHA256, digest};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::server::VerifierBuilderError;
use rustls::{CertRevocationListError, CertificateError, Error, OtherError, RootCertStore};
use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use tacit_core::policy::ExpiredAnchors;
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::crls::Crl;
use super::pinned::Pinned;
use crate::facts::printable;

/// The facts of an anchor that the library's store does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorFacts {
    /// Its subject.
    pub subject: String,
    /// When it expires, in unix seconds.
    pub not_after: i64,
    /// The operations that its keyUsage allows.
    usage: Usage,
    /// The hash of its DER.
    sha256: [u8; 32],
}

impl AnchorFacts {
    /// Parses an anchor; `None` if it is not a certificate.
    pub(super) fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self {
            subject: printable(&certificate.subject().to_string()),
            not_after: certificate.validity().not_after.timestamp(),
            usage: Usage::of(&certificate),
            sha256: sha256(der),
        })
    }
}

/// The operations that the keyUsage of a certificate allows; all, if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    signs_certificates: bool,
    signs_crls: bool,
    signs: bool,
}

impl Usage {
    const ANY: Self = Self { signs_certificates: true, signs_crls: true, signs: true };
    const NONE: Self = Self { signs_certificates: false, signs_crls: false, signs: false };

    fn of(certificate: &X509Certificate<'_>) -> Self {
        match certificate.key_usage() {
            Ok(None) => Self::ANY,
            Ok(Some(usage)) => Self {
                signs_certificates: usage.value.key_cert_sign(),
                signs_crls: usage.value.crl_sign(),
                signs: usage.value.digital_signature(),
            },
            Err(_) => Self::NONE,
        }
    }

    /// Parses the keyUsage of a certificate that the library has already parsed.
    fn of_der(der: &CertificateDer<'_>) -> Self {
        X509Certificate::from_der(der).map_or(Self::NONE, |(_, read)| Self::of(&read))
    }
}

/// The fault of a path, for which the library's error type may have no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathFault {
    /// The leaf is not one of the pinned certificates of the trust.
    NotPinned,
    /// The path ends at an anchor that has expired.
    AnchorExpired { subject: String, not_after: i64 },
    /// A CA of the path is not allowed to sign certificates.
    CaMayNotSign { subject: String },
    /// A CA of the path is not allowed to sign CRLs.
    CaMayNotSignCrls { subject: String },
    /// The leaf is not allowed to sign, although every handshake requires its signature.
    LeafMayNotSign,
    /// An error of the library.
    Library(webpki::Error),
}

impl fmt::Display for PathFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for PathFault {}

impl PathFault {
    /// Extracts the fault from an error of the library.
    pub(crate) fn within(error: &Error) -> Option<&Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inside))) => {
                inside.downcast_ref()
            }
            _ => None,
        }
    }

    fn into_error(self) -> Error {
        CertificateError::Other(OtherError(Arc::new(self))).into()
    }
}

/// The owner of the chain, which determines the required extended key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainOf {
    Server,
    Client,
}

/// What the check does with certificates that no current CRL covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownRevocation {
    Reject,
    Accept,
}

/// Checks chains against one trust.
#[derive(Debug)]
pub(crate) struct PathCheck {
    roots: Arc<RootCertStore>,
    /// In the order of the roots; empty if nothing is known about them.
    anchors: Arc<[AnchorFacts]>,
    expired_anchors: ExpiredAnchors,
    crls: Vec<CertRevocationList<'static>>,
    unknown_revocation: UnknownRevocation,
    /// `None`: the leaf only needs a chain to an anchor.
    pinned: Option<Pinned>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PathCheck {
    /// # Errors
    /// The trust has neither anchors nor pinned certificates without anchors, or a CRL cannot be
    /// parsed.
    pub(super) fn new(
        roots: &Arc<RootCertStore>,
        anchors: &Arc<[AnchorFacts]>,
        expired_anchors: ExpiredAnchors,
        crls: &[Crl],
        unknown_revocation: UnknownRevocation,
        pinned: Option<Pinned>,
    ) -> Result<Self, VerifierBuilderError> {
        if roots.is_empty() && !pinned.as_ref().is_some_and(Pinned::is_alone) {
            return Err(VerifierBuilderError::NoRootAnchors);
        }
        let owned = crls.iter().map(|crl| OwnedCertRevocationList::from_der(&crl.der));
        let crls = owned.map(|crl| crl.map(CertRevocationList::Owned)).collect::<Result<_, _>>();
        let crls = crls.map_err(|_| CertRevocationListError::ParseError)?;
        Ok(Self {
            roots: Arc::clone(roots),
            anchors: Arc::clone(anchors),
            expired_anchors,
            crls,
            unknown_revocation,
            pinned,
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
        })
    }

    /// Returns the anchors; empty if the trust has only pinned certificates.
    pub(crate) fn roots(&self) -> &RootCertStore {
        &self.roots
    }

    /// Checks a chain. Returns when its anchor expires, in unix seconds, if expired anchors are
    /// rejected.
    pub(crate) fn check(
        &self,
        of: ChainOf,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Option<i64>, Error> {
        if let Some(pinned) = &self.pinned {
            if !pinned.holds(leaf) {
                return Err(PathFault::NotPinned.into_error());
            }
            if pinned.is_alone() {
                return check_alone(of, leaf, now).map(|()| None);
            }
        }
        let end_entity = EndEntityCert::try_from(leaf).map_err(error_of)?;
        let crls: Vec<_> = self.crls.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&crls).ok().map(|options| {
            let options = options.with_depth(RevocationCheckDepth::Chain);
            match self.unknown_revocation {
                UnknownRevocation::Reject => options
                    .with_status_policy(UnknownStatusPolicy::Deny)
                    .with_expiration_policy(ExpirationPolicy::Enforce),
                UnknownRevocation::Accept => options
                    .with_status_policy(UnknownStatusPolicy::Allow)
                    .with_expiration_policy(ExpirationPolicy::Ignore),
            }
            .build()
        });
        let usage = match of {
            ChainOf::Server => KeyUsage::server_auth(),
            ChainOf::Client => KeyUsage::client_auth(),
        };
        // The library continues with the next path. The fault of the last path is stored here.
        let fault = RefCell::new(None);
        let end = RefCell::new(None);
        let examine = |path: &VerifiedPath<'_>| match self.examine(path, leaf, now) {
            Ok(anchor_end) => {
                *end.borrow_mut() = anchor_end;
                Ok(())
            }
            Err(found) => {
                *fault.borrow_mut() = Some(found);
                Err(webpki::Error::UnknownIssuer)
            }
        };
        let algorithms = self.algorithms.all;
        let roots = &self.roots.roots;
        let verified = end_entity
            .verify_for_usage(algorithms, roots, rest, now, usage, revocation, Some(&examine))
            .map(|_| ());
        match (verified, fault.take()) {
            (Ok(()), _) => Ok(end.take()),
            (Err(_), Some(fault)) => Err(fault.into_error()),
            (Err(error), None) => Err(error_of(error)),
        }
    }

    /// Checks what the library omits, for a path that the library has verified.
    fn examine(
        &self,
        path: &VerifiedPath<'_>,
        leaf: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<Option<i64>, PathFault> {
        if !Usage::of_der(leaf).signs {
            return Err(PathFault::LeafMayNotSign);
        }
        for above in path.intermediate_certificates() {
            if !Usage::of_der(&above.der()).signs_certificates {
                return Err(PathFault::CaMayNotSign { subject: subject_of(&above.der()) });
            }
        }
        let Some(anchor) = self.facts(path.anchor()) else { return Ok(None) };
        // A server with a self-signed certificate can be its own anchor.
        let is_leaf = || anchor.sha256 == sha256(leaf);
        let subject = || anchor.subject.clone();
        if !anchor.usage.signs_certificates && !is_leaf() {
            return Err(PathFault::CaMayNotSign { subject: subject() });
        }
        if !self.crls.is_empty() && !anchor.usage.signs_crls && !is_leaf() {
            return Err(PathFault::CaMayNotSignCrls { subject: subject() });
        }
        if self.expired_anchors == ExpiredAnchors::Accept {
            return Ok(None);
        }
        let not_after = anchor.not_after;
        if i64::try_from(now.as_secs()).is_ok_and(|now| now <= not_after) {
            return Ok(Some(not_after));
        }
        Err(PathFault::AnchorExpired { subject: subject(), not_after })
    }

    fn facts(&self, anchor: &TrustAnchor<'_>) -> Option<&AnchorFacts> {
        let same = |known: &TrustAnchor<'_>| {
            known.subject == anchor.subject
                && known.subject_public_key_info == anchor.subject_public_key_info
        };
        let mut known = self.roots.roots.iter().zip(&*self.anchors).filter(|(root, _)| same(root));
        // If there are several certificates of one CA, the one that expires last counts.
        let first = known.next()?.1;
        Some(
            known.map(|(_, facts)| facts).fold(first, |best, next| {
                if next.not_after > best.not_after { next } else { best }
            }),
        )
    }
}

/// Checks a certificate without a chain: only its own content.
fn check_alone(of: ChainOf, leaf: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    // This rejects critical extensions that are not known.
    EndEntityCert::try_from(leaf).map_err(error_of)?;
    let Ok((_, read)) = X509Certificate::from_der(leaf) else {
        return Err(CertificateError::BadEncoding.into());
    };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = read.validity();
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if !Usage::of(&read).signs {
        return Err(PathFault::LeafMayNotSign.into_error());
    }
    let is_for = match read.extended_key_usage() {
        Ok(None) => true,
        Ok(Some(usage)) => match of {
            ChainOf::Server => usage.value.server_auth,
            ChainOf::Client => usage.value.client_auth,
        },
        Err(_) => false,
    };
    if is_for { Ok(()) } else { Err(CertificateError::InvalidPurpose.into()) }
}

fn subject_of(der: &CertificateDer<'_>) -> String {
    let read = X509Certificate::from_der(der).ok();
    read.map_or_else(String::new, |(_, read)| printable(&read.subject().to_string()))
}

fn sha256(der: &CertificateDer<'_>) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, der).as_ref());
    bytes
}

/// Converts an error to the type that the library uses in its handshakes.
pub(crate) fn error_of(error: webpki::Error) -> Error {
    use webpki::Error as Why;
    let text = match error {
        Why::BadDer | Why::BadDerTime | Why::TrailingData(_) => CertificateError::BadEncoding,
        Why::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        Why::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        Why::InvalidCertValidity => CertificateError::Expired,
        Why::UnknownIssuer => CertificateError::UnknownIssuer,
        Why::CertRevoked => CertificateError::Revoked,
        Why::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        Why::CrlExpired { time, next_update } => {
            CertificateError::ExpiredRevocationListContext { time, next_update }
        }
        Why::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        Why::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        other => return PathFault::Library(other).into_error(),
    };
    text.into()
}
