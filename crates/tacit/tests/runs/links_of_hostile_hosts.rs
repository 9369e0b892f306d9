//! Tests links between kernels with a hostile other side: hosts without a certificate, and servers
//! that do not keep to the protocol.

use crate::links_of_hosts::{MACHINE, TCP, network};

/// `hostile HOW`: a hostile server that has the network. `serve_both` starts a near server with the
/// links `a` to this server and `b` to the true one. `at PORT POLICY` writes a policy that listens
/// at a port of the other side.
const HOSTILE: &str = r#"
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
    start nsenter --net --target $NEAR $USER_OF_RUNS ./tacit link serve --policy both.toml \
        2>>near.log
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
        grep -o 'peer=192.168.78.1:.*permits for handshakes' far.log | head -1 | grep -o permits"#);
    assert_eq!(said, "200\n200\n200\npermits\n");
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
        grep -o 'the other server has bound 10.9.8.7:8099 instead of 10.9.8.7:8098' told | head -1"#
    ));
    assert_eq!(said, "125\nthe other server has bound 10.9.8.7:8099 instead of 10.9.8.7:8098\n");
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
