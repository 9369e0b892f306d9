//! Converts the policy rules for IPsec tunnels to routes and routing rules of the kernel.
//!
//! A routing rule of the kernel selects a routing table by protocol and ports, and the table
//! selects a route by address. So this module converts the policy rules to *groups*. A group has
//! one direction, one combination of protocol and ports, and the address prefixes behind one peer.
//! The conversion has three steps:
//!
//! 1. Divide the local and remote ports into *cells*: the same policy rules apply to all ports of a
//!    cell (`cells`).
//! 2. For each cell and each address, find the first policy rule that matches (`claims`).
//! 3. For each peer, join adjacent cells with the same addresses. The result is a group.
//!
//! Two groups of the same direction never match the same packet, so their order does not matter.
//!
//! The kernel cannot select packets by program, user or time. So a policy rule with one of these
//! conditions must not come before an `ipsec` rule that could match the same packets. `parse`
//! rejects a policy with rules in this order.
//!
//! Limits: [`TUNNEL_GROUPS_MAX`] groups for each IP version, [`TUNNEL_PREFIXES_MAX`] routes, and
//! [`TUNNEL_RANGES_MAX`] address ranges behind one peer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use self::cells::Grid;
pub(super) use self::claims::Claims;
use super::capture;
use super::content::Policy;
use super::rule::{Rule, RuleForm};
use super::selector::{Span, family_and_bits};
use crate::flow::{Direction, Protocol};

mod cells;
mod claims;

/// The packets of a run that pass through tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelRoutes {
    groups: Vec<TunnelGroup>,
    rules: Vec<TunnelRule>,
    remotes: BTreeMap<String, Vec<(IpAddr, IpAddr)>>,
}

/// Packets with one combination of peer, direction, protocol and ports. Those that programs send
/// have these local and remote ports, and one of the prefixes as destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelGroup {
    /// The name of the peer: that of `[ike.NAME]` or `[sa.NAME]`.
    pub peer: String,
    /// Who opens the flows: programs of the run (outbound), or hosts behind the peer.
    pub direction: Direction,
    /// The protocol.
    pub protocol: Protocol,
    /// The ports in the run; `None`: all ports, or a protocol without ports.
    pub local_ports: Option<RangeInclusive<u16>>,
    /// The ports behind the peer; `None`: all ports, or a protocol without ports.
    pub remote_ports: Option<RangeInclusive<u16>>,
    /// The addresses behind the peer: disjoint, and in order of family and address.
    pub prefixes: Vec<TunnelPrefix>,
}

/// The packets that a rule with `ipsec` selects, also those for which an earlier rule decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelRule {
    /// The name of the rule.
    pub name: String,
    /// The name of the peer: that of `[ike.NAME]` or `[sa.NAME]`.
    pub peer: String,
    /// Who opens the flows.
    pub direction: Direction,
    /// The protocol.
    pub protocol: Protocol,
    /// The ports in the run; an empty list means all ports.
    pub local_ports: Vec<RangeInclusive<u16>>,
    /// The ports behind the peer; an empty list means all ports.
    pub remote_ports: Vec<RangeInclusive<u16>>,
    /// The first and the last address of each range behind the peer.
    pub remotes: Vec<(IpAddr, IpAddr)>,
}

/// All addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelPrefix {
    /// The lowest address.
    pub network: IpAddr,
    /// The number of common bits.
    pub length: u8,
}

/// The ends of a packet. Ports are 0 if the protocol has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelPacket {
    /// The protocol.
    pub protocol: Protocol,
    /// The end in the run.
    pub local: SocketAddr,
    /// The end behind the peer.
    pub remote: SocketAddr,
}

impl TunnelRoutes {
    /// Computes the packets of a run. `own` are the addresses of this host, which no tunnel
    /// reaches unless a rule names them as single addresses.
    ///
    /// # Errors
    /// A limit. The parser rejects policies that reach one, but `own` may divide prefixes further.
    pub fn of(policy: &Policy, run: &str, own: &[IpAddr]) -> Result<Self, TunnelLimit> {
        Self::of_rules(&policy.rules, run, own)
    }

    pub(super) fn of_rules(
        rules: &[Arc<Rule>],
        run: &str,
        own: &[IpAddr],
    ) -> Result<Self, TunnelLimit> {
        let applies = |rule: &&Rule| {
            let runs = &rule.selectors.run;
            runs.is_empty() || runs.iter().any(|name| name == run)
        };
        let rules: Vec<&Rule> = rules.iter().map(Arc::as_ref).filter(applies).collect();
        if rules.iter().all(|rule| rule.ipsec().is_none()) {
            return Ok(Self { groups: Vec::new(), rules: Vec::new(), remotes: BTreeMap::new() });
        }
        let mut groups = Vec::new();
        for direction in [Direction::Outbound, Direction::Inbound] {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Icmp] {
                groups.extend(groups_of(&rules, direction, protocol, own)?);
            }
        }
        for is_v4 in [true, false] {
            let has = |group: &&TunnelGroup| {
                group.prefixes.iter().any(|prefix| prefix.network.is_ipv4() == is_v4)
            };
            if groups.iter().filter(has).count() > TUNNEL_GROUPS_MAX {
                return Err(TunnelLimit::Groups);
            }
        }
        if groups.iter().map(|group| group.prefixes.len()).sum::<usize>() > TUNNEL_PREFIXES_MAX {
            return Err(TunnelLimit::Prefixes);
        }
        let of_tunnels = rules.iter().filter_map(|rule| TunnelRule::of(rule, own)).collect();
        Ok(Self { groups, rules: of_tunnels, remotes: remotes(&rules, own)? })
    }

    /// Returns the groups; at most [`TUNNEL_GROUPS_MAX`] of each IP version.
    #[must_use]
    pub fn groups(&self) -> &[TunnelGroup] {
        &self.groups
    }

    /// Returns the rules with `ipsec` in the order of the policy. For a packet of a group, the
    /// first rule with the peer and the direction of the group decides.
    #[must_use]
    pub fn rules(&self) -> &[TunnelRule] {
        &self.rules
    }

    /// Returns the name of the rule whose tunnel a packet takes.
    #[must_use]
    pub fn rule_of(&self, packet: &TunnelPacket) -> Option<&str> {
        let group = self.groups.iter().find(|group| group.contains(packet))?;
        self.deciding_rule(group, packet)
    }

    /// Returns the name of the rule for a packet in the tunnel with this peer. If outbound and
    /// inbound rules match the packet, an outbound rule decides.
    #[must_use]
    pub fn rule_in_tunnel(&self, peer: &str, packet: &TunnelPacket) -> Option<&str> {
        let is_of_packet = |group: &&TunnelGroup| group.peer == peer && group.contains(packet);
        let group = self.groups.iter().find(is_of_packet)?;
        self.deciding_rule(group, packet)
    }

    fn deciding_rule(&self, group: &TunnelGroup, packet: &TunnelPacket) -> Option<&str> {
        let decides = |rule: &&TunnelRule| {
            rule.peer == group.peer && rule.direction == group.direction && rule.selects(packet)
        };
        self.rules.iter().find(decides).map(|rule| rule.name.as_str())
    }

    /// Returns the names of the peers.
    pub fn peers(&self) -> impl Iterator<Item = &str> {
        self.remotes.keys().map(String::as_str)
    }

    /// Returns the addresses behind a peer, for its traffic selectors: disjoint ranges in order.
    /// They contain addresses that an earlier rule takes out; the routes decide about those.
    #[must_use]
    pub fn remotes(&self, peer: &str) -> &[(IpAddr, IpAddr)] {
        self.remotes.get(peer).map_or(&[], Vec::as_slice)
    }

    /// Returns the peer to which the routes lead a packet of the run.
    #[must_use]
    pub fn peer_of(&self, packet: &TunnelPacket) -> Option<&str> {
        self.groups.iter().find(|group| group.contains(packet)).map(|group| group.peer.as_str())
    }

    /// Whether a packet that arrived from a peer belongs to a flow of its tunnel: the answer to a
    /// flow that a program opened, or a packet of a flow to a port that the policy opens.
    #[must_use]
    pub fn admits(&self, peer: &str, packet: &TunnelPacket, part: PacketPart) -> bool {
        self.groups.iter().any(|group| {
            let is_in_turn = part == PacketPart::Any || group.direction == Direction::Inbound;
            is_in_turn && group.peer == peer && group.contains(packet)
        })
    }
}

/// What a packet that arrives is for its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketPart {
    /// A TCP segment that opens a connection: SYN without ACK.
    Opening,
    /// Any other packet.
    Any,
}

impl TunnelGroup {
    /// Whether a packet has the protocol, the ports and an address of the group.
    #[must_use]
    pub fn contains(&self, packet: &TunnelPacket) -> bool {
        let holds = |range: &Option<RangeInclusive<u16>>, port: u16| {
            range.as_ref().is_none_or(|range| range.contains(&port))
        };
        let TunnelPacket { protocol, local, remote } = packet;
        self.protocol == *protocol
            && holds(&self.local_ports, local.port())
            && holds(&self.remote_ports, remote.port())
            && self.has_address(remote.ip())
    }

    fn has_address(&self, ip: IpAddr) -> bool {
        let key = family_and_bits(ip);
        let after = self.prefixes.partition_point(|one| family_and_bits(one.network) <= key);
        let found = after.checked_sub(1).and_then(|at| self.prefixes.get(at));
        found.is_some_and(|prefix| prefix.contains(ip))
    }
}

impl TunnelRule {
    fn of(rule: &Rule, own: &[IpAddr]) -> Option<Self> {
        let ipsec = rule.ipsec()?;
        let selectors = &rule.selectors;
        Some(Self {
            name: rule.name.clone(),
            peer: ipsec.peer.clone(),
            direction: selectors.direction,
            protocol: selectors.protocol,
            local_ports: selectors.local_ports.clone(),
            remote_ports: selectors.remote_ports.clone(),
            remotes: capture::addresses(rule, own).into_iter().map(ends).collect(),
        })
    }

    fn selects(&self, packet: &TunnelPacket) -> bool {
        let has = |ranges: &[RangeInclusive<u16>], port: u16| {
            ranges.is_empty() || ranges.iter().any(|range| range.contains(&port))
        };
        let TunnelPacket { protocol, local, remote } = packet;
        let ip = remote.ip();
        self.protocol == *protocol
            && has(&self.local_ports, local.port())
            && has(&self.remote_ports, remote.port())
            && self.remotes.iter().any(|(first, last)| (*first..=*last).contains(&ip))
    }
}

impl TunnelPrefix {
    /// Whether the prefix contains the address.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (family, network) = family_and_bits(self.network);
        let (of_address, bits) = family_and_bits(ip);
        let host_bits = family.width() - u32::from(self.length).min(family.width());
        let shifted = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0);
        family == of_address && shifted(network) == shifted(bits)
    }
}

impl fmt::Display for TunnelPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

/// The limit that the tunnels of a run would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelLimit {
    /// [`TUNNEL_GROUPS_MAX`].
    Groups,
    /// [`TUNNEL_PREFIXES_MAX`].
    Prefixes,
    /// [`TUNNEL_RANGES_MAX`].
    Ranges,
}

impl fmt::Display for TunnelLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Groups => write!(
                f,
                "the rules with `ipsec` and the rules before them contain more than \
                 {TUNNEL_GROUPS_MAX} combinations of protocol, ports and peer"
            ),
            Self::Prefixes => {
                write!(f, "the rules with `ipsec` need more than {TUNNEL_PREFIXES_MAX} routes")
            }
            Self::Ranges => write!(
                f,
                "the rules with `ipsec` contain more than {TUNNEL_RANGES_MAX} address ranges \
                 for one peer"
            ),
        }
    }
}

impl std::error::Error for TunnelLimit {}

/// The most groups of a run with one IP version. Each needs a routing rule of the kernel, which
/// compares them one by one.
pub const TUNNEL_GROUPS_MAX: usize = 64;
/// The most prefixes of a run, in all groups together.
pub const TUNNEL_PREFIXES_MAX: usize = 16_384;
/// The most ranges of addresses behind one peer: IKE sends them in one message.
pub const TUNNEL_RANGES_MAX: usize = 64;

/// Whether routes can evaluate the conditions of a rule.
pub(super) fn is_by_route(rule: &Rule) -> bool {
    condition_beyond_routes(rule).is_none()
}

/// Returns the first condition of an outbound rule that routes cannot evaluate. Names are none: the
/// address of a name that another rule selects gets an alias.
pub(super) fn condition_beyond_routes(rule: &Rule) -> Option<&'static str> {
    let selectors = &rule.selectors;
    let conditions = [
        ("local", selectors.local.is_empty()),
        ("when", selectors.when.is_none()),
        ("program", selectors.program.is_empty()),
        ("user", selectors.user.is_empty()),
        ("group", selectors.group.is_empty()),
        ("cgroup", selectors.cgroup.is_empty()),
        ("unit", selectors.unit.is_empty()),
    ];
    conditions.into_iter().find(|(_, is_empty)| !is_empty).map(|(key, _)| key)
}

/// The groups of one direction and protocol.
fn groups_of(
    rules: &[&Rule],
    direction: Direction,
    protocol: Protocol,
    own: &[IpAddr],
) -> Result<Vec<TunnelGroup>, TunnelLimit> {
    let form = |rule: &Rule| match direction {
        Direction::Outbound => rule.form == RuleForm::Outbound,
        Direction::Inbound => rule.form == RuleForm::TunnelInbound,
    };
    let of_kind = |rule: &&&Rule| form(rule) && rule.selectors.protocol == protocol;
    let rules: Vec<&Rule> = rules.iter().filter(of_kind).copied().collect();
    let of_tunnels = rules.iter().filter(|rule| rule.ipsec().is_some());
    let mut reached = Claims::default();
    for span in of_tunnels.flat_map(|rule| capture::addresses(rule, own)) {
        reached.claim(span);
    }
    // Most other rules are about other addresses, and must not divide ports.
    let concerns = |rule: &&Rule| {
        rule.ipsec().is_some()
            || (is_by_route(rule)
                && capture::addresses(rule, own).iter().any(|span| reached.overlaps(span)))
    };
    let rules: Vec<&Rule> = rules.into_iter().filter(concerns).collect();
    if !rules.iter().any(|rule| rule.ipsec().is_some()) {
        return Ok(Vec::new());
    }
    let grid = Grid::new(&rules, own).ok_or(TunnelLimit::Groups)?;
    let peers: BTreeSet<&str> =
        rules.iter().filter_map(|rule| Some(rule.ipsec()?.peer.as_str())).collect();
    let mut groups = Vec::new();
    for peer in peers {
        for area in grid.areas_of(peer) {
            let range = |ports: (u16, u16)| (ports != ALL_PORTS).then_some(ports.0..=ports.1);
            groups.push(TunnelGroup {
                peer: peer.to_owned(),
                direction,
                protocol,
                local_ports: range(area.local),
                remote_ports: range(area.remote),
                prefixes: area.spans.iter().flat_map(|span| claims::prefixes(*span)).collect(),
            });
        }
    }
    Ok(groups)
}

/// Port 0 is in no packet.
const ALL_PORTS: (u16, u16) = (1, u16::MAX);

/// The first and the last address of a range.
fn ends(Span { family, first, last }: Span) -> (IpAddr, IpAddr) {
    (capture::address(first, family), capture::address(last, family))
}

/// The addresses behind each peer.
fn remotes(
    rules: &[&Rule],
    own: &[IpAddr],
) -> Result<BTreeMap<String, Vec<(IpAddr, IpAddr)>>, TunnelLimit> {
    let mut claims: BTreeMap<&str, Claims> = BTreeMap::new();
    for rule in rules {
        let Some(ipsec) = rule.ipsec() else { continue };
        let of_peer = claims.entry(&ipsec.peer).or_default();
        for span in capture::addresses(rule, own) {
            of_peer.claim(span);
        }
    }
    let mut remotes = BTreeMap::new();
    for (peer, claims) in claims {
        let ranges: Vec<_> = claims.spans().map(ends).collect();
        if ranges.len() > TUNNEL_RANGES_MAX {
            return Err(TunnelLimit::Ranges);
        }
        remotes.insert(peer.to_owned(), ranges);
    }
    Ok(remotes)
}

#[cfg(test)]
mod tests;
