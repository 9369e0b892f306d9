//! Tests what `tacit show coverage` reports about the flows of a captured host.

use serde_json::{Value, json};

use crate::fits::assert_fits;
use crate::machines::{Machines, TLS};

const RULES: &str = r#"
[[rule]]
name = "permitted"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8004
permit = true
[[rule]]
name = "own"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 4434
tls = { trust = "ca", server-name = "far.example", on-tls = "pass" }
"#;

/// Five connections with another machine, and one that stays on the host.
const CONNECTIONS: &str = r#"
cat >own.py <<'END'
import socket, ssl, time
context = ssl.create_default_context(cafile="ca.pem")
context.check_hostname = False
connection = context.wrap_socket(socket.create_connection(("192.0.2.2", 4434), timeout=8))
connection.sendall(b"word")
connection.recv(4096)
open("own.open", "w")
time.sleep(90)
END
serve far 8004; serve far 8005; serve host 7000
capture
for port in 4433 8004 8005; do
    start python3 peer.py hold 192.0.2.2 $port word $port >/dev/null
done
start_far python3 peer.py hold 192.0.2.1 7000 word 7000 >/dev/null
start python3 peer.py hold 127.0.0.1 7000 word local >/dev/null
start python3 own.py
for name in 4433 8004 8005 7000 local own; do until_true [ -e $name.open ]; done
"#;

fn machines() -> Machines {
    let tls = TLS.replace("remote-ports = 4433", "remote-ports = 4433\nidle = \"1h\"");
    let machines = Machines::new("unmatched = \"permit\"", &format!("{tls}{RULES}"));
    machines.change("far.toml", |far| {
        far.replace("192.0.2.2:4433\"", "192.0.2.2:4433\", \"192.0.2.2:4434\"")
    });
    machines
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn flows(shown: &str) -> Vec<String> {
    let shown: Value = serde_json::from_str(shown).unwrap();
    let flows = shown["flows"].as_array().unwrap().iter();
    let mut lines: Vec<_> = flows
        .map(|flow| {
            assert!(text(&flow["program"]).contains("python"), "{flow}");
            let words = ["protection", "rule", "direction", "remote", "tls", "peer"];
            let words = words.map(|key| text(&flow[key]));
            format!(
                "{} port={} now={} seen={}",
                words.join(" "),
                flow["port"],
                flow["now"],
                flow["seen"]
            )
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn coverage_has_each_flow_with_its_program_and_what_protects_it() {
    let machines = machines();
    let shown = machines.ok(&format!(
        "{CONNECTIONS}\n./tacit show coverage --control host.sock >/dev/null\n\
         ./tacit show coverage --json --control host.sock"
    ));
    assert_fits("show-coverage", &shown);
    let by_kernel = &serde_json::from_str::<Value>(&shown).unwrap()["kernel"];
    assert_eq!(*by_kernel, json!([{ "rule": "permitted", "action": "permit", "hits": 1 }]));
    assert_eq!(
        flows(&shown),
        [
            "own-tls own outbound 192.0.2.2 - - port=4434 now=1 seen=1",
            "permitted permitted outbound 192.0.2.2 - - port=8004 now=1 seen=1",
            "protected tls outbound 192.0.2.2 1.3 far.example port=4433 now=1 seen=1",
            "unmatched - inbound 192.0.2.2 - - port=7000 now=1 seen=1",
            "unmatched - outbound 192.0.2.2 - - port=8005 now=1 seen=1",
        ]
    );
}

#[test]
fn flows_that_earlier_agents_relay_keep_their_protection_after_restarts() {
    let machines = machines();
    let shown = machines.ok(&format!(
        "{CONNECTIONS}
        began() {{ grep -c 'run-began run=host' host.log | grep -qx $1; }}
        for times in 2 3; do
            ./tacit restart --control host.sock >/dev/null
            until_true began $times
        done
        ./tacit show coverage --json --control host.sock"
    ));
    assert_eq!(
        flows(&shown),
        [
            "own-tls own outbound 192.0.2.2 - - port=4434 now=1 seen=1",
            "permitted permitted outbound 192.0.2.2 - - port=8004 now=1 seen=1",
            "protected tls outbound 192.0.2.2 1.3 far.example port=4433 now=1 seen=1",
            "unmatched - inbound 192.0.2.2 - - port=7000 now=1 seen=1",
            "unmatched - outbound 192.0.2.2 - - port=8005 now=1 seen=1",
        ]
    );
}

#[test]
fn coverage_has_totals_and_metrics_of_what_was_seen_since_the_start() {
    machines().expect(
        &format!(
            r#"{CONNECTIONS}
            ./tacit show coverage --control host.sock >/dev/null
            touch 8005
            gone() {{ ./tacit show coverage --control host.sock | grep -q "^unmatched *1 *2$"; }}
            until_true gone
            ./tacit show coverage --control host.sock | sed -n '2,8p; 10,11p' | tr -s ' '
            ./tacit show metrics --control host.sock | grep -c '^tacit_host_flows'
            ./tacit show metrics --control host.sock |
                grep '^tacit_host_flows_total.protection="unmatched"'"#
        ),
        "
PROTECTION NOW SEEN
protected 1 1
own-tls 1 1
permitted 1 1
unmatched 1 2
not-captured 0 0
pending 0 0
RULE ACTION KERNEL
permitted permit 1
12
tacit_host_flows_total{protection=\"unmatched\"} 2
",
    );
}
