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
    start ./tacit learn --for 50s -o learnt.toml "$@" 2>learn.log; learn=${background[-1]}
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

#[test]
fn a_policy_is_learnt_from_connections() {
    machines().expect(
        &format!(
            r#"{BEGIN}
            start python3 -c '
import socket, time
stream = socket.create_connection(("2001:db8::2", 8000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("192.0.2.2", 123))
open("older", "w")
time.sleep(600)'
            until_true [ -e older ]
            learn
            python3 client.py lookup db.example
            for word in one two; do ask 192.0.2.2 8000 $word; done
            ask 192.0.2.2 4433 secret ca.pem far.example
            in_far python3 peer.py ask 192.0.2.1 7070 word
            ask 192.0.2.1 7070 within; ask 127.0.0.1 7070 within; ask 192.0.2.2 9 refused
            learnt
            ./tacit check learnt.toml >check.out 2>&1 && echo valid || cat check.out
            sed '1,/^unmatched/d; /python/d; /^# user/d; /^# Program/d' learnt.toml"#
        ),
        r#"
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

# 2 connections, no TLS was seen.
# Addresses: 192.0.2.2.
[[rule]]
name = "tcp-8000-db.example"
direction = "outbound"
remote = "db.example"
remote-ports = 8000
permit = true

# 1 connection, no TLS was seen.
[[rule]]
name = "tcp-8000-2001-db8--2"
direction = "outbound"
remote = "2001:db8::2"
remote-ports = 8000
permit = true

# 1 connection, with TLS of the server.
# Addresses: 192.0.2.2.
[[rule]]
name = "tcp-4433-db.example"
direction = "outbound"
remote = "db.example"
remote-ports = 4433
permit = true

# 1 connection, no TLS was seen.
[[rule]]
name = "udp-123-192.0.2.2"
direction = "outbound"
protocol = "udp"
remote = "192.0.2.2"
remote-ports = 123
permit = true

# 1 connection, no TLS was seen.
# Clients: 192.0.2.2.
[[rule]]
name = "inbound-tcp-7070"
direction = "inbound"
local-ports = 7070
permit = true
"#,
    );
}

#[test]
fn only_the_programs_of_the_unit_are_observed() {
    machines().expect(
        &format!(
            r#"{BEGIN}
            learn --unit other.service
            ask 192.0.2.2 8000 word
            learnt
            grep -c '\[\[rule' learnt.toml
            tail -n 2 learn.log"#
        ),
        "
answer to word from ::ffff:192.0.2.1
exit status 0
0
learnt.toml: 0 rules
next step: tacit check learnt.toml
",
    );
}

#[test]
fn without_rights_nothing_is_observed_and_an_unwritable_file_loses_no_policy() {
    machines().expect(
        &format!(
            r#"{BEGIN}
            setpriv --bounding-set=-net_raw --inh-caps=-net_raw ./tacit learn --for 1s 2>said
            echo "exit status $?"; cat said
            ./tacit learn --for 1s -o none/learnt.toml 2>said
            echo "exit status $?"; grep -c unmatched said; tail -n 1 said
            ./tacit learn --for 32d 2>said; echo "exit status $?"; head -n 1 said"#
        ),
        "
exit status 1
tacit: error[packets-not-read]: cannot read packets: Operation not permitted (os error 1)
    fix: run the command as root
exit status 1
2
tacit: error[file-failed]: cannot write none/learnt.toml: No such file or directory (os error 2): \
use --output to name a file that you can write
exit status 64
tacit: error[usage]: invalid value '32d' for '--for <DURATION>': the maximum is 31d
",
    );
}
