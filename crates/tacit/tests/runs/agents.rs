//! Tests the agents that serve runs. These are a private agent, an agent of another user, a
//! successor, and an agent whose helper is replaced. Also tests what `tacit show` prints about a
//! run.

use crate::network::Network;

/// A server that says whose connection it sees, line by line, for as long as there are lines.
const ECHO: &str = r#"
cat >echo.py <<'P'
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"echo " + line)
            self.wfile.flush()
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024
Server(("10.9.8.7", 9000), Echo).serve_forever()
P
start python3 echo.py
await 9000
"#;

/// A client that keeps one connection: a line each time somebody writes to `go`, until `done`.
const KEEP: &str = r#"
cat >keep.py <<'P'
import os, socket, sys, time
s = socket.create_connection((sys.argv[1], 9000), 20)
lines, wanted = s.makefile("rb"), 1
while True:
    s.sendall(b"line\n")
    assert lines.readline() == b"echo line\n", "the connection was cut"
    open("scratch/said", "w").write(str(wanted))
    while True:
        asked = open("scratch/go").read() if os.path.exists("scratch/go") else ""
        if asked == "done": print("kept"); sys.exit()
        if asked == str(wanted): break
        time.sleep(0.01)
    wanted += 1
P
said() { [ "$(cat scratch/said 2>/dev/null)" = "$1" ]; }
ask() { echo -n "$1" >scratch/next; mv scratch/next scratch/go; }
# The control socket of the one private agent of this user's runs.
control() { ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock; }
"#;

/// A directory for private agents, so that the test's are the only ones there.
const OWN_DIRECTORY: &str = "export XDG_RUNTIME_DIR=$PWD/scratch\n";

fn network() -> Network {
    Network::new(&[9000], &format!("{OWN_DIRECTORY}{ECHO}{KEEP}"))
}

#[test]
fn a_successor_continues_the_run_with_its_open_connections() {
    let text = network().ok("run python3 keep.py tls.example >kept & client=$!
         until_true said 1
         ordinary ./tacit restart --control $(control) >/dev/null
         until_true succeeded $(control) ordinary
         ask 1; until_true said 2
         ordinary ./tacit show runs --control $(control)
         ask done; wait $client || exit 3
         cat kept");
    assert!(text.contains("python3") && text.ends_with("kept\n"), "{text}");
}

#[test]
fn the_connections_of_a_run_are_traced_by_its_name() {
    let text = network().ok("run python3 keep.py tls.example >kept & client=$!
         until_true said 1
         ./tacit trace --run python3 --pcap run.pcapng --control $(control) >report & trace=$!
         traced() { ./tacit show traces --control $(control) | grep -q 'run python3'; }
         until_true traced
         ask 1; until_true said 2
         kill -INT $trace; wait $trace || exit 4
         ask done; wait $client || exit 3
         grep -o '[0-9]* connection,' report
         grep -a -o 'echo line' run.pcapng
         grep -a -o 'TLS 1.3 .*run python3, dialled' run.pcapng >comment && echo commented");
    assert_eq!(text, "1 connection,\necho line\ncommented\n");
}

#[test]
fn a_new_run_connection_goes_to_the_successor_and_knows_the_names_of_before() {
    let text = network().ok("cat >twice.py <<'P'
import os, socket, time
ip = socket.getaddrinfo('tls.example', 9000, type=socket.SOCK_STREAM)[0][4]
kept = []  # The agent before stays as long as it has one.
def once():
    s = socket.create_connection(ip, 20); s.sendall(b'line\\n'); kept.append(s)
    return s.makefile('rb').readline() == b'echo line\\n'
assert once()
open('scratch/said', 'w').write('1')
while not os.path.exists('scratch/go'): time.sleep(0.01)
assert once(), 'after the restart'
print('both')
P
         run python3 twice.py >both & client=$!
         until_true said 1
         ordinary ./tacit restart --control $(control) >/dev/null
         until_true succeeded $(control) ordinary
         ask 1; wait $client || exit 3
         cat both");
    assert_eq!(text, "both\n");
}

#[test]
fn a_helper_that_is_killed_is_started_again() {
    let text = network().ok("run python3 keep.py clear.example >kept & client=$!
         until_true said 1
         launcher=$(basename $(dirname $(control))); launcher=${launcher#tacit-run-}
         for round in 1 2 3; do
             helper=$(pgrep -x -P $launcher tacit-helper); kill -9 $helper
             anew() { h=$(pgrep -x -P $launcher tacit-helper) && [ $h != $helper ]; }
             until_true anew
         done
         ordinary ./tacit show connections --json --control $(control) |
             grep -c '\"path\": \"/.*python'
         ask done; wait $client || exit 3
         cat kept");
    assert_eq!(text, "1\nkept\n");
}

#[test]
fn the_agent_may_be_another_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start an agent as a second user");
        return;
    }
    let text =
        network().ok("other() { setpriv --reuid=54322 --regid=54322 --clear-groups \"$@\"; }
         mkdir -m 755 other; chown 54322 other
         start setpriv --reuid=54322 --regid=54322 --clear-groups ./tacit agent \
             --policy run.toml --control other/agent.sock \
             --enrol other/enrol.sock --enrol-mode 0666 2>other.log
         until_true [ -S other/enrol.sock ]
         enrolled() { ordinary timeout 60 ./tacit run --agent other/enrol.sock \"$@\"; }
         enrolled --name mine -- python3 keep.py tls.example >kept & client=$!
         until_true said 1
         other ./tacit show runs --control other/agent.sock
         other ./tacit show connections --wide --control other/agent.sock
         other ./tacit restart --control other/agent.sock >/dev/null
         until_true succeeded other/agent.sock other
         ask 1; until_true said 2
         ask done; wait $client || { cat other.log; exit 3; }
         enrolled -- python3 -c 'import socket; socket.create_connection((\"10.9.8.9\", 1))' 2>&1 |
             grep -o ConnectionRefusedError
         cat kept");
    for wanted in ["mine", "tester", "(claimed)", "ConnectionRefusedError", "kept"] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
}

#[test]
fn a_rule_may_name_the_program() {
    let rules = r#"
[[rule]]
name = "not-for-bash"
direction = "outbound"
remote = "clear.example"
program = "/usr/bin/bash"
deny = true
"#;
    let text = Network::new(&[9000], &format!("{OWN_DIRECTORY}{ECHO}{KEEP}")).with_rules(rules).ok(
        "ask done
         run python3 keep.py clear.example
         run bash -c 'exec 3<>/dev/tcp/clear.example/9000; echo line >&3
                      read line <&3 || echo cut' 2>&1",
    );
    assert!(text.starts_with("kept\n") && text.contains("cut"), "{text}");
}

#[test]
fn a_rule_may_name_the_run() {
    let rules = r#"
[[rule]]
name = "not-for-nightly"
direction = "outbound"
remote = "clear.example"
run = ["nightly", "weekly"]
deny = true
"#;
    // The same program under two names, and under its own.
    let text = Network::new(&[9000], &format!("{OWN_DIRECTORY}{ECHO}{KEEP}")).with_rules(rules).ok(
        "ask done
         RUN_OPTIONS='--name daily'
         run python3 keep.py clear.example
         RUN_OPTIONS='--name nightly'
         run python3 -c 'import socket; socket.create_connection((\"clear.example\", 9000))' 2>&1 |
             grep -o ConnectionRefusedError
         RUN_OPTIONS=
         run python3 keep.py clear.example",
    );
    assert_eq!(text, "kept\nConnectionRefusedError\nkept\n");
}

#[test]
fn programs_inside_do_not_control_the_agent() {
    let text = network().ok("# What is hidden is not there; what is open to the user refuses.
         run sh -c './tacit show rules --control $(control)' 2>/dev/null; echo status $?
         start_ordinary ./tacit agent --policy run.toml --control scratch/other.sock 2>/dev/null
         until_true [ -S scratch/other.sock ]
         run ./tacit show rules --control scratch/other.sock 2>&1; echo status $?
         ordinary ./tacit show rules --control scratch/other.sock >/dev/null && echo outside");
    assert!(text.starts_with("status 64\n"), "{text}");
    assert!(text.contains("may not control this agent") && text.contains("status 1\n"), "{text}");
    assert!(text.ends_with("outside\n"), "{text}");
}

/// The agent cannot look at the processes of root.
#[test]
fn a_run_of_root_does_not_control_the_agent_of_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root has runs of two users");
        return;
    }
    let text = network().ok(r#"start_ordinary ./tacit agent --policy run.toml \
             --control scratch/other.sock --enrol scratch/enrol.sock 2>other.log
         until_true [ -S scratch/enrol.sock ]
         cat >attack.py <<'P'
import json, os, socket
def asked(request, waits):
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect('scratch/other.sock')
        agent.sendall(request.encode() + b'\n')
        if waits: print(json.loads(agent.makefile().readline())['error'].splitlines()[0])
for request in ['{"verb":"drain","timeout_ms":1}', '{"verb":"take-over"}']:
    asked(request, True)
    # Of one that has ended, the agent finds no process.
    if os.fork() == 0: asked(request, False); os._exit(0)
    os.wait()
P
         timeout 60 ./tacit run --agent scratch/enrol.sock -- python3 attack.py; echo status $?
         ordinary ./tacit show rules --control scratch/other.sock >/dev/null && echo serves
         until_true grep -q 'control-failed.*another network namespace' other.log"#);
    let refused = "a client in another network namespace may not control this agent\n";
    assert_eq!(text, format!("{refused}{refused}status 0\nserves\n"));
}

#[test]
fn the_last_bytes_of_a_program_arrive_after_its_end() {
    let sink = r#"
cat >sink.py <<'P'
import hashlib, socket
listener = socket.create_server(("10.9.8.7", 9000))
while True:
    connection, _ = listener.accept()
    sum, bytes = hashlib.sha256(), 0
    while chunk := connection.recv(65536):
        sum.update(chunk); bytes += len(chunk)
    open("said.new", "w").write(f"{bytes} {sum.hexdigest()}")
    import os; os.rename("said.new", "said")
P
start python3 sink.py
await 9000
head -c 20000000 /dev/urandom >scratch/sent
cat >send.py <<'P'
import os, socket, sys
s = socket.create_connection((sys.argv[1], 9000))
s.sendall(open("scratch/sent", "rb").read())
os._exit(0)
P
"#;
    let text = Network::new(&[9000], sink).ok("for name in clear.example tls.example; do
             run python3 send.py $name
             until_true [ -e said ]
             sum=$(sha256sum <scratch/sent | cut -d' ' -f1)
             [ \"$(cat said)\" = \"20000000 $sum\" ] && echo all
             rm said
         done");
    assert_eq!(text, "all\nall\n");
}

#[test]
fn the_end_of_the_agent_is_reported_once() {
    let text = network().ok("run python3 keep.py tls.example 2>told & client=$!
         until_true said 1
         launcher=$(basename $(dirname $(control))); launcher=${launcher#tacit-run-}
         kill -9 $(pgrep -x -P $(pgrep -x -P $launcher tacit-supervise) tacit-agent)
         until_true grep -q 'the agent has ended' told
         sleep 0.5; ask 1; wait $client; echo status $?
         grep -c tacit: told");
    assert_eq!(text, "status 1\n1\n");
}

#[test]
fn a_program_that_is_gone_does_not_evade_the_rule_that_names_it() {
    let rules = r#"
[[rule]]
name = "bash-by-tls"
direction = "outbound"
remote = "clear.example"
program = "/usr/bin/bash"
tls = { trust = "ca" }
"#;
    let sink = r#"
cat >sink.py <<'P'
import socket
listener = socket.create_server(("10.9.8.7", 9000))
while True:
    connection, _ = listener.accept()
    with connection, open("came", "ab") as came:
        while chunk := connection.recv(65536):
            came.write(chunk); came.flush()
P
: >came
start python3 sink.py
await 9000
"#;
    let text =
        Network::new(&[9000], sink).with_rules(rules).ok("run bash -c 'for i in $(seq 40); do
             bash -c \"exec 3<>/dev/tcp/clear.example/9000; echo in-the-clear >&3\" 2>/dev/null
         done; sleep 1'
         grep -ac in-the-clear came; echo end");
    assert!(text.starts_with("0\n"), "{text}");
}

#[test]
fn a_run_has_a_limit_of_connections() {
    let said = Network::new(&[9000], ECHO).ok(r#"
        printf '[limits]\nconnections-per-run = 2\n' >>run.toml
        RUN_OPTIONS='--log ./scratch/own.log'
        run bash -c '
            exec 5<>/dev/tcp/clear.example/9000 6<>/dev/tcp/clear.example/9000 && echo two
            (exec 7<>/dev/tcp/clear.example/9000) 2>/dev/null && echo three
            exec 5<&-; sleep 0.5
            (exec 7<>/dev/tcp/clear.example/9000) && echo again'
        until_true grep -q ' warn denied .* why=limit .*connections-per-run' scratch/own.log
        grep -m 1 -c ' warn denied .* why=limit .*connections-per-run' scratch/own.log"#);
    assert_eq!(said, "two\nagain\n1\n");
}
