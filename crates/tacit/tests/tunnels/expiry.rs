//! Tests what happens when the keys of a tunnel expire, and when clocks jump.

use crate::{Scenario, WEB, web};

/// Datagrams of 1,000 bytes, without end, until a file exists.
const SENDS: &str = r#"
enrolled bash -c 'until [ -e scratch/end ]; do
    dd if=/dev/zero bs=1000 count=200 status=none >/dev/udp/10.2.0.1/5000; sleep 0.1
done' & program=$!
drops() { control show sa --json | tr -d ' \n' | grep -q "\"reason\":\"$1\""; }
"#;

const ECHO: &str = r#"
[[rule]]
name = "echo"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.0/24"
remote-ports = 5000
ipsec = { ike = "branch" }
[[rule]]
name = "clear"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.0/24"
permit = true
"#;

#[test]
fn keys_that_have_protected_their_data_send_nothing_more_until_the_peer_has_new_ones() {
    let text = Scenario {
        rules: ECHO,
        inner: "\"10.1.0.1\"",
        steps: &format!(
            "sed -i 's/^inner.*/&\\nlifetime-bytes = \"1MiB\"/' private/run.toml
            agent
            {SENDS}
            until_true installed 1
            kill -STOP $charon
            until_true drops expired
            sleep 1
            most=$(control show sa --json | tr -d ' \\n' |
                sed 's/.*\"outbound\":{{[^}}]*\"bytes\":\\([0-9]*\\).*/\\1/')
            # The packet that reaches the limit is sent.
            [ \"$most\" -lt $((1048576 + 1028)) ] || fail \"sent $most bytes\"
            kill -CONT $charon
            again() {{ [ \"$(grep -c CHILD_SA.*established charon.log)\" -ge 2 ]; }}
            until_true again
            touch scratch/end; wait $program
            clear"
        ),
    }
    .output();
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn keys_that_are_older_than_their_lifetime_send_nothing() {
    let text = Scenario {
        rules: ECHO,
        inner: "\"10.1.0.1\"",
        steps: &format!(
            "sed -i 's/^inner.*/&\\nlifetime = \"1m\"/' private/run.toml
            agent
            {SENDS}
            until_true installed 1
            kill -STOP $charon
            expired() {{ grep -q 'kind=keys-expired' agent.log; }}
            for try in $(seq 900); do expired && break; sleep 0.1; done
            expired || fail 'the keys have not expired'
            control show sa --json | tr -d ' \\n' | grep -o '\"tunnels\":\\[\\]'
            sleep 2
            kill -CONT $charon
            touch scratch/end; wait $program
            clear"
        ),
    }
    .output();
    assert_eq!(text, "\"tunnels\":[]\nonly UDP 4500\n");
}

/// A library that adds seconds to the clocks of the programs that are started with it.
pub(crate) const JUMP: &str = r#"
cc -shared -fPIC -O1 -o jump.so "$PEERS/jump.c" -ldl || fail cc
head -c 16 /dev/zero >scratch/jump; chmod 666 scratch/jump
export LD_PRELOAD=$PWD/jump.so JUMP=$PWD/scratch/jump
# jump SECONDS: the wall clock, from now on.
jump() { add 0 $1; }
# asleep SECONDS: so long the machine seems to have slept.
asleep() { add 8 $1; }
add() {
    python3 -c 'import struct, sys
file = open("scratch/jump", "r+b")
file.seek(int(sys.argv[1]))
file.write(struct.pack("q", int(sys.argv[2])))' $1 $2
}
"#;

#[test]
fn a_jump_of_the_wall_clock_ends_no_tunnel_and_sends_nothing_in_clear() {
    let text = web(&format!(
        "{JUMP}
        agent
        unset LD_PRELOAD
        enrolled bash -c 'while [ ! -e scratch/end ]; do
            curl -sS -m 5 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
        said() {{ [ \"$(grep -c 'from behind' scratch/said 2>/dev/null)\" -ge \"$1\" ]; }}
        until_true said 1
        year=$(date +%Y)
        for years in 10 -10; do
            jump $((years * 31557600))
            count=$(grep -c 'from behind' scratch/said); until_true said $((count + 10))
            control reload >/dev/null || fail reload
            until_true grep -q \"^$((year + years))-\" agent.log
        done
        ! grep -v 'from behind' scratch/said || fail 'a request has failed'
        swan --list-sas | grep -o 'tacit: #[0-9]*'
        grep -c 'ike-established' agent.log
        touch scratch/end; wait $program
        clear"
    ));
    assert_eq!(text, "tacit: #1\n1\nonly UDP 4500\n");
}

#[test]
fn a_gateway_that_is_started_again_replaces_its_tunnel() {
    let text = Scenario {
        rules: WEB,
        inner: r#"["10.1.0.1", "fd01::1"]"#,
        steps: "agent
            enrolled bash -c 'while [ ! -e scratch/end ]; do
                curl -sS -m 2 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
            said() { [ \"$(grep -c 'from behind' scratch/said 2>/dev/null)\" -ge \"$1\" ]; }
            until_true said 1
            kill -9 $charon; wait $charon 2>/dev/null
            charon
            swan --initiate --child net >initiate 2>&1 || fail \"$(cat initiate)\"
            count=$(grep -c 'from behind' scratch/said); until_true said $((count + 5))
            touch scratch/end; wait $program
            clear",
    }
    .output();
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn after_a_sleep_of_hours_the_keys_have_expired_and_a_new_ike_sa_follows() {
    let text = web(&format!(
        "{JUMP}
        agent
        unset LD_PRELOAD
        enrolled bash -c 'while [ ! -e scratch/end ]; do
            curl -sS -m 5 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
        said() {{ [ \"$(grep -c 'from behind' scratch/said 2>/dev/null)\" -ge \"$1\" ]; }}
        opened() {{ [ \"$(grep -c ike-established agent.log)\" = $1 ]; }}
        until_true said 1
        until_true grep -q ike-established agent.log
        opened 1 || fail 'several IKE SAs'
        asleep 7200
        until_true grep -q 'kind=keys-expired' agent.log
        until_true opened 2
        count=$(grep -c 'from behind' scratch/said); until_true said $((count + 5))
        until_true installed 1
        touch scratch/end; wait $program
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}
