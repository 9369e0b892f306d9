//! Parses sets of weekdays, days of the month, or months. Checks whether a date is in such a set.

use std::fmt;
use std::ops::RangeInclusive;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// A set of days of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Days {
    /// Bit 0 is Monday.
    bits: u32,
}

impl Days {
    /// Every day.
    pub const ALL: Self = Self { bits: 0x7f };

    /// Parses `mon` or `fri-mon`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse(&DAYS, text).map(|bits| Self { bits })
    }

    /// Returns the days of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    /// Whether the set contains a day, counted from Monday as 0.
    pub(super) fn contains(self, day: i8) -> bool {
        holds(self.bits, day)
    }

    /// Returns the name of a day in displays, counted from Monday as 0.
    pub(super) fn name(day: i8) -> &'static str {
        usize::try_from(day).ok().and_then(|day| DAYS.get(day)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.bits, &DAYS)
    }
}

/// A set of months of the year.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Months {
    /// Bit 0 is January.
    bits: u32,
}

impl Months {
    /// Every month.
    pub const ALL: Self = Self { bits: 0xfff };

    /// Parses `jan` or `nov-feb`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        parse(&MONTHS, text).map(|bits| Self { bits })
    }

    /// Returns the months of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits }
    }

    /// Whether the set contains a month, counted from January as 1.
    pub(super) fn contains(self, month: i8) -> bool {
        holds(self.bits, month - 1)
    }
}

impl fmt::Display for Months {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.bits, &MONTHS)
    }
}

/// A set of days of the month, counted from its first day or from its last day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaysOfMonth {
    /// Bit 0 is the first day.
    from_first: u32,
    /// Bit 0 is the last day.
    from_last: u32,
}

impl DaysOfMonth {
    /// Every day.
    pub const ALL: Self = Self { from_first: 0x7fff_ffff, from_last: 0 };

    /// One day: 1 is the first day of the month, -1 the last; `None` if the number exceeds 31 in
    /// either direction.
    #[must_use]
    pub fn one(day: i64) -> Option<Self> {
        let count = u32::try_from(day.unsigned_abs()).ok().filter(|day| (1..=31).contains(day))?;
        let bit = 1 << (count - 1);
        let none = Self::default();
        Some(match day > 0 {
            true => Self { from_first: bit, ..none },
            false => Self { from_last: bit, ..none },
        })
    }

    /// Parses `1-7`, counted from the first day of the month.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        let first: i64 = first.trim().parse().ok()?;
        let last: i64 = last.trim().parse().ok()?;
        if !(1..=last).contains(&first) || last > 31 {
            return None;
        }
        (first..=last).map(Self::one).try_fold(Self::default(), |all, one| Some(all.union(one?)))
    }

    /// Returns the days of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            from_first: self.from_first | other.from_first,
            from_last: self.from_last | other.from_last,
        }
    }

    /// Whether the set contains a day, counted from 1, of a month with `days_in_month` days.
    pub(super) fn contains(self, day: i8, days_in_month: i8) -> bool {
        holds(self.from_first, day - 1) || holds(self.from_last, days_in_month - day)
    }
}

impl fmt::Display for DaysOfMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = ranges(self.from_first, 31).into_iter().map(|range| {
            let (first, last) = range.into_inner();
            if first == last {
                format!("{}", first + 1)
            } else {
                format!("{}-{}", first + 1, last + 1)
            }
        });
        let last =
            (0..31).filter(|day| holds(self.from_last, *day)).map(|day| format!("-{}", day + 1));
        f.write_str(&first.chain(last).collect::<Vec<_>>().join(","))
    }
}

fn holds(bits: u32, bit: i8) -> bool {
    u32::try_from(bit).is_ok_and(|bit| bits.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
}

/// Parses `name` or `name-name`. The second name may come before the first in the week or year.
fn parse(names: &[&str], text: &str) -> Option<u32> {
    let place = |text: &str| names.iter().position(|name| *name == text.trim());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let first = place(first)?;
    let last = place(last)?;
    let count = (last + names.len() - first) % names.len() + 1;
    Some((first..first + count).fold(0, |bits, place| bits | 1 << (place % names.len())))
}

/// Returns the ranges of consecutive set bits.
fn ranges(bits: u32, count: i8) -> Vec<RangeInclusive<i8>> {
    let mut set = (0..count).filter(|bit| holds(bits, *bit)).peekable();
    let mut ranges = Vec::new();
    while let Some(first) = set.next() {
        let mut last = first;
        while let Some(next) = set.next_if_eq(&(last + 1)) {
            last = next;
        }
        ranges.push(first..=last);
    }
    ranges
}

fn show(f: &mut fmt::Formatter<'_>, bits: u32, names: &[&str]) -> fmt::Result {
    let name = |place: i8| {
        let known = usize::try_from(place).ok().and_then(|place| names.get(place)).copied();
        known.unwrap_or_default()
    };
    let mut comma = "";
    for range in ranges(bits, i8::try_from(names.len()).unwrap_or(i8::MAX)) {
        let (first, last) = range.into_inner();
        let to = if first == last { String::new() } else { format!("-{}", name(last)) };
        write!(f, "{comma}{}{to}", name(first))?;
        comma = ",";
    }
    Ok(())
}
