//! Everything in the table, in an order in which nothing is named before it is declared.

use super::super::batch::{CREATE, TABLE, message};
use super::super::sets::{SetValue, declare_ranges};
use super::HostTable;
use super::elements::{inbound, outbound};
use super::names::{Chain, Hook, INBOUND, MAPS};
use super::rules;
use crate::ip_version::{IpSupport, IpVersion};
use crate::netlink::message::NetlinkRequest;

pub(super) fn all(kernel: IpSupport, table: &HostTable<'_>) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for (number, name) in (1..).zip(MAPS) {
        messages.push(declare_ranges(name, version(name), number, SetValue::Verdict));
    }
    for (number, name) in (5..).zip(INBOUND) {
        messages.push(declare_ranges(name, version(name), number, SetValue::None));
    }
    messages.extend(Chain::ALL.map(chain));
    messages.extend(rules::all(kernel, table));
    messages.extend(outbound(table.outbound));
    messages.extend(inbound(table.inbound));
    messages
}

/// The last letter of a name.
fn version(name: &str) -> IpVersion {
    if name.ends_with('4') { IpVersion::V4 } else { IpVersion::V6 }
}

fn chain(chain: Chain) -> NetlinkRequest {
    let mut message = message("making a chain", NEWCHAIN, CREATE);
    message.text(1, TABLE);
    message.text(3, chain.name());
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

const NEWCHAIN: u16 = 3;
const POLICY_ACCEPT: u32 = 1;
