//! Tests `tacit run --link` in an empty network namespace. `tacit link serve` runs outside of this
//! namespace. Programs connect, resolve names and listen through the network of the server, if the
//! server's policy permits.

use crate::fits::assert_fits;
use crate::link_scripts::{CONNECT, DATAGRAMS, FULL, RIGHTS, RULES};
use crate::network::Network;

/// A server of links, and `linked CMD`: a run in a namespace without a network that uses it.
pub const LINK: &str = r#"
ip route add unreachable 10.9.9.0/24
cat >link.toml <<END
version = 1
[link.guest]
listen = "$TMPDIR/guest.sock"
sockets = 16
[link.named]
[[rule]]
name = "never"
link = "guest"
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 8083
deny = true
[[rule]]
name = "out"
link = ["guest", "named"]
direction = "outbound"
remote = ["10.9.8.7", "10.9.8.8", "10.9.9.9", "2001:db8::7"]
remote-ports = "8080-8090"
permit = true
[[rule]]
name = "datagrams"
link = "guest"
direction = "outbound"
protocol = "udp"
remote = "10.9.8.7"
permit = true
[[rule]]
name = "in"
link = "guest"
direction = "inbound"
local = "10.9.8.7"
local-ports = 8099
permit = true
END
AT=$TMPDIR/guest.sock OPTION_LINK="--link $TMPDIR/guest.sock"
serve() {
    start_ordinary ./tacit link serve --policy link.toml 2>>link.log; LINK=$!
    until_true info
}
info() { ordinary ./tacit link info $AT --json >info.json 2>/dev/null; }
state() { info; python3 -c "import json; link = json.load(open('info.json')); print($1)"; }
descriptors() { ls /proc/$LINK/fd | wc -l; }
# Whether the link has no run and no socket.
idle() { [ "$(state 'link["sockets"], len(link["runs"])')" = "0 0" ]; }
serve
start unshare -n sleep 600; NEAR=$!
until_true grep -q sleep /proc/$NEAR/comm
linked() {
    nsenter --net --target $NEAR $USER_OF_RUNS timeout 60 \
        ./tacit run $OPTION_LINK --policy run.toml --log stderr $RUN_OPTIONS -- "$@"
}
start python3 -m http.server --bind 10.9.8.7 8080 >/dev/null 2>&1
await 8080
"#;

fn network() -> Network {
    Network::new(&[8080], LINK).with_rules(RULES)
}

#[test]
fn a_program_without_a_network_uses_the_sockets_of_a_link() {
    for network in network().for_each_user() {
        let said = network.ok(r#"
            nsenter --net --target $NEAR ip -o link | wc -l
            nsenter --net --target $NEAR curl -s -m 5 http://10.9.8.7:8080/; echo "direct $?"
            linked curl -sS -o /dev/null -w '%{http_code} %{scheme}\n' http://10.9.8.7:8080/
            linked curl -sS -o /dev/null -w '%{http_code} %{scheme}\n' http://clear.example:8080/
            linked curl -sS -o /dev/null -w '%{http_code} %{scheme}\n' http://tls.example:8080/
            until_true idle; state 'link["resolvers"]'"#);
        assert_eq!(said, "1\ndirect 7\n200 HTTP\n200 HTTP\n200 HTTP\n['127.0.0.1:53']\n", "{said}");
    }
}

#[test]
fn names_of_addresses_and_the_host_of_the_other_side_are_known_in_a_run() {
    let rules = "[[rule]]\nname = \"host\"\ndirection = \"outbound\"\n\
                 remote = \"gateway.example\"\nremote-ports = 8081\npermit = true\n";
    let said = network().with_rules(rules).ok(r#"
        kill $LINK; until_true [ ! -e $AT ]
        sed -i 's/^remote = \["10.9.8.7", /&"192.168.77.1", /' link.toml
        unshare --uts bash -c 'hostname gateway.example; exec "$@"' - $USER_OF_RUNS \
            ./tacit link serve --policy link.toml 2>>link.log & LINK=$!
        background+=($LINK); until_true info
        start python3 -m http.server --bind 192.168.77.1 8081 >/dev/null 2>&1
        until_true curl -s -o /dev/null http://192.168.77.1:8081/
        cat >names.py <<'END'
import socket
print(sorted({found[4][0] for found in socket.getaddrinfo("gateway.example", 8081)}))
for address in ("192.168.77.1", "10.9.8.7"):
    print(socket.gethostbyaddr(address)[0])
END
        linked python3 names.py 2>/dev/null
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://gateway.example:8081/
        ordinary ./tacit link status $AT | grep '^host\|^addresses'"#);
    let wanted = "['192.168.77.1']\ngateway.example\nclear.example\n200\n\
                  host      gateway.example\naddresses 192.168.77.1\n";
    assert_eq!(said, wanted, "{said}");
}

#[test]
fn connect_fails_through_a_link_with_the_error_of_the_other_side() {
    let said = network().ok(&format!(
        "{CONNECT}\nlinked python3 connect.py 10.9.8.7:8080 10.9.8.7:8081 10.9.9.9:8080 2>/dev/null"
    ));
    assert_eq!(
        said,
        "10.9.8.7:8080 connected\n10.9.8.7:8081 ECONNREFUSED\n10.9.9.9:8080 EHOSTUNREACH\n"
    );
}

#[test]
fn a_socket_that_a_new_policy_denies_while_it_is_opened_is_not_passed_on() {
    let said = network().ok(&format!(
        "{FULL}\n{CONNECT}\n{}",
        r#"
        sed -i 's/, 5)/, 60)/' connect.py
        RUN_OPTIONS="--path relay"
        linked python3 connect.py 10.9.8.7:8090 >seen 2>run.log & run=$!
        asked() { [ "$(state 'link["requests"]')" = 1 ]; }
        until_true asked
        sed -i '/^name = "out"/,/^permit/s/^permit = true/deny = true/' link.toml
        kill -HUP $LINK; until_true grep -q link-reloaded link.log; touch accept
        wait $run; cat seen
        until_true grep -q link-closed link.log
        grep -o 'link-closed.*' link.log | grep -o 'rule `out` of the link guest denies tcp'"#
    ));
    assert_eq!(said, "10.9.8.7:8090 ECONNREFUSED\nrule `out` of the link guest denies tcp\n");
}

#[test]
fn the_policy_of_the_other_side_decides_which_sockets_a_link_opens() {
    let said = network().ok(&format!(
        "for port in 8083 8095; do start python3 -m http.server --bind 10.9.8.7 $port >at.$port \
         2>&1; await $port; done\n\
         {CONNECT}\nlinked python3 connect.py 10.9.8.7:8083 2>/dev/null; sleep 1.1\n\
         linked python3 connect.py 10.9.8.7:8095 2>/dev/null\n\
         until_true grep -q 'reason=.no rule' link.log\n\
         grep -o 'reason=.*' link.log; grep -c GET at.8083 at.8095\n\
         sed -i 's/deny = true/permit = true/' link.toml; kill -HUP $LINK\n\
         until_true grep -q link-reloaded link.log\n\
         linked curl -sS -o /dev/null -w '%{{http_code}}\\n' http://10.9.8.7:8083/"
    ));
    assert_eq!(
        said,
        "10.9.8.7:8083 ECONNREFUSED\n10.9.8.7:8095 ECONNREFUSED\n\
         reason=\"rule `never` of the link guest denies tcp to 10.9.8.7:8083\"\n\
         reason=\"no rule of the link guest matches tcp to 10.9.8.7:8095\"\n\
         at.8083:0\nat.8095:0\n200\n"
    );
}

#[test]
fn datagrams_pass_through_a_link_with_their_errors() {
    let said = network().ok(DATAGRAMS);
    assert_eq!(said, "b'sent back'\nConnectionRefusedError\n");
}

#[test]
fn clients_outside_reach_a_server_behind_a_link_and_it_sees_their_addresses() {
    let rules = |listen: &str| {
        format!(
            "[[rule]]\nname = \"in\"\ndirection = \"inbound\"\nlisten = \"{listen}\"\n\
             local-ports = 80\npermit = true\n"
        )
    };
    let network = |listen: &str| Network::new(&[], LINK).with_rules(&rules(listen));
    let said = network("10.9.8.7:8099").ok(r#"
        ip addr add 10.9.8.99/32 dev lo
        linked python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>served & background+=($!)
        until_true curl -s -o /dev/null --interface 10.9.8.99 http://10.9.8.7:8099/
        grep -o '^10.9.8.99' served | head -1"#);
    assert_eq!(said, "10.9.8.99\n");
    let said = network("10.9.8.7:8098")
        .ok("linked true 2>told; echo $?; grep -c 'no rule of the link' told");
    assert!(said.starts_with("125\n"), "{said}");
}

#[test]
fn sockets_of_a_link_with_a_local_address_have_no_other() {
    let said = network().ok(r#"
        ip addr add 10.9.8.99/32 dev lo
        cat >peers.py <<'END'
import socket, threading
listener = socket.create_server(("10.9.8.7", 8084))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.9.8.7", 8084))
def answer():
    while True:
        _, peer = datagrams.recvfrom(100)
        datagrams.sendto(peer[0].encode(), peer)
threading.Thread(target=answer, daemon=True).start()
open("peers.ready", "w").close()
while True:
    one, peer = listener.accept()
    one.sendall(peer[0].encode())
    one.close()
END
        start python3 peers.py; until_true [ -e peers.ready ]
        cat >ask.py <<'END'
import socket
one = socket.create_connection(("10.9.8.7", 8084), 5)
print(one.recv(100).decode())
for is_connected in (True, False):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(5)
    if is_connected:
        one.connect(("10.9.8.7", 8084))
        one.send(b"who")
    else:
        one.sendto(b"who", ("10.9.8.7", 8084))
    print(one.recv(100).decode())
END
        linked python3 ask.py 2>/dev/null
        sed -i 's/^sockets = 16/&\nlocal = "10.9.8.99"/' link.toml
        kill -HUP $LINK; until_true grep -q link-reloaded link.log
        linked python3 ask.py 2>/dev/null
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://clear.example:8080/
        ordinary ./tacit link status $AT | grep ^addresses
        cat >>run.toml <<'END'
[[rule]]
name = "in"
direction = "inbound"
listen = "10.9.8.7:8099"
local-ports = 80
permit = true
END
        linked true 2>told; echo $?
        grep -o 'sockets of the link guest cannot listen at 10.9.8.7:8099' told | head -1"#);
    let own = "10.9.8.7\n".repeat(3) + &"10.9.8.99\n".repeat(3);
    assert_eq!(
        said,
        own + "200\naddresses 10.9.8.99\n125\n\
               sockets of the link guest cannot listen at 10.9.8.7:8099\n"
    );
}

#[test]
fn the_server_of_a_link_keeps_only_the_rights_that_it_needs() {
    let said = network().with_setup(RIGHTS).ok(r#"
        python3 rights.py $LINK
        ordinary ./tacit link info $AT | sed -n 's/^\(sandbox   [^:]*: [a-z]*\).*/\1/p'
        ordinary ./tacit link info $AT | grep -c '^files-max [1-9]'
        other=$(mktemp -d /var/tmp/linkXXXXXX); cp link.toml $other; chmod -R a+rX $other
        mv link.toml kept.toml; ln -s $other/link.toml link.toml
        kill -HUP $LINK; until_true grep -q link-reload-failed link.log
        grep link-reload-failed link.log | grep -o 'Permission denied'
        rm -r $other link.toml; mv kept.toml link.toml
        kill -HUP $LINK; until_true grep -q link-reloaded link.log
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://clear.example:8080/
        kill $LINK; until_true [ ! -e $AT ]"#);
    let (threads, rest) = said.split_once("sandbox").unwrap();
    assert!(threads.lines().count() >= 2, "{said}");
    assert!(threads.lines().all(|thread| thread == "2 1 0"), "{said}");
    assert!(rest.starts_with("   files: read\nsandbox   system calls: the\n"), "{said}");
    assert!(rest.ends_with("\n1\nPermission denied\n200\n"), "{said}");
}

#[test]
fn a_run_in_another_pid_namespace_uses_a_link() {
    let said = network().ok(r#"
        chmod 777 .
        kill $LINK; until_true [ ! -e $AT ]
        start unshare --pid --fork --kill-child \
            $USER_OF_RUNS ./tacit link serve --policy link.toml guest 2>>link.log
        until_true info
        linked bash -c '
            curl -sS -o /dev/null -w "%{http_code}\n" http://clear.example:8080/
            touch served; until [ -e shown ]; do sleep 0.05; done' 2>run.log & run=$!
        until_true [ -e served ]
        state 'link["runs"][0]["pid"]'
        touch shown; wait $run
        # A process that does not see that of the server.
        unshare --pid --fork --kill-child $USER_OF_RUNS ./tacit link info $AT | grep ^link
        # unshare does not end by SIGTERM.
        ordinary ./tacit link stop $AT"#);
    assert_eq!(said, "200\n0\nlink      guest\n");
}

#[test]
fn a_link_that_ends_refuses_and_a_new_server_continues() {
    let said = network().ok(r#"
        cat >loop.sh <<'END'
code() { curl -s -o /dev/null -w '%{http_code}' http://10.9.8.7:8080/; }
[ $(code) = 200 ] && echo served >>seen
until [ -e killed ]; do sleep 0.05; done
until [ $(code) = 000 ]; do sleep 0.05; done; echo refused >>seen
touch refused
until [ $(code) = 200 ]; do sleep 0.05; done; echo served >>seen
END
        touch seen; chmod 666 seen; chmod 777 .
        linked bash loop.sh 2>run.log & run=$!
        until_true grep -q served seen
        kill -9 $LINK; touch killed
        until_true [ -e refused ]
        serve; wait $run; cat seen
        until_true grep -q link-lost run.log
        grep -o 'link-lost\|link-restored' run.log"#);
    assert_eq!(said, "served\nrefused\nserved\nlink-lost\n");
}

#[test]
fn nothing_of_a_killed_run_is_left_in_the_server_of_its_link() {
    let said = network().ok(r#"
        chmod 777 .
        before=$(descriptors)
        for RUN_OPTIONS in "--path relay" ""; do
        linked python3 -c '
import os, socket, time
held = [socket.create_connection(("10.9.8.7", 8080)) for one in range(5)]
open("held", "w").close()
while not os.path.exists("done"):
    time.sleep(0.05)' 2>/dev/null & run=$!
        until_true [ -e held ]
        state 'link["sockets"], len(link["runs"])'
        kill -9 $(state 'link["runs"][0]["pid"]')
        # The program has its sockets itself, and keeps them.
        [ -n "$RUN_OPTIONS" ] || touch done
        until_true idle
        [ $(descriptors) = $before ] && echo same
        touch done; wait $run
        rm done held
        done"#);
    assert_eq!(said, "5 1\nsame\n5 1\nsame\n");
}

#[test]
fn a_hostile_other_side_of_a_link_disturbs_no_other() {
    let said = network().ok(r#"
        before=$(descriptors)
        ordinary python3 "$PEERS/link_peer.py" $AT
        until_true idle
        [ $(descriptors) = $before ] && echo same
        linked curl -sS -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8080/"#);
    assert_eq!(said, "held 16 limited 24\nsame\n200\n");
}

#[test]
fn another_user_gets_no_socket_of_a_link() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let said = network().ok(r#"
        as() { setpriv --reuid=$1 --regid=$1 --clear-groups ./tacit link info $AT 2>&1; }
        as 54322 | grep -o 'Permission denied'
        chmod 666 $AT
        as 54322 | grep -o 'must run as user 54322'
        python3 - $AT <<'END'
import os, socket, sys
os.setuid(54322)
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
print(b"belongs to another user" in stream.recv(4096))
END
    "#);
    assert_eq!(said, "Permission denied\nmust run as user 54322\nTrue\n");
}

#[test]
fn the_name_of_a_link_finds_it_and_displays_fit_their_schemas() {
    let said = network().ok(r#"
        chmod 777 .
        export TACIT_LINK=named OPTION_LINK=
        linked bash -c '
            curl -sS -o /dev/null http://10.9.8.7:8080/; touch opened
            until [ -e shown ]; do sleep 0.05; done' 2>/dev/null & run=$!
        until_true [ -e opened ]
        ordinary ./tacit link list --json | tr -d '\n'; echo
        ordinary ./tacit link info named --json | tr -d '\n'; echo
        ordinary ./tacit link list | tail -1 | cut -c-5
        ordinary ./tacit link info nobody; echo $?
        touch shown; wait $run"#);
    let lines: Vec<_> = said.lines().collect();
    assert_fits("link-list", lines[0]);
    assert_fits("link-info", lines[1]);
    let info: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!((&info["name"], &info["runs"][0]["opened"]), (&"named".into(), &1.into()), "{said}");
    assert_eq!(lines[2..], ["named", "1"], "{said}");
}

#[test]
fn a_link_is_started_and_stopped_and_open_sockets_stay() {
    let said = network().ok(r#"
        chmod 777 .
        kill $LINK; until_true [ ! -e $AT ]
        ordinary ./tacit link start guest --policy nothing.toml --log none 2>&1 |
            grep -o 'error.link-not-started.: cannot start the link guest'
        ordinary ./tacit link start guest --policy link.toml --log none --json >started.json
        ordinary ./tacit link start guest --policy link.toml --log none 2>&1 |
            grep -o 'already serves the link'
        cat >transfer.py <<'END'
import os, socket, sys, time
held = socket.create_connection(("10.9.8.7", 8080), 5)
open("held", "w").close()
while not os.path.exists("stopped"):
    time.sleep(0.05)
held.sendall(b"GET / HTTP/1.0\r\n\r\n")
print(held.recv(12).decode())
try:
    socket.create_connection(("10.9.8.7", 8080), 5)
except OSError as error:
    print(error.strerror)
END
        linked python3 transfer.py 2>/dev/null >said & run=$!
        until_true [ -e held ]
        server=$(state 'link["pid"]')
        ordinary ./tacit link stop $AT
        until_true [ ! -e /proc/$server ]
        [ -e $AT ] || echo removed
        touch stopped; wait $run; cat said
        ordinary ./tacit link stop $AT 2>&1 | grep -o 'no link server answers'"#);
    let wanted = "error[link-not-started]: cannot start the link guest\nalready serves the link\n\
                  removed\nHTTP/1.0 200\nConnection refused\nno link server answers\n";
    assert_eq!(said, wanted, "{said}");
}

#[test]
fn status_tasks_and_trace_of_a_link_show_its_requests() {
    let said = network().ok(r#"
        chmod 777 .
        ordinary ./tacit link status $AT | sed -n '2p;4p'
        ordinary ./tacit link trace $AT on --json | tr -d '\n'; echo
        cat >two.py <<'END'
import os, socket, time
held = socket.create_connection(("10.9.8.7", 8080), 5)
try:
    socket.create_connection(("10.9.8.7", 8081), 5)
except OSError:
    open("held", "w").close()
while not os.path.exists("shown"):
    time.sleep(0.05)
END
        linked python3 two.py 2>/dev/null & run=$!
        until_true [ -e held ]
        ordinary ./tacit link status $AT --json | tr -d '\n'; echo
        ordinary ./tacit link info $AT --tasks --json | tr -d '\n'; echo
        ordinary ./tacit link info $AT --tasks | grep -c ' tcp .* 10.9.8.7:8080 '
        ordinary ./tacit link status $AT --metrics | grep '^tacit_link_[orf].*total'
        touch shown; wait $run
        ordinary ./tacit link trace $AT off
        until_true grep -q 'link-request.*address=10.9.8.7:8081' link.log
        grep link-request link.log | grep -o 'kind=.*'
        kill $LINK; until_true [ ! -e $AT ]
        ordinary ./tacit link status $AT | sed -n 2p"#);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].ends_with(" idle") && lines[1].starts_with("host "), "{said}");
    assert_fits("link-trace", lines[2]);
    assert_fits("link-status", lines[3]);
    assert_fits("link-info", lines[4]);
    let status: serde_json::Value = serde_json::from_str(lines[3]).unwrap();
    assert_eq!(status["links"][0]["condition"], "in-use", "{said}");
    let rest = [
        "1",
        "tacit_link_opened_total{link=\"guest\"} 1",
        "tacit_link_failed_total{link=\"guest\"} 1",
        "tacit_link_refused_total{link=\"guest\"} 0",
        "kind=tcp address=10.9.8.7:8080 result=handed",
        "kind=tcp address=10.9.8.7:8081 result=handed",
        "status    stopped",
    ];
    assert_eq!(lines[5..], rest, "{said}");
}
