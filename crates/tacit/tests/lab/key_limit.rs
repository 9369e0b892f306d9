//! Tests how a TLS 1.2 connection ends when its key has encrypted the largest permitted amount of
//! data. The peer is `openssl`. The real limit is about 390 GB, so the test uses a lower limit.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use tacit_tls::testing::KEY_RECORDS;

use crate::harness::{Agent, Lab, connect, free_port, serve, wait_for};
use crate::programs::{Peer, client_rule, pattern, server_rule};

/// Full-size records of which six leave so few that the connection ends at the next pause.
const RECORDS: &str = "1030";
/// More than six full-size records.
const BYTES: usize = 200_000;

/// Starts `openssl` so that its standard output is payload and nothing else.
fn openssl(lab: &Lab, words: &str) -> Peer {
    let line = format!("exec openssl {words} -tls1_2 -quiet 2> openssl.log");
    Peer::start(lab.command("sh").args(["-c", &line]))
}

fn s_server(lab: &Lab) -> (Peer, u16) {
    let port = free_port();
    let identity = "-cert localhost.pem -key localhost.key -CAfile ca.pem";
    let server = openssl(lab, &format!("s_server -accept 127.0.0.1:{port} {identity}"));
    // A first connection that says nothing: the server complains of its end.
    wait_for("s_server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let log = || std::fs::read_to_string(lab.path("openssl.log")).unwrap();
    wait_for("its error message", || log().contains("unexpected eof"));
    (server, port)
}

fn warned_once(agent: &Agent) {
    agent.wait_for_log("the TLS key reached its data limit");
    assert_eq!(agent.log().matches(" warn key-limit-near ").count(), 1, "{}", agent.log());
}

/// OpenSSL complains of each connection that ends without `close_notify`: of `others` before.
fn ended_in_order(lab: &Lab, others: usize) {
    let log = std::fs::read_to_string(lab.path("openssl.log")).unwrap();
    let complaints = log.matches("unexpected eof").count();
    assert!(complaints == others && !log.contains("alert"), "{log}");
}

#[test]
fn at_the_key_limit_all_written_bytes_reach_the_server() {
    let lab = Lab::new();
    let (server, target) = s_server(&lab);
    let port = free_port();
    let rule = client_rule("out", port, target, "");
    let agent = lab.agent_with_variable(&rule, KEY_RECORDS, RECORDS);
    let mut stream = connect(("127.0.0.1", port));
    let bytes = pattern(BYTES);
    stream.write_all(&bytes).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "an orderly close");
    wait_for("all bytes", || server.said_bytes() == bytes);
    warned_once(&agent);
    ended_in_order(&lab, 1);
}

#[test]
fn at_the_key_limit_all_written_bytes_reach_the_client() {
    let lab = Lab::new();
    let port = free_port();
    let (report, reported) = mpsc::sync_channel(1);
    let app = serve(move |mut stream| {
        let mut got = vec![0; BYTES];
        stream.read_exact(&mut got).unwrap();
        stream.write_all(&pattern(BYTES)).unwrap();
        let end = stream.read(&mut [0]).map_err(|error| error.kind());
        report.send((got, end)).unwrap();
    });
    let rule = server_rule("in", port, &app.to_string(), "");
    let agent = lab.agent_with_variable(&rule, KEY_RECORDS, RECORDS);
    let words = "-CAfile ca.pem -cert alice.pem -key alice.key -nocommands";
    let mut client = openssl(&lab, &format!("s_client -connect 127.0.0.1:{port} {words}"));
    let bytes = pattern(BYTES);
    client.say(&bytes);
    wait_for("all bytes", || client.said_bytes() == bytes);
    let (got, end) = reported.recv().unwrap();
    assert!(got == bytes, "data of the peer does not count");
    assert_eq!(end, Ok(0), "an orderly close");
    assert!(client.end().succeeded);
    warned_once(&agent);
    ended_in_order(&lab, 0);
}

#[test]
fn a_program_that_continues_to_write_is_reset_after_the_close() {
    let lab = Lab::new();
    let (server, target) = s_server(&lab);
    let port = free_port();
    let rule = client_rule("out", port, target, "");
    let agent = lab.agent_with_variable(&rule, KEY_RECORDS, RECORDS);
    let bytes = pattern(40_000_000);
    let mut stream = connect(("127.0.0.1", port));
    let error = stream.write_all(&bytes).expect_err("its end");
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    warned_once(&agent);
    ended_in_order(&lab, 1);
    let limit = RECORDS.parse::<usize>().unwrap() * 16_384;
    wait_for("the sealed records", || server.said_bytes().len() > 6 * 16_384);
    let said = server.said_bytes();
    assert!(said.len() < limit && bytes.starts_with(&said), "{} bytes", said.len());
}
