//! Tests the connections and datagrams that programs of a captured host send.

use crate::machines::{Machines, TLS};

const RULES: &str = r#"
[[rule]]
name = "relayed"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8001
permit = true
log = true
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
deny = true
[[rule]]
name = "prohibited"
direction = "outbound"
remote = ["192.0.2.2", "2001:db8::2"]
remote-ports = 8003
deny = "prohibited"
[[rule]]
name = "permitted"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = [8000, 8004]
permit = true
"#;

fn machines(settings: &str) -> Machines {
    Machines::new(settings, &format!("{TLS}{RULES}"))
}

#[test]
fn a_tls_rule_protects_programs_that_are_started_as_before() {
    machines("unmatched = \"permit\"").expect(
        r#"
        capture
        ask 192.0.2.2 4433 marked-4
        ask 2001:db8::2 4433 marked-6
        ask ::ffff:192.0.2.2 4433 marked-mapped
        seen marked"#,
        "
answer to marked-4 from ::ffff:127.0.0.1
answer to marked-6 from ::ffff:127.0.0.1
answer to marked-mapped from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_connection_that_is_older_than_the_capture_is_reset_before_it_sends() {
    machines("unmatched = \"permit\"").expect(
        r#"
        serve far 4434
        sed -i 's/remote-ports = 4433/remote-ports = [4433, 4434]/' host.toml
        start python3 peer.py hold 192.0.2.2 4434 marked go >held.out
        until_true [ -e go.open ]
        capture
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
ECONNRESET
0
",
    );
}

#[test]
fn the_kernel_decides_permit_and_deny_and_the_agent_sees_only_what_it_relays() {
    machines("unmatched = \"permit\"").expect(
        r#"
        for port in 8001 8002 8003 8004 8005; do serve far $port; done
        capture
        for port in 8001 8002 8003 8004 8005 8006; do ask 192.0.2.2 $port word; done
        ask 2001:db8::2 8003 word
        for try in $(seq 20); do ask 192.0.2.2 8005 word; done | sort | uniq -c | tr -s ' '
        connections tls relayed denied prohibited permitted
        ./tacit show runs --json --control host.sock | grep -o '"host": true'"#,
        "
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
EHOSTUNREACH
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
EACCES
 20 answer to word from ::ffff:192.0.2.1
0 1 0 0 0
\"host\": true
",
    );
}

#[test]
fn the_agent_sends_a_program_large_segments_as_over_loopback() {
    machines("unmatched = \"permit\"").expect(
        r#"
        capture
        for far in 192.0.2.2 2001:db8::2; do
            start python3 peer.py hold $far 4433 marked $far >/dev/null
            until_true [ -e $far.open ]
            # At first half of the window of the program.
            ss -Htin "src $far:4433" | grep -Ec ' mss:[3-6][0-9]{4}'
        done
        seen marked"#,
        "
1
1
0
",
    );
}

#[test]
fn what_the_kernel_decides_is_counted_by_rule_also_over_a_reload() {
    let udp = "[[rule]]\nname = \"datagrams\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
               remote = \"192.0.2.2\"\nremote-ports = 9000\npermit = true\n";
    let machines = Machines::new("unmatched = \"permit\"", &format!("{TLS}{RULES}{udp}"));
    machines.expect(
        r#"
        for port in 8002 8004; do serve far $port; done
        capture
        counted() {
            ./tacit show rules --json --control host.sock | python3 peer.py counted \
                tls relayed denied permitted datagrams
        }
        for port in 8002 8004 8005; do ask 192.0.2.2 $port word; done >/dev/null
        for word in $(seq 5); do ask 192.0.2.2 4433 marked; done >/dev/null
        start python3 peer.py hold 192.0.2.2 8004 word go >held.out
        until_true [ -e go.open ]
        python3 peer.py send 192.0.2.2 9000 4
        counted
        touch go
        until_true [ -s held.out ]
        ask 192.0.2.2 8004 word >/dev/null
        sed -i 's/remote-ports = 9000/remote-ports = [9000, 9001]/' host.toml
        ./tacit reload --control host.sock | head -1
        ask 192.0.2.2 8004 word >/dev/null
        ask 192.0.2.2 8002 word >/dev/null
        counted
        ./tacit show rules --control host.sock | awk 'NR == 1 || $1 == "permitted" { print $8 }'
        ./tacit show metrics --control host.sock | grep '^tacit_rule_kernel_hits_total.*denied'"#,
        "
None None 1 2 4
policy generation 2; changed: datagrams
None None 2 4 4
KERNEL
4
tacit_rule_kernel_hits_total{rule=\"denied\"} 2
",
    );
}

#[test]
fn flows_of_senders_are_counted_once_with_connection_tracking() {
    let rules = "[[rule]]\nname = \"of-user\"\ndirection = \"outbound\"\nuser = [\"daemon\", \
                 \"root\"]\nremote-ports = 8002\npermit = true\n[[rule]]\nname = \"rest\"\n\
                 direction = \"outbound\"\nremote-ports = [8001, 8002]\ndeny = true\n[[rule]]\n\
                 name = \"dns\"\ndirection = \"outbound\"\nprotocol = \"udp\"\npermit = true\n";
    Machines::new("unmatched = \"deny\"", rules).expect(
        r#"
        serve far 8002
        capture
        ask 192.0.2.2 8002 word
        ask 192.0.2.2 8002 word
        ask 192.0.2.2 8001 word
        ask 192.0.2.2 8005 word
        python3 peer.py send 192.0.2.2 9000 4
        ./tacit show rules --json --control host.sock | python3 peer.py counted of-user rest dns"#,
        "
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
ECONNREFUSED
2 1 4
",
    );
}

#[test]
fn a_program_sees_whether_its_destination_is_there() {
    machines("unmatched = \"permit\"").expect(
        r#"
        sed -i 's/remote-ports = 4433/remote-ports = [4433, 4435]/' host.toml
        sed -i 's/"192.0.2.2", "2001/"192.0.2.0\/24", "2001/' host.toml
        capture
        ask 192.0.2.2 4435 marked
        ip route add unreachable 192.0.2.9
        ask 192.0.2.9 4435 marked
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
ECONNREFUSED
EHOSTUNREACH
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn unmatched_deny_refuses_what_no_rule_names_and_leaves_answers_to_clients() {
    machines("unmatched = \"deny\"").expect(
        r#"
        serve far 8004; serve far 8005; serve host 7000
        capture
        ask 192.0.2.2 8004 word
        ask 192.0.2.2 8005 word
        ask 2001:db8::2 8005 word
        ask 192.0.2.2 4433 marked
        ask 127.0.0.1 7000 word
        in_far timeout 20 python3 peer.py ask 192.0.2.1 7000 word
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.2
0
",
    );
}

#[test]
fn a_rule_for_a_network_leaves_what_the_host_serves_to_it() {
    let everything = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\n\
                      remote = \"192.0.2.0/24\"\n\
                      tls = { trust = \"ca\", server-name = \"far.example\" }\n";
    Machines::new("unmatched = \"permit\"", everything).expect(
        r#"
        serve host 7000
        capture
        in_far timeout 20 python3 peer.py ask 192.0.2.1 7000 word
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.2
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn an_agent_of_its_own_user_captures_with_two_capabilities() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    machines("unmatched = \"permit\"").expect(
        r#"
        chown -R 54321:54321 .
        start setpriv --reuid=54321 --regid=54321 --clear-groups \
            --inh-caps=-all,+net_admin,+net_raw --ambient-caps=-all,+net_admin,+net_raw \
            --bounding-set=-all,+net_admin,+net_raw \
            ./tacit agent --host --policy host.toml --control host.sock 2>host.log
        until_true agent_ready host.log
        ask 192.0.2.2 4433 marked
        ./tacit show limits --control host.sock | grep -o net_raw
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
net_raw
0
",
    );
}

#[test]
fn datagrams_are_decided_by_the_same_rules() {
    let rule = |name: &str, port: u16, action: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
             remote = \"192.0.2.2\"\nremote-ports = {port}\n{action}\n"
        )
    };
    let rules = [
        rule("relayed", 5001, "permit = true\nlog = true"),
        rule("denied", 5002, "deny = true"),
        rule("permitted", 5003, "permit = true"),
    ];
    Machines::new("unmatched = \"permit\"", &rules.concat()).expect(
        r#"
        cat >udp.py <<'P'
import errno, socket, sys
if sys.argv[1] == "serve":
    for port in sys.argv[2:]:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("192.0.2.2", int(port)))
        import threading
        def answer(server=server):
            while True:
                data, peer = server.recvfrom(4096)
                server.sendto(b"answer to " + data, peer)
        threading.Thread(target=answer).start()
else:
    for port in sys.argv[2:]:
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.settimeout(8)
        try:
            client.connect(("192.0.2.2", int(port)))
            client.send(b"word")
            print(client.recv(4096).decode())
        except OSError as error:
            print(errno.errorcode.get(error.errno, error))
P
        start_far python3 udp.py serve 5001 5002 5003 5004
        all_serve() { [ $(in_far ss -Hlun | grep -c ':500[1-4] ') = 4 ]; }
        until_true all_serve
        capture
        python3 udp.py ask 5001 5002 5003 5004
        connections relayed denied permitted"#,
        "
answer to word
EPERM
answer to word
answer to word
1 0 0
",
    );
}
