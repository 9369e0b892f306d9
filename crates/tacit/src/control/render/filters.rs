//! Formats the output of `tacit show filters` as a text table.

use super::Table;
use super::table::{Column, list, optional, table};
use super::width::TextWidth;
use crate::control::display::filters::{FilterDisplay, FiltersDisplay};

impl Table for FiltersDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<FilterDisplay>; 9] = [
            ("RULE", |one| one.name.clone()),
            ("ACTION", |one| match one.discard.as_deref() {
                None | Some("silent") => one.action.clone(),
                Some(discard) => format!("{}:{discard}", one.action),
            }),
            ("DIRECTION", |one| match one.routing.as_str() {
                "local" => one.direction.clone(),
                routing => format!("{},{routing}", one.direction),
            }),
            ("PROTOCOL", protocol),
            ("LOCAL", |one| end(&one.local, &one.local_ports)),
            ("REMOTE", |one| end(&one.remote, &one.remote_ports)),
            ("INTERFACE", interface),
            ("APPLIES", applies),
            ("PACKETS", |one| one.packets.to_string()),
        ];
        let Self { elements, lookups, generation, .. } = self;
        let end = format!(
            "({elements} elements of nftables sets, at most {lookups} lookups for a packet; policy \
             generation {generation})\n"
        );
        let narrowing = width.without(&["INTERFACE", "DIRECTION", "LOCAL"]);
        table(&self.filters, &COLUMNS, narrowing) + &width.prose(&end)
    }
}

/// The protocols with types and codes, or what the rule is for in addition.
fn protocol(one: &FilterDisplay) -> String {
    let mut words = one.protocol.clone();
    words.extend(one.icmp_type.iter().map(|number| format!("type{number}")));
    words.extend(one.icmp_code.iter().map(|number| format!("code{number}")));
    words.extend(one.opened_by.iter().map(|end| format!("opened-by-{end}")));
    words.extend(one.fragments.then(|| "fragments".to_owned()));
    list(&words)
}

/// The interfaces, or the tunnels.
fn interface(one: &FilterDisplay) -> String {
    let tunnels = one.tunnel.iter().map(|ike| format!("tunnel:{ike}"));
    list(&one.interface.iter().cloned().chain(tunnels).collect::<Vec<_>>())
}

/// The addresses and ports of an end.
fn end(addresses: &[String], ports: &[String]) -> String {
    match (addresses, ports) {
        ([], []) => list::<String>(&[]),
        (addresses, []) => addresses.join(","),
        ([], ports) => format!("*:{}", ports.join(",")),
        (addresses, ports) => format!("{}:{}", addresses.join(","), ports.join(",")),
    }
}

fn applies(one: &FilterDisplay) -> String {
    let now = if one.applies { "yes" } else { "no" };
    match one.until {
        Some(until) => format!("{now},until {}", optional(Some(until))),
        None => now.to_owned(),
    }
}
