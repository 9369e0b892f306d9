//! Tests how programs under `tacit run` resolve names. The tests use real resolvers and every
//! protocol, such as UDP and TCP. The tests also check that no DNS query bypasses the agent.

use crate::harness::text_of;
use crate::network::Network;

/// A resolver of its own instead of the network's, on every address that programs ask.
const ZONE: &str = r#"
ip route add local 10.9.8.9/32 dev lo
cat >zone <<'END'
clear.example A 10.9.8.7
clear.example AAAA 2001:db8::7
rebound.example A 127.0.0.1
rebound.example A 169.254.169.254
www.example CNAME cdn.elsewhere
cdn.elsewhere CNAME edge.elsewhere
edge.elsewhere A 10.9.8.7
other.elsewhere A 10.9.8.7
7.8.9.10.in-addr.arpa PTR clear.example
END
for n in $(seq 60); do echo "long.example A 10.9.7.$n"; done >>zone
ip addr add 127.0.0.53/8 dev lo 2>/dev/null
start python3 "$PEERS/names.py" zone log 127.0.0.53 127.0.0.2 ::1 10.9.8.9
until_true [ -e log.ready ]
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

const SERVER: &str = r#"
start python3 -m http.server 7000 --bind 10.9.8.7 --directory scratch >/dev/null 2>&1
await 7000
fetch='import sys, urllib.request as r
try: print(r.urlopen("http://%s:7000/" % sys.argv[1], timeout=10).status)
except OSError as e: print(getattr(e, "reason", e))'
"#;

fn network(setup: &str) -> Network {
    Network::new(&[], &format!("{ZONE}\n{SERVER}\n{setup}")).with_rules(RULES)
}

fn expect(network: &Network, script: &str, wanted: &str) {
    let output = network.script(script);
    let text = text_of(&output);
    assert!(output.status.success() && text.contains(wanted), "{wanted} is missing: {text}");
}

/// Each asks wherever `resolv.conf` says: this host, the machine's own resolver, one far away.
fn resolves_everywhere(build: &str, command: &str) {
    let mut network = network("");
    if !build.is_empty() {
        network = network.with_build(build);
    }
    let script = format!(
        "for server in 127.0.0.53 127.0.0.2 ::1 10.9.8.9; do
             echo \"nameserver $server\" >resolv.conf
             echo \"$server: $(run {command} 2>&1 | tail -1)\"
         done"
    );
    let said = network.ok(&script);
    for line in said.lines() {
        assert!(line.contains("10.9.8.7") || line.contains("2001:db8::7"), "{said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn glibc_resolves() {
    resolves_everywhere("", "getent ahosts clear.example");
}

#[test]
fn python_resolves() {
    let python = "python3 -c 'import socket; print(socket.gethostbyname(\"clear.example\"))'";
    resolves_everywhere("", python);
}

#[test]
fn static_go_resolves() {
    let build = "CGO_ENABLED=0 go build -o resolve-go $PEERS/resolve.go";
    resolves_everywhere(build, "./resolve-go clear.example");
}

#[test]
fn static_musl_resolves() {
    let build = "musl-gcc -static -o resolve-musl $PEERS/resolve.c";
    resolves_everywhere(build, "./resolve-musl clear.example");
}

#[test]
fn busybox_resolves() {
    resolves_everywhere("", "sh -c 'busybox nslookup clear.example | grep 10.9.8.7'");
}

#[test]
fn java_resolves() {
    resolves_everywhere("javac -d . $PEERS/Resolve.java", "java Resolve clear.example");
}

#[test]
fn node_resolves_by_the_system_and_by_itself() {
    for how in ["lookup", "resolve4"] {
        let code =
            format!("require('dns').{how}('clear.example', (e, a) => console.log(e || `${{a}}`))");
        resolves_everywhere(
            "",
            &format!("node -e \"{}\"", code.replace('`', "\\`").replace('$', "\\$")),
        );
    }
}

#[test]
fn a_program_that_searches_reaches_a_name_of_the_policy() {
    let setup = "printf 'nameserver 127.0.0.2\\nsearch a.cluster b.cluster\\noptions ndots:5\\n' \
                 >resolv.conf";
    let network = network(setup).with_build("musl-gcc -static -o resolve-musl $PEERS/resolve.c");
    expect(
        &network,
        "run getent ahostsv4 clear.example; grep cluster log || echo unasked",
        "unasked",
    );
    expect(
        &network,
        "run ./resolve-musl clear.example; grep cluster log || echo unasked",
        "10.9.8.7\nunasked",
    );
}

#[test]
fn questions_by_tcp_are_answered_one_after_the_other() {
    let ask = "clear.example 1 no.elsewhere 1 clear.example 28";
    let wanted = "clear.example 1: code 0, 1 answers\nno.elsewhere 1: code 5, 0 answers\n\
                  clear.example 28: code 0, 1 answers";
    for server in ["127.0.0.53", "::1", "192.0.2.53"] {
        for transport in ["udp", "tcp"] {
            let script = format!("run python3 \"$PEERS/ask.py\" {transport} {server} {ask}");
            expect(&network(""), &script, wanted);
        }
    }
}

#[test]
fn an_answer_too_long_for_a_datagram_comes_by_tcp() {
    let script = "run getent ahostsv4 long.example | awk '{print $1}' | sort -u | wc -l
                  grep long log | sort | uniq -c | tr -s ' '";
    expect(&network(""), script, "60\n 1 tcp 1 long.example");
}

#[test]
fn an_alias_opens_its_addresses_for_the_name_that_was_asked() {
    expect(&network(""), "run python3 -c \"$fetch\" www.example", "200");
    expect(&network(""), "run python3 -c \"$fetch\" 10.9.8.7", "refused");
}

#[test]
fn what_is_asked_decides_what_is_forwarded() {
    let reverse = "7.8.9.10.in-addr.arpa 12";
    let script = format!(
        ": >log; run python3 \"$PEERS/ask.py\" udp 127.0.0.53 clear.example 65 clear.example 64 \
             clear.example 252 other.elsewhere 1 {reverse} clear.example 1 {reverse} \
             clear.example 16; cat log"
    );
    let wanted = "clear.example 65: code 0, 0 answers\nclear.example 64: code 0, 0 answers\n\
                  clear.example 252: code 5, 0 answers\nother.elsewhere 1: code 5, 0 answers\n\
                  7.8.9.10.in-addr.arpa 12: code 5, 0 answers\n\
                  clear.example 1: code 0, 1 answers\n\
                  7.8.9.10.in-addr.arpa 12: code 0, 1 answers\n\
                  clear.example 16: code 0, 0 answers\n\
                  udp 1 clear.example\nudp 12 7.8.9.10.in-addr.arpa\nudp 16 clear.example\n";
    expect(&network(""), &script, wanted);
}

#[test]
fn a_name_does_not_lead_to_this_host_or_link() {
    let setup = "start python3 -m http.server 7000 --bind 127.0.0.1 >/dev/null 2>&1
                 until_true sh -c 'ss -Hltn \"src 127.0.0.1:7000\" | grep -q .'";
    let script = "direct python3 -c \"$fetch\" rebound.example
                  run sh -c 'getent ahostsv4 rebound.example; python3 -c \"$0\" rebound.example; \
                      python3 -c \"$0\" 169.254.169.254' \"$fetch\"";
    let output = network(setup).script(script);
    let text = text_of(&output);
    assert!(text.contains("\n200\n"), "outside it does: {text}");
    assert_eq!(text.matches("Connection refused").count(), 2, "{text}");
}

#[test]
fn the_hosts_own_file_of_names_counts_as_learnt_and_is_followed() {
    let setup = "echo '10.9.8.7 listed.example' >>hosts";
    let script = "run sh -c 'python3 -c \"$0\" listed.example
                      echo \"10.9.8.7 later.example\" >>hosts
                      for try in $(seq 40); do
                          python3 -c \"$0\" later.example | grep 200 && break; sleep 0.2
                      done' \"$fetch\"; cat log";
    let network = network(&format!("{setup}; chmod 666 hosts"));
    let output = network.script(script);
    let text = text_of(&output);
    assert!(text.contains("\n200\n200\n") && !text.contains("listed"), "{text}");
}

#[test]
fn another_resolver_is_asked_when_the_host_asks_another() {
    let setup = "echo 'clear.example A 10.9.8.77' >other
                 ip route add local 10.9.8.10/32 dev lo
                 start python3 \"$PEERS/names.py\" other otherlog 10.9.8.10
                 until_true [ -e otherlog.ready ]; chmod 666 resolv.conf";
    let script = "run sh -c 'getent ahostsv4 clear.example | head -1
                      echo nameserver 10.9.8.10 >resolv.conf
                      getent ahostsv4 clear.example | head -1' | awk '{print $1}'";
    expect(&network(setup), script, "10.9.8.7\n10.9.8.77\n");
}

#[test]
fn a_name_fails_at_once_where_no_resolver_listens() {
    let network = network("echo nameserver 127.0.0.3 >resolv.conf");
    let said = network.ok(r#"
        asked='getent ahosts clear.example; echo $?'
        direct timeout 4 bash -c "$asked"
        RUN_OPTIONS="--log stderr"
        run timeout 4 bash -c "$asked" 2>run.log
        until_true grep -q 'resolver-failed resolver=127.0.0.3:53' run.log
        grep -o 'resolver-failed resolver=127.0.0.3:53 error=".*"' run.log"#);
    let refused =
        "resolver-failed resolver=127.0.0.3:53 error=\"Connection refused (os error 111)\"";
    assert_eq!(said, format!("2\n2\n{refused}\n"));
}

#[test]
fn names_resolve_on_a_host_without_a_default_route() {
    let network = network("echo nameserver 10.9.8.9 >resolv.conf; ip route del default");
    expect(&network, "run getent ahostsv4 clear.example", "10.9.8.7");
    expect(&network, "run python3 -c \"$fetch\" clear.example", "200");
}

#[test]
fn names_resolve_with_a_resolver_at_an_address_of_the_host() {
    let network = network(
        "ip addr add 10.9.8.99/32 dev lo
         start python3 \"$PEERS/names.py\" zone ownlog 10.9.8.99
         until_true [ -e ownlog.ready ]
         echo nameserver 10.9.8.99 >resolv.conf",
    );
    expect(&network, "run getent ahostsv4 clear.example", "10.9.8.7");
    expect(&network, "run env RES_OPTIONS=use-vc getent ahostsv4 clear.example", "10.9.8.7");
    expect(&network, "run python3 -c \"$fetch\" clear.example", "200");
}

#[test]
fn answers_of_a_programs_own_resolver_teach_nothing() {
    let setup = "ip route add local 10.9.8.66/32 dev lo
                 start python3 -m http.server 7000 --bind 10.9.8.66 >/dev/null 2>&1
                 until_true sh -c 'ss -Hltn \"src 10.9.8.66:7000\" | grep -q .'
                 echo nameserver 127.0.0.1 >resolv.conf
                 echo 'forged.example A 10.9.8.66' >forged; chmod 777 .";
    let script = "run sh -c 'python3 \"$PEERS/names.py\" forged forgedlog 127.0.0.1 & own=$!
                      while ! [ -e forgedlog.ready ]; do sleep 0.05; done
                      getent ahostsv4 forged.example | head -1
                      python3 -c \"$0\" forged.example; kill -9 $own' \"$fetch\"";
    let output = network(setup).script(script);
    let text = text_of(&output);
    assert!(text.contains("10.9.8.66") && text.contains("Connection refused"), "{text}");
}

/// `also.example` has the address of `tls.example`, and a rule of its own in front.
fn shared_address(rule: &str) -> Network {
    let also = format!(
        "[[rule]]\nname = \"also\"\ndirection = \"outbound\"\nremote = \"also.example\"\n\
         remote-ports = 7000\n{rule}\n"
    );
    let two = "printf 'tls.example A 10.9.8.8\nalso.example A 10.9.8.8\n' >>zone\n";
    Network::new(&[7000], &format!("{ZONE}\n{two}\n{SERVER}")).with_rules(&also)
}

#[test]
fn an_answer_for_one_name_does_not_move_connections_to_another() {
    // The server at that address speaks TLS alone: the program reads its page only through TLS.
    for rule in ["permit = true", "tls = { verify = \"none\", server-name = \"tls.example\" }"] {
        for first in ["also.example", "tls.example"] {
            let script = format!(
                "run sh -c 'getent ahostsv4 {first}; getent ahostsv4 also.example
                     python3 -c \"$0\" tls.example' \"$fetch\""
            );
            expect(&shared_address(rule), &script, "200\n");
        }
    }
}

#[test]
fn two_names_with_one_address_are_reached_by_their_own_certificates_alone() {
    let script = "run sh -c 'getent ahostsv4 also.example | head -1
                      python3 -c \"$0\" tls.example; python3 -c \"$0\" also.example
                      python3 -c \"$0\" tls.example' \"$fetch\"";
    // The certificate there is for tls.example only.
    let text = text_of(&shared_address("tls = { trust = \"ca\" }").script(script));
    assert_eq!(text.matches("200\n").count(), 2, "{text}");
    assert_eq!(text.matches("reset by peer").count(), 1, "{text}");
}

#[test]
fn an_alias_has_the_name_it_stands_for() {
    let script = "run sh -c 'getent ahostsv4 also.example >/dev/null
                      python3 -c \"import socket
alias = socket.gethostbyname(\\\"tls.example\\\")
print(alias, socket.gethostbyaddr(alias)[0])\"'";
    expect(&shared_address("permit = true"), script, "198.18.0.1 tls.example");
}

#[test]
fn two_servers_behind_one_address_are_both_reached() {
    let server = r#"
ip route add local 10.9.8.10/32 dev lo
for host in a.multi.example b.multi.example; do ./tacit ca issue $host >/dev/null; done
printf 'a.multi.example A 10.9.8.10\nb.multi.example A 10.9.8.10\n' >>zone
start python3 -c '
import socket, ssl, threading
def context(name):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(name + ".pem", name + ".key")
    return made
contexts = {name: context(name) for name in ["a.multi.example", "b.multi.example"]}
first = contexts["a.multi.example"]
def choose(connection, name, _):
    connection.context = contexts[name]
first.sni_callback = choose
listener = socket.create_server(("10.9.8.10", 7001))
def serve(raw):
    try: first.wrap_socket(raw, server_side=True).sendall(b"hello")
    except OSError: pass
while True: threading.Thread(target=serve, args=[listener.accept()[0]]).start()'
until_true sh -c "ss -Hltn 'src 10.9.8.10:7001' | grep -q ."
"#;
    let rule = "[[rule]]\nname = \"multi\"\ndirection = \"outbound\"\n\
                remote = \"*.multi.example\"\nremote-ports = 7001\ntls = { trust = \"ca\" }\n";
    let network = Network::new(&[], &format!("{ZONE}\n{server}")).with_rules(rule);
    let script = r#"run python3 -c '
import socket
for turn in range(2):
    for name in ["a", "b"]:
        with socket.create_connection((name + ".multi.example", 7001), 10) as one:
            print(name, one.recv(99).decode(), flush=True)'"#;
    expect(&network, script, "a hello\nb hello\na hello\nb hello\n");
}

#[test]
fn every_name_has_an_alias_where_the_policy_says_so() {
    let keys = "[agent]\naliases = \"always\"\nalias-ranges = [\"10.99.0.0/16\"]\n";
    let network = shared_address("permit = true").with_rules(keys);
    let script = "run sh -c 'getent ahostsv4 tls.example | head -1
                      python3 -c \"$0\" tls.example' \"$fetch\"";
    let text = text_of(&network.script(script));
    assert!(text.contains("10.99.0.1 ") && text.contains("200\n"), "{text}");
}

#[test]
fn the_strictest_rule_decides_where_names_get_no_aliases() {
    let keys = "[agent]\naliases = \"never\"\n";
    let script = "run sh -c 'getent ahostsv4 also.example | head -1; getent ahostsv4 tls.example
                      python3 -c \"$0\" tls.example; python3 -c \"$0\" also.example' \"$fetch\"";
    let network = shared_address("permit = true").with_rules(keys);
    let text = text_of(&network.script(script));
    // Both get the TLS of tls.example: the server there speaks nothing else.
    assert!(text.contains("10.9.8.8 ") && !text.contains("198.18."), "{text}");
    assert_eq!(text.matches("200\n").count(), 2, "{text}");
    let network = shared_address("tls = { trust = \"ca\" }").with_rules(keys);
    let text = text_of(&network.script(&format!("{script}; cat *.log")));
    assert!(!text.contains("200\n") && text.contains("refused"), "{text}");
}

#[test]
fn an_address_that_stands_for_nothing_is_refused() {
    let rule = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\nremote-ports = 7000\n\
                permit = true\n";
    let network = Network::new(&[], &format!("{ZONE}\n{SERVER}")).with_rules(rule);
    expect(&network, "run python3 -c \"$fetch\" 198.18.0.77", "Connection refused");
}

#[test]
fn datagrams_to_an_alias_reach_the_true_address() {
    let setup = r#"
printf 'tls.example A 10.9.8.8\nalso.example A 10.9.8.8\n' >>zone
start python3 -c '
import socket
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.bind(("10.9.8.8", 7002))
while True: at.sendto(*at.recvfrom(99))'
until_true sh -c "ss -Hlun 'src 10.9.8.8:7002' | grep -q ."
"#;
    let rule = "[[rule]]\nname = \"udp\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
                remote = [\"tls.example\", \"also.example\"]\nremote-ports = 7002\npermit = true\n";
    let network = Network::new(&[], &format!("{ZONE}\n{setup}")).with_rules(rule);
    let script = r#"run python3 -c '
import socket
for name in ["tls.example", "also.example"]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(10)
        one.sendto(name.encode(), (name, 7002))
        said, source = one.recvfrom(99)
        print(said.decode(), source[0])'"#;
    expect(&network, script, "tls.example 10.9.8.8\nalso.example 198.18.0.1\n");
}

#[test]
fn services_that_resolve_without_asking_the_network_are_closed_off() {
    let setup = r#"mkdir -p /run/nscd /run/systemd/resolve
        mount -t tmpfs none /run/nscd && mount -t tmpfs none /run/systemd/resolve
        start python3 -c 'import os, socket
for path in ("/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve"):
    server = socket.socket(socket.AF_UNIX); server.bind(path); os.chmod(path, 0o777)
    server.listen(); globals()["kept" + path] = server
import time; time.sleep(600)'
        until_true [ -e /run/systemd/resolve/io.systemd.Resolve ]
        go='import socket
for path in ("/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve"):
    try: socket.socket(socket.AF_UNIX).connect(path); print("open")
    except OSError as error: print(error.strerror)'"#;
    let script = "direct python3 -c \"$go\"; run python3 -c \"$go\"";
    expect(&network(setup), script, "open\nopen\nConnection refused\nConnection refused");
}

/// A second query gets the known answer, and its program connects at once.
#[test]
fn concurrent_look_ups_of_a_name_can_all_connect() {
    let together = r#"cat >together.py <<'P'
import collections, socket, threading
start, ends = threading.Barrier(40), collections.Counter()
def connect():
    start.wait()
    try: socket.create_connection(("clear.example", 7000), 20); ends["connected"] += 1
    except OSError as error: ends[type(error).__name__] += 1
threads = [threading.Thread(target=connect) for _ in range(40)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(dict(ends))
P
"#;
    let setup = format!("start python3 $PEERS/echo.py 7000; await 7000\n{together}");
    let script = "for round in $(seq 6); do run /usr/bin/python3 together.py; done";
    let said = Network::new(&[7000], &setup).ok(script);
    assert!(said.lines().all(|line| line == "{'connected': 40}"), "{said}");
    assert_eq!(said.lines().count(), 6, "{said}");
}
