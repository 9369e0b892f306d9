//! Counts the flows that the packet rules decide without the agent, for `tacit agent --host`.
//!
//! ```text
//! sets count_tcp4_N ... count_udp6_N    address range . port range, each with a counter
//! ```
//!
//! The packet rules search these sets only for the first packet of a TCP connection and for each
//! UDP datagram, so all other packets cost nothing. If a program repeats a SYN, the kernel counts
//! it again.

use std::collections::{BTreeMap, HashMap};

use super::super::batch::TABLE;
use super::super::host_expression::SectionMap;
use super::super::sets::range_keys;
use super::elements::map_of;
use super::named::{key_of, read_set};
use super::names::MAPS;
use super::{CountedElement, HostTable, TableSection};
use crate::netlink::error::Error;
use crate::netlink::message::attributes;
use crate::netlink::socket::Netlink;

impl TableSection<'_> {
    /// The elements with counters for one of [`MAPS`].
    pub(super) fn counted_in(&self, map: &str) -> impl Iterator<Item = &CountedElement> {
        self.counted.iter().filter(move |one| map_of(&one.to) == map)
    }
}

/// The sets with counters that the table needs.
pub(super) fn maps(table: &HostTable<'_>) -> Vec<SectionMap> {
    let sections = table.sections.iter().enumerate();
    let maps = sections.flat_map(|(number, section)| {
        let needed = MAPS.into_iter().filter(|map| section.counted_in(map).next().is_some());
        needed.map(move |base| SectionMap { base, section: number })
    });
    maps.collect()
}

/// Reads how many connections and datagrams the installed table has counted, by number. `table` is
/// the installed one.
///
/// # Errors
/// The kernel's. `EINTR`: the table changed meanwhile.
pub fn counts(netfilter: &mut Netlink, table: &HostTable<'_>) -> Result<BTreeMap<u32, u64>, Error> {
    let mut counts = BTreeMap::new();
    for map in maps(table) {
        let Some(section) = table.sections.get(map.section) else { continue };
        let numbers: HashMap<_, _> = section
            .counted_in(map.base)
            .map(|one| {
                let [first, _] = range_keys(&one.to);
                (first, one.number)
            })
            .collect();
        read_set(netfilter, TABLE, &map.counters(), |element| {
            let number = key_of(element).and_then(|key| numbers.get(key));
            if let (Some(number), Some(packets)) = (number, packets_of(element)) {
                *counts.entry(*number).or_insert(0_u64) += packets;
            }
        })?;
    }
    Ok(counts)
}

/// What the counter of an element has counted.
fn packets_of(element: &[u8]) -> Option<u64> {
    let of_kind = |list, wanted| attributes(list).find(|(kind, _)| *kind == wanted);
    let (_, expression) = of_kind(element, ELEMENT_EXPRESSION)?;
    let (_, counter) = of_kind(expression, EXPRESSION_DATA)?;
    let (_, packets) = of_kind(counter, COUNTER_PACKETS)?;
    Some(u64::from_be_bytes(*packets.first_chunk()?))
}

/// `NFTA_SET_ELEM_EXPR`.
const ELEMENT_EXPRESSION: u16 = 7;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_COUNTER_PACKETS`.
const COUNTER_PACKETS: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::NetlinkRequest;
    use crate::netlink::testing::sealed;

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
