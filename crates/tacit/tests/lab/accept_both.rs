//! Tests rules with `accept = "both"`, which accept clients with and without TLS on one port.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::process::Output;
use std::time::Duration;

use crate::harness::{
    Agent, Lab, PATIENCE, connect, echo, exchange, free_port, serve, text_of, wait_for,
};
use crate::peers::{connect_from, is_reset};

/// A rule at a port, with more keys in its `tls` table.
fn rule(port: u16, to: SocketAddr, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"both\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{to}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\", \
         accept = \"both\"{more} }}\n"
    )
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A web server that answers every request with `hello`.
fn http_server() -> SocketAddr {
    serve(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let answer = b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
        let _ = stream.write_all(answer);
        let _ = stream.shutdown(Shutdown::Write);
    })
}

/// Requests the page from an address of this host.
fn curl(lab: &Lab, source: &str, url: &str) -> Output {
    let arguments = ["-sS", "-m", "20", "--cacert", "ca.pem", "--interface", source, url];
    lab.run("curl", &arguments)
}

fn gets_the_page(output: &Output) -> bool {
    output.status.success() && text_of(output).contains("hello")
}

#[test]
fn one_port_serves_clients_with_and_without_tls() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule(port, http_server(), ""));
    let https = format!("https://localhost:{port}/");
    let http = format!("http://localhost:{port}/");
    for (source, url) in [("127.0.0.2", &http), ("127.0.0.3", &https), ("127.0.0.2", &http)] {
        let output = curl(&lab, source, url);
        assert!(gets_the_page(&output), "{source} {url}: {output:?}");
    }
    agent.wait_for_log("accepted-in-clear");
    let log = agent.log();
    assert!(log.contains("accepted-in-clear") && log.contains("127.0.0.2"), "{log}");
    // The audit log is written after a client has its answer.
    let is_logged = || agent.audit().matches("\"opened\"").count() >= 3;
    wait_for("the audit log of three connections", is_logged);
    let audit = agent.audit();
    let opened: Vec<_> = audit.lines().filter(|line| line.contains("\"opened\"")).collect();
    let clear = opened.iter().filter(|line| line.contains("\"tls\":\"none\"")).count();
    assert_eq!((opened.len(), clear), (3, 2), "{audit}");
    // The third source has used TLS, and stays protected.
    let output = curl(&lab, "127.0.0.3", &http);
    assert!(!output.status.success(), "{output:?}");
    assert!(gets_the_page(&curl(&lab, "127.0.0.3", &https)));
}

#[test]
fn not_a_byte_of_a_client_in_clear_is_lost() {
    let lab = Lab::new();
    let port = free_port();
    let _agent = lab.agent(&rule(port, echo(), ""));
    let mut stream = connect(at(port));
    stream.set_nodelay(true).unwrap();
    for byte in b"in pieces" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut back = [0; 9];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"in pieces");
    let long: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    assert!(exchange(stream, &long) == long, "the stream differs");
}

#[test]
fn a_server_that_speaks_first_greets_the_listed_clients_at_once() {
    let lab = Lab::new();
    let banner = serve(|mut stream| {
        let _ = stream.write_all(b"220 ready\r\n");
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let port = free_port();
    let _agent = lab.agent(&rule(port, banner, ", clear-sources = \"127.0.0.8/30\""));
    let mut greeting = [0; 11];
    connect_from("127.0.0.9", at(port)).read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
    // A client that is not listed needs TLS.
    let mut other = connect_from("127.0.0.5", at(port));
    other.write_all(b"EHLO me\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = other.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"220"), "{answer:?}");
    let to = format!("127.0.0.1:{port}");
    let s_client =
        ["s_client", "-quiet", "-connect", &to, "-bind", "127.0.0.5", "-CAfile", "ca.pem"];
    let output = lab.run("openssl", &s_client);
    assert!(text_of(&output).contains("220 ready"), "{output:?}");
}

#[test]
fn a_client_that_sends_nothing_has_until_the_handshake_timeout() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule(port, echo(), ", handshake-timeout = \"1s\""));
    let mut silent = connect(at(port));
    assert!(is_reset(&mut silent) || silent.read(&mut [0]).is_ok_and(|count| count == 0));
    agent.wait_for_log("handshake");
}

#[test]
fn clear_ends_at_a_time() {
    let lab = Lab::new();
    let port = free_port();
    let _agent = lab.agent(&rule(port, http_server(), ", clear-until = \"2020-01-01T00:00:00Z\""));
    let output = curl(&lab, "127.0.0.2", &format!("http://localhost:{port}/"));
    assert!(!output.status.success(), "{output:?}");
    assert!(gets_the_page(&curl(&lab, "127.0.0.2", &format!("https://localhost:{port}/"))));
}

/// Waits until a successor serves, after `tacit restart`.
fn restart(agent: &Agent) {
    let before = agent.log().matches(" serving ").count();
    agent.ok(&["restart"]);
    let serves = || agent.log().matches(" serving ").count() > before;
    wait_for("the successor to serve", serves);
}

#[test]
fn a_source_that_used_tls_needs_it_after_a_reload_and_a_restart() {
    let lab = Lab::new();
    let port = free_port();
    let server = http_server();
    let agent = lab.agent(&rule(port, server, ""));
    let http = format!("http://localhost:{port}/");
    assert!(gets_the_page(&curl(&lab, "127.0.0.3", &format!("https://localhost:{port}/"))));
    agent.write_policy(&rule(port, server, ", min-version = \"1.3\""));
    agent.ok(&["reload"]);
    assert!(!curl(&lab, "127.0.0.3", &http).status.success());
    restart(&agent);
    assert!(!curl(&lab, "127.0.0.3", &http).status.success());
    assert!(gets_the_page(&curl(&lab, "127.0.0.2", &http)), "another source is not affected");
}

#[test]
fn close_clear_ends_connections_in_clear_and_accepts_no_more() {
    let lab = Lab::new();
    let port = free_port();
    let web = free_port();
    let web_rule = rule(web, http_server(), "").replace("\"both\"\nlisten", "\"web\"\nlisten");
    let agent = lab.agent(&(rule(port, echo(), "") + &web_rule));
    let mut open = connect(at(port));
    open.write_all(b"x").unwrap();
    open.read_exact(&mut [0]).unwrap();
    let printed = agent.ok(&["close", "--clear"]);
    assert!(printed.contains('1'), "{printed}");
    assert!(is_reset(&mut open));
    for _ in 0..2 {
        let mut refused = connect(at(port));
        refused.set_read_timeout(Some(PATIENCE)).unwrap();
        refused.write_all(b"in clear").unwrap();
        let mut answer = Vec::new();
        let _ = refused.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"in clear"), "{answer:?}");
        restart(&agent);
    }
    assert!(!curl(&lab, "127.0.0.2", &format!("http://localhost:{web}/")).status.success());
    assert!(gets_the_page(&curl(&lab, "127.0.0.2", &format!("https://localhost:{web}/"))));
}

/// A client that sends its first bytes when the rule accepts no client in clear any more.
fn assert_refused(mut client: std::net::TcpStream) {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"in clear").unwrap();
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"in clear"), "{answer:?}");
}

#[test]
fn close_clear_and_clear_until_apply_to_a_client_that_has_sent_nothing_yet() {
    let lab = Lab::new();
    let [closed, replaced, timed] = [(); 3].map(|()| free_port());
    let named = |name: &str, rule: String| rule.replace("\"both\"\nlisten", name);
    let of_replaced = named("\"replaced\"\nlisten", rule(replaced, echo(), ""));
    let until = jiff::Timestamp::now() + Duration::from_secs(3);
    let of_timed = rule(timed, echo(), &format!(", clear-until = \"{until}\""));
    let kept = rule(closed, echo(), "") + &named("\"timed\"\nlisten", of_timed);
    let agent = lab.agent(&(kept.clone() + &of_replaced));
    let [of_closed, of_replaced_rule, of_timed] =
        [closed, replaced, timed].map(|port| connect(at(port)));
    wait_for("the clients", || agent.show("connections").as_array().unwrap().len() == 3);
    agent.write_policy(&(kept + &of_replaced.replace(", accept = \"both\"", "")));
    agent.ok(&["reload"]);
    wait_for("the time", || jiff::Timestamp::now() > until);
    assert_refused(of_timed);
    agent.ok(&["close", "--clear"]);
    assert_refused(of_closed);
    assert_refused(of_replaced_rule);
    assert!(!agent.log().contains("accepted-in-clear"), "{}", agent.log());
}

#[test]
fn close_clear_applies_to_a_client_whose_connection_is_being_dialled() {
    let lab = Lab::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    // A queue for one connection: the kernel drops further SYNs until it is accepted.
    rustix::net::listen(&server, 0).unwrap();
    let address = server.local_addr().unwrap();
    let _first = connect(address);
    let port = free_port();
    let agent = lab.agent(&rule(port, address, ""));
    let mut client = connect(at(port));
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"in clear").unwrap();
    agent.wait_for_log("accepted-in-clear");
    agent.ok(&["close", "--clear"]);
    server.accept().unwrap();
    let mut received = Vec::new();
    let _ = server.accept().unwrap().0.read_to_end(&mut received);
    assert!(is_reset(&mut client));
}
