//! Warns about rules for `tacit agent --host` that would cut the host off from the network.
//! Examples are rules that capture or deny DNS queries, the operator's SSH session or the agent's
//! own sockets. Also warns if the policy uses a packet mark (fwmark) that other software uses.
//!
//! This module does not know which program or user will open a flow. If a rule selects programs or
//! users, this module assumes the safe result: a rule that denies flows matches, and any other rule
//! does not match. The agent decides in the same way about a flow of an unknown program.

use std::net::{IpAddr, SocketAddr};

use super::content::Policy;
use super::diagnostic::{Diagnostic, SourcePosition};
use super::filter::{FilterPacket, ICMPV6, PacketPath, TCP, TransportHeader, UDP, filter_scan};
use super::filter_rule::{FilterRule, FilterVerdict};
use super::host::{HostMode, HostSettings, Unmatched};
use super::lookup::Index;
use super::rule::{Action, Rule, RuleForm};
use super::selector::AddressSelector;
use crate::flow::{Address, Direction, Flow, Protocol};
use crate::message_id::MessageId;

/// What is known about the host that a policy is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The resolvers that the host asks over the network.
    pub resolvers: Vec<IpAddr>,
    /// The operator's SSH session; `None`: the operator is not there by SSH.
    pub session: Option<SshSession>,
    /// Bits of packet marks that other software on the host uses.
    pub marks: Vec<ForeignMark>,
    /// Ports that the agent itself uses.
    pub agent_ports: Vec<u16>,
}

/// An SSH session to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SshSession {
    /// The client.
    pub client: SocketAddr,
    /// Where it is served.
    pub server: SocketAddr,
}

impl SshSession {
    /// Reads the variable `SSH_CONNECTION`: the addresses and ports of client and server.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let mut end = || {
            // An address of this link has the name of its interface.
            let address = words.next()?.split('%').next()?.parse::<IpAddr>().ok()?;
            Some(SocketAddr::new(address.to_canonical(), words.next()?.parse().ok()?))
        };
        Some(Self { client: end()?, server: end()? })
    }
}

/// Bits of packet marks that other software uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMark {
    /// What uses them.
    pub by: String,
    /// The bits.
    pub bits: u32,
}

/// Software that marks packets in the host's own network, with the bits that it uses by default.
///
/// Docker is not among them: it marks packets in networks of its own. WireGuard is found by its
/// routing rule.
pub const KNOWN_MARKS: [KnownMark; 4] = [
    KnownMark {
        name: "kube-proxy",
        bits: 0x0000_c000,
        interfaces: &["kube-ipvs0"],
        directory: Some("/var/lib/kubelet"),
    },
    KnownMark {
        name: "Calico",
        bits: 0xffff_0000,
        interfaces: &["cali", "tunl0"],
        directory: None,
    },
    KnownMark { name: "Cilium", bits: 0xffff_0f00, interfaces: &["cilium_"], directory: None },
    KnownMark { name: "Tailscale", bits: 0x00ff_0000, interfaces: &["tailscale"], directory: None },
];

/// The marks of a product, and how a host shows that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMark {
    /// The product.
    pub name: &'static str,
    /// The bits that it uses by default.
    pub bits: u32,
    /// How names of its network interfaces begin.
    pub interfaces: &'static [&'static str],
    /// A directory that hosts with it have.
    pub directory: Option<&'static str>,
}

/// Warnings about a policy that captures the host with these facts.
#[must_use]
pub fn host_warnings(policy: &Policy, facts: &HostFacts, unix_s: i64) -> Vec<Diagnostic> {
    let Some(settings) = &policy.host else { return Vec::new() };
    let host = HostPolicy { policy, settings, index: Index::new(&policy.rules), unix_s };
    let mut found = Vec::new();
    found.extend(facts.resolvers.iter().filter_map(|resolver| host.resolver(*resolver)));
    if let Some(session) = facts.session {
        found.extend(host.answers_to(session));
        found.extend(host.served(session));
    }
    if settings.mode == HostMode::Enforce {
        found.extend(host.filters(facts.session));
    }
    found.extend(host.own_ports(&facts.agent_ports));
    found.extend(facts.marks.iter().flat_map(|mark| host.marks(mark)));
    found
}

/// A policy with `[host]`, at a time.
struct HostPolicy<'p> {
    policy: &'p Policy,
    settings: &'p HostSettings,
    index: Index,
    unix_s: i64,
}

/// What a policy does to a flow of the host.
enum Effect<'p> {
    Relays(&'p Rule),
    Protects(&'p Rule),
    Denies(&'p Rule),
    /// A filter rule denies packets.
    Discards(&'p FilterRule),
    DeniesUnmatched,
}

impl Effect<'_> {
    /// The effect on some flows, such as "rule `web` denies clients of port 22".
    fn on(&self, flows: &str) -> String {
        match self {
            Self::Relays(rule) => format!("rule `{}` captures {flows}", rule.name),
            Self::Protects(rule) => format!("rule `{}` requires TLS for {flows}", rule.name),
            Self::Denies(rule) => format!("rule `{}` denies {flows}", rule.name),
            Self::Discards(rule) => format!("rule `{}` denies packets of {flows}", rule.name),
            Self::DeniesUnmatched => format!("no rule permits {flows}"),
        }
    }
}

impl HostPolicy<'_> {
    /// What filter rules do with packets of a flow of which `local` and `remote` are the ends;
    /// if none decides, the rules for flows do. `None`: the flow goes as without tacit.
    fn effect_on_packets(
        &self,
        flow: &Flow,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<Effect<'_>> {
        let packets = packets_of(flow, local, remote);
        let decisions = packets.map(|packet| filter_scan(self.policy, &packet, self.unix_s).filter);
        let denies = |filter: &&FilterRule| filter.verdict != FilterVerdict::Permit;
        if let Some(filter) = decisions.into_iter().flatten().find(denies) {
            return Some(Effect::Discards(filter));
        }
        if decisions.iter().all(Option::is_some) { None } else { self.effect(flow) }
    }

    /// Filter rules that deny SSH, or the neighbour discovery of IPv6, to all others.
    fn filters(&self, session: Option<SshSession>) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        if session.is_none() {
            found.extend(self.control_denied());
        }
        found.extend(self.neighbours_denied());
        found
    }

    /// Without a session it is not known who uses SSH: some client must be able to.
    fn control_denied(&self) -> Option<Diagnostic> {
        let server = SocketAddr::from((SOME_SERVER, SSH_PORT));
        let denied = |client: IpAddr| {
            let client = SocketAddr::new(client, SOME_PORT);
            let clients =
                flow(Direction::Inbound, Protocol::Tcp, Some(server), client, self.unix_s);
            let effect = self.effect_on_packets(&clients, server, client);
            effect.filter(|effect| matches!(effect, Effect::Discards(_)))
        };
        let effect = denied(SOME_CLIENT.into())?;
        let permits = self.policy.filters.iter();
        let permits = permits.filter(|filter| filter.verdict == FilterVerdict::Permit);
        let remote = permits.flat_map(|filter| &filter.selectors.remote);
        let mut clients = remote.filter_map(AddressSelector::first_v4);
        if clients.any(|client| denied(client).is_none()) {
            return None;
        }
        let message = effect.on(&format!("all clients that connect to port {SSH_PORT} (SSH)"));
        let fix = format!(
            "add at the start of the rules: [[rule]] with name = \"ssh\", filter = \"permit\", \
             protocol = \"tcp\", local-ports = {SSH_PORT}, opened-by = \"remote\""
        );
        let message =
            format!("{message}: SSH sessions will end, and you will not be able to open new ones");
        Some(self.warning(MessageId("session-cut-off"), &effect, message, fix))
    }

    fn neighbours_denied(&self) -> Option<Diagnostic> {
        let packet = |path: PacketPath, kind| FilterPacket {
            path,
            source: SOME_NEIGHBOUR.into(),
            destination: SOME_NEIGHBOUR.into(),
            protocol: ICMPV6,
            header: TransportHeader::Icmp { kind, code: 0 },
            is_fragment: false,
        };
        let packets = [NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT].into_iter();
        let mut packets = packets.flat_map(|kind| {
            let interface = String::new;
            [PacketPath::In(interface()), PacketPath::Out(interface())]
                .map(|path| packet(path, kind))
        });
        let denies = |packet: FilterPacket| {
            let filter = filter_scan(self.policy, &packet, self.unix_s).filter?;
            (filter.verdict != FilterVerdict::Permit).then_some(filter)
        };
        let effect = Effect::Discards(packets.find_map(denies)?);
        let message = effect.on("IPv6 neighbour discovery, which IPv6 needs to reach other hosts");
        let fix = "add before this rule: [[rule]] with name = \"neighbours\", filter = \"permit\", \
                   protocol = \"icmpv6\", icmp-type = [133, 134, 135, 136, 137]";
        Some(self.warning(MessageId("neighbours-cut-off"), &effect, message, fix.to_owned()))
    }

    /// `None`: the flow goes as without tacit.
    fn effect(&self, flow: &Flow) -> Option<Effect<'_>> {
        let Some(at) = self.index.lookup(flow).rule else {
            let is_refused =
                self.settings.unmatched == Unmatched::Deny && flow.direction == Direction::Outbound;
            return is_refused.then_some(Effect::DeniesUnmatched);
        };
        let rule = &*self.policy.rules[at];
        match rule.action {
            Action::Deny(_) | Action::Ipsec(_) => Some(Effect::Denies(rule)),
            Action::Tls(_) => Some(Effect::Protects(rule)),
            Action::Permit => {
                let is_relayed = rule.log || rule.idle.is_some() || rule.audited.is_some();
                is_relayed.then_some(Effect::Relays(rule))
            }
        }
    }

    fn resolver(&self, address: IpAddr) -> Option<Diagnostic> {
        let port = DNS_PORT;
        let effects = [Protocol::Udp, Protocol::Tcp].map(|protocol| {
            let to = SocketAddr::new(address, port);
            let questions = flow(Direction::Outbound, protocol, None, to, self.unix_s);
            self.effect_on_packets(&questions, client_of(to), to)
        });
        // A relayed question is answered.
        let cut = |effect: &Effect<'_>| !matches!(effect, Effect::Relays(_));
        let effect = effects.into_iter().flatten().find(cut)?;
        let flows = format!("DNS queries to {address}, which this host uses as name server");
        let message = effect.on(&flows);
        let fix = format!(
            "add at the start of the rules: [[rule]] with name = \"dns\", direction = \
             \"outbound\", protocol = \"udp\", remote = \"{address}\", remote-ports = {port}, \
             permit = true. Add the same rule again, but with name = \"dns-tcp\" and protocol = \
             \"tcp\""
        );
        Some(self.warning(MessageId("resolver-cut-off"), &effect, message, fix))
    }

    /// What the host sends in the session. The nftables rules know that these are answers only if
    /// they saw its beginning.
    fn answers_to(&self, session: SshSession) -> Option<Diagnostic> {
        let SshSession { client, server } = session;
        let answers = flow(Direction::Outbound, Protocol::Tcp, Some(server), client, self.unix_s);
        let effect = self.effect_on_packets(&answers, server, client)?;
        if let Effect::Discards(_) = effect {
            // The rule for the clients is the same.
            return None;
        }
        let problem =
            effect.on(&format!("connections to {client}, the address of your SSH client"));
        let message = format!(
            "{problem}: the kernel will reset your SSH session, because the session began before \
             the capture"
        );
        let fix = format!(
            "add at the start of the rules: [[rule]] with name = \"operator\", direction = \
             \"outbound\", remote = \"{}\", permit = true; or activate the policy with --confirm \
             60s, open a new SSH session, and run `tacit confirm` in this session",
            client.ip()
        );
        Some(self.warning(MessageId("session-cut-off"), &effect, message, fix))
    }

    /// The server of the session.
    fn served(&self, session: SshSession) -> Option<Diagnostic> {
        let SshSession { client, server } = session;
        let clients = flow(Direction::Inbound, Protocol::Tcp, Some(server), client, self.unix_s);
        let effect = self.effect_on_packets(&clients, server, client)?;
        let port = server.port();
        if let Effect::Discards(_) = effect {
            let message = effect
                .on(&format!("connections to local port {port}, which your SSH session uses"));
            let fix = format!(
                "add at the start of the rules: [[rule]] with name = \"operator\", filter = \
                 \"permit\", protocol = \"tcp\", local-ports = {port}, remote = \"{}\"",
                client.ip()
            );
            return Some(self.warning(MessageId("session-cut-off"), &effect, message, fix));
        }
        let problem =
            effect.on(&format!("connections to local port {port}, which your SSH session uses"));
        let message =
            format!("{problem}: the kernel will reset your SSH session when the capture begins");
        let fix = format!(
            "remove port {port} from `local-ports`, or add at the start of the rules: [[rule]] \
             with name = \"operator\", direction = \"inbound\", local-ports = {port}, permit = \
             true"
        );
        Some(self.warning(MessageId("session-cut-off"), &effect, message, fix))
    }

    /// Rules for servers of the host that take clients of the agent itself.
    fn own_ports(&self, ports_of_agent: &[u16]) -> Vec<Diagnostic> {
        let listens = self.policy.rules.iter().flat_map(|rule| rule.listens());
        let listens = listens.chain(&self.policy.agent.metrics).filter_map(Address::port);
        let own: Vec<u16> = listens.chain(ports_of_agent.iter().copied()).collect();
        let of_servers = self.policy.rules.iter().filter(|rule| {
            rule.form == RuleForm::HostInbound && !matches!(rule.action, Action::Permit)
        });
        let found = of_servers.filter_map(|rule| {
            let taken =
                |port: &&u16| rule.selectors.local_ports.iter().any(|one| one.contains(*port));
            let port = own.iter().find(taken)?;
            let message = format!(
                "rule `{}` captures connections to port {port}, but the agent itself listens on \
                 this port",
                rule.name
            );
            let fix = format!("remove port {port} from `local-ports`");
            Some(self.at(rule.position, MessageId("agent-captured"), message, fix))
        });
        found.collect()
    }

    fn marks(&self, foreign: &ForeignMark) -> Vec<Diagnostic> {
        let HostSettings { mark, unit_mark, .. } = *self.settings;
        let has_units = self.policy.rules.iter().any(|rule| !rule.selectors.unit.is_empty());
        let keys = [
            (
                "mark",
                mark,
                "a mask with two bits that no other program uses, for example \"0x3000\"",
            ),
            ("unit-mark", unit_mark, "a mask with one bit that no other program uses"),
        ];
        let used = keys.into_iter().filter(|(key, ..)| has_units || *key == "mark");
        used.filter_map(|(key, bits, free_bits)| {
            let common = Some(foreign.bits & bits).filter(|common| *common != 0)?;
            let message = format!(
                "`{key}` is {bits:#x}, but {user} already uses the bits {common:#x} of \
                 the packet mark",
                user = foreign.by
            );
            let fix = format!(
                "set `{key}` in [host] to {free_bits}; `ip rule` and `nft list ruleset` show the \
                 marks that are in use"
            );
            Some(self.at(self.settings.position, MessageId("mark-in-use"), message, &fix))
        })
        .collect()
    }

    fn warning(
        &self,
        id: MessageId,
        effect: &Effect<'_>,
        message: String,
        fix: String,
    ) -> Diagnostic {
        let position = match effect {
            Effect::Relays(rule) | Effect::Protects(rule) | Effect::Denies(rule) => rule.position,
            Effect::Discards(rule) => rule.position,
            Effect::DeniesUnmatched => self.settings.position,
        };
        self.at(position, id, message, fix)
    }

    fn at(
        &self,
        position: SourcePosition,
        id: MessageId,
        message: String,
        fix: impl Into<String>,
    ) -> Diagnostic {
        let mut warning = Diagnostic::warning(id, position, message).with_fix(fix);
        warning.file = self.policy.file_of(position).map(|file| (**file).into());
        warning
    }
}

/// The first packet of a flow, and one from each end after it.
fn packets_of(flow: &Flow, local: SocketAddr, remote: SocketAddr) -> [FilterPacket; 3] {
    let packet = |is_sent: bool, opens| {
        let (source, destination) = if is_sent { (local, remote) } else { (remote, local) };
        let path = if is_sent { PacketPath::Out } else { PacketPath::In };
        let opens = opens && flow.protocol == Protocol::Tcp;
        FilterPacket {
            path: path(String::new()),
            source: source.ip(),
            destination: destination.ip(),
            protocol: if flow.protocol == Protocol::Udp { UDP } else { TCP },
            header: TransportHeader::Ports {
                source: source.port(),
                destination: destination.port(),
                opens,
            },
            is_fragment: false,
        }
    };
    let is_sent = flow.direction == Direction::Outbound;
    [packet(is_sent, true), packet(true, false), packet(false, false)]
}

/// An end of which only the IP version is known.
fn client_of(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from((SOME_CLIENT, SOME_PORT)),
        SocketAddr::V6(_) => SocketAddr::from((SOME_NEIGHBOUR, SOME_PORT)),
    }
}

/// A flow of a program of which nothing is known.
fn flow(
    direction: Direction,
    protocol: Protocol,
    local: Option<SocketAddr>,
    remote: SocketAddr,
    at_unix_s: i64,
) -> Flow {
    let any = match remote {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    };
    Flow {
        direction,
        protocol,
        listen: None,
        local: Address::from(local.unwrap_or(any)),
        remote: remote.into(),
        to_own_host: false,
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: Some(String::new()),
        at_unix_s,
    }
}

const DNS_PORT: u16 = 53;
const SSH_PORT: u16 = 22;
/// Addresses and a port that stand for any (RFC 5737, RFC 3849).
const SOME_CLIENT: [u8; 4] = [192, 0, 2, 1];
const SOME_SERVER: [u8; 4] = [198, 51, 100, 1];
const SOME_NEIGHBOUR: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const SOME_PORT: u16 = 40_000;
/// ICMPv6 messages of neighbour discovery (RFC 4861).
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse;

    fn warnings(settings: &str, rules: &str, facts: &HostFacts) -> Vec<String> {
        let text = format!(
            "version = 1\n[host]\n{settings}\n[identity.i]\ncert = \"c\"\nkey = \"k\"\n{rules}"
        );
        let parsed = parse(&text);
        let policy = parsed.policy.unwrap_or_else(|| panic!("{:?}", parsed.diagnostics));
        let all = host_warnings(&policy, facts, 0);
        all.iter().map(|one| format!("{} {}", one.position, one.id.0)).collect()
    }

    fn rule(body: &str) -> String {
        format!("[[rule]]\nname = \"r\"\n{body}\n")
    }

    const PERMIT: &str = "unmatched = \"permit\"";
    const DENY: &str = "unmatched = \"deny\"";

    fn resolver() -> HostFacts {
        HostFacts { resolvers: vec![[192, 0, 2, 53].into()], ..HostFacts::default() }
    }

    fn session() -> HostFacts {
        let session = SshSession::parse("198.51.100.7 40000 192.0.2.1 22");
        HostFacts { session, ..HostFacts::default() }
    }

    #[test]
    fn resolvers_that_a_policy_cuts_off_are_reported_once() {
        let outbound = |body: &str| rule(&format!("direction = \"outbound\"\n{body}"));
        let all = outbound("remote = \"192.0.2.0/24\"\ndeny = true");
        let tls = outbound("remote = \"192.0.2.53\"\ntls = { trust = \"system\" }");
        let udp = outbound(
            "remote = \"192.0.2.53\"\nprotocol = \"udp\"\nremote-ports = 53\npermit = true",
        );
        let logged = outbound("remote = \"192.0.2.53\"\npermit = true\nlog = true");
        for (settings, rules, wanted) in [
            (PERMIT, "", &[][..]),
            (DENY, "", &["2:1 resolver-cut-off"]),
            (PERMIT, &all, &["7:1 resolver-cut-off"]),
            (PERMIT, &tls, &["7:1 resolver-cut-off"]),
            (PERMIT, &logged, &[]),
            (DENY, &udp, &["2:1 resolver-cut-off"]),
        ] {
            assert_eq!(warnings(settings, rules, &resolver()), wanted, "{settings} {rules}");
        }
    }

    #[test]
    fn filters_that_cut_off_control_and_neighbours_are_reported() {
        let named = |name: &str, body: &str| format!("[[rule]]\nname = \"{name}\"\n{body}\n");
        let deny = named("rest", "filter = \"deny\"");
        let ssh = |remote: &str| {
            let body = "filter = \"permit\"\nprotocol = \"tcp\"\nlocal-ports = 22";
            named("ssh", &format!("{body}\nremote = \"{remote}\""))
        };
        let icmp = named("nd", "filter = \"permit\"\nprotocol = \"icmpv6\"");
        let inbound =
            named("rest", "filter = \"deny\"\ndirection = \"inbound\"\nprotocol = \"tcp\"");
        let lines = |texts: &[&str]| texts.concat();
        let none = HostFacts::default();
        for (rules, facts, wanted) in [
            (deny.clone(), &none, &["7:1 session-cut-off", "7:1 neighbours-cut-off"][..]),
            (inbound, &none, &["7:1 session-cut-off"]),
            (lines(&[&ssh("10.0.0.0/8"), &icmp, &deny]), &none, &[]),
            (lines(&[&ssh("198.51.100.0/24"), &icmp, &deny]), &session(), &[]),
            (lines(&[&ssh("10.0.0.0/8"), &icmp, &deny]), &session(), &["17:1 session-cut-off"]),
            (
                lines(&[&icmp, &deny]),
                &resolver(),
                &["11:1 resolver-cut-off", "11:1 session-cut-off"],
            ),
        ] {
            assert_eq!(warnings(PERMIT, &rules, facts), wanted, "{rules}");
        }
    }

    #[test]
    fn a_session_that_a_policy_resets_is_reported() {
        let far = rule("direction = \"outbound\"\nremote = \"198.51.100.0/24\"\ndeny = true");
        let near = rule(
            "direction = \"inbound\"\nlocal-ports = \"20-30\"\n\
             tls = { identity = \"i\", client-cert = \"none\" }",
        );
        let open = rule("direction = \"outbound\"\nremote = \"198.51.100.7\"\npermit = true");
        for (settings, rules, wanted) in [
            (PERMIT, "", &[][..]),
            (DENY, "", &["2:1 session-cut-off"]),
            (DENY, &open, &[]),
            (PERMIT, &far, &["7:1 session-cut-off"]),
            (PERMIT, &near, &["7:1 session-cut-off"]),
        ] {
            assert_eq!(warnings(settings, rules, &session()), wanted, "{settings} {rules}");
        }
    }

    #[test]
    fn the_agents_own_ports_are_no_servers_of_the_host() {
        let served = rule("listen = \"127.0.0.1:8080\"\nconnect = \"127.0.0.1:9\"\npermit = true");
        let captured = "[[rule]]\nname = \"s\"\ndirection = \"inbound\"\n\
                        local-ports = \"8000-8100\"\n\
                        tls = { identity = \"i\", client-cert = \"none\" }\n";
        let none = HostFacts::default();
        assert_eq!(warnings(PERMIT, captured, &none), [""; 0]);
        let both = format!("{served}{captured}");
        assert_eq!(warnings(PERMIT, &both, &none), ["12:1 agent-captured"]);
        let of_agent = HostFacts { agent_ports: vec![8001], ..none };
        assert_eq!(warnings(PERMIT, captured, &of_agent), ["7:1 agent-captured"]);
    }

    #[test]
    fn bits_of_marks_that_others_use_are_reported() {
        let marks = |bits| HostFacts {
            marks: vec![ForeignMark { by: "another".into(), bits }],
            ..HostFacts::default()
        };
        assert_eq!(warnings(PERMIT, "", &marks(0x0fff_ffff)), [""; 0]);
        assert_eq!(warnings(PERMIT, "", &marks(0x1000_0000)), ["2:1 mark-in-use"]);
        let other = "unmatched = \"permit\"\nmark = \"0x0000c000\"";
        assert_eq!(warnings(other, "", &marks(0x4000)), ["2:1 mark-in-use"]);
    }

    #[test]
    fn the_variable_of_a_session_is_read_or_ignored() {
        let read = |text| SshSession::parse(text).map(|one| (one.client, one.server));
        let ends = |client: &str, server: &str| {
            Some((client.parse().expect("an address"), server.parse().expect("an address")))
        };
        assert_eq!(read("10.0.0.1 5 10.0.0.2 22"), ends("10.0.0.1:5", "10.0.0.2:22"));
        assert_eq!(read("::ffff:10.0.0.1 5 fe80::1%eth0 22"), ends("10.0.0.1:5", "[fe80::1]:22"));
        for wrong in ["", "10.0.0.1", "10.0.0.1 x 10.0.0.2 22", "10.0.0.1 5 host 22"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
