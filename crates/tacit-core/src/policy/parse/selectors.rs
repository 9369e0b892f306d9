//! Parses the selectors that all kinds of rules share.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::value;
use crate::policy::selector::AddressSelector;
use crate::policy::text::{TomlTable, TomlValue};

pub(super) type ReadAddress = fn(&TomlValue<'_>) -> Option<AddressSelector>;

pub(super) fn addresses(
    table: &TomlTable<'_>,
    key: &'static str,
    read: ReadAddress,
) -> Option<Vec<AddressSelector>> {
    table.value(key).map_or(Some(Vec::new()), |value| value.each(read))
}

pub(super) fn ports(table: &TomlTable<'_>, key: &'static str) -> Option<Vec<RangeInclusive<u16>>> {
    table.value(key).map_or(Some(Vec::new()), |value| value.each(value::ports))
}

pub(super) fn programs(table: &TomlTable<'_>) -> Option<Vec<PathBuf>> {
    let read = |value: &TomlValue<'_>| {
        let path = value.string()?;
        if !path.starts_with('/') {
            let message = format!("`program` cannot be `{path}`: this is not an absolute path");
            value.error(message, format!("write the absolute path, such as \"/usr/bin/{path}\""));
            return None;
        }
        Some(PathBuf::from(path))
    };
    table.value("program").map_or(Some(Vec::new()), |value| value.each(read))
}

pub(super) fn runs(table: &TomlTable<'_>) -> Option<Vec<String>> {
    let read = |value: &TomlValue<'_>| value::name(value).map(str::to_owned);
    table.value("run").map_or(Some(Vec::new()), |value| value.each(read))
}

pub(super) fn users(table: &TomlTable<'_>) -> Option<Vec<String>> {
    let read = |value: &TomlValue<'_>| value::name(value).map(str::to_owned);
    table.value("user").map_or(Some(Vec::new()), |value| value.each(read))
}
