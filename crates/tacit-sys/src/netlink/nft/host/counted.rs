//! Counts the flows that nftables rules permit or deny in the kernel, for `tacit agent --host`. The
//! agent does not see the packets of these flows.
//!
//! ```text
//! sets count_tcp4_N ... count_udp6_N    each element: address range . port range, counter
//! maps filter_N                         each element: fields of a packet, counter
//! ```
//!
//! The nftables rules look up the `count_` sets only for the first packet of a TCP connection and
//! for each UDP datagram. A retransmitted SYN is counted again.

use std::collections::{BTreeMap, HashMap};

use super::super::batch::TABLE;
use super::super::host_expression::SectionMap;
use super::super::sets::range_keys;
use super::elements::map_of;
use super::named::{key_of, packets_of, read_set};
use super::names::MAPS;
use super::{CountedElement, HostTable, TableSection};
use crate::netlink::error::Error;
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
