//! Tests audit mode of a captured host: flows pass as they would without tacit, and `tacit show`
//! reports what the rules would do.

use crate::machines::{Machines, TLS};

const RULES: &str = r#"
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
deny = true
[[rule]]
name = "secured"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = [8001, 8003]
tls = { trust = "ca", server-name = "far.example" }
[[rule]]
name = "served"
direction = "inbound"
local-ports = 7070
tls = { identity = "host", client-cert = "none" }
"#;

fn machines() -> Machines {
    Machines::new("unmatched = \"deny\"\nmode = \"audit\"", RULES)
}

#[test]
fn audit_mode_of_a_host_changes_no_flow_and_shows_what_rules_would_do() {
    machines().expect(
        r#"
        for port in 8001 8002 8003; do serve far $port; done
        serve host 7070
        start python3 peer.py hold 192.0.2.2 8003 older go >held.out
        start_far python3 peer.py hold 192.0.2.1 7070 older go-in >held-in.out
        until_true [ -e go.open ]
        until_true [ -e go-in.open ]
        ./tacit agent --host --guard --policy host.toml 2>/dev/null
        ask 192.0.2.2 8002 guarded
        capture
        touch go go-in
        until_true [ -s held.out ]
        until_true [ -s held-in.out ]
        cat held.out held-in.out
        for port in 8000 8001 8002 8009; do ask 192.0.2.2 $port word; done
        in_far timeout 20 python3 peer.py ask 192.0.2.1 7070 word
        audited() { ./tacit show audit --control host.sock --json; }
        for rule in denied secured served; do
            audited | python3 -c "
import json, sys
for rule in json.load(sys.stdin)['rules']:
    if rule['rule'] == '$rule': print(rule['rule'], rule['would'], rule['total'])"
        done"#,
        "
answer to guarded from ::ffff:192.0.2.1
answer to older from ::ffff:192.0.2.1
answer to older from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.2
denied deny 1
secured tls 1
served tls 1
",
    );
}

#[test]
fn audit_mode_ends_with_the_agent_and_enforcement_begins_with_a_reload() {
    machines().expect(
        r#"
        serve far 8002
        capture
        kill -9 $(pgrep -P $agent)
        gone() { ! ip rule | grep -q 31425; }
        until_true gone
        ask 192.0.2.2 8002 word
        capture
        ask 192.0.2.2 8002 word
        sed -i '/^mode = /d' host.toml
        ./tacit reload --control host.sock | head -1 | cut -d' ' -f 1-3
        ask 192.0.2.2 8002 word
        sed -i 's/^unmatched.*/&\nmode = "audit"/' host.toml
        ./tacit reload --control host.sock 2>/dev/null | head -1 | cut -d' ' -f 1-3
        ask 192.0.2.2 8002 word"#,
        "
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
policy generation 2;
ECONNREFUSED
policy generation 3;
answer to word from ::ffff:192.0.2.1
",
    );
}

#[test]
fn a_program_of_a_host_that_uses_tls_itself_keeps_it() {
    Machines::new("unmatched = \"permit\"", TLS).expect(
        r#"
        capture
        timeout 20 python3 -c '
import socket, ssl
plain = socket.create_connection(("192.0.2.2", 4433))
context = ssl.create_default_context(cafile="ca.pem")
secured = context.wrap_socket(plain, server_hostname="far.example")
secured.sendall(b"marked")
print(secured.recv(100).decode())'
        ./tacit show policy tls --control host.sock | grep -o 'on-tls.*' | tr -s ' '
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
on-tls default pass
0
",
    );
}

#[test]
fn connections_that_were_relayed_in_audit_mode_can_be_closed_when_it_ends() {
    machines().expect(
        r#"
        serve far 8001
        capture
        start python3 peer.py hold 192.0.2.2 8001 marked go >held.out
        until_true [ -e go.open ]
        sed -i 's/^mode = .*/mode = "enforce"/' host.toml
        ./tacit reload --control host.sock 2>/dev/null | grep -o 'policy generation .'
        ./tacit close --stale --control host.sock
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
policy generation 2
closed 1
ECONNRESET
0
",
    );
}
