//! Builds the nftables sets for policy rules that select destinations by DNS name. These sets
//! contain the addresses whose names match a policy rule. A *part* is a group of ports to which the
//! same policy rules with DNS names apply.
//!
//! ```text
//! map  nameports         protocol . port range -> part
//! sets named4 named6     address . part
//! ```
//!
//! An element of the sets can have a timeout. Each packet to its address renews the timeout.

use std::net::IpAddr;
use std::time::Duration;

use super::super::batch::{CREATE, TABLE, message};
use super::super::host_expression::PORTS;
use super::super::primitive::octets;
use super::super::sets::{ELEMENTS_PER_MESSAGE_MAX, NEWSET, NEWSETELEM};
use super::names::NAMED;
use crate::ip_version::IpVersion;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest, attributes};
use crate::netlink::protocol::IpProtocol;
use crate::netlink::socket::{Netlink, ReplyCount};

/// The most pairs of address and part of a table.
pub const NAMED_ADDRESSES_MAX: usize = 65_536;

/// Ports with the same rules by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPorts {
    /// The transport protocol.
    pub protocol: IpProtocol,
    /// The first port.
    pub first_port: u16,
    /// The last port.
    pub last_port: u16,
    /// The number of these ports and of others with the same rules.
    pub part: u32,
}

/// An address whose flows to the ports of a part are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartAddress {
    /// The address.
    pub address: IpAddr,
    /// The part.
    pub part: u32,
    /// How long; `None`: as long as the table is there.
    pub time: Option<Duration>,
}

/// What the table has for rules by name.
#[derive(Clone, Copy, Debug)]
pub struct NamedFlows<'a> {
    /// Disjoint ranges.
    pub ports: &'a [PartPorts],
    /// At most [`NAMED_ADDRESSES_MAX`].
    pub addresses: &'a [PartAddress],
}

/// The map and the sets, empty.
pub(super) fn declarations() -> Vec<NetlinkRequest> {
    let mut ports = message("creating the nftables map from ports to port groups", NEWSET, CREATE);
    ports.text(1, TABLE);
    ports.text(2, PORTS);
    ports.be32(3, SET_INTERVAL | SET_CONCAT | SET_MAP);
    ports.be32(4, TYPE_PROTOCOL << TYPE_BITS | TYPE_PORT);
    ports.be32(5, 8);
    ports.be32(6, TYPE_MARK);
    ports.be32(7, 4);
    ports.nest(9, |description| {
        description.nest(2, |concatenation| {
            for field_bytes in [1, 2] {
                concatenation.nest(1, |field| field.be32(1, field_bytes));
            }
        });
    });
    ports.be32(10, 7);
    let sets = NAMED.into_iter().zip([(TYPE_V4, 4), (TYPE_V6, 16)]).zip(8..);
    let sets = sets.map(|((name, (address_type, address_bytes)), number)| {
        let step = "creating the nftables sets for addresses of DNS names";
        let mut set = message(step, NEWSET, CREATE);
        set.text(1, TABLE);
        set.text(2, name);
        set.be32(3, SET_TIMEOUT | SET_EVAL);
        set.be32(4, address_type << TYPE_BITS | TYPE_MARK);
        set.be32(5, address_bytes + 4);
        set.nest(9, |description| description.be32(1, SET_SIZE));
        set.be32(10, number);
        set.be32(12, GARBAGE_INTERVAL_MS);
        set
    });
    std::iter::once(ports).chain(sets).collect()
}

/// All elements of the map and the sets.
pub(super) fn contents(flows: &NamedFlows<'_>) -> Vec<NetlinkRequest> {
    let ports = flows.ports.chunks(ELEMENTS_PER_MESSAGE_MAX).map(|some| {
        let mut message = message("dividing ports", NEWSETELEM, CREATE);
        message.text(1, TABLE);
        message.text(2, PORTS);
        message.nest(3, |list| some.iter().for_each(|one| write_ports(list, one)));
        message
    });
    let all: Vec<_> = flows.addresses.iter().collect();
    ports.chain(lists(Change::Add, &all)).collect()
}

/// The messages that give addresses their time, be they there or not. An element is added if it is
/// not there, so that it can be removed, and added with its new time.
pub(super) fn renewals(addresses: &[PartAddress]) -> Vec<NetlinkRequest> {
    let all: Vec<_> = addresses.iter().collect();
    let steps = [Change::Add, Change::Remove, Change::Add];
    steps.into_iter().flat_map(|change| lists(change, &all)).collect()
}

/// The pairs that the kernel has, with the rest of their times; none without a table.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn named_addresses(netfilter: &mut Netlink) -> Result<Vec<PartAddress>, Error> {
    let mut found = Vec::new();
    for set in NAMED {
        read_set(netfilter, TABLE, set, |element| {
            found.extend(address_of(element));
        })?;
    }
    Ok(found)
}

/// The time that is left for an element of a set; the inner `None` is no end, the outer one no such
/// element or no table.
pub(super) fn time_of(
    netfilter: &mut Netlink,
    (table, set): (&str, &str),
    key: &[u8],
) -> Result<Option<Option<Duration>>, Error> {
    let mut question =
        message("reading the remaining timeout of an element in an nftables set", GETSETELEM, 0);
    question.text(1, table);
    question.text(2, set);
    question.nest(3, |list| {
        list.nest(1, |one| one.nest(1, |held| held.attribute(1, key)));
    });
    let mut found = None;
    let read = netfilter.ask(question, ReplyCount::One, |payload| {
        // The payload begins with `nfgenmsg`.
        found = elements(payload.get(4..).unwrap_or_default()).map(time_left).next();
        Ok(())
    });
    match read {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        read => read.map(|()| found),
    }
}

/// Hands each element of a set to `each`; none without the table.
pub(super) fn read_set(
    netfilter: &mut Netlink,
    table: &str,
    set: &str,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut question = message("reading an nftables set", GETSETELEM, NLM_F_DUMP);
    question.text(1, table);
    question.text(2, set);
    let read = netfilter.ask(question, ReplyCount::ManyUnbroken, |payload| {
        // The payload begins with `nfgenmsg`.
        elements(payload.get(4..).unwrap_or_default()).for_each(&mut each);
        Ok(())
    });
    match read {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        read => read,
    }
}

/// The elements in a message.
pub(super) fn elements(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lists = attributes(payload).filter(|(kind, _)| *kind == 3);
    lists.flat_map(|(_, list)| attributes(list)).filter(|(kind, _)| *kind == 1).map(|(_, one)| one)
}

/// The key of an element.
pub(super) fn key_of(element: &[u8]) -> Option<&[u8]> {
    let (_, held) = attributes(element).find(|(kind, _)| *kind == 1)?;
    attributes(held).find(|(kind, _)| *kind == 1).map(|(_, key)| key)
}

/// What is left of the time of an element; the whole time is another attribute.
pub(super) fn time_left(element: &[u8]) -> Option<Duration> {
    let (_, left) = attributes(element).find(|(kind, _)| *kind == 5)?;
    Some(Duration::from_millis(u64::from_be_bytes(*left.first_chunk()?)))
}

/// What the counter of an element has counted.
pub(super) fn packets_of(element: &[u8]) -> Option<u64> {
    let of_kind = |list, wanted| attributes(list).find(|(kind, _)| *kind == wanted);
    let (_, expression) = of_kind(element, ELEMENT_EXPRESSION)?;
    let (_, counter) = of_kind(expression, EXPRESSION_DATA)?;
    let (_, packets) = of_kind(counter, COUNTER_PACKETS)?;
    Some(u64::from_be_bytes(*packets.first_chunk()?))
}

fn address_of(element: &[u8]) -> Option<PartAddress> {
    let (octets, part) = key_of(element)?.split_last_chunk::<4>()?;
    let address = match octets.len() {
        4 => IpAddr::from(*octets.first_chunk::<4>()?),
        16 => IpAddr::from(*octets.first_chunk::<16>()?),
        _ => return None,
    };
    Some(PartAddress { address, part: u32::from_ne_bytes(*part), time: time_left(element) })
}

/// Whether elements come or go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Remove,
}

impl Change {
    pub(super) fn message(self, step: &'static str) -> NetlinkRequest {
        match self {
            Self::Add => message(step, NEWSETELEM, CREATE),
            Self::Remove => message(step, DELSETELEM, NLM_F_ACK),
        }
    }
}

/// The key of an address in its set.
pub(super) fn key(one: &PartAddress) -> Vec<u8> {
    [octets(one.address), one.part.to_ne_bytes().to_vec()].concat()
}

/// The set of an address.
pub(super) fn set_of(address: IpAddr) -> &'static str {
    let [v4, v6] = NAMED;
    if address.is_ipv4() { v4 } else { v6 }
}

fn lists(change: Change, addresses: &[&PartAddress]) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for (set, version) in NAMED.into_iter().zip([IpVersion::V4, IpVersion::V6]) {
        let is_v4 = version == IpVersion::V4;
        let of_set = addresses.iter().filter(|one| one.address.is_ipv4() == is_v4);
        let of_set: Vec<_> = of_set.collect();
        for some in of_set.chunks(ELEMENTS_PER_MESSAGE_MAX) {
            let mut message =
                change.message("updating an nftables set with addresses of DNS names");
            message.text(1, TABLE);
            message.text(2, set);
            message.nest(3, |list| {
                for address in some {
                    list.nest(1, |one| {
                        one.nest(1, |held| held.attribute(1, &key(address)));
                        write_time(one, address.time);
                    });
                }
            });
            messages.push(message);
        }
    }
    messages
}

/// The time of an element, in milliseconds.
pub(super) fn write_time(element: &mut NetlinkRequest, time: Option<Duration>) {
    if let Some(time) = time {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        element.attribute(4, &ms.to_be_bytes());
    }
}

fn write_ports(list: &mut NetlinkRequest, ports: &PartPorts) {
    let key = |port: u16| {
        let [high, low] = port.to_be_bytes();
        [ports.protocol.number(), 0, 0, 0, high, low, 0, 0]
    };
    list.nest(1, |one| {
        one.nest(1, |held| held.attribute(1, &key(ports.first_port)));
        one.nest(2, |held| held.attribute(1, &ports.part.to_ne_bytes()));
        one.nest(10, |held| held.attribute(1, &key(ports.last_port)));
    });
}

/// How often the kernel frees elements whose time is over; they are not found before that either.
pub(super) const GARBAGE_INTERVAL_MS: u32 = 60_000;
/// `NFTA_SET_ELEM_EXPR`.
const ELEMENT_EXPRESSION: u16 = 7;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_COUNTER_PACKETS`.
const COUNTER_PACKETS: u16 = 2;
const GETSETELEM: u16 = 13;
const DELSETELEM: u16 = 14;
const NLM_F_DUMP: u16 = 0x300;
/// The kernel's limit of a set; what is added again counts twice for a moment.
const SET_SIZE: u32 = 2 * 65_536;
const SET_INTERVAL: u32 = 4;
const SET_MAP: u32 = 8;
pub(super) const SET_TIMEOUT: u32 = 0x10;
/// Packets change elements.
pub(super) const SET_EVAL: u32 = 0x20;
const SET_CONCAT: u32 = 0x80;
/// How `nft list` shows parts of keys.
pub(super) const TYPE_V4: u32 = 7;
pub(super) const TYPE_V6: u32 = 8;
const TYPE_PROTOCOL: u32 = 12;
pub(super) const TYPE_PORT: u32 = 13;
pub(super) const TYPE_MARK: u32 = 19;
pub(super) const TYPE_BITS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::sealed;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for (address, part) in [("10.9.8.7", 0), ("2001:db8::7", 63), ("::", u32::MAX)] {
            let one = PartAddress { address: address.parse().unwrap(), part, time: None };
            let list = sealed(&lists(Change::Add, &[&one]).remove(0));
            let found: Vec<_> = elements(&list[20..]).filter_map(address_of).collect();
            assert_eq!(found, [one]);
        }
    }

    #[test]
    fn what_is_cut_or_changed_is_no_other_address() {
        let one = PartAddress { address: [10, 9, 8, 7].into(), part: 1, time: None };
        let list = sealed(&lists(Change::Add, &[&one]).remove(0));
        for end in 20..list.len() {
            let found = elements(&list[20..end]).filter_map(address_of).count();
            assert_eq!(found, 0, "{end}");
        }
        for at in 20..list.len() {
            let mut changed = list.clone();
            changed[at] ^= 0xff;
            assert!(elements(&changed[20..]).filter_map(address_of).count() <= 1, "{at}");
        }
    }

    #[test]
    fn a_counter_is_read_as_the_kernel_writes_it() {
        let mut message = NetlinkRequest::new("", 0, 0);
        message.nest(1, |held| held.attribute(1, &[10, 0, 0, 1, 0, 80, 0, 0]));
        message.nest(ELEMENT_EXPRESSION, |expression| {
            expression.text(1, "counter");
            expression.nest(EXPRESSION_DATA, |data| {
                data.attribute(1, &700_u64.to_be_bytes());
                data.attribute(COUNTER_PACKETS, &7_u64.to_be_bytes());
            });
        });
        let written = sealed(&message);
        assert_eq!(packets_of(&written[16..]), Some(7));
        for end in 16..written.len() {
            assert_eq!(packets_of(&written[16..end]), None, "{end}");
        }
    }
}
