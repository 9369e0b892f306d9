//! Tests connections for which a program gets a socket of the host's network. The program must
//! reach only permitted destinations, and must behave as it does without tacit. `tacit show` lists
//! the program's connections.
//!
//! Other tests start each program twice: without tacit, and with sockets of the host's network. The
//! output must be the same both times ([`Network::compare`]).

use crate::network::Network;

/// Programs may connect to the server by its address.
const RULE: &str = "[[rule]]\nname = \"address\"\ndirection = \"outbound\"\n\
                    remote = \"10.9.8.7\"\npermit = true\n";

fn network(setup: &str) -> Network {
    Network::new(&[7000], setup).with_rules(RULE)
}

const ECHO: &str = "start python3 $PEERS/echo.py 7000; await 7000\n";

/// Prints the path of each open connection of the run whose launcher is `$launcher`.
const SHOWN: &str = r#"
started() {
    ordinary exec ./tacit run --policy run.toml "$@" <&0 & launcher=$!
    background+=($launcher)
}
control() { echo $TMPDIR/tacit-run-$launcher/agent.sock; }
shown() {
    ordinary ./tacit show connections --json --control $(control) | python3 -c "
import json, sys
for c in json.load(sys.stdin)['connections']:
    print(c['path'], c['state'], c['bytes-in'], c['bytes-out'], c['run']['program']['name'])"
}
path_of_run() {
    ordinary ./tacit show runs --json --control $(control) |
        python3 -c "import json, sys; print(json.load(sys.stdin)['runs'][0]['path'])"
}
process() {
    local pid
    for pid in $(pgrep -P $launcher) $(pgrep -P $(pgrep -d , -P $launcher)); do
        case " $* " in *" $(cat /proc/$pid/comm) "*) echo $pid ;; esac
    done 2>/dev/null
}
"#;

/// A program that keeps one connection, and executes each line of its input.
const HOLDER: &str = r#"
import socket, sys
def new():
    s = socket.create_connection(("10.9.8.7", 7000), 20)
    s.sendall(b"12345")
    return s
old = new()
assert old.recv(5) == b"12345"
"#;

/// The end of such a program: it prints the value or the error of each line of its input.
pub const ANSWERS: &str = r#"
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"#;

/// `ask EXPRESSION` prints the answer of a program that reads `to` and writes `from`.
pub const ASK: &str = r#"
mkfifo to from; chmod 666 to from; exec 8<>to 9<>from
ask() { echo "$1" >&8; read -t 30 -u 9 answer; echo "$answer"; }
"#;

/// Starts that program, and lets the script ask it.
fn holder(script: &str) -> String {
    let setup = format!(
        "{ECHO}{SHOWN}\ncat >holder.py <<'END'\n{HOLDER}{ANSWERS}END\n{ASK}\
         started --log file.log --log-level info -- \\\n\
         /usr/bin/python3 holder.py <to >from 8>&- 9>&-\n\
         read -t 30 -u 9 answer\n"
    );
    network(&setup.replace("file.log", "$PWD/scratch/run.log")).ok(script)
}

#[test]
fn a_handed_connection_is_shown_counted_and_closed_on_request() {
    let said = holder(
        r#"
        path_of_run
        shown
        ask 'old.send(b"x" * 1000) and sum(len(old.recv(1)) for _ in range(1000))'
        shown
        ask 'old.getsockname()[0] != "10.0.2.15" and old.getpeername()'
        ordinary ./tacit close 1 --control $(control)
        # From the kernel, a call that waits meanwhile gets EPIPE.
        ask 'old.recv(1)' | sed 's/BrokenPipeError 32/ConnectionResetError 104/'
        shown
        ask '[n := new(), n.recv(5), n.close()][2]'
        ended() { [ -z "$(shown)" ]; }
        until_true ended
        ordinary ./tacit show costs --json --control $(control) | python3 -c "
import json, sys
(run,) = json.load(sys.stdin)['runs']
print(run['connections'], run['bytes-sent'], run['bytes-received'])"
        "#,
    );
    let wanted = "auto\nhanded open 5 5 python3.11\n1000\nhanded open 1005 1005 python3.11\n\
                  ('10.9.8.7', 7000)\nclosed 1\nConnectionResetError 104\nNone\n2 1010 1010\n";
    let plain = |text: &str| {
        let numbers = |word: &str| word.starts_with("python3.");
        let words = |line: &str| {
            let words = line.split(' ').filter(|word| !numbers(word));
            words.collect::<Vec<_>>().join(" ")
        };
        text.lines().map(words).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(plain(&said), plain(wanted), "{said}");
}

/// Connects sockets to the port that its argument names, where no program listens, and closes them;
/// prints the number of events that an epoll instance reports after that. A duplicate of the socket
/// in another process would keep its registration.
pub const CLOSED: &str = r#"
cat >closed.py <<'END'
import select, socket, sys
polled = select.epoll()
late = 0
for _ in range(500):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("10.9.8.7", int(sys.argv[1])))
    polled.register(s, select.EPOLLIN | select.EPOLLOUT)
    assert polled.poll(10)
    s.close()
    late += len(polled.poll(0))
print("late events:", late)
END
"#;

#[test]
fn a_closed_socket_has_no_more_events() {
    let said = network(ECHO).ok(&format!("{CLOSED}run python3 closed.py 7001"));
    assert_eq!(said, "late events: 0\n");
}

/// Each report costs CPU time for each socket of all programs.
#[test]
fn the_kernel_reports_closed_sockets_only_while_a_program_has_a_socket() {
    let said = holder(
        r#"
        reporting() { awk '$2 == 4 && $4 == "00000005"' /proc/net/netlink | wc -l; }
        other() { : </dev/tcp/10.9.8.7/7000; }
        paused() { other; [ $(reporting) = 0 ]; }
        for pause in 0.6 0.6 0.6; do other; sleep $pause; done
        reporting
        ask 'old.close()'
        until_true paused
        ask '[n := new(), n.recv(5)][1]'
        reporting
        for pause in 0.6 0.6 0.6; do other; sleep $pause; done
        reporting
        ask 'n.close()'
        ended() { [ -z "$(shown)" ]; }
        until_true ended
        ordinary ./tacit show costs --json --control $(control) | python3 -c "
import json, sys
(run,) = json.load(sys.stdin)['runs']
print(run['connections'], run['bytes-sent'], run['bytes-received'])"
        "#,
    );
    assert_eq!(said, "1\nNone\nb'12345'\n1\n1\nNone\n2 10 10\n");
}

#[test]
fn a_reset_by_the_program_keeps_the_counters_that_the_agent_has_read() {
    let said = holder(
        r#"
        sed -i 's/permit = true/permit = true\nlog = true/' run.toml
        ordinary ./tacit reload --control $(control) >/dev/null
        ask '(last := new()).recv(5)'
        shown | sed 's/ [^ ]*$//'
        linger='__import__("struct").pack("ii", 1, 0)'
        ask "last.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, $linger) or last.close()"
        is_closed() { grep -q ' closed .*bytes-in' scratch/run.log; }
        until_true is_closed; grep -o 'bytes-in=[0-9]* bytes-out=[0-9]*' scratch/run.log
        "#,
    );
    let wanted = "b'12345'\nhanded open 5 5\nhanded open 5 5\nNone\nbytes-in=5 bytes-out=5\n";
    assert_eq!(said, wanted);
}

#[test]
fn a_program_cannot_reconnect_a_handed_socket_to_a_denied_address() {
    let script = r#"
        ip route add local 192.0.2.1/32 dev lo
        start python3 $PEERS/counting.py 192.0.2.1 8085 counted
        until_true [ -e counted ]
        run /usr/bin/python3 $PEERS/escapes.py 2>&1
        echo "bytes at the denied server: $(stat -c %s counted)""#;
    let said = network(ECHO).ok(script);
    let wanted = "plain: ConnectionRefusedError\n\
                  again: ConnectionRefusedError\n\
                  unspecified: ConnectionRefusedError\n\
                  long address: ConnectionRefusedError\n\
                  fast open: OSError 95\n\
                  listen: OSError 22\n\
                  bound: ConnectionAbortedError 103\n\
                  deferred: BrokenPipeError 32\n\
                  passed to a child: ConnectionRefusedError\n\
                  permitted: works\n\
                  bytes at the denied server: 0\n";
    assert_eq!(said, wanted);
}

/// A network with servers and routes of both IP versions.
fn network_of_both_versions() -> Network {
    let rules = RULE.replace("\"10.9.8.7\"", "[\"10.9.8.7\", \"2001:db8::7\"]");
    let echo = "ip route add local 192.0.2.1/32 dev lo\n\
                ip -6 route add local 2001:db8:ff::1/128 dev lo\n\
                start python3 $PEERS/echo.py 7000 2001:db8::7; await 7000\n";
    Network::new(&[7000], echo).with_rules(&rules).with_ipv6()
}

#[test]
fn connections_that_have_ended_do_not_count_for_a_limit() {
    let said = network(ECHO).ok(r#"
        printf '[limits]\nconnections-per-run = 4\n' >>run.toml
        RUN_OPTIONS='--log ./scratch/own.log'
        run python3 -c '
import socket
for _ in range(300):
    with socket.create_connection(("10.9.8.7", 7000)) as stream:
        stream.sendall(b"x")
        stream.shutdown(socket.SHUT_WR)
        while stream.recv(100): pass
print("all")'
        echo $(grep -c "why=limit" scratch/own.log)"#);
    assert_eq!(said, "all\n0\n");
}

/// Without tacit, root sends to the denied addresses.
#[test]
fn a_source_route_leads_no_packet_of_a_handed_socket_to_a_denied_address() {
    let said = network_of_both_versions().ok(r#"
        for way in run env; do for version in 4 6; do for when in after before; do
            python3 $PEERS/packets_to.py seen 192.0.2.1 2001:db8:ff::1 & watcher=$!
            until_true [ -e seen ]
            said=$($way /usr/bin/python3 $PEERS/routes.py $version $when 2>&1)
            echo >/dev/udp/192.0.2.1/9; wait $watcher
            bytes=$(stat -c %s seen); rm seen
            case $way in
            run) echo "$version $when: $said, bytes at the denied address: $bytes" ;;
            env) [ $bytes -gt 0 ] && echo "$version $when without tacit: some bytes" ;;
            esac
        done; done; done"#);
    let wanted = "4 after: PermissionError 1, then MARK, bytes at the denied address: 0\n\
                  4 before: not sent, bytes at the denied address: 0\n\
                  6 after: PermissionError 1, then MARK, bytes at the denied address: 0\n\
                  6 before: not sent, bytes at the denied address: 0\n\
                  4 after without tacit: some bytes\n\
                  4 before without tacit: some bytes\n\
                  6 after without tacit: some bytes\n\
                  6 before without tacit: some bytes\n";
    assert_eq!(said, wanted);
}

#[test]
fn options_of_a_route_are_refused_on_handed_sockets_alone_and_reported() {
    let said = network_of_both_versions().ok(r#"
        run /usr/bin/python3 $PEERS/routes.py options 2>&1
        log=$HOME/.local/state/tacit/run.log
        until_true grep -q ' destination=setsockopt ' $log
        grep -m 1 -o 'kind=socket .*destination=setsockopt why=[^ ]*' $log
        grep -m 1 -o 'next=.*' $log"#);
    let of_handed: Vec<_> = said.lines().filter(|line| line.starts_with("handed ")).collect();
    let harmless = ["IP_TOS", "IP_TTL", "SO_KEEPALIVE", "IPV6_TCLASS"];
    for line in &of_handed {
        let is_harmless = harmless.iter().any(|name| line.contains(&format!(" {name}: ")));
        let wanted = if is_harmless { ": ok" } else { ": PermissionError 1" };
        assert!(line.ends_with(wanted), "{said}");
    }
    assert_eq!(of_handed.len(), 15, "{said}");
    assert_eq!(said.matches("echoed 1234\n").count(), 2, "{said}");
    let of_own = said.lines().filter(|line| line.starts_with("own ") || line.starts_with("UDP "));
    assert!(of_own.clone().all(|line| line.ends_with(": ok")), "{said}");
    assert_eq!(of_own.count(), 20, "{said}");
    assert!(said.contains("why=not-offered"), "{said}");
    assert!(said.contains("path = \\\"relay\\\""), "{said}");
}

#[test]
fn a_socket_that_cannot_be_replaced_is_relayed_with_the_reason() {
    let said = holder(
        r#"
        ask '[s := socket.socket(), s.bind(("0.0.0.0", 0)), s.connect(("10.9.8.7", 7000))][2]'
        ask '[t := socket.socket(), d := t.dup(), t.connect(old.getpeername()), d.getpeername()][3]'
        ask '[u := socket.socket(), u.setsockopt(0, 4, b"\1"), u.connect(old.getpeername())][2]'
        until_true eval '[ $(shown | grep -c "(") = 3 ]'
        shown | cut -d " " -f 1,2"#,
    );
    let wanted = "None\n('10.9.8.7', 7000)\nNone\n\
                  handed open\nrelay (bound)\nrelay (dup)\nrelay (option)\n";
    assert_eq!(said, wanted);
}

#[test]
fn path_relay_hands_no_socket() {
    let script = r#"
        started --path relay -- bash -c 'exec 3<>/dev/tcp/10.9.8.7/7000; echo x >&3; sleep 30'
        relayed() { [ "$(shown | cut -d ' ' -f 1-3)" = 'relay (start) open' ]; }
        until_true relayed; echo relayed; path_of_run"#;
    assert_eq!(network(&format!("{ECHO}{SHOWN}")).ok(script), "relayed\nrelay (start)\n");
}

/// With a listener of its connections, a program would wait for its stopped helper.
#[test]
fn a_policy_without_a_permit_for_tcp_leaves_connections_to_the_kernel() {
    let script = r#"
        sed -i 's/^permit = true/permit = true\nprotocol = "udp"/' run.toml
        cat >own.py <<'END'
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
sys.stdin.readline()
client = socket.create_connection(server.getsockname(), 20)
server.accept()
print("connected", flush=True)
sys.stdin.readline()
END
        mkfifo to from; exec 8<>to 9<>from
        started -- /usr/bin/python3 own.py <to >from 8>&- 9>&-
        read -t 30 -u 9 answer
        path_of_run
        helper=$(process tacit-helper); kill -STOP $helper
        echo >&8; read -t 30 -u 9 answer; echo $answer
        kill -CONT $helper; echo >&8; wait $launcher; echo status $?"#;
    let network = Network::new(&[], SHOWN).with_rules(RULE);
    assert_eq!(network.ok(script), "relay (start)\nconnected\nstatus 0\n");
}

#[test]
fn programs_that_call_socketcall_are_served_like_others() {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: only x86-64 has this call beside the others");
        return;
    }
    let network = network(ECHO).with_build("cc -O1 -Wall -o socketcall $PEERS/socketcall.c");
    let said = network.ok(r#"
        direct ./socketcall 10.9.8.7 10.9.8.7 >/dev/null 2>&1 || { echo skipped; exit; }
        ip route add local 192.0.2.1/32 dev lo
        start python3 $PEERS/counting.py 192.0.2.1 8085 counted
        until_true [ -e counted ]
        run ./socketcall 10.9.8.7 192.0.2.1
        echo "bytes at the denied server: $(stat -c %s counted)""#);
    if said == "skipped\n" {
        println!("skipped: the kernel executes no 32-bit calls");
        return;
    }
    let wanted = "permitted: 0\n\
                  again: EISCONN\n\
                  echoed: 4\n\
                  options: EPERM\n\
                  type of service: 0\n\
                  own options: 0\n\
                  denied: ECONNREFUSED\n\
                  denied after failed: EINPROGRESS\n\
                  fast open: EOPNOTSUPP\n\
                  bind: 0\n\
                  listen: 0\n\
                  bytes at the denied server: 0\n";
    assert_eq!(said, wanted);
}

/// A thread duplicates the socket while another connects it: both are one connection.
#[test]
fn a_socket_that_is_duplicated_while_it_connects_stays_one_connection() {
    let network = network(ECHO).with_build("cc -O1 -Wall -o race $PEERS/dup_race.c -lpthread");
    let said = network.ok("run ./race 10.9.8.7 7000 300");
    assert_eq!(said, "300 rounds, refused 0, differ 0\n");
}

#[test]
fn after_a_killed_helper_new_connections_fail_and_open_ones_continue() {
    let said = holder(
        r#"
        helper=$(process tacit-helper); kill -9 $helper
        another() { now=$(process tacit-helper); [ -n "$now" ] && [ $now != $helper ]; }
        until_true another
        ask 'old.send(b"y") and old.recv(1)'
        ask 'new()'
        exec 8>&-; wait $launcher; echo status $?"#,
    );
    assert_eq!(said, "b'y'\nOSError 38\nstatus 0\n");
}

/// The helper keeps neither a socket nor a process of a client that was killed.
#[test]
fn clients_killed_while_they_connect_leave_no_descriptor_in_the_helper() {
    let script = r#"
        # A neighbour that does not exist, so that no SYN is answered.
        ip neigh add 192.168.77.9 lladdr 02:00:00:00:00:09 dev v0
        printf '[[rule]]\nname = "silent"\ndirection = "outbound"\nremote = "192.168.77.9"\n' \
            >>run.toml; echo 'permit = true' >>run.toml
        started -- bash -c 'touch scratch/up; until [ -e scratch/go ]; do sleep 0.02; done
            for round in $(seq 40); do
                timeout -s KILL 0.1 bash -c "exec 3<>/dev/tcp/192.168.77.9/7000" & 
                timeout -s KILL 0.1 bash -c "exec 3<>/dev/tcp/10.9.8.7/7000"
            done 2>/dev/null; wait; sleep 0.2; touch scratch/done
            until [ -e scratch/end ]; do sleep 0.02; done'
        until_true [ -e scratch/up ]
        helper=$(process tacit-helper)
        count() { ls /proc/$helper/fd | wc -l; }
        before=$(count); ordinary touch scratch/go
        until_true [ -e scratch/done ]
        # The first connection makes two descriptors that stay: of the agent, and of waiting calls.
        same() { [ $(count) -le $((before + 1)) ]; }
        until_true same; echo none left
        none() { [ -z "$(shown)" ]; }
        until_true none; echo none shown; ordinary touch scratch/end"#;
    let said = network(&format!("{ECHO}{SHOWN}")).ok(script);
    assert_eq!(said, "none left\nnone shown\n");
}

#[test]
fn signals_and_timeouts_end_a_blocking_connect_as_without_tacit() {
    let script = r#"
        ip neigh add 192.168.77.9 lladdr 02:00:00:00:00:09 dev v0
        printf '[[rule]]\nname = "silent"\ndirection = "outbound"\nremote = "192.168.77.9"\n' \
            >>run.toml; echo 'permit = true' >>run.toml
        for way in direct run; do $way ./interrupted 192.168.77.9 10.9.8.7; done"#;
    let network =
        network(ECHO).with_build("cc -O1 -Wall -o interrupted $PEERS/interrupted.c -lpthread");
    let said = network.ok(script);
    let once = "handled without SA_RESTART: EINTR\n\
                handled with SA_RESTART: waits on\n\
                SO_SNDTIMEO: EINPROGRESS\n\
                again without blocking: EALREADY\n\
                shut by another thread: ECONNRESET\n\
                refused: ECONNREFUSED\n\
                refused without blocking: EINPROGRESS ECONNREFUSED\n\
                after refused: 0\n\
                connected: EISCONN\n\
                disconnected and connected: 0\n";
    assert_eq!(said, format!("{once}{once}"));
}

/// A thread adds the socket to an epoll instance while another connects it.
#[test]
fn a_socket_that_is_added_to_epoll_while_it_connects_is_not_lost() {
    let network = network(ECHO).with_build("cc -O1 -Wall -o race $PEERS/epoll_race.c -lpthread");
    let said = network.ok("run ./race 10.9.8.7 7000 1000");
    assert!(said.ends_with(" rounds, lost 0, add errors 0, mod errors 0\n"), "{said}");
}

#[test]
fn runs_with_handed_sockets_nest() {
    let script = r#"
        { echo 'version = 1'; echo '[[rule]]'; echo 'name = "all"'
          echo 'direction = "outbound"'; echo 'remote = "10.9.8.7"'; echo 'permit = true'
        } >inner.toml
        run ./tacit run --policy inner.toml -- \
            /usr/bin/python3 $PEERS/clients.py 10.9.8.7 7000 20 2>&1"#;
    let said = network(ECHO).ok(script);
    assert_eq!(said, "20 ('10.9.8.7', 7000) right\n");
}

#[test]
fn a_reload_decides_about_new_connections() {
    let said = holder(
        r#"
        sed -i '1a path = "relay"' run.toml
        ordinary ./tacit reload --control $(control)
        ask '[r := new(), r.recv(5)][1]'
        until_true eval '[ $(shown | wc -l) = 2 ]'
        shown | cut -d " " -f 1,2
        sed -i 's/^permit = true/deny = true/' run.toml
        ordinary ./tacit reload --control $(control)
        ask 'new()'
        ask 'old.send(b"z") and old.recv(1)'"#,
    );
    assert!(said.contains("handed open\nrelay (path)"), "{said}");
    assert!(said.contains("ConnectionRefusedError 111\nb'z'"), "{said}");
}
