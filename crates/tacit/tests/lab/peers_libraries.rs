//! Tests tacit with clients and servers in Go, Java and Python. These programs use the TLS
//! libraries of their languages.

use std::io::{ErrorKind, Read};

use crate::harness::{Agent, Lab, connect, echo, free_port, wait_for_or};
use crate::programs::{
    Ended, Program, REKEY, client_rule, echo_and_bye, echo_exactly, end_and_read,
    go_is_post_quantum, only_connection, pattern, server_rule,
};

const BYTES: usize = 10_000_000;

/// Rule, version, and whether new keys are made: the cases of both roles.
const CASES: [(&str, &str, bool); 3] =
    [("old", "1.2", false), ("new", "1.3", false), ("rekeyed", "1.3", true)];

#[test]
fn go_clients_are_served() {
    clients_are_served(Program::Go);
}

#[test]
fn java_clients_are_served() {
    clients_are_served(Program::Java);
}

#[test]
fn python_clients_are_served() {
    clients_are_served(Program::Python);
}

fn clients_are_served(program: Program) {
    let lab = Lab::new();
    let reads_on = !matches!(program, Program::Python);
    let app = if reads_on { echo_and_bye() } else { echo() }.to_string();
    let mut rules = String::new();
    let mut arguments = vec![];
    for (name, version, rekey) in CASES {
        let port = free_port();
        rules.push_str(&server_rule(name, port, &app, if rekey { REKEY } else { "" }));
        arguments.push(format!("{port},{version},{BYTES}"));
    }
    let agent = lab.agent(&rules);
    let mut words = vec!["client"];
    words.extend(arguments.iter().map(String::as_str));
    let mut peer = program.start(&lab, &words);
    for (name, version, rekey) in CASES {
        peer.wait_for("open");
        let shown = only_connection(&agent, name);
        assert_eq!(shown["tls"]["version"], version, "{shown}");
        assert!(shown["tls"]["peer"].to_string().contains("alice"), "{shown}");
        assert_eq!(shown["tls"]["rekeys"].as_u64().unwrap() >= 10, rekey, "{shown}");
        if matches!(program, Program::Go) && version == "1.3" && go_is_post_quantum() {
            assert_eq!(shown["tls"]["group"], "X25519MLKEM768", "{shown}");
        }
        peer.say("go on\n");
        peer.wait_for(if reads_on { "done bye" } else { "done" });
    }
    let Ended { said, succeeded } = peer.end();
    assert!(succeeded, "{said}");
    all_closed(&agent);
}

#[test]
fn go_servers_are_reached() {
    servers_are_reached(Program::Go);
}

#[test]
fn java_servers_are_reached() {
    servers_are_reached(Program::Java);
}

#[test]
fn python_servers_are_reached() {
    servers_are_reached(Program::Python);
}

fn servers_are_reached(program: Program) {
    let lab = Lab::new();
    let mut peer = program.start(&lab, &["server", "1.2", "1.3"]);
    let old = peer.port();
    let new = peer.port();
    let ports = CASES.map(|_| free_port());
    let rules: String = CASES
        .iter()
        .zip(ports)
        .map(|(&(name, version, rekey), port)| {
            let target = if version == "1.2" { old } else { new };
            client_rule(name, port, target, if rekey { REKEY } else { "" })
        })
        .collect();
    let agent = lab.agent(&rules);
    let bytes = pattern(BYTES);
    for ((name, version, rekey), port) in CASES.into_iter().zip(ports) {
        let stream = connect(("127.0.0.1", port));
        echo_exactly(&stream, &bytes);
        let shown = only_connection(&agent, name);
        assert_eq!(shown["tls"]["version"], version, "{shown}");
        assert!(shown["tls"]["peer"].to_string().contains("localhost"), "{shown}");
        assert_eq!(shown["tls"]["rekeys"].as_u64().unwrap() >= 10, rekey, "{shown}");
        if matches!(program, Program::Go) && version == "1.3" && go_is_post_quantum() {
            assert_eq!(shown["tls"]["group"], "X25519MLKEM768", "{shown}");
        }
        // In TLS 1.2 Java answers an end with its own at once, as RFC 5246 section 7.2.1 says.
        let ends_too = matches!(program, Program::Java) && version == "1.2";
        assert_eq!(end_and_read(stream), if ends_too { "" } else { "bye" });
        peer.wait_for("served");
    }
    assert!(!peer.said().contains("failed"), "{}", peer.said());
    all_closed(&agent);
}

/// Every case ended in order on both sockets.
fn all_closed(agent: &Agent) {
    let closed = || agent.log().lines().filter(|line| line.ends_with("end=closed")).count();
    wait_for_or("orderly closes", || closed() == CASES.len(), || agent.log());
}

/// A server that closes without `close_notify`: its bytes arrive, then a reset, never the end of
/// the stream, which would pass a cut for a whole answer.
#[test]
fn a_truncated_stream_ends_in_a_reset() {
    let lab = Lab::new();
    let mut peer = Program::Python.start(&lab, &["server", "cut"]);
    let port = free_port();
    let agent = lab.agent(&client_rule("out", port, peer.port(), ""));
    let mut stream = connect(("127.0.0.1", port));
    let mut got = vec![0; 100_000];
    stream.read_exact(&mut got).unwrap();
    assert!(got == pattern(100_000));
    let end = stream.read(&mut got).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    agent.wait_for_log("without close_notify");
}

/// SMTP: the server speaks first, and the client waits for it.
#[test]
fn a_server_that_sends_first_is_relayed() {
    let lab = Lab::new();
    let mut server = Program::Python.start(&lab, &["server", "smtp", "smtps"]);
    let plain = server.port();
    let tls = server.port();
    let near = free_port();
    let far = free_port();
    let middle = free_port();
    // One client role before a real TLS server, one before our own server role.
    let rules = client_rule("to-tls", near, tls, "")
        + &client_rule("to-tacit", far, middle, "")
        + &server_rule("front", middle, &format!("127.0.0.1:{plain}"), "");
    let _agent = lab.agent(&rules);
    let mut client = Program::Python.start(&lab, &["smtp", &near.to_string(), &far.to_string()]);
    for _ in 0..2 {
        client.wait_for("greeted (250, b'fine')");
    }
    let Ended { said, succeeded } = client.end();
    assert!(succeeded, "{said}");
}
