//! Tests which DNS queries the host's resolvers get, and how a run behaves when some resolvers do
//! not answer.

use crate::harness::text_of;
use crate::network::Network;

/// One resolver that answers and two that never do, all on this host.
const SERVERS: &str = r#"
cat >zone <<'END'
clear.example A 10.9.8.7
other.example A 10.9.8.7
END
for n in $(seq 400); do echo "n$n.example A 10.9.8.7"; done >>zone
export RAW_LOG=$PWD/raw
start python3 "$PEERS/names.py" zone log 127.0.0.2
start python3 -c 'import socket, time
kept = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for n, one in enumerate(kept): one.bind((f"127.0.0.{3 + n}", 53))
open("silent.ready", "w").close(); time.sleep(600)'
until_true [ -e log.ready -a -e silent.ready ]
echo nameserver 127.0.0.2 >resolv.conf
"#;

const RULES: &str = r#"
[[rule]]
name = "by-name"
direction = "outbound"
remote = ["*.example"]
remote-ports = 7000
permit = true
"#;

fn network(setup: &str) -> Network {
    Network::new(&[], &format!("{SERVERS}\n{setup}")).with_rules(RULES)
}

#[test]
fn nothing_of_a_programs_message_leaves_but_the_name_and_the_type() {
    let ask = r#"python3 -c 'import socket, struct
name = b"\x05cLeAr\x07ExAmPlE\0"
mark = b"CLEARMARK"
query = struct.pack(">HHHHHH", 0x4d4d, 0x0100, 1, 0, 0, 1) + name + struct.pack(">HH", 1, 1)
query += b"\0" + struct.pack(">HHIH", 41, 4096, 0, 4 + len(mark))
query += struct.pack(">HH", 65001, len(mark)) + mark + mark
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.settimeout(5); asked.connect(("127.0.0.2", 53)); asked.send(query)
answer = asked.recv(4096)
assert answer[:2] == b"MM" and name in answer and answer[7] == 1 and answer[11] == 1, answer
for kind in (255, 65400):
    asked.send(query[:27] + struct.pack(">H", kind) + query[29:])
    assert asked.recv(4096)[3] & 15 == 4
'"#;
    let check = "python3 -c 'lines = [bytes.fromhex(line) for line in open(\"raw\")]
assert len(lines) == 1, lines
assert len(lines[0]) == 12 + 15 + 4 + 11, lines
assert b\"MARK\" not in lines[0] and lines[0][12:27].lower() == b\"\\x05clear\\x07example\\0\"
print(\"only the question\")'";
    let said = network("").ok(&format!("run {ask}; {check}"));
    assert_eq!(said, "only the question\n");
}

#[test]
fn silent_resolvers_cost_less_than_natively_and_are_reported_once() {
    let setup = "printf 'nameserver 127.0.0.3\\nnameserver 127.0.0.4\\nnameserver 127.0.0.2\\n\
                 options timeout:1 attempts:1\\n' >resolv.conf";
    let script = "RUN_OPTIONS='--log stderr'; run sh -c 'for name in clear other n1 n2 n3 n4; do
                      getent ahostsv4 $name.example | head -1; done; sleep 1.2
                      getent ahostsv4 n5.example | head -1'";
    let network = network(setup);
    let output = network.script(script);
    let text = text_of(&output);
    assert_eq!(text.matches(" STREAM ").count(), 7, "{text}");
    assert_eq!(text.matches("resolver-failed").count(), 2, "{text}");
}

#[test]
fn one_silent_resolver_does_not_hide_the_other_from_a_program_that_waits_a_second() {
    let setup = "printf 'nameserver 127.0.0.3\\nnameserver 127.0.0.2\\n' >resolv.conf";
    let script = "run python3 -c 'import socket, struct
for name in (b\"\\x05clear\", b\"\\x05other\"):
    query = struct.pack(\">HHHHHH\", 1, 0x0100, 1, 0, 0, 0) + name + b\"\\x07example\\0\"
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.settimeout(1); asked.connect((\"127.0.0.3\", 53))
    asked.send(query + struct.pack(\">HH\", 1, 1)); print(asked.recv(4096)[7])'";
    assert_eq!(network(setup).ok(script), "1\n1\n");
}

#[test]
fn the_resolver_that_a_program_asks_is_asked_first() {
    let setup = "echo 'clear.example A 10.9.8.77' >other
                 start python3 \"$PEERS/names.py\" other otherlog 127.0.0.5
                 until_true [ -e otherlog.ready ]
                 printf 'nameserver 127.0.0.2\\nnameserver 127.0.0.5\\n' >resolv.conf";
    let script = "run python3 -c 'import socket, struct
query = struct.pack(\">HHHHHH\", 1, 0x0100, 1, 0, 0, 0) + b\"\\x05clear\\x07example\\0\"
for server in (\"127.0.0.2\", \"127.0.0.5\", \"192.0.2.1\"):
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked.settimeout(5); asked.connect((server, 53))
    asked.send(query + struct.pack(\">HH\", 1, 1)); print(asked.recv(4096)[-1])'";
    assert_eq!(network(setup).ok(script), "7\n77\n7\n", "any name is answered");
}

#[test]
fn hundreds_of_look_ups_at_once_are_all_answered_at_once() {
    let burst = r#"cat >burst.py <<'P'
import socket, threading, time
start, worst, lock = threading.Barrier(300), [], threading.Lock()
def look_up(n):
    start.wait()
    begun = time.monotonic()
    socket.getaddrinfo(f"n{n}.example", 7000, type=socket.SOCK_STREAM)
    with lock: worst.append(time.monotonic() - begun)
threads = [threading.Thread(target=look_up, args=(n + 1,)) for n in range(300)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(worst), "late" if max(worst) > 4 else "in time")
P
"#;
    let network = network(burst);
    let output = network.script("run python3 burst.py");
    let text = text_of(&output);
    assert!(text.contains("300 in time") && !text.contains("dropped"), "{text}");
}

#[test]
fn a_program_can_serve_names_where_it_asked_before() {
    let script = "run python3 -c 'import socket
socket.getaddrinfo(\"clear.example\", 7000)
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind((\"127.0.0.2\", 53)); print(\"bound\")'";
    assert_eq!(network("").ok(script), "bound\n");
}

#[test]
fn a_rule_by_address_allows_the_names_that_it_lists() {
    let rules = r#"
[[rule]]
name = "by-address"
direction = "outbound"
remote = "10.9.8.8"
remote-ports = 7000
names = ["*.listed.test", "far.test"]
permit = true
"#;
    let setup = r#"
cat >>zone <<'END'
a.listed.test A 10.9.8.8
far.test A 10.9.8.7
b.test A 10.9.8.8
END
start python3 -m http.server 7000 --bind 0.0.0.0 >/dev/null 2>&1
await 7000
"#;
    let script = "RUN_OPTIONS='--log stderr'; run python3 -c 'import socket
for name in (\"a.listed.test\", \"far.test\", \"b.test\"):
    try: socket.create_connection((name, 7000), 10).recv; print(name, \"connected\")
    except OSError as error: print(name, type(error).__name__)'; cut -d\" \" -f3 log | sort -u";
    let network = Network::new(&[], &format!("{SERVERS}\n{setup}")).with_rules(rules);
    let output = network.script(script);
    let text = text_of(&output);
    for wanted in [
        "a.listed.test connected\nfar.test ConnectionRefusedError\nb.test gaierror\n",
        "\na.listed.test\nfar.test\n",
        "b.test",
        "add remote = \\\"b.test\\\"",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
}
