//! Tests inbound rules and filters at addresses that a route makes local, although no interface has
//! them.

use crate::machines::{Machines, SERVED};

/// A local prefix. The kernel calls its base address anycast. It drops TCP to the anycast address
/// of a network that it routes, 2001:db8::.
const ANYCAST: &str = r#"
sysctl -qw net.ipv6.conf.all.forwarding=1
ip -6 route add local 2001:db8:5::/64 dev lo
in_far ip -6 route add 2001:db8:5::/64 via 2001:db8::1
client() { in_far timeout 20 python3 peer.py ask "$@"; }
to_each() { for address in 2001:db8:5:: 2001:db8:5::7; do client $address "$@"; done; }
serve host 7070; serve host 7073
"#;

fn machines(rules: &str) -> Machines {
    Machines::new("unmatched = \"permit\"", rules)
}

#[test]
fn clients_of_anycast_addresses_get_tls_and_nothing_in_clear() {
    machines(SERVED).expect(
        &format!(
            r#"{ANYCAST}
            to_each 7070 before
            capture
            to_each 7070 marked ca.pem 192.0.2.1
            to_each 7070 clear | grep answer
            to_each 7073 word
            for port in 15001 15002 15003; do to_each $port word; done | sort | uniq -c | tr -s ' '
            kill -9 $(pgrep -P $agent)
            refused() {{ [ "$(client 2001:db8:5:: 7070 marked ca.pem)" = ECONNREFUSED ]; }}
            until_true refused
            to_each 7070 clear
            seen marked 'answer to clear'"#
        ),
        "
answer to before from 2001:db8::2
answer to before from 2001:db8::2
answer to marked from 2001:db8::2
answer to marked from 2001:db8::2
answer to word from 2001:db8::2
answer to word from 2001:db8::2
 6 ECONNREFUSED
ECONNREFUSED
ECONNREFUSED
0 0
",
    );
}

/// Sends to its client until an error.
const PUSH: &str = r#"
import socket, sys, time
server = socket.create_server(("::", 7070), family=socket.AF_INET6)
while True:
    client, _ = server.accept()
    try:
        while True:
            client.sendall(b"pushed")
            open("pushed", "w")
            time.sleep(0.02)
    except OSError as error:
        open("ended", "w")
"#;

#[test]
fn a_server_at_an_anycast_address_sends_nothing_to_clients_of_older_connections() {
    let machines = machines(SERVED);
    machines.write("push.py", PUSH);
    // Connection tracking knows the connection already: the host has had a table that uses it.
    machines.expect(
        r#"
        ip -6 route add local 2001:db8:5::/64 dev lo
        in_far ip -6 route add 2001:db8:5::/64 via 2001:db8::1
        sysctl -qw net.ipv6.conf.all.forwarding=1
        start python3 push.py
        until_true serving "" 7070
        sed 's/local-ports = 7070/local-ports = 7071/' host.toml >other.toml
        ./tacit agent --host --guard --policy other.toml
        start_far python3 -c '
import socket, time
client = socket.create_connection(("2001:db8:5::", 7070))
client.recv(10)
time.sleep(600)'
        until_true [ -e pushed ]
        capture
        until_true [ -e ended ]
        echo ended"#,
        "
ended
",
    );
}

#[test]
fn the_anycast_address_of_another_router_is_not_one_of_this_host() {
    let denied = r#"
[[rule]]
name = "denied"
direction = "outbound"
remote = "2001:db8:6::"
remote-ports = 7071
deny = true
"#;
    machines(&format!("{SERVED}{denied}")).expect(
        r#"
        start unshare -n sleep 600; router=$!
        far_too() { [ "$(readlink /proc/$router/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; }
        until_true far_too
        in_router() { nsenter -t $router -n "$@"; }
        ip link add w0 type veth peer name w1
        ip link set w1 netns $router
        in_router ip link set w1 address 02:00:00:00:00:01
        ip link set w0 up; in_router ip link set w1 up; in_router ip link set lo up
        sysctl -qw net.ipv6.conf.all.forwarding=1
        ip -6 addr add 2001:db8:9::1/64 dev w0 nodad
        in_router ip -6 addr add 2001:db8:9::2/64 dev w1 nodad
        in_router ip -6 route add local 2001:db8:6::/64 dev lo
        in_router ip -6 route add default via 2001:db8:9::1
        ip -6 route add 2001:db8:6::/64 dev w0
        ip -6 neigh add 2001:db8:6:: lladdr 02:00:00:00:00:01 dev w0
        in_far ip -6 route add 2001:db8:6::/64 via 2001:db8::1
        for port in 7070 7071; do
            start nsenter -t $router -n python3 peer.py serve $port
            until_true serving in_router $port
        done
        serve host 7070
        each() {
            in_far timeout 20 python3 peer.py ask 2001:db8:6:: 7070 word
            ask 2001:db8:6:: 7071 word
        }
        each
        capture
        each"#,
        "
answer to word from 2001:db8::2
answer to word from 2001:db8:9::1
answer to word from 2001:db8::2
ECONNREFUSED
",
    );
}

#[test]
fn clients_that_reach_a_captured_port_by_policy_routing_or_nat_are_refused() {
    machines(SERVED).expect(
        r#"
        serve host 7070; serve host 7073
        # The type of this address is that of an address of another host.
        ip -6 rule add iif v0 to 2001:db8:7::/64 lookup 100
        ip -6 route add local 2001:db8:7::/64 dev lo table 100
        in_far ip -6 route add 2001:db8:7::/64 via 2001:db8::1
        python3 -c '
from nft import publish
assert publish("prerouting", 0, 9070, "192.0.2.1", 7070) == [0, 0, 0]'
        client() { in_far timeout 20 python3 peer.py ask "$@"; }
        each() { client 2001:db8:7::7 7070 $1; client 192.0.2.1 9070 $1; }
        each before
        capture
        each clear
        client 2001:db8:7::7 7073 word
        client 192.0.2.1 7070 marked ca.pem
        ask 192.0.2.1 7070 local
        sed -i 's/unmatched = "permit"/&\nmode = "audit"/' host.toml
        ./tacit reload --control host.sock >/dev/null
        each audit
        seen 'answer to clear' marked"#,
        "
answer to before from 2001:db8::2
answer to before from ::ffff:192.0.2.2
ECONNREFUSED
ECONNREFUSED
answer to word from 2001:db8::2
answer to marked from ::ffff:192.0.2.2
answer to local from ::ffff:192.0.2.1
answer to audit from 2001:db8::2
answer to audit from ::ffff:192.0.2.2
0 0
",
    );
}

/// Filters before the inbound rule.
const FILTERS: &str = r#"
[[rule]]
name = "friend"
filter = "permit"
protocol = "tcp"
remote = "2001:db8::3"
[[rule]]
name = "other"
filter = "deny"
direction = "inbound"
discard = "reset"
protocol = "tcp"
remote = ["2001:db8::2", "192.0.2.2"]
local-ports = [7070, 7073]
"#;

#[test]
fn filters_decide_about_clients_of_all_addresses_of_the_host() {
    machines(&format!("{FILTERS}{SERVED}")).expect(
        &format!(
            r#"{ANYCAST}
            ip -6 rule add iif v0 to 2001:db8:7::/64 lookup 100
            ip -6 route add local 2001:db8:7::/64 dev lo table 100
            in_far ip -6 route add 2001:db8:7::/64 via 2001:db8::1
            capture
            each() {{ to_each $1 $2; client 2001:db8:7::7 $1 $2; }}
            for port in 7070 7073; do each $port denied; done | sort | uniq -c | tr -s ' '
            in_far ip -6 addr add 2001:db8::3/128 dev v1 nodad
            in_far ip -6 addr del 2001:db8::2/64 dev v1
            in_far ip -6 route add 2001:db8::/64 dev v1
            in_far ip -6 route add 2001:db8:5::/64 via 2001:db8::1
            in_far ip -6 route add 2001:db8:7::/64 via 2001:db8::1
            each 7070 word
            seen 'answer to denied'"#
        ),
        "
 6 ECONNREFUSED
answer to word from 2001:db8::3
answer to word from 2001:db8::3
answer to word from 2001:db8::3
0
",
    );
}
