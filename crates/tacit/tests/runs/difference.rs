//! Tests that a program sees the same connection errors with and without tacit, except for two
//! known differences. A failed TLS handshake causes a reset after `connect`, and urgent bytes of
//! relayed connections arrive like other bytes.

use crate::network::Network;

/// No listener; a route that is not there; a server that does not answer.
const TROUBLE: &str = r#"
ip route add unreachable 10.66.0.1
ip route add prohibit 10.66.0.2
(exec python3 -c 'if True:
    import socket, time
    full = socket.socket()
    full.bind(("10.9.8.7", 7003))
    full.listen(0)
    fill = [socket.socket() for _ in range(4)]
    for one in fill: one.setblocking(False); one.connect_ex(("10.9.8.7", 7003))
    time.sleep(140)') & background+=($!)
await 7003
start python3 $PEERS/echo.py 7104; await 7104
"#;

const RULES: &str = r#"
[[rule]]
name = "denied"
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 7009
deny = true
[[rule]]
name = "trouble"
direction = "outbound"
remote = ["10.9.8.7", "10.66.0.0/24"]
remote-ports = "7000-7009"
permit = true
[[rule]]
name = "trouble-tls"
direction = "outbound"
remote = ["10.9.8.7", "10.66.0.0/24"]
remote-ports = "7100-7109"
tls = { trust = "ca", server-name = "tls.example" }
"#;

fn seen(way: &str, targets: &str) -> Vec<String> {
    let network = Network::new(&[], TROUBLE).with_rules(RULES);
    let said = network.ok(&format!("{way} /usr/bin/python3 $PEERS/refusals.py {targets}"));
    said.lines().map(str::to_owned).collect()
}

/// Refused, unreachable, silent.
const OUT_OF_REACH: &str = "10.9.8.7:7001 10.66.0.1:7001 10.9.8.7:7003";

#[test]
fn an_upstream_out_of_reach_fails_at_connect_as_without_tacit() {
    let direct = seen("direct", OUT_OF_REACH);
    let ends = direct.iter().map(|line| line.rsplit(' ').next().unwrap());
    // A time limit on a socket ends a connect that waits by this.
    assert_eq!(ends.collect::<Vec<_>>(), ["ECONNREFUSED", "EHOSTUNREACH", "EINPROGRESS"]);
    assert_eq!(seen("run", OUT_OF_REACH), direct, "by permit");
    assert_eq!(seen("relayed", OUT_OF_REACH), direct, "by permit, relayed");
    let by_tls = OUT_OF_REACH.replace(":7001", ":7101");
    let direct = seen("direct", &by_tls);
    assert_eq!(seen("run", &by_tls), direct, "by tls");
}

#[test]
fn an_error_that_no_packet_can_bring_is_the_nearest_that_one_can() {
    // The host's own rule gives EACCES, which over IPv4 no other machine can.
    let direct = seen("direct", "10.66.0.2:7001");
    assert!(direct[0].ends_with("connect EACCES"), "{direct:?}");
    assert_eq!(seen("run", "10.66.0.2:7001"), direct, "the program has a socket of the host");
    let relayed = seen("relayed", "10.66.0.2:7001 10.66.0.2:7101");
    assert!(relayed.iter().all(|line| line.ends_with("connect EHOSTUNREACH")), "{relayed:?}");
}

#[test]
fn a_server_that_has_no_tls_is_a_reset_at_the_first_read_or_write() {
    let reset = "connect ok read ECONNRESET write ECONNRESET EPIPE eager EINPROGRESS ECONNRESET";
    // A reset that arrives before the program runs again is the result of its connect, as that of
    // any server that accepts and resets at once.
    let at_once = "connect ECONNRESET";
    for line in seen("run", "10.9.8.7:7104") {
        assert!(line.ends_with(reset) || line.ends_with(at_once), "{line}");
    }
}

#[test]
fn what_no_rule_lets_through_is_refused_at_connect() {
    let targets = "10.9.8.7:7009 10.9.8.7:6999 10.9.8.6:7001 192.0.2.1:80 127.0.0.1:7001";
    for line in seen("run", targets) {
        assert!(line.ends_with("connect ECONNREFUSED"), "{line}");
    }
    let absent = seen("run", "[2001:db8::7]:7001 [2001:db8::7]:6999");
    assert!(absent.iter().all(|line| line.ends_with("connect ENETUNREACH")), "{absent:?}");
}

/// Urgent data is one byte beside the stream; a relay that hands it on gives it its place in it.
#[test]
fn urgent_bytes_of_relayed_connections_arrive_in_the_stream() {
    let setup = "start python3 $PEERS/sockets_server.py 7000; await 7000";
    let network = Network::new(&[7000], setup);
    let talk = "talk() { $1 /usr/bin/python3 -c 'if True:
        import socket, sys
        stream = socket.create_connection((sys.argv[1], 7000), 20)
        stream.sendall(b\"urgent 1\\n\")
        stream.sendall(b\"before\")
        stream.send(b\"!\", socket.MSG_OOB)
        stream.sendall(b\"behind\")
        stream.shutdown(socket.SHUT_WR)
        got = b\"\".join(iter(lambda: stream.recv(100), b\"\"))
        report = socket.create_connection((sys.argv[1], 7000), 20)
        report.sendall(b\"report 1\\n\")
        print(got.decode(), b\"\".join(iter(lambda: report.recv(100), b\"\")).decode())' $2; }";
    let said = network.ok(&format!(
        "{talk}; talk direct clear.example; talk run clear.example
         talk relayed clear.example; talk run tls.example"
    ));
    let lines: Vec<_> = said.lines().collect();
    let inline = "before!behind before!behind";
    let urgent = "beforebehind beforebehind";
    assert_eq!(lines, [urgent, urgent, inline, inline]);
}
