//! Parses the values of policy keys: durations, sizes, ports, names and paths.

use crate::message_id::MessageId;
use crate::policy::text::{TomlTable, TomlValue};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The largest number of a user or a group. The kernel uses the next number for "no owner".
const OWNER_NUMBER_MAX: u64 = 4_294_967_294;
/// The largest length of the name of a rule, an identity or a trust.
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Parses a time such as `"10s"` or `"1h30m"`, from `min` to `max`.
pub(super) fn duration(value: &TomlValue<'_>, min: Duration, max: Duration) -> Option<Duration> {
    if value.value.is_integer() {
        let message = format!("`{key}` has no unit", key = value.name);
        let fix = "write a number and a unit between quotes, such as \"10s\" or \"1h30m\"";
        value.error(message, fix);
        return None;
    }
    let text = value.string()?;
    let Some(duration) = parse_duration(text) else {
        let message =
            format!("`{key}` cannot be `{text}`: this is not a duration", key = value.name);
        value.error(message, "write \"500ms\", \"10s\", \"5m\", \"1h30m\" or \"2d\"");
        return None;
    };
    if !(min..=max).contains(&duration) {
        let range = format!("{} to {}", show_duration(min), show_duration(max));
        let message = format!("`{key}` is {text}, but must be {range}", key = value.name);
        value.error(message, format!("write a duration in the range {range}"));
        return None;
    }
    Some(duration)
}

/// Parses a number of bytes such as `"1GiB"`, from `min` to `max`.
pub(super) fn size(value: &TomlValue<'_>, min: u64, max: u64) -> Option<u64> {
    let bytes = if value.value.is_integer() {
        value.integer(0, u64::MAX)?
    } else {
        let text = value.string()?;
        let Some(bytes) = parse_size(text) else {
            let message =
                format!("`{key}` cannot be `{text}`: this is not a size", key = value.name);
            let fix = "write a number of bytes, or a size such as \"64KiB\", \"1GiB\" or \"1TiB\"";
            value.error(message, fix);
            return None;
        };
        bytes
    };
    if !(min..=max).contains(&bytes) {
        let range = format!("{} to {}", show_size(min), show_size(max));
        let message = format!("`{key}` is {bytes} bytes, but must be {range}", key = value.name);
        value.error(message, format!("write a size in the range {range}"));
        return None;
    }
    Some(bytes)
}

/// Parses a number from 1 to `max`; `Some(None)` if the key is missing.
pub(super) fn count(table: &TomlTable<'_>, key: &'static str, max: u64) -> Option<Option<usize>> {
    let Some(value) = table.value(key) else { return Some(None) };
    value.integer(1, max).and_then(|number| usize::try_from(number).ok()).map(Some)
}

/// Parses a port as a number, or several ports as `"8000-8999"`.
pub(super) fn ports(value: &TomlValue<'_>) -> Option<RangeInclusive<u16>> {
    if value.value.is_integer() {
        let port = value.integer(1, u64::from(u16::MAX))?;
        let port = u16::try_from(port).ok()?;
        return Some(port..=port);
    }
    let text = value.string()?;
    if let Ok(port @ 1..) = text.parse::<u16>() {
        let message = format!("`{key}`: a single port is a number, not text", key = value.name);
        value.error(message, format!("write {port} without quotes"));
        return None;
    }
    let range = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    match range {
        Some((first, last)) if first > last => {
            let message = format!(
                "`{key}`: the end of the range {text} is lower than its start",
                key = value.name
            );
            value.error(message, format!("write \"{last}-{first}\""));
            None
        }
        Some((first, last)) if first > 0 => Some(first..=last),
        _ => {
            let message =
                format!("`{key}` cannot be `{text}`: this is not a port", key = value.name);
            value
                .error(message, "write a number from 1 to 65535, or a range such as \"8000-8999\"");
            None
        }
    }
}

/// Parses a name that is one word in displays, logs and commands.
pub(super) fn name<'a>(value: &TomlValue<'a>) -> Option<&'a str> {
    let text = value.string()?;
    check_name(value, text).then_some(text)
}

/// Reports a name that is too long or contains characters other than letters, digits, `.`, `_` and
/// `-`.
pub(super) fn check_name(value: &TomlValue<'_>, name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let good = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(plain);
    if !good {
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        let message = format!("`{}` cannot be a name", shown.escape_debug());
        let fix = format!("use 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -");
        value.report.error(MessageId("invalid-name"), &value.at, message, fix);
    }
    good
}

/// Parses the number of a user or a group, without quotes.
pub(super) fn owner_number(value: &TomlValue<'_>) -> Option<String> {
    value.integer(0, OWNER_NUMBER_MAX).map(|number| number.to_string())
}

/// Parses the path of a file, absolute or relative to the policy.
pub(super) fn file(value: &TomlValue<'_>) -> Option<PathBuf> {
    let text = value.string()?;
    if text.starts_with(['~', '$']) {
        let message = format!("`{text}` cannot be a path: tacit does not expand `~` and `$`");
        value.error(message, "write the whole path, such as \"/etc/tacit/web.pem\"");
        return None;
    }
    Some(PathBuf::from(text))
}

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a duration such as `30s` or `1h30m`: numbers with units, larger units first, each at most
/// once.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.as_slice();
    let mut total_ms = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = units.iter().position(|(unit, _)| *unit == &rest[..unit_end])?;
        total_ms = total_ms.checked_add(number.checked_mul(units[unit].1)?)?;
        units = &units[unit + 1..];
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then(|| Duration::from_millis(total_ms))
}

/// Formats a duration with the largest unit that needs no fraction.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let unit = UNITS.iter().find(|(_, unit_ms)| ms.is_multiple_of(u128::from(*unit_ms)));
    let (unit, unit_ms) = unit.unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / u128::from(*unit_ms))
}

const SIZES: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Parses a size such as `64KiB`; `None` if it is invalid or has no unit.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (unit, shift) = SIZES.iter().find(|(unit, _)| text.ends_with(unit))?;
    let digits = text.strip_suffix(unit)?.trim_end();
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = plain.then(|| digits.parse().ok())??;
    number.checked_mul(1 << shift)
}

fn show_size(bytes: u64) -> String {
    let unit = SIZES.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| format!("{bytes}"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |text| parse_duration(text).map(|d| d.as_millis());
        for (text, wanted) in [
            ("10s", Some(10_000)),
            ("1h30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1m500ms", Some(60_500)),
            ("2d", Some(172_800_000)),
            ("0s", Some(0)),
            ("", None),
            ("10", None),
            ("s", None),
            ("30m1h", None),
            ("1h1h", None),
            ("1.5h", None),
            ("-1s", None),
            ("1 h", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
            ("1hé", None),
        ] {
            assert_eq!(ms(text), wanted, "{text}");
        }
        assert_eq!(show_duration(Duration::from_secs(600)), "10m");
        assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn sizes() {
        for (text, wanted) in [
            ("1GiB", Some(1 << 30)),
            ("64 KiB", Some(1 << 16)),
            ("2TiB", Some(2 << 40)),
            ("GiB", None),
            ("1GB", None),
            ("+1GiB", None),
            ("99999999TiB", None),
            ("1,5GiB", None),
        ] {
            assert_eq!(parse_size(text), wanted, "{text}");
        }
        assert_eq!(show_size(1 << 20), "1MiB");
    }
}
