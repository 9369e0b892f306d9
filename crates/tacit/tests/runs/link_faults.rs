//! Tests faults of links: servers that send false messages, an interface that is down, and killed
//! processes. After a fault, each connection must be closed or end with an error. No process may
//! have more descriptors than before the fault.

use crate::link_scripts::RULES;
use crate::links::LINK;
use crate::links_of_hostile_hosts::HOSTILE;
use crate::links_of_hosts::{MACHINE, TCP, network};
use crate::network::Network;

/// Writes `visit.py COUNT`, which reads each connection to its end, and prints how many ended in
/// order without a byte, and how the others ended.
const VISIT: &str = r#"
cat >visit.py <<'END'
import collections, socket, sys
ends = collections.Counter()
for number in range(int(sys.argv[1])):
    try:
        with socket.create_connection(("10.9.8.7", 8080), 20) as stream:
            stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
            size = len(b"".join(iter(lambda: stream.recv(4096), b"")))
            ends["end" if size else "empty"] += 1
    except OSError as error:
        ends[type(error).__name__] += 1
print(sum(ends.values()), ends.pop("empty", 0), sorted(ends))
END
"#;

#[test]
fn a_server_of_another_host_that_lies_spoils_only_its_own_link() {
    let said = network(MACHINE).ok(&format!(
        "{HOSTILE}\n{VISIT}\n{}",
        r#"
        hostile lie; serve_both
        for one in 1 2 3; do by a run.toml echo ran 2>told.$one; echo $?; done
        grep -o 'does not use the same version of the link protocol' told.1 | head -1
        by a run.toml true 2>/dev/null; echo $?
        sockets_of() { ls -l /proc/$BOTH/fd | grep -c socket:; }
        is_unused() {
            ordinary ./tacit link info $TMPDIR/$1.sock --json >used.json
            [ "$(python3 -c 'import json; link = json.load(open("used.json"))
print(link["sockets"], len(link["runs"]))')" = "0 0" ]
        }
        unused() { is_unused a && is_unused b; }
        by b run.toml curl -sS -o /dev/null http://10.9.8.7:8080/ 2>/dev/null
        until_true unused; before=$(sockets_of)
        by a run.toml python3 visit.py 50 2>/dev/null
        by b run.toml python3 visit.py 1 2>/dev/null
        same() { [ $(sockets_of) = $before ]; }
        until_true same; echo same"#
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..3], ["125"; 3], "{said}");
    assert_eq!(lines[3..5], ["does not use the same version of the link protocol", "0"], "{said}");
    // One lie of 25 ends the stream before its reset; no other connection ends in order.
    let (empty, others) = lines[5].strip_prefix("50 ").unwrap().split_once(' ').unwrap();
    assert!(empty.parse::<usize>().unwrap() <= 2, "{said}");
    let others = others.replace("'BrokenPipeError', ", "");
    assert_eq!(others, "['ConnectionRefusedError', 'ConnectionResetError']", "{said}");
    assert_eq!(lines[6..], ["1 0 ['end']", "same"], "{said}");
}

#[test]
fn a_server_of_the_same_kernel_that_lies_gives_no_connection() {
    let said = Network::new(&[8080], LINK).with_rules(RULES).ok(&format!(
        "{VISIT}\n{}",
        r#"
        start_ordinary python3 "$PEERS/hostile_near.py" $TMPDIR/lies.sock
        until_true [ -S $TMPDIR/lies.sock ]
        OPTION_LINK="--link $TMPDIR/lies.sock"
        for one in 1 2 3; do linked echo ran 2>told.$one; echo $?; done
        linked python3 visit.py 44 2>told
        start_ordinary python3 "$PEERS/hostile_near.py" $TMPDIR/hands.sock hands
        until_true [ -S $TMPDIR/hands.sock ]
        OPTION_LINK="--link $TMPDIR/hands.sock"
        for one in 1 2 3; do linked echo ran 2>told.$one; echo $?; done
        for one in 1 2 3; do linked python3 visit.py 2 2>told; done
        linked python3 visit.py 44 2>told"#
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((&lines[..3], &lines[4..7]), (&["125"; 3][..], &["125"; 3][..]), "{said}");
    assert_eq!(lines[3], "44 0 ['ConnectionRefusedError', 'ConnectionResetError']", "{said}");
    assert!(lines[7..10].iter().all(|line| line.starts_with("2 0 ['Conn")), "{said}");
    assert!(lines[10].starts_with("44 0 ['Conn") && !lines[10].contains("'end'"), "{said}");
}

/// Echoes through one connection while the cable is out, and after that waits for its reset.
const HELD: &str = r#"
cat >held.py <<'END'
import os, socket, threading, time
def connect():
    while True:
        try:
            return socket.create_connection(("10.9.8.7", 8090))
        except OSError:
            time.sleep(0.2)
def echo(stream, size):
    sent = os.urandom(size)
    sender = threading.Thread(target=stream.sendall, args=(sent,))
    sender.start()
    same = stream.recv(size, socket.MSG_WAITALL) == sent
    sender.join()
    return same
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.05)
def report(name, *words):
    print(name, *words, flush=True)
    open(name, "w").close()
held = connect()
report("open", echo(held, 1000))
wait_for("out")
report("again", echo(held, 1_000_000))
try:
    report("lost", held.recv(1))
except OSError as error:
    report("lost", type(error).__name__)
wait_for("in")
print("new", echo(connect(), 1000))
END
"#;

#[test]
fn a_cable_that_is_out_for_a_moment_loses_nothing_and_for_long_the_sockets() {
    let said = network(TCP).ok(&format!(
        "{HELD}\n{}",
        r#"
        start python3 $PEERS/echo.py 8090; await 8090
        before=$(descriptors)
        near $USER_OF_RUNS timeout 90 ./tacit run --link $AT --policy run.toml --log stderr -- \
            python3 held.py >seen 2>run.log & run=$!
        until_true [ -e open ]
        ip link set far0 down; touch out; sleep 2; ip link set far0 up
        until_true [ -e again ]; grep -c link-sockets-lost near.log
        ip link set far0 down
        # The servers exchange a frame every 15 seconds, and give each other up after the third.
        until [ -e lost ]; do kill -0 $run || break; sleep 0.1; done
        ip link set far0 up; touch in
        wait $run; cat seen
        until_true grep -q link-lost run.log
        grep -o link-lost run.log
        until_true grep -q link-sockets-lost near.log
        grep -o 'link-sockets-lost.*' near.log | grep -o 'sockets=[0-9]*'
        until_true idle
        [ $(descriptors) = $before ] && echo same"#
    ));
    let ends = "open True\nagain True\nlost ConnectionResetError\nnew True\n";
    assert_eq!(said, format!("0\n{ends}link-lost\nsockets=1\nsame\n"));
}

/// Connections that end in many ways, a round for each line of input; `round` lets it make one.
const ROUNDS: &str = r#"
cat >rounds.py <<'END'
import socket, struct, sys
def visit(number):
    with socket.socket() as stream:
        stream.settimeout(20)
        try:
            stream.connect(("10.9.8.7", (8080, 8081, 8083)[number % 3]))
        except ConnectionRefusedError:
            return
        if number % 2:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if number % 4 < 2:
            stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
        if number % 8 == 4:
            stream.shutdown(socket.SHUT_WR)
            stream.recv(1)
print("ready", flush=True)
for line in sys.stdin:
    for number in range(48):
        visit(number)
    print("done", flush=True)
END
mkfifo to from; chmod 666 to from; exec 8<>to 9<>from
linked python3 rounds.py <to >from 2>run.log 8>&- 9>&- & run=$!
read -t 30 -u 9 ready
round() { echo go >&8; read -t 60 -u 9 done; }
AGENT=$(state 'link["runs"][0]["pid"]')
parent() { awk '{ print $4 }' /proc/$1/stat; }
helper() { pgrep -x tacit-helper -P $(parent $AGENT),$(parent $(parent $AGENT)); }
count() { ls /proc/$1/fd 2>/dev/null | wc -l; }
closed() { [ "$(state 'link["sockets"]')" = 0 ]; }
all() { until_true closed >&2; echo $(count $AGENT) $(count $(helper)) $(descriptors); }
"#;

#[test]
fn no_process_of_a_link_keeps_a_descriptor() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can count the descriptors of agents");
        return;
    }
    let one_kernel = Network::new(&[8080], LINK).with_rules(RULES);
    for network in [one_kernel, network(TCP), network(MACHINE)] {
        let said = network.ok(&format!(
            "before=$(descriptors)\n{ROUNDS}\n{}",
            r#"
            round; first=$(all)
            same() { [ "$(all)" = "$first" ]; }
            for one in 1 2 3; do round; done
            until_true same && echo same
            old=$(helper); kill -9 $old
            another() { now=$(helper); [ -n "$now" ] && [ $now != $old ]; }
            until_true another; round; until_true closed && echo "another helper"
            kill -9 $AGENT; exec 8>&-; wait $run
            until_true idle
            ended() { [ $(descriptors) = $before ]; }
            until_true ended && echo ended"#
        ));
        assert_eq!(said, "same\nanother helper\nended\n");
    }
}
