//! Tests that a host stays captured when an agent dies, restarts or reloads its policy. No byte of
//! a protected flow may leave the host in clear.

use crate::machines::{Machines, TLS};

fn machines() -> Machines {
    Machines::new("unmatched = \"permit\"", TLS)
}

#[test]
fn a_killed_agent_leaves_what_it_captured_refused() {
    machines().expect(
        r#"
        capture
        ask 192.0.2.2 4433 marked
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        ask 2001:db8::2 4433 marked
        ask 192.0.2.2 8000 word
        capture
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn an_open_connection_ends_with_the_agent_and_not_in_clear() {
    machines().expect(
        r#"
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked go >held.out
        until_true [ -e go.open ]
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
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
fn a_restart_refuses_and_cuts_nothing() {
    machines().expect(
        r#"
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked-held go >held.out
        until_true [ -e go.open ]
        started() { grep -c 'run-began run=host' host.log | grep -qx "$1"; }
        for round in 2 3; do
            ./tacit restart --control host.sock >/dev/null
            until_true started $round
            for try in 1 2 3; do ask 192.0.2.2 4433 marked; done
        done | sort -u
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to marked-held from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_guard_refuses_before_the_agent_starts_and_a_wrong_policy_changes_nothing() {
    machines().expect(
        r#"
        ./tacit agent --host --guard --policy host.toml
        ask 192.0.2.2 4433 marked
        ask 2001:db8::2 4433 marked
        ask 192.0.2.2 8000 word
        cp host.toml good.toml; echo wrong >>host.toml
        ./tacit agent --host --policy host.toml --control host.sock 2>/dev/null; echo $?
        ask 192.0.2.2 4433 marked
        cp good.toml host.toml
        capture
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
ECONNREFUSED
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
78
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_guard_needs_no_certificates_and_no_keys() {
    machines().expect(
        r#"
        guard() { ./tacit agent --host --guard --policy host.toml; echo $?; }
        chmod 640 192.0.2.1.key; guard
        ask 192.0.2.2 4433 marked
        ./tacit agent --host --remove
        rm 192.0.2.1.key ca.pem; guard
        ask 192.0.2.2 4433 marked
        ./tacit agent --host --policy host.toml --control host.sock 2>/dev/null; echo $?
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
0
ECONNREFUSED
0
ECONNREFUSED
78
ECONNREFUSED
0
",
    );
}

#[test]
fn a_flush_by_another_program_leaves_the_capture() {
    machines().expect(
        r#"
        capture
        python3 peer.py flush
        for try in 1 2 3; do ask 192.0.2.2 4433 marked; sleep 0.7; done | sort -u
        seen marked"#,
        "
flushed 0
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn removal_takes_everything_back_once_no_agent_captures() {
    machines().expect(
        r#"
        ip rule >before; ip -6 rule >>before
        capture
        ./tacit agent --host --remove 2>&1 | head -1; echo ${PIPESTATUS[0]}
        ask 192.0.2.2 4433 marked
        kill $agent; wait $agent
        removed() { ./tacit agent --host --remove 2>/dev/null; }
        until_true removed
        ip rule >after; ip -6 rule >>after
        cmp before after && echo same
        ip route show table 31425 2>/dev/null; ip -6 route show table 31425 2>/dev/null
        python3 peer.py ask 192.0.2.2 8000 word
        seen marked"#,
        "
tacit: error[host-in-use]: another agent already captures this host
1
answer to marked from ::ffff:127.0.0.1
same
answer to word from ::ffff:192.0.2.1
0
",
    );
}

#[test]
fn a_reload_captures_what_the_new_policy_names_and_keeps_the_host_captured() {
    machines().expect(
        r#"
        serve far 8002
        capture
        ask 192.0.2.2 8002 word
        cat >>host.toml <<'E'
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
deny = true
E
        ./tacit reload --control host.sock | head -1
        ask 192.0.2.2 8002 word
        sed -i '/^.host.$/,/^unmatched/d' host.toml
        ./tacit reload --control host.sock | grep -o '\[host\]'
        ask 192.0.2.2 8002 word
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.1
policy generation 2; added: denied
ECONNREFUSED
[host]
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_policy_without_host_is_not_captured_by_it() {
    machines().expect(
        r#"
        sed -i '/^.host.$/,/^unmatched/d' host.toml
        ./tacit agent --host --policy host.toml --control host.sock 2>&1 | head -1
        ask 192.0.2.2 8000 word"#,
        "
tacit: error[no-host-settings]: --host needs [host] in the policy
answer to word from ::ffff:192.0.2.1
",
    );
}

#[test]
fn nothing_passes_while_the_packet_rules_are_replaced() {
    let denied = "[[rule]]\nname = \"denied\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
                  remote = \"192.0.2.2\"\nremote-ports = 5002\ndeny = true\n";
    Machines::new("unmatched = \"permit\"", &format!("{TLS}{denied}")).expect(
        r#"
        cat >more <<'E'
[[rule]]
name = "more"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8002
deny = true
E
        cp host.toml few.toml; cat host.toml more >more.toml
        capture
        start python3 peer.py flood 192.0.2.2 5002 marked
        until_true [ -e flood.ready ]
        for round in $(seq 100); do
            cp more.toml host.toml; ./tacit reload --control host.sock
            cp few.toml host.toml; ./tacit reload --control host.sock
        done | grep -c 'policy generation'
        seen marked"#,
        "
200
0
",
    );
}

#[test]
fn routing_rules_that_another_program_removes_are_dropped_packets_until_they_are_there_again() {
    machines().expect(
        r#"
        capture
        helper=$(pgrep -g 0 -x tacit-host || pgrep -x -P $(pgrep -P $agent) tacit-host)
        kill -STOP $helper
        for version in -4 -6; do ip $version rule del lookup 31425; done
        timeout 2 python3 peer.py ask 192.0.2.2 4433 marked; echo $?
        kill -CONT $helper
        for version in -4 -6; do
            there() { ip $version rule | grep -q 31425; }
            until_true there
        done
        ask 192.0.2.2 4433 marked
        until_true grep -q 'removed the routing rules' host.log
        grep -c 'removed the routing rules' host.log
        seen marked"#,
        "
124
answer to marked from ::ffff:127.0.0.1
1
0
",
    );
}

#[test]
fn another_helper_captures_the_host_when_the_first_has_ended() {
    machines().expect(
        r#"
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked-held go >held.out
        until_true [ -e go.open ]
        kill -9 $(pgrep -x -P $(pgrep -P $agent) tacit-host)
        started() { grep -c 'run-began run=host' host.log | grep -qx 2; }
        until_true started
        until_true grep -q 'error host-helper-ended' host.log
        grep -o 'error host-helper-ended' host.log
        ask 192.0.2.2 4433 marked
        python3 peer.py flush
        ask 192.0.2.2 4433 marked
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
error host-helper-ended
answer to marked from ::ffff:127.0.0.1
flushed 0
answer to marked from ::ffff:127.0.0.1
answer to marked-held from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn without_a_helper_and_a_supervisor_the_capture_stays_and_a_reload_is_refused() {
    machines().expect(
        r#"
        capture --no-supervisor
        kill -9 $(pgrep -x -P $agent tacit-host)
        ended() { grep -q host-helper-ended host.log; }
        until_true ended
        ask 192.0.2.2 4433 marked
        until_true grep -q 'error restart-refused' host.log
        grep -o 'error restart-refused' host.log
        ./tacit show runs --control host.sock --json | grep -o '"host": true'
        sed -i 's/remote-ports = 4433/remote-ports = 4499/' host.toml
        ./tacit reload --control host.sock 2>&1 | grep -o 'the helper that captured .*'
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
ECONNREFUSED
error restart-refused
the helper that captured the host's traffic has ended
ECONNREFUSED
0
",
    );
}

#[test]
fn a_helper_that_dies_during_a_reload_leaves_the_host_captured() {
    machines().expect(
        r#"
        cp host.toml few.toml
        cat >>host.toml <<'E'
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8000
deny = true
E
        mv host.toml more.toml; cp few.toml host.toml
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked-held go >held.out
        until_true [ -e go.open ]
        helper=$(pgrep -x -P $(pgrep -P $agent) tacit-host)
        kill -STOP $helper
        cp more.toml host.toml
        ./tacit reload --control host.sock >reload.out 2>&1 & reload=$!
        waits() { [ "$(ss -Hxp state connected | grep -c "pid=$reload,")" = 1 ]; }
        until_true waits
        sleep 0.5
        kill -9 $helper
        wait $reload; echo $?
        grep -o 'the helper that captured .*' reload.out
        started() { grep -c 'run-began run=host' host.log | grep -qx 2; }
        until_true started
        # The successor reads the new policy.
        ask 192.0.2.2 4433 marked
        ask 192.0.2.2 8000 word
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
1
the helper that captured the host's traffic has ended
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to marked-held from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_second_agent_reports_that_the_host_is_captured_and_changes_nothing() {
    machines().expect(
        r#"
        capture
        ./tacit agent --host --policy host.toml --control second.sock 2>second.log; echo $?
        grep -o 'error.host-in-use.*' second.log
        ./tacit agent --host --guard --policy host.toml 2>&1 | grep -o 'error.host-in-use.*'
        ask 192.0.2.2 4433 marked
        ./tacit show rules --control host.sock | tail -1
        ./tacit agent --policy host.toml --control third.sock 2>third.log & third=$!
        until_true grep -q serving third.log
        grep -o 'host-not-requested' third.log
        kill $third; wait $third 2>/dev/null
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
1
error[host-in-use]: another agent already captures this host
error[host-in-use]: another agent already captures this host
answer to marked from ::ffff:127.0.0.1
(connections that match no rule are rejected, but connections of programs outside `tacit run` \
         are permitted; policy generation 1)
host-not-requested
answer to marked from ::ffff:127.0.0.1
0
",
    );
}
