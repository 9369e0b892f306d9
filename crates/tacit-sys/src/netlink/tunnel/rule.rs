//! Adds, finds and removes the routing rules for the IPsec tunnels of a run (a program under `tacit
//! run`).

use std::net::IpAddr;

use super::{FlowGroup, GROUPS_MAX, GroupSlot, family, ignore, octets, unbroken};
use crate::ip_version::IpVersion;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest, attributes, read_u32};
use crate::netlink::nft::SocketMarks;
use crate::netlink::socket::{Netlink, ReplyCount};

/// The priorities of the rules that are in use for groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Present {
    priorities: Vec<u32>,
}

impl Present {
    pub(super) fn is_empty(&self) -> bool {
        self.priorities.is_empty()
    }

    /// The slot without rules. If a change was interrupted, both have rules, and the rules of the
    /// first slot decide.
    pub(super) fn free_slot(&self) -> GroupSlot {
        let of_first = GroupSlot::First.priority(0)..=GroupSlot::First.priority(GROUPS_MAX - 1);
        let has_first = self.priorities.iter().any(|priority| of_first.contains(priority));
        if has_first { GroupSlot::Second } else { GroupSlot::First }
    }
}

/// Finds the rules of groups.
pub(super) fn of_groups(route: &mut Netlink, version: IpVersion) -> Result<Present, Error> {
    unbroken(|| list_groups(route, version))
}

fn list_groups(route: &mut Netlink, version: IpVersion) -> Result<Present, Error> {
    let mut present = Present::default();
    let groups = GroupSlot::First.priority(0)..=GroupSlot::Second.priority(GROUPS_MAX - 1);
    let question = NetlinkRequest::new("listing the routing rules", GETRULE, NLM_F_DUMP);
    route.ask(question.fixed(&header(version, 0)), ReplyCount::ManyUnbroken, |answer| {
        let all = answer.get(HEADER_BYTES..).unwrap_or_default();
        let priority = attributes(all).find(|(kind, _)| *kind == FRA_PRIORITY);
        let priority = priority.and_then(|(_, value)| read_u32(value, 0)).unwrap_or(0);
        if groups.contains(&priority) {
            present.priorities.push(priority);
        }
        Ok(())
    })?;
    Ok(present)
}

/// Whether the kernel refused to list rules because it lacks the IP version.
pub(super) fn lacks_version(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

/// Moves the table `local` behind the rules of groups, except for own addresses and the
/// agent's packets. Repeated calls change nothing.
pub(super) fn prepare(route: &mut Netlink, version: IpVersion) -> Result<(), Error> {
    let mut own = local(version, OWN_PRIORITY, NEW);
    // The routes for all addresses have the shortest prefixes of the table.
    let bits: u32 = match version {
        IpVersion::V4 => 0,
        IpVersion::V6 => 7,
    };
    own.attribute(FRA_SUPPRESS_PREFIXLEN, &bits.to_ne_bytes());
    let SocketMarks { agent, release } = SocketMarks::OF_RUNS;
    let of_mark = |mark: u32, priority: u32| {
        let mut rule = local(version, priority, NEW);
        rule.attribute(FRA_FWMARK, &mark.to_ne_bytes());
        rule
    };
    let rules = [
        own,
        of_mark(agent, AGENT_PRIORITY),
        of_mark(release, RELEASE_PRIORITY),
        local(version, LAST_PRIORITY, NEW),
    ];
    for rule in rules {
        ignore(route.run(vec![rule]), libc::EEXIST)?;
    }
    ignore(route.run(vec![local(version, 0, DELETE)]), libc::ENOENT)
}

/// Leads the look-ups of ICMPv6 errors that are about packets from these addresses to no route, and
/// no other packets. The kernel would note the MTU of the error at the route for all addresses of
/// the table `local`, as a route with a full prefix, which the rule for own addresses would take.
pub(super) fn shield(route: &mut Netlink, addresses: &[IpAddr]) -> Result<(), Error> {
    let wanted: Vec<_> = addresses.iter().copied().filter(IpAddr::is_ipv6).collect();
    let present = unbroken(|| list_shielded(route))?;
    // Such a look-up has no protocol.
    for (protocol, priority) in TRANSPORTS.into_iter().zip(TRANSPORT_PRIORITY..) {
        let mut rule = local(IpVersion::V6, priority, NEW);
        rule.attribute(FRA_IP_PROTO, &[protocol]);
        ignore(route.run(vec![rule]), libc::EEXIST)?;
    }
    for address in &wanted {
        ignore(route.run(vec![shielding(*address, NEW)]), libc::EEXIST)?;
    }
    for address in present.into_iter().filter(|one| !wanted.contains(one)) {
        ignore(route.run(vec![shielding(address, DELETE)]), libc::ENOENT)?;
    }
    Ok(())
}

fn shielding(address: IpAddr, change: Change) -> NetlinkRequest {
    let mut fields = header(IpVersion::V6, ACTION_UNREACHABLE);
    fields[SOURCE_BITS_AT] = 128;
    let mut message = NetlinkRequest::new(change.step, change.kind, change.flags).fixed(&fields);
    message.attribute(FRA_PRIORITY, &SHIELD_PRIORITY.to_ne_bytes());
    message.attribute(FRA_SRC, &octets(address));
    message
}

fn list_shielded(route: &mut Netlink) -> Result<Vec<IpAddr>, Error> {
    let mut found = Vec::new();
    let question = NetlinkRequest::new("listing the routing rules", GETRULE, NLM_F_DUMP);
    route.ask(question.fixed(&header(IpVersion::V6, 0)), ReplyCount::ManyUnbroken, |answer| {
        let all = answer.get(HEADER_BYTES..).unwrap_or_default();
        let of_kind =
            |wanted| attributes(all).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        if of_kind(FRA_PRIORITY).and_then(|value| read_u32(value, 0)) == Some(SHIELD_PRIORITY) {
            let source = of_kind(FRA_SRC).and_then(|value| value.first_chunk::<16>());
            found.extend(source.map(|octets| IpAddr::from(*octets)));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Leads the flows of a group to a table. The kernel accepts no range with the port 65535, so flows
/// with that port reach no host; `None`: the group has no others.
pub(super) fn of_group(
    group: &FlowGroup,
    slot: GroupSlot,
    number: usize,
) -> Option<NetlinkRequest> {
    let FlowGroup { version, protocol, local_ports, remote_ports, .. } = group;
    let mut message = rule(*version, slot.priority(number), slot.table(number), NEW);
    message.attribute(FRA_IP_PROTO, &[*protocol]);
    for (kind, ports) in [(FRA_SPORT_RANGE, local_ports), (FRA_DPORT_RANGE, remote_ports)] {
        if let Some(ports) = ports {
            let first = *ports.start();
            let last = (*ports.end()).min(PORT_MAX);
            if first > last {
                return None;
            }
            let [a, b] = first.to_ne_bytes();
            let [c, d] = last.to_ne_bytes();
            message.attribute(kind, &[a, b, c, d]);
        }
    }
    Some(message)
}

/// Removes the rules of all groups in a slot, the last one first: a rule must not take the packets
/// of one before it.
pub(super) fn remove(
    route: &mut Netlink,
    version: IpVersion,
    slot: GroupSlot,
) -> Result<(), Error> {
    let at = slot.priority(0)..=slot.priority(GROUPS_MAX - 1);
    let mut present = of_groups(route, version)?;
    present.priorities.sort_unstable();
    let of_slot = present.priorities.into_iter().rev().filter(|priority| at.contains(priority));
    for priority in of_slot {
        let table = slot.first_table() + (priority - slot.first_priority());
        ignore(route.run(vec![rule(version, priority, table, DELETE)]), libc::ENOENT)?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Change {
    step: &'static str,
    kind: u16,
    flags: u16,
}

const NEW: Change = Change {
    step: "adding a routing rule for tunnels",
    kind: 32,
    flags: NLM_F_ACK | 0x400 | 0x200,
};
const DELETE: Change =
    Change { step: "removing a routing rule for tunnels", kind: 33, flags: NLM_F_ACK };

fn local(version: IpVersion, priority: u32, change: Change) -> NetlinkRequest {
    rule(version, priority, RT_TABLE_LOCAL, change)
}

fn rule(version: IpVersion, priority: u32, table: u32, change: Change) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(change.step, change.kind, change.flags);
    message = message.fixed(&header(version, ACTION_TABLE));
    message.attribute(FRA_PRIORITY, &priority.to_ne_bytes());
    message.attribute(FRA_TABLE, &table.to_ne_bytes());
    message
}

/// `fib_rule_hdr`: family, lengths of destination and source, tos, table, two reserved, action,
/// flags.
fn header(version: IpVersion, action: u8) -> [u8; HEADER_BYTES] {
    [family(version), 0, 0, 0, 0, 0, 0, action, 0, 0, 0, 0]
}

/// The highest port of a range (`fib_rule_port_range_valid` of the kernel).
const PORT_MAX: u16 = u16::MAX - 1;
const OWN_PRIORITY: u32 = 3;
const AGENT_PRIORITY: u32 = 5;
const RELEASE_PRIORITY: u32 = 6;
const TRANSPORT_PRIORITY: u32 = 196;
const SHIELD_PRIORITY: u32 = 199;
const LAST_PRIORITY: u32 = 200;
/// TCP, UDP and ICMPv6.
const TRANSPORTS: [u8; 3] = [6, 17, 58];
const RT_TABLE_LOCAL: u32 = 255;
const HEADER_BYTES: usize = 12;
const GETRULE: u16 = 34;
const NLM_F_DUMP: u16 = 0x300;
const ACTION_TABLE: u8 = 1;
const ACTION_UNREACHABLE: u8 = 7;
/// The length of the source prefix in the header.
const SOURCE_BITS_AT: usize = 2;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::{bytes, sealed};

    #[test]
    #[cfg(target_endian = "little")]
    fn the_rule_of_a_group_byte_by_byte() {
        let group = FlowGroup {
            version: IpVersion::V4,
            protocol: 6,
            local_ports: Some(9070..=9079),
            remote_ports: Some(443..=443),
            routes: Vec::new(),
        };
        let wanted = "4400 0000 2000 0506 00000000 00000000 02 00 00 00 00 00 00 01 00000000 \
                      0800 0600 51000000 0800 0f00 717b0000 0500 1600 06 000000 \
                      0800 1700 6e237723 0800 1800 bb01bb01";
        let wanted = bytes(wanted);
        assert_eq!(sealed(&of_group(&group, GroupSlot::Second, 1).unwrap()), wanted);
        // The kernel refuses a range that contains the last port.
        let ending_at = |last| {
            let group = FlowGroup { remote_ports: Some(9000..=last), ..group.clone() };
            sealed(&of_group(&group, GroupSlot::First, 0).unwrap())
        };
        assert_eq!(ending_at(65_535), ending_at(65_534));
        let last = FlowGroup { local_ports: Some(65_535..=65_535), ..group.clone() };
        assert!(of_group(&last, GroupSlot::First, 0).is_none());
    }
}
