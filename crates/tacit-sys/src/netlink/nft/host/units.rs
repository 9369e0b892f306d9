//! Installs an nftables table for policy rules that select programs by systemd unit. This table
//! sets a fwmark on packets of other programs, so that the main table (`inet tacit`) does not
//! capture these packets.
//!
//! ```text
//! table inet tacit_units              has no owner process, so systemd can change the set `units`
//!   set units                         control groups of systemd units; systemd updates this set
//!   sets tcp4 tcp6 udp4 udp6          destinations of the policy rules with systemd units
//!   chains sent redirected            call `senders` for packets to one of the destinations
//!   chain senders                     sets a fwmark, except on packets of the units
//!   chain leaving                     removes the fwmark
//! ```
//!
//! Before systemd starts a process of a unit, systemd adds the control group of the unit to the set
//! `units` (`NFTSet=`). This set needs a separate table, because the agent owns the main table, and
//! systemd cannot write to the main table. The main table captures packets to the destinations of
//! the policy rules with systemd units, except packets that have the fwmark.
//!
//! Limit: [`HOST_RANGES_MAX`](super::HOST_RANGES_MAX) destinations.

use std::collections::BTreeSet;

use super::super::batch::{CREATE, TABLE, commit, message, of_table};
use super::super::expression::Expression;
use super::super::host_expression::{HostExpression, MarkBits, UNITS};
use super::super::primitive::NftFamily;
use super::super::rules::rule_in;
use super::super::sets::{ADDING, Element, NEWSET, NEWSETELEM, Set, check, list, range_keys};
use super::named::{key_of, read_set};
use super::{HOST_RANGES_MAX, NEWCHAIN, declare, exists, remove_table};
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest, attributes};
use crate::netlink::socket::{Netlink, ReplyCount};

use Expression::{Accept, Captured, Goto, Host, NftFamily as OfFamily, Transport};
use HostExpression::{MarkIs, OfUnits, SetMark};

/// The deepest level of the hierarchy at which the kernel finds the control group of a unit.
pub const UNIT_LEVEL_MAX: u32 = 8;
/// The levels of the hierarchy at which the control group of a unit may be.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=UNIT_LEVEL_MAX;

/// Installs the table, in place of an earlier one. The set of units keeps its elements. `mark` is
/// one bit.
///
/// If the destinations change, for a moment the kernel does not find them: packets to them then
/// have no mark.
///
/// # Errors
/// The refused rule and expression; nothing has changed then.
pub fn install_units(
    netfilter: &mut Netlink,
    mark: u32,
    destinations: &[Element],
) -> Result<(), Error> {
    check(destinations)?;
    const {
        assert!(
            HOST_RANGES_MAX == 16_384,
            "the error message below must contain the value of HOST_RANGES_MAX"
        )
    };
    if destinations.len() > HOST_RANGES_MAX {
        return Err(Error::Invalid(
            "the policy rules with `unit` have more than 16,384 destinations: use fewer and larger \
             networks, or fewer port ranges",
        ));
    }
    let mut messages = vec![declare(0), units()];
    messages.extend(Set::ALL.map(Set::declaration));
    messages.extend(CHAINS.map(chain));
    messages.push(without_rules());
    if !has_destinations(netfilter, destinations)? {
        messages.extend(Set::ALL.map(Set::emptying));
        messages.extend(list(ADDING, destinations));
    }
    messages.extend(rules(mark));
    commit(netfilter, messages.into_iter().map(|message| of_table(message, UNITS_TABLE)).collect())
}

/// Adds control groups of units by their numbers.
///
/// # Errors
/// The kernel's. `ENOENT`: there is no table.
pub fn add_units(netfilter: &mut Netlink, groups: &[u64]) -> Result<(), Error> {
    if groups.is_empty() {
        return Ok(());
    }
    let mut adding =
        message("adding control groups of systemd units to the nftables set", NEWSETELEM, CREATE);
    adding.text(1, UNITS_TABLE);
    adding.text(2, UNITS);
    adding.nest(3, |list| {
        for group in groups {
            let key = group.to_ne_bytes();
            list.nest(1, |one| one.nest(1, |held| held.attribute(1, &key)));
        }
    });
    commit(netfilter, vec![adding])
}

/// The control groups in the set; `None` without a table.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn units_in_kernel(netfilter: &mut Netlink) -> Result<Option<Vec<u64>>, Error> {
    if !exists(netfilter, UNITS_TABLE)? {
        return Ok(None);
    }
    let mut found = Vec::new();
    read_set(netfilter, UNITS_TABLE, UNITS, |element| found.extend(group_of(element)))?;
    Ok(Some(found))
}

/// Whether the table has rules.
///
/// # Errors
/// The kernel's.
pub fn has_unit_rules(netfilter: &mut Netlink) -> Result<bool, Error> {
    let mut question = message("reading the nft rules for systemd units", GETRULE, NLM_F_DUMP);
    question.text(1, UNITS_TABLE);
    let mut has_rules = false;
    let read = netfilter.ask(question, ReplyCount::Many, |_| {
        has_rules = true;
        Ok(())
    });
    match read {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        read => read.map(|()| has_rules),
    }
}

/// Removes the table, if it is there.
///
/// # Errors
/// The kernel's.
pub fn remove_units(netfilter: &mut Netlink) -> Result<(), Error> {
    remove_table(netfilter, UNITS_TABLE)
}

/// Whether the kernel has these destinations and no others.
fn has_destinations(netfilter: &mut Netlink, wanted: &[Element]) -> Result<bool, Error> {
    for set in Set::ALL {
        let of_set = wanted.iter().filter(|element| Set::of(element) == set);
        let wanted: BTreeSet<_> = of_set.map(range_keys).collect();
        let mut kept = BTreeSet::new();
        read_set(netfilter, UNITS_TABLE, set.name(), |element| kept.extend(keys_of(element)))?;
        if wanted != kept {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first and the last key of an element.
fn keys_of(element: &[u8]) -> Option<[Vec<u8>; 2]> {
    let first = key_of(element)?;
    let (_, held) = attributes(element).find(|(kind, _)| *kind == KEY_END)?;
    let (_, last) = attributes(held).find(|(kind, _)| *kind == 1)?;
    Some([first.to_vec(), last.to_vec()])
}

fn group_of(element: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(key_of(element)?.try_into().ok()?))
}

fn units() -> NetlinkRequest {
    let mut set = message("creating the nftables set of systemd units", NEWSET, CREATE);
    set.text(1, TABLE);
    set.text(2, UNITS);
    set.be32(3, 0);
    set.be32(4, TYPE_CGROUP);
    set.be32(5, 8);
    set.be32(10, 5);
    set
}

fn chain((name, hook): (&'static str, Option<(u32, i32)>)) -> NetlinkRequest {
    let mut message = message("creating an nftables chain for systemd units", NEWCHAIN, CREATE);
    message.text(1, TABLE);
    message.text(3, name);
    if let Some((number, priority)) = hook {
        message.nest(4, |place| {
            place.be32(1, number);
            place.be32(2, priority.cast_unsigned());
        });
        message.be32(5, POLICY_ACCEPT);
        message.text(7, "filter");
    }
    message
}

/// Removes the rules of all chains.
fn without_rules() -> NetlinkRequest {
    let mut message = message("removing the nft rules for systemd units", DELRULE, NLM_F_ACK);
    message.text(1, TABLE);
    message
}

fn rules(mark: u32) -> Vec<NetlinkRequest> {
    let marked = MarkBits { mask: mark, value: mark };
    let unmarked = MarkBits { mask: mark, value: 0 };
    let mut rules = Vec::new();
    let mut push = |chain, step, expressions: &[Expression]| {
        rules.push(rule_in(chain, step, expressions));
    };
    for level in LEVELS {
        let of_unit = [Host(OfUnits(level)), Host(SetMark(unmarked)), Accept];
        push(SENDERS, "adding the nft rule that accepts packets of systemd units", &of_unit);
    }
    push(
        SENDERS,
        "adding the nft rule that sets a fwmark on packets of programs outside the policy's \
         systemd units",
        &[Host(SetMark(marked))],
    );
    let sets = [
        ("tcp4", TCP, NftFamily::V4),
        ("tcp6", TCP, NftFamily::V6),
        ("udp4", UDP, NftFamily::V4),
        ("udp6", UDP, NftFamily::V6),
    ];
    let step = "adding the nft rule that sends packets to the chain `senders`, which checks the \
                systemd unit of the sender";
    for chain in [SENT, REDIRECTED] {
        for (set, protocol, family) in sets {
            let to_destination =
                [OfFamily(family), Transport(protocol), Captured(set, family), Goto(SENDERS)];
            push(chain, step, &to_destination);
        }
    }
    let leaving = [Host(MarkIs(marked)), Host(SetMark(unmarked))];
    push(LEAVING, "adding the nft rule that clears the fwmark after routing", &leaving);
    rules
}

/// The chains, with their hooks and priorities: just before those of the main table.
const CHAINS: [(&str, Option<(u32, i32)>); 4] = [
    (SENDERS, None),
    (SENT, Some((HOOK_OUTPUT, -151))),
    (REDIRECTED, Some((HOOK_OUTPUT, -91))),
    (LEAVING, Some((HOOK_POSTROUTING, -151))),
];
const SENDERS: &str = "senders";
const SENT: &str = "sent";
const REDIRECTED: &str = "redirected";
const LEAVING: &str = "leaving";
/// The name of the table; drop-ins of systemd contain it. systemd accepts no hyphen in it.
pub const UNITS_TABLE: &str = "tacit_units";
const HOOK_OUTPUT: u32 = 3;
const HOOK_POSTROUTING: u32 = 4;
const KEY_END: u16 = 10;
const GETRULE: u16 = 7;
const DELRULE: u16 = 8;
const NLM_F_DUMP: u16 = 0x300;
const POLICY_ACCEPT: u32 = 1;
/// How `nft list` shows a key.
const TYPE_CGROUP: u32 = 46;
const TCP: u8 = 6;
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::super::super::sets::write_range;
    use super::*;
    use crate::netlink::testing::sealed;

    #[test]
    fn a_group_is_read_as_it_was_written() {
        for group in [1, 0x1234_5678_9abc_def0, u64::MAX] {
            let mut message = NetlinkRequest::new("", 0, 0);
            message.nest(1, |held| held.attribute(1, &group.to_ne_bytes()));
            let written = sealed(&message);
            assert_eq!(group_of(&written[16..]), Some(group));
            for end in 16..written.len() {
                assert_eq!(group_of(&written[16..end]), None);
            }
        }
    }

    #[test]
    fn a_destination_is_read_as_it_was_written() {
        let element = Element {
            protocol: crate::netlink::IpProtocol::Tcp,
            first: [10, 0, 0, 1].into(),
            last: [10, 0, 0, 9].into(),
            first_port: 80,
            last_port: 443,
        };
        let mut message = NetlinkRequest::new("", 0, 0);
        write_range(&mut message, &element);
        let written = sealed(&message);
        assert_eq!(keys_of(&written[16..]), Some(range_keys(&element)));
        for end in 16..written.len() {
            assert_eq!(keys_of(&written[16..end]), None);
        }
    }

    #[test]
    fn systemd_accepts_the_names_of_table_and_set() {
        for name in [UNITS_TABLE, UNITS] {
            assert!(
                name.len() <= 31 && name.starts_with(|first: char| first.is_ascii_alphabetic())
            );
            let is_letter =
                |letter: char| letter.is_ascii_alphanumeric() || "/\\_.".contains(letter);
            assert!(name.chars().all(is_letter), "{name}");
        }
    }

    #[test]
    fn all_but_units_are_marked_and_only_the_bit_changes() {
        let all = rules(0x4000_0000);
        assert_eq!(all.len(), LEVELS.count() + 1 + 8 + 1);
        let marking = sealed(&all[LEVELS.count()]);
        let has = |bytes: &[u8]| marking.windows(bytes.len()).any(|part| part == bytes);
        assert!(has(&0xbfff_ffff_u32.to_ne_bytes()) && has(&0x4000_0000_u32.to_ne_bytes()));
    }
}
