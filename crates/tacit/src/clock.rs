//! Returns the current time and the time zone of the host, formats times as RFC 3339, and waits
//! until a time.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The current time for checks of certificates; 1970 if the clock is earlier.
#[must_use]
pub fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// The current time in seconds since 1970.
#[must_use]
pub fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The current time of a clock that also runs while the machine sleeps. It is not to be compared
/// with [`Instant::now`], which does not.
#[must_use]
pub fn boottime() -> Instant {
    static START: OnceLock<(Instant, Duration)> = OnceLock::new();
    let since_boot = tacit_sys::clock::since_boot();
    let (start, at_start) = START.get_or_init(|| (Instant::now(), since_boot));
    *start + since_boot.saturating_sub(*at_start)
}

/// When something started, by the system clock and by the monotonic clock. It has half the size of
/// [`SystemTime`] and [`Instant`].
#[derive(Clone, Copy, Debug)]
pub struct StartTime {
    /// Nanoseconds since 1970: enough until the year 2554.
    unix_ns: u64,
    /// Nanoseconds since the first start that this process has noted.
    since_first_ns: u64,
}

impl StartTime {
    /// The current time.
    #[must_use]
    pub fn now() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_first = Instant::now().saturating_duration_since(Self::first());
        Self { unix_ns: whole_ns(since_1970), since_first_ns: whole_ns(since_first) }
    }

    /// By the system clock.
    #[must_use]
    pub fn system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.unix_ns)
    }

    /// The time since then, by the monotonic clock.
    #[must_use]
    pub fn age(self, now: Instant) -> Duration {
        let since_first = now.saturating_duration_since(Self::first());
        since_first.saturating_sub(Duration::from_nanos(self.since_first_ns))
    }

    fn first() -> Instant {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        *FIRST.get_or_init(Instant::now)
    }
}

fn whole_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The time zone of this host: `TZ`, otherwise /etc/localtime.
///
/// # Errors
/// Neither has a valid time zone; the text says why.
pub fn local_zone() -> Result<TimeZone, String> {
    TimeZone::try_system().map_err(|error| error.to_string())
}

/// A time as RFC 3339 writes it, in UTC with milliseconds; so displays serialise it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rfc3339(pub SystemTime);

impl Rfc3339 {
    /// A time in seconds since 1970; an earlier time becomes the beginning of 1970.
    #[must_use]
    pub fn of_unix_s(unix_s: i64) -> Self {
        let since = Duration::from_secs(u64::try_from(unix_s).unwrap_or(0));
        Self(SystemTime::UNIX_EPOCH + since)
    }

    /// The time in seconds since 1970.
    #[must_use]
    pub fn unix_s(self) -> f64 {
        self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// Parses a text of this form; returns `None` if it has another form.
    fn parse(text: &str) -> Option<Self> {
        let number = |range: std::ops::Range<usize>| {
            let digits = text.get(range)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
        };
        let date = Date { year: number(0..4)?, month: number(5..7)?, day: number(8..10)? };
        let of_day = (number(11..13)? * 60 + number(14..16)?) * 60 + number(17..19)?;
        let since = date.days_since_1970()? * 86_400 + of_day;
        let since = Duration::from_secs(since) + Duration::from_millis(number(20..23)?);
        let time = Self(SystemTime::UNIX_EPOCH + since);
        // This comparison checks the separators too, and rejects days that the month does not have.
        (time.to_string() == text).then_some(time)
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || serde::de::Error::custom("a time must have the form 2025-12-31T23:59:59.000Z");
        Self::parse(&text).ok_or_else(wrong)
    }
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Date { year, month, day } = Date::of(since.as_secs() / 86_400);
        let of_day = since.as_secs() % 86_400;
        let hour = of_day / 3600;
        let minute = of_day / 60 % 60;
        let second = of_day % 60;
        let ms = since.subsec_millis();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

/// A date of the proleptic Gregorian calendar.
struct Date {
    year: u64,
    month: u64,
    day: u64,
}

impl Date {
    /// Converts a day counted from 1970-01-01. Years are counted from March, so that the leap day
    /// is the last day of a year.
    fn of(day_since_1970: u64) -> Self {
        let days = day_since_1970 + 719_468;
        let era = days / 146_097;
        let day_of_era = days % 146_097;
        let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Self { year, month, day }
    }

    /// The number of the day, the reverse of [`Self::of`]; `None` before 1970.
    fn days_since_1970(&self) -> Option<u64> {
        let Self { year, month, day } = self;
        let year = year.checked_sub(u64::from(*month <= 2))?;
        let shifted_month = (month + 9) % 12;
        let day_of_year = (153 * shifted_month + 2) / 5 + day.checked_sub(1)?;
        let year_of_era = year % 400;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (year / 400 * 146_097 + day_of_era).checked_sub(719_468)
    }
}

/// Waits until this time; without one, the wait never ends.
pub async fn sleep_until(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> String {
        Rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn a_time_is_read_as_it_is_written() {
        // The last time is that of certificates without an expiry date (RFC 5280, 4.1.2.5).
        for seconds in [0, 951_782_400, 1_767_225_599, 4_107_542_400, 253_402_300_799] {
            let time = Rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
            let json = serde_json::to_string(&time).unwrap();
            assert_eq!(serde_json::from_str::<Rfc3339>(&json).unwrap(), time, "{json}");
        }
        for wrong in [
            "",
            "2025-02-30T00:00:00.000Z",
            "2025-12-31T24:00:00.000Z",
            "2025-12-31 23:59:59.000Z",
            "2025-12-31T23:59:59Z",
            "2025-12-31T23:59:59.000+01:00",
            "1969-12-31T23:59:59.000Z",
            "2025-00-10T00:00:00.000Z",
            "+025-12-31T23:59:59.000Z",
            "2025-12-31T23:59:59.000Zé",
        ] {
            assert_eq!(Rfc3339::parse(wrong), None, "{wrong}");
        }
    }
}
