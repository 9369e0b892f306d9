//! Compares what `tacit explain --packet` says about packets in tunnels with what the tunnels of
//! the same policy do with them.

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tacit_core::policy::filter::{FilterPacket, PacketPath};
use tacit_core::policy::{
    InnerAddressSource, IpsecDecision, PacketExplainer, PacketExplanation, Policy, TunnelRoutes,
};
use tacit_ipsec::esp::{DataLifetime, DataVolume, DropReason, OutboundSa};
use tacit_ipsec::packet::IpPacket;
use tacit_ipsec::{
    ChildSa, Cipher, EspSpi, KeyOrigin, SaKeys, SaMode, SaProtocol, SecretBytes, TrafficSelector,
};

use super::config::{accounts, flows, selectors};
use super::{manual_sa, manual_test_keys};
use crate::ledger::Account;
use crate::packet::testing::{Passed, TestTunnels};
use crate::packet::{
    Direction, FilterCounter, PeerAddress, TunId, Tunnel, TunnelAccounts, TunnelFilters,
    TunnelPackets, tunnel_packet,
};

/// The peers of a test. Only the SA of `transport` is in transport mode.
const PEERS: &str = r#"version = 1
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "c.example"
inner = ["10.1.0.1", "fd01::1"]
[sa.manual]
peer = "192.0.2.2"
encryption = "aes256-cbc"
integrity = "sha256"
spi-in = 0x1001
spi-out = 0x1002
keys-in = "in.keys"
keys-out = "out.keys"
inner = "10.1.0.2"
[sa.transport]
peer = "192.0.2.9"
encryption = "aes256-cbc"
integrity = "sha256"
spi-in = 0x1003
spi-out = 0x1004
keys-in = "in.2.keys"
keys-out = "out.2.keys"
mode = "transport"
local = "192.0.2.7"
"#;

/// The run whose packets are compared. Some rules are for another run.
const RUN: &str = "one";

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A rule as text, without its name. Filter rules must come before the rules for their tunnel.
#[derive(Clone, Debug)]
struct RuleText {
    is_filter: bool,
    keys: String,
    /// The `tunnel` of a filter rule, or the action of another rule.
    action_or_tunnel: String,
    protocol: &'static str,
    remote: &'static str,
    local_ports: &'static str,
    remote_ports: &'static str,
}

/// A packet in one of the two directions. `own` is the end in the run.
#[derive(Clone, Copy, Debug)]
struct Probe {
    protocol: u8,
    own: (IpAddr, u16),
    other: (IpAddr, u16),
    tcp_flags: u8,
    icmp_type: u8,
    form: Form,
}

/// Values of `remote`: addresses behind peers, which overlap.
const REMOTES: [&str; 9] = [
    "",
    "\"10.2.0.0/16\"",
    "\"10.2.0.0/30\"",
    "\"10.2.0.4/31\"",
    "\"10.2.0.1\"",
    "[\"10.2.0.2-10.2.0.5\", \"fd02::/126\"]",
    "[\"10.2.0.0/29\", \"fd02::/64\"]",
    "\"fd02::/64\"",
    "\"fd02::1\"",
];

/// Actions of rules. An action that occurs several times is more probable.
const ACTIONS: [&str; 9] = [
    "ipsec = { ike = \"branch\" }",
    "ipsec = { ike = \"branch\" }",
    "ipsec = { ike = \"branch\" }",
    "ipsec = { sa = \"manual\" }",
    "ipsec = { sa = \"transport\" }",
    "permit = true",
    "deny = true",
    "filter = \"permit\"",
    "filter = \"deny\"",
];

/// Which part of a packet is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    /// A whole packet, with an IPv6 authentication header that a program has written.
    BehindAh,
    First,
    /// A first fragment that ends before the flags of TCP.
    ShortFirst,
    Later,
}

/// A tunnel, and the SA with which the peer sends.
struct Installed {
    peer: String,
    inner: Vec<IpAddr>,
    spi_in: EspSpi,
    spi_out: EspSpi,
    of_peer: OutboundSa,
    is_transport: bool,
}

/// A policy with the tunnels of its peers.
struct Fixture<'p> {
    routes: Arc<TunnelRoutes>,
    explainer: PacketExplainer<'p>,
    counters: Vec<Arc<FilterCounter>>,
    accounts: Vec<(String, Arc<Account>)>,
    tunnels: TestTunnels,
    installed: Vec<Installed>,
}

fn rule() -> impl Strategy<Value = RuleText> {
    let ports = || {
        prop::sample::select(vec!["", "", "80", "[22, 443]", "\"79-81\"", "\"1-1024\"", "65535"])
    };
    let remote = prop::sample::select(&REMOTES[..]);
    let protocol = prop::sample::select(vec!["tcp", "udp", "icmp"]);
    let action = prop::sample::select(&ACTIONS[..]);
    let run = prop::sample::select(vec!["", "", "", "\"one\"", "\"two\"", "[\"one\", \"two\"]"]);
    let tunnel = prop::sample::select(vec![
        "\"branch\"",
        "[\"branch\", \"manual\"]",
        "[\"transport\", \"manual\"]",
    ]);
    let of_tcp = prop::sample::select(vec!["", "\"local\"", "\"remote\""]);
    (action, any::<bool>(), protocol, remote, [ports(), ports()], run, tunnel, of_tcp).prop_map(
        |(
            action,
            is_inbound,
            protocol,
            remote,
            [local_ports, remote_ports],
            run,
            tunnel,
            of_tcp,
        )| {
            let is_filter = action.starts_with("filter");
            let is_ipsec = action.starts_with("ipsec");
            let is_inbound = is_inbound && (is_ipsec || is_filter);
            let remote = if action.contains("transport") { "\"192.0.2.9\"" } else { remote };
            let has_ports = protocol != "icmp";
            let local_ports = match local_ports {
                "" if is_ipsec && is_inbound => "[80, \"440-443\"]",
                given => given,
            };
            let direction = if is_inbound { "\"inbound\"" } else { "\"outbound\"" };
            let keys = [
                ("direction", direction, !is_filter || of_tcp.is_empty()),
                ("protocol", &format!("\"{protocol}\""), is_ipsec || is_filter || has_ports),
                ("remote", remote, true),
                ("local-ports", local_ports, has_ports),
                ("remote-ports", remote_ports, has_ports),
                ("run", run, !is_filter),
                ("tunnel", tunnel, is_filter),
                ("opened-by", of_tcp, is_filter && protocol == "tcp"),
            ];
            let keys = keys.iter().filter(|(_, value, is_used)| *is_used && !value.is_empty());
            let keys = keys.map(|(key, value, _)| format!("{key} = {value}\n")).collect::<String>();
            let keys = format!("{keys}{action}\n");
            let action_or_tunnel = if is_filter { tunnel } else { action }.to_owned();
            RuleText {
                is_filter,
                keys,
                action_or_tunnel,
                protocol,
                remote,
                local_ports,
                remote_ports,
            }
        },
    )
}

fn probe() -> impl Strategy<Value = Probe> {
    let port = || {
        prop::sample::select(vec![
            0_u16, 1, 21, 22, 23, 78, 79, 80, 81, 82, 439, 440, 442, 443, 444, 1024, 1025, 65534,
            65535,
        ])
    };
    let v4 = (
        prop::sample::select(vec![[10, 1, 0, 1], [10, 1, 0, 1], [10, 1, 0, 2], [10, 9, 0, 1]]),
        prop_oneof![
            6 => (0..9_u8).prop_map(|last| [10, 2, 0, last]),
            1 => prop::sample::select(vec![[10, 1, 255, 255], [10, 2, 255, 255], [10, 3, 0, 0]]),
        ],
    );
    let v4 = v4.prop_map(|(own, other)| (IpAddr::from(own), IpAddr::from(other)));
    let v6 = (
        prop::sample::select(vec!["fd01::1", "fd01::1", "fd01::2"]),
        prop::sample::select(vec![
            "fd02::",
            "fd02::1",
            "fd02::3",
            "fd02::4",
            "fd02::ffff:ffff:ffff:ffff",
            "fd02:0:0:1::",
            "fd01:ffff::",
        ]),
    );
    let v6 = v6.prop_map(|(own, other): (&str, &str)| {
        (own.parse::<IpAddr>().unwrap(), other.parse::<IpAddr>().unwrap())
    });
    let transport = prop::sample::select(vec!["192.0.2.9", "192.0.2.9", "192.0.2.8"]);
    let transport = transport
        .prop_map(|other: &str| (IpAddr::from([192, 0, 2, 7]), other.parse::<IpAddr>().unwrap()));
    let ends = prop_oneof![4 => v4, 2 => v6, 1 => transport];
    let protocol = prop::sample::select(vec![TCP, TCP, TCP, UDP, UDP, ICMP, ICMP, ICMPV6, 47, 132]);
    let tcp_flags = prop::sample::select(vec![SYN, SYN, ACK, SYN | ACK, 0]);
    let icmp_type = prop::sample::select(vec![0_u8, 1, 3, 8, 11, 128, 129]);
    let form = prop_oneof![
        8 => Just(Form::Whole),
        1 => Just(Form::BehindAh),
        1 => Just(Form::First),
        1 => Just(Form::ShortFirst),
        2 => Just(Form::Later),
    ];
    (ends, [port(), port()], protocol, tcp_flags, icmp_type, form).prop_map(
        |((own, other), [own_port, other_port], protocol, tcp_flags, icmp_type, form)| {
            let protocol = match protocol {
                // Most packets have the ICMP of their IP version.
                ICMP if own.is_ipv6() => ICMPV6,
                given => given,
            };
            let own = (own, own_port);
            let other = (other, other_port);
            Probe { protocol, own, other, tcp_flags, icmp_type, form }
        },
    )
}

/// How far a packet is from an edge of a rule.
#[derive(Clone, Debug)]
struct Aim {
    rule: prop::sample::Index,
    edge: prop::sample::Index,
    /// What is added to the remote address, the local port and the remote port.
    nudges: [i8; 3],
}

fn aim() -> impl Strategy<Value = Option<Aim>> {
    let nudge = || prop::sample::select(vec![0_i8, 0, 0, 0, 0, 0, 1, -1]);
    let aim = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let aim = (aim, [nudge(), nudge(), nudge()]);
    prop::option::weighted(0.9, aim.prop_map(|((rule, edge), nudges)| Aim { rule, edge, nudges }))
}

impl Probe {
    /// Moves the packet to an edge of a rule, or next to it.
    fn aimed(self, rule: &RuleText, aim: &Aim) -> Self {
        let Aim { edge, nudges, .. } = aim;
        let is_of_address = |letter: char| letter.is_ascii_hexdigit() || ".:".contains(letter);
        let addresses = rule.remote.split(|letter| !is_of_address(letter));
        let addresses: Vec<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
        let nudged = |address: &IpAddr| match *address {
            IpAddr::V4(ip) => {
                let bits = ip.to_bits().wrapping_add_signed(nudges[0].into());
                IpAddr::from(std::net::Ipv4Addr::from_bits(bits))
            }
            IpAddr::V6(ip) => {
                let bits = ip.to_bits().wrapping_add_signed(nudges[0].into());
                IpAddr::from(std::net::Ipv6Addr::from_bits(bits))
            }
        };
        let remote = match addresses.as_slice() {
            [] => self.other.0,
            all => nudged(edge.get(all)),
        };
        let own: &str = match (rule.action_or_tunnel.as_str(), remote) {
            (text, IpAddr::V4(_)) if text.contains("transport") => "192.0.2.7",
            (text, IpAddr::V4(_)) if text.contains("manual") => "10.1.0.2",
            (_, IpAddr::V4(_)) => "10.1.0.1",
            (_, IpAddr::V6(_)) => "fd01::1",
        };
        let near_port = |text: &str, port: u16, nudge: i8| {
            let ports = text.split(|letter: char| !letter.is_ascii_digit());
            let ports: Vec<u16> = ports.filter_map(|text| text.parse().ok()).collect();
            let port = if ports.is_empty() { port } else { *edge.get(&ports) };
            port.wrapping_add_signed(nudge.into())
        };
        let icmp = if remote.is_ipv4() { ICMP } else { ICMPV6 };
        let is_error = self.is_error();
        Self {
            protocol: match rule.protocol {
                "tcp" if !is_error => TCP,
                "udp" if !is_error => UDP,
                _ => icmp,
            },
            // An error is about a packet of the rule.
            icmp_type: match (rule.protocol, icmp) {
                ("tcp", ICMP) if is_error => 3,
                ("udp", ICMP) if is_error => 4,
                ("tcp", _) if is_error => 1,
                ("udp", _) if is_error => 2,
                _ => self.icmp_type,
            },
            own: (own.parse().unwrap(), near_port(rule.local_ports, self.own.1, nudges[1])),
            other: (remote, near_port(rule.remote_ports, self.other.1, nudges[2])),
            ..self
        }
    }

    fn is_error(&self) -> bool {
        tacit_core::icmp::is_error(self.protocol, self.icmp_type)
    }

    /// The bytes of the packet.
    fn bytes(&self, direction: Direction) -> Vec<u8> {
        let (from, to) = match direction {
            Direction::Outbound => (self.own, self.other),
            Direction::Inbound => (self.other, self.own),
        };
        let (offset, more) = match self.form {
            Form::Whole | Form::BehindAh => (0, 0),
            Form::First | Form::ShortFirst => (0, 1),
            Form::Later => (8_u16, 0),
        };
        let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        let mut content = match self.protocol {
            _ if self.form == Form::Later => vec![0xff; 16],
            ICMP | ICMPV6 => {
                let mut message = vec![self.icmp_type, 0, 0, 0, 0, 0, 0, 0];
                if let Some(quoted) = self.quoted() {
                    message.extend(quoted.bytes(reversed(direction)));
                }
                message
            }
            TCP => [ports.as_slice(), &[0; 8], &[0x50, self.tcp_flags], &[0; 6]].concat(),
            _ => [ports.as_slice(), &[0; 12]].concat(),
        };
        if self.form == Form::ShortFirst {
            content.truncate(8);
        }
        match (from.0, to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = u16::try_from(20 + content.len()).unwrap().to_be_bytes();
                let fragment = ((more << 13) | (offset / 8)).to_be_bytes();
                let mut header = vec![0x45, 0, total[0], total[1], 0, 0];
                header.extend([fragment[0], fragment[1], 64, self.protocol, 0, 0]);
                [header.as_slice(), &from.octets(), &to.octets(), &content].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let fragment = (offset | more).to_be_bytes();
                let (next, extension) = match self.form {
                    Form::Whole => (self.protocol, vec![]),
                    Form::BehindAh => (51, [&[self.protocol, 2][..], &[0; 14]].concat()),
                    Form::First | Form::ShortFirst | Form::Later => {
                        (44, vec![self.protocol, 0, fragment[0], fragment[1], 0, 0, 0, 1])
                    }
                };
                let length = u16::try_from(extension.len() + content.len()).unwrap().to_be_bytes();
                let header = [0x60, 0, 0, 0, length[0], length[1], next, 64];
                [&header[..], &from.octets(), &to.octets(), &extension, &content].concat()
            }
            _ => unreachable!("both ends have one IP version"),
        }
    }

    /// The packet that an ICMP error is about. It has no SYN, because an error may be about a
    /// packet that no rule permits to open a flow.
    fn quoted(&self) -> Option<Self> {
        let protocol = if self.icmp_type % 2 == 1 { TCP } else { UDP };
        let quoted = Self { protocol, tcp_flags: ACK, form: Form::Whole, ..*self };
        (self.is_error() && !matches!(self.form, Form::ShortFirst | Form::Later)).then_some(quoted)
    }
}

fn reversed(direction: Direction) -> Direction {
    match direction {
        Direction::Outbound => Direction::Inbound,
        Direction::Inbound => Direction::Outbound,
    }
}

/// The SA with which the peer sends.
fn of_peer(child: &ChildSa) -> OutboundSa {
    let child = child.clone();
    let mode = match child.mode {
        SaMode::Tunnel => SaMode::Tunnel,
        SaMode::Transport { local, remote } => SaMode::Transport { local: remote, remote: local },
    };
    let child = ChildSa {
        inbound: child.outbound,
        outbound: child.inbound,
        local: child.remote,
        remote: child.local,
        mode,
        ..child
    };
    OutboundSa::new(&child, LIFETIME).unwrap()
}

/// A child SA as IKE would negotiate it.
fn negotiated(packets: &TunnelPackets) -> ChildSa {
    let cipher = Cipher::Aes128Gcm;
    let keys = |spi: u32, byte: u8| SaKeys {
        spi: EspSpi::new(spi).unwrap(),
        encryption: SecretBytes::new(vec![byte; cipher.key_bytes() + cipher.salt_bytes()]),
        integrity: SecretBytes::new(Vec::new()),
    };
    ChildSa {
        protocol: SaProtocol::EspInUdp(cipher),
        origin: KeyOrigin::Ike,
        mode: SaMode::Tunnel,
        has_extended_sequence: true,
        inbound: keys(0x2001, 1),
        outbound: keys(0x2002, 2),
        local: packets.local.clone(),
        remote: packets.remote.clone(),
    }
}

const LIFETIME: DataLifetime = DataLifetime { soft: NO_LIMIT, hard: NO_LIMIT };
const NO_LIMIT: DataVolume = DataVolume { packets: u64::MAX, bytes: u64::MAX };

impl<'p> Fixture<'p> {
    fn new(policy: &'p Policy) -> Self {
        let routes = Arc::new(TunnelRoutes::of(policy, RUN, &[]).unwrap());
        let counters: Vec<_> =
            policy.filters.iter().map(|filter| FilterCounter::new(&filter.name)).collect();
        let mut fixture = Self {
            routes,
            explainer: PacketExplainer::new(policy, 0),
            counters,
            accounts: accounts(policy),
            tunnels: TestTunnels::default(),
            installed: Vec::new(),
        };
        let mut filters = TunnelFilters::default();
        filters.follow(policy, &fixture.counters);
        for (name, ike) in &policy.ikes {
            let InnerAddressSource::Policy(inner) = &ike.inner else { unreachable!() };
            let routes = &fixture.routes;
            let local: Vec<TrafficSelector> = selectors(inner.iter().map(|one| (*one, *one)));
            let packets = TunnelPackets {
                local,
                remote: selectors(routes.remotes(name).iter().copied()),
                flows: flows(routes, name, inner),
                accounts: TunnelAccounts::new(routes, name, &fixture.accounts),
            };
            let child = negotiated(&packets);
            fixture.install(name, inner, &child, packets, &mut filters);
        }
        for (name, settings) in &policy.sas {
            let packets = manual_sa::packets(&fixture.routes, name, settings, &fixture.accounts);
            let child = manual_sa::child(settings, &manual_test_keys(), &packets).unwrap();
            fixture.install(name, &settings.inner, &child, packets, &mut filters);
        }
        fixture
    }

    fn install(
        &mut self,
        peer: &str,
        inner: &[IpAddr],
        child: &ChildSa,
        packets: TunnelPackets,
        filters: &mut TunnelFilters,
    ) {
        self.tunnels.install(Tunnel {
            tun: TunId::numbered(1),
            child: child.clone(),
            peer: "192.0.2.1:4500".parse().unwrap(),
            peer_address: PeerAddress::Fixed,
            lifetime: LIFETIME,
            flows: packets.flows,
            accounts: packets.accounts,
            filter: filters.of(peer),
        });
        self.installed.push(Installed {
            peer: peer.to_owned(),
            inner: inner.to_vec(),
            spi_in: child.inbound.spi,
            spi_out: child.outbound.spi,
            of_peer: of_peer(child),
            is_transport: child.mode != SaMode::Tunnel,
        });
    }

    fn explain(&self, direction: Direction, peer: &str, probe: &Probe) -> PacketExplanation {
        let peer = peer.to_owned();
        let path = match direction {
            Direction::Outbound => PacketPath::ToTunnel(peer),
            Direction::Inbound => PacketPath::FromTunnel(peer),
        };
        let packet = FilterPacket::of_bytes(path, &probe.bytes(direction)).unwrap();
        self.explainer.explain(&packet)
    }

    /// The filter rule that has counted a packet since `before`.
    fn counted(&self, before: &[u64]) -> Option<&str> {
        let counters = self.counters.iter().zip(before);
        let mut more = counters.filter(|(counter, before)| counter.packets() > **before);
        more.next().map(|(counter, _)| counter.name.as_str())
    }

    fn counts(&self) -> Vec<u64> {
        self.counters.iter().map(|counter| counter.packets()).collect()
    }

    /// Sends or receives a packet of the tunnel at this position.
    fn pass(
        &mut self,
        at: usize,
        direction: Direction,
        probe: &Probe,
    ) -> Result<Passed, DropReason> {
        let bytes = probe.bytes(direction);
        match direction {
            Direction::Outbound => self.tunnels.send(&bytes),
            Direction::Inbound => {
                let Installed { of_peer, spi_in, .. } = &mut self.installed[at];
                let mut frame = vec![0; of_peer.frame_bytes(bytes.len())];
                let sealed = of_peer.seal_packet(&mut frame, &bytes)?;
                self.tunnels.receive(*spi_in, &mut frame[..sealed])
            }
        }
    }

    /// Whether outbound and inbound rules contain the packet.
    fn has_both_directions(&self, peer: &str, direction: Direction, probe: &Probe) -> bool {
        let parsed = IpPacket::parse(&probe.bytes(direction)).unwrap();
        let packet = tunnel_packet(direction, &parsed).unwrap();
        let groups = self.routes.groups().iter().filter(|group| group.peer == peer);
        groups.filter(|group| group.contains(&packet)).count() > 1
    }
}

/// The decision for the packets of [`RUN`].
fn of_run(explanation: &PacketExplanation) -> Option<&IpsecDecision> {
    let decisions = explanation.ipsec.as_ref()?;
    let named = decisions.iter().find(|one| one.runs.iter().any(|run| run == RUN));
    named.or_else(|| decisions.iter().find(|one| one.runs.is_empty()))
}

/// How often each outcome was compared.
#[derive(Debug, Default)]
struct Seen {
    policies: u32,
    granted: u32,
    answers: u32,
    errors: u32,
    refused: u32,
    filtered: u32,
}

/// Compares one packet of the tunnel at a position of the fixture.
fn compare(
    fixture: &mut Fixture<'_>,
    at: usize,
    direction: Direction,
    probe: &Probe,
    seen: &mut Seen,
) -> Result<(), TestCaseError> {
    let peer = fixture.installed[at].peer.clone();
    let is_of_peer = fixture.installed[at].inner.contains(&probe.own.0);
    let explanation = fixture.explain(direction, &peer, probe);
    fixture.tunnels.forget_sent();
    let before = fixture.counts();
    let mut result = fixture.pass(at, direction, probe);
    let decision = of_run(&explanation);
    let shown = format!("{explanation}\n{direction:?} {probe:?}\n{result:?}");
    if direction == Direction::Inbound
        && (probe.protocol, probe.form == Form::Later) == (UDP, false)
        && decision.is_some_and(|one| one.is_answer)
    {
        prop_assert_eq!(result.as_ref().err(), Some(&DropReason::Flow), "{}", shown);
        prop_assert_eq!(fixture.counted(&before), None, "{}", shown);
        if let Err(reason) = fixture.pass(at, Direction::Outbound, probe) {
            // No program can open the flow.
            prop_assert_eq!(reason, DropReason::Filter, "{}", shown);
            return Ok(());
        }
        let before = fixture.counts();
        result = fixture.pass(at, direction, probe);
        prop_assert_eq!(fixture.counted(&before), explanation.rule.as_deref(), "{}", shown);
    } else if is_of_peer && result.as_ref().err() != Some(&DropReason::Flow) {
        // Filter rules are compared with packets that a flow permits.
        let is_compared = result.is_ok() || result.as_ref().err() == Some(&DropReason::Filter);
        let wanted = explanation.rule.as_deref().filter(|_| is_compared);
        prop_assert_eq!(fixture.counted(&before), wanted, "{}", shown);
    }
    // A packet of this device may leave through the tunnel of another peer.
    let spis = [fixture.installed[at].spi_in, fixture.installed[at].spi_out];
    let passed = result.ok().filter(|one| spis.contains(&one.spi));
    let Some(decision) = decision else {
        prop_assert!(explanation.discard.is_some() && passed.is_none(), "{}", shown);
        seen.filtered += 1;
        return Ok(());
    };
    if decision.rule.is_none()
        && let Some(quoted) = probe.quoted().filter(|_| is_of_peer)
    {
        prop_assert!(decision.why.is_some(), "{}", shown);
        let of_quoted = fixture.explain(reversed(direction), &peer, &quoted);
        if let Some(of_quoted) = of_run(&of_quoted) {
            prop_assert_eq!(passed.is_some(), of_quoted.rule.is_some(), "{}", shown);
            seen.errors += u32::from(passed.is_some());
        }
        return Ok(());
    }
    prop_assert_eq!(passed.is_some(), decision.rule.is_some(), "{}", shown);
    let Some(passed) = passed else {
        seen.refused += 1;
        return Ok(());
    };
    seen.granted += u32::from(!decision.is_answer);
    seen.answers += u32::from(decision.is_answer);
    if probe.form == Form::Later || fixture.has_both_directions(&peer, direction, probe) {
        return Ok(());
    }
    let accounts = fixture.accounts.iter();
    let mut charged = accounts.filter(|(_, account)| Arc::ptr_eq(account, &passed.account));
    let charged = charged.next().map(|(name, _)| name.as_str());
    prop_assert_eq!(charged, decision.rule.as_deref(), "{}", shown);
    Ok(())
}

/// The test checks, for each packet and each peer:
///
/// * The tunnel sends or delivers the packet if explain names a rule with `ipsec` and no filter
///   rule denies the packet. Otherwise, the tunnel drops the packet.
/// * If explain permits the packet only as an answer, it is a UDP datagram of the peer or a TCP
///   segment. The tunnel drops the datagram until a program has sent one to its source. The segment
///   passes at once, because tunnels do not store the state of TCP connections.
/// * If a flow permits the packet, the filter rule that explain names has counted it. For other
///   packets, explain names a filter rule too, but the tunnel drops them earlier.
/// * The packet is charged to the account of the rule with `ipsec` that explain names. There are
///   two exceptions. If outbound and inbound rules contain a packet, explain names the rule of the
///   sender, and the account is that of the outbound rule. A later fragment has no ports, so
///   explain and the account may have any rule that contains its addresses.
/// * An ICMP error that no rule permits passes if explain names a rule for the packet in the error.
///   Explain does not get the packet in the error, so it shows this condition.
///
/// The test omits what explain does not know: the addresses of this host, addresses that a gateway
/// assigns, and, in transport mode, packets that cannot be sent: those with options or extension
/// headers, and first fragments.
#[test]
fn tunnels_do_with_a_packet_what_explain_says() {
    let config = ProptestConfig {
        cases: 2_000,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let strategy = (
        prop::collection::vec(rule(), 1..=5),
        prop::collection::vec((probe(), aim(), any::<bool>()), 6),
    );
    let seen = std::cell::RefCell::new(Seen::default());
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let result = runner.run(&strategy, |(mut rules, probes)| {
        let seen = &mut *seen.borrow_mut();
        rules.sort_by_key(|rule| !rule.is_filter);
        let texts = rules
            .iter()
            .enumerate()
            .map(|(at, rule)| format!("[[rule]]\nname = \"r{at}\"\n{}", rule.keys));
        let text = format!("{PEERS}{}", texts.collect::<String>());
        // The parser rejects policies whose rules contradict each other.
        let Some(policy) = tacit_core::policy::parse(&text).policy else { return Ok(()) };
        seen.policies += 1;
        let mut fixture = Fixture::new(&policy);
        for (probe, aim, is_inbound) in probes {
            let probe = aim.map_or(probe, |aim| probe.aimed(aim.rule.get(&rules), &aim));
            let direction = if is_inbound { Direction::Inbound } else { Direction::Outbound };
            for at in 0..fixture.installed.len() {
                let is_unknown = !matches!(probe.form, Form::Whole | Form::Later);
                if !(fixture.installed[at].is_transport && is_unknown) {
                    compare(&mut fixture, at, direction, &probe, seen)?;
                }
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let Seen { policies, granted, answers, errors, refused, filtered } = seen.into_inner();
    let counts = [policies, granted, answers, errors, refused, filtered];
    assert!(counts.iter().all(|count| *count > 100), "too few cases: {counts:?}");
}
