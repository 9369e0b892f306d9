//! Defines the result of a certificate check, and the chain of a peer that is stored for later
//! checks.

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
    /// Requested, and the peer sent none.
    Absent,
    /// Chain, time and usage are valid, and the name of a server.
    Valid,
    /// Chain, time and usage are valid; the name of the server was not checked.
    ChainValid,
    /// Valid, but no current CRL covers the certificate, and the trust has revocation = "soft".
    RevocationUnknown {
        /// The missing CRL, in one line with the fix.
        reason: String,
    },
    /// The certificate is not trusted.
    Invalid {
        /// Why, in one line with the next step.
        reason: String,
    },
    /// It was trusted when the connection opened, and has expired since.
    Expired {
        /// Which certificate, in one line with the next step.
        reason: String,
    },
    /// It was trusted when the connection opened, and was revoked since.
    Revoked {
        /// Which certificate, in one line with the next step.
        reason: String,
    },
    /// The rule says `verify = "none"`, or `invalid = "allow"`.
    NotChecked,
}

impl PeerCheck {
    /// The word for displays.
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

    /// Why it is not trusted, or why its revocation status is unknown.
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

/// The result of a check, with the facts of the leaf if they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPeer {
    /// The result.
    pub check: PeerCheck,
    /// The facts of a trusted leaf.
    pub leaf: Option<Arc<CertificateFacts>>,
    /// The trusted chain, if it is kept.
    pub chain: Option<Arc<PeerChain>>,
}

/// A chain that was trusted, kept to be checked again; connections with the same chain share it.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerChain {
    certificates: Vec<CertificateDer<'static>>,
    /// When each certificate and the anchor expire, in unix seconds; without those that cannot be
    /// read, which the check did not need.
    ends: Vec<i64>,
    sha256: [u8; 32],
}

impl PeerChain {
    /// Keeps a chain, the leaf first; `anchor_end`: when its anchor expires, in unix seconds, if
    /// that matters.
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
            // Each follows its length, so that no two chains have the same bytes.
            hash.update(&(certificate.len() as u64).to_be_bytes());
            hash.update(certificate);
            certificates.push(certificate.clone().into_owned());
            ends.extend(CertificateFacts::from_der(certificate).map(|facts| facts.not_after));
        }
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(hash.finish().as_ref());
        Self { certificates, ends, sha256 }
    }

    /// The certificates, the leaf first; never empty.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// When the next certificate of it expires after `now`, both in unix seconds.
    #[must_use]
    pub fn next_end(&self, now: i64) -> Option<i64> {
        self.ends.iter().copied().filter(|end| *end >= now).min()
    }

    /// Whether a certificate of it has expired at `now`, in unix seconds.
    #[must_use]
    pub fn has_ended(&self, now: i64) -> bool {
        self.ends.iter().any(|end| *end < now)
    }

    /// The hash that identifies the chain.
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
