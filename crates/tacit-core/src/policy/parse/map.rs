//! Parses the entries of one identity map (the tables `[[map.NAME]]`). An identity map assigns
//! names to clients, based on their certificates.

use super::address;
use super::value;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::map::IdentityMap;
use crate::policy::map::distinguished::{ATTRIBUTES_MAX, DnFault, DnPattern, TYPES};
use crate::policy::map::pattern::Pattern;
use crate::policy::map::{
    CONDITIONS, Conditions, Conflict, ENTRIES_MAX, MapEntry, MapOutcome, fold_email,
};
use crate::policy::selector::AddressSelector;
use crate::policy::text::{TomlTable, TomlValue, nearest_word, word_list};

/// Reads all entries of a map; `None` after an error was reported.
pub(super) fn read(name: &str, value: &TomlValue<'_>) -> Option<IdentityMap> {
    if !value.value.is_array() {
        value.report.error(
            MessageId("wrong-type"),
            &value.at,
            format!("[map.{name}] is not a list of entries"),
            format!("begin each entry with [[map.{name}]]"),
        );
        return None;
    }
    let items = value.list(ENTRIES_MAX)?;
    let entries: Vec<_> = items.iter().map(|item| entry(name, item)).collect();
    let map = IdentityMap::new(entries.into_iter().collect::<Option<_>>()?);
    let conflicts = map.conflicts();
    for Conflict { earlier, later } in &conflicts {
        let line = value.report.line(earlier.position, later.position);
        let message = format!(
            "this entry and the entry in line {line} are equally specific, can match the same \
             certificate, and have different results"
        );
        let fix = "add a condition to one of the two entries of the identity map";
        value.report.error_at(MessageId("ambiguous-entries"), later.position, message, fix);
    }
    let sound = conflicts.is_empty();
    sound.then_some(map)
}

fn entry(name: &str, value: &TomlValue<'_>) -> Option<MapEntry> {
    let table = value.table(Scope::MapEntry, format!("[[map.{name}]]"))?;
    let outcome = outcome(&table);
    let conditions = conditions(&table);
    if !CONDITIONS.iter().any(|condition| table.holds(condition)) {
        let fix = "add a condition, such as subject = \"*\", which every certificate meets";
        table.incomplete(format!("{} has no condition", table.title), fix);
        return None;
    }
    let position = table.report.position(table.at.start);
    Some(MapEntry { conditions: conditions?, outcome: outcome?, position })
}

fn outcome(table: &TomlTable<'_>) -> Option<MapOutcome> {
    let warn = table.boolean("warn", false);
    let outcome = match (table.value("name"), table.value("deny")) {
        (Some(name), None) => person(&name).map(MapOutcome::Name),
        (None, Some(deny)) => {
            if deny.boolean()? {
                Some(if warn? { MapOutcome::Warn } else { MapOutcome::Deny })
            } else {
                deny.error("`deny = false` has no effect", "set name = \"alice\", or deny = true");
                None
            }
        }
        (Some(_), Some(deny)) => {
            let message = format!("{entry} has both `name` and `deny`", entry = table.title);
            table.report.error(
                MessageId("conflicting-keys"),
                &deny.name_at,
                message,
                "remove `name` or `deny`; or write two entries, one with each key",
            );
            None
        }
        (None, None) => {
            let fix = "set name = \"alice\", or deny = true";
            let message = format!("{entry} has neither `name` nor `deny`", entry = table.title);
            table.incomplete(message, fix);
            None
        }
    };
    if let (Some(MapOutcome::Name(_)), Some(warn)) = (&outcome, table.value("warn")) {
        let fix = "remove `warn`, which is only for entries with `deny = true`";
        table.report.error(
            MessageId("conflicting-keys"),
            &warn.name_at,
            "`warn` has no effect in an entry with `name`",
            fix,
        );
        return None;
    }
    if outcome == Some(MapOutcome::Warn) {
        let position = table.report.position(table.at.start);
        let fix = "remove `warn` when the log contains only clients that you want to deny";
        table.report.warning(
            MessageId("only-warns"),
            position,
            "because of `warn`, tacit logs the clients that match this entry, but does not deny \
             them",
            fix,
        );
    }
    outcome
}

/// Parses a client's name: one word in displays and logs, with the characters of user IDs.
fn person(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '`');
    if text.len() > value::NAME_BYTES_MAX || !text.chars().all(plain) {
        let max = value::NAME_BYTES_MAX;
        let fix = format!("use 1 to {max} printable ASCII characters without spaces and quotes");
        value.error(format!("`{text}` is not a valid name for a client"), fix);
        return None;
    }
    Some(text.to_owned())
}

fn conditions(table: &TomlTable<'_>) -> Option<Conditions> {
    let same: fn(&str) -> String = str::to_owned;
    let lower: fn(&str) -> String = str::to_ascii_lowercase;
    let uri = optional(table, "uri", |value| pattern(value, same));
    let dns = optional(table, "dns", |value| pattern(value, lower));
    let email = optional(table, "email", |value| pattern(value, fold_email));
    let ip = optional(table, "ip", network);
    let subject = optional(table, "subject", distinguished);
    let issuer = optional(table, "issuer", distinguished);
    let address = optional(table, "address", network);
    Some(Conditions {
        uri: uri?,
        dns: dns?,
        email: email?,
        ip: ip?,
        subject: subject?,
        issuer: issuer?,
        address: address?,
    })
}

/// Returns the value of an optional key; `None` only after an error.
fn optional<'a, T>(
    table: &TomlTable<'a>,
    key: &'static str,
    read: impl Fn(&TomlValue<'a>) -> Option<T>,
) -> Option<Option<T>> {
    table.value(key).map_or(Some(None), |value| read(&value).map(Some))
}

fn pattern(value: &TomlValue<'_>, fold: fn(&str) -> String) -> Option<Pattern> {
    let text = value.string()?;
    let pattern = Pattern::parse(&fold(text));
    if pattern.is_none() {
        open_escape(value);
    }
    pattern
}

fn open_escape(value: &TomlValue<'_>) {
    let message = format!(
        "`{key}` ends with a single backslash, which begins an escape sequence",
        key = value.name
    );
    value.error(
        message,
        "write two backslashes in single quotes ('\\\\'), or four in double quotes (\"\\\\\\\\\")",
    );
}

/// Parses one address or network.
fn network(value: &TomlValue<'_>) -> Option<AddressSelector> {
    let selector = address::selector(value)?;
    if !matches!(selector, AddressSelector::Prefix { .. }) {
        let fix = "write an address \"10.1.2.3\" or a network \"10.1.0.0/16\"";
        value.error(format!("`{key}` is neither an address nor a network", key = value.name), fix);
        return None;
    }
    Some(selector)
}

fn distinguished(value: &TomlValue<'_>) -> Option<DnPattern> {
    DnPattern::parse(value.string()?).map_err(|fault| report_dn(value, fault)).ok()
}

/// Reports the fault of a distinguished name, or of a pattern for such names.
pub(super) fn report_dn(value: &TomlValue<'_>, fault: DnFault) {
    let form = "write attributes with commas between them: \"CN=alice, O=Corp\"";
    match fault {
        DnFault::NoEquals(part) => {
            let message =
                format!("`{part}` in `{key}` is not of the form TYPE=VALUE", key = value.name);
            value.error(message, form);
        }
        DnFault::NoValue(kind) => {
            let fix = match value.name {
                "subject" | "issuer" => format!("write {kind}=* to accept any value"),
                _ => format!("write the value after {kind}="),
            };
            value.error(format!("`{kind}` in `{key}` has no value", key = value.name), fix);
        }
        DnFault::UnknownType(kind) => {
            let names = TYPES.iter().filter_map(|(_, names)| names.first().copied());
            let known: Vec<&str> = names.collect();
            let fix = match nearest_word(&kind, &known) {
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => format!("write one of {}, or an OID such as 2.5.4.3", word_list(&known)),
            };
            let message =
                format!("`{kind}` in `{key}` is not a known attribute type", key = value.name);
            value.error(message, fix);
        }
        DnFault::OpenEscape => open_escape(value),
        DnFault::TooMany => {
            let message =
                format!("`{key}` has more than {ATTRIBUTES_MAX} attributes", key = value.name);
            value.error(message, "remove the attributes that are not needed");
        }
    }
}
