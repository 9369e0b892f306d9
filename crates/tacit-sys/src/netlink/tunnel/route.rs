//! Adds and removes routes in the routing tables for the IPsec tunnels of a run (a program under
//! `tacit run`).

use super::{FlowGroup, FlowRoute, GroupSlot, family, ignore, octets, unbroken};
use crate::ip_version::IpVersion;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest, attributes, read_u32};
use crate::netlink::socket::{Netlink, ReplyCount};

/// The routes of a group to no host, which decide while there is no device.
pub(super) fn guards(group: &FlowGroup, table: u32) -> impl Iterator<Item = NetlinkRequest> {
    let FlowGroup { version, routes, .. } = group;
    routes.iter().map(move |route| {
        let kind = Kind { kind: RTN_UNREACHABLE, scope: 0, metric: METRIC_UNREACHABLE };
        message(ADDING, *version, route, table, kind)
    })
}

/// The routes of a group into the device with this index.
pub(super) fn into_device(
    group: &FlowGroup,
    table: u32,
    device: u32,
) -> impl Iterator<Item = NetlinkRequest> {
    let FlowGroup { version, routes, .. } = group;
    routes.iter().filter_map(move |route| {
        let source = route.source?;
        let scope = if *version == IpVersion::V4 { RT_SCOPE_LINK } else { 0 };
        let kind = Kind { kind: RTN_UNICAST, scope, metric: METRIC };
        let mut message = message(ADDING, *version, route, table, kind);
        message.attribute(RTA_OIF, &device.to_ne_bytes());
        message.attribute(RTA_PREFSRC, &octets(source));
        if let Some(mtu_bytes) = route.mtu_bytes {
            message.nest(RTA_METRICS, |metrics| {
                metrics.attribute(RTAX_MTU, &mtu_bytes.to_ne_bytes());
            });
        }
        Some(message)
    })
}

/// Removes all routes from the tables of a slot.
pub(super) fn remove(
    route: &mut Netlink,
    version: IpVersion,
    slot: GroupSlot,
) -> Result<(), Error> {
    let found = unbroken(|| removals(route, version, slot))?;
    for removal in found {
        // When an agent that ends closes its device, the kernel removes the routes into it.
        ignore(route.run(vec![removal]), libc::ESRCH)?;
    }
    Ok(())
}

fn removals(
    route: &mut Netlink,
    version: IpVersion,
    slot: GroupSlot,
) -> Result<Vec<NetlinkRequest>, Error> {
    let mut found = Vec::new();
    let mut header = [0; HEADER_BYTES];
    header[0] = family(version);
    let question = NetlinkRequest::new("listing the routes", RTM_GETROUTE, NLM_F_DUMP);
    route.ask(question.fixed(&header), ReplyCount::ManyUnbroken, |answer| {
        found.extend(removal(answer, slot));
        Ok(())
    })?;
    Ok(found)
}

/// The message that removes a route which the kernel has listed; `None`: it is in another table.
fn removal(answer: &[u8], slot: GroupSlot) -> Option<NetlinkRequest> {
    let header = answer.first_chunk::<HEADER_BYTES>()?;
    let of_kind = |wanted: u16| {
        let all = answer.get(HEADER_BYTES..).unwrap_or_default();
        attributes(all).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    };
    let table = read_u32(of_kind(RTA_TABLE)?, 0)?;
    if !slot.tables().contains(&table) {
        return None;
    }
    let [family, bits, _, _, _, protocol, scope, kind, ..] = *header;
    let mut message = NetlinkRequest::new(REMOVING.step, REMOVING.kind, REMOVING.flags);
    message = message.fixed(&[family, bits, 0, 0, 0, protocol, scope, kind, 0, 0, 0, 0]);
    for attribute in [RTA_DST, RTA_PRIORITY] {
        if let Some(value) = of_kind(attribute) {
            message.attribute(attribute, value);
        }
    }
    message.attribute(RTA_TABLE, &table.to_ne_bytes());
    Some(message)
}

/// The type of a route, with its scope and metric.
struct Kind {
    kind: u8,
    scope: u8,
    metric: u32,
}

struct Change {
    step: &'static str,
    kind: u16,
    flags: u16,
}

fn message(
    change: Change,
    version: IpVersion,
    route: &FlowRoute,
    table: u32,
    kind: Kind,
) -> NetlinkRequest {
    let Kind { kind, scope, metric } = kind;
    let mut message = NetlinkRequest::new(change.step, change.kind, change.flags);
    let bits = route.prefix_bits;
    // rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
    message =
        message.fixed(&[family(version), bits, 0, 0, 0, RTPROT_STATIC, scope, kind, 0, 0, 0, 0]);
    if bits > 0 {
        message.attribute(RTA_DST, &octets(route.address));
    }
    message.attribute(RTA_PRIORITY, &metric.to_ne_bytes());
    message.attribute(RTA_TABLE, &table.to_ne_bytes());
    message
}

/// The entry is created, or replaces that with the same metric.
const ADDING: Change = Change {
    step: "adding a route of a tunnel",
    kind: RTM_NEWROUTE,
    flags: NLM_F_ACK | 0x400 | 0x100,
};
const REMOVING: Change =
    Change { step: "removing a route of a tunnel", kind: RTM_DELROUTE, flags: NLM_F_ACK };
const METRIC: u32 = 100;
const METRIC_UNREACHABLE: u32 = 1000;
const HEADER_BYTES: usize = 12;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const NLM_F_DUMP: u16 = 0x300;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTA_TABLE: u16 = 15;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_UNREACHABLE: u8 = 7;
const RT_SCOPE_LINK: u8 = 253;
