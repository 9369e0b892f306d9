//! Decides whether a rule applies now, from its dates, days and hours in local time.
//!
//! ```text
//! days = "fri", hours = "22:00-06:00"     from Friday 22:00 to Saturday 06:00
//! days-of-month = -1                      on the last day of each month
//! ```
//!
//! All conditions of a rule must hold. A range of hours may continue past midnight: then the other
//! conditions apply to the day on which the range begins.
//!
//! The time zone database is compiled into the program; the caller sets the local zone
//! ([`Policy::set_local_zone`](super::Policy::set_local_zone)).

use std::fmt;
use std::ops::Range;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

mod calendar;
mod hours;

#[cfg(test)]
mod tests;

pub use calendar::{Days, DaysOfMonth, Months};
pub use hours::Hours;

/// The time windows of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// The days of the week on which windows open.
    pub days: Days,
    /// The days of the month on which windows open.
    pub days_of_month: DaysOfMonth,
    /// The months in which windows open.
    pub months: Months,
    /// The hours of the windows; at least one.
    pub hours: Vec<Hours>,
    /// The start of the period in which windows open.
    pub from: Option<DateTime>,
    /// The end of this period.
    pub until: Option<DateTime>,
    /// The time zone.
    pub zone: Zone,
}

/// The number of days that are searched for an open window. In 40 years, 29 February falls on each
/// day of the week at least once.
const DAYS_SEARCHED_MAX: u16 = 40 * 366;

/// The number of days that are searched for the next change.
const CHANGE_DAYS_MAX: u16 = 366;

/// The number of shifts of a clock that are looked at: two years of summer time.
const SHIFTS_MAX: usize = 4;

impl When {
    /// Whether a window is open at a time, given in seconds since 1970.
    #[must_use]
    pub fn is_open(&self, unix_s: i64) -> bool {
        let wall = self.zone.wall_clock(unix_s);
        let is_within = self.from.is_none_or(|from| from <= wall)
            && self.until.is_none_or(|until| wall < until);
        let today = wall.date();
        is_within
            && [Some(today), today.yesterday().ok()]
                .into_iter()
                .flatten()
                .any(|day| self.windows(day).any(|window| window.contains(&wall)))
    }

    /// The next time at which windows open or close; `None`: not in the next year.
    #[must_use]
    pub fn next_change(&self, unix_s: i64) -> Option<i64> {
        let before = self.is_open(unix_s);
        let zone = &self.zone.clock;
        let now = Timestamp::from_second(unix_s).ok()?;
        let today = self.zone.wall_clock(unix_s).date();
        // The clock may repeat or skip a part of a day.
        let shifts = zone.following(now).map(|shift| shift.timestamp().as_second());
        let shifts: Vec<i64> = shifts.take(SHIFTS_MAX).collect();
        let limits = [self.from, self.until].into_iter().flatten();
        let limits = limits.flat_map(|wall| self.zone.times_of(wall));
        let is_change = |time: &i64| *time > unix_s && self.is_open(*time) != before;
        let others: Vec<i64> = limits.chain(shifts).filter(is_change).collect();
        let mut day = today.yesterday().ok()?;
        for _ in 0..CHANGE_DAYS_MAX {
            let next = day.tomorrow().ok()?;
            // A window may end on the next day, after others have opened there.
            let windows = [day, next].into_iter().flat_map(|day| self.windows(day));
            let ends = windows.flat_map(|window| [window.start, window.end]);
            let times = ends.flat_map(|wall| self.zone.times_of(wall));
            let first = times.filter(is_change).min();
            let other = others.iter().copied().min();
            if let Some(first) = first {
                return Some(other.map_or(first, |other| other.min(first)));
            }
            if let Some(other) = other
                && self.zone.wall_clock(other).date() < day
            {
                return Some(other);
            }
            day = next;
        }
        others.into_iter().min()
    }

    /// Returns the windows that open on a day, without the limits `from` and `until`.
    fn windows(&self, day: Date) -> impl Iterator<Item = Range<DateTime>> {
        let opens = self.days.contains(day.weekday().to_monday_zero_offset())
            && self.months.contains(day.month())
            && self.days_of_month.contains(day.day(), day.days_in_month());
        let midnight = day.to_datetime(Time::midnight());
        let after = move |minutes: u16| midnight.saturating_add(Span::new().minutes(minutes));
        let hours = self.hours.iter().filter(move |_| opens);
        hours.map(move |hours| after(hours.minutes().start)..after(hours.minutes().end))
    }

    /// Returns the start of a window, limited by `from`; `None` if no window ever opens.
    fn opening(&self) -> Option<DateTime> {
        // 1 January 2024 was a Monday.
        let earliest = self.from.map_or(jiff::civil::date(2024, 1, 1), |from| {
            from.date().yesterday().unwrap_or(Date::MIN)
        });
        let first = match self.until {
            Some(until) if self.from.is_none() && until.date() <= earliest => {
                until.date().saturating_sub(Span::new().days(DAYS_SEARCHED_MAX))
            }
            _ => earliest,
        };
        let days = first.series(Span::new().days(1)).take(usize::from(DAYS_SEARCHED_MAX) + 1);
        days.take_while(|day| self.until.is_none_or(|until| *day <= until.date())).find_map(|day| {
            let cut = |window: Range<DateTime>| {
                let start = self.from.map_or(window.start, |from| from.max(window.start));
                let end = self.until.map_or(window.end, |until| until.min(window.end));
                (start < end).then_some(start)
            };
            self.windows(day).find_map(cut)
        })
    }

    /// Whether a window ever opens.
    pub(super) fn ever_opens(&self) -> bool {
        self.opening().is_some()
    }

    /// Returns a time at which a window is open, unless the time zone skips this time on that day.
    pub(super) fn typical_time(&self) -> i64 {
        let opening = self.opening().and_then(|wall| self.zone.clock.to_timestamp(wall).ok());
        opening.map_or(0, Timestamp::as_second)
    }

    /// Explains why no window is open at a time.
    pub(super) fn why_closed(&self, unix_s: i64) -> String {
        let wall = self.zone.wall_clock(unix_s);
        let zone = &self.zone.name;
        let now = minute(wall);
        match (self.from, self.until) {
            (Some(from), _) if wall < from => {
                format!("{now} is earlier than `from`: {from} {zone}", from = minute(from))
            }
            (_, Some(until)) if wall >= until => {
                format!("{now} is not earlier than `until`: {until} {zone}", until = minute(until))
            }
            _ => {
                let day = Days::name(wall.weekday().to_monday_zero_offset());
                let weekly = self.months == Months::ALL && self.days_of_month == DaysOfMonth::ALL;
                let time = if weekly { wall.strftime("%H:%M") } else { wall.strftime("%F %H:%M") };
                format!("{day} {time} is outside the time window {self}")
            }
        }
    }
}

fn minute(wall: DateTime) -> impl fmt::Display {
    wall.strftime("%F %H:%M")
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours: Vec<String> = self.hours.iter().map(Hours::to_string).collect();
        write!(f, "{} {}", self.days, hours.join(", "))?;
        if self.months != Months::ALL {
            write!(f, " {}", self.months)?;
        }
        if self.days_of_month != DaysOfMonth::ALL {
            write!(f, " day {}", self.days_of_month)?;
        }
        if let Some(from) = self.from {
            write!(f, " from {}", minute(from))?;
        }
        if let Some(until) = self.until {
            write!(f, " until {}", minute(until))?;
        }
        write!(f, " {}", self.zone.name)
    }
}

/// A time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name in the policy.
    name: String,
    clock: TimeZone,
}

impl Zone {
    /// The word for the time zone of this host.
    pub const LOCAL: &str = "local";

    /// Returns the zone with this name, if it exists. The local zone is UTC until it is set.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let clock = match name {
            Self::LOCAL => TimeZone::UTC,
            _ => TimeZoneDatabase::bundled().get(name).ok()?,
        };
        Some(Self { name: name.to_owned(), clock })
    }

    /// Whether it is the zone of this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.name == Self::LOCAL
    }

    /// Returns all names of time zones.
    pub(super) fn names() -> Vec<String> {
        let known = TimeZoneDatabase::bundled();
        let local = std::iter::once(Self::LOCAL.to_owned());
        local.chain(known.available().map(|name| name.as_str().to_owned())).collect()
    }

    /// Sets the local zone; other zones do not change.
    pub(super) fn set_local(&mut self, local: &TimeZone) {
        if self.is_local() {
            self.clock = local.clone();
        }
    }

    /// The times at which the local clock shows this: two if it is set back, and one beside if the
    /// time is skipped.
    fn times_of(&self, wall: DateTime) -> Vec<i64> {
        let times = || self.clock.to_ambiguous_timestamp(wall);
        let both = [times().earlier(), times().later()];
        both.into_iter().flatten().map(Timestamp::as_second).collect()
    }

    /// Returns the local date and time.
    fn wall_clock(&self, unix_s: i64) -> DateTime {
        // For times outside the range of the calendar, any result is acceptable.
        let at = Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH);
        self.clock.to_datetime(at)
    }
}
