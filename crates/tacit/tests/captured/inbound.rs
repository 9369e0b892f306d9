//! Tests the connections and datagrams that clients send to the programs of a captured host.

use crate::machines::Machines;

const RULES: &str = r#"
[[rule]]
name = "served"
direction = "inbound"
local-ports = 7070
tls = { identity = "host", client-cert = "none" }
[[rule]]
name = "closed"
direction = "inbound"
local-ports = 7072
deny = true
"#;

fn machines() -> Machines {
    Machines::new("unmatched = \"permit\"", RULES)
}

#[test]
fn a_server_that_runs_already_gets_tls_and_sees_its_clients() {
    machines().expect(
        r#"
        for port in 7070 7071 7072; do serve host $port; done
        capture
        client() { in_far timeout 20 python3 peer.py ask "$@"; }
        client 192.0.2.1 7070 marked ca.pem
        client 192.0.2.1 7071 word
        client 192.0.2.1 7072 word
        client 192.0.2.1 7073 word
        connections served closed
        seen marked"#,
        "
answer to marked from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.2
ECONNRESET
ECONNREFUSED
1 1
0
",
    );
}

#[test]
fn a_client_in_clear_gets_no_answer_of_the_server() {
    machines().expect(
        r#"
        serve host 7070
        start_far python3 peer.py hold 192.0.2.1 7070 older go >held.out
        until_true [ -e go.open ]
        capture
        in_far timeout 20 python3 peer.py ask 192.0.2.1 7070 newer | tr -c 'a-zA-Z\n' . | cut -c 1-3
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen 'answer to older' 'answer to newer'"#,
        "
...
ECONNRESET
0 0
",
    );
}

#[test]
fn without_the_agent_clients_are_refused_and_without_the_server_too() {
    machines().expect(
        r#"
        client() { in_far timeout 20 python3 peer.py ask 192.0.2.1 7070 marked ca.pem; }
        capture
        client
        serve host 7070
        client
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(client)" = ECONNREFUSED ]; }
        until_true refused
        ask 192.0.2.1 7070 word
        capture
        client
        ./tacit restart --control host.sock >/dev/null
        started() { grep -c 'run-began run=host' host.log | grep -qx 2; }
        until_true started
        client
        seen marked"#,
        "
ECONNREFUSED
answer to marked from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:192.0.2.2
answer to marked from ::ffff:192.0.2.2
0
",
    );
}

#[test]
fn the_agents_own_ports_are_closed() {
    machines().expect(
        r#"
        capture
        for port in 15001 15002 15003; do
            in_far timeout 20 python3 peer.py ask 192.0.2.1 $port word
            ask 192.0.2.1 $port word
            ask 127.0.0.1 $port word
            ask ::1 $port word
        done | sort | uniq -c | tr -s ' '"#,
        "
 12 ECONNREFUSED
",
    );
}
