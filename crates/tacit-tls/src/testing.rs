//! Reads environment variables that change the behaviour of this crate in tests of the whole agent.
//! This module is compiled only with the feature `testing`, so the programs that users build do not
//! read these variables.

use tacit_core::record::RecordSealer;

/// The environment variable that lowers the number of full-size records that a TLS 1.2 key may
/// protect, so that a test can reach the limit.
pub const KEY_RECORDS: &str = "TACIT_TEST_KEY_RECORDS";

/// Returns a TLS 1.2 sealer with the limit of [`KEY_RECORDS`], if it is set and lower than the
/// sealer's own limit.
pub(crate) fn with_lower_limit(mut sealer: RecordSealer) -> RecordSealer {
    let records = std::env::var(KEY_RECORDS).ok().and_then(|records| records.parse().ok());
    if let Some(records) = records
        && !sealer.protection().is_tls13()
    {
        sealer.limit_records(records);
    }
    sealer
}
