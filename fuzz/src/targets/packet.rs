//! Fuzzes the parsers of `tacit explain --packet`, which read packets from capture files and from
//! text. All evaluators of filter rules must make the same decision about each packet.

use std::sync::LazyLock;

use tacit_core::policy::filter::{
    FilterPacket, PacketPath, TransportHeader, captured_packets, filter_scan,
};
use tacit_core::policy::{PacketExplainer, Policy, host_classifier, parse, tunnel_classifier};

/// Explains at most so many packets of an input.
const EXPLAINED_MAX: usize = 8;
/// A Thursday at midnight, in seconds since 1970.
const NOW_UNIX_S: i64 = 0;

static POLICY: LazyLock<Policy> = LazyLock::new(|| parse(RULES).policy.expect("the rules"));

const RULES: &str = r#"
version = 1
[host]
unmatched = "permit"
classes = { a = 1, b = 2 }
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "c.example"
inner = "10.1.0.1"
[[rule]]
name = "ssh"
filter = "permit"
protocol = "tcp"
local-ports = 22
opened-by = "remote"
[[rule]]
name = "tunnel"
filter = "deny"
tunnel = "branch"
protocol = "udp"
remote = ["10.0.0.0/30", "fd00::/64"]
remote-ports = "1-1023"
when = { days = "thu", zone = "UTC" }
[[rule]]
name = "ping"
filter = "permit"
protocol = ["icmp", "icmpv6"]
icmp-type = [0, 8, 128]
[[rule]]
name = "fragments"
filter = "deny"
fragments = true
protocol = "udp"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.0.0.0/24"
remote-ports = 443
permit = true
[[rule]]
name = "class"
filter = "deny"
class = 1
routing = "either"
protocol = ["gre", "tcp"]
[[rule]]
name = "night"
filter = "permit"
when = { hours = "00:00-06:00", zone = "UTC" }
remote = "10.0.0.0-10.0.0.9"
[[rule]]
name = "rest"
filter = "deny"
direction = "inbound"
"#;

/// The packets of a capture can be described, and every evaluator decides about them alike.
pub(crate) fn pcap(input: &[u8]) {
    for path in [
        PacketPath::In("a".to_owned()),
        PacketPath::Routed { received: "b".to_owned(), sent: "a".to_owned() },
        PacketPath::ToTunnel("branch".to_owned()),
    ] {
        let Ok(packets) = captured_packets(input, &path) else { return };
        for packet in packets.iter().take(EXPLAINED_MAX) {
            assert_eq!(packet.path, path);
            check(packet);
            let is_complete = match packet.header {
                TransportHeader::Ports { .. } | TransportHeader::Icmp { .. } => true,
                TransportHeader::Other => ![1, 6, 17, 33, 58, 132, 136].contains(&packet.protocol),
            };
            if is_complete {
                let text = packet.to_string();
                assert_eq!(FilterPacket::parse(&text).as_ref(), Ok(packet), "{text}");
            }
        }
    }
}

/// What is shown of a description describes the same packet.
pub(crate) fn packet_text(input: &[u8]) {
    let Ok(packet) = FilterPacket::parse(&String::from_utf8_lossy(input)) else { return };
    let text = packet.to_string();
    assert_eq!(FilterPacket::parse(&text).as_ref(), Ok(&packet), "{text}");
    check(&packet);
}

fn check(packet: &FilterPacket) {
    let scan = filter_scan(&POLICY, packet, NOW_UNIX_S);
    let rule = scan.filter.map(|one| &one.name).or_else(|| scan.flow.map(|one| &one.name));
    let explained = PacketExplainer::new(&POLICY, NOW_UNIX_S).explain(packet);
    let rule = rule.filter(|_| !packet.stays_on_host());
    assert_eq!(explained.rule.as_ref(), rule, "{packet}");
    let classifier = match packet.path.tunnel() {
        Some(ike) => tunnel_classifier(&POLICY, ike),
        None => host_classifier(&POLICY, NOW_UNIX_S),
    };
    let found = classifier.decide(packet, &classifier.windows_at(NOW_UNIX_S));
    let found = found.and_then(|one| POLICY.filters.get(usize::try_from(one.rule?).ok()?));
    assert_eq!(found.map(|one| &one.name), scan.filter.map(|one| &one.name), "{packet}");
}
