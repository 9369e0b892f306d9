//! Sends packets through the kernel's filters in a network namespace, and finds out which packets
//! pass.
//!
//! ```text
//! driver ── TUN a0 b0 c0 ──> prerouting ──────> input, forward: the filters ──> table `test`
//! driver ── raw socket   ──> chain `first` ───> output: the filters ──────────> table `test`
//! ```
//!
//! The nftables table `test` records the packets that have passed the filters, and then drops these
//! packets. The chain `first` of this table drops packets that the kernel itself sends, so that no
//! filter counts them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tacit_core::policy::filter::{FilterPacket, PacketPath};

use crate::policies;

/// Makes the interfaces and routes.
const SETUP: &str = r#"
set -e
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0
sysctl -qw net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.send_redirects=0
sysctl -qw net.ipv4.conf.default.send_redirects=0 net.ipv4.icmp_ratelimit=0
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
for name in a0 b0 c0; do
    ip tuntap add dev $name mode tun
    ip link set $name up
    sysctl -qw net.ipv4.conf.$name.rp_filter=0 net.ipv6.conf.$name.accept_dad=0
done
ip addr add 10.0.1.100/32 dev lo
ip route add local 10.0.1.0/24 dev lo table local
ip -6 addr add fd00::1:ff/128 dev lo
ip -6 route add local fd00::1:0/112 dev lo table local
metric=1
for name in a0 b0 c0; do
    ip route add 10.0.0.0/24 dev $name metric $metric
    ip -6 route add fd00::0:0/112 dev $name metric $metric
    metric=$((metric + 1))
done
ip route add 10.0.2.0/24 dev b0
ip route add 10.0.3.0/24 dev c0
ip -6 route add fd00::2:0/112 dev b0
ip -6 route add fd00::3:0/112 dev c0
nft -f - <<N
table inet test {
    set passed4 { typeof ip id; flags dynamic; size 65535; }
    set passed6 { typeof ip6 flowlabel; flags dynamic; size 65535; }
    chain note {
        add @passed4 { ip id } drop
        add @passed6 { ip6 flowlabel } drop
        drop
    }
    chain first { type filter hook output priority -400; mark != 7 drop; }
    # Fragments are not reassembled: their others never come.
    chain fragments4 {
        type filter hook prerouting priority -440
        iifname != lo ip frag-off & 0x3fff != 0 goto note
    }
    chain fragments6 {
        type filter hook prerouting priority -440
        iifname != lo exthdr frag exists goto note
    }
    chain input { type filter hook input priority 300; iifname != lo goto note; }
    chain forward { type filter hook forward priority 300; goto note; }
    chain output { type filter hook output priority 300; oifname != lo goto note; }
}
N
"#;

/// Writes packets to interfaces and raw sockets.
const DRIVER: &str = r#"
import fcntl, socket, struct, sys, os
tuns, raw = {}, {}
for name in ("a0", "b0", "c0"):
    tuns[name] = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tuns[name], 0x400454ca, struct.pack("16sH22x", name.encode(), 0x1001))
    for family in (socket.AF_INET, socket.AF_INET6):
        one = socket.socket(family, socket.SOCK_RAW, 255)
        one.setsockopt(socket.SOL_SOCKET, 25, name.encode() + b"\0")
        one.setsockopt(socket.SOL_SOCKET, 36, 7)
        raw[name, family] = one
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "end":
        print("end", flush=True)
        continue
    packet = bytes.fromhex(words[2])
    if words[0] == "in":
        os.write(tuns[words[1]], packet)
        continue
    family, to = socket.AF_INET, packet[16:20]
    if packet[0] >> 4 == 6:
        family, to = socket.AF_INET6, packet[24:40]
    try:
        raw[words[1], family].sendto(packet, (socket.inet_ntop(family, to), 0))
    except OSError as error:
        # The nftables rules have discarded it.
        if error.errno not in (1, 13, 101, 111, 113):
            raise
"#;

/// The kernel of this namespace.
pub struct Kernel {
    driver: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Kernel {
    /// Sets up this namespace.
    pub fn new() -> Self {
        let status = Command::new("bash").args(["-c", SETUP]).status().unwrap();
        assert!(status.success(), "the namespace cannot be set up");
        let mut driver = Command::new("python3")
            .args(["-c", DRIVER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = driver.stdin.take().unwrap();
        let output = BufReader::new(driver.stdout.take().unwrap());
        let mut kernel = Self { driver, input, output };
        kernel.expect("ready");
        kernel
    }

    fn expect(&mut self, wanted: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), wanted, "the driver has ended");
    }

    /// Sends packets; returns the positions of those that pass.
    pub fn passed(&mut self, packets: &[FilterPacket]) -> BTreeSet<usize> {
        nft("flush set inet test passed4; flush set inet test passed6");
        let mut lines = String::new();
        for (number, packet) in (1..).zip(packets) {
            let (way, interface) = match &packet.path {
                PacketPath::In(name) | PacketPath::Routed { received: name, .. } => ("in", name),
                PacketPath::Out(name) => ("out", name),
                PacketPath::FromTunnel(_) | PacketPath::ToTunnel(_) => panic!("a tunnel"),
            };
            write!(lines, "{way} {interface} ").unwrap();
            for byte in policies::bytes(packet, number) {
                write!(lines, "{byte:02x}").unwrap();
            }
            lines.push('\n');
        }
        self.input.write_all(lines.as_bytes()).unwrap();
        self.input.write_all(b"end\n").unwrap();
        self.expect("end");
        let mut passed = BTreeSet::new();
        for (set, is_v4) in [("passed4", true), ("passed6", false)] {
            let listed = nft(&format!("list set inet test {set}"));
            let elements = listed.split_once("elements = {").map_or("", |(_, rest)| rest);
            let elements = elements.split('}').next().unwrap_or_default();
            let numbers = elements.split(',').map(str::trim).filter(|text| !text.is_empty());
            passed.extend(numbers.map(|text| text.parse::<usize>().unwrap() - 1).inspect(
                |place| {
                    assert_eq!(packets[*place].source.is_ipv4(), is_v4);
                },
            ));
        }
        passed
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Executes commands of nft.
pub fn nft(commands: &str) -> String {
    let output = Command::new("nft").arg(commands).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {commands}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
