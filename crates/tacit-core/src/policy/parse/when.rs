//! The `when` of a rule.

use super::table::{Table, Value};
use super::words::{self, Scope};
use crate::policy::when::{Days, Hours, When, Zone};

/// Reads it: `Some(None)` for a rule that always holds, `None` after an error.
pub(super) fn read(rule: &Table<'_>) -> Option<Option<When>> {
    rule.value("when").map_or(Some(None), |value| table(&value).map(Some))
}

fn table(value: &Value<'_>) -> Option<When> {
    let table = value.table(Scope::When, "`when`")?;
    let days = table.value("days").map_or(Some(Days::ALL), |value| {
        let days = value.each(days)?;
        Some(days.into_iter().fold(Days::default(), Days::union))
    });
    let hours =
        table.value("hours").map_or_else(|| Some(vec![Hours::ALL]), |value| value.each_once(hours));
    let zone = table.value("zone").map_or_else(|| Zone::named(Zone::LOCAL), |value| zone(&value));
    if !table.holds("days") && !table.holds("hours") {
        let fix = "say days = \"mon-fri\", hours = \"06:00-22:00\" or both";
        value.report.missing(&value.at, "`when` has neither `days` nor `hours`", fix);
        return None;
    }
    Some(When { days: days?, hours: hours?, zone: zone? })
}

fn days(value: &Value<'_>) -> Option<Days> {
    let text = value.string()?;
    let days = Days::parse(text);
    if days.is_none() {
        let message = format!("`days` cannot be `{text}`");
        value.error(message, "write \"mon\", \"mon-fri\" or [\"mon\", \"wed-thu\"]");
    }
    days
}

fn hours(value: &Value<'_>) -> Option<Hours> {
    let text = value.string()?;
    let hours = Hours::parse(text);
    if hours.is_none() {
        let message = format!("`hours` cannot be `{text}`");
        let fix = "write \"06:00-22:00\", or \"22:00-06:00\" into the next day; leave it out for \
                   whole days";
        value.error(message, fix);
    }
    hours
}

fn zone(value: &Value<'_>) -> Option<Zone> {
    let text = value.string()?;
    let zone = Zone::named(text);
    if zone.is_none() {
        let names = Zone::names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fix = match words::nearest(text, &names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write \"local\", \"UTC\" or a name as \"Europe/Berlin\"".to_owned(),
        };
        value.error(format!("`{text}` is no time zone"), fix);
    }
    zone
}
