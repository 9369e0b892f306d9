//! Tests the TLS settings of rules: versions, cipher suites, groups, ALPN, server names, timeouts.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::certificates::{self, Ca, LeafKind};
use crate::harness::{Agent, Lab, connect, echo, free_port, text_of};
use crate::peers::{TlsClient, TlsServer, exchange, is_reset, ping, write_pair};

/// An agent with one server rule before an echo.
fn server(lab: &Lab, tls: &str) -> (Agent, u16) {
    let port = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"none\", {tls} }}\n",
        echo()
    ));
    (agent, port)
}

/// An agent with one client rule to a server.
fn client(lab: &Lab, to: u16, tls: &str) -> (Agent, u16) {
    let port = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"out\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"localhost:{to}\"\n\
         tls = {{ role = \"client\", trust = \"ca\", {tls} }}\n"
    ));
    (agent, port)
}

fn shown(agent: &Agent) -> Value {
    agent.show("connections")[0]["tls"].clone()
}

#[test]
fn both_versions_are_spoken_and_min_version_holds() {
    let lab = Lab::new();
    let (_, port) = &server(&lab, "");
    for version in ["1.2", "1.3"] {
        let result = TlsClient::run(&lab, *port, &json!({ "max": version, "ca": "ca.pem" }));
        assert_eq!(result["version"], format!("TLSv{version}"), "{result}");
        assert_eq!(result["reply"], "ping", "{result}");
        let suite = result["cipher"].as_str().unwrap();
        assert!(suite.contains("AES128") || suite.contains("AES_128"), "{suite}");
    }
    let (agent, port) = server(&lab, "min-version = \"1.3\"");
    let result = TlsClient::run(&lab, port, &json!({ "max": "1.2" }));
    assert!(result["error"].is_string(), "{result}");
    agent.wait_for_log(
        "the client supports only TLS 1.2 and older versions, but the rule's `min-version` is \
             newer",
    );
    let old = TlsServer::start(&lab, &with_version("1.2"));
    let (agent, port) = client(&lab, old.port, "min-version = \"1.3\"");
    assert!(is_reset(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("min-version");
}

fn with_version(version: &str) -> Value {
    let mut options = certificates::with("localhost");
    options["min"] = json!("1.1");
    options["max"] = json!(version);
    options
}

#[test]
fn old_versions_are_refused_by_name_in_both_roles() {
    let lab = Lab::new();
    let (agent, port) = server(&lab, "");
    for version in ["1.0", "1.1"] {
        let options = json!({ "min": version, "max": version, "ciphers": "ALL:@SECLEVEL=0" });
        let result = TlsClient::run(&lab, port, &options);
        assert!(result["error"].is_string(), "{result}");
        agent.wait_for_log(&format!(
            "uses TLS {version}, which tacit rejects: update the client to TLS 1.2"
        ));
    }
    // An SSL 3.0 hello: no library here still writes one.
    let mut hello = vec![0x16, 3, 0, 0, 45, 1, 0, 0, 41, 3, 0];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(&hello).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&0x15), "an alert");
    agent.wait_for_log("uses SSL 3.0, which tacit rejects");

    let old = TlsServer::start(&lab, &with_version("1.1"));
    let (agent, port) = client(&lab, old.port, "");
    assert!(is_reset(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("TLS 1.2 or 1.3");
}

#[test]
fn suites_and_groups_are_those_of_the_rule_in_its_order() {
    let lab = Lab::new();
    for (tls, version, cipher, group) in [
        ("", "1.3", "TLS_AES_128_GCM_SHA256", "x25519"),
        (
            "suites = [\"TLS_CHACHA20_POLY1305_SHA256\"], groups = [\"secp384r1\"]",
            "1.3",
            "TLS_CHACHA20_POLY1305_SHA256",
            "secp384r1",
        ),
        (
            "suites = \"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384\", groups = \"secp256r1\"",
            "1.2",
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            "secp256r1",
        ),
    ] {
        let (agent, port) = server(&lab, tls);
        let client = TlsClient::open(&lab, port, &json!({}));
        assert_eq!(client.result["cipher"], cipher, "{tls}: {}", client.result);
        let shown = shown(&agent);
        assert_eq!((&shown["version"], &shown["group"]), (&json!(version), &json!(group)), "{tls}");
    }
    let (agent, port) = server(&lab, "suites = [\"TLS_AES_256_GCM_SHA384\"]");
    let result = TlsClient::run(&lab, port, &json!({ "max": "1.2" }));
    assert!(result["error"].is_string(), "{result}");
    agent.wait_for_log("min-version");
}

#[test]
fn two_agents_agree_on_the_hybrid_group() {
    let lab = Lab::new();
    let (server, to) = server(&lab, "");
    let (client, port) = client(&lab, to, "");
    let mut stream = connect(("127.0.0.1", port));
    assert!(ping(&mut stream));
    for agent in [&server, &client] {
        let shown = shown(agent);
        assert_eq!(shown["group"], "X25519MLKEM768", "{shown}");
        assert_eq!(shown["suite"], "TLS_AES_128_GCM_SHA256", "{shown}");
    }
}

#[test]
fn an_application_protocol_is_agreed_or_the_handshake_refused() {
    let lab = Lab::new();
    let (agent, port) = server(&lab, "alpn = [\"h2\", \"http/1.1\"]");
    for (offer, agreed) in
        [(json!(["http/1.1"]), json!("http/1.1")), (json!(["http/1.1", "h2"]), json!("h2"))]
    {
        let client = TlsClient::open(&lab, port, &json!({ "alpn": offer }));
        assert_eq!(client.result["alpn"], agreed, "{}", client.result);
        let all = agent.show("connections");
        assert_eq!(all.as_array().unwrap().last().unwrap()["tls"]["alpn"], agreed);
    }
    let result = TlsClient::run(&lab, port, &json!({ "alpn": ["postgresql"] }));
    assert!(result["error"].as_str().unwrap().contains("no application protocol"), "{result}");
    agent.wait_for_log("offers none of the rule's application protocols");
    assert_eq!(TlsClient::run(&lab, port, &json!({}))["reply"], "ping", "not offered at all");
    let mut options = certificates::with("localhost");
    options["alpn"] = json!(["imap"]);
    let mut other = TlsServer::start(&lab, &options);
    let (_agent, port) = client(&lab, other.port, "alpn = [\"x\", \"imap\"]");
    assert_eq!(exchange(Box::new(connect(("127.0.0.1", port))), b"a").unwrap(), b"a");
    assert_eq!(other.next()["alpn"], "imap");
}

#[test]
fn the_name_a_client_asks_for_chooses_the_identity() {
    let lab = Lab::new();
    let other = Ca::new("other CA").leaf(LeafKind::Valid);
    write_pair(&lab, "db", &other.cert_pem, &other.key_pem);
    let port = free_port();
    let _agent = lab.agent(&format!(
        "[identity.db]\ncert = \"db.pem\"\nkey = \"db.key\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = [\"localhost\", \"db\"], \
         client-cert = \"none\" }}\n",
        echo()
    ));
    // The client trusts only one of the two CAs, so its result shows which server it reached.
    lab.write("both.pem", [std::fs::read_to_string(lab.path("ca.pem")).unwrap()].concat());
    for (name, believed) in
        [(Some("localhost"), true), (None, true), (Some("unknown.example"), true)]
    {
        let mut options = json!({ "ca": "both.pem" });
        if let Some(name) = name {
            options["name"] = json!(name);
        }
        let result = TlsClient::run(&lab, port, &options);
        assert_eq!(result["reply"] == "ping", believed, "{name:?}: {result}");
    }
    let result = TlsClient::run(&lab, port, &json!({ "ca": "both.pem", "name": "db.example" }));
    assert!(result["error"].as_str().unwrap().contains("CERTIFICATE_VERIFY_FAILED"), "{result}");
}

#[test]
fn a_hello_in_single_bytes_is_understood() {
    let lab = Lab::new();
    let (_agent, port) = server(&lab, "");
    let result = TlsClient::run(&lab, port, &json!({ "piece": 1 }));
    assert_eq!(result["reply"], "ping", "{result}");
}

#[test]
fn a_peer_that_stalls_is_closed_and_delays_no_other() {
    let lab = Lab::new();
    let (agent, port) = server(&lab, "handshake-timeout = \"1s\"");
    let mut silent = connect(("127.0.0.1", port));
    let mut half = connect(("127.0.0.1", port));
    half.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).unwrap();
    assert_eq!(TlsClient::run(&lab, port, &json!({}))["reply"], "ping");
    for stream in [&mut silent, &mut half] {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
    agent.wait_for_log("the client did not complete the handshake within 1s");
    assert!(agent.log().contains("kind=handshake-timeout"), "{}", agent.log());

    // The other way round: a server that accepts and says nothing.
    let mute = crate::harness::serve(|stream| {
        std::thread::sleep(Duration::from_secs(5));
        drop(stream);
    });
    let (agent, port) = client(&lab, mute.port(), "handshake-timeout = \"1s\"");
    assert!(is_reset(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("the server did not complete the handshake within 1s");
}

#[test]
fn plain_http_spoken_to_a_tls_rule_is_named() {
    let lab = Lab::new();
    let (agent, port) = server(&lab, "");
    let mut stream = connect(("127.0.0.1", port));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|word| word == b"HTTP"));
    agent.wait_for_log("the client sent plain HTTP, not TLS, on this port: use https:// on");
    let plain = crate::harness::serve(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let (agent, port) = client(&lab, plain.port(), "");
    assert!(is_reset(&mut connect(("127.0.0.1", port))));
    agent.wait_for_log("the server sent plain HTTP, not TLS, on this port: connect to the port");
}

/// Runs `openssl s_client` until it has what comes after the handshake.
fn s_client(lab: &Lab, port: u16, more: &[&str]) -> String {
    let command = format!(
        "(sleep 0.3; echo Q) | openssl s_client -connect 127.0.0.1:{port} -CAfile ca.pem {}",
        more.join(" ")
    );
    text_of(&lab.run("sh", &["-c", &command]))
}

#[test]
fn sessions_are_resumed_unless_the_rule_says_no_and_early_data_never_is() {
    let lab = Lab::new();
    lab.write("early", "early");
    for (tls, resumes) in [("", true), ("resumption = false", false)] {
        let (_agent, port) = server(&lab, tls);
        for version in ["-tls1_2", "-tls1_3"] {
            let session = format!("session-{resumes}{version}");
            let first = s_client(&lab, port, &[version, "-sess_out", &session]);
            assert!(first.contains("Verify return code: 0 (ok)"), "{first}");
            if !lab.path(&session).exists() {
                assert!(!resumes, "{version}: {first}");
                continue;
            }
            let more = [version, "-sess_in", &session];
            let early = ["-early_data", "early"];
            let again = match version {
                "-tls1_3" => s_client(&lab, port, &[&more[..], &early].concat()),
                _ => s_client(&lab, port, &more),
            };
            assert_eq!(again.contains("Reused, TLS"), resumes, "{tls} {version}: {again}");
            assert!(!again.contains("Early data was accepted"), "{again}");
            assert!(!first.contains("Max Early Data: 1"), "{first}");
        }
    }
}
