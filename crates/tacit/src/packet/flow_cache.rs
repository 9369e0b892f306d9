//! Defines [`FlowCache`], the cache of one direction of a tunnel. For each flow, the cache stores
//! three facts: whether the tunnel permits the flow, to which account the CPU time is added, and
//! which filter rule decides about the packets. Without the cache, each packet would be compared
//! with long lists of flows and rules.
//!
//! Fragments, ICMP packets, and the first packets of TCP connections do not use the cache. Their
//! addresses and ports are not sufficient for a decision.
//!
//! Limit: the cache has [`ENTRIES`] entries; a flow replaces an older flow that has the same hash.
//! The cache is emptied when the filter rules change, and when one of their time windows opens or
//! closes.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use tacit_ipsec::esp::DropReason;
use tacit_ipsec::packet::IpPacket;

use super::accounts::{AccountIndex, TunnelAccounts};
use super::direction::Direction;
use super::filter::TunnelFilter;
use super::filter_reader::{FilterReader, FilterResult};
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
    filter: FilterReader,
    /// Empty if there are few flows of one account, and no filter rule.
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
    /// Filter rules are not compared with packets that no flow permits.
    filter: FilterResult,
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
        filter: Arc<TunnelFilter>,
    ) -> Self {
        let mut cache = Self {
            direction,
            flows,
            accounts,
            filter: FilterReader::new(filter),
            entries: Vec::new(),
            hasher: RandomState::new(),
            last: None,
        };
        cache.clear();
        cache
    }

    fn clear(&mut self) {
        let is_short = self.flows.len() <= FLOWS_WITHOUT_CACHE
            && self.accounts.is_single()
            && self.filter.is_empty();
        self.entries = if is_short { vec![] } else { vec![None; ENTRIES] };
        self.last = None;
    }

    /// Permits other flows from now on.
    pub(super) fn permit(&mut self, flows: Arc<[TunnelFlow]>, accounts: TunnelAccounts) {
        self.flows = flows;
        self.accounts = accounts;
        self.clear();
    }

    /// Returns the account of a packet.
    pub(super) fn account(&self, decision: FlowDecision) -> &Arc<Account> {
        self.accounts.account(decision.account)
    }

    /// Counts a packet of the tunnel for the filter rule that has decided about it.
    ///
    /// # Errors
    /// The rule denies the packet.
    pub(super) fn filter(&self, decision: FlowDecision) -> Result<(), DropReason> {
        self.filter.count(decision.filter)
    }

    /// Finds out whether a packet may go through the tunnel, and its account.
    pub(super) fn decide(&mut self, packet: &IpPacket, bytes: &[u8]) -> FlowDecision {
        if self.filter.follow() {
            self.clear();
        }
        let search = || {
            let permission = permission(&self.flows, self.direction, packet, bytes);
            let filter = match permission {
                Permission::Denied => FilterResult::Unmatched,
                Permission::Granted | Permission::Answer => {
                    self.filter.compare(self.direction, packet, bytes)
                }
            };
            let account = self.accounts.find(self.direction, packet);
            FlowDecision { permission, account, filter }
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

    use tacit_core::policy::filter::{FilterPacket, FilterVerdict, PacketPath, filter_scan};

    use super::*;
    use crate::packet::filter::testing::Filtered;
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

    /// The keys of a filter rule for some of these packets.
    fn filter((verdict, protocol, port, host, opener): (&str, &str, u16, u8, &str)) -> String {
        let opener = if protocol == "tcp" { opener } else { "" };
        format!(
            "filter = \"{verdict}\"\nprotocol = \"{protocol}\"\nremote-ports = \"{port}-{}\"\n\
             remote = \"10.2.0.{host}/31\"\n{opener}\n",
            port + 3
        )
    }

    /// What a scan of the filter rules says about a packet that a flow permits.
    fn scanned(filtered: &Filtered, direction: Direction, bytes: &[u8]) -> FilterResult {
        let ike = "branch".to_owned();
        let path = match direction {
            Direction::Outbound => PacketPath::ToTunnel(ike),
            Direction::Inbound => PacketPath::FromTunnel(ike),
        };
        let packet = FilterPacket::of_bytes(path, bytes).unwrap();
        let Some(found) = filter_scan(&filtered.policy, &packet, 0).filter else {
            return FilterResult::Unmatched;
        };
        let mut filters = filtered.policy.filters.iter();
        let at = filters.position(|one| one.name == found.name).unwrap();
        let at = u32::try_from(at).unwrap();
        match found.verdict {
            FilterVerdict::Permit => FilterResult::Permitted(at),
            FilterVerdict::Deny(_) => FilterResult::Denied(at),
        }
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
            filters in prop::collection::vec(
                (
                    prop::sample::select(vec!["permit", "deny"]),
                    prop::sample::select(vec!["tcp", "udp"]),
                    50_u16..63,
                    prop::sample::select(vec![0_u8, 2]),
                    prop::sample::select(vec![
                        "", "opened-by = \"local\"", "opened-by = \"remote\"",
                    ]),
                ),
                0..8,
            ),
        ) {
            let rules: Vec<_> = filters.into_iter().map(filter).collect();
            let mut filtered = Filtered::new(&rules);
            let flows: Arc<[_]> = flows.into_iter().map(flow).collect();
            let mut caches = [Direction::Outbound, Direction::Inbound]
                .map(|direction| {
                    let filter = filtered.filters.of("branch");
                    FlowCache::new(direction, Arc::clone(&flows), TunnelAccounts::default(), filter)
                });
            for (number, headers) in packets.into_iter().enumerate() {
                if number == 100 {
                    // Other rules replace what the caches have stored.
                    filtered.install(&rules[rules.len() / 2..]);
                }
                let cache = &mut caches[number % 2];
                let direction = cache.direction;
                let bytes = packet(headers, direction);
                let parsed = IpPacket::parse(&bytes).unwrap();
                let permission = permission(&flows, direction, &parsed, &bytes);
                let filter = match permission {
                    Permission::Denied => FilterResult::Unmatched,
                    _ => scanned(&filtered, direction, &bytes),
                };
                let decision = cache.decide(&parsed, &bytes);
                prop_assert_eq!(decision.permission, permission);
                prop_assert_eq!(decision.filter, filter);
            }
        }
    }
}
