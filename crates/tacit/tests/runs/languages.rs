//! Tests programs in several languages under `tacit run`. The runtimes of these languages resolve
//! names, connect and wait in different ways.

use crate::network::Network;
use crate::programs::WEB;

const ECHO: &str = "start python3 $PEERS/echo.py 7000; await 7000\n";

fn servers() -> Network {
    Network::new(&[7000, 8080], &format!("{ECHO}{WEB}"))
}

/// Go resolves by itself, and its sockets are in epoll before they connect.
#[test]
fn a_static_go_program_sees_no_difference() {
    let build = "CGO_ENABLED=0 go build -o client $PEERS/client.go";
    let same =
        servers().with_build(build).compare("./client $HOST:7000 $HOST:8080 2>&1; file ./client");
    let talks = same.lines().filter(|line| line.starts_with("10.9.8.7:7000 true")).count();
    assert_eq!(talks, 51, "{same}");
    assert!(same.contains("dial tcp4 10.9.8.7:9: connect: connection refused"), "{same}");
    assert!(same.contains("404 File not found"), "{same}");
}

#[test]
fn java_channels_see_no_difference() {
    let script = "java -Xshare:auto -cp . Channels $HOST 7000 >scratch/java; echo $?
        sort scratch/java | uniq -c";
    let same =
        Network::new(&[7000], ECHO).with_build("javac -d . $PEERS/Channels.java").compare(script);
    assert!(same.contains("20 open clear.example/10.9.8.7:7000"), "{same}");
    assert!(same.contains("20 done 300000 true"), "{same}");
}

#[test]
fn node_sees_no_difference() {
    let same = servers().compare("node $PEERS/client.mjs $HOST 7000 8080 2>&1");
    let talks = same.lines().filter(|line| *line == "10.9.8.7 IPv4 7000 true").count();
    assert_eq!(talks, 51, "{same}");
    assert!(same.contains("404 10.9.8.7 "), "{same}");
}

#[test]
fn a_thousand_connections_at_once_see_no_difference() {
    let script = "ulimit -n 4096; /usr/bin/python3 $PEERS/clients.py $HOST 7000 1000 2>&1";
    let same = Network::new(&[7000], ECHO).compare(script);
    assert_eq!(same, "1000 ('10.9.8.7', 7000) right\nstatus 0\n");
}

/// A name with addresses of both families, where the host has a route to one or to both.
const DUAL: &str = r#"
curl -sS -o /dev/null -w '%{http_code} %{remote_ip}\n' http://dual.$HOST:8080/small
wget -nv -O - http://dual.$HOST:8080/small 2>/dev/null
./client dual.$HOST:7000 dual.$HOST:8080 2>&1 | head -n 1
node $PEERS/client.mjs dual.$HOST 7000 8080 2>&1 | sed -n '2p;$p'
java -cp . Channels dual.$HOST 7000 >scratch/java; echo "java $?"; sort scratch/java | uniq -c
/usr/bin/python3 $PEERS/clients.py dual.$HOST 7000 10 2>&1
/usr/bin/python3 -c 'if True:
    import socket, sys
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            found = socket.getaddrinfo(sys.argv[1], 7000, family, socket.SOCK_STREAM)[0][4]
            with socket.socket(family) as stream: stream.connect(found)
            print(family.name, "connected")
        except OSError as error: print(family.name, error)' dual.$HOST
"#;

fn dual(network: Network) -> String {
    let network = network.with_build("CGO_ENABLED=0 go build -o client $PEERS/client.go");
    let same = network.with_build("javac -d . $PEERS/Channels.java").compare(DUAL);
    assert!(same.contains("20 done 300000 true"), "{same}");
    same
}

#[test]
fn clients_of_a_dual_name_use_ipv4_at_once_where_only_it_has_a_route() {
    let same = dual(servers());
    assert!(same.contains("200 10.9.8.7"), "{same}");
    assert!(same.contains("AF_INET connected"), "{same}");
    assert!(same.contains("AF_INET6 [Errno 101] Network is unreachable"), "{same}");
}

#[test]
fn clients_of_a_dual_name_choose_as_without_tacit_with_both_routes() {
    let echo = ECHO.replace("echo.py 7000", "echo.py 7000 2001:db8::7");
    let web6 = "(cd web; exec python3 -m http.server --bind 2001:db8::7 8080 2>/dev/null) &
        background+=($!); until_true curl -s -o /dev/null http://[2001:db8::7]:8080/";
    let setup = format!("{echo}{WEB}{web6}");
    let same = dual(Network::new(&[7000, 8080], &setup).with_ipv6());
    assert!(same.contains("200 2001:db8::7"), "{same}");
    assert!(same.contains("AF_INET6 connected"), "{same}");
}

#[test]
fn names_lead_where_the_host_has_a_route_even_if_it_has_no_default_route() {
    let said = servers().ok("ip route del default
        run python3 -c 'import socket
s = socket.create_connection((\"tls.example\", 7000), 20); print(\"connected\")'");
    assert!(said.contains("connected"), "{said}");
}
