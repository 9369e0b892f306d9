//! When a rule holds: days of the week and hours of the day, as the clock on the wall shows them.
//!
//! ```text
//! days = "fri", hours = "22:00-06:00"     from Friday 22:00 to Saturday 06:00
//! ```
//!
//! Only the clock counts: hours that it leaves out in spring are missing, and hours that it shows
//! twice in autumn hold twice. A window past midnight belongs to the day it begins on.
//!
//! The zones of the world are those bundled with the library; which of them is the local one is
//! for the caller to say ([`Policy::set_local_zone`](super::Policy::set_local_zone)).

use std::fmt;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Minutes of a day.
pub(super) const DAY_MINUTES: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A rule's windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// On which days they open.
    pub days: Days,
    /// At which hours; at least one.
    pub hours: Vec<Hours>,
    /// By which clock.
    pub zone: Zone,
}

impl When {
    /// Whether a window is open at a time, given in seconds since 1970.
    #[must_use]
    pub fn is_open(&self, unix_s: i64) -> bool {
        let (day, minute) = self.zone.wall_clock(unix_s);
        let day_before = (day + 6) % 7;
        self.hours.iter().any(|hours| {
            if hours.is_past_midnight() {
                (self.days.contains(day) && hours.first <= minute)
                    || (self.days.contains(day_before) && minute < hours.end)
            } else {
                self.days.contains(day) && (hours.first..hours.end).contains(&minute)
            }
        })
    }

    /// Some time at which a window is open, unless a zone's clock leaves it out that week.
    pub(super) fn typical_time(&self) -> i64 {
        let day = (0..7).find(|day| self.days.contains(*day)).unwrap_or(0);
        let minute = self.hours.first().map_or(0, |hours| hours.first);
        let (hour, minute) = (i8::try_from(minute / 60), i8::try_from(minute % 60));
        // 2024 began on a Monday.
        let monday = jiff::civil::date(2024, 1, 1);
        let wall = monday.at(hour.unwrap_or(0), minute.unwrap_or(0), 0, 0);
        let wall = wall.saturating_add(jiff::Span::new().days(i64::from(day)));
        self.zone.clock.to_timestamp(wall).map_or(0, Timestamp::as_second)
    }

    /// What the wall clock shows at a time, as displays write it.
    pub(super) fn shown(&self, unix_s: i64) -> String {
        let (day, minute) = self.zone.wall_clock(unix_s);
        let day = DAYS.get(usize::from(day)).unwrap_or(&"");
        format!("{day} {}", Minute(minute))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours: Vec<String> = self.hours.iter().map(Hours::to_string).collect();
        write!(f, "{} {} {}", self.days, hours.join(", "), self.zone.name)
    }
}

/// A set of days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Days {
    /// Monday is the lowest bit.
    bits: u8,
}

impl Days {
    /// Every day.
    pub const ALL: Self = Self { bits: 0x7f };

    /// Reads `mon` or `fri-mon`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let day = |text: &str| DAYS.iter().position(|day| *day == text.trim());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (day(first)?, day(last)?);
        let count = (last + 7 - first) % 7 + 1;
        Some(Self { bits: (first..first + count).fold(0, |bits, day| bits | 1 << (day % 7)) })
    }

    /// The days of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    /// Whether a day, counted from Monday as 0, is one of them.
    fn contains(self, day: u8) -> bool {
        self.bits >> day & 1 == 1
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut days = (0..7_u8).filter(|day| self.contains(*day)).peekable();
        let name = |day: u8| DAYS.get(usize::from(day)).copied().unwrap_or_default();
        let mut comma = "";
        while let Some(first) = days.next() {
            let mut last = first;
            while let Some(next) = days.next_if_eq(&(last + 1)) {
                last = next;
            }
            let range = if first == last { String::new() } else { format!("-{}", name(last)) };
            write!(f, "{comma}{}{range}", name(first))?;
            comma = ",";
        }
        Ok(())
    }
}

/// From one minute of the day up to another, which may be of the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    first: u16,
    /// The first minute after it; 24:00 is one.
    end: u16,
}

impl Hours {
    /// The whole day.
    pub const ALL: Self = Self { first: 0, end: DAY_MINUTES };

    /// Reads `06:00-22:00` or `22:00-06:00`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (first, end) = text.split_once('-')?;
        let (first, end) = (minute(first.trim())?, minute(end.trim())?);
        (first != end && first < DAY_MINUTES).then_some(Self { first, end })
    }

    fn is_past_midnight(self) -> bool {
        self.end < self.first
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", Minute(self.first), Minute(self.end))
    }
}

/// `6:30` or `06:30` as minutes, up to 24:00.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let plain = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (number(hour, 1..=2)?, number(minute, 2..=2)?);
    let all = hour * 60 + minute;
    (minute < 60 && all <= DAY_MINUTES).then_some(all)
}

struct Minute(u16);

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// A clock on a wall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// As the policy writes it.
    name: String,
    clock: TimeZone,
}

impl Zone {
    /// The word for the zone of this host.
    pub const LOCAL: &str = "local";

    /// The zone of that name, if there is one. The local one shows UTC until it is set.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let clock = match name {
            Self::LOCAL => TimeZone::UTC,
            _ => TimeZoneDatabase::bundled().get(name).ok()?,
        };
        Some(Self { name: name.to_owned(), clock })
    }

    /// Whether it is that of this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.name == Self::LOCAL
    }

    /// The names there are.
    pub(super) fn names() -> Vec<String> {
        let known = TimeZoneDatabase::bundled();
        let local = std::iter::once(Self::LOCAL.to_owned());
        local.chain(known.available().map(|name| name.as_str().to_owned())).collect()
    }

    /// Makes the local zone this one; others stay.
    pub(super) fn set_local(&mut self, local: &TimeZone) {
        if self.is_local() {
            self.clock = local.clone();
        }
    }

    /// The day, counted from Monday as 0, and the minute of it.
    fn wall_clock(&self, unix_s: i64) -> (u8, u16) {
        // Beyond the years that calendars are made for, any answer will do.
        let at = Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH);
        let wall = self.clock.to_datetime(at);
        let minute = i16::from(wall.hour()) * 60 + i16::from(wall.minute());
        let day = wall.weekday().to_monday_zero_offset();
        (day.unsigned_abs(), minute.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn when(days: &str, hours: &[&str], zone: &str) -> When {
        When {
            days: Days::parse(days).unwrap(),
            hours: hours.iter().map(|hours| Hours::parse(hours).unwrap()).collect(),
            zone: Zone::named(zone).unwrap(),
        }
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    /// Which of the times are within.
    fn open<'t>(when: &When, times: &[&'t str]) -> Vec<&'t str> {
        times.iter().copied().filter(|text| when.is_open(at(text))).collect()
    }

    #[test]
    fn days_and_hours_are_read_and_shown() {
        let shown = |text| Days::parse(text).map(|days| days.to_string());
        for (text, wanted) in [
            ("mon", Some("mon")),
            ("mon-fri", Some("mon-fri")),
            ("fri-mon", Some("mon,fri-sun")),
            ("sun-sat", Some("mon-sun")),
            ("tue - wed", Some("tue-wed")),
            ("Mon", None),
            ("monday", None),
            ("mon-", None),
            ("", None),
        ] {
            assert_eq!(shown(text).as_deref(), wanted, "{text}");
        }
        let two = Days::parse("mon").unwrap().union(Days::parse("wed-thu").unwrap());
        assert_eq!(two.to_string(), "mon,wed-thu");
        let shown = |text| Hours::parse(text).map(|hours| hours.to_string());
        for (text, wanted) in [
            ("06:00-22:00", Some("06:00-22:00")),
            ("6:05 - 24:00", Some("06:05-24:00")),
            ("22:00-06:00", Some("22:00-06:00")),
            ("00:00-24:00", Some("00:00-24:00")),
            ("06:00-06:00", None),
            ("24:00-06:00", None),
            ("06:60-07:00", None),
            ("06:00-24:01", None),
            ("06:0-07:00", None),
            ("+6:00-07:00", None),
            ("06:00", None),
            ("6-7", None),
        ] {
            assert_eq!(shown(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn a_window_begins_with_its_first_minute_and_ends_before_its_last() {
        let office = when("mon-fri", &["06:00-12:00", "13:00-22:00"], "UTC");
        let times = [
            "2025-06-06T05:59:59Z",
            "2025-06-06T06:00:00Z",
            "2025-06-06T11:59:59Z",
            "2025-06-06T12:00:00Z",
            "2025-06-06T13:00:00Z",
            "2025-06-06T22:00:00Z",
            "2025-06-07T06:00:00Z",
            "2025-06-09T06:00:00Z",
        ];
        assert_eq!(open(&office, &times), [times[1], times[2], times[4], times[7]]);
        assert_eq!(office.shown(at(times[0])), "fri 05:59");
        assert_eq!(office.to_string(), "mon-fri 06:00-12:00, 13:00-22:00 UTC");
    }

    #[test]
    fn a_window_past_midnight_belongs_to_the_day_it_begins_on() {
        let night = when("fri", &["22:00-06:00"], "UTC");
        let times = [
            "2025-06-06T03:00:00Z",
            "2025-06-06T21:59:59Z",
            "2025-06-06T22:00:00Z",
            "2025-06-07T00:00:00Z",
            "2025-06-07T05:59:59Z",
            "2025-06-07T06:00:00Z",
            "2025-06-07T22:00:00Z",
        ];
        assert_eq!(open(&night, &times), times[2..5]);
        let sunday = when("sun", &["23:00-01:00"], "UTC");
        assert!(sunday.is_open(at("2025-06-09T00:30:00Z")), "a week has a day after Sunday");
    }

    #[test]
    fn summer_time_moves_a_window_with_the_clock_on_the_wall() {
        let office = when("mon-fri", &["06:00-22:00"], "Europe/Berlin");
        assert!(!office.is_open(at("2025-01-10T04:30:00Z")), "05:30 in winter");
        assert!(office.is_open(at("2025-07-11T04:30:00Z")), "06:30 in summer");
        assert!(!office.is_open(at("2025-07-11T20:30:00Z")), "22:30 in summer");
        // Where it is Saturday already.
        assert!(!when("fri", &["00:00-24:00"], "Asia/Tokyo").is_open(at("2025-06-06T15:00:00Z")));
    }

    #[test]
    fn hours_that_the_clock_leaves_out_are_missing() {
        // On 30 March 2025 at 01:00Z the clock goes from 02:00 to 03:00.
        let early = when("sun", &["02:00-03:00"], "Europe/Berlin");
        let times = ["2025-03-30T00:59:59Z", "2025-03-30T01:00:00Z", "2025-03-30T01:59:59Z"];
        assert_eq!(open(&early, &times), [""; 0]);
        let late = when("sun", &["02:30-03:30"], "Europe/Berlin");
        assert_eq!(open(&late, &times), [times[1]], "it opens at 03:00");
    }

    #[test]
    fn hours_that_the_clock_shows_twice_hold_twice() {
        // On 26 October 2025 at 01:00Z the clock goes from 03:00 back to 02:00.
        let twice = when("sun", &["02:00-02:30"], "Europe/Berlin");
        let times = [
            "2025-10-26T00:00:00Z",
            "2025-10-26T00:30:00Z",
            "2025-10-26T01:00:00Z",
            "2025-10-26T01:30:00Z",
        ];
        assert_eq!(open(&twice, &times), [times[0], times[2]]);
    }

    #[test]
    fn the_local_zone_is_utc_until_it_is_set() {
        let mut office = when("mon-fri", &["06:00-22:00"], "local");
        let early = at("2025-07-11T04:30:00Z");
        assert!(!office.is_open(early));
        let berlin = TimeZoneDatabase::bundled().get("Europe/Berlin").unwrap();
        office.zone.set_local(&berlin);
        assert!(office.is_open(early));
        assert!(office.to_string().ends_with(" local"));
        let mut fixed = when("mon-fri", &["06:00-22:00"], "UTC");
        fixed.zone.set_local(&berlin);
        assert!(!fixed.is_open(early));
    }

    #[test]
    fn the_typical_time_is_within() {
        for when in [
            when("wed-thu", &["22:00-06:00"], "America/New_York"),
            when("sun", &["23:59-24:00"], "Asia/Kathmandu"),
            when("mon", &["00:00-00:01"], "Pacific/Kiritimati"),
        ] {
            assert!(when.is_open(when.typical_time()), "{when}");
        }
    }
}
