//! Builds the nftables rules that use connection tracking, for `tacit agent --host`. `untracked.rs`
//! builds the nftables rules for hosts that do not need connection tracking.
//!
//! The nftables rules hold a captured SYN: the agent gets a copy, and the kernel drops the SYN.
//! When the agent has connected to the destination, it releases the SYN: it sends the SYN again.
//! The chains are, in the order of evaluation:
//!
//! ```text
//! output       decides about the packets of programs, by sender and destination
//!   marked     accepts the agent's own packets, and SYNs that the agent has released
//!   headers    drops packets with a source route
//!   noted      captures the later packets of captured connections
//! forwarded    receives packets from the interfaces of containers
//!   forwarding decides about packets of containers, by destination
//! routed       refuses packets of containers if DNAT gives them a captured destination
//! rewritten    refuses packets of programs if DNAT gives them a captured destination
//! prerouting   marks a connection (conntrack mark) if a client has opened it
//!   returned   sends captured packets on lo to the agent; holds a SYN until the agent releases it
//!   clients    sends packets of clients to the agent if a program listens at the captured port
//!   closed     refuses packets to the agent's own ports
//! input        refuses packets to captured ports if the agent does not get them (see `input.rs`)
//! postrouting  drops captured packets that would leave the host
//! ```
//!
//! The decisions `capture`, `refuse` and `prohibit` apply only to connections that programs have
//! opened, and not to answers to clients. Connection tracking shows which side has opened a
//! connection. This does not work for connections that are older than the nftables table.
//!
//! A captured TCP connection stays captured until it ends, even if a later nftables table does not
//! capture its destination. Otherwise the next segment of the connection would leave in clear. If
//! no socket of the agent receives a captured packet, the nftables rules refuse the packet.

use super::super::expression::Expression;
use super::super::host_expression::{
    HostExpression, InterfaceName, MarkBits, SectionMap, SourceRoute, section_chain,
};
use super::super::primitive::{NftFamily, PacketEnd, Redirect};
use super::super::rules::rule_in;
use super::bounds::{Bounds, near_ports};
use super::elements::map_of;
use super::names::{Chain, INBOUND, MAPS, NAMED, Openers};
use super::{HostMarks, HostTable, Layout, Lifetime, PacketVerdict, SenderCheck, Stage};
use crate::ip_version::IpSupport;
use crate::netlink::message::NetlinkRequest;
use crate::netlink::nft::agent::{AGENT_PORT, HOLD_PORT, INBOUND_PORT};

use Expression::{
    Accept, CopyToAgent, Drop, Goto, Host, Jump, MarkedSocket, PastSyn, PortUnreachable, Reset,
    Syn, ToAgent, ToHold, ToPort, Transport, WithoutSyn,
};
use HostExpression::{
    AnySocket, ConnectionMarkIs, ConnectionMarkIsNot, Counted, Flow, FromLo, HasMoreThanPlainV4,
    IsAnycast, IsForeign, IsLocal, IsNotAnycast, IsOriginal, IsReply, IsRewritten, MarkIs,
    MarkIsNot, Named, NotFromLo, NotSentOn, NotToLo, OfCgroup, OfGroup, OfUser, ReceivedOn,
    SentFrom, SetConnectionMark, SetMark, SourceRouted, StaysHere, ToInbound, ToLo, ToSection,
    Transparent, Verdict,
};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
const DNS_PORT: u16 = 53;
const V4: Expression = Expression::NftFamily(NftFamily::V4);
const V6: Expression = Expression::NftFamily(NftFamily::V6);
/// Protocol and IP version of each of [`MAPS`].
pub(super) const KEYS: [(u8, NftFamily, Expression); 4] = [
    (TCP, NftFamily::V4, V4),
    (TCP, NftFamily::V6, V6),
    (UDP, NftFamily::V4, V4),
    (UDP, NftFamily::V6, V6),
];

/// What a packet is that the kernel will deliver to this host, for chains of the hook `prerouting`.
///
/// The kernel gives the type *anycast* to the base address of each IPv6 prefix that has a route
/// without a router: of a local prefix, and of one that other hosts have.
pub(super) const TO_THIS_HOST: [&[Expression]; 2] = [
    &[Host(IsLocal(PacketEnd::Destination))],
    &[V6, Host(IsAnycast(PacketEnd::Destination)), Host(StaysHere)],
];

/// All rules.
pub(super) fn all(kernel: IpSupport, table: &HostTable<'_>, layout: Layout) -> Vec<NetlinkRequest> {
    let redirect = match kernel {
        IpSupport::V4Only => Redirect::V4,
        IpSupport::V4AndV6 => Redirect::Any,
    };
    let mut rules = Rules { bits: Bits::of(table.marks), redirect, list: Vec::new() };
    rules.push_to_programs(table);
    match layout.openers {
        Openers::InSets => rules.push_untracked(table),
        Openers::Tracked => rules.push_tracked(table),
    }
    rules.push_filters(table);
    rules.push_input(table);
    if layout.stage == Stage::Replacing {
        rules.push_strays();
        if layout.openers == Openers::InSets {
            rules.push_filling();
        }
    }
    rules.push_leaving();
    rules.list
}

/// The sections that have a chain.
pub(super) fn chained(table: &HostTable<'_>) -> impl Iterator<Item = usize> {
    let sections = table.sections.iter().enumerate();
    sections.filter(|(_, section)| !section.is_for_all()).map(|(number, _)| number)
}

/// What the marks say.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    pub(super) agent: MarkBits,
    pub(super) captured: MarkBits,
    pub(super) release: MarkBits,
    /// Captured or released: a routing rule returns it to `lo`.
    returns: MarkBits,
    /// Of a connection: nothing is noted. Of a packet: it has no mark.
    pub(super) none: MarkBits,
    /// Of a connection: a client opened it.
    client: MarkBits,
    /// Of a connection: a program opened it, and it was captured.
    kept: MarkBits,
    /// Of a connection: the agent opened it in a client's name. What a program of the kind that
    /// restores marks makes of it is right: the answers return to the agent.
    in_name: MarkBits,
}

impl Bits {
    fn of(marks: HostMarks) -> Self {
        let mask = marks.release();
        let returns = marks.captured();
        let agent = MarkBits { mask, value: marks.agent() };
        let captured = MarkBits { mask, value: marks.captured() };
        let release = MarkBits { mask, value: marks.release() };
        Self {
            agent,
            captured,
            release,
            returns: MarkBits { mask: returns, value: returns },
            none: MarkBits { mask, value: 0 },
            client: agent,
            kept: release,
            in_name: captured,
        }
    }

    /// The marks of packets that containers send to the agent.
    pub(super) fn of_containers(self) -> [MarkBits; 2] {
        [self.captured, self.release]
    }
}

/// Rules in the order in which a packet meets them.
pub(super) struct Rules {
    bits: Bits,
    redirect: Redirect,
    list: Vec<NetlinkRequest>,
}

impl Rules {
    /// The bits of marks.
    pub(super) fn bits(&self) -> Bits {
        self.bits
    }

    /// The agent sends in clear to a program, with the address of the program's peer. If the
    /// program's address is removed from this host, its route leads to another host.
    fn push_to_programs(&mut self, table: &HostTable<'_>) {
        let names = table.forwarded.iter().map(|name| InterfaceName::new(name));
        let not_to_containers: Vec<_> = names.map(|name| Host(NotSentOn(name))).collect();
        let to_program = [Host(Transparent(true)), Host(IsForeign(PacketEnd::Source)), Drop];
        let leaving = [Host(MarkIs(self.bits.agent)), Host(NotToLo)];
        let step = "adding the nft rule that drops the agent's packets to a program if their route \
                    leaves the host";
        self.push(Chain::Output, step, &[&leaving[..], &not_to_containers, &to_program].concat());
    }

    /// Captured packets must not leave the host.
    fn push_leaving(&mut self) {
        let captured = [Host(MarkIs(self.bits.returns)), Host(NotToLo), Drop];
        let step = "adding the nft rule that drops captured packets that would leave the host";
        self.push(Chain::Postrouting, step, &captured);
    }

    /// All rules of a table with connection tracking.
    fn push_tracked(&mut self, table: &HostTable<'_>) {
        self.push_keep(table);
        self.push_answers();
        self.push_verdicts(table);
        self.push_sections(table);
        self.push_output(table);
        self.push_rewritten(table);
        if !table.forwarded.is_empty() {
            self.push_forwarded(table);
        }
        if table.forwarded.is_empty() {
            self.push_returned(table);
            self.push_noted(table);
        } else {
            // What comes from containers is noted before it is sent to the agent.
            self.push_noted(table);
            self.push_returned(table);
        }
        if !table.inbound.is_empty() {
            self.push_clients(table);
        }
        self.push_closed_ports();
    }

    pub(super) fn push(&mut self, chain: Chain, step: &'static str, expressions: &[Expression]) {
        self.push_in(chain.name(), step, expressions);
    }

    pub(super) fn push_in(&mut self, chain: &str, step: &'static str, expressions: &[Expression]) {
        self.list.push(rule_in(chain, step, expressions));
    }

    /// The beginning of each chain that the maps lead to.
    fn push_answers(&mut self) {
        let answers = [Host(IsReply), Host(ConnectionMarkIs(self.bits.client)), Accept];
        for chain in [Chain::Capture, Chain::Refuse, Chain::Prohibit] {
            let step = "adding the nft rule that accepts answers to clients";
            self.push(chain, step, &[&[Transport(TCP), PastSyn][..], &answers].concat());
            self.push(chain, step, &[&[Transport(UDP)][..], &answers].concat());
            let local = [Host(IsLocal(PacketEnd::Destination)), Accept];
            self.push(chain, "adding the nft rule that accepts packets to this host", &local);
        }
    }

    /// The chains that the maps lead to.
    fn push_verdicts(&mut self, table: &HostTable<'_>) {
        let Bits { captured, kept, .. } = self.bits;
        let capture = Chain::Capture;
        if table.lifetime == Lifetime::OfInstaller {
            let older = [Transport(TCP), PastSyn, Accept];
            self.push(
                capture,
                "adding the nft rule that accepts connections that existed before the nftables \
                 rules",
                &older,
            );
            let rewritten = [Host(IsRewritten(true)), Accept];
            self.push(
                capture,
                "adding the nft rule that accepts flows that NAT redirects",
                &rewritten,
            );
        }
        let rewritten = [Host(IsRewritten(true)), Goto(Chain::Refuse.name())];
        self.push(
            capture,
            "adding the nft rule that rejects packets that NAT redirects",
            &rewritten,
        );
        let keep = [Transport(TCP), Host(SetConnectionMark(kept))];
        self.push(capture, "adding the nft rule that marks captured connections", &keep);
        let marked = [Host(SetMark(captured)), Accept];
        self.push(capture, "adding the nft rule that marks captured packets", &marked);
        self.push_refusals(table);
    }

    fn push_output(&mut self, table: &HostTable<'_>) {
        let Bits { none, client, in_name, .. } = self.bits;
        let output = Chain::Output;
        // Most packets match no rule. Each check costs time for all of them, so that unusual
        // packets have chains of their own.
        let marked = [Host(MarkIsNot(none)), Jump(Chain::Marked.name())];
        self.push(output, "adding the nft rule that checks packets with a fwmark", &marked);
        self.push_marked();
        if let Some(user) = table.user {
            let of_agent = [Host(OfUser(user)), Accept];
            self.push(
                output,
                "adding the nft rule that accepts packets from processes of the agent's user",
                &of_agent,
            );
        }
        if table.lifetime == Lifetime::Unlimited {
            let unusual = [Host(HasMoreThanPlainV4), Jump(Chain::Headers.name())];
            self.push(output, "adding the nft rule that checks packets with IP options", &unusual);
            self.push_source_routes(Chain::Headers);
        }
        // What goes to an address of this host in another way is accepted where it is captured.
        let local = [Host(ToLo), Host(IsLocal(PacketEnd::Destination)), Accept];
        self.push(output, "adding the nft rule that accepts packets to this host", &local);
        // The kernel's answers for sockets of the agent have no mark. A program can bind a foreign
        // address too, and can open a flow in the name of its peer, so that its own flow looks like
        // the answer: therefore a SYN or a datagram is no answer here. A client's connection is
        // noted only at an address of this host, which may have lost the address meanwhile. Anycast
        // addresses have another type than local ones, and are those of servers, too.
        let in_name_of_others = [
            Transport(TCP),
            PastSyn,
            Host(IsReply),
            Host(ConnectionMarkIsNot(client)),
            Host(ConnectionMarkIsNot(in_name)),
            Host(IsForeign(PacketEnd::Source)),
        ];
        for of_agent in [Host(IsNotAnycast(PacketEnd::Source)), Host(Transparent(true))] {
            let step = "adding the nft rule that accepts answers that the agent sends with the \
                        source address of another host";
            self.push(output, step, &[&in_name_of_others[..], &[of_agent, Accept]].concat());
        }
        let noted = [Host(ConnectionMarkIsNot(none)), Jump(Chain::Noted.name())];
        let step = "adding the nft rule that checks packets of connections with a conntrack mark";
        self.push(output, step, &noted);
        self.push_noted_connections();
        self.push_filter_call(table, output);
        if !table.inbound.is_empty() && table.lifetime == Lifetime::Unlimited {
            for (set, (family, family_is)) in INBOUND.into_iter().zip(FAMILIES) {
                let in_clear = [
                    family_is,
                    Transport(TCP),
                    Host(SentFrom(set, family)),
                    Host(Transparent(false)),
                    Host(IsForeign(PacketEnd::Destination)),
                    Reset,
                ];
                let step =
                    "adding the nft rule that rejects unencrypted answers from captured ports";
                self.push(output, step, &in_clear);
            }
        }
        self.push_destinations(output, table);
    }

    /// Packets with a mark.
    fn push_marked(&mut self) {
        let Bits { agent, in_name, .. } = self.bits;
        let in_a_clients_name = [
            Host(MarkIs(agent)),
            Transport(TCP),
            Syn,
            Host(IsForeign(PacketEnd::Source)),
            Host(IsOriginal),
            Host(SetConnectionMark(in_name)),
        ];
        self.push(
            Chain::Marked,
            "adding the nft rule that marks connections that the agent opens from a client's \
             address",
            &in_a_clients_name,
        );
        self.push_restored();
        self.push_own_packets(Chain::Marked);
    }

    /// A program that restores connection marks makes the agent's mark of the note that a client
    /// has opened the flow. The kernel copies this note to flows that it expects because of the
    /// client's, as in active FTP, and programs of this host open those. What the agent itself
    /// sends is known by its socket. An answer to a SYN has no such socket yet, and no data.
    fn push_restored(&mut self) {
        let Bits { agent, none, client, .. } = self.bits;
        let restored = [Host(MarkIs(agent)), Host(ConnectionMarkIs(client))];
        let own = [&restored[..], &[MarkedSocket(agent.value), Accept]].concat();
        let step = "adding the nft rule that accepts the agent's packets to clients";
        self.push(Chain::Marked, step, &own);
        let removed = [&restored[..], &[Host(SetMark(none))]].concat();
        let step = "adding the nft rule that clears the fwmark of packets not sent by the agent";
        self.push(Chain::Marked, step, &[&[Transport(TCP), WithoutSyn], &removed[..]].concat());
        let to_syn = [&[Transport(TCP), PastSyn], &restored[..], &[Host(IsReply), Accept]].concat();
        let answered = "adding the nft rule that accepts answers to SYNs of clients";
        self.push(Chain::Marked, answered, &to_syn);
        self.push(Chain::Marked, step, &removed);
    }

    /// Packets of connections with a mark.
    fn push_noted_connections(&mut self) {
        let Bits { captured, in_name, .. } = self.bits;
        // Those of open connections also return when no port is captured any more.
        let answer = [
            Host(IsReply),
            Host(ConnectionMarkIs(in_name)),
            Host(IsForeign(PacketEnd::Destination)),
            Host(SetMark(captured)),
            Accept,
        ];
        let step = "adding the nft rule that marks answers to connections that the agent has \
                    opened from a client's address";
        self.push(Chain::Noted, step, &answer);
        self.push_kept(Chain::Noted);
    }

    /// What no router may lead elsewhere. No program would get an answer to a refusal: its socket
    /// does not know the first hop.
    pub(super) fn push_source_routes(&mut self, chain: Chain) {
        let routes =
            [(V4, SourceRoute::Loose), (V4, SourceRoute::Strict), (V6, SourceRoute::Header)];
        for (family_is, route) in routes {
            let routed = [family_is, Host(SourceRouted(route)), Drop];
            self.push(chain, "adding the nft rule that drops packets with a source route", &routed);
        }
    }

    /// Connections that were captured when they began. Their destination was none of this host. The
    /// kernel's packets for sockets of the agent have been accepted.
    fn push_kept(&mut self, chain: Chain) {
        let Bits { captured, kept, .. } = self.bits;
        let is_kept =
            [Transport(TCP), Host(ConnectionMarkIs(kept)), Host(SetMark(captured)), Accept];
        let step = "adding the nft rule that captures later packets of captured connections";
        self.push(chain, step, &is_kept);
    }

    /// What comes in from containers.
    fn push_forwarded(&mut self, table: &HostTable<'_>) {
        for name in table.forwarded {
            let received = Host(ReceivedOn(InterfaceName::new(name)));
            let decided = [received, Goto(Chain::Forwarding.name())];
            self.push(
                Chain::Forwarded,
                "adding the nft rule that checks flows of containers",
                &decided,
            );
        }
        let chain = Chain::Forwarding;
        let local = [Host(IsLocal(PacketEnd::Destination)), Accept];
        self.push(chain, "adding the nft rule that accepts packets to this host", &local);
        let answer = [Host(IsReply), Host(IsRewritten(true)), Accept];
        let step = "adding the nft rule that accepts answers from published ports of containers";
        self.push(chain, step, &answer);
        self.push_kept(chain);
        if table.lifetime == Lifetime::Unlimited {
            self.push_source_routes(chain);
        }
        self.push_destinations(chain, table);
        self.push_routed(table);
    }

    /// What containers send to a destination that NAT has rewritten is decided by the new one.
    fn push_routed(&mut self, table: &HostTable<'_>) {
        for name in table.forwarded {
            let received = Host(ReceivedOn(InterfaceName::new(name)));
            let forwarding = Goto(Chain::Forwarding.name());
            let decided = [received, Host(IsRewritten(true)), Host(IsOriginal), forwarding];
            self.push(
                Chain::Routed,
                "adding the nft rule that checks packets of containers after NAT has changed \
                 their destination",
                &decided,
            );
        }
    }

    /// What the agent sends.
    pub(super) fn push_own_packets(&mut self, chain: Chain) {
        let Bits { agent, release, .. } = self.bits;
        self.push(
            chain,
            "adding the nft rule that accepts the agent's packets",
            &[Host(MarkIs(agent)), Accept],
        );
        self.push(
            chain,
            "adding the nft rule that accepts released SYNs (sent again by the agent)",
            &[Host(MarkIs(release)), Accept],
        );
    }

    /// The chains of sections that are not for all senders.
    pub(super) fn push_sections(&mut self, table: &HostTable<'_>) {
        for section in chained(table) {
            self.push_section(&section_chain(section), section, table);
        }
    }

    /// The destination decides. The kernel compares it with the whole of a map first: that takes a
    /// fraction of the time of a lookup.
    fn push_section(&mut self, chain: &str, section: usize, table: &HostTable<'_>) {
        // NAT has changed the destination of a packet that was counted with the one before.
        if chain != Chain::Rewritten.name() {
            self.push_counters(chain, section, table);
        }
        let elements = table.sections.get(section).map_or(&[][..], |section| section.outbound);
        for (base, (protocol, family, family_is)) in MAPS.into_iter().zip(KEYS) {
            let of_map = elements.iter().map(|one| &one.to).filter(|to| map_of(to) == base);
            let Some(bounds) = Bounds::of(of_map) else { continue };
            let [to_addresses, to_ports] = bounds.to();
            let map = SectionMap { base, section };
            let verdict = Host(Verdict(map, family));
            let verdict = [family_is, Transport(protocol), to_addresses, to_ports, verdict];
            self.list.push(rule_in(
                chain,
                "adding the nft rule that looks up the destination in a verdict map",
                &verdict,
            ));
        }
    }

    /// Counts connections when they begin, and datagrams.
    fn push_counters(&mut self, chain: &str, number: usize, table: &HostTable<'_>) {
        let Some(section) = table.sections.get(number) else { return };
        for (base, (protocol, family, family_is)) in MAPS.into_iter().zip(KEYS) {
            let counted = section.counted_in(base).map(|one| &one.to);
            let Some(bounds) = Bounds::of(counted) else { continue };
            let first =
                if protocol == TCP { &[Transport(TCP), Syn][..] } else { &[Transport(UDP)] };
            let map = SectionMap { base, section: number };
            let counted =
                [&[family_is], first, &bounds.to(), &[Host(Counted(map, family))]].concat();
            self.list.push(rule_in(chain, "adding the nft rule that counts flows", &counted));
        }
    }

    /// Name, sender and destination decide.
    pub(super) fn push_destinations(&mut self, chain: Chain, table: &HostTable<'_>) {
        if table.names.is_some() {
            self.push_names(chain);
        }
        for (number, section) in table.sections.iter().enumerate() {
            if section.is_for_all() {
                self.push_section(chain.name(), number, table);
                continue;
            }
            if chain == Chain::Forwarding {
                // The sender is not a process of this host. Before routing, the kernel would take a
                // socket of this host with the same port for the sender.
                continue;
            }
            for sender in section.senders {
                let SenderCheck { user, group, cgroup, without_mark } = *sender;
                let without_mark = without_mark.map(|bit| MarkBits { mask: bit, value: 0 });
                let checks = [
                    without_mark.map(|bits| Host(MarkIs(bits))),
                    user.map(|user| Host(OfUser(user))),
                    group.map(|group| Host(OfGroup(group))),
                    cgroup.map(|cgroup| Host(OfCgroup(cgroup))),
                    Some(Host(ToSection(number))),
                ];
                let checks: Vec<_> = checks.into_iter().flatten().collect();
                self.push(
                    chain,
                    "adding the nft rule that checks the sender (user, group or control group)",
                    &checks,
                );
            }
        }
        let rest = match table.others {
            PacketVerdict::Pass => return,
            PacketVerdict::Capture => Chain::Capture,
            PacketVerdict::Refuse => Chain::Refuse,
            PacketVerdict::Prohibit => Chain::Prohibit,
        };
        for protocol in [TCP, UDP] {
            let others = [Transport(protocol), Goto(rest.name())];
            let step = "adding the nft rule that applies the default verdict to all other flows";
            self.push(chain, step, &others);
        }
    }

    /// What passed by the destination that the program used, and goes elsewhere.
    fn push_rewritten(&mut self, table: &HostTable<'_>) {
        let chain = Chain::Rewritten;
        let as_sent = [Host(IsRewritten(false)), Accept];
        let step = "adding the nft rule that accepts packets that NAT does not redirect";
        self.push(chain, step, &as_sent);
        self.push_own_packets(chain);
        if let Some(user) = table.user {
            let of_agent = [Host(OfUser(user)), Accept];
            self.push(
                chain,
                "adding the nft rule that accepts packets from processes of the agent's user",
                &of_agent,
            );
        }
        let captured = [Host(MarkIs(self.bits.captured)), Accept];
        self.push(chain, "adding the nft rule that accepts captured packets", &captured);
        let local = [Host(IsLocal(PacketEnd::Destination)), Accept];
        self.push(
            chain,
            "adding the nft rule that accepts packets that NAT has redirected to this host",
            &local,
        );
        self.push_filter_of_rewritten(table);
        self.push_destinations(chain, table);
    }

    /// What clients open. It is noted once: no later packet of others changes who began.
    fn push_noted(&mut self, table: &HostTable<'_>) {
        let Bits { none, client, .. } = self.bits;
        let chain = Chain::Prerouting;
        let first = [Host(NotFromLo), Host(IsOriginal), Host(ConnectionMarkIs(none))];
        let note = Host(SetConnectionMark(client));
        let tcp = [&[Transport(TCP), Syn], &first[..]].concat();
        let udp = [&[Transport(UDP)], &first[..]].concat();
        if table.forwarded.is_empty() {
            for own in TO_THIS_HOST {
                let tcp = [&tcp[..], own, &[note]].concat();
                self.push(chain, "adding the nft rule that marks clients' connections", &tcp);
            }
        } else {
            // Those of containers too; a captured one is noted as that already.
            let tcp = [&tcp[..], &[note]].concat();
            self.push(chain, "adding the nft rule that marks clients' connections", &tcp);
            let foreign = Host(IsForeign(PacketEnd::Destination));
            let to_containers = [&udp[..], &[foreign, note]].concat();
            self.push(chain, "adding the nft rule that marks clients' UDP flows", &to_containers);
        }
        for own in TO_THIS_HOST {
            let udp = [&udp[..], own, &[Host(AnySocket), note]].concat();
            self.push(chain, "adding the nft rule that marks clients' UDP flows", &udp);
        }
    }

    /// What rules by name need: questions, and flows that such a rule may decide.
    fn push_names(&mut self, chain: Chain) {
        let capture = Goto(Chain::Capture.name());
        let query = [Transport(TCP), ToPort(DNS_PORT), capture];
        self.push(chain, "adding the nft rule that captures DNS queries over TCP", &query);
        // A datagram from outside, with a forged source, could make a query seem to be an answer.
        let marked = Host(SetMark(self.bits.captured));
        let foreign = Host(IsForeign(PacketEnd::Destination));
        let query = [Transport(UDP), ToPort(DNS_PORT), foreign, marked, Accept];
        self.push(chain, "adding the nft rule that captures DNS queries over UDP", &query);
        for (set, (family, family_is)) in NAMED.into_iter().zip(FAMILIES) {
            for protocol in [TCP, UDP] {
                let named = [family_is, Transport(protocol), Host(Named(set, family)), capture];
                self.push(
                    chain,
                    "adding the nft rule that captures packets to addresses recorded for DNS names",
                    &named,
                );
            }
        }
    }

    /// What the routing rule has returned to `lo`.
    fn push_returned(&mut self, table: &HostTable<'_>) {
        let none = self.bits.none;
        let step = "adding the nft rule that checks packets with a fwmark";
        let returned = [Host(MarkIsNot(none)), Jump(Chain::Returned.name())];
        // What comes from containers is marked on its own interface.
        let is_only_on_lo = table.forwarded.is_empty();
        let from_lo = if is_only_on_lo { &[Host(FromLo)][..] } else { &[] };
        self.push(Chain::Prerouting, step, &[from_lo, &returned].concat());
        self.push_returned_to_agent(table);
    }

    /// The chain for what the routing rule has returned to `lo`.
    pub(super) fn push_returned_to_agent(&mut self, table: &HostTable<'_>) {
        let Bits { agent, captured, release, .. } = self.bits;
        let of_agent = if table.forwarded.is_empty() { &[][..] } else { &[Host(FromLo)] };
        let chain = Chain::Returned;
        let to_agent = ToAgent(self.redirect);
        let tcp = [Host(MarkIs(captured)), Transport(TCP)];
        let step = "adding the nft rule that sends to the agent all TCP packets that follow a SYN";
        let to_agents_socket = [Host(Transparent(true)), Accept];
        let past_syn = [&tcp[..], &[PastSyn]].concat();
        self.push_or_refused(chain, step, &past_syn, &to_agents_socket, Reset);
        let accepted = [of_agent, &[Host(MarkIs(agent)), Accept]].concat();
        self.push(chain, "adding the nft rule that accepts the agent's packets", &accepted);
        let held = [CopyToAgent, ToHold(self.redirect)];
        let step = "adding the nft rule that holds a captured SYN (the agent gets a copy, and \
                    the kernel drops the SYN)";
        self.push_or_refused(chain, step, &tcp, &held, Reset);
        let released = [of_agent, &[Host(MarkIs(release)), Transport(TCP)]].concat();
        let step = "adding the nft rule that redirects released SYNs (sent again by the agent) to \
                    the agent's listener";
        self.push_or_refused(chain, step, &released, &[to_agent], Reset);
        let udp = [Host(MarkIs(captured)), Transport(UDP)];
        let step = "adding the nft rule that sends captured datagrams to the agent";
        self.push_or_refused(chain, step, &udp, &[to_agent], PortUnreachable);
    }

    /// What clients send to captured ports.
    fn push_clients(&mut self, table: &HostTable<'_>) {
        for (set, (family, family_is)) in INBOUND.into_iter().zip(FAMILIES) {
            let captured = Expression::Captured(set, family);
            let to_port = [Host(NotFromLo), family_is, Transport(TCP), captured];
            let clients = Goto(Chain::Clients.name());
            for own in TO_THIS_HOST {
                let step = "adding the nft rule that checks packets from clients to captured ports";
                self.push(Chain::Prerouting, step, &[&to_port, own, &[clients]].concat());
            }
        }
        let chain = Chain::Clients;
        self.push_filter_of_clients(table);
        let known = [PastSyn, Host(Transparent(true)), Accept];
        self.push(chain, "adding the nft rule that accepts packets of the agent's clients", &known);
        let past_agent = match table.lifetime {
            Lifetime::Unlimited => [PastSyn, Reset],
            Lifetime::OfInstaller => [PastSyn, Accept],
        };
        let step = "adding the nft rule that decides about packets of connections that the agent \
                    has not accepted";
        self.push(chain, step, &past_agent);
        let led = [Host(AnySocket), Host(ToInbound(self.redirect))];
        let step = "adding the nft rule that sends packets of clients to the agent";
        self.push_or_refused(chain, step, &[Transport(TCP)], &led, Reset);
    }

    /// No packet that has come so far is meant for the agent.
    pub(super) fn push_closed_ports(&mut self) {
        let closed = [
            (TCP, AGENT_PORT, Reset),
            (TCP, HOLD_PORT, Reset),
            (TCP, INBOUND_PORT, Reset),
            (UDP, AGENT_PORT, PortUnreachable),
        ];
        let ports = closed.map(|(_, port, _)| port);
        if let (Some(first), Some(last)) = (ports.iter().min(), ports.iter().max()) {
            // Most packets are for other ports, and this comparison calls no function.
            let near = near_ports(*first, *last).map(|near| Host(Flow(near)));
            let near: Vec<_> = near.into_iter().collect();
            let closed = [&near[..], &[Goto(Chain::Closed.name())]].concat();
            self.push(
                Chain::Prerouting,
                "adding the nft rule that checks packets sent to the agent's ports",
                &closed,
            );
        }
        for (protocol, port, refusal) in closed {
            for own in TO_THIS_HOST {
                let to_port = [&[Transport(protocol), ToPort(port)], own, &[refusal]].concat();
                let step = "adding the nft rule that rejects packets sent to the agent's ports";
                self.push(Chain::Closed, step, &to_port);
            }
        }
    }

    fn push_or_refused(
        &mut self,
        chain: Chain,
        step: &'static str,
        what: &[Expression],
        led: &[Expression],
        refusal: Expression,
    ) {
        self.push(chain, step, &[what, led].concat());
        self.push(chain, step, &[what, &[refusal]].concat());
    }
}

/// Both IP versions.
pub(super) const FAMILIES: [(NftFamily, Expression); 2] =
    [(NftFamily::V4, V4), (NftFamily::V6, V6)];
