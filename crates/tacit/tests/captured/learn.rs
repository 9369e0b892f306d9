//! Tests `tacit learn`, which writes a first policy from the connections of a host.

use crate::machines::Machines;
use crate::names::CLIENT;

/// Servers of the host and of the far machine, and a DNS server.
const BEGIN: &str = r#"
cat >zone <<'Z'
db.example CNAME far.example
far.example A 192.0.2.2
Z
start_far python3 names.py zone asked 192.0.2.2
until_true [ -e asked.ready ]
serve host 7070
# Observes until `learnt`.
learn() {
    [ "$*" ] && [ $1 = --overwrite ] || set -- -o learnt.toml "$@"
    start ./tacit learn --for 50s "$@" 2>learn.log; learn=${background[-1]}
    until_true grep -q observing learn.log
}
learnt() { kill -INT $learn; wait $learn; echo "exit status $?"; }
"#;

fn machines() -> Machines {
    let machines = Machines::new("unmatched = \"permit\"", "");
    machines.write("client.py", CLIENT);
    machines.write("names.py", include_str!("../peers/names.py"));
    machines
}

/// Opens sockets before the observation.
const OLDER: &str = r#"
import socket, time
stream = socket.create_connection(("2001:db8::2", 8000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("192.0.2.2", 123))
open("older", "w")
time.sleep(600)
"#;

/// The rules of the learnt policy, without the lines about programs.
const RULES: &str = r#"
# 2 connections, without TLS as far as seen.
# Name: db.example.
[[rule]]
name = "tcp-8000-db.example"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8000
permit = true

# 1 connection, without TLS as far as seen.
[[rule]]
name = "tcp-8000-2001-db8--2"
direction = "outbound"
remote = "2001:db8::2"
remote-ports = 8000
permit = true

# 1 connection, 1 of them with TLS.
# Name: db.example.
[[rule]]
name = "tcp-4433-db.example"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 4433
permit = true

# 1 connection, without TLS as far as seen.
[[rule]]
name = "udp-53-192.0.2.2"
direction = "outbound"
protocol = "udp"
remote = "192.0.2.2"
remote-ports = 53
permit = true

# 1 connection, without TLS as far as seen.
[[rule]]
name = "udp-123-192.0.2.2"
direction = "outbound"
protocol = "udp"
remote = "192.0.2.2"
remote-ports = 123
permit = true

# 1 connection, without TLS as far as seen.
# Clients: 192.0.2.2.
[[rule]]
name = "inbound-tcp-7070"
direction = "inbound"
local-ports = 7070
permit = true
"#;

#[test]
fn a_policy_is_learnt_from_connections() {
    let machines = machines();
    machines.write("older.py", OLDER);
    machines.expect(
        &format!(
            r#"{BEGIN}
            start python3 older.py
            until_true [ -e older ]
            learn
            python3 client.py lookup db.example
            for word in one two; do ask 192.0.2.2 8000 $word; done
            ask 192.0.2.2 4433 secret ca.pem far.example
            in_far python3 peer.py ask 192.0.2.1 7070 word
            ask 192.0.2.1 7070 within; ask 127.0.0.1 7070 within; ask 192.0.2.2 9 refused
            learnt
            ./tacit check learnt.toml >check.out 2>&1 && echo valid || cat check.out
            sed '1,/^unmatched/d; /^#/{{/connection\|^# Name\|^# Clients/!d}}' learnt.toml"#
        ),
        &format!(
            "
192.0.2.2
answer to one from ::ffff:192.0.2.1
answer to two from ::ffff:192.0.2.1
answer to secret from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.2
answer to within from ::ffff:192.0.2.1
answer to within from ::ffff:127.0.0.1
ECONNREFUSED
exit status 0
valid
{RULES}"
        ),
    );
}

#[test]
fn only_the_programs_of_the_unit_are_observed() {
    machines().expect(
        &format!(
            r#"{BEGIN}
            learn --unit other
            ask 192.0.2.2 8000 word
            learnt
            grep -c '\[\[rule' learnt.toml
            tail -n 3 learn.log"#
        ),
        "
answer to word from ::ffff:192.0.2.1
exit status 0
0
tacit: warning[nothing-observed]: no connection was observed, so the policy has no rule
wrote 0 rules to learnt.toml
next step: tacit check learnt.toml
",
    );
}

/// Sends packets that no program has asked for: an answer of a DNS server, and one to a SYN.
const STRANGER: &str = r"
import socket, struct
def raw(payload, protocol):
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
    sender.sendto(payload, ('192.0.2.1', 0))
question = b'\4evil\7example\0\0\1\0\1'
answer = struct.pack('>HHHHHH', 7, 0x8180, 1, 1, 0, 0) + question
answer += b'\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4' + socket.inet_aton('192.0.2.2')
raw(struct.pack('>HHHH', 53, 40000, 8 + len(answer), 0) + answer, socket.IPPROTO_UDP)
for port in (4444, 7070):
    raw(struct.pack('>HHIIBBHHH', port, 50000, 1, 2, 0x50, 0x12, 100, 0, 0), socket.IPPROTO_TCP)
";

#[test]
fn packets_of_strangers_and_of_other_namespaces_add_no_rule() {
    let machines = machines();
    machines.write("stranger.py", STRANGER);
    machines.expect(
        &format!(
            r#"{BEGIN}
            start unshare -n sleep 600; inner=$!
            inside() {{ nsenter -t $inner -n "$@"; }}
            there() {{ inside readlink /proc/self/ns/net; }}
            elsewhere() {{ [ "$(there)" != "$(readlink /proc/self/ns/net)" ]; }}
            until_true elsewhere
            ip link add w0 type veth peer name w1; ip link set w1 netns $inner
            ip addr add 10.5.0.1/24 dev w0; ip link set w0 up
            inside sh -c 'ip addr add 10.5.0.2/24 dev w1; ip link set w1 up
                ip route add default via 10.5.0.1'
            sysctl -qw net.ipv4.ip_forward=1; in_far ip route add 10.5.0.0/24 via 192.0.2.1
            learn
            in_far python3 stranger.py
            inside timeout 20 python3 peer.py ask 192.0.2.2 8000 forwarded
            ask 192.0.2.2 8000 own
            learnt
            grep '^name\|^remote =\|evil' learnt.toml"#
        ),
        r#"
answer to forwarded from ::ffff:10.5.0.2
answer to own from ::ffff:192.0.2.1
exit status 0
name = "tcp-8000-192.0.2.2"
remote = "192.0.2.2"
"#,
    );
}

#[test]
fn rights_and_files_are_checked_before_the_observation() {
    machines().expect(
        &format!(
            r#"{BEGIN}
            tried() {{ "$@" 2>said; echo "exit status $?"; head -n 2 said; }}
            touch kept.toml
            tried setpriv --bounding-set=-net_raw --inh-caps=-net_raw ./tacit learn --for 1s
            tried ./tacit learn -o none/learnt.toml
            tried ./tacit learn -o kept.toml
            tried ./tacit learn --for 32d
            learn --overwrite -o kept.toml
            kill -HUP $learn; wait $learn; tail -n 1 learn.log; grep -c unmatched kept.toml"#
        ),
        "
exit status 1
tacit: error[packets-not-read]: cannot read packets: Operation not permitted (os error 1)
    fix: run the command as root, or with CAP_NET_RAW
exit status 1
tacit: error[file-failed]: cannot write none/learnt.toml: No such file or directory (os error 2): \
use --output to name a file that you can write
exit status 1
tacit: error[file-exists]: cannot write kept.toml: the file exists
    fix: name another file, or use --overwrite
exit status 64
tacit: error[usage]: invalid value '32d' for '--for <DURATION>': the maximum is 31d
    fix: see `tacit learn --help`
next step: tacit check kept.toml
2
",
    );
}
