//! Tests links whose server opens a socket and hands the socket to a program. The server and the
//! program have the same kernel. The program must behave as if it ran without tacit. The program
//! must reach only destinations that the policies of both sides permit. The output of `tacit show
//! connections` must contain the connections of the program.

use crate::handed::{ANSWERS, ASK, CLOSED};
use crate::link_scripts::RULES;
use crate::links::LINK;
use crate::network::Network;

/// An echo server at port 8081, and `shown`, which prints the path and the bytes of the connections
/// of the run.
const SHOWN: &str = r#"
chmod 777 .
start python3 $PEERS/echo.py 8081 $ALSO_AT; await 8081
control() { ls -d $TMPDIR/tacit-run-*/agent.sock; }
# A command for the agent, which serves only its own network.
near() { nsenter --net --target $NEAR $USER_OF_RUNS ./tacit "$@"; }
shown() {
    near show connections --json --control $(control) | python3 -c "
import json, sys
for c in json.load(sys.stdin)['connections']:
    print(c['path'], c['state'], c['bytes-in'], c['bytes-out'])"
}
"#;

/// Connects in many ways, keeps the last connection, and executes the lines of its input.
const HELD: &str = r#"
import errno, select, socket, sys
SO_NETNS_COOKIE = 71
def network(s):
    return s.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
inside = network(socket.socket())
def echo(s):
    s.setblocking(True)
    s.sendall(b"12345")
    return s.recv(5, socket.MSG_WAITALL) == b"12345"
def what(s):
    kind = "run" if network(s) == inside else "link"
    return kind, s.getsockname()[0], s.getpeername()[0], echo(s)
def later(address, family=socket.AF_INET):
    s = socket.socket(family)
    s.setblocking(False)
    poll = select.epoll()
    poll.register(s, select.EPOLLOUT | select.EPOLLET)
    error = s.connect_ex(address)
    if error == errno.EINPROGRESS:
        poll.poll(20)
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return s, errno.errorcode.get(error, error)
def failure(address):
    try:
        socket.create_connection(address, 20)
    except OSError as error:
        return errno.errorcode[error.errno]
print(*what(socket.create_connection(("10.9.8.7", 8081), 20)))
s, result = later(("10.9.8.7", 8081))
print(result, *what(s))
print(*what(socket.create_connection(("2001:db8::7", 8081), 20)))
s, result = later(("::ffff:10.9.8.7", 8081), socket.AF_INET6)
print(result, *what(s))
for address in (("10.9.8.7", 8082), ("10.9.9.9", 8080), ("10.9.8.7", 8095)):
    print(*address, failure(address), later(address)[1])
def new():
    s = socket.create_connection(("10.9.8.7", 8081), 20)
    return echo(s) and s
held = new()
s = None
"#;

/// `begin` starts the program, and prints what it prints until it waits for input.
const BEGIN: &str = r#"
begin() {
    linked python3 held.py <to >from 2>run.log 8>&- 9>&- & run=$!
    while read -t 60 -u 9 answer && [ "$answer" != ready ]; do echo "$answer"; done
}
"#;

fn held() -> Network {
    let program = format!("cat >held.py <<'END'\n{HELD}{ANSWERS}END\n");
    let setup = format!("{LINK}\nALSO_AT=2001:db8::7\n{SHOWN}\n{program}{ASK}{BEGIN}");
    Network::new(&[8080], &setup).with_rules(RULES).with_ipv6()
}

#[test]
fn a_program_has_the_socket_of_a_link_itself() {
    for network in held().for_each_user() {
        let said = network.ok(r#"
            begin
            # The agent takes note of the end of the other connections a little later.
            one() { [ "$(shown | wc -l)" = 1 ]; }
            until_true one
            shown
            ask 'held.sendall(b"x" * 1000) or len(held.recv(1000, socket.MSG_WAITALL))'
            shown
            ask '(s := new())'
            counts='link["runs"][0]["opened"], link["runs"][0]["sockets"]'
            counted() { [ "$(state "$counts")" = "6 2" ]; }
            until_true counted
            first=$(near show connections --json --control $(control) |
                grep -o '"id": [0-9]*' | head -1 | grep -o '[0-9]*$')
            near close $first --control $(control) | sed 's/[0-9]\+/ID/'
            # From the kernel, a call that waits meanwhile gets EPIPE.
            ask 'held.recv(1)' | sed 's/BrokenPipeError 32/ConnectionResetError 104/'
            kill -9 $LINK
            ask 's.sendall(b"54321") or s.recv(5)'
            ask 'failure(("10.9.8.7", 8081))'
            serve
            hands() { [ "$(ask 'what(new())[0]')" = link ]; }
            until_true hands
            near restart --control $(control) >/dev/null
            until_true succeeded $(control) nsenter --net --target $NEAR $USER_OF_RUNS
            until_true hands
            ask 'what(new())'
            echo 'sys.exit()' >&8; wait $run; until_true idle; grep -c panicked run.log; true"#);
        let wanted = "link 10.9.8.7 10.9.8.7 True\n\
                      0 link 10.9.8.7 10.9.8.7 True\n\
                      link 2001:db8:77::1 2001:db8::7 True\n\
                      0 link ::ffff:10.9.8.7 ::ffff:10.9.8.7 True\n\
                      10.9.8.7 8082 ECONNREFUSED ECONNREFUSED\n\
                      10.9.9.9 8080 EHOSTUNREACH EHOSTUNREACH\n\
                      10.9.8.7 8095 ECONNREFUSED ECONNREFUSED\n\
                      handed open 5 5\n1000\nhanded open 1005 1005\n";
        let rest = said.strip_prefix(wanted).unwrap_or_else(|| panic!("{said}"));
        let lines: Vec<_> = rest.lines().collect();
        assert!(lines[0].starts_with("<socket"), "{said}");
        let rest = [
            "closed ID",
            "ConnectionResetError 104",
            "b'54321'",
            "ECONNREFUSED",
            "('link', '10.9.8.7', '10.9.8.7', True)",
            "0",
        ];
        assert_eq!(lines[1..], rest, "{said}");
    }
}

#[test]
fn a_closed_socket_of_a_link_has_no_more_events() {
    let setup = format!("{LINK}\nALSO_AT=\n{SHOWN}\n{CLOSED}");
    let said = Network::new(&[8080], &setup).with_rules(RULES).ok("linked python3 closed.py 8082");
    assert_eq!(said, "late events: 0\n");
}

#[test]
fn stricter_rules_of_either_side_apply_to_new_sockets_of_a_link() {
    let said = held().ok(r#"
        begin >/dev/null
        ask 'what(new())[0]'
        sed -i '/^name = "out"/,/^permit/s/^permit = true/deny = true/' link.toml
        kill -HUP $LINK; until_true grep -q link-reloaded link.log
        ask 'new()'
        ask 'echo(held)'
        sed -i '/^name = "out"/,/^deny/s/^deny = true/permit = true/' link.toml
        kill -HUP $LINK
        works() { [ "$(ask 'what(new())[0]')" = link ]; }
        until_true works
        sed -i '1a path = "relay"' run.toml
        near reload --control $(control)
        ask 'what(new())[0]'
        sed -i '/^name = "numbers"/,/^permit/s/^permit = true/deny = true/' run.toml
        near reload --control $(control)
        ask 'new()'
        ask 'echo(held)'
        echo 'sys.exit()' >&8; wait $run"#);
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with("generation")).collect();
    let wanted = ["link", "ConnectionRefusedError 111", "True"];
    assert_eq!(lines[..3], wanted, "{said}");
    let rest = lines[3..].join("\n");
    assert!(rest.contains("run") && rest.ends_with("ConnectionRefusedError 111\nTrue"), "{said}");
}

#[test]
fn a_run_has_no_more_handed_sockets_than_its_link_allows() {
    let setup = format!("{LINK}\nALSO_AT=\n{SHOWN}");
    let said = Network::new(&[8080], &setup).with_rules(RULES).ok(r#"
        cat >many.py <<'END'
import os, socket, time
def connect():
    s = socket.socket()
    s.settimeout(20)
    error = s.connect_ex(("10.9.8.7", 8081))
    return s, error
held = [connect() for number in range(20)]
print([error for s, error in held].count(111), flush=True)
held = []
while connect()[1]:
    time.sleep(0.05)
print("again")
END
        linked python3 many.py 2>/dev/null; until_true idle
        until_true grep -q 'already has 16 open sockets' link.log
        grep -o 'already has 16 open sockets' link.log | head -1"#);
    assert_eq!(said, "4\nagain\nalready has 16 open sockets\n");
}

#[test]
fn a_program_cannot_reconnect_a_socket_of_a_link_to_an_address_that_either_side_denies() {
    let near = "[[rule]]\nname = \"address\"\ndirection = \"outbound\"\nremote = \"10.9.8.7\"\n\
                permit = true\n";
    let far = format!(
        "{near}[[rule]]\nname = \"far\"\ndirection = \"outbound\"\n\
                       remote = \"192.0.2.1\"\npermit = true\n"
    );
    for rules in [near, &far] {
        let setup = format!("{LINK}\nstart python3 $PEERS/echo.py 7000; await 7000\n");
        let said = Network::new(&[7000], &setup).with_rules(rules).ok(r#"
            sed -i 's/"8080-8090"/"1-65535"/' link.toml
            kill -HUP $LINK; until_true grep -q link-reloaded link.log
            ip route add local 192.0.2.1/32 dev lo
            start python3 $PEERS/counting.py 192.0.2.1 8085 counted
            until_true [ -e counted ]
            linked /usr/bin/python3 $PEERS/escapes.py 2>/dev/null
            until_true idle
            echo "bytes at the denied server: $(stat -c %s counted)""#);
        let lines: Vec<_> = said.lines().collect();
        let refused: Vec<_> = "plain,again,unspecified,long address,passed to a child"
            .split(',')
            .map(|attempt| format!("{attempt}: ConnectionRefusedError"))
            .collect();
        assert!(refused.iter().all(|line| lines.contains(&line.as_str())), "{said}");
        for attempt in ["fast open: OSError 95", "listen: OSError 22", "permitted: works"] {
            assert!(lines.contains(&attempt), "{said}");
        }
        assert_eq!(said.matches("Error").count(), 9, "{said}");
        assert!(said.ends_with("bytes at the denied server: 0\n"), "{said}");
    }
}

#[test]
fn the_rules_of_a_run_apply_to_the_server_of_a_link_in_it() {
    let setup = format!("{LINK}\nALSO_AT=\n{SHOWN}");
    let said = Network::new(&[8080], &setup).with_rules(RULES).ok(r#"
        cat >one.py <<'END'
import os, socket, sys, time
s = socket.create_connection(("10.9.8.7", 8081), 20)
s.sendall(b"12345")
assert s.recv(5) == b"12345"
open(sys.argv[1], "w").close()
while not os.path.exists(sys.argv[1] + ".shown"):
    time.sleep(0.05)
try:
    socket.create_connection(("10.9.8.7", 8081), 20)
    print("connected")
except OSError as error:
    print("error")
END
        kill $LINK; until_true [ ! -e $AT ]
        # It recognises the run by its network namespace, not by its environment.
        start_ordinary ./tacit run --policy run.toml -- env -u TACIT_QUERY \
            ./tacit link serve --policy link.toml 2>>link.log; outer=$!
        until_true info
        linked python3 one.py inner 2>run.log & run=$!
        until_true [ -e inner ] || cat run.log
        # The agent of the other run refuses to answer.
        for at in $(control); do near show connections --json --control $at; done 2>/dev/null |
            grep -o 'relay ([a-z]*)\|handed'
        touch inner.shown; wait $run"#);
    assert_eq!(said, "relay (link)\nconnected\n");
}
