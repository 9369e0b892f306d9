//! What time it is: the clock that rules with windows go by.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;

/// Seconds since 1970.
#[must_use]
pub fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The zone of this host: `TZ`, or else /etc/localtime.
///
/// # Errors
/// Neither says one, in words.
pub fn local_zone() -> Result<TimeZone, String> {
    TimeZone::try_system().map_err(|error| error.to_string())
}
