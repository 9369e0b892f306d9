//! Tests STARTTLS exchanges between two agents. The programs on both sides do not use TLS. Also
//! tests how an agent reacts to peers that violate the protocol.
//!
//! Real peers are tested in `starttls_smtp.rs`, `starttls_postgres.rs` and `starttls_telnet.rs`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Agent, Lab, connect, echo, exchange, free_port, serve, wait_for};
use crate::lane::engine_table;
use crate::programs::{echo_exactly, only_connection, pattern};
use crate::proxy::{CLIENT, HEADER};

/// A PostgreSQL client's first words: enough for an exchange, and then anything may follow.
const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";
const CANCEL: &[u8] = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02";
const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A rule whose TLS begins after an exchange.
pub fn rule(name: &str, role: &str, listen: u16, connect: &str, starttls: &str) -> String {
    let role = match role {
        "server" => r#"role = "server", identity = "localhost", client-cert = "none""#,
        _ => r#"role = "client", trust = "ca""#,
    };
    format!(
        "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{listen}\"\nconnect = \"{connect}\"\n\
         log = true\ntls = {{ {role}, starttls = {starttls} }}\n"
    )
}

/// An agent that speaks to itself between two programs in clear; the port of the first.
fn pair(lab: &Lab, top: &str, starttls: &str, connect: SocketAddr) -> (Agent, u16) {
    let near = free_port();
    let far = free_port();
    let rules = rule("near", "client", near, &format!("localhost:{far}"), starttls)
        + &rule("far", "server", far, &connect.to_string(), starttls);
    (lab.agent(&format!("{top}\n{rules}")), near)
}

/// What a program that knows SMTP in clear does, and what it must not be shown.
fn greet(stream: &mut TcpStream) {
    assert_eq!(read_line(stream), "220 ready\r\n");
    stream.write_all(b"EHLO me\r\n").unwrap();
    assert_eq!(read_line(stream), "250-hello\r\n");
    assert_eq!(read_line(stream), "250 AUTH PLAIN\r\n");
}

fn read_line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') && stream.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// A mail server in clear that answers one EHLO a connection, and then sends back what it gets.
fn mail_server() -> SocketAddr {
    mail_server_behind(&[])
}

/// The same, which says nothing to who does not begin with this.
fn mail_server_behind(header: &'static [u8]) -> SocketAddr {
    serve(move |mut stream| {
        let mut first = vec![0; header.len()];
        if stream.read_exact(&mut first).is_err() || first != header {
            return;
        }
        stream.write_all(b"220 ready\r\n").unwrap();
        loop {
            match read_line(&mut stream).as_str() {
                "EHLO me\r\n" => stream.write_all(b"250-hello\r\n250 AUTH PLAIN\r\n").unwrap(),
                "QUIT\r\n" => return stream.write_all(b"221 bye\r\n").unwrap(),
                "" => return,
                line => {
                    stream.write_all(line.as_bytes()).unwrap();
                    break;
                }
            }
        }
        let mut reader = stream.try_clone().unwrap();
        if std::io::copy(&mut reader, &mut stream).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
    })
}

/// Both ends in clear, TLS in between, on data workers and on engines.
#[test]
fn programs_in_clear_meet_under_tls() {
    let lab = Lab::new();
    let engine = engine_table("").unwrap_or_default();
    let bytes = pattern(3 << 20);
    for top in [String::new(), engine] {
        let (agent, port) = pair(&lab, &top, "\"postgres\"", echo());
        let mut stream = connect(("127.0.0.1", port));
        stream.write_all(SSL_REQUEST).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"N");
        echo_exactly(&stream, STARTUP);
        echo_exactly(&stream, &bytes);
        let total = (STARTUP.len() + bytes.len()) as u64;
        for name in ["near", "far"] {
            let shown = only_connection(&agent, name);
            assert_eq!(shown["starttls"]["state"], "tls", "{shown}");
            assert_eq!((&shown["bytes-in"], &shown["bytes-out"]), (&total.into(), &total.into()));
        }
        drop(stream);

        let (_agent, port) = pair(&lab, &top, "\"smtp\"", mail_server());
        let mut stream = connect(("127.0.0.1", port));
        greet(&mut stream);
        echo_exactly(&stream, b"MAIL FROM:<a@b>\r\n");
        echo_exactly(&stream, &bytes);
        assert_eq!(exchange(stream, b"the end"), b"the end");

        let (_agent, port) = pair(&lab, &top, "\"telnet\"", echo());
        let stream = connect(("127.0.0.1", port));
        echo_exactly(&stream, b"\xff\xfb\x18hello");
        echo_exactly(&stream, &bytes);
        assert_eq!(exchange(stream, b"the end"), b"the end");
    }
}

/// A program that ends while the exchange continues under TLS is no different from one that does
/// not.
#[test]
fn ends_pass_while_the_exchange_goes_on() {
    let lab = Lab::new();
    let (agent, port) = pair(&lab, "", "\"smtp\"", mail_server());
    let mut stream = connect(("127.0.0.1", port));
    greet(&mut stream);
    assert_eq!(exchange(stream, b"QUIT\r\n"), b"221 bye\r\n");
    let mut stream = connect(("127.0.0.1", port));
    greet(&mut stream);
    assert_eq!(exchange(stream, b""), b"");
    wait_for("both to be closed", || agent.log().matches("end=closed").count() == 4);
}

/// The greeting needs the server before TLS, and what continues under TLS another one.
#[test]
fn a_proxy_header_goes_before_the_exchange_and_to_both_servers() {
    let lab = Lab::new();
    let near = free_port();
    let far = free_port();
    let with = |rule: String, words: &str| rule.replace("log = true", words);
    let server = mail_server_behind(&HEADER).to_string();
    let accept = "accept-proxy = true\n";
    let send = "send-proxy = true\n";
    let near_rule = rule("near", "client", near, &format!("localhost:{far}"), "\"smtp\"");
    let far_rule = rule("far", "server", far, &server, "\"smtp\"");
    let both = format!("{accept}{send}");
    let agent = lab.agent(&(with(near_rule, &both) + &with(far_rule, &both)));
    let mut stream = connect(("127.0.0.1", near));
    stream.write_all(&HEADER).unwrap();
    greet(&mut stream);
    echo_exactly(&stream, b"MAIL FROM:<a@b>\r\n");
    assert_eq!(only_connection(&agent, "far")["client"], CLIENT);
}

/// A control connection is read to its end: what was said before that counts.
#[test]
fn commands_that_an_end_follows_are_answered() {
    let lab = Lab::new();
    let server = serve(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        loop {
            match read_line(&mut stream).as_str() {
                "QUIT\r\n" => return stream.write_all(b"221 bye\r\n").unwrap(),
                "" => return,
                line => stream.write_all(format!("200 {line}").as_bytes()).unwrap(),
            }
        }
    });
    let (agent, port) = pair(&lab, "", "\"ftp\"", server);
    for said in ["NOOP 1\r\nNOOP 2\r\nQUIT\r\n", "NOOP 1\r\nNOOP 2\r\n", ""] {
        let mut stream = connect(("127.0.0.1", port));
        assert_eq!(read_line(&mut stream), "220 ready\r\n");
        let answers = said.replace("NOOP", "200 NOOP").replace("QUIT", "221 bye");
        assert_eq!(exchange(stream, said.as_bytes()), answers.as_bytes());
    }
    wait_for("all to be closed", || agent.log().matches("end=closed").count() == 6);
}

/// What the one who sits in between may do before TLS is to be refused, or nothing.
#[test]
fn bytes_that_are_slipped_in_are_refused() {
    let lab = Lab::new();
    for (starttls, said, reason) in [
        ("postgres", &b"SR\0\0\0\x08\0\0\0\0"[..], "sent extra data in clear"),
        ("postgres", b"N", "the server does not offer TLS"),
        (
            "smtp",
            b"220 x\r\n250-x\r\n250 STARTTLS\r\n220 go\r\n250 AUTH PLAIN\r\n",
            "the server sent a reply that tacit did not request",
        ),
        ("telnet", b"login: ", "the server does not offer TLS"),
    ] {
        let server = serve(move |mut stream| {
            let _ = stream.write_all(said);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let port = free_port();
        let starttls = format!("\"{starttls}\"");
        let target = format!("localhost:{}", server.port());
        let agent = lab.agent(&rule("near", "client", port, &target, &starttls));
        let mut stream = connect(("127.0.0.1", port));
        stream.write_all(STARTUP).unwrap();
        agent.wait_for_log("kind=starttls ");
        assert!(agent.log().contains(reason), "{}", agent.log());
    }
}

#[test]
fn a_peer_that_sends_nothing_or_too_much_is_rejected() {
    let lab = Lab::new();
    let quiet = free_port();
    let long = free_port();
    let soon = "\"telnet\", handshake-timeout = \"1s\"";
    let target = echo().to_string();
    let agent = lab.agent(
        &(rule("quiet", "server", quiet, &target, soon)
            + &rule("long", "server", long, &target, "\"telnet\"")),
    );
    let silent = connect(("127.0.0.1", quiet));
    let shown = || agent.show("connections").as_array().unwrap().clone();
    wait_for("the exchange to be shown", || {
        shown().iter().any(|one| one["starttls"]["state"] == "exchange")
    });
    agent.wait_for_log("kind=starttls-timeout");
    drop(silent);
    let mut stream = connect(("127.0.0.1", long));
    stream.write_all(&[b'x'; 5000]).unwrap();
    agent.wait_for_log("longer than tacit allows");
}

#[test]
fn who_sends_much_before_it_reads_is_answered_to_the_end() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule("far", "server", port, &mail_server().to_string(), "\"smtp\""));
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(&[b'\n'; 20_000]).unwrap();
    stream.write_all(b"STARTTLS\r\n").unwrap();
    assert_eq!(read_line(&mut stream), "220 ready\r\n");
    let mut answers = std::io::BufRead::lines(std::io::BufReader::new(&stream));
    let is_refused = |line: &String| line.starts_with("530 ");
    let refused = answers.by_ref().map(Result::unwrap).take_while(is_refused).count();
    assert_eq!(refused, 20_000, "{}", agent.log());
}

#[test]
fn an_operator_may_close_an_exchange() {
    let lab = Lab::new();
    let port = free_port();
    let agent = lab.agent(&rule("far", "server", port, &echo().to_string(), "\"telnet\""));
    let mut stream = connect(("127.0.0.1", port));
    wait_for("the connection", || !agent.show("connections").as_array().unwrap().is_empty());
    let id = only_connection(&agent, "far")["id"].to_string();
    agent.ok(&["close", &id]);
    agent.wait_for_log("an operator closed the connection");
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).is_err() || rest == [0xff, 0xfd, 46]);
}

#[test]
fn optional_serves_in_clear_and_reports_it() {
    let lab = Lab::new();
    let port = free_port();
    let optional = "{ protocol = \"postgres\", mode = \"optional\" }";
    let agent = lab.agent(&rule("far", "server", port, &echo().to_string(), optional));
    let stream = connect(("127.0.0.1", port));
    echo_exactly(&stream, STARTUP);
    echo_exactly(&stream, &pattern(100_000));
    let shown = only_connection(&agent, "far");
    assert_eq!(shown["starttls"]["state"], "clear");
    assert_eq!(shown["tls"], Value::Null);
    let total = STARTUP.len() + 100_000;
    assert_eq!((&shown["bytes-in"], &shown["bytes-out"]), (&total.into(), &total.into()));
    let table = agent.ok(&["show", "connections"]);
    assert!(table.lines().nth(1).unwrap().contains(" clear "), "{table}");
    agent.wait_for_log("starttls=clear");
    assert_eq!(exchange(stream, b"the end"), b"the end");
}

/// A server that says something and waits for more gets one message, and its words reach no client.
#[test]
fn nothing_but_the_cancel_request_passes_in_clear() {
    let lab = Lab::new();
    let (sender, receiver) = mpsc::channel();
    let server = serve(move |mut stream| {
        let mut request = vec![0; CANCEL.len()];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(b"a secret").unwrap();
        sender.send(request).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        sender.send(rest).unwrap();
    });
    let port = free_port();
    let passes = "{ protocol = \"postgres\", cancel = \"clear\" }";
    let agent = lab.agent(&rule("far", "server", port, &server.to_string(), passes));
    let received = || receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    for more in [&b"Q\0\0\0\x0dselect 1"[..], CANCEL] {
        let mut stream = connect(("127.0.0.1", port));
        stream.write_all(&CANCEL[..7]).unwrap();
        stream.write_all(&CANCEL[7..]).unwrap();
        assert_eq!(received(), CANCEL);
        stream.write_all(more).unwrap();
        assert_eq!(received(), b"");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    wait_for("both ends", || {
        agent.log().matches("the client sent data after the PostgreSQL cancel request").count() == 2
    });
    // A client may end first, as those do that wait for nothing.
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(CANCEL).unwrap();
    assert_eq!(received(), CANCEL);
    drop(stream);
    assert_eq!(received(), b"");
    agent.wait_for_log("end=closed");
    // More in the same segment is no request that passes.
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(&[CANCEL, b"Q"].concat()).unwrap();
    agent.wait_for_log("kind=starttls ");
    assert!(receiver.try_recv().is_err());
}
