//! Tests tacit with `openssl s_client` and `openssl s_server`: every cipher suite and version,
//! resumption, key updates, and what tacit must reject.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::harness::{Agent, Lab, connect, echo, free_port, serve, wait_for};
use crate::programs::{
    Ended, Peer, REKEY, client_rule, echo_exactly, end_and_read, only_connection, pattern,
    server_rule,
};

const BYTES: usize = 10_000_000;
const ALICE: &str = "-cert alice.pem -key alice.key";
/// A server that demands a certificate.
const PROVEN: &str = "-cert localhost.pem -key localhost.key -CAfile ca.pem -Verify 4 \
                      -verify_return_error";

/// Starts `openssl` with these words.
fn openssl(lab: &Lab, words: &str) -> Peer {
    Peer::start(lab.command("openssl").args(words.split_whitespace()))
}

fn s_client(lab: &Lab, port: u16, words: &str) -> Peer {
    let always = "-CAfile ca.pem -verify_return_error -verify_hostname localhost";
    openssl(lab, &format!("s_client -connect 127.0.0.1:{port} {always} {words}"))
}

/// Says a line and waits for it to come back.
fn echo_line(peer: &mut Peer, line: &str) {
    peer.say(format!("{line}\n"));
    peer.wait_for(&format!("{line}\n"));
}

/// Agent with one rule `in`; more of its `tls` table, and who answers behind it.
fn front(lab: &Lab, more: &str) -> (Agent, u16) {
    let port = free_port();
    (lab.agent(&server_rule("in", port, &echo().to_string(), more)), port)
}

/// An identity with an RSA key; `tacit ca` makes none.
fn issue_rsa(lab: &Lab) {
    lab.write("rsa.ext", "subjectAltName=DNS:localhost");
    for words in [
        "req -newkey rsa:2048 -nodes -keyout rsa.key -subj /CN=localhost -out rsa.csr",
        "x509 -req -in rsa.csr -CA ca.pem -CAkey ca.key -days 2 -extfile rsa.ext -out rsa.pem",
    ] {
        let Ended { said, succeeded } = openssl(lab, words).end();
        assert!(succeeded, "{said}");
    }
}

/// OpenSSL's words for a version and what it may use; what comes of it.
const AGREED: [[&str; 4]; 11] = [
    ["1_3", "-ciphersuites TLS_AES_128_GCM_SHA256", "AES_128_GCM_SHA256", "x25519"],
    ["1_3", "-ciphersuites TLS_AES_256_GCM_SHA384", "AES_256_GCM_SHA384", "x25519"],
    ["1_3", "-ciphersuites TLS_CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305_SHA256", "x25519"],
    ["1_3", "-groups P-256", "AES_128_GCM_SHA256", "secp256r1"],
    // The group guessed first is not ours: one round trip more.
    ["1_3", "-groups P-521:P-384", "AES_128_GCM_SHA256", "secp384r1"],
    ["1_2", "-groups P-256", "ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "secp256r1"],
    [
        "1_2",
        "-cipher ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "x25519",
    ],
    [
        "1_2",
        "-cipher ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "x25519",
    ],
    ["1_2", "-cipher ECDHE-RSA-AES128-GCM-SHA256", "ECDHE_RSA_WITH_AES_128_GCM_SHA256", "x25519"],
    ["1_2", "-cipher ECDHE-RSA-AES256-GCM-SHA384", "ECDHE_RSA_WITH_AES_256_GCM_SHA384", "x25519"],
    [
        "1_2",
        "-cipher ECDHE-RSA-CHACHA20-POLY1305",
        "ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "x25519",
    ],
];

#[test]
fn every_suite_and_group_is_negotiated() {
    let lab = Lab::new();
    issue_rsa(&lab);
    let port = free_port();
    let rule = server_rule("in", port, &echo().to_string(), "")
        .replace(r#"identity = "localhost""#, r#"identity = ["localhost", "rsa"]"#);
    let agent =
        lab.agent(&format!("[identity.rsa]\ncert = \"rsa.pem\"\nkey = \"rsa.key\"\n{rule}"));
    for [version, words, suite, group] in AGREED {
        // Newer versions of OpenSSL guess another group first.
        let groups = if words.contains("-groups") { "" } else { "-groups X25519:P-256" };
        let words = format!("-tls{version} {groups} {words}");
        let mut client = s_client(&lab, port, &format!("{ALICE} {words}"));
        echo_line(&mut client, "there and back");
        let shown = only_connection(&agent, "in");
        let tls = &shown["tls"];
        assert_eq!(
            [&tls["version"], &tls["suite"], &tls["group"]],
            [&version.replace('_', "."), &format!("TLS_{suite}"), group]
        );
        client.say("Q\n");
        let Ended { said, succeeded } = client.end();
        assert!(succeeded, "{words}: {said}");
        wait_for("its end", || agent.show("connections").as_array().unwrap().is_empty());
    }
}

#[test]
fn old_versions_and_wrong_keys_are_rejected_with_an_alert() {
    let lab = Lab::new();
    issue_own(&lab);
    let (agent, port) = front(&lab, r#", alpn = ["h2", "http/1.1"]"#);
    for (who, how, alert, kind) in [
        (ALICE, "-tls1_1 -cipher DEFAULT@SECLEVEL=0", "handshake failure", "no-common-version"),
        (
            ALICE,
            "-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA256",
            "handshake failure",
            "no-common-suite",
        ),
        (ALICE, "-groups P-521", "handshake failure", "no-common-group"),
        (ALICE, "-alpn smtp", "no application protocol", "no-common-alpn"),
        ("", "-tls1_2", "certificate required", "client-certificate-absent"),
        ("", "-tls1_3", "certificate required", "client-certificate-absent"),
        ("-cert own.pem -key own.key", "-tls1_2", "bad certificate", "certificate-invalid"),
        ("-cert own.pem -key own.key", "-tls1_3", "bad certificate", "certificate-invalid"),
    ] {
        let mut client = s_client(&lab, port, &format!("{who} {how}"));
        client.wait_for(&format!("alert {alert}"));
        let Ended { said, succeeded } = client.end();
        assert!(!succeeded, "{who} {how}: {said}");
        agent.wait_for_log(&format!("kind={kind} "));
    }
}

#[test]
fn a_client_without_ecdhe_is_reported_with_its_suites_and_not_its_groups() {
    let lab = Lab::new();
    let (agent, port) = front(&lab, "");
    let mut client = s_client(&lab, port, &format!("{ALICE} -tls1_2 -cipher AES128-SHA"));
    client.wait_for("alert handshake failure");
    assert!(!client.end().succeeded);
    agent.wait_for_log("kind=no-common-suite ");
    let log = agent.log();
    assert!(log.contains("offers only cipher suites without ECDHE, for example with RSA"), "{log}");
    assert!(!log.contains("kind=no-common-group"), "{log}");
}

/// A self-signed certificate.
fn issue_own(lab: &Lab) {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout own.key \
                 -subj /CN=alice -days 2 -out own.pem";
    assert!(openssl(lab, words).end().succeeded);
}

#[test]
fn alpn_and_server_name_are_negotiated() {
    let lab = Lab::new();
    let (agent, port) = front(&lab, r#", alpn = ["h2", "http/1.1"]"#);
    for version in ["-tls1_2", "-tls1_3"] {
        let words = format!("{ALICE} {version} -servername localhost -alpn http/1.1,h2");
        let mut client = s_client(&lab, port, &words);
        client.wait_for("ALPN protocol: h2");
        echo_line(&mut client, "there and back");
        assert_eq!(only_connection(&agent, "in")["tls"]["alpn"], "h2");
        client.say("Q\n");
        assert!(client.end().succeeded);
        wait_for("its end", || agent.show("connections").as_array().unwrap().is_empty());
    }
}

/// The certificate of the first handshake still counts in the resumed one.
#[test]
fn sessions_are_resumed() {
    let lab = Lab::new();
    let (agent, port) = front(&lab, "");
    for version in ["-tls1_2", "-tls1_3"] {
        for (words, resumed) in [("-sess_out", false), ("-sess_in", true)] {
            let words = format!("{ALICE} {version} {words} session{version}");
            let mut client = s_client(&lab, port, &words);
            // A TLS 1.3 ticket comes before the echo, and is used for one connection.
            echo_line(&mut client, "there and back");
            let shown = only_connection(&agent, "in");
            assert_eq!(shown["tls"]["resumed"], resumed, "{version}");
            assert_eq!(shown["tls"]["peer"]["identity"], "alice");
            client.say("Q\n");
            let Ended { said, succeeded } = client.end();
            assert!(succeeded, "{said}");
            assert_eq!(said.contains("Reused, TLS"), resumed, "{said}");
            wait_for("its end", || agent.show("connections").as_array().unwrap().is_empty());
        }
    }
}

/// `K` makes new keys and asks for ours, `k` makes new keys only.
#[test]
fn key_updates_of_a_client_are_followed() {
    let lab = Lab::new();
    let (agent, port) = front(&lab, "");
    let mut client = s_client(&lab, port, &format!("{ALICE} -tls1_3"));
    echo_line(&mut client, "before");
    for key in ["K", "k", "K", "K"] {
        client.say(format!("{key}\n"));
        client.wait_for("KEYUPDATE");
        echo_line(&mut client, &format!("after {key}"));
    }
    assert_eq!(only_connection(&agent, "in")["tls"]["rekeys"], 3);
    client.say("Q\n");
    assert!(client.end().succeeded);
}

#[test]
fn key_updates_of_a_server_are_followed() {
    let lab = Lab::new();
    let (mut server, target) = s_server(&lab, "-tls1_3");
    let port = free_port();
    let agent = lab.agent(&client_rule("out", port, target, ""));
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(b"before\n").unwrap();
    server.wait_for("before\n");
    for (at, key) in ["K", "k", "K", "K"].into_iter().enumerate() {
        server.say(format!("{key}\n"));
        // It looks at its input first: when the line is there, the new keys are.
        stream.write_all(format!("from the program {at}\n").as_bytes()).unwrap();
        server.wait_for(&format!("from the program {at}\n"));
        server.say(format!("from the server {at}\n"));
        let expected = format!("from the server {at}\n");
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), expected);
    }
    assert_eq!(only_connection(&agent, "out")["tls"]["rekeys"], 3);
    assert_eq!(end_and_read(stream), "");
}

/// An `openssl s_server` that demands a client's certificate.
fn s_server(lab: &Lab, words: &str) -> (Peer, u16) {
    let port = free_port();
    let mut server = openssl(lab, &format!("s_server -accept 127.0.0.1:{port} {PROVEN} {words}"));
    server.wait_for("ACCEPT");
    (server, port)
}

#[test]
fn a_server_is_reached_with_both_versions() {
    let lab = Lab::new();
    for (words, version) in [("-tls1_2 -rev", "1.2"), ("-tls1_3 -rev", "1.3")] {
        let (mut server, target) = s_server(&lab, words);
        let port = free_port();
        let agent = lab.agent(&client_rule("out", port, target, ""));
        let mut stream = connect(("127.0.0.1", port));
        stream.write_all(b"desserts\n").unwrap();
        let mut got = [0; 9];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"stressed\n");
        let shown = only_connection(&agent, "out");
        assert_eq!(shown["tls"]["version"], version);
        assert_eq!(shown["tls"]["server-name"], "localhost");
        server.wait_for("Peer certificate: CN = alice");
        assert_eq!(end_and_read(stream), "");
    }
}

/// Starts `openssl` so that its standard output is payload and nothing else.
fn quiet(lab: &Lab, words: &str) -> Peer {
    let line = format!("exec openssl {words} -quiet 2> openssl.log");
    Peer::start(lab.command("sh").args(["-c", &line]))
}

/// Echoes and leaves the end to the client.
fn echo_and_wait(stream: TcpStream) {
    echo_exactly(&stream, &pattern(BYTES));
    let _ = (&stream).read(&mut [0]);
}

#[test]
fn new_keys_are_made_often_with_a_client() {
    let lab = Lab::new();
    let port = free_port();
    let app = serve(echo_and_wait);
    let agent = lab.agent(&server_rule("in", port, &app.to_string(), REKEY));
    let mut client = quiet(
        &lab,
        &format!("s_client -connect 127.0.0.1:{port} -CAfile ca.pem {ALICE} -tls1_3 -nocommands"),
    );
    let bytes = pattern(BYTES);
    client.say(&bytes);
    wait_for("all bytes", || client.said_bytes() == bytes);
    assert!(only_connection(&agent, "in")["tls"]["rekeys"].as_u64().unwrap() >= 10);
}

#[test]
fn new_keys_are_made_often_with_a_server() {
    let lab = Lab::new();
    let port = free_port();
    let target = free_port();
    let mut server = quiet(&lab, &format!("s_server -accept 127.0.0.1:{target} {PROVEN} -tls1_3"));
    wait_for("s_server", || TcpStream::connect(("127.0.0.1", target)).is_ok());
    let agent = lab.agent(&client_rule("out", port, target, REKEY));
    let stream = connect(("127.0.0.1", port));
    let bytes = pattern(BYTES);
    let mut got = vec![0; BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&bytes).unwrap());
        scope.spawn(|| server.say(&bytes));
        (&stream).read_exact(&mut got).unwrap();
    });
    assert!(got == bytes);
    wait_for("all bytes", || server.said_bytes() == bytes);
    assert!(only_connection(&agent, "out")["tls"]["rekeys"].as_u64().unwrap() >= 10);
}

/// Clear text amid the records: the alert reports it, and the socket in clear is reset.
#[test]
fn clear_text_from_a_server_is_refused() {
    let lab = Lab::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let (mut server, target) = s_server(&lab, version);
        let port = free_port();
        let agent = lab.agent(&client_rule("out", port, target, ""));
        let mut stream = connect(("127.0.0.1", port));
        stream.write_all(b"hello\n").unwrap();
        server.wait_for("hello\n");
        server.say("good bytes\n");
        let mut got = [0; 11];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"good bytes\n");
        server.say("P\n");
        let end = stream.read(&mut got).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        server.wait_for("alert");
        agent.wait_for_log("which is not allowed at this point");
    }
}

#[test]
fn renegotiation_is_declined() {
    let lab = Lab::new();
    let (_agent, port) = front(&lab, "");
    let mut client = s_client(&lab, port, &format!("{ALICE} -tls1_2"));
    echo_line(&mut client, "before");
    client.say("R\n");
    client.wait_for("no renegotiation");
}
