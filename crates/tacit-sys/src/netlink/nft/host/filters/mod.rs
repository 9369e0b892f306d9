//! Builds the nftables chains and maps that permit and deny single packets, for `tacit agent
//! --host`.
//!
//! ```text
//! maps filter_N                 fields of a packet -> counter and verdict
//! set filter_windows            `when` conditions, each until its next change
//! filter_fragments              hook prerouting, before the kernel reassembles packets
//! filter_forward                hook forward: packets from other hosts to other hosts
//! filter_in                     packets to this host; the chains `input` and `clients` call it
//! filter_out                    packets from this host
//!   filter_in_tcp4 ...          looks up the packet in each group, in order
//!     filter_drop ...           drops or rejects a denied packet
//! ```
//!
//! Each map is a *group* of entries: the kernel finds an entry of a group with one look-up. The
//! chain `output` calls `filter_out` before `output` looks up the destination. The chain
//! `rewritten` calls `filter_out` if NAT has changed the destination.
//!
//! The set `filter_windows` contains `when` conditions of policy rules. The kernel removes a
//! condition when it changes, even if the agent does not run. The removal must make the policy
//! stricter. So if a rule permits packets, its condition is in the set while the condition is true.
//! If a rule denies packets, its condition is in the set while the condition is false.
//!
//! If an entry permits a packet, the kernel accepts the packet, and no later nftables rule captures
//! or refuses the packet. If no group has an entry for the packet, the packet returns to the
//! calling chain. Some entries also return the packet, so that the rules for flows decide.
//!
//! The nftables rules never deny packets of the agent. They recognise these packets by fwmark,
//! socket or user. Received fragments are an exception: they do not show their socket.

mod groups;

use super::super::expression::Expression;
use super::super::filter_expression::{FilterExpression, GroupLookup, RuleName};
use super::super::host_expression::HostExpression;
use super::super::primitive::{NftFamily, PacketEnd};
use super::HostTable;
use super::names::Chain;
use super::rules::{Bits, Rules, TCP, UDP};

use groups::DiscardPlace;
pub use groups::{
    FILTER_GROUPS_MAX, HostFilters, LOGGED_FILTERS_MAX, LoggedFilter, PACKET_ELEMENTS_MAX,
    PacketElement, PacketGroup, PacketOutcome, WindowTime, count_filters, set_windows,
};
pub(super) use groups::{contents, declarations};

use Expression::{
    Accept, AtMostPerSecond, Drop, Goto, Host, Jump, MarkedSocket, PastSyn, PortUnreachable,
    Prohibited, Reset, Transport,
};
use FilterExpression::{IsFragmentV4, IsFragmentV6, Lookup, WindowIs};
use HostExpression::{Filter, IsRewritten, MarkIs, OfUser, SetMark};

/// The class of fragments. The bits 1, 2, 4 and 8 are TCP, UDP, ICMP and other protocols.
const FRAGMENTS: u8 = 16;
/// The ways of packets: to this host, from this host, and forwarded with the destination or the
/// source as the local end.
const IN: u8 = 1;
const OUT: u8 = 2;
const ROUTED_IN: u8 = 4;
const ROUTED_OUT: u8 = 8;

/// The chains for one way of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
    Routed,
    Fragments,
}

impl Way {
    const ALL: [Self; 4] = [Self::In, Self::Out, Self::Routed, Self::Fragments];

    /// The views of groups for these packets, and the end that is the local one.
    fn views(self) -> &'static [(u8, PacketEnd)] {
        match self {
            Self::In | Self::Fragments => &[(IN, PacketEnd::Destination)],
            Self::Out => &[(OUT, PacketEnd::Source)],
            Self::Routed => &[(ROUTED_IN, PacketEnd::Destination), (ROUTED_OUT, PacketEnd::Source)],
        }
    }

    /// The chain that selects the chain of a class.
    fn chain(self) -> Chain {
        match self {
            Self::In => Chain::FilterIn,
            Self::Out => Chain::FilterOut,
            Self::Routed => Chain::FilterForward,
            Self::Fragments => Chain::FilterFragments,
        }
    }

    fn classes(self) -> &'static [u8] {
        match self {
            Self::Fragments => &[FRAGMENTS],
            Self::In | Self::Out | Self::Routed => &[1, 2, 4, 8],
        }
    }

    fn has(self, group: &PacketGroup<'_>) -> bool {
        let is_class = self.classes().iter().any(|class| group.classes & class != 0);
        is_class && self.views().iter().any(|(view, _)| group.views & view != 0)
    }

    /// The chain with the lookups for a class of packets.
    fn class_chain(self, class: u8, family: NftFamily) -> &'static str {
        let [tcp, udp, icmp, other] = match (self, family) {
            (Self::In, NftFamily::V4) => {
                ["filter_in_tcp4", "filter_in_udp4", "filter_in_icmp4", "filter_in_other4"]
            }
            (Self::In, NftFamily::V6) => {
                ["filter_in_tcp6", "filter_in_udp6", "filter_in_icmp6", "filter_in_other6"]
            }
            (Self::Out, NftFamily::V4) => {
                ["filter_out_tcp4", "filter_out_udp4", "filter_out_icmp4", "filter_out_other4"]
            }
            (Self::Out, NftFamily::V6) => {
                ["filter_out_tcp6", "filter_out_udp6", "filter_out_icmp6", "filter_out_other6"]
            }
            (Self::Routed, NftFamily::V4) => [
                "filter_routed_tcp4",
                "filter_routed_udp4",
                "filter_routed_icmp4",
                "filter_routed_other4",
            ],
            (Self::Routed, NftFamily::V6) => [
                "filter_routed_tcp6",
                "filter_routed_udp6",
                "filter_routed_icmp6",
                "filter_routed_other6",
            ],
            (Self::Fragments, NftFamily::V4) => ["filter_fragments4"; 4],
            (Self::Fragments, NftFamily::V6) => ["filter_fragments6"; 4],
        };
        match class {
            1 => tcp,
            2 => udp,
            4 => icmp,
            _ => other,
        }
    }
}

/// Whether the table needs a chain.
pub(super) fn needs(table: &HostTable<'_>, chain: Chain) -> bool {
    let Some(filters) = &table.filters else { return false };
    let has = |way: Way| filters.groups.iter().any(|group| way.has(group));
    match chain {
        Chain::FilterFragments => has(Way::Fragments),
        Chain::FilterForward => has(Way::Routed),
        Chain::FilterIn => has(Way::In),
        Chain::FilterOut => has(Way::Out),
        _ => true,
    }
}

/// The chains with lookups.
pub(super) fn chains(table: &HostTable<'_>) -> Vec<String> {
    let Some(filters) = &table.filters else { return Vec::new() };
    let mut chains = Vec::new();
    for (way, family) in ways(filters) {
        let of_class = way.classes().iter().map(|class| way.class_chain(*class, family).to_owned());
        chains.extend(of_class);
    }
    for rule in filters.logged {
        chains.extend(DiscardPlace::ALL.map(|place| LoggedFilter::chain(rule.number, place)));
    }
    chains
}

/// The ways and IP versions that have groups.
fn ways(filters: &HostFilters<'_>) -> Vec<(Way, NftFamily)> {
    let has = |way: Way, family: NftFamily| {
        let of_family = |group: &&PacketGroup<'_>| group.family() == family;
        filters.groups.iter().filter(of_family).any(|group| way.has(group))
    };
    let families = [NftFamily::V4, NftFamily::V6];
    let all = Way::ALL.into_iter().flat_map(|way| families.map(|family| (way, family)));
    all.filter(|(way, family)| has(*way, *family)).collect()
}

impl Rules {
    /// All rules for single packets.
    pub(super) fn push_filters(&mut self, table: &HostTable<'_>) {
        let Some(filters) = &table.filters else { return };
        self.push_discards(table);
        for rule in filters.logged {
            self.push_log(rule);
        }
        if needs(table, Chain::FilterIn) {
            // A program that restores connection marks makes the agent's mark of the note that a
            // client has opened the flow. What the agent receives is known by its socket.
            let Bits { agent, none, .. } = self.bits();
            let step = "adding the nft rule that clears the agent's fwmark on received packets";
            self.push(Chain::FilterIn, step, &[Host(MarkIs(agent)), Host(SetMark(none))]);
        }
        for (way, family) in ways(filters) {
            self.push_classes(filters, way, family);
        }
    }

    /// Calls the filter for packets from this host. Packets that stay on the host are not filtered.
    pub(super) fn push_filter_call(&mut self, table: &HostTable<'_>, chain: Chain) {
        if needs(table, Chain::FilterOut) {
            let call = [Host(HostExpression::NotToLo), Jump(Chain::FilterOut.name())];
            self.push(chain, "adding the nft rule that filters packets sent by this host", &call);
        }
    }

    /// Calls the filter for packets whose destination the host's NAT has changed: before that, it
    /// has seen another destination.
    pub(super) fn push_filter_of_rewritten(&mut self, table: &HostTable<'_>) {
        if needs(table, Chain::FilterOut) {
            // A packet that connection tracking does not know was not redirected: count it once.
            let call = [Host(IsRewritten(true)), Jump(Chain::FilterOut.name())];
            let step = "adding the nft rule that filters this host's packets after NAT has \
                        changed their destination";
            self.push(Chain::Rewritten, step, &call);
        }
    }

    /// Calls the filter for packets of clients to captured ports, which are decided only here.
    pub(super) fn push_filter_of_clients(&mut self, table: &HostTable<'_>) {
        if needs(table, Chain::FilterIn) {
            let call = [Jump(Chain::FilterIn.name())];
            self.push(Chain::Clients, "adding the nft rule that filters packets of clients", &call);
        }
    }

    /// The rules of a way for one IP version: those that select a chain, and those in these chains.
    fn push_classes(&mut self, filters: &HostFilters<'_>, way: Way, family: NftFamily) {
        let family_is = Expression::NftFamily(family);
        for class in way.classes() {
            let to_chain = Goto(way.class_chain(*class, family));
            let icmp = if family == NftFamily::V4 { ICMP } else { ICMPV6 };
            let condition = match *class {
                1 => Some(Transport(TCP)),
                2 => Some(Transport(UDP)),
                4 => Some(Transport(icmp)),
                FRAGMENTS if family == NftFamily::V4 => Some(Host(Filter(IsFragmentV4))),
                FRAGMENTS => Some(Host(Filter(IsFragmentV6))),
                _ => None,
            };
            let not_lo = (way == Way::Fragments).then_some(Host(HostExpression::NotFromLo));
            let selected: Vec<_> =
                not_lo.into_iter().chain([family_is]).chain(condition).chain([to_chain]).collect();
            self.push(
                way.chain(),
                "adding the nft rule that selects a filter chain by protocol",
                &selected,
            );
            for (number, group) in filters.groups.iter().enumerate() {
                let is_of_chain = group.family() == family && group.classes & class != 0;
                for (view, local) in way.views() {
                    if is_of_chain && group.views & view != 0 {
                        self.push_lookup(way.class_chain(*class, family), number, group, *local);
                    }
                }
            }
        }
    }

    fn push_lookup(
        &mut self,
        chain: &str,
        number: usize,
        group: &PacketGroup<'_>,
        local: PacketEnd,
    ) {
        let window = group.gate.map(|gate| Host(Filter(WindowIs(gate))));
        let past_opening = group.past_opening.then_some(PastSyn);
        let lookup = Host(Filter(Lookup(GroupLookup::of(
            number,
            group.family(),
            group.key_fields(),
            local,
        ))));
        let rule: Vec<_> = window.into_iter().chain(past_opening).chain([lookup]).collect();
        self.push_in(chain, "adding the nft rule that looks up packets in a verdict map", &rule);
    }

    /// The chains that log the packets of a rule. It decides also about those above the limit.
    fn push_log(&mut self, rule: &LoggedFilter<'_>) {
        for place in DiscardPlace::ALL {
            let chain = LoggedFilter::chain(rule.number, place);
            let log = Host(Filter(FilterExpression::Log(RuleName::new(rule.name))));
            let logged = [AtMostPerSecond { packets: LOGGED_PER_SECOND, burst: LOGGED_BURST }, log];
            self.push_in(&chain, "adding the nft rule that logs packets", &logged);
            let then = match place.chain(rule.outcome) {
                Some(chain) => Goto(chain.name()),
                None => Accept,
            };
            let step = "adding the nft rule that applies the verdict to logged packets";
            self.push_in(&chain, step, &[then]);
        }
    }

    /// The chains to which maps lead.
    fn push_discards(&mut self, table: &HostTable<'_>) {
        let agent = self.bits().agent;
        for chain in [Chain::FilterDrop, Chain::FilterIcmp, Chain::FilterReset] {
            let step = "adding the nft rule that accepts packets of the agent";
            self.push(chain, step, &[Host(MarkIs(agent)), Accept]);
            self.push(chain, step, &[MarkedSocket(table.marks.agent()), Accept]);
            if let Some(user) = table.user {
                self.push(chain, step, &[Host(OfUser(user)), Accept]);
            }
        }
        let step = "adding the nft rule that drops or rejects denied packets";
        for (chains, discards) in [
            ([Chain::FilterDrop, Chain::FilterRoutedDrop], &[&[Drop][..]][..]),
            ([Chain::FilterIcmp, Chain::FilterRoutedIcmp], &[&[Prohibited], &[Drop]]),
            (
                [Chain::FilterReset, Chain::FilterRoutedReset],
                &[&[Transport(TCP), Reset], &[PortUnreachable], &[Drop]],
            ),
        ] {
            for chain in chains {
                for discard in discards {
                    self.push(chain, step, discard);
                }
            }
        }
    }
}

/// How many packets of each rule are logged in a second.
const LOGGED_PER_SECOND: u64 = 10;
/// How many more may be logged at once.
const LOGGED_BURST: u32 = 5;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
