//! Tests links between hosts. The hosts are two network namespaces, connected only by a veth pair.
//! `tacit link serve` runs in both namespaces. Programs under `tacit run` on one host use sockets
//! of the other host. Some tests use a link over TCP with TLS. Others use a link over a UNIX socket
//! without TLS, like the link of a virtual machine.

use crate::fits::assert_fits;
use crate::link_scripts::{CONNECT, DATAGRAMS, RULES};
use crate::network::Network;

/// The near host is the namespace of `$NEAR`, whose only interface leads to this one.
pub const HOSTS: &str = r#"
ip route add unreachable 10.9.9.0/24
start unshare -n sleep 600; NEAR=$!
until_true grep -q sleep /proc/$NEAR/comm
near() { nsenter --net --target $NEAR "$@"; }
ip link add far0 type veth peer name near0 netns $NEAR
ip addr add 192.168.78.1/24 dev far0; ip link set far0 up
near ip link set lo up; near ip addr add 192.168.78.2/24 dev near0; near ip link set near0 up
chmod 777 .
for pki in pki others; do ordinary ./tacit ca init --dir $TMPDIR/$pki >/dev/null; done
ordinary ./tacit ca issue --dir $TMPDIR/pki 192.168.78.1 >/dev/null
ordinary ./tacit ca issue --dir $TMPDIR/pki guest --client >/dev/null
ordinary ./tacit ca issue --dir $TMPDIR/others stranger --client >/dev/null
PKI=$TMPDIR/pki
# What the policies of the servers of links begin with.
FAR_CERTIFICATES="version = 1
[identity.far]
cert = \"$PKI/192.168.78.1.pem\"
key = \"$PKI/192.168.78.1.key\"
[trust.guests]
ca = \"$PKI/ca.pem\""
NEAR_CERTIFICATES="version = 1
[identity.guest]
cert = \"$PKI/guest.pem\"
key = \"$PKI/guest.key\"
[trust.hosts]
ca = \"$PKI/ca.pem\""
# Starts a server of links on the near host.
start_near() { start nsenter --net --target $NEAR $USER_OF_RUNS ./tacit link serve --policy $1; }
"#;

/// A link of the two hosts. `$ACROSS` and `$BACK` are its `listen` and `connect`; `linked CMD` is
/// a run on the near host.
const LINK: &str = r#"
cat >far.link.toml <<END
$FAR_CERTIFICATES
[link.far]
$ACROSS
sockets = 16
[[rule]]
name = "never"
link = "far"
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 8083
deny = true
[[rule]]
name = "out"
link = "far"
direction = "outbound"
remote = ["10.9.8.7", "10.9.8.8", "10.9.9.9", "2001:db8::7"]
remote-ports = "8080-8095"
permit = true
[[rule]]
name = "datagrams"
link = "far"
direction = "outbound"
protocol = "udp"
remote = "10.9.8.7"
permit = true
[[rule]]
name = "in"
link = "far"
direction = "inbound"
local = "10.9.8.7"
local-ports = 8099
permit = true
END
cat >near.link.toml <<END
$NEAR_CERTIFICATES
[link.near]
listen = "$TMPDIR/near.sock"
$BACK
END
AT=$TMPDIR/near.sock
serve_far() {
    start_ordinary ./tacit link serve --policy far.link.toml 2>>far.log; FAR=$!
    until_true far_info
}
serve_near() {
    start_near near.link.toml 2>>near.log; SERVER=$!
    until_true info
}
far_info() { ordinary ./tacit link info $FAR_AT --json >far.json 2>/dev/null; }
info() { ordinary ./tacit link info $AT --json >near.json 2>/dev/null; }
state() { info; python3 -c "import json; link = json.load(open('near.json')); print($1)"; }
far_state() { far_info; python3 -c "import json; link = json.load(open('far.json')); print($1)"; }
# The sockets of both servers; the pipes to their signers are made later.
descriptors() { ls -l /proc/$FAR/fd /proc/$SERVER/fd | grep -c socket:; }
# Whether neither server has a run or a socket.
idle() {
    [ "$(state 'link["sockets"], len(link["runs"])')" = "0 0" ] &&
        [ "$(far_state 'link["sockets"], len(link["runs"])')" = "0 0" ]
}
serve_far; serve_near
linked() {
    near $USER_OF_RUNS timeout 60 \
        ./tacit run --link $AT --policy run.toml --log stderr $RUN_OPTIONS -- "$@"
}
start python3 -m http.server --bind 10.9.8.7 8080 >/dev/null 2>&1
await 8080
"#;

/// TCP with TLS.
pub const TCP: &str = "FAR_AT=far ACROSS='listen = \"192.168.78.1:7443\"
tls = { identity = \"far\", trust = \"guests\", client-cert = \"required\" }'
BACK='connect = \"192.168.78.1:7443\"
tls = { identity = \"guest\", trust = \"hosts\" }'";

/// The socket of a virtual machine, on the side of its host.
pub const MACHINE: &str = "FAR_AT=$TMPDIR/far.sock; ACROSS=\"listen = '$FAR_AT'\" \
    BACK=\"connect = 'unix:$FAR_AT'\"";

/// Two hosts that the `listen` and `connect` of `across` link.
pub fn network(across: &str) -> Network {
    let setup = format!("{across}\n{HOSTS}\n{LINK}");
    Network::new(&[8080], &setup).with_rules(RULES)
}

#[test]
fn a_program_uses_the_network_of_another_host() {
    for across in [TCP, MACHINE] {
        for network in network(across).for_each_user() {
            let said = network.ok(r#"
                near curl -s -m 5 http://10.9.8.7:8080/; echo "direct $?"
                code='%{http_code} %{scheme}\n'
                linked curl -sS -o /dev/null -w "$code" http://10.9.8.7:8080/
                linked curl -sS -o /dev/null -w "$code" http://clear.example:8080/
                linked curl -sS -o /dev/null -w "$code" http://tls.example:8080/
                until_true idle; state 'link["resolvers"]'"#);
            assert_eq!(said, "direct 7\n200 HTTP\n200 HTTP\n200 HTTP\n['127.0.0.1:53']\n");
        }
    }
}

#[test]
fn connect_fails_with_the_error_of_the_other_host_and_its_policy_decides() {
    for across in [TCP, MACHINE] {
        let said = network(across).ok(&format!(
            "start python3 -m http.server --bind 10.9.8.7 8083 >at.8083 2>&1; await 8083\n\
             {CONNECT}\nlinked python3 connect.py 10.9.8.7:8080 10.9.8.7:8081 10.9.9.9:8080 \
             10.9.8.7:8083 2>/dev/null\n\
             until_true grep -q reason= far.log; grep -o 'reason=.*' far.log\n\
             grep -c GET at.8083 || true"
        ));
        assert_eq!(
            said,
            "10.9.8.7:8080 connected\n10.9.8.7:8081 ECONNREFUSED\n\
             10.9.9.9:8080 EHOSTUNREACH\n10.9.8.7:8083 ECONNREFUSED\n\
             reason=\"rule `never` of the link far denies tcp to 10.9.8.7:8083\"\n0\n"
        );
    }
}

/// A server for one connection, and its client: half-close, a reset, and a long stream.
const STREAMS: &str = r#"
cat >server.py <<'END'
import hashlib, socket, struct
listener = socket.create_server(("10.9.8.7", 8090))
open("server.ready", "w").close()
# All of a stream that ends, then an answer.
one = listener.accept()[0]
received = b""
while part := one.recv(65536):
    received += part
one.sendall(b"all of " + str(len(received)).encode())
one.close()
# A reset.
one = listener.accept()[0]
one.sendall(b"before the reset")
one.recv(4)
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
one.close()
# The reset of the client.
one = listener.accept()[0]
one.sendall(b"go")
try:
    while one.recv(100):
        pass
    print("server: end")
except ConnectionResetError:
    print("server: reset")
# A long stream both ways.
one = listener.accept()[0]
digest = hashlib.sha256()
while part := one.recv(65536):
    digest.update(part)
    one.sendall(part)
one.close()
print("server:", digest.hexdigest()[:16], flush=True)
END
cat >client.py <<'END'
import hashlib, random, socket, struct, threading
def dial():
    return socket.create_connection(("10.9.8.7", 8090), 10)
one = dial()
print(one.getpeername())
one.sendall(b"x" * 100000)
one.shutdown(socket.SHUT_WR)
print(one.recv(100))
one = dial()
print(one.recv(16, socket.MSG_WAITALL))
one.sendall(b"done")
try:
    one.recv(100)
    print("client: end")
except ConnectionResetError:
    print("client: reset")
one = dial()
one.recv(2)
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
one.close()
one = dial()
sent, received = random.Random(7).randbytes(20_000_000), hashlib.sha256()
def send():
    one.sendall(sent)
    one.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
while part := one.recv(65536):
    received.update(part)
print("client:", received.hexdigest()[:16], hashlib.sha256(sent).hexdigest()[:16])
END
start python3 server.py >server.out; until_true [ -e server.ready ]
"#;

#[test]
fn streams_between_hosts_end_and_are_reset_as_without_a_link() {
    for across in [TCP, MACHINE] {
        let said = network(across)
            .ok(&format!("{STREAMS}\nlinked python3 client.py 2>/dev/null\ncat server.out"));
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(
            lines[..4],
            ["('10.9.8.7', 8090)", "b'all of 100000'", "b'before the reset'", "client: reset",],
            "{said}"
        );
        let digest = lines[4].strip_prefix("client: ").unwrap();
        let (received, sent) = digest.split_once(' ').unwrap();
        assert_eq!(received, sent, "{said}");
        assert_eq!(lines[5..], ["server: reset", &format!("server: {sent}")], "{said}");
    }
}

#[test]
fn datagrams_pass_between_hosts_with_their_errors() {
    for across in [TCP, MACHINE] {
        let said = network(across).ok(DATAGRAMS);
        assert_eq!(said, "b'sent back'\nConnectionRefusedError\n");
    }
}

#[test]
fn clients_of_the_other_host_reach_a_server_and_it_sees_their_addresses() {
    for across in [TCP, MACHINE] {
        let rules = "[[rule]]\nname = \"in\"\ndirection = \"inbound\"\n\
             listen = \"10.9.8.7:8099\"\nlocal-ports = 80\npermit = true\n";
        let said = network(across).with_rules(rules).ok(r#"
            ip addr add 10.9.8.99/32 dev lo
            curl -s -o /dev/null http://10.9.8.7:8099/; echo "before $?"
            linked python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>served & background+=($!)
            until_true curl -s -o /dev/null --interface 10.9.8.99 http://10.9.8.7:8099/
            grep -o '^10.9.8.99' served | head -1
            kill -9 $FAR; wait $FAR
            curl -s -o /dev/null http://10.9.8.7:8099/; echo "lost $?"
            serve_far
            until_true curl -s -o /dev/null http://10.9.8.7:8099/; echo again
            kill -9 $SERVER; wait $SERVER
            is_refused() { curl -s -o /dev/null http://10.9.8.7:8099/; [ $? = 7 ]; }
            until_true is_refused; echo lost
            serve_near
            until_true curl -s -o /dev/null http://10.9.8.7:8099/; echo again
            kill -9 $FAR; wait $FAR; serve_far
            until_true curl -s -o /dev/null http://10.9.8.7:8099/; echo again
            control=$(ls -d $TMPDIR/tacit-run-*/agent.sock)
            ordinary ./tacit restart --control $control >/dev/null
            until_true curl -s -o /dev/null http://10.9.8.7:8099/; echo restarted"#);
        let again = "lost 7\nagain\nlost\nagain\nagain\nrestarted\n";
        assert_eq!(said, format!("before 7\n10.9.8.99\n{again}"));
    }
}

#[test]
fn nothing_is_in_clear_between_hosts() {
    let said = network(TCP).ok(r#"
        cat >tap.py <<'END'
import signal, socket, sys
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.bind(("far0", 0))
tap.settimeout(0.2)
seen, over = bytearray(), []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
open("tap.ready", "w").close()
while not over:
    try:
        seen += tap.recv(65536)
    except (TimeoutError, InterruptedError):
        pass
counts = [seen.count(word) for word in (b"MARKED", b"clear.example")]
open("tap.out", "w").write(f"{len(seen) > 20000} {counts}")
END
        python3 tap.py & TAP=$!; until_true [ -e tap.ready ]
        for number in $(seq 4000); do echo -n MARKED; done >marked
        linked curl -sS http://clear.example:8080/marked >received 2>/dev/null
        cmp marked received && echo received
        kill $TAP; wait $TAP; cat tap.out"#);
    assert_eq!(said, "received\nTrue [0, 0]");
}

#[test]
fn a_certificate_of_another_authority_gets_no_socket_of_a_link() {
    let said = network(TCP).ok(r#"
        kill $SERVER; wait $SERVER
        sed -i "s,$PKI/guest,$TMPDIR/others/stranger," near.link.toml
        serve_near
        linked true 2>told; echo $?
        until_true grep -q link-handshake-failed far.log; echo logged
        far_state 'len(link["runs"])'
        # Without TLS, a peer gets no answer.
        near python3 - <<'END'
import socket
stream = socket.create_connection(("192.168.78.1", 7443))
stream.sendall(b"\x01\x00\x08\"status\"")
stream.settimeout(20)
print(b"status" in stream.recv(1000))
END
    "#);
    assert_eq!(said, "125\nlogged\n0\nFalse\n");
}

#[test]
fn a_link_between_hosts_that_is_lost_is_reported_and_restored() {
    for across in [TCP, MACHINE] {
        let said = network(across).ok(r#"
            cat >loop.sh <<'END'
code() { curl -s -m 20 -o /dev/null -w '%{http_code}' http://10.9.8.7:8080/; }
python3 -c '
import socket
held = socket.create_connection(("10.9.8.7", 8080))
open("held", "w").close()
try:
    print("held: end", held.recv(1))
except ConnectionResetError:
    print("held: reset")' >>seen &
[ $(code) = 200 ] && echo served >>seen
until [ -e killed ]; do sleep 0.05; done
wait; until [ $(code) = 000 ]; do sleep 0.05; done; echo refused >>seen
touch refused
until [ $(code) = 200 ]; do sleep 0.05; done; echo served >>seen
END
            touch seen; chmod 666 seen
            linked bash loop.sh 2>run.log & run=$!
            until_true grep -q served seen; until_true [ -e held ]
            kill -9 $FAR; touch killed
            until_true [ -e refused ]
            serve_far; wait $run; cat seen
            until_true grep -q link-lost run.log
            grep -o 'link-lost' run.log
            until_true grep -q link-sockets-lost near.log
            grep -o 'link-sockets-lost.*sockets=[0-9]*' near.log | grep -o 'sockets=.*'"#);
        assert_eq!(said, "served\nheld: reset\nrefused\nserved\nlink-lost\nsockets=1\n");
    }
}

#[test]
fn nothing_of_a_killed_run_or_server_is_left_on_the_other_host() {
    let said = network(TCP).ok(r#"
        before=$(descriptors)
        cat >hold.py <<'END'
import os, socket, time
held = [socket.create_connection(("10.9.8.7", 8080)) for one in range(5)]
open("held", "w").close()
while not os.path.exists("done"):
    time.sleep(0.05)
END
        linked python3 hold.py 2>/dev/null & run=$!
        until_true [ -e held ]
        state 'link["sockets"], len(link["runs"])'; far_state 'link["sockets"], len(link["runs"])'
        kill -9 $(state 'link["runs"][0]["pid"]')
        until_true idle
        [ $(descriptors) = $before ] && echo same
        touch done; wait $run; rm done held
        linked python3 hold.py 2>/dev/null & run=$!
        until_true [ -e held ]; MIRROR=$(pgrep -x tacit-mirror -P $SERVER)
        kill -9 $SERVER
        empty() { [ "$(far_state 'link["sockets"], len(link["runs"])')" = "0 0" ]; }
        until_true empty; echo empty
        touch done; wait $run
        until_true [ ! -e /proc/$MIRROR ]; echo ended"#);
    assert_eq!(said, "5 1\n5 1\nsame\nempty\nended\n");
}

#[test]
fn more_sockets_than_the_other_host_allows_are_refused() {
    let said = network(TCP).ok(r#"
        linked python3 -c '
import socket
held, refused = [], 0
for one in range(20):
    try:
        held.append(socket.create_connection(("10.9.8.7", 8080)))
    except ConnectionRefusedError:
        refused += 1
print(len(held), refused)' 2>/dev/null
        until_true idle"#);
    assert_eq!(said, "16 4\n");
}

#[test]
fn a_hostile_peer_of_another_kernel_disturbs_no_other() {
    let said = network(MACHINE).ok(r#"
        before=$(descriptors)
        ordinary python3 "$PEERS/framed_peer.py" $FAR_AT
        until_true idle
        [ $(descriptors) = $before ] && echo same
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/"#);
    assert_eq!(said, "done\nsame\n200\n");
}

#[test]
fn the_first_process_of_a_container_runs_a_program_through_a_link() {
    let said = network(MACHINE).with_root().ok(r#"
        kill $SERVER $FAR; wait $SERVER $FAR
        { cat run.toml; printf '[link.near]\nlisten = "%s"\n%s\n' $AT "$BACK"; } >init.toml
        cat >inside.sh <<'END'
(sleep 0.2 & exec true)
sleep 0.5
curl -sS -o /dev/null -w '%{http_code}\n' http://tls.example:8080/
ps -A -o stat= | grep -c Z
exit 3
END
        # Without the right to end a machine, it exits with the status of its program.
        near timeout 60 unshare --pid --fork --mount-proc setpriv --bounding-set -sys_boot \
            ./tacit link init --policy init.toml near bash inside.sh 2>init.log & INIT=$!
        until_true grep -q 'waiting for the other side' init.log
        serve_far
        wait $INIT; echo "status $?"
        until_true far_info; far_state 'link["sockets"], len(link["runs"])'
        ./tacit link init near true 2>refused; echo "status $?"
        grep -o 'error.not-first-process.' refused"#);
    assert_eq!(said, "200\n0\nstatus 3\n0 0\nstatus 64\nerror[not-first-process]\n");
}

#[test]
fn displays_of_links_between_hosts_fit_their_schemas() {
    let said = network(TCP).ok(r#"
        cat far.json near.json | tr -d '\n' | sed 's/}{/}\n{/'; echo
        kill $SERVER; wait $SERVER
        sed -i /near.sock/d near.link.toml; AT=near; serve_near
        ordinary ./tacit link list --json | tr -d '\n'; echo
        ordinary ./tacit link status --json | tr -d '\n'; echo
        ordinary ./tacit link info far | grep listen
        ordinary ./tacit link info near | grep connect"#);
    let lines: Vec<_> = said.lines().collect();
    assert_fits("link-info", lines[0]);
    assert_fits("link-info", lines[1]);
    assert_fits("link-list", lines[2]);
    assert_fits("link-status", lines[3]);
    let list: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    let [far, near] = [0, 1].map(|number| &list["links"][number]);
    assert_eq!((&far["tcp"], &near["connect"]), (&lines[4][10..].into(), &lines[5][10..].into()));
    assert_eq!(
        lines[4..],
        ["listen    192.168.78.1:7443", "connect   192.168.78.1:7443"],
        "{said}"
    );
}
