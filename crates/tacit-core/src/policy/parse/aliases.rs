//! Parses the keys `aliases` and `alias-ranges` of the policy table `[agent]`. An alias is an
//! address that tacit assigns to one name, so that the address identifies the name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address;
use super::review::Read;
use crate::dns::{ALIAS_BITS_V4, ALIAS_BITS_V6, AliasPolicy, AliasRanges, Aliases, is_nameable};
use crate::flow::Direction;
use crate::message_id::MessageId;
use crate::policy::selector::AddressSelector;
use crate::policy::text::{TomlTable, TomlValue};

/// Reads both; `None` after an error was reported.
pub(super) fn read(table: &TomlTable<'_>) -> Option<Aliases> {
    let words = [
        ("conflict", AliasPolicy::Conflict),
        ("always", AliasPolicy::Always),
        ("never", AliasPolicy::Never),
    ];
    let given = table.value("aliases").map_or(Some(AliasPolicy::Conflict), |it| it.choice(&words));
    let ranges =
        table.value("alias-ranges").map_or_else(|| Some(AliasRanges::default()), |it| ranges(&it));
    Some(Aliases { given: given?, ranges: ranges? })
}

fn ranges(value: &TomlValue<'_>) -> Option<AliasRanges> {
    let networks: Vec<(IpAddr, u8)> = value.each(range)?;
    let of_v4 = networks.iter().filter(|(network, _)| network.is_ipv4()).count();
    if of_v4 > 1 || networks.len() - of_v4 > 1 {
        let fix = "give one network for IPv4 and one for IPv6, as in \
                   [\"198.18.0.0/15\", \"100::/64\"]";
        value.error("`alias-ranges` can contain only one IPv4 network and one IPv6 network", fix);
        return None;
    }
    let with = |ranges: AliasRanges, (network, bits)| ranges.with(network, bits);
    Some(networks.into_iter().fold(AliasRanges::default(), with))
}

/// Parses a network of valid size to which programs can connect.
fn range(value: &TomlValue<'_>) -> Option<(IpAddr, u8)> {
    let selector = address::selector(value)?;
    let AddressSelector::Prefix { network, length } = selector else {
        let fix = "write networks, as in [\"198.18.0.0/15\", \"100::/64\"]";
        value.error("`alias-ranges` contains a value that is not a network", fix);
        return None;
    };
    let bits = if network.is_ipv4() { ALIAS_BITS_V4 } else { ALIAS_BITS_V6 };
    if !bits.contains(&length) {
        let min = bits.start();
        let max = bits.end();
        let message = format!(
            "{network}/{length} cannot be an alias range: the prefix length must be {min} to {max}"
        );
        value.error(message, format!("write a network with a prefix length of {min} to {max}"));
        return None;
    }
    if !is_nameable(network) || !is_nameable(last_of(network, length)) {
        let message = format!(
            "{network}/{length} cannot be an alias range: it contains addresses with a special \
             purpose, such as loopback or multicast"
        );
        let fix = "choose a network without loopback, link-local and multicast addresses";
        value.error(message, fix);
        return None;
    }
    Some((network, length))
}

/// Reports outbound rules that match only addresses reserved for alias addresses.
pub(super) fn check_rules(aliases: Aliases, rules: &[Read<'_, '_>]) {
    let outbound = rules.iter().filter(|read| {
        aliases.given != AliasPolicy::Never && read.rule.selectors.direction == Direction::Outbound
    });
    for Read { value, rule } in outbound {
        let is_alias = |selector: &&AddressSelector| is_within(aliases.ranges, selector);
        let Some(selector) = rule.selectors.remote.iter().find(is_alias) else { continue };
        let at = value.at_key("remote");
        let message = format!(
            "`remote` {selector} is in one of the ranges that are reserved for alias addresses: \
             {alias_ranges}",
            alias_ranges = aliases.ranges
        );
        let fix = "write the name or the real address of the host; if a host really has an address \
                   in this range, set another network in `alias-ranges` of [agent], or set aliases \
                   = \"never\" there";
        value.report.error(MessageId("alias-range"), &at, message, fix);
    }
}

fn is_within(ranges: AliasRanges, selector: &AddressSelector) -> bool {
    match selector {
        AddressSelector::Prefix { network, length } => {
            ranges.contains(*network) && ranges.contains(last_of(*network, *length))
        }
        AddressSelector::Range { first, last } => ranges.contains(*first) && ranges.contains(*last),
        AddressSelector::Name { .. } | AddressSelector::Near(_) => false,
    }
}

/// Returns the last address of a network.
fn last_of(network: IpAddr, length: u8) -> IpAddr {
    match network {
        IpAddr::V4(v4) => {
            let rest = u32::MAX.checked_shr(length.into()).unwrap_or_default();
            Ipv4Addr::from_bits(v4.to_bits() | rest).into()
        }
        IpAddr::V6(v6) => {
            let rest = u128::MAX.checked_shr(length.into()).unwrap_or_default();
            Ipv6Addr::from_bits(v6.to_bits() | rest).into()
        }
    }
}
