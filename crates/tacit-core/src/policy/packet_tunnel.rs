//! Finds the rule with `ipsec` that permits a packet in a tunnel, for `tacit explain --packet`.
//!
//! A rule can be for some runs only, and the description of a packet does not contain the name of
//! the run. So this module evaluates the rules for each run that the policy names, and once for all
//! other runs.
//!
//! Limit: [`RUNS_MAX`] names of runs.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::content::Policy;
use super::filter::{FilterPacket, ICMP, ICMPV6, PacketPath, TCP, TransportHeader, UDP};
use super::ike::InnerAddressSource;
use super::sa::ManualMode;
use super::tunnel::{TunnelGroup, TunnelRoutes, TunnelRule};
use crate::flow::{Direction, Protocol};
use crate::icmp;

/// The decision of the rules with `ipsec` about a packet in a tunnel, for some runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IpsecDecision {
    /// The rule that permits the packet; `None`: no rule does.
    pub rule: Option<String>,
    /// The line of the rule in its file.
    pub line: Option<usize>,
    /// Whether the rule permits the packet only after the other end has opened the flow. Such a
    /// packet is a TCP segment, or a UDP datagram of the peer. A rule permits ICMP in both
    /// directions at once, and UDP datagrams of programs too.
    pub is_answer: bool,
    /// Why no rule permits the packet, or when the agent permits it nevertheless; `None`: the
    /// remote address, the ports or the protocol match no rule.
    pub why: Option<String>,
    /// The names of the runs; empty: all runs that no other decision names.
    pub runs: Vec<String>,
}

impl IpsecDecision {
    fn denied(why: Option<String>) -> Self {
        Self { rule: None, line: None, is_answer: false, why, runs: Vec::new() }
    }
}

/// Writes the decisions, each in a line.
pub(super) fn write_decisions(
    f: &mut fmt::Formatter<'_>,
    decisions: &[IpsecDecision],
) -> fmt::Result {
    for IpsecDecision { rule, line, is_answer, why, runs } in decisions {
        match rule {
            Some(rule) => write!(f, "\n    rule `{rule}` (line {})", line.unwrap_or_default())?,
            None => write!(f, "\n    no rule")?,
        }
        write!(f, " with `ipsec` permits the packet in the tunnel")?;
        let runs: Vec<String> = runs.iter().map(|run| format!("`{run}`")).collect();
        match (runs.as_slice(), decisions.len() == 1) {
            ([], true) => {}
            ([], false) => write!(f, " of other runs")?,
            ([run], _) => write!(f, " of run {run}")?,
            (runs, _) => write!(f, " of the runs {}", runs.join(", "))?,
        }
        if *is_answer {
            write!(f, ", after the other end has opened the flow")?;
        }
        why.iter().try_for_each(|why| write!(f, ": {why}"))?;
    }
    Ok(())
}

/// The rules with `ipsec`, as they apply to each run.
#[derive(Debug)]
pub(super) struct IpsecRules<'p> {
    policy: &'p Policy,
    /// For the runs that the policy names.
    named: Vec<(&'p str, TunnelRoutes)>,
    /// For all other runs.
    others: TunnelRoutes,
}

impl<'p> IpsecRules<'p> {
    pub(super) fn new(policy: &'p Policy) -> Self {
        // The parser rejects a policy that reaches a limit.
        let routes = |run: &str| TunnelRoutes::of(policy, run, &[]).unwrap_or_default();
        let others = routes("");
        let mut runs: BTreeSet<&str> = BTreeSet::new();
        if policy.rules.iter().any(|rule| rule.ipsec().is_some()) {
            let names = policy.rules.iter().flat_map(|rule| &rule.selectors.run);
            runs.extend(names.map(String::as_str));
        }
        let named = runs.into_iter().take(RUNS_MAX).map(|run| (run, routes(run))).collect();
        Self { policy, named, others }
    }

    /// Finds the rules for a packet. `None`: the packet is not in a tunnel.
    pub(super) fn explain(&self, packet: &FilterPacket) -> Option<Vec<IpsecDecision>> {
        let peer = packet.path.tunnel()?;
        let why_not = self.wrong_inner(peer, packet);
        if let Some(why) = why_not.or_else(|| self.fragment_in_transport(peer, packet)) {
            return Some(vec![IpsecDecision::denied(Some(why))]);
        }
        let ends = PacketEnds::of(packet);
        let others = self.decision(&self.others, peer, packet, ends.as_ref());
        let mut decisions: Vec<IpsecDecision> = Vec::new();
        for (run, routes) in &self.named {
            let decision = self.decision(routes, peer, packet, ends.as_ref());
            if decision == others {
                continue;
            }
            let run = (*run).to_owned();
            let is_same = |one: &&mut IpsecDecision| {
                one.rule == decision.rule && one.is_answer == decision.is_answer
            };
            match decisions.iter_mut().find(is_same) {
                Some(known) => known.runs.push(run),
                None => decisions.push(IpsecDecision { runs: vec![run], ..decision }),
            }
        }
        decisions.push(others);
        Some(decisions)
    }

    /// The decision for a run, without its name.
    fn decision(
        &self,
        routes: &TunnelRoutes,
        peer: &str,
        packet: &FilterPacket,
        ends: Option<&PacketEnds>,
    ) -> IpsecDecision {
        match ends.and_then(|ends| ends.permitting(routes, peer)) {
            Some(Permitting { rule, is_answer }) => IpsecDecision {
                rule: Some(rule.name.clone()),
                line: self.policy.rule(&rule.name).map(|rule| rule.position.line),
                is_answer,
                why: None,
                runs: Vec::new(),
            },
            None => {
                let why =
                    "the agent permits an ICMP error if a rule permits the packet that caused it";
                IpsecDecision::denied(is_icmp_error(packet).then(|| why.to_owned()))
            }
        }
    }

    /// Why the packet belongs to no run. `None`: it may belong to one, because it has the address
    /// of runs in the tunnel, or the policy does not contain this address.
    fn wrong_inner(&self, peer: &str, packet: &FilterPacket) -> Option<String> {
        let Policy { ikes, sas, .. } = self.policy;
        let inner = match ikes.get(peer).map(|ike| &ike.inner) {
            Some(InnerAddressSource::Policy(inner)) => inner,
            Some(InnerAddressSource::Gateway) => return None,
            None => &sas.get(peer)?.inner,
        };
        let sent = matches!(packet.path, PacketPath::ToTunnel(_));
        let own = if sent { packet.source } else { packet.destination };
        if inner.contains(&own) {
            return None;
        }
        let end = if sent { "source" } else { "destination" };
        let all: Vec<String> = inner.iter().map(ToString::to_string).collect();
        Some(format!(
            "its {end} is {own}, but the address of runs in the tunnel is {}",
            all.join(" or ")
        ))
    }

    /// Why the tunnel cannot contain this fragment. `None`: it can, or the packet is no fragment.
    fn fragment_in_transport(&self, peer: &str, packet: &FilterPacket) -> Option<String> {
        let is_transport = self.policy.sas.get(peer)?.mode != ManualMode::Tunnel;
        (is_transport && packet.is_fragment).then(|| {
            format!("[sa.{peer}] has mode = \"transport\", in which the agent drops fragments")
        })
    }
}

/// The parts of a packet that rules with `ipsec` compare.
struct PacketEnds {
    protocol: Protocol,
    /// The port in the run.
    local_port: Option<u16>,
    /// The port behind the peer.
    remote_port: Option<u16>,
    /// The address behind the peer.
    remote: IpAddr,
    /// A fragment has no ports to compare.
    is_fragment: bool,
    /// Whether the packet opens a TCP connection.
    opens: bool,
    /// The direction of flows that the sender of the packet opens.
    of_sender: Direction,
}

/// The rule that permits a packet.
struct Permitting<'r> {
    rule: &'r TunnelRule,
    is_answer: bool,
}

impl PacketEnds {
    /// `None`: no rule with `ipsec` is for the protocol.
    fn of(packet: &FilterPacket) -> Option<Self> {
        let protocol = match (packet.protocol, packet.source.is_ipv4()) {
            (TCP, _) => Protocol::Tcp,
            (UDP, _) => Protocol::Udp,
            (ICMP, true) | (ICMPV6, false) => Protocol::Icmp,
            _ => return None,
        };
        let ports = match packet.header {
            TransportHeader::Ports { source, destination, .. } => [source, destination].map(Some),
            TransportHeader::Icmp { .. } | TransportHeader::Other => [None, None],
        };
        let sender = (packet.source, ports[0]);
        let receiver = (packet.destination, ports[1]);
        let of_sender = match packet.path {
            PacketPath::ToTunnel(_) => Direction::Outbound,
            _ => Direction::Inbound,
        };
        let [local, remote] = match of_sender {
            Direction::Outbound => [sender, receiver],
            Direction::Inbound => [receiver, sender],
        };
        let is_fragment = packet.is_fragment;
        Some(Self {
            protocol,
            local_port: local.1,
            remote_port: remote.1,
            remote: remote.0,
            is_fragment,
            opens: !is_fragment && protocol == Protocol::Tcp && packet.header.opens(),
            of_sender,
        })
    }

    /// Finds the rule that permits the packet. Any packet except the first one of a TCP connection
    /// can be an answer.
    fn permitting<'r>(&self, routes: &'r TunnelRoutes, peer: &str) -> Option<Permitting<'r>> {
        let is_of_packet = |group: &&TunnelGroup| group.peer == peer && self.is_in_group(group);
        let groups = || routes.groups().iter().filter(is_of_packet);
        let opened = groups().find(|group| group.direction == self.of_sender);
        let group = opened.or_else(|| groups().next().filter(|_| !self.opens))?;
        let decides = |rule: &&TunnelRule| {
            rule.peer == peer && rule.direction == group.direction && self.is_of_rule(rule)
        };
        let rule = routes.rules().iter().find(decides)?;
        let is_answer = group.direction != self.of_sender && self.waits_for_opener();
        Some(Permitting { rule, is_answer })
    }

    /// Whether a packet is permitted only after the other end has opened the flow, if a rule
    /// permits only that end to open it.
    fn waits_for_opener(&self) -> bool {
        match self.protocol {
            Protocol::Tcp => true,
            // The agent records which datagrams programs have sent, not those of peers.
            Protocol::Udp => self.of_sender == Direction::Inbound,
            Protocol::Icmp => false,
        }
    }

    fn is_in_group(&self, group: &TunnelGroup) -> bool {
        group.protocol == self.protocol
            && self.has_port(self.local_port, group.local_ports.as_slice())
            && self.has_port(self.remote_port, group.remote_ports.as_slice())
            && group.prefixes.iter().any(|prefix| prefix.contains(self.remote))
    }

    fn is_of_rule(&self, rule: &TunnelRule) -> bool {
        rule.protocol == self.protocol
            && self.has_port(self.local_port, &rule.local_ports)
            && self.has_port(self.remote_port, &rule.remote_ports)
            && rule.remotes.iter().any(|(first, last)| (*first..=*last).contains(&self.remote))
    }

    /// Whether a port is in one of the ranges; no range means all ports.
    fn has_port(&self, port: Option<u16>, ranges: &[RangeInclusive<u16>]) -> bool {
        let holds = |port| ranges.iter().any(|range| range.contains(&port));
        ranges.is_empty() || self.is_fragment || port.is_some_and(holds)
    }
}

/// Whether the packet is an ICMP error, which belongs to the flow of the packet that caused it.
fn is_icmp_error(packet: &FilterPacket) -> bool {
    let TransportHeader::Icmp { kind, .. } = packet.header else { return false };
    icmp::is_error(packet.protocol, kind)
}

/// The most names of runs for which the rules are evaluated.
const RUNS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PacketExplainer, parse};

    /// `web` begins in line 13, `night` in line 19, `served` in line 26, `names` in line 32, and
    /// `asked` in line 39.
    const POLICY: &str = r#"version = 1
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "c.example"
inner = "10.1.0.1"
[[rule]]
name = "filtered"
filter = "deny"
tunnel = "branch"
protocol = "tcp"
remote-ports = 25
[[rule]]
name = "web"
direction = "outbound"
remote = "10.2.0.0/24"
remote-ports = [25, "80-89"]
ipsec = { ike = "branch" }
[[rule]]
name = "night"
direction = "outbound"
protocol = "icmp"
remote = "10.2.0.0/24"
run = ["night", "nights"]
ipsec = { ike = "branch" }
[[rule]]
name = "served"
direction = "inbound"
remote = "10.2.0.0/24"
local-ports = 22
ipsec = { ike = "branch" }
[[rule]]
name = "names"
direction = "inbound"
protocol = "udp"
remote = "10.2.0.0/24"
local-ports = 53
ipsec = { ike = "branch" }
[[rule]]
name = "asked"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.0/24"
remote-ports = 53
ipsec = { ike = "branch" }
"#;

    const TRANSPORT: &str = r#"version = 1
[sa.other]
peer = "192.0.2.1"
encryption = "aes256-cbc"
integrity = "sha256"
spi-in = 0x1001
spi-out = 0x1002
keys-in = "in.keys"
keys-out = "out.keys"
mode = "transport"
local = "192.0.2.7"
[[rule]]
name = "all"
direction = "outbound"
remote = "192.0.2.1"
ipsec = { sa = "other" }
"#;

    fn explained(packet: &str) -> Vec<String> {
        explained_by(POLICY, &FilterPacket::parse(packet).unwrap())
    }

    fn explained_by(policy: &str, packet: &FilterPacket) -> Vec<String> {
        let policy = parse(policy).policy.unwrap();
        let text = PacketExplainer::new(&policy, 0).explain(packet).to_string();
        let lines = text.lines().filter(|line| line.contains("ipsec` permits"));
        lines.map(|line| line.trim_start().to_owned()).collect()
    }

    #[test]
    fn the_rule_with_ipsec_that_permits_a_packet_in_a_tunnel_is_named() {
        let rule = |name: &str, line: usize| {
            format!("rule `{name}` (line {line}) with `ipsec` permits the packet in the tunnel")
        };
        let none = "no rule with `ipsec` permits the packet in the tunnel".to_owned();
        let answer = ", after the other end has opened the flow";
        for (packet, wanted) in [
            ("to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:80 syn", rule("web", 13)),
            ("to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:89", rule("web", 13)),
            ("to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:7 fragment", rule("web", 13)),
            ("to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:90 syn", none.clone()),
            ("to-tunnel branch tcp 10.1.0.1:5 > 10.3.0.1:80 syn", none.clone()),
            ("to-tunnel branch udp 10.1.0.1:5 > 10.2.0.1:80", none.clone()),
            ("to-tunnel branch gre 10.1.0.1 > 10.2.0.1", none.clone()),
            ("to-tunnel branch tcp 10.1.0.1:22 > 10.2.0.1:5", rule("served", 26) + answer),
            ("to-tunnel branch tcp 10.1.0.1:22 > 10.2.0.1:5 syn", none.clone()),
            ("from-tunnel branch tcp 10.2.0.1:5 > 10.1.0.1:22 syn", rule("served", 26)),
            ("from-tunnel branch tcp 10.2.0.1:80 > 10.1.0.1:5", rule("web", 13) + answer),
            ("from-tunnel branch tcp 10.2.0.1:80 > 10.1.0.1:5 syn", none.clone()),
            ("from-tunnel branch udp 10.2.0.1:5 > 10.1.0.1:53", rule("names", 32)),
            ("to-tunnel branch udp 10.1.0.1:53 > 10.2.0.1:5", rule("names", 32)),
            ("to-tunnel branch udp 10.1.0.1:5 > 10.2.0.1:53", rule("asked", 39)),
            ("from-tunnel branch udp 10.2.0.1:53 > 10.1.0.1:5", rule("asked", 39) + answer),
            (
                "to-tunnel branch tcp 10.9.0.1:5 > 10.2.0.1:80 syn",
                none.clone()
                    + ": its source is 10.9.0.1, but the address of runs in the tunnel is 10.1.0.1",
            ),
            (
                "from-tunnel branch icmp 10.3.0.1 > 10.1.0.1 type 3 code 1",
                none + ": the agent permits an ICMP error if a rule permits the packet that caused \
                       it",
            ),
        ] {
            assert_eq!(explained(packet), [wanted], "{packet}");
        }
    }

    #[test]
    fn runs_with_rules_of_their_own_are_named() {
        // A rule for ICMP permits both directions at once.
        for packet in [
            "to-tunnel branch icmp 10.1.0.1 > 10.2.0.1 type 8",
            "from-tunnel branch icmp 10.2.0.1 > 10.1.0.1 type 8",
        ] {
            assert_eq!(
                explained(packet),
                [
                    "rule `night` (line 19) with `ipsec` permits the packet in the tunnel of the \
                     runs `night`, `nights`",
                    "no rule with `ipsec` permits the packet in the tunnel of other runs",
                ],
                "{packet}"
            );
        }
    }

    #[test]
    fn a_tunnel_in_transport_mode_has_no_fragments() {
        for (packet, wanted) in [
            (
                "to-tunnel other tcp 192.0.2.7:5 > 192.0.2.1:80",
                "rule `all` (line 12) with `ipsec` permits the packet in the tunnel",
            ),
            (
                "to-tunnel other tcp 192.0.2.7:5 > 192.0.2.1:80 fragment",
                "no rule with `ipsec` permits the packet in the tunnel: [sa.other] has mode = \
                 \"transport\", in which the agent drops fragments",
            ),
        ] {
            let packet = FilterPacket::parse(packet).unwrap();
            assert_eq!(explained_by(TRANSPORT, &packet), [wanted], "{packet}");
        }
    }

    #[test]
    fn packets_of_a_capture_are_read_as_the_agent_reads_them_in_tunnels() {
        let policy = POLICY.replace("inner = \"10.1.0.1\"", "inner = [\"10.1.0.1\", \"fd01::1\"]");
        let policy = policy.replace("\"10.2.0.0/24\"", "[\"10.2.0.0/24\", \"fd02::/64\"]");
        let path = || PacketPath::ToTunnel("branch".to_owned());
        // A segment from port 22 to port 5 is an answer if it does not open a connection.
        let segment = [&[0, 22, 0, 5][..], &[0; 9], &[0x10], &[0; 6]].concat();
        let v4 = |segment: &[u8]| {
            // More fragments follow.
            let total = u8::try_from(20 + segment.len()).unwrap();
            let header = [0x45, 0, 0, total, 0, 0, 0x20, 0, 64, TCP, 0, 0];
            [&header[..], &[10, 1, 0, 1], &[10, 2, 0, 1], segment].concat()
        };
        let mut behind_ah = vec![0x60, 0, 0, 0, 0, 36, 51, 64];
        for ip in ["fd01::1", "fd02::1"] {
            let ip: std::net::Ipv6Addr = ip.parse().unwrap();
            behind_ah.extend(ip.octets());
        }
        behind_ah.extend([&[TCP, 2][..], &[0; 14], &segment].concat());
        let permits = "permits the packet in the tunnel";
        let served = format!("rule `served` (line 26) with `ipsec` {permits}, after the other end");
        let none = format!("no rule with `ipsec` {permits}");
        for (bytes, wanted) in [
            (v4(&segment), &served),
            // The flags may be in the next fragment.
            (v4(&segment[..8]), &none),
            (behind_ah, &served),
        ] {
            let packet = FilterPacket::of_bytes(path(), &bytes).unwrap();
            let shown = explained_by(&policy, &packet);
            assert!(shown.len() == 1 && shown[0].starts_with(wanted), "{packet}: {shown:?}");
        }
    }

    #[test]
    fn a_packet_that_a_filter_denies_or_outside_of_tunnels_has_no_rule_with_ipsec() {
        for packet in [
            "to-tunnel branch tcp 10.1.0.1:5 > 10.2.0.1:25 syn",
            "out eth0 tcp 10.1.0.1:5 > 10.2.0.1:80 syn",
        ] {
            assert_eq!(explained(packet), [""; 0], "{packet}");
        }
    }
}
