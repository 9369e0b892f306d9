//! Tests a captured host whose rules need no connection tracking.

use crate::machines::{Machines, TLS};

/// A client on the far machine with a port of its own choice, and NAT of the host.
const PROGRAMS: &str = r#"
cat >client.py <<'P'
import os, socket, sys, time

def exchange(client, word):
    try:
        client.sendall(word.encode())
        print(client.recv(4096).decode() or "end", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)

def hold(port, to, to_port, go):
    client = socket.socket()
    client.settimeout(10)
    client.bind(("192.0.2.2", int(port)))
    client.connect((to, int(to_port)))
    exchange(client, "early")
    open(go + ".open", "w")
    while not os.path.exists(go):
        time.sleep(0.02)
    exchange(client, "late")

def nat():
    """NAT of an address to which nothing is sent."""
    from nft import publish
    assert publish("output", 3, 80, "203.0.113.9", 80, "203.0.113.8") == [0, 0, 0]

command, *arguments = sys.argv[1:]
globals()[command](*arguments)
P
tracked() { cat /proc/sys/net/netfilter/nf_conntrack_count; }
"#;

fn expect(rules: &str, script: &str, wanted: &str) {
    let machines = Machines::new("unmatched = \"permit\"", rules);
    machines.expect(&format!("{PROGRAMS}\n{script}"), wanted);
}

#[test]
fn outbound_rules_need_no_connection_tracking() {
    expect(
        TLS,
        r#"
        capture
        ask 192.0.2.2 4433 marked
        ask 2001:db8::2 4433 marked
        ask 192.0.2.2 8000 word
        tracked
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
0
0
",
    );
}

#[test]
fn a_client_with_a_captured_port_gets_its_answers_also_after_a_reload() {
    let two = TLS.replace("remote-ports = 4433", "remote-ports = [4433, 4490]");
    expect(
        &two,
        r#"
        serve host 7000
        capture
        start_far python3 client.py hold 4490 192.0.2.1 7000 go >held.out
        until_true [ -e go.open ]
        sed -i 's/remote-ports = .*/remote-ports = [4433, 4490, 4491]/' host.toml
        ./tacit reload --control host.sock | head -1
        touch go
        ended() { [ "$(wc -l <held.out)" = 2 ]; }
        until_true ended
        cat held.out
        tracked"#,
        "
policy generation 2; changed: tls
answer to early from ::ffff:192.0.2.2
answer to late from ::ffff:192.0.2.2
0
",
    );
}

#[test]
fn captured_connections_stay_so_when_nat_makes_connection_tracking_necessary() {
    expect(
        TLS,
        r#"
        capture
        for name in within without; do
            start python3 peer.py hold 192.0.2.2 4433 marked-$name $name >$name.out
            until_true [ -e $name.open ]
        done
        python3 client.py nat
        ask 192.0.2.2 8000 word
        tracks() { [ "$(tracked)" != 0 ]; }
        until_true tracks
        sleep 2
        touch within
        until_true [ -s within.out ]
        cat within.out
        sed -i 's/remote-ports = 4433/remote-ports = 4499/' host.toml
        ./tacit reload --control host.sock | head -1
        touch without
        until_true [ -s without.out ]
        cat without.out
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.1
answer to marked-within from ::ffff:127.0.0.1
policy generation 2; changed: tls
answer to marked-without from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_connection_of_an_earlier_policy_stays_captured_over_many_reloads() {
    expect(
        TLS,
        r#"
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked go >held.out
        until_true [ -e go.open ]
        for port in $(seq 5001 5020); do
            sed -i "s/remote-ports = .*/remote-ports = $port/" host.toml
            ./tacit reload --control host.sock
        done | grep -c 'policy generation'
        ask 192.0.2.2 4433 in-clear >/dev/null
        [ $(seen in-clear) != 0 ] && echo new ones are in clear
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
20
new ones are in clear
answer to marked from ::ffff:127.0.0.1
0
",
    );
}
