//! Reads environment variables by which tests of the whole agent change the behaviour of this
//! crate. Only the feature `testing` compiles this module, so the programs that users build do not
//! read the variables.

use tacit_core::record::RecordSealer;

/// The variable that lowers the number of full-size records that a key of TLS 1.2 may protect, so
/// that a test reaches the limit.
pub const KEY_RECORDS: &str = "TACIT_TEST_KEY_RECORDS";

/// A sealer of TLS 1.2 with the limit of [`KEY_RECORDS`], if that is set and lower than its own.
pub(crate) fn with_lower_limit(mut sealer: RecordSealer) -> RecordSealer {
    let records = std::env::var(KEY_RECORDS).ok().and_then(|records| records.parse().ok());
    if let Some(records) = records
        && !sealer.protection().is_tls13()
    {
        sealer.limit_records(records);
    }
    sealer
}
