//! Collects the local and remote addresses and ports of an AT-TLS rule.

use std::ops::RangeInclusive;

use super::objects::{Object, Objects};
use super::words::{Form, Kind};

/// One end of the flows of a rule; an empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct End {
    /// Addresses, networks and ranges, as a tacit policy writes them.
    pub addresses: Vec<String>,
    /// Ports.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl End {
    /// The conditions of a rule for its `Local` or `Remote` end.
    pub(super) fn of(rule: &Object, side: &str, objects: &Objects) -> Self {
        let mut values = Vec::new();
        let fields = |words: &[&str]| {
            let whole: Vec<String> = words.iter().map(|word| format!("{side}{word}")).collect();
            rule.counted().filter(move |field| whole.iter().any(|w| w == field.attribute.word))
        };
        for field in fields(&["Addr", "AddrRef", "AddrSetRef", "AddrGroupRef"]) {
            match field.attribute.form {
                Form::Ref(kind) => leaves(objects.find(kind, &field.value), objects, &mut values),
                _ => values.push(field.value.as_str()),
            }
        }
        let named = whole(&values, &["All"]).into_iter();
        let addresses = named.map(|value| match value {
            "All4" => "0.0.0.0/0".to_owned(),
            "All6" => "::/0".to_owned(),
            other => other.to_owned(),
        });
        let mut values = Vec::new();
        for field in fields(&["PortRange", "PortRangeRef", "PortGroupRef"]) {
            match field.attribute.form {
                Form::Ref(kind) => leaves(objects.find(kind, &field.value), objects, &mut values),
                _ => values.push(field.value.as_str()),
            }
        }
        let ports = whole(&values, &["0"]).into_iter().filter_map(port_range);
        Self { addresses: addresses.collect(), ports: ports.collect() }
    }
}

/// The distinct values; none if one of them matches everything.
fn whole<'v>(values: &[&'v str], any: &[&str]) -> Vec<&'v str> {
    let mut distinct: Vec<&str> = Vec::new();
    for value in values {
        if any.contains(value) {
            return Vec::new();
        }
        if !distinct.contains(value) {
            distinct.push(value);
        }
    }
    distinct
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// The addresses or ports of an object, through blocks and references. This ends because groups do
/// not contain groups.
///
/// Groups hold no groups, so that this ends.
fn leaves<'o>(object: Option<&'o Object>, objects: &'o Objects, into: &mut Vec<&'o str>) {
    let Some(object) = object else { return };
    for field in object.counted() {
        match field.attribute.form {
            Form::Block(_) => leaves(field.block.as_ref(), objects, into),
            Form::Ref(kind @ (Kind::IpAddr | Kind::IpAddrSet | Kind::PortRange)) => {
                leaves(objects.find(kind, &field.value), objects, into);
            }
            _ => into.push(&field.value),
        }
    }
}

/// Ports as a tacit policy writes them.
#[must_use]
pub(super) fn show_ports(ports: &RangeInclusive<u16>) -> String {
    let first = ports.start();
    let last = ports.end();
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
