//! Tests that `connect` in a program under `tacit run` returns the destination's own result:
//! success, or the same error as without tacit.

use crate::comparison::Comparison;
use crate::network::Network;

/// A web server at the name's IPv4 address alone; the other addresses of names refuse.
const WEB: &str = r#"
ip route add local 10.9.8.6/32 dev lo
mkdir -p web; echo small >web/small
start python3 -m http.server --bind 10.9.8.7 --directory web 8080 >/dev/null 2>&1
await 8080
"#;

fn web() -> Network {
    Network::new(&[8080], WEB)
}

#[test]
fn clients_fall_back_from_an_address_that_refuses() {
    // The far agent serves IPv6 too, so the name is compared by permit alone.
    let network = web().with_ipv6().with_build("CGO_ENABLED=0 go build -o client $PEERS/client.go");
    let fetch = r#"
url=http://$1.clear.example:8080/small
curl -sS $url; echo "curl $?"
wget -q -O - $url; echo "wget $?"
/usr/bin/python3 -c 'import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1]).read())' $url; echo "python $?"
node -e 'fetch(process.argv[1]).then(async got => console.log(await got.text()))' $url
echo "node $?"
java Fetch.java $url; echo "java $?"
"#;
    let java = r#"public class Fetch { public static void main(String[] a) throws Exception {
        System.out.print(new String(new java.net.URL(a[0]).openStream().readAllBytes())); } }"#;
    let said = network.ok(&format!(
        "cat >fetch.sh <<'S'\n{fetch}\nS\ncat >Fetch.java <<'J'\n{java}\nJ
         for name in dual two; do
             for way in direct run; do $way bash fetch.sh $name >$way.$name 2>$way.err; done
             diff direct.$name run.$name || cat run.err
             grep -c ' 0$' run.$name
         done"
    ));
    // Java tries the first address of a name alone, with tacit and without.
    assert!(["5\n5\n", "5\n4\n"].contains(&&*said), "{said}");
}

/// A server at port 8082 that starts when the file `scratch/open` exists, and ends with it.
const LATE: &str = r#"
cat >late.py <<'P'
import os, socket, time
while True:
    while not os.path.exists("scratch/open"):
        time.sleep(0.01)
    with socket.create_server(("10.9.8.7", 8082)) as listener:
        while os.path.exists("scratch/open"):
            time.sleep(0.01)
P
start_ordinary python3 late.py
"#;

pub const PROBES: Comparison = Comparison {
    ports: &[8080],
    servers: &[WEB, LATE],
    // Else tacit would refuse closed ports by itself, without the server's answer.
    rules: r#"
[[rule]]
name = "closed"
direction = "outbound"
remote = ["clear.example", "10.9.8.7"]
remote-ports = "8081-8082"
permit = true
"#,
    script: r#"
for port in 8080 8081; do
    nc -z $HOST $port; echo "nc $?"
    bash -c "exec 3<>/dev/tcp/$HOST/$port" 2>/dev/null; echo "bash $?"
done
curl -sv --retry 2 --retry-connrefused --retry-delay 1 http://$HOST:8081/ 2>&1 | grep -c Trying
try=0; until nc -z 10.9.8.7 8082; do try=$((try + 1)); [ $try != 3 ] || touch scratch/open; done
[ $try -ge 3 ] && echo waited
rm scratch/open
while bash -c 'exec 3<>/dev/tcp/10.9.8.7/8082' 2>/dev/null; do :; done; echo closed
"#,
    wanted: &["nc 1\nbash 1\n3\nwaited\nclosed\n"],
    ..Comparison::NONE
};

#[test]
fn probes_of_ports_see_which_are_closed() {
    PROBES.compare();
}

#[test]
fn a_pool_drops_a_server_that_is_down() {
    let said = web().ok(r#"
cat >pool.cfg <<'C'
defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
frontend front
    bind 127.0.0.1:8180
    default_backend back
backend back
    server up 10.9.8.7:8080 check inter 200
    server down 10.9.8.7:8081 check inter 200
C
cat >pool.sh <<'S'
haproxy -db -f pool.cfg 2>/dev/null & proxy=$!
until curl -s -o /dev/null http://127.0.0.1:8180/small; do sleep 0.1; done
sleep 1
for try in 1 2 3 4 5 6 7 8 9; do curl -s http://127.0.0.1:8180/small; done
kill $proxy
S
cat >>run.toml <<'P'
[[rule]]
name = "pool"
direction = "outbound"
remote = "10.9.8.7"
permit = true
P
run bash pool.sh"#);
    assert_eq!(said, "small\n".repeat(9));
}

/// A rule for the host's loopback, and a permit for two addresses with a refusal of each kind.
const REFUSALS: &str = r#"
[[rule]]
name = "prohibited"
direction = "outbound"
remote = ["10.9.8.7", "2001:db8::7"]
remote-ports = 7009
deny = "prohibited"
[[rule]]
name = "refused"
direction = "outbound"
remote = ["10.9.8.7", "2001:db8::7"]
remote-ports = 7008
deny = true
[[rule]]
name = "loopback"
direction = "outbound"
remote = "127.0.0.1"
permit = true
"#;

/// Prints what connecting to each address gives.
const CONNECT: &str = r"
import errno, socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(':', 1)
    stream = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
    code = stream.connect_ex((host.strip('[]'), int(port)))
    print(errno.errorcode.get(code, code))
";

#[test]
fn a_denied_connection_gives_the_error_of_its_rule() {
    let said = web().with_ipv6().with_rules(REFUSALS).ok(&format!(
        "run /usr/bin/python3 -c \"{CONNECT}\" 10.9.8.7:7009 '[2001:db8::7]:7009' \\
             10.9.8.7:7008 '[2001:db8::7]:7008' 192.0.2.7:80"
    ));
    let wanted = ["EHOSTUNREACH", "EACCES", "ECONNREFUSED", "ECONNREFUSED", "ECONNREFUSED"];
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn every_denied_datagram_of_a_flow_gives_the_error_of_its_rule() {
    let rules = "[[rule]]\nname = \"datagrams\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
                 remote = \"10.9.8.7\"\nremote-ports = 7010\ndeny = \"prohibited\"\n\
                 [[rule]]\nname = \"other\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
                 remote = \"10.9.8.7\"\npermit = true\n";
    let said = web().with_rules(rules).ok(r#"run /usr/bin/python3 -c '
import errno, socket
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to.settimeout(3)
to.connect(("10.9.8.7", 7010))
for _ in range(3):
    to.send(b"x")
    try: to.recv(1)
    except OSError as error: print(errno.errorcode.get(error.errno, error))
'"#);
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| *line == lines[0]), "{said}");
}

#[test]
fn a_program_that_connects_before_it_listens_can_listen_then() {
    let said = web().with_rules(REFUSALS).ok(r#"run /usr/bin/python3 -c '
import socket
for port in range(7300, 7340):
    early = socket.socket()
    assert early.connect_ex(("127.0.0.1", port)) == 111
    server = socket.socket(); server.bind(("127.0.0.1", port)); server.listen()
    late = socket.create_connection(("127.0.0.1", port)); server.accept()
print("all")'"#);
    assert_eq!(said, "all\n");
}

/// A rule whose connections succeed only when the server's certificate is verified.
fn verified(server_name: &str) -> String {
    format!(
        "[[rule]]\nname = \"verified\"\ndirection = \"outbound\"\nremote = \"10.9.8.8\"\n\
         tls = {{ trust = \"ca\", server-name = \"{server_name}\", connect = \"verified\" }}\n"
    )
}

#[test]
fn a_connect_that_waits_for_the_handshake_is_refused_with_it() {
    let fetch = "run curl -sS http://10.9.8.8:8080/small 2>&1; echo $?";
    let good = web().with_rules(&verified("tls.example")).ok(fetch);
    assert_eq!(good, "small\n0\n");
    let bad = web().with_rules(&verified("other.example")).ok(fetch);
    assert!(bad.contains("Failed to connect") && bad.ends_with("\n7\n"), "{bad}");
}

#[test]
fn a_program_that_gives_up_leaves_no_connection_behind() {
    let said = web().with_rules(REFUSALS).ok(r#"
cat >give-up.py <<'P'
import os, socket, subprocess, time
streams = [socket.socket() for _ in range(200)]
for stream in streams:
    stream.setblocking(False)
    stream.connect_ex(("127.0.0.1", 7400))
for stream in streams: stream.close()
time.sleep(4)
print("ended")
P
start python3 -c 'if True:
    import socket
    server = socket.create_server(("127.0.0.1", 7400), backlog=500)
    while True: server.accept()[0].recv(1)'
until_true eval '[ -n "$(ss -Htln sport = :7400)" ]'
run /usr/bin/python3 give-up.py
until_true eval '[ -z "$(ss -Htn state established dst 127.0.0.1:7400)" ]'"#);
    assert_eq!(said, "ended\n");
}

#[test]
fn the_agents_own_ports_are_closed_inside() {
    let said = web().ok("run python3 - <<'P'
import errno, socket
for port in (15001, 15002):
    for host in ('127.0.0.1', '192.168.77.1'):
        client = socket.socket()
        client.settimeout(5)
        print(errno.errorcode[client.connect_ex((host, port))])
P");
    assert_eq!(said, "ECONNREFUSED\n".repeat(4));
}

#[test]
fn a_connection_that_waited_for_a_permit_is_dialled_once() {
    let setup = r#"
printf '\n[limits]\nconnections = 4\n' >limits
cat >counts.py <<'P'
import socketserver
class Count(socketserver.BaseRequestHandler):
    def handle(self):
        open("count", "a").write("c")
        while self.request.recv(100):
            self.request.sendall(b"ok")
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
Server(("10.9.8.7", 7000), Count).serve_forever()
P
start python3 counts.py
await 7000
cat >asks.py <<'P'
import socket, threading, time
def ask(seconds):
    to = socket.create_connection(("clear.example", 7000))
    to.sendall(b"x")
    assert to.recv(2) == b"ok"
    time.sleep(seconds)
    to.close()
# Those that wait send their SYNs again after one second.
first = [threading.Thread(target=ask, args=(2.5,)) for _ in range(4)]
others = [threading.Thread(target=ask, args=(0.1,)) for _ in range(3)]
for thread in first: thread.start()
time.sleep(0.5)
for thread in others: thread.start()
for thread in first + others: thread.join()
time.sleep(1)
P
"#;
    let network = Network::new(&[7000], setup);
    let said = network.ok("cat limits >>run.toml; run python3 asks.py; cat count");
    assert_eq!(said, "c".repeat(7), "a server sees the connections that programs open");
}
