//! Defines [`FlowCache`], which caches whether a flow is permitted in one direction of a tunnel,
//! and its account. A tunnel may have a long list of permitted flows.
//!
//! Fragments, ICMP packets, and the first packets of TCP connections do not use the cache, because
//! their headers are not sufficient for a decision.
//!
//! Limit: the cache has [`ENTRIES`] entries; a flow replaces an older flow that has the same hash.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use tacit_ipsec::packet::IpPacket;

use super::accounts::{AccountIndex, TunnelAccounts};
use super::direction::Direction;
use super::tunnel::{Permission, TunnelFlow, opens_connection, permission};
use crate::ledger::Account;

/// The number of remembered flows.
const ENTRIES: usize = 1_024;
/// Up to this many flows, a search costs less than a look-up.
const FLOWS_WITHOUT_CACHE: usize = 8;

/// The flows of one direction.
#[derive(Debug)]
pub(super) struct FlowCache {
    direction: Direction,
    flows: Arc<[TunnelFlow]>,
    accounts: TunnelAccounts,
    /// Empty if there are few flows of one account.
    entries: Vec<Option<(FlowKey, FlowDecision)>>,
    hasher: RandomState,
    /// The flow of the last packet: often the next packet belongs to the same one.
    last: Option<(FlowKey, FlowDecision)>,
}

/// What is known about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowDecision {
    pub(super) permission: Permission,
    account: Option<AccountIndex>,
}

/// The headers of a packet that decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
}

impl FlowCache {
    pub(super) fn new(
        direction: Direction,
        flows: Arc<[TunnelFlow]>,
        accounts: TunnelAccounts,
    ) -> Self {
        let is_short = flows.len() <= FLOWS_WITHOUT_CACHE && accounts.is_single();
        let entries = if is_short { vec![] } else { vec![None; ENTRIES] };
        Self { direction, flows, accounts, entries, hasher: RandomState::new(), last: None }
    }

    /// Returns the account of a packet.
    pub(super) fn account(&self, decision: FlowDecision) -> &Arc<Account> {
        self.accounts.account(decision.account)
    }

    /// Finds out whether a packet may go through the tunnel, and its account.
    pub(super) fn decide(&mut self, packet: &IpPacket, bytes: &[u8]) -> FlowDecision {
        let search = || FlowDecision {
            permission: permission(&self.flows, self.direction, packet, bytes),
            account: self.accounts.find(self.direction, packet),
        };
        let Some(key) = FlowKey::of(packet, bytes) else { return search() };
        if let Some((known, decision)) = self.last
            && known == key
        {
            return decision;
        }
        let entry = if self.entries.is_empty() {
            None
        } else {
            let hash = usize::try_from(self.hasher.hash_one(key) % ENTRIES as u64).unwrap_or(0);
            self.entries.get_mut(hash)
        };
        let found = match entry {
            Some(Some((known, decision))) if *known == key => *decision,
            Some(entry) => entry.insert((key, search())).1,
            None => search(),
        };
        self.last = Some((key, found));
        found
    }
}

impl FlowKey {
    fn of(packet: &IpPacket, bytes: &[u8]) -> Option<Self> {
        let is_plain = !packet.is_fragment
            && !matches!(packet.protocol, ICMP | ICMPV6)
            && !opens_connection(packet, bytes);
        let ports = packet.ports.filter(|_| is_plain)?;
        let IpPacket { protocol, source, destination, .. } = *packet;
        Some(Self { protocol, source, destination, ports })
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tacit_ipsec::TrafficSelector;

    use super::*;
    use crate::packet::tunnel::FlowOpener;

    fn address(network: u8, host: u8) -> IpAddr {
        [10, network, 0, host].into()
    }

    /// A flow for some protocol and ports, to one host.
    fn flow((protocol, port, host, is_local): (u8, u16, u8, bool)) -> TunnelFlow {
        let end =
            |ports, first, last| TrafficSelector::new(protocol, ports, (first, last)).unwrap();
        TunnelFlow {
            local: end((0, u16::MAX), address(1, 0), address(1, 255)),
            remote: end((port, port + 2), address(2, host), address(2, host)),
            opened_by: if is_local { FlowOpener::Local } else { FlowOpener::Remote },
        }
    }

    /// TCP or UDP headers, with few different values.
    fn packet((protocol, port, host, flags): (u8, u16, u8, u8), direction: Direction) -> Vec<u8> {
        let near = [10, 1, 0, 1];
        let far = [10, 2, 0, host];
        let (from, to, ports) = match direction {
            Direction::Outbound => (near, far, (4_000, port)),
            Direction::Inbound => (far, near, (port, 4_000)),
        };
        let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        bytes.extend([from, to].concat());
        bytes.extend([ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat());
        bytes.resize(40, 0);
        bytes[33] = flags;
        bytes
    }

    proptest! {
        #[test]
        fn the_cache_agrees_with_a_search(
            flows in prop::collection::vec(
                (prop::sample::select(vec![0_u8, 6, 17]), 50_u16..60, 0_u8..4, any::<bool>()),
                0..40,
            ),
            packets in prop::collection::vec(
                (
                    prop::sample::select(vec![6_u8, 17]),
                    50_u16..63,
                    0_u8..4,
                    prop::sample::select(vec![0x02_u8, 0x10, 0x12]),
                ),
                1..200,
            ),
        ) {
            let flows: Arc<[_]> = flows.into_iter().map(flow).collect();
            let mut caches = [Direction::Outbound, Direction::Inbound].map(|direction| {
                FlowCache::new(direction, Arc::clone(&flows), TunnelAccounts::default())
            });
            for (number, headers) in packets.into_iter().enumerate() {
                let cache = &mut caches[number % 2];
                let direction = cache.direction;
                let bytes = packet(headers, direction);
                let parsed = IpPacket::parse(&bytes).unwrap();
                let wanted = permission(&flows, direction, &parsed, &bytes);
                prop_assert_eq!(cache.decide(&parsed, &bytes).permission, wanted);
            }
        }
    }
}
