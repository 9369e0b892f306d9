//! Defines the sets in which the nftables rules of `tacit agent --host` store flows. When the agent
//! replaces the nftables table, it copies the flows to the new table.
//!
//! ```text
//! kept_tcp4 ... kept_udp6       captured flows: from programs of this host, sent to the agent
//! client_tcp4 ... client_udp6   flows from clients to programs of this host
//! key of an element             local address . remote address . local port . remote port
//! ```
//!
//! Limit: [`FLOWS_MAX`] flows in a set. If a set is full, new flows are refused.

use std::net::IpAddr;
use std::time::Duration;

use super::super::batch::{CREATE, TABLE, commit, message, of_table};
use super::super::primitive::NftFamily;
use super::super::sets::{ELEMENTS_PER_BATCH_MAX, ELEMENTS_PER_MESSAGE_MAX, NEWSET, NEWSETELEM};
use super::HostTable;
use super::bounds::Bounds;
use super::named::{SET_EVAL, SET_TIMEOUT, TYPE_BITS, TYPE_PORT, TYPE_V4, TYPE_V6};
use super::named::{key_of, read_set, time_left, write_time};
use super::names::{CLIENTS, Chain, KEPT, MAPS, Openers};
use crate::netlink::error::Error;
use crate::netlink::message::{NLM_F_ACK, NetlinkRequest};
use crate::netlink::socket::Netlink;

/// The maximum number of flows in a set.
pub const FLOWS_MAX: u32 = 262_144;

/// How long a flow is kept whose SYN was captured, until the agent answers it. A SYN is sent again
/// after at most 64 seconds.
pub(super) const OPENING: Duration = Duration::from_secs(180);
/// How long a flow is kept after the program has sent data; connection tracking has the same time.
pub(super) const OPEN: Duration = Duration::from_secs(5 * 24 * 3600);
/// How long a flow is kept after one end has closed it. A segment is sent again after at most 120
/// seconds.
pub(super) const CLOSING: Duration = Duration::from_secs(180);
/// How long the flow of a client is kept after the last packet of its server.
pub(super) const SERVED: Duration = Duration::from_secs(24 * 3600);
/// How long a flow of datagrams is kept after the last one.
pub(super) const DATAGRAMS: Duration = Duration::from_secs(180);

/// All sets, empty.
pub(super) fn declarations() -> impl Iterator<Item = NetlinkRequest> {
    sets().zip(FIRST_NUMBER..).map(|((name, family), number)| {
        let (address_type, address_bytes) = match family {
            NftFamily::V4 => (TYPE_V4, 4),
            NftFamily::V6 => (TYPE_V6, 16),
        };
        let parts = [address_type, address_type, TYPE_PORT, TYPE_PORT];
        let mut set = message("creating the nftables sets that store flows", NEWSET, CREATE);
        set.text(1, TABLE);
        set.text(2, name);
        set.be32(3, SET_TIMEOUT | SET_EVAL);
        set.be32(4, parts.into_iter().fold(0, |all, part| all << TYPE_BITS | part));
        set.be32(5, 2 * address_bytes + 8);
        set.nest(9, |description| description.be32(1, FLOWS_MAX));
        set.be32(10, number);
        set.be32(12, GARBAGE_INTERVAL_MS);
        set
    })
}

/// Adds all flows of a table to those of another one. A table without these sets has none.
///
/// # Errors
/// The kernel's.
pub(super) fn copy(netfilter: &mut Netlink, from: &str, to: &str) -> Result<(), Error> {
    for (set, _) in sets() {
        let found = flows(netfilter, from, set)?;
        for some in found.chunks(ELEMENTS_PER_BATCH_MAX) {
            let lists = some.chunks(ELEMENTS_PER_MESSAGE_MAX).map(|some| list(to, set, some));
            commit(netfilter, lists.collect())?;
        }
    }
    Ok(())
}

/// Whether the table has a captured connection whose packets no other rule would find.
///
/// # Errors
/// The kernel's.
pub(super) fn has_strays(
    netfilter: &mut Netlink,
    table: &HostTable<'_>,
    openers: Openers,
) -> Result<bool, Error> {
    for (set, map) in KEPT.into_iter().zip(MAPS).take(TCP_SETS) {
        let bounds = match openers {
            Openers::InSets => Bounds::of_map(table, map),
            Openers::Tracked => None,
        };
        let is_found = |flow: &Flow| {
            let (address, port) = destination(&flow.key)?;
            Some(bounds?.contain(address, port))
        };
        if flows(netfilter, TABLE, set)?.iter().any(|flow| is_found(flow) != Some(true)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lets the table decide about all flows: it has those of its predecessor now.
///
/// # Errors
/// The kernel's.
pub(super) fn end_filling(netfilter: &mut Netlink, table: &str) -> Result<(), Error> {
    commit(netfilter, vec![of_table(without_rules(Chain::Filling), table)])
}

/// Removes the chain for strays, which costs time for every packet.
///
/// # Errors
/// The kernel's.
pub(super) fn remove_strays_chain(netfilter: &mut Netlink) -> Result<(), Error> {
    let mut removal = message("removing an nftables chain", DELCHAIN, NLM_F_ACK);
    removal.text(1, TABLE);
    removal.text(3, Chain::Strays.name());
    commit(netfilter, vec![without_rules(Chain::Strays), removal])
}

fn without_rules(chain: Chain) -> NetlinkRequest {
    let mut removal = message("removing the nft rules of a chain", DELRULE, NLM_F_ACK);
    removal.text(1, TABLE);
    removal.text(2, chain.name());
    removal
}

/// A flow with the rest of its time.
struct Flow {
    key: Vec<u8>,
    time: Option<Duration>,
}

/// The names of all sets.
fn sets() -> impl Iterator<Item = (&'static str, NftFamily)> {
    let families = [NftFamily::V4, NftFamily::V6].into_iter().cycle();
    KEPT.into_iter().chain(CLIENTS).zip(families)
}

fn flows(netfilter: &mut Netlink, table: &str, set: &str) -> Result<Vec<Flow>, Error> {
    for _ in 1..READS_MAX {
        match flows_at_once(netfilter, table, set) {
            Err(error) if error.errno() == Some(libc::EINTR) => {}
            read => return read,
        }
    }
    flows_at_once(netfilter, table, set)
}

fn flows_at_once(netfilter: &mut Netlink, table: &str, set: &str) -> Result<Vec<Flow>, Error> {
    let mut found = Vec::new();
    read_set(netfilter, table, set, |element| {
        let key = key_of(element).map(<[u8]>::to_vec);
        found.extend(key.map(|key| Flow { key, time: time_left(element) }));
    })?;
    Ok(found)
}

fn list(table: &str, set: &str, flows: &[Flow]) -> NetlinkRequest {
    let mut message = message("adding flows to an nftables set", NEWSETELEM, CREATE);
    message.text(1, table);
    message.text(2, set);
    message.nest(3, |list| {
        for flow in flows {
            list.nest(1, |one| {
                one.nest(1, |held| held.attribute(1, &flow.key));
                write_time(one, flow.time);
            });
        }
    });
    message
}

/// The other end of a flow.
fn destination(key: &[u8]) -> Option<(IpAddr, u16)> {
    let (address, ports): (IpAddr, _) = match key.len() {
        16 => ((*key.get(4..)?.first_chunk::<4>()?).into(), key.get(8..)?),
        40 => ((*key.get(16..)?.first_chunk::<16>()?).into(), key.get(32..)?),
        _ => return None,
    };
    Some((address, u16::from_be_bytes(*ports.get(4..)?.first_chunk()?)))
}

/// The sets of TCP come first.
const TCP_SETS: usize = 2;
/// How often flows are read until nothing changes meanwhile.
const READS_MAX: usize = 5;
/// How often the kernel frees flows whose time is over; they are not found before that either.
const GARBAGE_INTERVAL_MS: u32 = 10_000;
/// The numbers of sets in a transaction differ.
const FIRST_NUMBER: u32 = 0x1_0000;
const DELCHAIN: u16 = 5;
const DELRULE: u16 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_flow_is_found() {
        let v4 = [10, 0, 0, 1, 192, 0, 2, 2, 0x80, 0, 0, 0, 1, 187, 0, 0];
        assert_eq!(destination(&v4), Some(([192, 0, 2, 2].into(), 443)));
        let mut v6 = [0; 40];
        v6[31] = 7;
        v6[36..38].copy_from_slice(&443_u16.to_be_bytes());
        assert_eq!(destination(&v6), Some(("::7".parse().unwrap(), 443)));
        for len in (0..40).filter(|len| *len != 16) {
            assert_eq!(destination(&v6[..len]), None, "{len}");
        }
    }
}
