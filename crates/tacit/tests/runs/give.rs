//! Tests `tacit link give` and `tacit link take`: a program gets the connected socket of another
//! program.

use crate::fits::assert_fits;
use crate::link_scripts::RULES;
use crate::links::LINK;
use crate::network::Network;

/// A server that sends numbered lines without waiting, `giver.py`, which reads three of them and
/// stops reading, and `taker.py`, which reads the others and answers each tenth.
const PROGRAMS: &str = r#"
export XDG_RUNTIME_DIR=$PWD/scratch
cat >server.py <<'P'
import socket
listener = socket.create_server(("10.9.8.7", 8080))
while True:
    stream, _ = listener.accept()
    stream.sendall(b"".join(b"line %d\n" % number for number in range(20000)))
    stream.shutdown(socket.SHUT_WR)
    print("answers", stream.makefile().read().count("\n"), flush=True)
P
cat >giver.py <<'P'
import os, socket, sys, time
stream = socket.create_connection(("10.9.8.7", 8080), 5)
stream.settimeout(None)
read = b""
while read.count(b"\n") < 3:
    read += stream.recv(1)
with open("scratch/read", "wb") as file:
    file.write(read)
with open("scratch/giver", "w") as file:
    file.write(f"{os.getpid()}/{stream.fileno()}")
time.sleep(60)
P
cat >taker.py <<'P'
import os, socket, sys
stream = socket.socket(fileno=3 if os.environ.get("LISTEN_PID") == str(os.getpid()) else 0)
count = 0
with open("scratch/rest", "wb") as file:
    for line in stream.makefile("rb"):
        file.write(line)
        count += 1
        if count % 10 == 0:
            stream.sendall(b"ten\n")
stream.shutdown(socket.SHUT_WR)
P
start python3 server.py >server.log
await 8080
# Gives the socket, waits for the end of the taker, and compares what was read.
give() {
    until_true [ -S scratch/tacit/takers/worker.sock ]
    ordinary ./tacit link give "$@" | sed 's/[0-9]\+/PID/'
    wait $taker; echo "taker $?"
    seq 0 19999 | sed 's/^/line /' | cmp - <(cat scratch/read scratch/rest) && echo equal
    until_true grep -q answers server.log; cat server.log
}
"#;

#[test]
fn no_byte_is_lost_when_a_program_gets_the_socket_of_another() {
    for socket in ["stdin", "listen-fds"] {
        let said = Network::new(&[], PROGRAMS).ok(&format!(
            r#"
            start_ordinary python3 giver.py
            until_true [ -s scratch/giver ]
            ordinary ./tacit link take worker --socket {socket} -- python3 taker.py & taker=$!
            give $(cat scratch/giver) --to worker --then kill
            until_true [ ! -e /proc/$(cut -d/ -f1 scratch/giver)/exe ]"#
        ));
        assert_eq!(said, "process PID has the socket\ntaker 0\nequal\nanswers 1999\n", "{socket}");
    }
}

#[test]
fn a_run_gets_the_connection_of_another_run() {
    let rules = "[[rule]]\nname = \"numbers\"\ndirection = \"outbound\"\nremote = \"10.9.8.7\"\n\
                 remote-ports = 8080\npermit = true\n";
    let said = Network::new(&[], PROGRAMS).with_rules(rules).ok(r#"
        run python3 giver.py 2>giver.log & giver=$!
        until_true [ -s scratch/giver ] || cat giver.log
        control=$(ls -d scratch/tacit-run-*/agent.sock)
        run ./tacit link take worker -- python3 taker.py 2>taker.log & taker=$!
        id=$(ordinary ./tacit show connections --json --control $control |
            grep -o '"id": [0-9]*' | head -1 | grep -o '[0-9]*$')
        give $id --to worker --then stop --control $control
        kill -9 $(cut -d/ -f1 scratch/giver); wait $giver; true"#);
    assert_eq!(said, "process PID has the socket\ntaker 0\nequal\nanswers 1999\n", "{said}");
}

#[test]
fn a_socket_that_is_not_taken_stays_with_its_program() {
    let said = Network::new(&[], PROGRAMS).ok(r#"
        start_ordinary python3 giver.py
        until_true [ -s scratch/giver ]
        giver=$(cat scratch/giver) pid=$(cut -d/ -f1 scratch/giver)
        is_running() { grep -q '^State:.[SR]' /proc/$pid/status; }
        ordinary ./tacit link give $giver --to worker 2>&1 | grep -o 'no program waits'
        ordinary ./tacit link take worker -- /no/such/program 2>/dev/null & taker=$!
        until_true [ -S scratch/tacit/takers/worker.sock ]
        ordinary ./tacit link give $giver --to worker 2>&1 |
            grep -o 'refused the socket: cannot start the program'
        wait $taker; echo "taker $?"
        is_running && echo running
        ordinary exec ./tacit link take worker -- cat >/dev/null 2>&1 & taker=$!
        until_true [ -S scratch/tacit/takers/worker.sock ]
        ordinary ./tacit link give $pid/1 --to worker 2>&1 | grep -o 'is not a connected socket'
        ordinary ./tacit link give $$/0 --to worker 2>&1 | grep -c .
        is_running && echo running
        kill $taker"#);
    let wanted = "no program waits\nrefused the socket: cannot start the program\ntaker 1\n\
                  running\nis not a connected socket\n";
    assert!(said.starts_with(wanted) && said.ends_with("running\n"), "{said}");
}

/// `giver.py NAME` opens a connection, which `taker.py NAME` gets. On an isolated link, the taker
/// waits for the end of the relayed connection; otherwise, it uses the connection afterwards.
const OUTLIVING: &str = r#"
chmod 777 .
cat >server.py <<'P'
import socket, threading
def serve(stream):
    try:
        while part := stream.recv(100):
            stream.sendall(part.upper())
    except ConnectionResetError:
        pass
    stream.close()
listener = socket.create_server(("10.9.8.7", 8090))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
P
cat >giver.py <<'P'
import os, socket, sys, time
stream = socket.create_connection(("10.9.8.7", 8090), 5)
stream.sendall(b"one")
stream.recv(3)
with open("giver." + sys.argv[1], "w") as file:
    file.write(f"{os.getpid()}/{stream.fileno()}")
time.sleep(60)
P
cat >taker.py <<'P'
import os, socket, sys, time
stream = socket.socket(fileno=0)
result = "closed"
if sys.argv[1] != "isolated":
    while not os.path.exists("over"):
        time.sleep(0.05)
    stream.sendall(b"two")
    result = stream.recv(3).decode()
else:
    try:
        assert stream.recv(3) == b""
    except ConnectionResetError:
        pass
with open(sys.argv[1] + ".out", "w") as file:
    file.write(result + "\n")
P
start python3 server.py
await 8090
# Passes the connection of a run on a link to a program outside of the run, and ends the run.
pass() {
    OPTION_LINK="--link $2"
    linked python3 giver.py $1 2>$1.log & run=$!
    until_true [ -s giver.$1 ] || cat $1.log
    start_ordinary ./tacit link take $1 -- python3 taker.py $1; taker=$!
    until_true [ -S scratch/tacit/takers/$1.sock ]
    local from=($(cat giver.$1))
    [ -z "${3-}" ] || from=($(number) --control $(control))
    near link give ${from[@]} --to $1 --then kill | sed 's/[0-9]\+/PID/'
    wait $run
}
control() { ls -d scratch/tacit-run-*/agent.sock; }
# A command for the agent, which serves only its own network.
near() { nsenter --net --target $NEAR $USER_OF_RUNS ./tacit "$@"; }
# The number of the only connection.
number() {
    near show connections --json --control $(control) |
        grep -o '"id": [0-9]*' | head -1 | grep -o '[0-9]*$'
}
"#;

#[test]
fn relayed_connections_outlive_their_run_only_on_a_shared_link() {
    let setup = format!("export XDG_RUNTIME_DIR=$PWD/scratch\n{LINK}\n{OUTLIVING}");
    let said = Network::new(&[], &setup).with_rules(RULES).ok(r#"
        sed -i 's/^sockets = 16/&\nshare = true/' link.toml; kill -HUP $LINK
        until_true grep -q link-reloaded link.log
        pass handed named by-number; handed=$taker
        pass shared $AT; shared=$taker
        RUN_OPTIONS="--path relay"
        pass isolated named; isolated=$taker
        has_ended() { state 'link["runs"][0]["ended"]' >/dev/null 2>&1; }
        until_true has_ended
        wait $isolated; cat isolated.out
        ordinary ./tacit link info $AT --tasks --json | tr -d '\n'; echo
        ordinary ./tacit link info $AT --tasks | grep -c '10.9.8.7:8090 .* ended'
        touch over; wait $shared; cat shared.out; wait $handed; cat handed.out
        until_true idle; echo idle"#);
    let lines: Vec<_> = said.lines().collect();
    let given = "process PID has the socket";
    assert_eq!(lines[..4], [given, given, given, "closed"], "{said}");
    assert_fits("link-info", lines[4]);
    let info: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!((&info["share"], &info["tasks"][0]["outlived-run"]), (&true.into(), &true.into()));
    assert_eq!(lines[5..], ["1", "TWO", "TWO", "idle"], "{said}");
}
