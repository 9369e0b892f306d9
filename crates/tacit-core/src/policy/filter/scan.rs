//! Finds the rule for a packet by comparing the packet with one rule after another. This scan
//! defines the meaning of filter rules. The nftables rules in the kernel must give the same results
//! as this scan.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::packet::{FilterPacket, PacketPath, TransportHeader, protocol_name};
use super::{
    FilterRule, FragmentMatch, Opener, PacketDirection, PacketSelectors, Routing, TCP, UDP,
};
use crate::flow::{Address, Direction, Flow, Protocol};
use crate::policy::content::Policy;
use crate::policy::rule::{Rule, RuleForm};
use crate::policy::selector::{AddressSelector, UnknownOwner};

/// The result of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterDecision<'p> {
    /// The filter rule that decides.
    pub filter: Option<&'p FilterRule>,
    /// The rule for flows that comes before all filter rules that match; it decides about the flow
    /// of the packet.
    pub flow: Option<&'p Rule>,
    /// The filter rules that come before the rule that decides, and the first condition of each
    /// that the packet does not meet.
    pub skipped: Vec<(&'p FilterRule, FilterMismatch)>,
}

/// Compares a packet with the rules of a captured host, at a time in seconds since 1970.
#[must_use]
pub fn filter_scan<'p>(
    policy: &'p Policy,
    packet: &FilterPacket,
    unix_s: i64,
) -> FilterDecision<'p> {
    let mut skipped = Vec::new();
    let mut compared = 0;
    for filter in &policy.filters {
        let before = policy.rules.get(compared..filter.flows_before).unwrap_or_default();
        compared = filter.flows_before;
        if let Some(rule) = before.iter().find(|rule| is_of_flow(rule, packet, unix_s)) {
            return FilterDecision { filter: None, flow: Some(rule), skipped };
        }
        match filter.selectors.matches(packet, unix_s) {
            Ok(()) => return FilterDecision { filter: Some(filter), flow: None, skipped },
            Err(mismatch) => skipped.push((filter, mismatch)),
        }
    }
    FilterDecision { filter: None, flow: None, skipped }
}

/// Whether the packet belongs to a flow that a rule for flows matches. It does not if the wrong end
/// opens the connection.
fn is_of_flow(rule: &Rule, packet: &FilterPacket, unix_s: i64) -> bool {
    let TransportHeader::Ports { source, destination, opens } = packet.header else { return false };
    let ends = [(packet.source, source), (packet.destination, destination)];
    let ([local, remote], is_sent) = match packet.path {
        PacketPath::Out(_) => (ends, true),
        PacketPath::In(_) => ([ends[1], ends[0]], false),
        // No filter rule of a tunnel comes after a rule that leads packets into it.
        PacketPath::Routed { .. } | PacketPath::FromTunnel(_) | PacketPath::ToTunnel(_) => {
            return false;
        }
    };
    let protocol = match packet.protocol {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        _ => return false,
    };
    let direction = match rule.form {
        _ if packet.is_fragment || !rule.is_of_host() => return false,
        RuleForm::Outbound => Direction::Outbound,
        RuleForm::HostInbound => Direction::Inbound,
        RuleForm::Inbound(_) | RuleForm::TunnelInbound | RuleForm::Forward(_) => return false,
    };
    let is_opened_by_local = direction == Direction::Outbound;
    if opens && is_sent != is_opened_by_local {
        return false;
    }
    let address = |(ip, port): (IpAddr, u16)| Address::from(std::net::SocketAddr::new(ip, port));
    let flow = Flow {
        direction,
        protocol,
        listen: None,
        local: address(local),
        remote: address(remote),
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: unix_s,
    };
    rule.selectors.matches(&flow, UnknownOwner::Matches).is_ok()
}

/// A packet as a rule compares it.
struct View<'k> {
    is_inbound: bool,
    is_routed: bool,
    interface: &'k str,
    local: IpAddr,
    remote: IpAddr,
    /// The local and the remote port.
    ports: Option<[u16; 2]>,
}

impl<'k> View<'k> {
    /// The views of a packet: a packet that is forwarded has two.
    fn all(packet: &'k FilterPacket) -> Vec<Self> {
        let inbound = |interface, is_routed| Self {
            is_inbound: true,
            is_routed,
            interface,
            local: packet.destination,
            remote: packet.source,
            ports: packet.ports().map(|[source, destination]| [destination, source]),
        };
        let outbound = |interface, is_routed| Self {
            is_inbound: false,
            is_routed,
            interface,
            local: packet.source,
            remote: packet.destination,
            ports: packet.ports(),
        };
        match &packet.path {
            PacketPath::In(interface) => vec![inbound(interface, false)],
            PacketPath::Out(interface) => vec![outbound(interface, false)],
            PacketPath::FromTunnel(_) => vec![inbound("", false)],
            PacketPath::ToTunnel(_) => vec![outbound("", false)],
            // Before the kernel reassembles a packet, it has not looked up its route.
            PacketPath::Routed { received, .. } if packet.is_fragment => {
                vec![inbound(received, false)]
            }
            PacketPath::Routed { received, sent } => {
                vec![inbound(received, true), outbound(sent, true)]
            }
        }
    }
}

impl PacketSelectors {
    /// Compares the conditions one by one with a packet.
    ///
    /// # Errors
    /// The first condition that does not hold.
    fn matches(&self, packet: &FilterPacket, unix_s: i64) -> Result<(), FilterMismatch> {
        let mut first = Ok(());
        for view in View::all(packet) {
            match self.matches_view(packet, &view, unix_s) {
                Ok(()) => return Ok(()),
                Err(mismatch) => first = first.and(Err(mismatch)),
            }
        }
        first
    }

    fn matches_view(
        &self,
        packet: &FilterPacket,
        view: &View<'_>,
        unix_s: i64,
    ) -> Result<(), FilterMismatch> {
        let is_direction = match self.direction {
            PacketDirection::Inbound => view.is_inbound,
            PacketDirection::Outbound => !view.is_inbound,
            PacketDirection::Both => true,
        };
        let is_routing = match self.routing {
            Routing::Local => !view.is_routed,
            Routing::Routed => view.is_routed,
            Routing::Either => true,
        };
        let is_way = match packet.path.tunnel() {
            Some(ike) => self.tunnels.iter().any(|one| one == ike),
            None => self.tunnels.is_empty(),
        };
        let is_fragments = self.fragments == FragmentMatch::Fragments;
        let is_opener = match self.opened_by {
            None => true,
            _ if !packet.header.opens() => true,
            Some(Opener::Local) => !view.is_inbound,
            Some(Opener::Remote) => view.is_inbound,
        };
        let icmp = packet.icmp();
        let holds = |ranges: &[RangeInclusive<u16>], place: usize| {
            let port = view.ports.map(|ports| ports[place]);
            ranges.is_empty()
                || port.is_some_and(|port| ranges.iter().any(|range| range.contains(&port)))
        };
        let is_one = |numbers: &[u8], number: Option<u8>| {
            numbers.is_empty() || number.is_some_and(|number| numbers.contains(&number))
        };
        let any = |list: &[AddressSelector], address| {
            list.is_empty() || list.iter().any(|one| one.matches(Some(address), &[]))
        };
        let interfaces = &self.interfaces;
        let conditions = [
            (is_way, FilterMismatch::Tunnel),
            (is_fragments == packet.is_fragment, FilterMismatch::Fragments),
            (is_direction, FilterMismatch::Direction),
            (is_routing, FilterMismatch::Routing),
            (
                interfaces.is_empty() || interfaces.iter().any(|name| name == view.interface),
                FilterMismatch::Interface,
            ),
            (is_one(&self.protocols, Some(packet.protocol)), FilterMismatch::Protocol),
            (any(&self.local, view.local), FilterMismatch::Local),
            (holds(&self.local_ports, 0), FilterMismatch::LocalPorts),
            (any(&self.remote, view.remote), FilterMismatch::Remote),
            (holds(&self.remote_ports, 1), FilterMismatch::RemotePorts),
            (is_one(&self.icmp_types, icmp.map(|icmp| icmp.0)), FilterMismatch::IcmpType),
            (is_one(&self.icmp_codes, icmp.map(|icmp| icmp.1)), FilterMismatch::IcmpCode),
            (is_opener, FilterMismatch::OpenedBy),
            (self.when.as_ref().is_none_or(|when| when.is_open(unix_s)), FilterMismatch::When),
        ];
        let failed = conditions.into_iter().find(|(holds, _)| !holds);
        failed.map_or(Ok(()), |(_, mismatch)| Err(mismatch))
    }

    /// The protocols, as text for people.
    #[must_use]
    pub fn protocol_words(&self) -> Vec<String> {
        self.protocols.iter().map(|number| protocol_name(*number)).collect()
    }
}

/// The first condition of a filter rule that a packet does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterMismatch {
    /// `tunnel`.
    Tunnel,
    /// `fragments`.
    Fragments,
    /// `direction`.
    Direction,
    /// `routing`.
    Routing,
    /// `interface` or `class`.
    Interface,
    /// `protocol`.
    Protocol,
    /// `local`.
    Local,
    /// `local-ports`.
    LocalPorts,
    /// `remote`.
    Remote,
    /// `remote-ports`.
    RemotePorts,
    /// `icmp-type`.
    IcmpType,
    /// `icmp-code`.
    IcmpCode,
    /// `opened-by`.
    OpenedBy,
    /// `when`.
    When,
}

impl fmt::Display for FilterMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tunnel => "`tunnel` does not match the packet",
            Self::Fragments => "`fragments` does not match the packet",
            Self::Direction => "`direction` does not match the packet",
            Self::Routing => "`routing` does not match the packet",
            Self::Interface => "the interface of the packet does not match",
            Self::Protocol => "`protocol` does not match the packet",
            Self::Local => "the local address is not in `local`",
            Self::LocalPorts => "the local port is not in `local-ports`",
            Self::Remote => "the remote address is not in `remote`",
            Self::RemotePorts => "the remote port is not in `remote-ports`",
            Self::IcmpType => "the ICMP type of the packet is not in `icmp-type`",
            Self::IcmpCode => "the ICMP code of the packet is not in `icmp-code`",
            Self::OpenedBy => "`opened-by` does not match the packet",
            Self::When => "`when`: no time window is open",
        })
    }
}
