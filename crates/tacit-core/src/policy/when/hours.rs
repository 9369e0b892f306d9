//! Parses ranges of hours of the day, and checks whether a time is in a range.

use std::fmt;

/// The number of minutes in a day.
const DAY_MINUTES: u16 = 24 * 60;

/// A range of minutes of the day, which may end on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    first: u16,
    /// The first minute after the range; 24:00 is possible.
    end: u16,
}

impl Hours {
    /// The whole day.
    pub const ALL: Self = Self { first: 0, end: DAY_MINUTES };

    /// Parses `06:00-22:00` or `22:00-06:00`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (first, end) = text.split_once('-')?;
        let first = minute(first.trim())?;
        let end = minute(end.trim())?;
        (first != end && first < DAY_MINUTES).then_some(Self { first, end })
    }

    /// Returns the start and the end, in minutes since the beginning of the day on which the range
    /// begins.
    pub(super) fn minutes(self) -> std::ops::Range<u16> {
        let past_midnight = if self.end < self.first { DAY_MINUTES } else { 0 };
        self.first..self.end + past_midnight
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", Minute(self.first), Minute(self.end))
    }
}

/// Parses `6:30` or `06:30` to minutes, up to 24:00.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let plain = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<u16>().ok()).flatten()
    };
    let hour = number(hour, 1..=2)?;
    let minute = number(minute, 2..=2)?;
    let all = hour * 60 + minute;
    (minute < 60 && all <= DAY_MINUTES).then_some(all)
}

/// Formats a minute of the day.
struct Minute(u16);

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}
