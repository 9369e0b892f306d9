//! Builds nftables rules that do not use connection tracking, for `tacit agent --host`. Connection
//! tracking costs CPU time for every packet. The agent uses these nftables rules if all of these
//! conditions are true:
//!
//! * The agent captures no inbound connections, and no traffic of containers.
//! * Policy rules that capture or refuse flows have no port range of more than `PORTS_MAX` ports.
//! * Flows that match no policy rule are permitted.
//! * No NAT changes destinations.
//! * The table that is replaced, if any, does not use connection tracking.
//!
//! Other chains send packets to the indented chains:
//!
//! ```text
//! output        accepts packets to addresses outside the range of all policy rules (most packets)
//!   unusual     drops packets with the IP option for a source route
//!   candidates  checks the sender and the destination (address or DNS name) of all other packets
//!     capture   accepts answers to clients, and sends all other packets to `keep`
//!     keep      stores the flow as captured, and sets the fwmark that routes its packets to lo
//!     refuse    rejects packets, except answers to clients
//! strays        sends the packets of connections that the old table captured to `keep`
//! prerouting    handles packets that arrive on lo
//!   looped      sends captured packets to the agent; rejects packets to the agent's own ports
//! postrouting   drops captured packets that would leave the host
//! ```
//!
//! When a new table replaces an old one, captured connections stay captured until they end, even if
//! the new table does not capture their destinations. A TCP packet to a captured destination may
//! belong to no known connection. The nftables rules send this packet to the agent too. If no
//! socket of the agent receives the packet, the kernel resets the connection.

use super::super::expression::Expression;
use super::super::flow_expression::{FlowExpression, FlowKey};
use super::super::host_expression::HostExpression;
use super::super::primitive::{ACK, NftFamily, PacketEnd, SYN};
use super::bounds::Bounds;
use super::flows::{CLOSING, DATAGRAMS, OPEN, OPENING, SERVED};
use super::names::{CLIENTS, Chain, KEPT, MAPS, NAMED, Openers};
use super::rules::{FAMILIES, KEYS, Rules, TCP, TO_THIS_HOST, UDP};
use super::{HostTable, Lifetime};

use Expression::{
    Accept, Drop, Goto, Host, Jump, PastSyn, PortUnreachable, Prohibited, Reset, Syn, Transport,
};
use FlowExpression::{AnyFlag, Flags, InFlows, IsPlainV4, KeepFlow, NotInFlows, ProtocolV4};
use HostExpression::{
    AnySocket, FromLo, HasMoreThanPlainV4, IsForeign, IsLocal, MarkIs, MarkIsNot, Named, NotFromLo,
    OfUser, SetMark, ToLo,
};

/// Whether the chain is part of such a table.
pub(super) fn needs(chain: Chain) -> bool {
    !matches!(chain, Chain::Noted | Chain::Headers | Chain::Rewritten | Chain::Clients)
        && !chain.is_for_containers()
}

/// Whether the chain is part of a table with connection tracking.
pub(super) fn is_needed_with_tracking(chain: Chain) -> bool {
    !matches!(
        chain,
        Chain::Candidates
            | Chain::Unusual
            | Chain::Answered
            | Chain::Looped
            | Chain::Filling
            | Chain::ServeV4
            | Chain::ServeV6
    )
}

/// The chain that keeps a captured flow, by IP version.
const KEEP: [Chain; 2] = [Chain::KeepV4, Chain::KeepV6];
/// The chain for packets to clients, by IP version.
const SERVE: [Chain; 2] = [Chain::ServeV4, Chain::ServeV6];
const FIN: u8 = 0x01;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;

impl Rules {
    /// All rules of a table without connection tracking.
    pub(super) fn push_untracked(&mut self, table: &HostTable<'_>) {
        self.push_keep(table);
        self.push_serve();
        self.push_verdicts_by_sets(table);
        self.push_sections(table);
        self.push_candidates(table);
        self.push_near(table);
        self.push_looped(table);
        self.push_closed_ports();
        self.push_datagrams_of_clients(table);
    }

    /// While flows of an earlier table are added, unknown ones wait: segments are sent again. What
    /// another table captures is known.
    pub(super) fn push_filling(&mut self) {
        let unmarked = Host(MarkIs(self.bits().none));
        let step = "adding the nft rule that drops packets until all flows are copied from the old \
                    nftables table";
        self.push(Chain::Filling, step, &[unmarked, Transport(TCP), PastSyn, Drop]);
        self.push(Chain::Filling, step, &[unmarked, Transport(UDP), Drop]);
    }

    /// Captured connections that the rest of the table does not find. They have the mark already if
    /// another table captures them.
    pub(super) fn push_strays(&mut self) {
        let bits = self.bits();
        for (((_, family_is), set), keep) in FAMILIES.into_iter().zip(KEPT).zip(KEEP) {
            let key = key_of_sent(set);
            let marked = [family_is, Transport(TCP), Host(MarkIs(bits.captured))];
            let to_keep = Goto(keep.name());
            let step =
                "adding the nft rule that finds packets of connections that are already captured";
            self.push(Chain::Strays, step, &[&marked[..], &[to_keep]].concat());
            let stray = [family_is, Transport(TCP), Host(MarkIs(bits.none)), PastSyn];
            let known = [flow(InFlows(set, key)), to_keep];
            self.push(Chain::Strays, step, &[&stray[..], &known].concat());
        }
    }

    /// The flow is captured, and stays so.
    pub(super) fn push_keep(&mut self, table: &HostTable<'_>) {
        let captured = [Host(SetMark(self.bits().captured)), Accept];
        for ((chain, set), (named, (family, _))) in
            KEEP.into_iter().zip(KEPT).zip(NAMED.into_iter().zip(FAMILIES))
        {
            let key = key_of_sent(set);
            let mut push = |what: &[Expression], then: &[Expression]| {
                let step =
                    "adding the nft rule that captures further packets of a captured connection";
                self.push(chain, step, &[what, then].concat());
            };
            if table.names.is_some() {
                // The address is in use.
                push(&[Host(Named(named, family))], &[]);
            }
            // Most packets have data, or acknowledge data.
            let data = flow(Flags(PSH | SYN | FIN | RST, PSH));
            push(&[data, flow(KeepFlow(set, key, OPEN))], &captured);
            push(&[flow(Flags(SYN | FIN | RST, 0))], &captured);
            push(&[Syn, flow(KeepFlow(set, key, OPENING))], &captured);
            push(&[Syn], &[Reset]);
            push(&[flow(AnyFlag(FIN | RST)), flow(KeepFlow(set, key, CLOSING))], &captured);
            push(&[], &captured);
        }
    }

    /// What a server sends to a client.
    fn push_serve(&mut self) {
        for (chain, set) in SERVE.into_iter().zip(CLIENTS) {
            let key = key_of_sent(set);
            let step = "adding the nft rule that accepts answers to clients";
            let closing = [flow(AnyFlag(FIN | RST)), flow(KeepFlow(set, key, CLOSING)), Accept];
            self.push(chain, step, &closing);
            self.push(chain, step, &[flow(KeepFlow(set, key, SERVED)), Accept]);
            self.push(chain, step, &[Accept]);
        }
    }

    /// The chains that the maps lead to.
    fn push_verdicts_by_sets(&mut self, table: &HostTable<'_>) {
        let [tcp4, tcp6, udp4, udp6] = CLIENTS;
        for chain in [Chain::Capture, Chain::Refuse, Chain::Prohibit] {
            let step = "adding the nft rule that accepts answers to clients";
            for (((_, family_is), set), serve) in FAMILIES.into_iter().zip([tcp4, tcp6]).zip(SERVE)
            {
                let known = flow(InFlows(set, key_of_sent(set)));
                let answer = [family_is, Transport(TCP), PastSyn, known, Goto(serve.name())];
                self.push(chain, step, &answer);
            }
            for ((_, family_is), set) in FAMILIES.into_iter().zip([udp4, udp6]) {
                let key = key_of_sent(set);
                let known = [flow(InFlows(set, key)), flow(KeepFlow(set, key, DATAGRAMS)), Accept];
                self.push(chain, step, &[&[family_is, Transport(UDP)][..], &known].concat());
            }
            let local = [Host(IsLocal(PacketEnd::Destination)), Accept];
            self.push(chain, "adding the nft rule that accepts packets to this host", &local);
            for ((_, family_is), set) in FAMILIES.into_iter().zip([tcp4, tcp6]) {
                let answers_syn = flow(Flags(SYN | ACK, SYN | ACK));
                let noted = [flow(KeepFlow(set, key_of_sent(set), SERVED)), Accept];
                let answer = [&[family_is, Transport(TCP), answers_syn][..], &noted].concat();
                self.push(chain, "adding the nft rule that records flows of clients", &answer);
            }
            let filling = Jump(Chain::Filling.name());
            self.push(
                chain,
                "adding the nft rule that jumps to the temporary chain `filling`",
                &[filling],
            );
        }
        self.push_capture(table.lifetime);
        self.push_refusals(table);
    }

    fn push_capture(&mut self, lifetime: Lifetime) {
        let capture = Chain::Capture;
        if lifetime == Lifetime::OfInstaller {
            let older = [Transport(TCP), PastSyn, Accept];
            self.push(
                capture,
                "adding the nft rule that accepts connections that existed before the nftables \
                 rules",
                &older,
            );
        }
        for ((_, family_is), keep) in FAMILIES.into_iter().zip(KEEP) {
            let kept = [family_is, Transport(TCP), Goto(keep.name())];
            self.push(capture, "adding the nft rule that captures a connection", &kept);
        }
        let marked = [Host(SetMark(self.bits().captured)), Accept];
        let [_, _, udp4, udp6] = KEPT;
        for ((_, family_is), set) in FAMILIES.into_iter().zip([udp4, udp6]) {
            let noted = flow(KeepFlow(set, key_of_sent(set), DATAGRAMS));
            let kept = [&[family_is, Transport(UDP), noted][..], &marked].concat();
            self.push(capture, "adding the nft rule that captures datagrams", &kept);
        }
        let full = [Transport(UDP), PortUnreachable];
        self.push(
            capture,
            "adding the nft rule that rejects datagrams if there are too many flows",
            &full,
        );
    }

    /// What is near the destination of a rule.
    fn push_candidates(&mut self, table: &HostTable<'_>) {
        let chain = Chain::Candidates;
        let marked = [Host(MarkIsNot(self.bits().none)), Jump(Chain::Marked.name())];
        self.push(chain, "adding the nft rule that checks packets with a fwmark", &marked);
        self.push_own_packets(Chain::Marked);
        if let Some(user) = table.user {
            let of_agent = [Host(OfUser(user)), Accept];
            self.push(
                chain,
                "adding the nft rule that accepts packets from processes of the agent's user",
                &of_agent,
            );
        }
        // What goes to an address of this host in another way is accepted where it is captured.
        let local = [Host(ToLo), Host(IsLocal(PacketEnd::Destination)), Accept];
        self.push(chain, "adding the nft rule that accepts packets to this host", &local);
        for (((_, family_is), set), keep) in FAMILIES.into_iter().zip(KEPT).zip(KEEP) {
            let known = flow(InFlows(set, key_of_sent(set)));
            let kept = [family_is, Transport(TCP), PastSyn, known, Goto(keep.name())];
            let step =
                "adding the nft rule that finds packets of connections that are already captured";
            self.push(chain, step, &kept);
        }
        self.push_filter_call(table, chain);
        self.push_destinations(chain, table);
    }

    /// The first comparison of every packet. Unusual packets have a chain of their own.
    fn push_near(&mut self, table: &HostTable<'_>) {
        if table.lifetime == Lifetime::Unlimited {
            self.push_source_routes(Chain::Unusual);
        }
        let step = "adding the nft rule that checks packets to the destinations of policy rules";
        for (map, key) in MAPS.into_iter().zip(KEYS) {
            let bounds = Bounds::of_map(table, map);
            if let Some(bounds) = bounds {
                self.push_near_one(step, key, bounds, &[]);
            }
            // What the rules only count is looked up once for each connection.
            if let Some(bounds) = Bounds::of_counted(table, map, bounds) {
                let (protocol, ..) = key;
                let first = if protocol == TCP { &[Syn][..] } else { &[] };
                let step = "adding the nft rule that selects the flows to count";
                self.push_near_one(step, key, bounds, first);
            }
        }
        let unusual = [Host(HasMoreThanPlainV4), Goto(Chain::Unusual.name())];
        self.push(
            Chain::Output,
            "adding the nft rule that checks packets with IP options",
            &unusual,
        );
        for chain in [Chain::Unusual, Chain::Output] {
            self.push_filter_call(table, chain);
        }
    }

    /// Packets of one protocol and IP version to these destinations are candidates, if they meet
    /// these conditions.
    fn push_near_one(
        &mut self,
        step: &'static str,
        (protocol, family, family_is): (u8, NftFamily, Expression),
        bounds: Bounds,
        conditions: &[Expression],
    ) {
        let candidates = Goto(Chain::Candidates.name());
        if family == NftFamily::V4 {
            let plain = [flow(IsPlainV4), flow(ProtocolV4(protocol))];
            let near = [&plain[..], &bounds.near_v4(), conditions, &[candidates]].concat();
            self.push(Chain::Output, step, &near);
        }
        let near = [&[family_is, Transport(protocol)], &bounds.to()[..], conditions, &[candidates]];
        self.push(Chain::Unusual, step, &near.concat());
    }

    /// What arrives on `lo`.
    fn push_looped(&mut self, table: &HostTable<'_>) {
        let looped = [Host(FromLo), Jump(Chain::Looped.name())];
        self.push(
            Chain::Prerouting,
            "adding the nft rule that checks packets that arrive on lo",
            &looped,
        );
        let answered = [Transport(TCP), flow(AnyFlag(SYN | RST)), Jump(Chain::Answered.name())];
        self.push(
            Chain::Looped,
            "adding the nft rule that checks answers to captured flows",
            &answered,
        );
        for ((family, family_is), set) in FAMILIES.into_iter().zip(KEPT) {
            let key = FlowKey::Received(family);
            for (flags, time) in [(Flags(SYN | ACK, SYN | ACK), OPEN), (AnyFlag(RST), CLOSING)] {
                let known = [flow(InFlows(set, key)), flow(KeepFlow(set, key, time))];
                let noted = [&[family_is, flow(flags)][..], &known].concat();
                self.push(
                    Chain::Answered,
                    "adding the nft rule that records answers to captured flows",
                    &noted,
                );
            }
        }
        let marked = [Host(MarkIsNot(self.bits().none)), Jump(Chain::Returned.name())];
        self.push(Chain::Looped, "adding the nft rule that checks packets with a fwmark", &marked);
        self.push_returned_to_agent(table);
    }

    /// A datagram from a destination of rules that comes first, to a socket, is that of a client.
    fn push_datagrams_of_clients(&mut self, table: &HostTable<'_>) {
        for (((map, (protocol, family, family_is)), kept), clients) in
            MAPS.into_iter().zip(KEYS).zip(KEPT).zip(CLIENTS)
        {
            let Some(bounds) = Bounds::of_map(table, map) else { continue };
            if protocol != UDP {
                continue;
            }
            let key = FlowKey::Received(family);
            let noted = [flow(NotInFlows(kept, key)), flow(KeepFlow(clients, key, DATAGRAMS))];
            let from = [Host(NotFromLo), family_is, Transport(UDP)];
            for own in TO_THIS_HOST {
                let to_socket = [own, &[Host(AnySocket)]].concat();
                let client = [&from[..], &bounds.from(), &to_socket, &noted].concat();
                let step = "adding the nft rule that marks clients' UDP flows";
                self.push(Chain::Prerouting, step, &client);
            }
        }
    }

    /// The chains `refuse` and `prohibit`, for what no earlier rule accepts.
    pub(super) fn push_refusals(&mut self, table: &HostTable<'_>) {
        if table.forwarded.is_empty() {
            // The refusal would bring the content of the datagram to the address.
            let foreign = [Transport(UDP), Host(IsForeign(PacketEnd::Source)), Drop];
            for chain in [Chain::Refuse, Chain::Prohibit] {
                let step = "adding the nft rule that drops datagrams with the source address of \
                            another host";
                self.push(chain, step, &foreign);
            }
        }
        for (protocol, refusal) in [(TCP, Reset), (UDP, PortUnreachable)] {
            let refused = [Transport(protocol), refusal];
            self.push(
                Chain::Refuse,
                "adding the nft rule that rejects packets of denied flows",
                &refused,
            );
        }
        self.push(
            Chain::Prohibit,
            "adding the nft rule that rejects denied packets with the ICMP error \
             \"administratively prohibited\"",
            &[Prohibited],
        );
    }
}

fn flow(expression: FlowExpression) -> Expression {
    Host(HostExpression::Flow(expression))
}

/// How packets of a program have the key of a set; the last letter of its name is the IP version.
fn key_of_sent(set: &str) -> FlowKey {
    FlowKey::Sent(if set.ends_with('4') { NftFamily::V4 } else { NftFamily::V6 })
}

/// How the table finds out who opened a flow, if no other program needs connection tracking.
pub(super) fn openers(table: &HostTable<'_>) -> Openers {
    let is_simple = table.others == super::PacketVerdict::Pass
        && table.inbound.is_empty()
        && table.forwarded.is_empty();
    let sections = table.sections.iter().flat_map(|section| section.outbound);
    let decided = sections.filter(|one| one.verdict != super::PacketVerdict::Pass);
    let mut ports = decided.map(|one| (one.to.first_port, one.to.last_port));
    let named = table.names.iter().flat_map(|names| names.ports);
    let mut named = named.map(|one| (one.first_port, one.last_port));
    let is_wide = |(first, last): (u16, u16)| last - first >= PORTS_MAX;
    if is_simple && !ports.any(is_wide) && !named.any(is_wide) {
        Openers::InSets
    } else {
        Openers::Tracked
    }
}

/// A destination with more ports than this one is that of many answers to clients.
const PORTS_MAX: u16 = 1024;
