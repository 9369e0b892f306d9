//! When a rule holds: dates, days and hours, as the clock on the wall shows them.
//!
//! ```text
//! days = "fri", hours = "22:00-06:00"     from Friday 22:00 to Saturday 06:00
//! days-of-month = -1                      on the last day of each month
//! ```
//!
//! Only the clock counts: hours that it leaves out in spring are missing, and hours that it shows
//! twice in autumn hold twice. A window past midnight belongs to the day it begins on, whose day of
//! the week, day of the month and month count. All that is said must hold.
//!
//! The zones of the world are those bundled with the library; which of them is the local one is
//! for the caller to say ([`Policy::set_local_zone`](super::Policy::set_local_zone)).

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

/// A rule's windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// On which days of the week they open.
    pub days: Days,
    /// On which days of the month.
    pub days_of_month: DaysOfMonth,
    /// In which months.
    pub months: Months,
    /// At which hours; at least one.
    pub hours: Vec<Hours>,
    /// From when on there are windows.
    pub from: Option<DateTime>,
    /// Up to when.
    pub until: Option<DateTime>,
    /// By which clock.
    pub zone: Zone,
}

/// Days looked at for one that a window opens on: a 29 February comes on each day of the week once
/// in 40 years at the latest.
const DAYS_SEARCHED_MAX: u16 = 40 * 366;

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

    /// The windows that open on a day, without the limits of `from` and `until`.
    fn windows(&self, day: Date) -> impl Iterator<Item = Range<DateTime>> {
        let opens = self.days.contains(day.weekday().to_monday_zero_offset())
            && self.months.contains(day.month())
            && self.days_of_month.contains(day.day(), day.days_in_month());
        let midnight = day.to_datetime(Time::midnight());
        let after = move |minutes: u16| midnight.saturating_add(Span::new().minutes(minutes));
        let hours = self.hours.iter().filter(move |_| opens);
        hours.map(move |hours| after(hours.minutes().start)..after(hours.minutes().end))
    }

    /// The beginning of a window, or of what `from` leaves of one; `None`: none ever opens.
    fn opening(&self) -> Option<DateTime> {
        // 2024 began on a Monday.
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

    /// Whether any window ever opens, as far as the calendar says.
    pub(super) fn ever_opens(&self) -> bool {
        self.opening().is_some()
    }

    /// Some time at which a window is open, unless a zone's clock leaves it out that day.
    pub(super) fn typical_time(&self) -> i64 {
        let opening = self.opening().and_then(|wall| self.zone.clock.to_timestamp(wall).ok());
        opening.map_or(0, Timestamp::as_second)
    }

    /// Why no window is open at a time.
    pub(super) fn why_closed(&self, unix_s: i64) -> String {
        let wall = self.zone.wall_clock(unix_s);
        let zone = &self.zone.name;
        match (self.from, self.until) {
            (Some(from), _) if wall < from => {
                format!("{} is before {} {zone}", minute(wall), minute(from))
            }
            (_, Some(until)) if wall >= until => {
                format!("{} is not before {} {zone}", minute(wall), minute(until))
            }
            _ => {
                let day = Days::name(wall.weekday().to_monday_zero_offset());
                let weekly = self.months == Months::ALL && self.days_of_month == DaysOfMonth::ALL;
                let shown = if weekly { wall.strftime("%H:%M") } else { wall.strftime("%F %H:%M") };
                format!("{day} {shown} is outside {self}")
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

    /// What it shows at a time.
    fn wall_clock(&self, unix_s: i64) -> DateTime {
        // Beyond the years that calendars are made for, any answer will do.
        let at = Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH);
        self.clock.to_datetime(at)
    }
}
