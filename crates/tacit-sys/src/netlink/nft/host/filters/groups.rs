//! Defines the contents of the nftables maps that permit or deny single packets. Also builds the
//! netlink messages that create these maps.
//!
//! Limits: [`FILTER_GROUPS_MAX`] maps, [`PACKET_ELEMENTS_MAX`] elements, [`LOGGED_FILTERS_MAX`]
//! rules that log packets.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::super::super::batch::{CREATE, TABLE, commit, message};
use super::super::super::filter_expression::{KeyField, PacketGate, WINDOWS, group_name};
use super::super::super::host_expression::{write_accept, write_return};
use super::super::super::primitive::{NftFamily, write_goto};
use super::super::super::sets::{
    DATA_VERDICT, NEWSET, SET_CONCAT, SET_EXPRESSION, SET_INTERVAL, SET_MAP,
};
use super::super::elements::list;
use super::super::named::{
    SET_TIMEOUT, TYPE_BITS, TYPE_MARK, key_of, packets_of, read_set, write_time,
};
use super::super::names::Chain;
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::socket::Netlink;

/// The most maps of a table.
pub const FILTER_GROUPS_MAX: usize = 8192;

/// The most elements of all maps.
pub const PACKET_ELEMENTS_MAX: usize = 131_072;

/// The most rules whose packets are logged.
pub const LOGGED_FILTERS_MAX: usize = 256;

/// What happens to the packets of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOutcome {
    /// The rules for flows decide.
    Return,
    /// They pass.
    Accept,
    /// They are dropped.
    Drop,
    /// They are rejected with ICMP "administratively prohibited".
    Icmp,
    /// TCP is reset; others are rejected with ICMP "port unreachable".
    Reset,
}

/// An element of a group.
#[derive(Clone, Copy, Debug)]
pub struct PacketElement<'a> {
    /// The lowest value of each field, one after another.
    pub first: &'a [u8],
    /// The highest value of each field; empty if each field has one value.
    pub last: &'a [u8],
    /// What happens to the packets.
    pub outcome: PacketOutcome,
    /// The number under which the packets are counted.
    pub number: Option<u32>,
    /// Whether the packets are logged: the number is one of [`HostFilters::logged`].
    pub logged: bool,
}

/// A rule whose packets are logged.
#[derive(Clone, Copy, Debug)]
pub struct LoggedFilter<'a> {
    /// The number of its elements.
    pub number: u32,
    /// Its name.
    pub name: &'a str,
    /// What happens to the packets then.
    pub outcome: PacketOutcome,
}

impl LoggedFilter<'_> {
    /// The chain that logs packets, for the ways of packets where the kernel looks for sockets, or
    /// for the others.
    pub(super) fn chain(number: u32, place: DiscardPlace) -> String {
        match place {
            DiscardPlace::BesideSockets => format!("filter_log_{number}"),
            DiscardPlace::Elsewhere => format!("filter_routed_log_{number}"),
        }
    }
}

/// Whether the kernel can look for the socket of a packet that is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscardPlace {
    BesideSockets,
    Elsewhere,
}

impl DiscardPlace {
    pub(super) const ALL: [Self; 2] = [Self::BesideSockets, Self::Elsewhere];

    /// The chain that discards packets; `None`: the outcome discards none.
    pub(super) fn chain(self, outcome: PacketOutcome) -> Option<Chain> {
        let is_beside_sockets = self == Self::BesideSockets;
        let of = |local: Chain, other: Chain| Some(if is_beside_sockets { local } else { other });
        match outcome {
            PacketOutcome::Return | PacketOutcome::Accept => None,
            PacketOutcome::Drop => of(Chain::FilterDrop, Chain::FilterRoutedDrop),
            PacketOutcome::Icmp => of(Chain::FilterIcmp, Chain::FilterRoutedIcmp),
            PacketOutcome::Reset => of(Chain::FilterReset, Chain::FilterRoutedReset),
        }
    }
}

/// Elements that are found with one lookup.
#[derive(Clone, Debug)]
pub struct PacketGroup<'a> {
    /// Whether the packets are those of IPv6.
    pub ipv6: bool,
    /// The classes of packets, one bit each: TCP, UDP, ICMP, other protocols, fragments.
    pub classes: u8,
    /// The ways of packets, one bit each: in, out, forwarded with the destination as the local end,
    /// forwarded with the source as the local end.
    pub views: u8,
    /// Whether TCP segments that open a connection do not match.
    pub past_opening: bool,
    /// The condition on time.
    pub gate: Option<PacketGate>,
    /// The fields of the keys.
    pub fields: Vec<KeyField>,
    /// Whether each field has one value.
    pub exact: bool,
    /// The elements, which do not overlap.
    pub elements: Vec<PacketElement<'a>>,
}

impl PacketGroup<'_> {
    pub(super) fn family(&self) -> NftFamily {
        if self.ipv6 { NftFamily::V6 } else { NftFamily::V4 }
    }

    /// The fields of the kernel's keys: at least one, and two if they have ranges.
    pub(super) fn key_fields(&self) -> impl Iterator<Item = KeyField> {
        let needed = if self.exact { 1 } else { 2 };
        let family = (self.fields.len() < needed).then_some(KeyField::Family);
        self.fields.iter().copied().chain(family)
    }

    /// The length of the keys. Each of several fields begins in a register of its own. The only
    /// field of a key has no bytes after it: nft would read these as a part of its value, and nft
    /// 1.0.6 aborts at a number of a protocol with more than one byte.
    fn key_bytes(&self) -> u32 {
        let family = self.family();
        let padded = |field: KeyField| field.padded_bytes(family);
        let mut fields = self.key_fields();
        match (fields.next(), fields.next()) {
            (Some(only), None) => only.bytes(family),
            _ => self.key_fields().map(padded).sum(),
        }
    }

    /// The key of an element in registers.
    fn key(&self, values: &[u8]) -> Vec<u8> {
        let family = self.family();
        let mut key = Vec::new();
        let mut rest = values;
        for field in self.key_fields() {
            let len = usize::try_from(field.bytes(family)).unwrap_or_default();
            if field == KeyField::Family {
                key.push(if self.ipv6 { 10 } else { 2 });
            } else {
                let (value, others) = rest.split_at(len.min(rest.len()));
                key.extend_from_slice(value);
                rest = others;
            }
            key.resize(key.len().next_multiple_of(4), 0);
        }
        key.truncate(usize::try_from(self.key_bytes()).unwrap_or_default());
        key
    }

    fn place(&self) -> DiscardPlace {
        let is_routed = self.views & (super::ROUTED_IN | super::ROUTED_OUT) != 0;
        if is_routed || self.classes & super::FRAGMENTS != 0 {
            DiscardPlace::Elsewhere
        } else {
            DiscardPlace::BesideSockets
        }
    }
}

/// How long a schedule is in the set of windows; `None`: without end.
pub type WindowTime = (u32, Option<Duration>);

/// The contents of filters.
#[derive(Clone, Copy, Debug)]
pub struct HostFilters<'a> {
    /// The groups in the order in which they are looked up.
    pub groups: &'a [PacketGroup<'a>],
    /// The schedules in the set of windows.
    pub windows: &'a [WindowTime],
    /// The rules whose packets are logged, at most [`LOGGED_FILTERS_MAX`].
    pub logged: &'a [LoggedFilter<'a>],
}

impl HostFilters<'_> {
    /// Whether a limit is exceeded.
    pub(in crate::netlink::nft::host) fn are_too_many(&self) -> bool {
        let elements: usize = self.groups.iter().map(|group| group.elements.len()).sum();
        self.groups.len() > FILTER_GROUPS_MAX
            || elements > PACKET_ELEMENTS_MAX
            || self.logged.len() > LOGGED_FILTERS_MAX
    }
}

/// The maps and the set, empty.
pub(in crate::netlink::nft::host) fn declarations(
    filters: &HostFilters<'_>,
) -> Vec<NetlinkRequest> {
    let numbered = filters.groups.iter().enumerate().zip(FIRST_NUMBER + 1..);
    let maps = numbered.map(|((number, group), id)| declare(number, group, id));
    std::iter::once(declare_windows()).chain(maps).collect()
}

fn declare(number: usize, group: &PacketGroup<'_>, id: u32) -> NetlinkRequest {
    let family = group.family();
    let fields: Vec<_> = group.key_fields().collect();
    let mut set = message("creating the nftables maps for filter rules", NEWSET, CREATE);
    set.text(1, TABLE);
    set.text(2, &group_name(number));
    let kind = if group.exact { 0 } else { SET_INTERVAL | SET_CONCAT };
    set.be32(3, SET_MAP | kind);
    // `nft list` shows the last fields of a key, if it has more than a number has types.
    let listed = fields.len().saturating_sub(LISTED_FIELDS_MAX);
    let types = fields.iter().skip(listed).map(|field| field.bytes_and_type(family).1);
    set.be32(4, types.fold(0, |all, one| all << TYPE_BITS | one));
    set.be32(5, group.key_bytes());
    set.be32(6, DATA_VERDICT);
    set.nest(9, |description| {
        if group.exact {
            description.be32(1, u32::try_from(group.elements.len()).unwrap_or(u32::MAX));
            return;
        }
        description.nest(2, |concatenation| {
            for field in &fields {
                concatenation.nest(1, |part| part.be32(1, field.bytes(family)));
            }
        });
    });
    set.be32(10, id);
    set.nest(SET_EXPRESSION, |counter| {
        counter.text(1, "counter");
        counter.nest(2, |_| {});
    });
    set
}

fn declare_windows() -> NetlinkRequest {
    let mut set = message("creating the nftables set of the policy's time windows", NEWSET, CREATE);
    set.text(1, TABLE);
    set.text(2, WINDOWS);
    set.be32(3, SET_TIMEOUT);
    set.be32(4, TYPE_MARK);
    set.be32(5, 4);
    set.be32(10, FIRST_NUMBER);
    set
}

/// All elements.
pub(in crate::netlink::nft::host) fn contents(filters: &HostFilters<'_>) -> Vec<NetlinkRequest> {
    let mut messages = Vec::new();
    for (number, group) in filters.groups.iter().enumerate() {
        let elements: Vec<_> = group.elements.iter().collect();
        for some in elements.chunks(ELEMENTS_PER_MESSAGE_MAX) {
            messages.push(list(&group_name(number), some, |one, element| {
                one.nest(1, |held| held.attribute(1, &group.key(element.first)));
                if !group.exact {
                    one.nest(10, |held| held.attribute(1, &group.key(element.last)));
                }
                one.nest(2, |data| write_outcome(data, element, group.place()));
            }));
        }
    }
    messages.extend(windows(filters.windows));
    messages
}

fn write_outcome(data: &mut NetlinkRequest, element: &PacketElement<'_>, place: DiscardPlace) {
    if let (true, Some(number)) = (element.logged, element.number) {
        return write_goto(data, &LoggedFilter::chain(number, place));
    }
    match (element.outcome, place.chain(element.outcome)) {
        (_, Some(chain)) => write_goto(data, chain.name()),
        (PacketOutcome::Return, None) => write_return(data),
        (_, None) => write_accept(data),
    }
}

fn windows(windows: &[WindowTime]) -> Option<NetlinkRequest> {
    let all: Vec<_> = windows.iter().collect();
    let written = |one: &mut NetlinkRequest, (number, time): &WindowTime| {
        one.nest(1, |held| held.attribute(1, &number.to_ne_bytes()));
        write_time(one, *time);
    };
    (!all.is_empty()).then(|| list(WINDOWS, &all, written))
}

/// Replaces the windows of the installed table in one transaction.
///
/// # Errors
/// The kernel's. `ENOENT`: the table has no filters.
pub fn set_windows(netfilter: &mut Netlink, present: &[WindowTime]) -> Result<(), Error> {
    let mut emptied =
        message("emptying the nftables set of the policy's time windows", DELSETELEM, NLM_F_ACK);
    emptied.text(1, TABLE);
    emptied.text(2, WINDOWS);
    commit(netfilter, std::iter::once(emptied).chain(windows(present)).collect())
}

/// Adds how many packets the installed table has counted, by number.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn count_filters(
    netfilter: &mut Netlink,
    filters: &HostFilters<'_>,
    counts: &mut BTreeMap<u32, u64>,
) -> Result<(), Error> {
    for (number, group) in filters.groups.iter().enumerate() {
        let numbers: HashMap<_, _> = group
            .elements
            .iter()
            .filter_map(|element| Some((group.key(element.first), element.number?)))
            .collect();
        if numbers.is_empty() {
            continue;
        }
        read_set(netfilter, TABLE, &group_name(number), |element| {
            let number = key_of(element).and_then(|key| numbers.get(key));
            if let (Some(number), Some(packets)) = (number, packets_of(element)) {
                *counts.entry(*number).or_insert(0) += packets;
            }
        })?;
    }
    Ok(())
}

/// The most fields of a key whose types the kernel notes for `nft list`: 6 bits each.
const LISTED_FIELDS_MAX: usize = 5;
/// The numbers of other sets are lower.
const FIRST_NUMBER: u32 = 0x10_0000;
/// An element with two keys of 64 bytes and a verdict has some 210 bytes, and a list 64 KiB.
const ELEMENTS_PER_MESSAGE_MAX: usize = 250;
const DELSETELEM: u16 = 14;
