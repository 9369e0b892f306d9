//! Parses the values of AT-TLS attributes that are addresses or ports.

use std::net::{IpAddr, Ipv4Addr};

use super::lex::Node;
use crate::finding::Findings;
use tacit_core::policy::selector::AddressSelector;

/// Checks an address, range or network and returns its normal form; `None` after an error.
pub(super) fn address_word(word: &str, node: &Node, findings: &mut Findings) -> Option<String> {
    let text = node.value.as_str();
    if let Some(all) = ALL.iter().find(|all| all.eq_ignore_ascii_case(text)) {
        return Some((*all).to_owned());
    }
    // AT-TLS reads a number as an IPv4 address, which is rarely what the author meant.
    if let Ok(number) = text.parse::<u32>() {
        let address = Ipv4Addr::from_bits(number);
        let message =
            format!("`{word} {text}` is a number, which the import reads as the address {address}");
        findings.changed(
            &node.at,
            message,
            "write the address with dots. If the number is a port, use an attribute for ports, \
             such as RemotePortRange",
        );
        return Some(address.to_string());
    }
    let Some(selector) = selector(text) else {
        let fix = "write an address, a network such as 10.0.0.0/8, a range such as \
                   10.0.0.1-10.0.0.9, or All";
        findings.error(
            &node.at,
            format!("`{word}` cannot be `{text}`: the value is not an address, network or range"),
            fix,
        );
        return None;
    };
    let shown = selector.to_string();
    if text.contains('/') && !shown.eq_ignore_ascii_case(text) && shown.contains('/') {
        findings.info(&node.at, format!("the import reads `{text}` as the network {shown}"));
    }
    Some(shown)
}

const ALL: [&str; 3] = ["All", "All4", "All6"];

fn selector(text: &str) -> Option<AddressSelector> {
    let whole = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    if let Some((network, length)) = text.split_once('/') {
        let ip: IpAddr = network.trim().parse().ok()?;
        let bits: u8 = length.trim().parse().ok().filter(|bits| *bits <= whole(ip))?;
        return Some(AddressSelector::network(ip, bits));
    }
    if let Some((from, to)) = text.split_once('-') {
        let first: IpAddr = from.trim().parse().ok()?;
        let last: IpAddr = to.trim().parse().ok()?;
        let is_range = first.is_ipv4() == last.is_ipv4() && first <= last;
        return is_range.then_some(AddressSelector::Range { first, last });
    }
    let network: IpAddr = text.parse().ok()?;
    Some(AddressSelector::Prefix { network, length: whole(network) })
}

/// Checks a port or range and returns its normal form; `None` after an error.
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
            let fix = "write a port from 1 to 65535, a range such as 1024-2047, or 0 for any port";
            findings.error(
                &node.at,
                format!("`{word}` cannot be `{text}`: the value is not a port or range of ports"),
                fix,
            );
            None
        }
    }
}
