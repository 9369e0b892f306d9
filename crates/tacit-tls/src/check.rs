//! Defines the result of a certificate check, and the type that stores a peer's certificate chain
//! for later checks.

use std::sync::Arc;

use aws_lc_rs::digest::{self, SHA256};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use crate::facts::CertificateFacts;

/// The result of the check of the peer's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum PeerCheck {
    /// The rule requests no certificate.
    NotAsked,
    /// The rule requests a certificate, and the peer sent none.
    Absent,
    /// The chain, its validity period and its usage are valid. The certificate of a server also
    /// matches the name.
    Valid,
    /// The chain, its validity period and its usage are valid. The name of the server was not
    /// checked.
    ChainValid,
    /// Valid, but no current CRL covers the certificate, and the trust has revocation = "soft".
    RevocationUnknown {
        /// The missing CRL, in one line with the fix.
        reason: String,
    },
    /// The certificate is not trusted.
    Invalid {
        /// The reason, in one line with the fix.
        reason: String,
    },
    /// It was trusted when the connection opened, and has expired since.
    Expired {
        /// The expired certificate, in one line with the fix.
        reason: String,
    },
    /// It was trusted when the connection opened, and was revoked since.
    Revoked {
        /// The revoked certificate, in one line with the fix.
        reason: String,
    },
    /// The certificate was not checked: the rule has `verify = "none"` or `invalid = "allow"`.
    NotChecked,
}

impl PeerCheck {
    /// Returns the word for displays.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotAsked => "not-asked",
            Self::Absent => "absent",
            Self::Valid => "valid",
            Self::ChainValid => "chain-valid",
            Self::RevocationUnknown { .. } => "revocation-unknown",
            Self::Invalid { .. } => "invalid",
            Self::Expired { .. } => "expired",
            Self::Revoked { .. } => "revoked",
            Self::NotChecked => "not-checked",
        }
    }

    /// Whether the certificate is trusted.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        matches!(self, Self::Valid | Self::ChainValid | Self::RevocationUnknown { .. })
    }

    /// Whether the peer sent a certificate that was checked and is not trusted.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::Expired { .. } | Self::Revoked { .. })
    }

    /// Returns why the certificate is not trusted, or why its revocation status is unknown.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::RevocationUnknown { reason }
            | Self::Invalid { reason }
            | Self::Expired { reason }
            | Self::Revoked { reason } => Some(reason),
            Self::NotAsked | Self::Absent | Self::Valid | Self::ChainValid | Self::NotChecked => {
                None
            }
        }
    }
}

/// The result of a check, with the facts of the leaf certificate if they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPeer {
    /// The result.
    pub check: PeerCheck,
    /// The facts of a trusted leaf.
    pub leaf: Option<Arc<CertificateFacts>>,
    /// The trusted chain, if it is stored.
    pub chain: Option<Arc<PeerChain>>,
}

/// A trusted chain, which is stored so that it can be checked again. Connections with the same
/// chain share it.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerChain {
    certificates: Vec<CertificateDer<'static>>,
    /// When each certificate and the anchor expire, in unix seconds. Certificates that cannot be
    /// parsed are omitted; the check did not need them.
    ends: Vec<i64>,
    sha256: [u8; 32],
}

impl PeerChain {
    /// Stores a chain, the leaf first. `anchor_end` is when its anchor expires, in unix seconds, if
    /// expired anchors are rejected.
    #[must_use]
    pub fn new(
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        anchor_end: Option<i64>,
    ) -> Self {
        let mut hash = digest::Context::new(&SHA256);
        let mut certificates = Vec::with_capacity(1 + rest.len());
        let mut ends: Vec<_> = anchor_end.into_iter().collect();
        for certificate in std::iter::once(leaf).chain(rest) {
            // The length of each certificate precedes it, so that two different chains never give
            // the same bytes.
            hash.update(&(certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
            certificates.push(certificate.clone().into_owned());
            ends.extend(CertificateFacts::from_der(certificate).map(|facts| facts.not_after));
        }
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(hash.finish().as_ref());
        Self { certificates, ends, sha256 }
    }

    /// Returns the certificates, the leaf first; never empty.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Returns when the next certificate of the chain expires after `now`, both in unix seconds.
    #[must_use]
    pub fn next_end(&self, now: i64) -> Option<i64> {
        self.ends.iter().copied().filter(|end| *end >= now).min()
    }

    /// Whether a certificate of the chain has expired at `now`, in unix seconds.
    #[must_use]
    pub fn has_ended(&self, now: i64) -> bool {
        self.ends.iter().any(|end| *end < now)
    }

    /// Returns the hash that identifies the chain.
    #[must_use]
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }
}

impl From<PeerCheck> for CheckedPeer {
    fn from(check: PeerCheck) -> Self {
        Self { check, leaf: None, chain: None }
    }
}
