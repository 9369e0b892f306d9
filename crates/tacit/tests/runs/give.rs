//! Tests `tacit link give` and `tacit link take`: a program gets the connected socket of another.

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
    cat server.log
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
        ordinary ./tacit link give $giver --to worker 2>&1 | grep -o 'no program takes'
        ordinary ./tacit link take worker -- /no/such/program 2>/dev/null & taker=$!
        until_true [ -S scratch/tacit/takers/worker.sock ]
        ordinary ./tacit link give $giver --to worker 2>&1 |
            grep -o 'refused the socket: cannot start the program'
        wait $taker; echo "taker $?"
        is_running && echo running
        ordinary ./tacit link take worker -- cat >/dev/null 2>&1 & taker=$!
        until_true [ -S scratch/tacit/takers/worker.sock ]
        ordinary ./tacit link give $pid/1 --to worker 2>&1 | grep -o 'is no connected socket'
        ordinary ./tacit link give $$/0 --to worker 2>&1 | grep -c .
        is_running && echo running
        kill $taker"#);
    let wanted = "no program takes\nrefused the socket: cannot start the program\ntaker 1\n\
                  running\nis no connected socket\n";
    assert!(said.starts_with(wanted) && said.ends_with("running\n"), "{said}");
}
