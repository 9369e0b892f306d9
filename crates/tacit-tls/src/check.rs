//! What came of checking a peer's certificate.

use std::sync::Arc;

use serde::Serialize;

use crate::facts::CertificateFacts;

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
