//! Converts the AT-TLS statement `IpTimeCondition` to the key `when` of a tacit rule.
//!
//! The statement contains masks of digits. A mask has one digit for each month, for each weekday
//! (Sunday first), or for each day of the month. In a mask for days of the month, 31 more digits
//! may follow. These digits count from the end of the month: the first is for the last day, the
//! second for the day before, and so on.

use super::objects::{Field, Object, Objects};
use super::words::Kind;
use crate::draft::{Keys, Toml, set};
use crate::finding::Findings;

const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// The value of `when` for the time condition of a rule; `Some(None)` if it always applies, `None`
/// after an error.
pub(super) fn when(
    rule: &Object,
    objects: &Objects,
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    let Some(field) = rule.field("IpTimeConditionRef") else { return Some(None) };
    // `check_references` has already reported a reference to a missing condition.
    let condition = objects.find(Kind::Time, &field.value)?;
    let days = names(condition, "DayOfWeekMask", &DAYS, findings);
    let months = names(condition, "MonthOfYearMask", &MONTHS, findings);
    let days_of_month = days_of_month(condition, findings);
    let hours = hours(condition, findings);
    let range = range(condition, findings)?;
    let mut keys = Keys::new();
    let mut add = |key: &str, value: Option<Toml>| {
        if let Some(value) = value {
            set(&mut keys, key, value);
        }
    };
    add("days", days?);
    add("months", months?);
    add("days-of-month", days_of_month?);
    add("hours", hours?);
    if let Some(Range { from, until }) = range {
        add("from", Some(from));
        add("until", Some(until));
    }
    if keys.is_empty() {
        return Some(None);
    }
    let is_utc = condition.field("TimeZone").is_some_and(|zone| zone.value == "UTC");
    set(&mut keys, "zone", if is_utc { "UTC" } else { "local" });
    Some(Some(Toml::Table(keys)))
}

/// Reports an invalid value; returns `None`, for use with `?`.
fn wrong<T>(field: &Field, fix: &str, findings: &mut Findings) -> Option<T> {
    let message = format!("`{}` cannot be `{}`", field.attribute.word, field.value);
    findings.error(&field.at, message, fix);
    None
}

/// The digits of a mask with one of these lengths; blanks between them are ignored.
fn mask(field: &Field, lengths: &[usize], findings: &mut Findings) -> Option<Vec<bool>> {
    let digits: String = field.value.split_whitespace().collect();
    let is_mask = digits.chars().all(|digit| matches!(digit, '0' | '1'));
    if !is_mask || !lengths.contains(&digits.len()) || !digits.contains('1') {
        let shown: Vec<String> = lengths.iter().map(usize::to_string).collect();
        let fix = format!(
            "write {count} digits: each digit is 0 or 1, and at least one digit is 1",
            count = shown.join(" or ")
        );
        return wrong(field, &fix, findings);
    }
    Some(digits.chars().map(|digit| digit == '1').collect())
}

/// The names that a mask selects; `Some(None)` if it selects all.
fn names(
    condition: &Object,
    word: &str,
    names: &[&str],
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    let Some(field) = condition.field(word) else { return Some(None) };
    let mask = mask(field, &[names.len()], findings)?;
    if mask.iter().all(|set| *set) {
        return Some(None);
    }
    let named = names.iter().zip(mask).filter(|(_, set)| *set).map(|(name, _)| *name);
    Some(Some(named.collect::<Vec<_>>().into()))
}

fn days_of_month(condition: &Object, findings: &mut Findings) -> Option<Option<Toml>> {
    let mut days = Vec::new();
    for field in condition.all("DayOfMonthMask") {
        let mask = mask(field, &[31, 62], findings)?;
        if mask.iter().take(31).all(|set| *set) {
            return Some(None);
        }
        let from_first = mask.iter().take(31).zip(1..);
        let from_last = mask.iter().skip(31).zip(1..).map(|(set, day): (_, i64)| (set, -day));
        let set = from_first.chain(from_last).filter(|(set, _)| **set);
        days.extend(set.map(|(_, day)| Toml::Number(day)));
    }
    Some((!days.is_empty()).then_some(Toml::List(days)))
}

/// Reads `hh:mm-hh:mm`; several ranges are separated by commas or on lines of their own.
fn hours(condition: &Object, findings: &mut Findings) -> Option<Option<Toml>> {
    let mut hours = Vec::new();
    for field in condition.all("TimeOfDayRange") {
        for range in field.value.split(',').map(str::trim) {
            let clock = |text: &str| {
                let (hours, minutes) = text.trim().split_once(':')?;
                let hour = hours.parse::<u8>().ok()?;
                let minute = minutes.parse::<u8>().ok()?;
                Some(format!("{hour:02}:{minute:02}"))
            };
            let ends = range.split_once('-');
            let Some([first, end]) = ends.and_then(|(a, b)| Some([clock(a)?, clock(b)?])) else {
                return wrong(field, "write hh:mm-hh:mm, as in 08:00-17:30", findings);
            };
            let shown = format!("{first}-{end}");
            if shown == "00:00-24:00" {
                return Some(None);
            }
            hours.push(shown);
        }
    }
    Some((!hours.is_empty()).then(|| hours.into()))
}

/// From one moment to another.
struct Range {
    from: Toml,
    until: Toml,
}

/// `yyyymmddhhmmss:yyyymmddhhmmss`.
fn range(condition: &Object, findings: &mut Findings) -> Option<Option<Range>> {
    let Some(field) = condition.field("ConditionTimeRange") else { return Some(None) };
    let read = |(from, until): (&str, &str)| {
        Some(Range { from: moment(from.trim())?, until: moment(until.trim())? })
    };
    match field.value.split_once(':').and_then(read) {
        Some(range) => Some(Some(range)),
        None => {
            wrong(field, "write the start and the end as yyyymmddhhmmss:yyyymmddhhmmss", findings)
        }
    }
}

/// `yyyymmddhhmmss` as a policy writes it.
fn moment(digits: &str) -> Option<Toml> {
    if digits.len() != 14 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    let date = [part(0, 4), part(4, 6), part(6, 8)].join("-");
    let time = [part(8, 10), part(10, 12), part(12, 14)].join(":");
    let shown = time.strip_suffix(":00").unwrap_or(&time);
    Some(Toml::Text(format!("{date} {shown}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attls::lex::Document;
    use crate::draft::{Draft, Item};
    use tacit_core::policy::parse;

    /// What a condition becomes, as a policy shows it, or what is wrong with it.
    fn read(condition: &str) -> Result<Option<String>, String> {
        let text = format!(
            "IpTimeCondition t\n{{\n{condition}\n}}\nTTLSRule r\n{{\nIpTimeConditionRef t\n}}\n"
        );
        let mut findings = Findings::default();
        let document = Document::read("f", &text, &mut findings);
        let objects = Objects::read(&document.nodes, &mut findings);
        let rule = objects.find(Kind::Rule, "r").unwrap();
        let Some(when) = when(rule, &objects, &mut findings) else {
            return Err(findings.finish().into_iter().map(|f| f.message).collect());
        };
        let Some(when) = when else { return Ok(None) };
        let mut item = Item::new("[[rule]]", &rule.at);
        item.set("name", "r");
        item.set("direction", "outbound");
        item.set("when", when);
        item.set("permit", true);
        let draft = Draft { rules: vec![item], ..Draft::default() };
        let text = draft.finish(&mut findings);
        let text = text.ok_or_else(|| format!("{:?}", findings.finish()))?;
        let policy = parse(&text).policy.unwrap();
        Ok(Some(policy.rules[0].selectors.when.as_ref().unwrap().to_string()))
    }

    #[test]
    fn conditions_become_windows() {
        let ones = "1".repeat(31);
        let last = format!("1{}{}1{}", "0".repeat(30), "", "0".repeat(30));
        let all =
            format!("DayOfMonthMask {ones}\nDayOfWeekMask 1111111\nTimeOfDayRange 0:00-24:00");
        for (condition, wanted) in [
            ("TimeZone Local", None),
            (all.as_str(), None),
            ("DayOfWeekMask 0111110\nTimeZone UTC", Some("mon-fri 00:00-24:00 UTC")),
            ("MonthOfYearMask 100000000011", Some("mon-sun 00:00-24:00 jan,nov-dec local")),
            (&format!("DayOfMonthMask {last}"), Some("mon-sun 00:00-24:00 day 1,-1 local")),
            (
                "TimeOfDayRange 8:00-12:00, 13:00-17:00\nTimeOfDayRange 22:00-06:00",
                Some("mon-sun 08:00-12:00, 13:00-17:00, 22:00-06:00 local"),
            ),
            (
                "ConditionTimeRange 20250601080000:20251231235959",
                Some("mon-sun 00:00-24:00 from 2025-06-01 08:00 until 2025-12-31 23:59 local"),
            ),
        ] {
            assert_eq!(read(condition), Ok(wanted.map(str::to_owned)), "{condition}");
        }
    }

    #[test]
    fn invalid_conditions_are_reported() {
        for (condition, message) in [
            ("DayOfWeekMask 111111", "`DayOfWeekMask` cannot be `111111`"),
            ("DayOfWeekMask 0000000", "`DayOfWeekMask` cannot be `0000000`"),
            ("MonthOfYearMask 12", "`MonthOfYearMask` cannot be `12`"),
            ("DayOfMonthMask 1", "`DayOfMonthMask` cannot be `1`"),
            ("TimeOfDayRange 8-17", "`TimeOfDayRange` cannot be `8-17`"),
            ("ConditionTimeRange 20250601:20250701", "`ConditionTimeRange` cannot be"),
        ] {
            let reported = read(condition).unwrap_err();
            assert!(reported.starts_with(message), "{reported}");
        }
        let never = read("ConditionTimeRange 20250601080000:20250101000000").unwrap_err();
        assert!(never.contains("never applies"), "{never}");
    }
}
