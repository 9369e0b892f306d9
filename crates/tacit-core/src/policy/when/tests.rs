//! Tests `when` conditions at fixed times, and compares random conditions with an independent
//! implementation of the calendar.

use super::*;

fn when(days: &str, hours: &[&str], zone: &str) -> When {
    When {
        days: Days::parse(days).unwrap(),
        days_of_month: DaysOfMonth::ALL,
        months: Months::ALL,
        hours: hours.iter().map(|hours| Hours::parse(hours).unwrap()).collect(),
        from: None,
        until: None,
        zone: Zone::named(zone).unwrap(),
    }
}

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_second()
}

/// Returns the times that are within a window.
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
    let why = "fri 05:59 is outside the time window mon-fri 06:00-12:00, 13:00-22:00 UTC";
    assert_eq!(office.why_closed(at(times[0])), why);
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
    // At this time it is already Saturday there.
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

#[test]
fn months_and_days_of_the_month_are_read_and_shown() {
    let months = |text| Months::parse(text).map(|months| months.to_string());
    for (text, wanted) in [
        ("jan", Some("jan")),
        ("jan-mar", Some("jan-mar")),
        ("nov-feb", Some("jan-feb,nov-dec")),
        ("january", None),
        ("", None),
    ] {
        assert_eq!(months(text).as_deref(), wanted, "{text}");
    }
    let of = |days: &[i64]| {
        let days = days.iter().map(|day| DaysOfMonth::one(*day).unwrap());
        days.fold(DaysOfMonth::default(), DaysOfMonth::union).to_string()
    };
    assert_eq!(of(&[1, 2, 3, 15, -1, -3]), "1-3,15,-1,-3");
    assert_eq!(DaysOfMonth::ALL.to_string(), "1-31");
    assert_eq!(DaysOfMonth::parse("1-7").unwrap().to_string(), "1-7");
    for wrong in ["7-1", "0-3", "1-32", "1", "a-b", "-3--1"] {
        assert_eq!(DaysOfMonth::parse(wrong), None, "{wrong}");
    }
    for wrong in [0, 32, -32, i64::MIN] {
        assert_eq!(DaysOfMonth::one(wrong), None, "{wrong}");
    }
}

#[test]
fn the_day_a_window_begins_on_decides_about_month_and_day() {
    let mut last = when("mon-sun", &["22:00-06:00"], "UTC");
    last.days_of_month = DaysOfMonth::one(-1).unwrap();
    last.months = Months::parse("feb").unwrap();
    let times = [
        "2024-02-28T23:00:00Z",
        "2024-02-29T05:00:00Z",
        "2024-02-29T22:00:00Z",
        "2024-03-01T05:59:59Z",
        "2024-03-01T06:00:00Z",
        "2025-02-28T23:00:00Z",
        "2025-03-31T23:00:00Z",
    ];
    assert_eq!(open(&last, &times), [times[2], times[3], times[5]]);
    assert_eq!(
        last.why_closed(at(times[0])),
        "wed 2024-02-28 23:00 is outside the time window mon-sun 22:00-06:00 feb day -1 UTC"
    );
}

#[test]
fn a_range_of_dates_begins_with_its_first_second_and_ends_before_its_last() {
    let mut summer = when("mon-sun", &["00:00-24:00"], "Europe/Berlin");
    summer.from = Some("2025-06-01T08:00".parse().unwrap());
    summer.until = Some("2025-09-01T00:00".parse().unwrap());
    let times = [
        "2025-06-01T05:59:59Z",
        "2025-06-01T06:00:00Z",
        "2025-08-31T21:59:59Z",
        "2025-08-31T22:00:00Z",
    ];
    assert_eq!(open(&summer, &times), times[1..3]);
    let before = "2025-06-01 07:59 is earlier than `from`: 2025-06-01 08:00 Europe/Berlin";
    assert_eq!(summer.why_closed(at(times[0])), before);
    let after = "2025-09-01 00:00 is not earlier than `until`: 2025-09-01 00:00 Europe/Berlin";
    assert_eq!(summer.why_closed(at(times[3])), after);
}

#[test]
fn what_never_opens_is_known() {
    let mut never = when("mon-sun", &["00:00-24:00"], "UTC");
    never.days_of_month = DaysOfMonth::one(30).unwrap();
    assert!(never.ever_opens());
    never.months = Months::parse("feb").unwrap();
    assert!(!never.ever_opens());
    let mut leap = when("wed", &["00:00-24:00"], "UTC");
    leap.months = Months::parse("feb").unwrap();
    leap.days_of_month = DaysOfMonth::one(29).unwrap();
    assert!(leap.is_open(leap.typical_time()), "{leap}");
    let mut past = when("mon", &["08:00-09:00"], "UTC");
    past.until = Some("2001-01-01T08:30".parse().unwrap());
    assert!(past.ever_opens() && past.is_open(past.typical_time()));
    past.from = Some("2000-12-31T00:00".parse().unwrap());
    assert!(past.is_open(past.typical_time()));
    past.until = Some("2001-01-01T08:00".parse().unwrap());
    assert!(!past.ever_opens());
}

mod oracle {
    //! An independent calendar with the UTC offsets of each zone.

    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;

    /// The seconds by which the clock of Berlin is ahead of UTC, by the rule since 1996.
    fn berlin_ahead_s(unix_s: i64) -> i64 {
        let (year, ..) = date(unix_s.div_euclid(86_400));
        let last_sunday = |month: i64| {
            let last = days_since_1970(year, month, 31);
            (last - (last + 4).rem_euclid(7)) * 86_400 + 3600
        };
        if (last_sunday(3)..last_sunday(10)).contains(&unix_s) { 7200 } else { 3600 }
    }

    fn is_leap(year: i64) -> bool {
        year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
    }

    fn days_in(year: i64, month: i64) -> i64 {
        match month {
            2 => 28 + i64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }

    /// Computes year, month and day by counting from 1970.
    fn date(mut days: i64) -> (i64, i64, i64) {
        let mut year = 1970;
        let mut month = 1;
        while days >= 365 + i64::from(is_leap(year)) {
            days -= 365 + i64::from(is_leap(year));
            year += 1;
        }
        while days >= days_in(year, month) {
            days -= days_in(year, month);
            month += 1;
        }
        (year, month, days + 1)
    }

    fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
        let years: i64 = (1970..year).map(|year| 365 + i64::from(is_leap(year))).sum();
        years + (1..month).map(|month| days_in(year, month)).sum::<i64>() + day - 1
    }

    #[derive(Clone, Debug)]
    struct Said {
        /// Counted from Monday as 0.
        days: Vec<i64>,
        months: Vec<i64>,
        days_of_month: Vec<i64>,
        /// In minutes. The second may be smaller than the first.
        hours: Vec<(i64, i64)>,
        from_s: Option<i64>,
        length_s: i64,
        berlin: bool,
    }

    impl Said {
        /// Whether a window is open when the local clock shows this number of seconds since 1970.
        fn is_open(&self, wall_s: i64) -> bool {
            let within =
                self.from_s.is_none_or(|from| (from..from + self.length_s).contains(&wall_s));
            let today = wall_s.div_euclid(86_400);
            let minute = wall_s.rem_euclid(86_400) / 60;
            let opens = |day: i64| {
                let (year, month, of_month) = date(day);
                let from_last = of_month - days_in(year, month) - 1;
                self.days.contains(&(day + 3).rem_euclid(7))
                    && self.months.contains(&month)
                    && (self.days_of_month.contains(&of_month)
                        || self.days_of_month.contains(&from_last))
            };
            within
                && self.hours.iter().any(|(first, end)| {
                    if first < end {
                        opens(today) && (*first..*end).contains(&minute)
                    } else {
                        (opens(today) && minute >= *first) || (opens(today - 1) && minute < *end)
                    }
                })
        }

        fn when(&self) -> When {
            let clock = |minutes: i64| format!("{:02}:{:02}", minutes / 60, minutes % 60);
            let hours = |(first, end): &(i64, i64)| {
                Hours::parse(&format!("{}-{}", clock(*first), clock(*end))).unwrap()
            };
            let wall =
                |wall_s: i64| TimeZone::UTC.to_datetime(Timestamp::from_second(wall_s).unwrap());
            let name = |day: &i64| Days::name(i8::try_from(*day).unwrap());
            let month = |month: &i64| {
                let date = jiff::civil::date(2024, i8::try_from(*month).unwrap(), 1);
                Months::parse(&date.strftime("%b").to_string().to_lowercase()).unwrap()
            };
            When {
                days: self
                    .days
                    .iter()
                    .map(|day| Days::parse(name(day)).unwrap())
                    .fold(Days::default(), Days::union),
                months: self.months.iter().map(month).fold(Months::default(), Months::union),
                days_of_month: self
                    .days_of_month
                    .iter()
                    .map(|day| DaysOfMonth::one(*day).unwrap())
                    .fold(DaysOfMonth::default(), DaysOfMonth::union),
                hours: self.hours.iter().map(hours).collect(),
                from: self.from_s.map(wall),
                until: self.from_s.map(|from| wall(from + self.length_s)),
                zone: Zone::named(if self.berlin { "Europe/Berlin" } else { "UTC" }).unwrap(),
            }
        }
    }

    fn said() -> impl Strategy<Value = Said> {
        let hours = (0..1440_i64, 0..=1440_i64).prop_filter("the same", |(a, b)| a != b);
        let days_of_month =
            (1..=31_i64, any::<bool>()).prop_map(|(d, last)| if last { -d } else { d });
        (
            subsequence((0..7).collect::<Vec<i64>>(), 1..=7),
            subsequence((1..=12).collect::<Vec<i64>>(), 1..=12),
            prop_oneof![
                Just((1..=31).collect::<Vec<i64>>()),
                proptest::collection::vec(days_of_month, 1..12),
            ],
            proptest::collection::vec(hours, 1..3),
            proptest::option::of(946_684_800..1_893_456_000_i64),
            1..40_000_000_i64,
            any::<bool>(),
        )
            .prop_map(|(days, months, days_of_month, hours, from_s, length_s, berlin)| {
                Said { days, months, days_of_month, hours, from_s, length_s, berlin }
            })
    }

    /// Times of all kinds, many of them near the days on which clocks change.
    fn time() -> impl Strategy<Value = i64> {
        // Midnight in UTC of the last Sundays of March and October 2024 and 2025.
        let changes = [1_711_843_200, 1_729_987_200, 1_743_292_800, 1_761_436_800_i64];
        prop_oneof![
            946_684_800..1_893_456_000_i64,
            (select(changes.to_vec()), -7200..21_600_i64).prop_map(|(day, after)| day + after),
        ]
    }

    proptest! {
        #[test]
        fn windows_are_open_when_a_calendar_on_foot_says_so(
            said in said(),
            times in proptest::collection::vec(time(), 1..40),
        ) {
            let when = said.when();
            for unix_s in times {
                let ahead = if said.berlin { berlin_ahead_s(unix_s) } else { 0 };
                let wanted = said.is_open(unix_s + ahead);
                prop_assert_eq!(when.is_open(unix_s), wanted, "{} {}", when, unix_s);
            }
        }

        #[test]
        fn the_next_change_is_the_first_one(said in said(), time in time()) {
            let when = said.when();
            let before = when.is_open(time);
            // Windows and shifts of the clock begin with a minute, but `from` and `until` with a
            // second.
            let first = time.div_euclid(60) * 60 + 60;
            let minutes = (0..4 * 24 * 60).map(|minute| first + minute * 60);
            let ends = [when.from, when.until].into_iter().flatten();
            let ends = ends.flat_map(|wall| when.zone.times_of(wall)).filter(|end| *end > time);
            let mut times: Vec<i64> = minutes.chain(ends).collect();
            times.sort_unstable();
            let horizon = first + 4 * 24 * 3600;
            let wanted = times.into_iter().find(|time| when.is_open(*time) != before);
            let found = when.next_change(time);
            match wanted.filter(|wanted| *wanted < horizon) {
                Some(wanted) => prop_assert_eq!(found, Some(wanted)),
                None => prop_assert!(found.is_none_or(|found| found >= horizon)),
            }
        }

        #[test]
        fn some_window_opens_where_the_typical_time_says(said in said()) {
            let mut when = said.when();
            // A clock that skips no hour.
            when.zone = Zone::named("UTC").unwrap();
            prop_assert_eq!(when.ever_opens(), when.is_open(when.typical_time()), "{}", when);
        }
    }
}
