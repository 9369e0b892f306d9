//! Addresses and ports of rules.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use super::lex::Node;
use super::objects::{Object, Objects};
use super::words::{Form, Kind};
use crate::Findings;
use tacit_core::policy::selector::AddressSelector;

/// Checks an address, range or network and writes it in the one way; `None` after an error.
pub(super) fn address_word(word: &str, node: &Node, findings: &mut Findings) -> Option<String> {
    let text = node.value.as_str();
    if let Some(all) = ALL.iter().find(|all| all.eq_ignore_ascii_case(text)) {
        return Some((*all).to_owned());
    }
    // What the originals read as an address of four bytes, and nobody meant.
    if let Ok(number) = text.parse::<u32>() {
        let address = Ipv4Addr::from_bits(number);
        let message = format!("`{word} {text}` is a number, and means the address {address}");
        findings.changed(&node.at, message, "write the address; a port stands in a port range");
        return Some(address.to_string());
    }
    let Some(selector) = selector(text) else {
        let fix = "write an address, a network as 10.0.0.0/8, a range as 10.0.0.1-10.0.0.9, or All";
        findings.error(&node.at, format!("`{word}` cannot be `{text}`: no address"), fix);
        return None;
    };
    let shown = selector.to_string();
    if text.contains('/') && !shown.eq_ignore_ascii_case(text) && shown.contains('/') {
        findings.info(&node.at, format!("`{text}` is the network {shown}"));
    }
    Some(shown)
}

const ALL: [&str; 3] = ["All", "All4", "All6"];

fn selector(text: &str) -> Option<AddressSelector> {
    let whole = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    if let Some((network, length)) = text.split_once('/') {
        let network: IpAddr = network.trim().parse().ok()?;
        let length: u8 = length.trim().parse().ok().filter(|length| *length <= whole(network))?;
        return Some(AddressSelector::network(network, length));
    }
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let same: fn(&IpAddr, &IpAddr) -> bool = |a, b| a.is_ipv4() == b.is_ipv4() && a <= b;
        return same(&first, &last).then_some(AddressSelector::Range { first, last });
    }
    let network: IpAddr = text.parse().ok()?;
    Some(AddressSelector::Prefix { network, length: whole(network) })
}

/// Checks a port or range and writes it in the one way; `None` after an error.
pub(super) fn ports_word(word: &str, node: &Node, findings: &mut Findings) -> Option<String> {
    let text = node.value.as_str();
    let ends = text.split_once('-').or_else(|| text.split_once(char::is_whitespace));
    let (first, last) = ends.unwrap_or((text, text));
    let ends = first.trim().parse::<u16>().ok().zip(last.trim().parse::<u16>().ok());
    match ends {
        Some((first, last)) if first <= last && (first > 0 || last == 0) => {
            Some(if first == last { first.to_string() } else { format!("{first}-{last}") })
        }
        _ => {
            let fix = "write a port from 1 to 65535, a range as 1024-2047, or 0 for any";
            findings.error(&node.at, format!("`{word}` cannot be `{text}`: no port"), fix);
            None
        }
    }
}

/// One end of the flows of a rule; empty lists are no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Addresses, networks and ranges as our policies write them.
    pub addresses: Vec<String>,
    /// Ports.
    pub ports: Vec<RangeInclusive<u16>>,
}

impl End {
    /// What a rule says of its `Local` or `Remote` end.
    pub(super) fn of(rule: &Object, side: &str, objects: &Objects) -> Self {
        let mut values = Vec::new();
        let addresses = ["Addr", "AddrRef", "AddrSetRef", "AddrGroupRef"];
        let fields = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| format!("{side}{word}")).collect();
            rule.counted().filter(move |field| words.iter().any(|w| w == field.attribute.word))
        };
        for field in fields(&addresses) {
            match field.attribute.form {
                Form::Ref(kind) => leaves(objects.find(kind, &field.value), objects, &mut values),
                _ => values.push(field.value.as_str()),
            }
        }
        let addresses = whole(&values, &["All"]);
        let addresses = addresses.into_iter().map(|value| match value {
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

/// The values, each once; none if one of them is any at all.
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

/// The addresses or ports that an object holds, through blocks and references.
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

/// The addresses that a named object holds, as [`End::addresses`].
#[must_use]
pub fn addresses(object: &Object, objects: &Objects) -> Vec<String> {
    let mut values = Vec::new();
    leaves(Some(object), objects, &mut values);
    whole(&values, &["All"]).into_iter().map(str::to_owned).collect()
}

/// Ports as our policies write them.
#[must_use]
pub fn show_ports(ports: &RangeInclusive<u16>) -> String {
    let (first, last) = (ports.start(), ports.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}
