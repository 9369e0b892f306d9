//! Parses the `when` table of a rule: the dates, days and hours at which the rule applies.

use jiff::civil::DateTime;

use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::text::{TomlTable, TomlValue, nearest_word, word_list};
use crate::policy::when::{Days, DaysOfMonth, Hours, Months, When, Zone};

/// Parses the table. `Some(None)`: the rule always applies. `None`: an error was reported.
pub(super) fn read(rule: &TomlTable<'_>) -> Option<Option<When>> {
    rule.value("when").map_or(Some(None), |value| table(&value).map(Some))
}

fn table(value: &TomlValue<'_>) -> Option<When> {
    let table = value.table(Scope::When, "`when`")?;
    let days = table.value("days").map_or(Some(Days::ALL), |value| {
        let listed = value.each(days)?;
        Some(listed.into_iter().fold(Days::default(), Days::union))
    });
    let months = table.value("months").map_or(Some(Months::ALL), |value| {
        let listed = value.each(months)?;
        Some(listed.into_iter().fold(Months::default(), Months::union))
    });
    let days_of_month = table.value("days-of-month").map_or(Some(DaysOfMonth::ALL), |value| {
        let listed = value.each(days_of_month)?;
        Some(listed.into_iter().fold(DaysOfMonth::default(), DaysOfMonth::union))
    });
    let hours =
        table.value("hours").map_or_else(|| Some(vec![Hours::ALL]), |value| value.each_once(hours));
    let from = table.value("from").map_or(Some(None), |value| wall_clock(&value).map(Some));
    let until = table.value("until").map_or(Some(None), |value| wall_clock(&value).map(Some));
    let zone = table.value("zone").map_or_else(|| Zone::named(Zone::LOCAL), |value| zone(&value));
    let keys = ["days", "hours", "months", "days-of-month", "from", "until"];
    if !keys.iter().any(|key| table.holds(key)) {
        let fix = "set days = \"mon-fri\", hours = \"06:00-22:00\", or another key of `when`";
        let message = format!("`when` must have at least one of the keys {}", word_list(&keys));
        value.report.missing(MessageId("missing-key"), &value.at, message, fix);
        return None;
    }
    let when = When {
        days: days?,
        days_of_month: days_of_month?,
        months: months?,
        hours: hours?,
        from: from?,
        until: until?,
        zone: zone?,
    };
    if !when.ever_opens() {
        let message = format!("`when` never applies: {when}");
        let fix = "check that `days-of-month` has a day that exists in `months`, and that `from` \
                   is before `until`";
        value.error(message, fix);
        return None;
    }
    Some(when)
}

fn months(value: &TomlValue<'_>) -> Option<Months> {
    let text = value.string()?;
    let months = Months::parse(text);
    if months.is_none() {
        let message = format!("`months` cannot be `{text}`");
        value.error(message, "write \"jan\", \"jan-mar\" or [\"jan\", \"nov-dec\"]");
    }
    months
}

fn days_of_month(value: &TomlValue<'_>) -> Option<DaysOfMonth> {
    let fix = "write a number from 1 to 31, a number from -1 (the last day) to -31, or a range \
               such as \"1-7\"";
    let days = match value.value.as_integer() {
        Some(number) => number.digits.parse().ok().and_then(DaysOfMonth::one),
        None => DaysOfMonth::parse(value.string()?),
    };
    if days.is_none() {
        value.error("`days-of-month` contains a value that is not a day of a month", fix);
    }
    days
}

/// Date and time, without zone.
fn wall_clock(value: &TomlValue<'_>) -> Option<DateTime> {
    let text = value.string()?;
    // With only a date, it would be unclear whether the day itself is included.
    let wall = text.contains(':').then(|| text.parse::<DateTime>().ok()).flatten();
    if wall.is_none() {
        let message =
            format!("`{key}` cannot be `{text}`: this is not a date with a time", key = value.name);
        let fix = "write date and time, such as \"2025-06-01 08:00\"; `zone` sets the time zone";
        value.error(message, fix);
    }
    wall
}

fn days(value: &TomlValue<'_>) -> Option<Days> {
    let text = value.string()?;
    let days = Days::parse(text);
    if days.is_none() {
        let message = format!("`days` cannot be `{text}`");
        value.error(message, "write \"mon\", \"mon-fri\" or [\"mon\", \"wed-thu\"]");
    }
    days
}

fn hours(value: &TomlValue<'_>) -> Option<Hours> {
    let text = value.string()?;
    let hours = Hours::parse(text);
    if hours.is_none() {
        let message = format!("`hours` cannot be `{text}`: this is not a range of hours");
        let fix = "write a range such as \"06:00-22:00\", or \"22:00-06:00\" to include midnight. \
                   If the rule should apply at all hours, remove `hours`";
        value.error(message, fix);
    }
    hours
}

fn zone(value: &TomlValue<'_>) -> Option<Zone> {
    let text = value.string()?;
    let zone = Zone::named(text);
    if zone.is_none() {
        let names = Zone::names();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let fix = match nearest_word(text, &known) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write \"local\", \"UTC\" or a name such as \"Europe/Berlin\"".to_owned(),
        };
        value.error(format!("`{text}` is not a time zone"), fix);
    }
    zone
}
