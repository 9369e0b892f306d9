//! Tests links between hosts when one side is hostile. The hostile side is a host without a
//! certificate, or a server that violates the protocol.

use crate::link_scripts::{FULL, RIGHTS};
use crate::links_of_hosts::{MACHINE, TCP, network};

/// `hostile HOW`: a hostile server that has the network. `serve_both` starts a near server with the
/// links `a` to this server and `b` to the true one. `at PORT POLICY` writes a policy that listens
/// at a port of the other side.
pub const HOSTILE: &str = r#"
hostile() {
    start_ordinary python3 "$PEERS/hostile_far.py" $TMPDIR/hostile.sock $TMPDIR/hostile.out $1
    until_true [ -S $TMPDIR/hostile.sock ]
}
serve_both() {
    cat >both.toml <<END
version = 1
[link.a]
listen = "$TMPDIR/a.sock"
connect = "unix:$TMPDIR/hostile.sock"
sockets = 8
[link.b]
listen = "$TMPDIR/b.sock"
connect = "unix:$TMPDIR/far.sock"
END
    start_near both.toml 2>>near.log; BOTH=$!
    until_true [ -S $TMPDIR/b.sock ]
}
at() {
    cat >$2 <<END
version = 1
[[rule]]
name = "in"
direction = "inbound"
listen = "10.9.8.7:$1"
local-ports = 80
permit = true
END
}
by() {
    near $USER_OF_RUNS timeout 60 \
        ./tacit run --link $TMPDIR/$1.sock --policy $2 --log stderr -- "${@:3}"
}
"#;

#[test]
fn idle_sockets_of_a_host_do_not_keep_others_from_a_link() {
    let said = network(TCP).ok(r#"
        start python3 "$PEERS/idle_sockets.py" 192.168.78.1 7443 1500
        until_true [ -e idle.ready ]
        for one in 1 2 3; do
            linked curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/
        done
        until_true grep -q 'peer=192.168.78.1:.*in favour' far.log
        grep -o 'peer=192.168.78.1:.*in favour' far.log | head -1 | grep -o favour"#);
    assert_eq!(said, "200\n200\n200\nfavour\n");
}

#[test]
fn a_hostile_host_gets_no_clients_to_runs_of_other_links() {
    let said = network(MACHINE).ok(&format!(
        "{HOSTILE}\n{}",
        r#"
        hostile arrive; serve_both; at 8099 b.toml; at 8098 a.toml
        by b b.toml python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>served &
        background+=($!)
        until_true curl -s -o /dev/null http://10.9.8.7:8099/; cp served before
        by a a.toml python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>a.log & background+=($!)
        until_true [ -s $TMPDIR/hostile.out ]; sleep 1
        # 8 sockets, of which one is bound.
        cat $TMPDIR/hostile.out
        ordinary ./tacit link info $TMPDIR/a.sock | grep sockets
        curl -s -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8099/
        grep -c 10.66 served || true"#
    ));
    assert_eq!(said, "7 True\nsockets   8 of 8\n200\n0\n");
}

#[test]
fn the_same_address_on_two_hosts_does_not_collide() {
    let said = network(MACHINE).ok(&format!(
        "{HOSTILE}\n{}",
        r#"
        hostile none; serve_both; at 8099 in.toml
        by b in.toml python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>served &
        background+=($!)
        until_true curl -s -o /dev/null http://10.9.8.7:8099/
        by a in.toml echo ran 2>/dev/null"#
    ));
    assert_eq!(said, "ran\n");
}

#[test]
fn a_host_that_binds_another_address_is_refused() {
    let said = network(MACHINE).ok(&format!(
        "{HOSTILE}\n{}",
        r#"
        hostile misplace; serve_both; at 8098 a.toml
        by a a.toml echo ran 2>told; echo $?
        grep -o 'but has bound 10.9.8.7:8099 instead' told |
            head -1"#
    ));
    assert_eq!(said, "125\nbut has bound 10.9.8.7:8099 instead\n");
}

#[test]
fn texts_of_another_host_do_not_control_the_terminal() {
    let said = network(MACHINE).ok(&format!(
        "{HOSTILE}\n{}",
        r#"
        hostile refuse; serve_both; at 8098 a.toml
        by a a.toml echo ran 2>told; echo $?
        grep -c -F -e $'\x1b' -e $'\x07' -e $'\xe2\x80\xae' told || true
        grep -o -F 'refuses: no\u{1b}]0;owned\u{7}\u{1b}[2J\nroot@host# ' told
        [ $(wc -c <told) -lt 1000 ] && echo short"#
    ));
    assert_eq!(said, "125\n0\nrefuses: no\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\nroot@host# \nshort\n");
}

#[test]
fn users_of_one_guest_cannot_guess_sessions_and_clients_of_each_other() {
    let said = network(MACHINE).ok(r#"
        ordinary python3 - "$PEERS" $FAR_AT <<'END'
import socket, sys, time
sys.argv, peers = ["", sys.argv[2]], sys.argv[1]
sys.path.insert(0, peers)
from link_wire import Wire, framed_answer as answer, message, open_request
wire = Wire(message, answer)
control, session = wire.hello("alice")
listener = wire.send(open_request(session, 8099, "bound"))
assert "connected" in answer(listener)
listener.sendall(message("listen"))
assert answer(listener) == "done"
client = socket.create_connection(("10.9.8.7", 8099))
ticket = answer(listener)["arrived"]["ticket"]
for guess in range(1, 9):
    for other in range(1, 9):
        assert "refused" in wire.ask({"take": {"session": guess, "ticket": other}})
    assert "refused" in wire.ask(open_request(guess))
assert "connected" in wire.ask({"take": {"session": session, "ticket": ticket}})
print(session > 1 << 32, ticket > 1 << 32)
stream = wire.send({"hello": {"version": 1, "run": "bob"}})
instance = answer(stream)["welcome"]["instance"]
print(abs(instance - time.time_ns()) > 10**13)
END
        far_info; until_true idle"#);
    assert_eq!(said, "True True\nTrue\n");
}

#[test]
fn the_memory_of_the_server_of_links_is_hidden() {
    let said = network(MACHINE).ok(r#"
        ordinary cat /proc/$FAR/comm
        ordinary cat /proc/$FAR/maps 2>&1 | grep -o 'Permission denied'"#);
    assert_eq!(said, "tacit\nPermission denied\n");
}

/// Holds a connection, and reports its end.
const HELD: &str = r#"
cat >held.py <<'END'
import socket
held = socket.create_connection(("10.9.8.7", 8080))
open("held", "w").close()
try:
    print("end", held.recv(1))
except ConnectionResetError:
    print("reset")
END
linked python3 held.py >seen 2>run.log & run=$!
until_true [ -e held ]
"#;

#[test]
fn a_new_policy_of_a_link_closes_what_it_denies() {
    let said = network(TCP).ok(&format!(
        "{HELD}\n{}",
        r#"
        sed -i '/^name = "out"/,$s/^permit = true/deny = true/' far.link.toml
        kill -HUP $FAR; wait $run; cat seen
        until_true grep -q link-closed far.log
        grep -o 'link-closed.*' far.log | grep -o 'rule `out` of the link far denies tcp'"#
    ));
    assert_eq!(said, "reset\nrule `out` of the link far denies tcp\n");
}

#[test]
fn a_host_that_is_no_longer_trusted_loses_its_sessions() {
    let said = network(TCP).ok(&format!(
        "{HELD}\n{}",
        r#"
        sed -i "s,^ca = .*,ca = \"$TMPDIR/others/ca.pem\"," far.link.toml
        kill -HUP $FAR; wait $run; cat seen
        until_true grep -q link-closed far.log
        grep -o 'link-closed.*' far.log | grep -o 'the certificate of the remote host.*trusted'
        until_true idle"#
    ));
    assert_eq!(said, "reset\nthe certificate of the remote host is no longer trusted\n");
}

#[test]
fn a_socket_of_another_kernel_that_is_denied_while_it_is_opened_is_not_connected() {
    let said = network(MACHINE).ok(&format!(
        "{FULL}\n{}",
        r#"
        cat >ask.py <<'END'
import sys
sys.argv, peers = ["", sys.argv[2]], sys.argv[1]
sys.path.insert(0, peers)
from link_wire import Wire, framed_answer, message, open_request
wire = Wire(message, framed_answer)
control, session = wire.hello("slow")
stream = wire.send(open_request(session, 8090))
stream.settimeout(60)
print(framed_answer(stream))
END
        ordinary python3 ask.py "$PEERS" $FAR_AT >seen & ask=$!
        asked() { [ "$(far_state 'link["requests"]')" = 1 ]; }
        until_true asked
        sed -i '/^name = "out"/,/^permit/s/^permit = true/deny = true/' far.link.toml
        kill -HUP $FAR; until_true grep -q link-reloaded far.log; touch accept
        wait $ask; cat seen
        until_true grep -q link-closed far.log
        grep -o 'link-closed.*' far.log | grep -o 'rule `out` of the link far denies tcp'"#
    ));
    assert_eq!(said, "None\nrule `out` of the link far denies tcp\n");
}

#[test]
fn a_host_that_was_revoked_after_its_handshake_gets_no_session() {
    let said = network(TCP).ok(r#"
        cat >raw.py <<'END'
import json, os, socket, ssl, struct, sys, time
pki = sys.argv[1]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(f"{pki}/ca.pem")
context.load_cert_chain(f"{pki}/guest.pem", f"{pki}/guest.key")
def dial():
    stream = socket.create_connection(("192.168.78.1", 7443), 10)
    return context.wrap_socket(stream, server_hostname="192.168.78.1")
def read(stream, size):
    received = b""
    while len(received) < size:
        part = stream.recv(size - len(received))
        if not part:
            return None
        received += part
    return received
def ask(stream, content):
    payload = json.dumps(content).encode()
    stream.sendall(struct.pack(">BH", 1, len(payload)) + payload)
    head = read(stream, 3)
    return json.loads(read(stream, struct.unpack(">BH", head)[1])) if head else None
hello = {"hello": {"version": 1, "run": "raw"}}
# The server has accepted the first stream when it answers on the second.
late, early = dial(), dial()
print("welcome" in ask(early, hello))
open("dialled", "w").close()
while not os.path.exists("revoked"):
    time.sleep(0.02)
print(ask(late, hello))
END
        near $USER_OF_RUNS python3 raw.py $PKI >seen & raw=$!
        until_true [ -e dialled ]
        sed -i "s,^ca = .*,ca = \"$TMPDIR/others/ca.pem\"," far.link.toml
        kill -HUP $FAR; until_true grep -q link-reloaded far.log; touch revoked
        wait $raw; cat seen
        until_true grep -q 'link-refused.*run=raw' far.log
        grep -o 'link-refused.*' far.log | grep -o 'run=raw.*trusted'"#);
    assert_eq!(
        said,
        "True\n{'refused': 'the certificate of the remote host is no longer trusted'}\n\
         run=raw reason=\"the certificate of the remote host is no longer trusted\n"
    );
}

#[test]
fn a_second_server_of_a_link_reports_the_first() {
    let said = network(TCP).ok(r#"
        ordinary ./tacit link serve --policy far.link.toml 2>told; echo $?
        grep -o "process $FAR (tacit) already listens on this socket" told | sed "s/$FAR/FAR/"
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/ 2>/dev/null"#);
    assert_eq!(said, "1\nprocess FAR (tacit) already listens on this socket\n200\n");
}

#[test]
fn a_server_reports_limits_that_the_process_of_its_namespace_does_not_have() {
    let said = network(MACHINE).ok(r#"
        kill $SERVER; wait $SERVER
        cat >without.py <<'END'
# Starts a program on a kernel without Landlock: the first of its system calls does not exist.
import ctypes, errno, os, struct, sys
LANDLOCK_CREATE_RULESET = 444
libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("HBBI", *one) for one in [
    (0x20, 0, 0, 0),
    (0x15, 0, 1, LANDLOCK_CREATE_RULESET),
    (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
    (0x06, 0, 0, 0x7FFF0000),
])
instructions = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(instructions))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
END
        start nsenter --net --target $NEAR $USER_OF_RUNS python3 without.py \
            ./tacit link serve --policy near.link.toml 2>>near.log; SERVER=$!
        until_true info
        until_true grep -q 'part=mirror-.* next' near.log
        grep -o 'part=mirror-.* next' near.log
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/ 2>/dev/null"#);
    assert_eq!(said, "part=mirror-files error=\"this kernel has no Landlock\" next\n200\n");
}

#[test]
fn changed_files_of_a_link_take_effect_without_a_signal() {
    let said = network(TCP).ok(&format!(
        "{}\n{HELD}\n{}",
        r#"
        cp $PKI/ca.pem $PKI/guests.pem; chmod 644 $PKI/guests.pem
        sed -i '/^.trust.guests/,/^ca/s,^ca = .*,ca = "'$PKI'/guests.pem",' far.link.toml
        kill $FAR; wait $FAR; serve_far
        served() { linked curl -s -o /dev/null http://10.9.8.7:8080/ 2>/dev/null; }
        until_true served"#,
        r#"
        cp $PKI/guests.pem before.pem
        echo broken >$PKI/guests.pem; until_true grep -q file-refused far.log
        served && echo still
        cp $TMPDIR/others/ca.pem $PKI/guests.pem
        wait $run; cat seen
        until_true grep -q link-closed far.log; until_true grep -q files-reloaded far.log
        grep -o 'files-reloaded' far.log
        grep -o 'link-closed.*' far.log | grep -o 'the certificate of the remote host.*trusted'
        served || echo rejected
        cp before.pem $PKI/guests.pem
        until_true served; echo again"#
    ));
    assert_eq!(
        said,
        "still\nreset\nfiles-reloaded\nthe certificate of the remote host is no longer trusted\n\
         rejected\nagain\n"
    );
}

#[test]
fn one_host_leaves_sockets_of_a_link_for_others() {
    let said = network(TCP).ok(r#"
        ordinary ./tacit ca issue --dir $PKI other --client >/dev/null
        cat >>near.link.toml <<END
[identity.other]
cert = "$PKI/other.pem"
key = "$PKI/other.key"
[link.other]
listen = "$TMPDIR/other.sock"
connect = "192.168.78.1:7443"
tls = { identity = "other", trust = "hosts" }
END
        sed -i 's/^sockets = 16/&\nsockets-per-host = 4/' far.link.toml
        kill $FAR $SERVER; wait $FAR $SERVER; serve_far; serve_near
        cat >hold.py <<'END'
import os, socket, time
held, refused = [], 0
for one in range(20):
    try:
        held.append(socket.create_connection(("10.9.8.7", 8080)))
    except ConnectionRefusedError:
        refused += 1
print(len(held), refused)
open("held", "w").close()
while not os.path.exists("done"):
    time.sleep(0.05)
END
        linked python3 hold.py 2>/dev/null & run=$!
        until_true [ -e held ]
        near $USER_OF_RUNS timeout 60 \
            ./tacit run --link $TMPDIR/other.sock --policy run.toml --log stderr -- \
            curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/ 2>/dev/null
        touch done; wait $run
        until_true grep -q 'already has 4 open sockets' far.log
        grep -o 'other side of the link already has 4 open sockets' far.log | head -1"#);
    assert_eq!(said, "4 16\n200\nother side of the link already has 4 open sockets\n");
}

#[test]
fn servers_of_links_keep_only_the_capabilities_that_they_need() {
    let said = network(MACHINE).with_root().with_setup(RIGHTS).ok(r#"
        served() { linked curl -s -o /dev/null http://10.9.8.7:8080/ 2>/dev/null; }
        until_true served
        python3 rights.py $FAR $SERVER
        grep '^Seccomp:' /proc/$(pgrep -x tacit-mirror -P $SERVER)/status"#);
    let lines: Vec<_> = said.lines().collect();
    let (mirror, threads) = lines.split_last().unwrap();
    assert!(threads.len() >= 4 && threads.iter().all(|thread| *thread == "2 1 0"), "{said}");
    assert_eq!(*mirror, "Seccomp:\t2");
}

#[test]
fn the_signer_of_a_server_of_links_starts_again_in_its_sandbox() {
    let said = network(TCP).ok(r#"
        served() { linked curl -s -o /dev/null http://10.9.8.7:8080/ 2>/dev/null; }
        until_true served; echo served
        first=$(pgrep -P $FAR); kill -9 $first
        until_true grep -q signer-ended far.log
        until_true served; echo again
        # A resumed session needs no signature, so it may work before.
        another() { now=$(pgrep -P $FAR) && [ "$now" != $first ]; }
        until_true another; grep '^Seccomp:' /proc/$now/status"#);
    assert_eq!(said, "served\nagain\nSeccomp:\t2\n");
}
