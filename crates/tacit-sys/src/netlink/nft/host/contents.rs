//! Builds the messages that create the nftables table for `tacit agent --host`: its maps, sets,
//! chains and rules. Each map, set or chain is created before other parts of the table refer to it.

use super::super::host_expression::{SectionMap, section_chain};
use super::super::install::regular_chain;
use super::super::sets::{SetValue, declare_ranges};
use super::elements::{self, inbound, outbound};
use super::names::{Chain, Hook, INBOUND, MAPS, Openers};
use super::{HostTable, Layout, Stage};
use super::{counted, filters, flows, input, named, rules, untracked};
use crate::ip_version::{IpSupport, IpVersion};
use crate::netlink::message::NetlinkRequest;

pub(super) fn all(kernel: IpSupport, table: &HostTable<'_>, layout: Layout) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    let mut number = 1..;
    let mut declare = |name: &str, version, value| {
        messages.push(declare_ranges(name, version, number.next().unwrap_or_default(), value));
    };
    for section in 0..table.sections.len() {
        for base in MAPS {
            declare(&SectionMap { base, section }.name(), version(base), SetValue::Verdict);
        }
    }
    for map in counted::maps(table) {
        declare(&map.counters(), version(map.base), SetValue::Counter);
    }
    for name in INBOUND {
        declare(name, version(name), SetValue::None);
    }
    if table.names.is_some() {
        messages.extend(named::declarations());
    }
    messages.extend(flows::declarations());
    messages.extend(table.filters.iter().flat_map(filters::declarations));
    let needed = |chain: &Chain| {
        if *chain == Chain::Input {
            return input::is_needed(table);
        }
        if chain.is_for_filters() {
            return filters::needs(table, *chain);
        }
        let has_flows = match layout.openers {
            Openers::InSets => untracked::needs(*chain),
            Openers::Tracked => untracked::is_needed_with_tracking(*chain),
        };
        let is_for_flows = !table.forwarded.is_empty() || !chain.is_for_containers();
        let is_in_time = *chain != Chain::Strays || layout.stage == Stage::Replacing;
        has_flows && is_for_flows && is_in_time
    };
    messages.extend(filters::chains(table).iter().map(|name| regular_chain(name)));
    messages.extend(Chain::ALL.into_iter().filter(needed).map(chain));
    messages.extend(rules::chained(table).map(|section| regular_chain(&section_chain(section))));
    messages.extend(rules::all(kernel, table, layout));
    for (number, section) in table.sections.iter().enumerate() {
        messages.extend(outbound(number, section.outbound));
    }
    for map in counted::maps(table) {
        let counted = table.sections.get(map.section).into_iter();
        let elements: Vec<_> = counted.flat_map(|section| section.counted_in(map.base)).collect();
        messages.extend(elements::counted(map, &elements));
    }
    messages.extend(inbound(table.inbound));
    messages.extend(table.names.iter().flat_map(named::contents));
    messages.extend(table.filters.iter().flat_map(filters::contents));
    messages
}

/// By the last letter of a name.
fn version(name: &str) -> IpVersion {
    if name.ends_with('4') { IpVersion::V4 } else { IpVersion::V6 }
}

fn chain(chain: Chain) -> NetlinkRequest {
    let mut message = regular_chain(chain.name());
    if let Some(Hook { kind, number, priority }) = chain.hook() {
        message.nest(4, |place| {
            place.be32(1, number);
            place.be32(2, priority.cast_unsigned());
        });
        message.be32(5, POLICY_ACCEPT);
        message.text(7, kind);
    }
    message
}

const POLICY_ACCEPT: u32 = 1;
