//! Tests the query socket (`$TACIT_QUERY`): programs can ask how the connections of their own run
//! are protected. Programs cannot ask about the connections of other runs.

use serde_json::{Value, json};

use crate::network::Network;

/// The examples, as a user would take them.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/query");

/// A server that sends back what it gets, and whatever questions a test has.
const ECHO: &str = r#"
cat >echo.py <<'P'
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while bytes := self.request.recv(65536):
            self.request.sendall(bytes)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024
Server(("10.9.8.7", 9000), Echo).serve_forever()
P
start python3 echo.py
await 9000
export XDG_RUNTIME_DIR=$PWD/scratch
"#;

fn network() -> Network {
    Network::new(&[9000], ECHO).with_build(&format!(
        "cp {EXAMPLES}/*.py . && cc -Wall -Wextra -Werror -o query {EXAMPLES}/query.c"
    ))
}

/// The lines of a text, as JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| json!(line))).collect()
}

#[test]
fn the_examples_say_how_a_connection_is_protected() {
    for network in network().for_each_user() {
        let text = network.ok("run ./query tls.example 9000; echo $?
             run python3 query.py tls.example 9000; echo $?
             run ./query clear.example 9000; echo $?");
        let said = lines(&text);
        for tls in [&said[0], &said[2]] {
            assert_eq!(tls["policy"], "enabled", "{text}");
            assert_eq!(tls["connection"], "secure");
            assert_eq!((&tls["rule"], &tls["role"]), (&json!("tls"), &json!("client")));
            assert_eq!((&tls["version"], &tls["check"]), (&json!("1.3"), &json!("ok")));
            assert_eq!(
                (&tls["peer"], &tls["suite"]),
                (&json!("tls.example"), &json!("TLS_AES_128_GCM_SHA256"))
            );
            assert_eq!((&tls["group"], &tls["reason"]), (&json!("X25519MLKEM768"), &Value::Null));
        }
        let clear = &said[4];
        assert_eq!(
            (&clear["policy"], &clear["connection"]),
            (&json!("not-enabled"), &json!("clear"))
        );
        assert_eq!((&clear["rule"], &clear["version"]), (&json!("clear"), &Value::Null));
        assert_eq!([&said[1], &said[3], &said[5]], [0, 0, 1]);
    }
}

/// Asks as `query.py` does, from other scripts beside it.
const IMPORTS: &str = "import json, os, socket, sys, time\nfrom query import ask, settled\n";

/// A python program in the test's directory.
fn program(name: &str, text: &str) -> String {
    format!("cat >{name}.py <<'P'\n{IMPORTS}{text}\nP\n")
}

#[test]
fn a_descriptor_that_is_no_connection_of_the_run_is_refused_by_name() {
    let setup = program(
        "wrong",
        r#"
def said(*arguments):
    answer = ask(*arguments)
    return answer.get("error") or f"{answer['policy']} {answer['connection']}"
file = open("/dev/null")
print(said(file), said(socket.socketpair()[0]), said(socket.socket(type=socket.SOCK_DGRAM)))
unconnected = socket.socket()
print(said(unconnected), said(socket.create_server(("127.0.0.1", 0))))
# Within the run, both ends.
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
print(said(near), said(far), said(near, "start"))
# Before it is accepted, too; the client may have ended it.
waiting = socket.create_connection(server.getsockname())
both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
port = both.getsockname()[1]
four, six = [socket.create_connection((host, port)) for host in ("127.0.0.1", "::1")]
print(said(waiting), said(four), said(six), said(waiting, "start"))
waiting.shutdown(socket.SHUT_WR)
print(said(waiting))
# Its other end is gone: nobody knows who had it.
far.close()
print(said(near))
# Of another network: one that was inherited.
outside = socket.socket(fileno=int(sys.argv[1]))
print(said(outside), said(outside, "stop"))
there = socket.create_connection(("tls.example", 9000))
settled(there)
print(said(there, "Query"), said(there, "q" * 100), said(there, "query\n"), said(there, "start"))
name = "\0" + os.environ["TACIT_QUERY"][1:]
def send(text, *descriptors):
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.connect(name)
    socket.send_fds(agent, [text], descriptors) if descriptors else agent.send(text)
    return json.loads(agent.recv(16384)).get("error")
print(send(b"query"), send(b"query", there.fileno(), there.fileno()), send(b"x" * 5000))
# Several questions on one connection, and the agent keeps no copy of what it is given.
agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
agent.connect(name)
for round in range(3):
    socket.send_fds(agent, [b"query"], [there.fileno()])
    print(json.loads(agent.recv(16384))["connection"], end=" ")
there.shutdown(socket.SHUT_WR)
print(there.recv(1))
"#,
    );
    let text = network().ok(&format!(
        "{setup}
         exec 9<>/dev/tcp/10.9.8.7/9000
         ordinary timeout 60 ./tacit run --policy run.toml --inherit-fd 9 -- python3 wrong.py 9"
    ));
    assert_eq!(
        lines(&text),
        [
            "not-tcp not-tcp not-tcp",
            "not-connected not-connected",
            "none clear none clear denied",
            "none clear none clear none clear denied",
            "none clear",
            "unknown",
            "off clear denied",
            "unknown-question unknown-question enabled secure denied",
            "no-descriptor no-descriptor unknown-question",
            "secure secure secure b''",
        ]
    );
}

#[test]
fn only_the_run_reaches_its_socket_and_only_with_its_own_connections() {
    let setup = program(
        "meet",
        r#"
# One run leaves a connection at a UNIX socket, the other asks about it.
if sys.argv[1] == "leave":
    gate = socket.socket(socket.AF_UNIX)
    gate.bind("scratch/gate"); gate.listen()
    mine = socket.create_connection(("tls.example", 9000))
    other, _ = gate.accept()
    socket.send_fds(other, [b"x"], [mine.fileno()])
    other.recv(1)
    print(settled(mine)["connection"])
else:
    gate = socket.socket(socket.AF_UNIX)
    gate.connect("scratch/gate")
    theirs = socket.socket(fileno=socket.recv_fds(gate, 1, 1)[1][0])
    print(ask(theirs)["error"])
"#,
    );
    let text = network().ok(&format!(
        "{setup}
         run python3 meet.py leave & leaver=$!
         until_true [ -e scratch/gate ]
         run python3 meet.py ask; wait $leaver
         TACIT_QUERY=@tacit-query ordinary python3 query.py clear.example 9000 2>&1 | tail -n 1"
    ));
    let said = lines(&text);
    assert_eq!([&said[0], &said[1]], ["not-this-run", "secure"], "{text}");
    assert!(text.contains("ConnectionRefusedError"), "{text}");
}

#[test]
fn a_server_asks_about_the_connections_it_accepts() {
    let rules = r#"
[identity.me]
cert = "tls.example.pem"
key = "tls.example.key"
[[rule]]
name = "in"
direction = "inbound"
listen = "10.9.8.7:8443"
local-ports = 80
tls = { identity = "me", client-cert = "preferred", trust = "ca" }
[[rule]]
name = "in-clear"
direction = "inbound"
listen = "10.9.8.7:8080"
local-ports = 80
permit = true
"#;
    let setup = program(
        "serve",
        r#"
server = socket.create_server(("", 80))
for _ in range(4):
    client, _ = server.accept()
    # What comes after the client's last byte does not come before it is known.
    client.recv(4)
    client.sendall(json.dumps(settled(client)).encode() + b"\n")
    client.close()
"#,
    ) + r#"
cat >visit.py <<'P'
import socket, ssl, sys, time
context = ssl.create_default_context(cafile="ca.pem")
context.check_hostname = False
if len(sys.argv) > 3: context.load_cert_chain(sys.argv[3] + ".pem", sys.argv[3] + ".key")
for patience in range(500):
    try: client = socket.create_connection(("10.9.8.7", int(sys.argv[1]))); break
    except ConnectionRefusedError: time.sleep(0.02)
if sys.argv[2] == "tls": client = context.wrap_socket(client)
client.sendall(b"ping")
print(client.makefile().readline(), end="")
P
"#;
    let text = network().with_rules(rules).ok(&format!(
        "{setup}
         chmod 644 tls.example.key; chown 54321 tls.example.key; chmod 600 tls.example.key
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
             -subj /CN=stranger -keyout stranger.key -out stranger.pem 2>/dev/null
         run python3 serve.py & server=$!
         python3 visit.py 8443 tls alice; python3 visit.py 8443 tls stranger
         python3 visit.py 8443 tls; python3 visit.py 8080 clear; wait $server"
    ));
    let said = lines(&text);
    let words = |at: usize| {
        ["policy", "connection", "rule", "role", "check", "peer", "claimed-subject"]
            .map(|name| said[at][name].as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(words(0), ["enabled", "secure", "in", "server", "ok", "alice", "-"]);
    assert_eq!(words(1), ["enabled", "secure", "in", "server", "waived", "-", "CN=stranger"]);
    assert!(said[1]["reason"].is_string(), "{text}");
    assert_eq!(words(2), ["enabled", "secure", "in", "server", "absent", "-", "-"]);
    assert_eq!(words(3), ["not-enabled", "clear", "in-clear", "-", "-", "-", "-"]);
}

/// Keeps a connection over a change of agents and makes another one after it.
fn over_a_change() -> String {
    program(
        "over",
        r#"
before = socket.create_connection(("tls.example", 9000))
print(settled(before)["connection"], flush=True)
clear = socket.create_connection(("clear.example", 9000))
asker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asker.connect("\0" + os.environ["TACIT_QUERY"][1:])
open("scratch/said", "w")
while not os.path.exists("scratch/go"): time.sleep(0.01)
print(ask(before)["connection"], ask(before, "stop")["error"], ask(clear)["rule"])
after = socket.create_connection(("tls.example", 9000))
print(settled(after)["connection"], asker.recv(1))
before.close()
print(settled(after)["rule"])
"#,
    )
}

#[test]
fn a_successor_answers_for_the_connections_of_the_agent_before_it() {
    let text = network().ok(&format!(
        "{}
         run python3 over.py >said & client=$!
         until_true [ -e scratch/said ]
         control=$(ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock)
         ordinary ./tacit restart --control $control >/dev/null
         until_true succeeded $control ordinary
         touch scratch/go; wait $client; cat said",
        over_a_change()
    ));
    assert_eq!(text, "secure\nsecure denied clear\nsecure b''\ntls\n");
}

#[test]
fn an_agent_of_another_user_answers_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start an agent as a second user");
        return;
    }
    let text = network().ok(&format!(
        "{}
         other() {{ setpriv --reuid=54322 --regid=54322 --clear-groups \"$@\"; }}
         mkdir -m 755 other; chown 54322 other
         start setpriv --reuid=54322 --regid=54322 --clear-groups ./tacit agent \
             --policy run.toml --control other/agent.sock \
             --enrol other/enrol.sock --enrol-mode 0666 2>other.log
         until_true [ -S other/enrol.sock ]
         ordinary timeout 60 ./tacit run --agent other/enrol.sock -- python3 over.py >said &
         client=$!
         until_true [ -e scratch/said ]
         other ./tacit restart --control other/agent.sock >/dev/null
         until_true succeeded other/agent.sock other
         touch scratch/go; wait $client; cat said",
        over_a_change()
    ));
    assert_eq!(text, "secure\nsecure denied clear\nsecure b''\ntls\n");
}

/// A server outside that begins and ends TLS when it is told to, and sends back lines; it writes
/// down what came before TLS and after it.
const UPGRADE: &str = r#"
cat >upgrading.py <<'P'
import os, socket, ssl, threading, time
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("tls.example.pem", "tls.example.key")
clear = open("clear.log", "wb", buffering=0)
def serve(raw):
    stream = raw
    def line():
        got = b""
        while not got.endswith(b"\n"):
            got += stream.recv(1) or exit()
        if stream is raw: clear.write(got)
        return got.strip()
    while True:
        said = line()
        if said == b"STARTTLS":
            stream.sendall(b"GO\n")
            stream = context.wrap_socket(raw, server_side=True, suppress_ragged_eofs=False)
        elif said == b"STARTTLS-AND-MORE":
            stream.sendall(b"GO\nslipped in\n")
            stream = context.wrap_socket(raw, server_side=True)
        elif said == b"QUIETTLS":
            stream = context.wrap_socket(raw, server_side=True)
        elif said == b"HANG":
            threading.Event().wait()
        elif said == b"HANG-UNTIL-RELEASED":
            while not os.path.exists("scratch/released"): time.sleep(0.01)
            raw.close()
            return
        elif said == b"STOPTLS":
            stream.sendall(b"GO\n")
            raw = stream = stream.unwrap()
        elif said == b"STOPTLS-FIRST":
            # Ends TLS before the client does.
            stream.sendall(b"GO\n")
            raw = stream = stream.unwrap()
            stream.sendall(b"behind it\n")
        else:
            stream.sendall(said + b"\n")
server = socket.create_server(("10.9.8.7", 9001))
while True:
    client, _ = server.accept()
    threading.Thread(target=serve, args=[client], daemon=True).start()
P
start python3 upgrading.py 2>upgrading.log
await 9001
"#;

/// The first lines of programs that use it.
const MESSAGES: &str = r#"
from upgrade import exchange
def reach(): return socket.create_connection(("clear.example", 9001), timeout=30)
def said(answer): return answer.get("error") or answer["connection"]
def asker():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect("\0" + os.environ["TACIT_QUERY"][1:])
    return made
def exactly(stream, count):
    got = b""
    while len(got) < count: got += stream.recv(count - len(got)) or exit("it ended")
    return got
"#;

/// A rule that leaves the beginning of TLS to the program.
fn controlled(more: &str) -> String {
    format!(
        "[[rule]]\nname = \"upgrade\"\ndirection = \"outbound\"\nremote = \"clear.example\"\n\
         remote-ports = 9001\ntls = {{ trust = \"ca\", start = \"controlled\", \
         server-name = \"tls.example\"{more} }}\n"
    )
}

#[test]
fn the_example_begins_and_ends_tls_in_the_middle_of_a_conversation() {
    for network in network().with_rules(&controlled("")).for_each_user() {
        let text = network.ok(&format!(
            "{UPGRADE}
             run python3 upgrade.py clear.example 9001; cat clear.log"
        ));
        assert_eq!(
            text,
            "in clear clear\nunder TLS secure tls.example\nnew keys: 1\nin clear again\n\
             in clear\nSTARTTLS\nin clear again\n"
        );
    }
}

#[test]
fn what_a_program_wrote_before_it_asks_leaves_before_the_change() {
    let setup = program(
        "quiet",
        &format!(
            r#"{MESSAGES}
stream = reach()
large = "x" * 50000
stream.sendall(f"{{large}}\nQUIETTLS\n".encode())
# Nothing is read before: the server's answer in clear is no part of the handshake.
assert exactly(stream, 50001) == f"{{large}}\n".encode()
print(said(ask(stream, "start")))
print(exchange(stream, large) == large)
stream.sendall(f"STOPTLS\n".encode())
assert exactly(stream, 3) == b"GO\n"
print(said(ask(stream, "stop")), exchange(stream, large) == large)
print(exchange(stream, "STARTTLS"), said(ask(stream, "start")), exchange(stream, "again"))
"#
        ),
    );
    let engine = "[engine]\ncpus = \"0\"\nnice = 0\n";
    for more in ["", engine] {
        let text = network().with_rules(&format!("{more}{}", controlled(""))).ok(&format!(
            "{UPGRADE}{setup} run python3 quiet.py; cat upgrading.log
             grep -v x clear.log; grep -c x clear.log"
        ));
        let wanted = "secure\nTrue\nclear True\nGO secure again\nQUIETTLS\nSTARTTLS\n2\n";
        assert_eq!(text, wanted);
    }
}

#[test]
fn a_start_that_fails_closes_the_connection_and_nothing_follows_in_clear() {
    let setup = program(
        "fail",
        &format!(
            r#"{MESSAGES}
def ended(stream):
    try:
        stream.sendall(b"secret\n")
        return stream.recv(1)
    except ConnectionError as error:
        return type(error).__name__
stream = reach()
print(exchange(stream, sys.argv[1]), end=" ")
answer = ask(stream, "start")
print(answer["error"], ended(stream), file=sys.stderr)
print(said(answer), ended(stream) in ("ConnectionResetError", "BrokenPipeError"))
"#
        ),
    );
    let wrong_name = controlled("").replace("tls.example", "other.example");
    for (rule, word) in [(&controlled(""), "STARTTLS-AND-MORE"), (&wrong_name, "STARTTLS")] {
        let text = network()
            .with_rules(rule)
            .ok(&format!("{UPGRADE}{setup} run python3 fail.py {word}; cat clear.log"));
        assert_eq!(text, format!("GO failed True\n{word}\n"));
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_changes_nothing() {
    let setup = program(
        "senseless",
        &format!(
            r#"{MESSAGES}
import threading
stream = reach()
print(said(ask(stream, "stop")), said(ask(stream, "rekey")), exchange(stream, "STARTTLS"))
print(said(ask(stream, "start")), said(ask(stream, "start")), exchange(stream, "x"))
# The server has TLS end first, and goes on in clear behind it.
print(exchange(stream, "STOPTLS-FIRST"), said(ask(stream, "stop")))
print(exactly(stream, 10), exchange(stream, "y"))
# A handshake that never ends ends by itself.
stream.sendall(b"HANG\n")
answers = []
first = threading.Thread(target=lambda: answers.append(ask(stream, "start")))
first.start()
while (now := said(ask(stream))) == "clear": time.sleep(0.01)
print(now, said(ask(stream, "start")))
first.join()
print(said(answers[0]), "within 1s" in answers[0]["message"])
"#
        ),
    );
    let rule = controlled(", handshake-timeout = \"1s\"");
    let text = network()
        .with_rules(&rule)
        .ok(&format!("{UPGRADE}{setup} run python3 senseless.py; cat upgrading.log"));
    assert_eq!(
        text,
        "already not-possible GO\nsecure already x\nGO clear\nb'behind it\\n' y\n\
         handshaking busy\nfailed True\n"
    );
}

#[test]
fn a_server_begins_tls_although_its_client_did_not_wait() {
    let rules = r#"
[identity.me]
cert = "tls.example.pem"
key = "tls.example.key"
[[rule]]
name = "in"
direction = "inbound"
listen = "10.9.8.7:8443"
local-ports = 80
tls = { identity = "me", client-cert = "none", start = "controlled" }
"#;
    let setup = program(
        "serve",
        r#"
client, _ = socket.create_server(("", 80)).accept()
lines = client.makefile("rb", buffering=0)
assert lines.readline() == b"STARTTLS\n"
client.sendall(b"GO\n")
# Until the client's first flight is here: it is not the program's to read.
client.recv(1, socket.MSG_PEEK)
answer = ask(client, "start")
print(answer["connection"], answer["role"], answer["check"], flush=True)
client.sendall(lines.readline())
assert lines.readline() == b"STOPTLS\n"
client.sendall(b"GO\n")
print(ask(client, "stop")["connection"], lines.readline())
"#,
    ) + r#"
cat >visit.py <<'P'
import socket, ssl, time
context = ssl.create_default_context(cafile="ca.pem")
for patience in range(500):
    try: raw = socket.create_connection(("10.9.8.7", 8443)); break
    except ConnectionRefusedError: time.sleep(0.02)
raw.sendall(b"STARTTLS\n")
assert raw.recv(3, socket.MSG_WAITALL) == b"GO\n"
client = context.wrap_socket(raw, server_hostname="tls.example")
client.sendall(b"under TLS\n")
print(client.recv(10))
client.sendall(b"STOPTLS\n")
assert client.recv(3) == b"GO\n"
raw = client.unwrap()
raw.sendall(b"in clear\n")
P
"#;
    let text = network().with_rules(rules).ok(&format!(
        "{setup}
         chmod 644 tls.example.key; chown 54321 tls.example.key; chmod 600 tls.example.key
         run python3 serve.py >served & server=$!
         python3 visit.py; wait $server; cat served"
    ));
    assert_eq!(text, "b'under TLS\\n'\nsecure server not-asked\nclear b'in clear\\n'\n");
}

#[test]
fn a_successor_passes_requests_on_to_the_agent_that_has_the_connection() {
    let setup = program(
        "late",
        &format!(
            r#"{MESSAGES}
stream = reach()
print(said(ask(stream)), flush=True)
open("scratch/said", "w")
while not os.path.exists("scratch/go"): time.sleep(0.01)
print(exchange(stream, "STARTTLS"), said(ask(stream, "start")), exchange(stream, "under TLS"))
"#
        ),
    );
    let text = network().with_rules(&controlled("")).ok(&format!(
        "{UPGRADE}{setup}
         run python3 late.py >said & client=$!
         until_true [ -e scratch/said ]
         control=$(ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock)
         ordinary ./tacit show connections --control $control | grep -o ' clear '
         ordinary ./tacit restart --control $control >/dev/null
         until_true succeeded $control ordinary
         touch scratch/go; wait $client; cat said clear.log"
    ));
    assert_eq!(text, " clear \nclear\nGO secure under TLS\nSTARTTLS\n");
}

#[test]
fn agents_before_the_last_one_are_asked_as_well() {
    let setup = program(
        "later",
        &format!(
            r#"{MESSAGES}
def meet(name):
    open(f"scratch/said-{{name}}", "w")
    while not os.path.exists(f"scratch/go-{{name}}"): time.sleep(0.01)
first = reach()
print(said(ask(first)))
meet("one")
second = reach()
print(said(ask(second)))
meet("two")
print(said(ask(second)), exchange(first, "STARTTLS"), said(ask(first, "start")))
"#
        ),
    );
    let text = network().with_rules(&controlled("")).ok(&format!(
        r#"{UPGRADE}{setup}
         run python3 later.py >said & client=$!
         replaced() {{ [ $(ls $control.* | wc -l) = $1 ] && succeeded $control ordinary; }}
         for step in one two; do
             until_true [ -e scratch/said-$step ]
             control=$(ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock)
             ordinary ./tacit restart --control $control >/dev/null
             until_true replaced $([ $step = one ] && echo 1 || echo 2)
             touch scratch/go-$step
         done
         wait $client; cat said"#
    ));
    assert_eq!(text, "clear\nclear\nclear GO secure\n");
}

#[test]
fn a_request_for_a_handshake_that_is_never_completed_is_answered() {
    let setup = program(
        "never",
        &format!(
            r#"{MESSAGES}
import queue, threading
stream = reach()
answers = queue.Queue()
for _ in range(2):
    threading.Thread(target=lambda: answers.put(said(ask(stream, "start")))).start()
# The other one waits for the handshake now.
print(answers.get(), flush=True)
open("scratch/go", "w")
print(answers.get())
"#
        ),
    );
    let text = network().with_rules(&controlled("")).ok(&format!(
        r#"cat >full.py <<'P'
import os, socket, time
server = socket.socket()
server.bind(("10.9.8.7", 9001)); server.listen(1)
open("scratch/full", "w")
silent, _ = server.accept()
while not os.path.exists("scratch/go"): time.sleep(0.01)
silent.close(); server.close()
P
         start python3 full.py; until_true [ -e scratch/full ]
         {setup} run python3 never.py"#
    ));
    assert_eq!(text, "busy\nfailed\n");
}

#[test]
fn a_descriptor_that_blocks_in_close_delays_no_client() {
    let setup = program(
        "linger",
        &format!(
            r#"{MESSAGES}
import select, struct
# While the first question has no answer, the others wait with what they brought.
first, busy = asker(), reach()
busy.sendall(b"HANG-UNTIL-RELEASED\n")
socket.send_fds(first, [b"start"], [busy.fileno()])
stuck = reach()
stuck.sendall(b"HANG\n")
stuck.setblocking(False)
# Until nothing moves any more.
while select.select([], [stuck], [], 1)[1]:
    try: stuck.send(bytes(65536))
    except BlockingIOError: pass
# Its last holder waits an hour for the rest to leave: that is the agent.
stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
socket.send_fds(first, [b"nonsense"], [stuck.fileno()])
stuck.close()
open("scratch/released", "w")
print(json.loads(first.recv(16384))["error"], said(ask(reach())))
"#
        ),
    );
    let rule = controlled(", handshake-timeout = \"60s\"");
    let text =
        network().with_rules(&rule).ok(&format!("{UPGRADE}{setup} run python3 linger.py; echo $?"));
    assert_eq!(text, "failed clear\n0\n");
}

#[test]
fn a_new_client_replaces_the_one_that_was_idle_for_the_longest() {
    let setup = program(
        "many",
        &format!(
            r#"{MESSAGES}
server = socket.create_server(("127.0.0.1", 0))
within = socket.create_connection(server.getsockname())
def answers(line):
    try:
        socket.send_fds(line, [b"query"], [within.fileno()])
        return json.loads(line.recv(16384) or "{{}}").get("policy")
    except OSError: return None
# It waits for an answer all the time.
pending, busy = asker(), reach()
busy.sendall(b"HANG-UNTIL-RELEASED\n")
socket.send_fds(pending, [b"start"], [busy.fileno()])
while said(ask(busy)) != "handshaking": time.sleep(0.01)
idle = [asker() for _ in range(63)]
print(set(map(answers, idle)), answers(idle[0]))
another = asker()
print(answers(another))
print([at for at, line in enumerate(idle) if answers(line) is None], answers(another))
open("scratch/released", "w")
print(json.loads(pending.recv(16384))["error"])
"#
        ),
    );
    let rule = controlled(", handshake-timeout = \"120s\"");
    let text =
        network().with_rules(&rule).ok(&format!("{UPGRADE}{setup} run python3 many.py; echo $?"));
    assert_eq!(text, "{'none'} none\nnone\n[1] none\nfailed\n0\n");
}

#[test]
fn ipv6_and_ipv4_mapped_connections_are_found() {
    let setup = program(
        "six",
        r#"
for host in "2001:db8::8", "::ffff:10.9.8.8":
    six = socket.socket(socket.AF_INET6)
    six.connect((host, 9000))
    answer = settled(six)
    print(answer["connection"], answer["rule"])
"#,
    );
    let rule = "[[rule]]\nname = \"by-address\"\ndirection = \"outbound\"\n\
                remote = [\"2001:db8::8\", \"10.9.8.8\"]\nremote-ports = 9000\n\
                tls = { trust = \"ca\", server-name = \"tls.example\" }\n";
    let network = network().with_rules(rule).with_ipv6();
    let text = network.ok(&format!("{setup} run python3 six.py"));
    assert_eq!(text, "secure by-address\nsecure by-address\n");
}
