//! Tests programs in several languages under `tacit run`. The runtimes of these languages resolve
//! names, connect and wait in different ways.

use crate::comparison::Comparison;
use crate::network::Network;
use crate::programs::WEB;

const ECHO: &str = "start python3 $PEERS/echo.py 7000; await 7000\n";
const BUILD_GO: &str = "CGO_ENABLED=0 go build -o client $PEERS/client.go";
const BUILD_JAVA: &str = "javac -d . $PEERS/Channels.java";

/// Go resolves by itself, and its sockets are in epoll before they connect.
pub const GO: Comparison = Comparison {
    ports: &[7000, 8080],
    builds: &[BUILD_GO],
    servers: &[ECHO, WEB],
    script: "./client $HOST:7000 $HOST:8080 2>&1; file ./client",
    wanted: &["dial tcp4 10.9.8.7:9: connect: connection refused", "404 File not found"],
    ..Comparison::NONE
};

#[test]
fn a_static_go_program_sees_no_difference() {
    let same = GO.compare();
    let answers = same.lines().filter(|line| line.starts_with("10.9.8.7:7000 true")).count();
    assert_eq!(answers, 51, "{same}");
}

pub const JAVA: Comparison = Comparison {
    ports: &[7000],
    builds: &[BUILD_JAVA],
    servers: &[ECHO],
    script: "java -Xshare:auto -cp . Channels $HOST 7000 >scratch/java; echo $?
        sort scratch/java | uniq -c",
    wanted: &["20 open clear.example/10.9.8.7:7000", "20 done 300000 true"],
    ..Comparison::NONE
};

#[test]
fn java_channels_see_no_difference() {
    JAVA.compare();
}

pub const NODE: Comparison = Comparison {
    ports: &[7000, 8080],
    servers: &[ECHO, WEB],
    script: "node $PEERS/client.mjs $HOST 7000 8080 2>&1",
    wanted: &["404 10.9.8.7 "],
    ..Comparison::NONE
};

#[test]
fn node_sees_no_difference() {
    let same = NODE.compare();
    let answers = same.lines().filter(|line| *line == "10.9.8.7 IPv4 7000 true").count();
    assert_eq!(answers, 51, "{same}");
}

pub const THOUSAND: Comparison = Comparison {
    ports: &[7000],
    servers: &[ECHO],
    script: "ulimit -n 4096; /usr/bin/python3 $PEERS/clients.py $HOST 7000 1000 2>&1",
    wanted: &["1000 ('10.9.8.7', 7000) right\nstatus 0\n"],
    ..Comparison::NONE
};

#[test]
fn a_thousand_connections_at_once_see_no_difference() {
    THOUSAND.compare();
}

/// A name with addresses of both families, where the host has a route to one or to both.
const CLIENTS_OF_DUAL: &str = r#"
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

/// The host has a route for IPv4 only.
pub const DUAL: Comparison = Comparison {
    ports: &[7000, 8080],
    builds: &[BUILD_GO, BUILD_JAVA],
    servers: &[ECHO, WEB],
    script: CLIENTS_OF_DUAL,
    wanted: &[
        "20 done 300000 true",
        "200 10.9.8.7",
        "AF_INET connected",
        "AF_INET6 [Errno 101] Network is unreachable",
    ],
    ..Comparison::NONE
};

#[test]
fn clients_of_a_dual_name_use_ipv4_at_once_where_only_it_has_a_route() {
    DUAL.compare();
}

/// The host has routes for both, and servers at both.
pub const DUAL_IPV6: Comparison = Comparison {
    servers: &[
        "start python3 $PEERS/echo.py 7000 2001:db8::7; await 7000",
        WEB,
        "(cd web; exec python3 -m http.server --bind 2001:db8::7 8080 2>/dev/null) &
        background+=($!); until_true curl -s -o /dev/null http://[2001:db8::7]:8080/",
    ],
    wanted: &["20 done 300000 true", "200 2001:db8::7", "AF_INET6 connected"],
    ipv6: true,
    ..DUAL
};

#[test]
fn clients_of_a_dual_name_choose_as_without_tacit_with_both_routes() {
    DUAL_IPV6.compare();
}

#[test]
fn names_lead_where_the_host_has_a_route_even_if_it_has_no_default_route() {
    let servers = Network::new(&[7000, 8080], &format!("{ECHO}{WEB}"));
    let said = servers.ok("ip route del default
        run python3 -c 'import socket
s = socket.create_connection((\"tls.example\", 7000), 20); print(\"connected\")'");
    assert!(said.contains("connected"), "{said}");
}
