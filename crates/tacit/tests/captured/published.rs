//! Tests published ports of containers: clients connect to a port of the host, and the host's NAT
//! redirects them to a container.

use crate::containers::BOX;
use crate::machines::{Machines, TLS};

/// A server in the container at port 7000 that clients reach at port 8080 of the host.
const PUBLISHED: &str = r#"
start_box python3 peer.py serve 7000
until_true in_box python3 peer.py ask 127.0.0.1 7000 ready >/dev/null
publish() {
    python3 -c "
from nft import publish
assert publish('$1', $2, $3, '$4', $5, '${6:-192.0.2.1}') == [0, 0, 0]"
}
publish prerouting 0 8080 172.31.0.2 7000
publish output 3 8080 172.31.0.2 7000
client() { in_far timeout 20 python3 peer.py ask 192.0.2.1 "$@"; }
"#;

const SETTINGS: &str = "unmatched = \"permit\"\nforwarded = [\"br0\"]";

fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{BOX}{PUBLISHED}\n{script}"), wanted);
}

#[test]
fn a_published_port_stays_as_it_was_and_its_container_is_captured() {
    let everything = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\n\
                      remote = \"192.0.2.0/24\"\n\
                      tls = { trust = \"ca\", server-name = \"far.example\" }\n";
    expect(
        &Machines::new(SETTINGS, everything),
        r#"
        client 8080 before
        start_far python3 peer.py hold 192.0.2.1 8080 older go >held.out
        until_true [ -e go.open ]
        capture
        touch go; until_true [ -s held.out ]; cat held.out
        client 8080 word
        ask 192.0.2.1 8080 word
        in_box_ask 192.0.2.2 4433 marked
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(in_box_ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        client 8080 word
        ask 192.0.2.1 8080 word
        seen marked"#,
        "
answer to before from ::ffff:192.0.2.2
answer to older from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.1
0
",
    );
}

#[test]
fn a_flow_of_a_container_that_nat_leads_to_a_captured_address_is_refused() {
    expect(
        &Machines::new(SETTINGS, TLS),
        r#"
        ip route add 198.51.100.0/24 dev v0
        publish prerouting 0 4433 192.0.2.2 4433 198.51.100.7
        publish prerouting 0 8000 192.0.2.2 8000 198.51.100.7
        in_box_ask 198.51.100.7 8000 word
        in_box_ask 198.51.100.7 4433 before >/dev/null
        [ $(seen before) != 0 ] && echo before
        capture
        in_box_ask 198.51.100.7 4433 marked
        in_box_ask 198.51.100.7 8000 word
        in_box_ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.1
before
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

const SERVED: &str = r#"
[[rule]]
name = "served"
direction = "inbound"
local-ports = [7071, 8080]
tls = { identity = "host", client-cert = "none" }
"#;

#[test]
fn inbound_rules_apply_to_programs_of_the_host_and_not_to_published_ports() {
    expect(
        &Machines::new(SETTINGS, SERVED),
        r#"
        serve host 7071
        capture
        client 7071 marked ca.pem
        client 8080 marked ca.pem
        # A proxy of the container engine would listen there.
        serve host 8080
        client 8080 marked ca.pem | grep answer
        client 8080 clear | grep answer
        seen marked 'answer to clear'"#,
        "
answer to marked from ::ffff:192.0.2.2
ECONNREFUSED
0 0
",
    );
}
