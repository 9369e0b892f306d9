//! Decides whether a certificate expires soon, and formats the warning.

use rustls_pki_types::UnixTime;

use crate::facts::{CertificateFacts, utc};

/// The number of days before its expiry within which a certificate causes a warning.
pub const EXPIRY_WARNING_DAYS: i64 = 30;

/// Returns the second half of a warning about a certificate that expires soon or has expired.
pub(super) fn expiry_warning(facts: &CertificateFacts, now: i64) -> Option<String> {
    let days = facts.days_left(now);
    let time = utc(facts.not_after);
    if days < 0 {
        return Some(format!("expired at {time}"));
    }
    ends_soon(facts, now)
        .then(|| format!("expires in {days} days, at {time}: renew the certificate"))
}

/// Whether a certificate expires within [`EXPIRY_WARNING_DAYS`], or has expired.
#[must_use]
pub fn ends_soon(facts: &CertificateFacts, now: i64) -> bool {
    facts.days_left(now) < EXPIRY_WARNING_DAYS
}

/// Returns the time of this host's clock, in unix seconds.
pub(super) fn now_seconds() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}
