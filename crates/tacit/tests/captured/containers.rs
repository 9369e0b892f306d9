//! Tests the traffic of containers behind a bridge of a captured host.

use crate::machines::{Machines, TLS};

/// A container: a namespace behind the bridge `br0`, with the host's source NAT for IPv4.
///
/// ```text
///   box 172.31.0.2, 2001:db8:1::2 ── br0 ── host ══ wire, tap ══ far
/// ```
pub const BOX: &str = r#"
start unshare -n sleep 600; box=$!
boxed() { [ "$(readlink /proc/$box/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; }
until_true boxed
in_box() { nsenter -t $box -n timeout 20 "$@"; }
start_box() { start nsenter -t $box -n "$@"; }
echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip link add br0 type bridge
ip addr add 172.31.0.1/24 dev br0; ip addr add 2001:db8:1::1/64 dev br0 nodad
ip link add b0 type veth peer name b1; ip link set b1 netns $box
ip link set b0 master br0; ip link set b0 up; ip link set br0 up
in_box ip link set lo up; in_box ip link set b1 up
in_box ip addr add 172.31.0.2/24 dev b1; in_box ip addr add 2001:db8:1::2/64 dev b1 nodad
in_box ip route add default via 172.31.0.1; in_box ip -6 route add default via 2001:db8:1::1
in_far ip route add 172.31.0.0/24 via 192.0.2.1
in_far ip -6 route add 2001:db8:1::/64 via 2001:db8::1
in_box_ask() { in_box python3 peer.py ask "$@"; }
# What Docker does for `-s 172.31.0.0/24 ! -o br0`.
python3 - <<'P'
from nft import append, compare, expression, number
expressions = [
    expression("payload", number(1, 1), number(2, 1), number(3, 12), number(4, 3)),
    compare(0, bytes([172, 31, 0])),
    expression("meta", number(1, 1), number(2, 7)),
    compare(1, b"br0".ljust(16, b"\0")),
    expression("masq"),
]
assert append("postrouting", 4, 100, expressions) == [0, 0, 0]
P
for name in iptables ip6tables; do
    [ ! -e /proc/sys/net/bridge/bridge-nf-call-$name ] ||
        echo 0 >/proc/sys/net/bridge/bridge-nf-call-$name
done
until_true in_box ping -c 1 -W 1 192.0.2.2 >/dev/null
until_true in_box ping -c 1 -W 1 2001:db8::2 >/dev/null
"#;

const RULES: &str = r#"
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
deny = true
[[rule]]
name = "relayed"
direction = "outbound"
protocol = "udp"
remote = ["192.0.2.2", "2001:db8::2"]
remote-ports = 5001
permit = true
log = true
[[rule]]
name = "closed"
direction = "outbound"
protocol = "udp"
remote = "192.0.2.2"
remote-ports = 5002
deny = true
"#;

const CAPTURED: &str = "unmatched = \"permit\"\nforwarded = [\"br0\"]";

fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{BOX}\n{script}"), wanted);
}

#[test]
fn flows_of_containers_are_captured_and_decided_as_those_of_programs() {
    let rules =
        format!("{TLS}{RULES}").replace("remote-ports = 4433", "remote-ports = [4433, 4435]");
    expect(
        &Machines::new(CAPTURED, &rules),
        r#"
        serve far 8002
        capture
        in_box_ask 192.0.2.2 4433 marked
        in_box_ask 2001:db8::2 4433 marked
        in_box_ask 192.0.2.2 4435 marked
        in_box_ask 192.0.2.2 8000 word
        in_box_ask 192.0.2.2 8002 word
        start_box python3 peer.py hold 192.0.2.2 4433 marked go >held.out
        until_true [ -e go.open ]
        ./tacit show connections --json --control host.sock | grep -o '172.31.0.2' | head -1
        ss -Htin "src 192.0.2.2:4433" | grep -o ' mss:[0-9]*'
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(in_box_ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
172.31.0.2
 mss:1448
ECONNRESET
0
",
    );
}

#[test]
fn datagrams_of_containers_are_captured_too() {
    expect(
        &Machines::new(CAPTURED, RULES),
        r#"
        cat >udp.py <<'P'
import errno, socket, sys, threading
def answer(server):
    while True:
        data, peer = server.recvfrom(4096)
        server.sendto(b"answer to " + data, peer)
if sys.argv[1] == "serve":
    for address, port in ("192.0.2.2", 5001), ("192.0.2.2", 5002), ("2001:db8::2", 5001):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.socket(family, socket.SOCK_DGRAM)
        server.bind((address, port))
        threading.Thread(target=answer, args=(server,)).start()
else:
    address, port = sys.argv[2], int(sys.argv[3])
    client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(8)
    try:
        client.connect((address, port))
        client.send(b"word")
        print(client.recv(4096).decode())
    except OSError as error:
        print(errno.errorcode.get(error.errno, error))
P
        start_far python3 udp.py serve
        all_serve() { [ $(in_far ss -Hlun | grep -c ':500[12] ') = 3 ]; }
        until_true all_serve
        capture
        in_box python3 udp.py ask 192.0.2.2 5001
        in_box python3 udp.py ask 2001:db8::2 5001
        in_box python3 udp.py ask 192.0.2.2 5002
        connections relayed closed"#,
        "
answer to word
answer to word
ECONNREFUSED
2 0
",
    );
}

#[test]
fn what_containers_serve_and_what_the_host_asks_of_them_is_not_captured() {
    let everything = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\n\
                      remote = [\"192.0.2.0/24\", \"2001:db8::/64\"]\n\
                      tls = { trust = \"ca\", server-name = \"far.example\" }\n";
    expect(
        &Machines::new(CAPTURED, everything),
        r#"
        start_box python3 peer.py serve 7000
        until_true in_box python3 peer.py ask 127.0.0.1 7000 ready >/dev/null
        serve host 7001
        capture
        in_far timeout 20 python3 peer.py ask 172.31.0.2 7000 word
        in_far timeout 20 python3 peer.py ask 2001:db8:1::2 7000 word
        ask 172.31.0.2 7000 word
        in_box_ask 172.31.0.1 7001 word
        in_box_ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.2
answer to word from 2001:db8::2
answer to word from ::ffff:172.31.0.1
answer to word from ::ffff:172.31.0.2
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_program_of_the_host_with_the_same_port_is_not_the_sender_of_a_containers_datagram() {
    let rule = |name: &str, rest: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
             remote = \"192.0.2.2\"\nremote-ports = 5001\nlog = true\n{rest}\n"
        )
    };
    let rules = [rule("of-host", "user = \"root\"\ndeny = true"), rule("rest", "permit = true")];
    expect(
        &Machines::new(CAPTURED, &rules.concat()),
        r#"
        cat >udp.py <<'P'
import socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("0.0.0.0", int(sys.argv[2])))
one.settimeout(8)
open(sys.argv[1] + ".ready", "w")
if sys.argv[1] == "hold":
    time.sleep(60)
while sys.argv[1] == "serve":
    data, peer = one.recvfrom(4096)
    one.sendto(b"answer to " + data, peer)
one.sendto(b"word", ("192.0.2.2", 5001))
try:
    print(one.recv(4096).decode())
except OSError as error:
    print(type(error).__name__)
P
        start_far python3 udp.py serve 5001 2>/dev/null
        start python3 udp.py hold 6001
        until_true [ -e serve.ready -a -e hold.ready ]
        capture
        in_box python3 udp.py ask 6001
        connections of-host rest"#,
        "
answer to word
0 1
",
    );
}
