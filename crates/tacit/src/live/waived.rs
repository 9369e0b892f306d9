//! Counts waived connections. A connection is waived if the peer's certificate failed a check and
//! the rule accepted the connection anyway.

use std::sync::atomic::{AtomicU64, Ordering};

/// A check that failed, and whose failure the rule accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaivedCheck {
    /// The certificate is not trusted.
    Invalid,
    /// No current CRL covers the certificate.
    RevocationUnknown,
    /// An entry with `warn` of the identity map would reject the client.
    Warned,
}

impl WaivedCheck {
    /// All checks.
    pub const ALL: [Self; 3] = [Self::Invalid, Self::RevocationUnknown, Self::Warned];

    /// The word of the check in metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::RevocationUnknown => "revocation-unknown",
            Self::Warned => "warned",
        }
    }
}

/// The number of accepted connections for each check that failed.
#[derive(Debug, Default)]
pub(super) struct WaivedCounts {
    invalid: AtomicU64,
    revocation_unknown: AtomicU64,
    warned: AtomicU64,
}

impl WaivedCounts {
    pub(super) fn add(&self, check: WaivedCheck) {
        self.counter(check).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn of(&self, check: WaivedCheck) -> u64 {
        self.counter(check).load(Ordering::Relaxed)
    }

    fn counter(&self, check: WaivedCheck) -> &AtomicU64 {
        match check {
            WaivedCheck::Invalid => &self.invalid,
            WaivedCheck::RevocationUnknown => &self.revocation_unknown,
            WaivedCheck::Warned => &self.warned,
        }
    }
}
