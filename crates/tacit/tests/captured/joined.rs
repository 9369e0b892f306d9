//! Tests that tacit protects programs in an existing network namespace, although tacit has not
//! started these programs.

use crate::containers::BOX;
use crate::machines::{Machines, TLS};

/// Enrols the namespace `box`, whose packets to the host a second tap records. The agent and its
/// policy are outside.
const JOIN: &str = r#"
start python3 peer.py tap b0 box.out
until_true [ -e box.out.ready ]
# What left the namespace in clear.
left() { python3 peer.py count box.out "$@"; }
# Starts the agent.
serve_runs() {
    start ./tacit agent --enrol enrol.sock --policy host.toml --control host.sock "$@" 2>host.log
    agent=${background[-1]}
    until_true [ -e enrol.sock ]
}
# Protects the namespace until it ends: `join OPTION VALUE`.
join() {
    start ./tacit run --agent enrol.sock --name box "$@" >joined.out 2>joined.log
    launcher=${background[-1]}
    until_true grep -q captured joined.out
}
refused() { [ "$(in_box_ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
"#;

fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{BOX}\n{JOIN}\n{script}"), wanted);
}

fn machines() -> Machines {
    Machines::new("unmatched = \"permit\"", TLS)
}

#[test]
fn programs_of_a_joined_namespace_are_protected_and_all_else_uses_its_own_network() {
    expect(
        &machines(),
        r#"
        serve_runs
        in_box_ask 192.0.2.2 8000 word
        join --netns /proc/$box/ns/net
        in_box_ask 192.0.2.2 4433 marked
        in_box_ask 2001:db8::2 4433 marked
        in_box_ask 192.0.2.2 8000 word
        ./tacit show runs --json --control host.sock | grep -o '"name": "box"\|"joined": true'
        left word
        seen marked; left marked"#,
        "
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
\"joined\": true
\"name\": \"box\"
4
0
0
",
    );
}

#[test]
fn a_killed_helper_is_replaced_and_a_killed_launcher_leaves_what_was_captured_refused() {
    expect(
        &machines(),
        r#"
        serve_runs
        join --netns /proc/$box/ns/net
        kill -9 $(pgrep -x -P $launcher tacit-helper)
        replaced() { grep -q 'helper-replaced run=box' host.log; }
        until_true replaced
        in_box_ask 192.0.2.2 4433 marked
        nsenter -t $box -n python3 peer.py flush
        in_box_ask 192.0.2.2 4433 marked
        start_box python3 peer.py hold 192.0.2.2 4433 marked go >held.out
        until_true [ -e go.open ]
        kill -9 $launcher
        until_true refused
        in_box_ask 2001:db8::2 4433 marked
        in_box_ask 192.0.2.2 8000 word
        join --netns /proc/$box/ns/net
        in_box_ask 192.0.2.2 4433 marked
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked; left marked"#,
        "
answer to marked from ::ffff:127.0.0.1
flushed 0
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
0
0
",
    );
}

#[test]
fn a_killed_agent_leaves_what_was_captured_refused_until_the_next_one_serves() {
    expect(
        &machines(),
        r#"
        serve_runs --no-supervisor
        join --netns /proc/$box/ns/net
        in_box_ask 192.0.2.2 4433 marked
        kill -9 $agent
        until_true refused
        in_box_ask 192.0.2.2 8000 word
        rm enrol.sock
        serve_runs --no-supervisor
        began() { grep -q 'run-began run=box' host.log; }
        until_true began
        in_box_ask 192.0.2.2 4433 marked
        seen marked; left marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
0
0
",
    );
}

#[test]
fn restart_reload_and_close_work_as_for_runs() {
    expect(
        &machines(),
        r#"
        serve far 8002
        serve_runs
        join --netns /proc/$box/ns/net
        start_box python3 peer.py hold 192.0.2.2 4433 marked-held go >held.out
        until_true [ -e go.open ]
        ./tacit restart --control host.sock >/dev/null
        is_handed_over() { grep -c 'run-began run=box' host.log | grep -qx 2; }
        until_true is_handed_over
        in_box_ask 192.0.2.2 4433 marked
        in_box_ask 192.0.2.2 8002 word
        cat >>host.toml <<'E'
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
run = "box"
deny = true
[[rule]]
name = "of-another-run"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8000
run = "other"
deny = true
E
        ./tacit reload --control host.sock | head -1
        in_box_ask 192.0.2.2 8002 word
        in_box_ask 192.0.2.2 8000 word
        touch go
        until_true [ -s held.out ]
        cat held.out
        start_box python3 peer.py hold 192.0.2.2 4433 marked-held closed >closed.out
        until_true [ -e closed.open ]
        ./tacit show connections --json --control host.sock >open.json
        id=$(python3 -c 'import json; print(json.load(open("open.json"))["connections"][0]["id"])')
        ./tacit close $id --control host.sock >/dev/null
        touch closed
        until_true [ -s closed.out ]
        cat closed.out
        seen marked; left marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
policy generation 2; added: denied, of-another-run
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked-held from ::ffff:127.0.0.1
ECONNRESET
0
0
",
    );
}

#[test]
fn the_protection_ends_with_the_namespace_and_not_in_clear() {
    expect(
        &machines(),
        r#"
        runs() { ./tacit show runs --json --control host.sock | grep -c '"joined": true'; }
        none() { [ "$(runs)" = 0 ]; }
        serve_runs
        touch named; mount --bind /proc/$box/ns/net named
        join --netns named
        runs
        umount named
        wait $launcher; echo $?
        until_true none
        until_true refused
        start nsenter -t $box -n sleep 600; process=$!
        entered() { [ /proc/$process/ns/net -ef /proc/$box/ns/net ]; }
        until_true entered
        join --pid $process
        in_box_ask 192.0.2.2 4433 marked
        kill $process
        wait $launcher; echo $?
        until_true none
        until_true refused
        nsenter -t $box -n ./tacit agent --host --remove
        in_box_ask 192.0.2.2 8000 word
        for wrong in /dev/null /proc/$$/ns/net; do
            ./tacit run --agent enrol.sock --netns $wrong 2>&1 | head -1
        done
        seen marked; left marked"#,
        "
1
0
answer to marked from ::ffff:127.0.0.1
0
answer to word from ::ffff:192.0.2.1
tacit: error[no-namespace]: /dev/null is not a network namespace
tacit: error[no-namespace]: the requested network namespace is that of tacit itself
0
0
",
    );
}

/// A policy as for runs: without `[host]`, flows that no rule matches are refused.
const AS_FOR_RUNS: &str = r#"
[[rule]]
name = "named"
direction = "outbound"
remote = "far.example"
remote-ports = 4433
tls = { trust = "ca" }
[[rule]]
name = "permitted"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8000
permit = true
[[rule]]
name = "datagrams"
direction = "outbound"
protocol = "udp"
remote = "192.0.2.2"
remote-ports = 5001
permit = true
log = true
"#;

#[test]
fn the_agent_resolves_names_and_what_no_rule_matches_is_refused() {
    let machines = Machines::new("unmatched = \"deny\"", AS_FOR_RUNS);
    machines.change("host.toml", |text| text.replace("[host]\nunmatched = \"deny\"\n", ""));
    machines.write("client.py", crate::names::CLIENT);
    machines.write("names.py", include_str!("../peers/names.py"));
    expect(
        &machines,
        r#"
        printf 'far.example A 192.0.2.2\nother.example A 192.0.2.2\n' >zone
        start_far python3 names.py zone asked 192.0.2.2 2001:db8::2
        until_true [ -e asked.ready ]
        start_far python3 -c '
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); server.bind(("192.0.2.2", 5001))
while True:
    data, peer = server.recvfrom(4096); server.sendto(b"answer to " + data, peer)'
        datagrams() { in_far ss -Hlun "sport = :5001" | grep -q .; }
        until_true datagrams
        serve_runs --resolver 192.0.2.2:53
        join --netns /proc/$box/ns/net
        in_box_ask 192.0.2.2 4433 marked
        for transport in udp tcp; do
            in_box python3 client.py lookup far.example 1 203.0.113.53 $transport
        done
        in_box python3 client.py lookup other.example 1 203.0.113.53
        in_box_ask 192.0.2.2 4433 marked
        in_box_ask 192.0.2.2 8000 word
        in_box_ask 192.0.2.2 8001 word
        in_box python3 -c '
import socket
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); client.settimeout(8)
client.connect(("192.0.2.2", 5001)); client.send(b"word"); print(client.recv(4096).decode())'
        connections named permitted datagrams
        seen marked; left marked"#,
        "
ECONNREFUSED
192.0.2.2
192.0.2.2
refused
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
answer to word
1 0 1
0
0
",
    );
}

#[test]
fn a_program_that_tacit_starts_in_the_namespace_has_no_rights_over_it() {
    expect(
        &machines(),
        r#"
        inside() {
            ./tacit run --policy host.toml --log stderr --netns /proc/$box/ns/net "$@" 2>>run.log
        }
        inside -- python3 peer.py ask 192.0.2.2 4433 marked
        inside -- python3 peer.py ask 192.0.2.2 8000 word
        inside -- sh -c 'python3 peer.py flush; ip link set b1 down; exit 7' 2>&1 | head -1
        inside -- sh -c 'exit 7'; echo $?
        until_true refused
        seen marked; left marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
flushed 1
7
0
0
",
    );
}

#[test]
fn clients_of_programs_in_the_namespace_use_tls() {
    let served = "[[rule]]\nname = \"served\"\ndirection = \"inbound\"\nlocal-ports = 7070\n\
                  tls = { identity = \"host\", client-cert = \"none\" }\n";
    expect(
        &Machines::new("unmatched = \"permit\"", served),
        r#"
        for port in 7070 7071; do
            start_box python3 peer.py serve $port
            until_true serving in_box $port
        done
        serve_runs
        join --netns /proc/$box/ns/net
        in_far timeout 20 python3 - <<'P'
import socket, ssl
context = ssl.create_default_context(cafile="ca.pem")
connection = socket.create_connection(("172.31.0.2", 7070), timeout=8)
connection = context.wrap_socket(connection, server_hostname="192.0.2.1")
connection.sendall(b"marked")
print(connection.recv(4096).decode())
P
        in_far timeout 20 python3 peer.py ask 172.31.0.2 7071 word
        seen marked; left marked"#,
        "
answer to marked from ::ffff:192.0.2.2
answer to word from ::ffff:192.0.2.2
0
0
",
    );
}

/// The user who makes the namespace; it has no rights over the machine.
const ORDINARY_USER: &str = r#"
ordinary() { setpriv --reuid=54321 --regid=54321 --clear-groups "$@"; }
ordinary true 2>/dev/null || { echo "skipped: no second user"; exit; }
start setpriv --reuid=54321 --regid=54321 --clear-groups unshare -rn sleep 600; inner=$!
is_apart() { [ "$(readlink /proc/$inner/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; }
until_true is_apart
ip link add c0 type veth peer name c1; ip link set c1 netns $inner
ip link set c0 master br0; ip link set c0 up
nsenter -t $inner -n sh -ec '
ip link set lo up; ip link set c1 up; ip addr add 172.31.0.3/24 dev c1
ip route add default via 172.31.0.1'
start python3 peer.py tap c0 inner.out
until_true [ -e inner.out.ready ]
in_inner() { nsenter -t $inner -n timeout 20 python3 peer.py ask "$@"; }
until_true nsenter -t $inner -n ping -c 1 -W 1 192.0.2.2 >/dev/null
"#;

#[test]
fn an_ordinary_user_joins_the_namespace_of_a_user_namespace() {
    let script = r#"
        serve_runs --enrol-mode 0666
        start setpriv --reuid=54321 --regid=54321 --clear-groups ./tacit run --agent enrol.sock \
            --name inner --pid $inner >inner.log 2>&1
        until_true grep -q captured inner.log
        in_inner 192.0.2.2 4433 marked
        in_inner 192.0.2.2 8000 word
        ./tacit show runs --json --control host.sock | grep -o '"claimed": true'
        program="id -u; ip link set c1 down 2>/dev/null || echo no right"
        ordinary ./tacit run --agent enrol.sock --pid $inner -- sh -c "$program" 2>&1 |
            grep -o 'captures the traffic of this namespace'
        kill ${background[-1]}
        released() { ! ./tacit show runs --json --control host.sock | grep -q claimed.*true; }
        until_true released
        ordinary ./tacit run --agent enrol.sock --pid $inner -- sh -c "$program"
        seen marked; python3 peer.py count inner.out marked"#;
    let machines = machines();
    let said = machines.ok(&format!("{BOX}\n{JOIN}\n{ORDINARY_USER}\n{script}"));
    if said.starts_with("skipped") {
        print!("{said}");
        return;
    }
    let wanted = "answer to marked from ::ffff:127.0.0.1\nanswer to word from ::ffff:192.0.2.1\n\
                  \"claimed\": true\ncaptures the traffic of this namespace\n0\nno right\n0\n0\n";
    assert_eq!(said, wanted);
}
