//! Tests revoked certificates, in the client role and in the server role. The tests load and
//! replace revocation lists (CRLs) in a running agent.

use std::io::Write;

use serde_json::Value;

use crate::certificates::{self, Ca, LeafKind, NAME};
use crate::harness::{Lab, TACIT, connect, echo, free_port, policy, text_of};
use crate::peers::{TlsClient, TlsServer, audit_of, exchange, is_reset, write_pair};

const LATER: i64 = 4_000_000_000;

fn server_rule(port: u16, revocation: &str) -> String {
    format!(
        "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\nrevocation = \"{revocation}\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"required\", \
         trust = \"corp\" }}\n",
        echo()
    )
}

#[test]
fn a_changed_crl_applies_to_the_next_connection() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let port = free_port();
    let leaf = corp.leaf(LeafKind::Valid);
    write_pair(&lab, "leaf", &leaf.cert_pem, &leaf.key_pem);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let agent = lab.agent(&server_rule(port, "hard"));
    // The second chain is a remembered one.
    for _ in 0..2 {
        let client = TlsClient::open(&lab, port, &certificates::with("leaf"));
        assert_eq!(client.result["reply"], "ping", "{}", client.result);
    }
    lab.write("new.crl", corp.crl(&[&leaf], LATER));
    std::fs::rename(lab.path("new.crl"), lab.path("corp.crl")).unwrap();
    agent.wait_for_log(" files-reloaded ");
    let client = TlsClient::open(&lab, port, &certificates::with("leaf"));
    let audit = audit_of(&agent, client.port());
    assert_eq!(audit["kind"], "certificate-revoked", "{audit}");
    // A file that is no list keeps the old one.
    lab.write("corp.crl", "nothing\n");
    agent.wait_for_log("no BEGIN X509 CRL line");
    let client = TlsClient::open(&lab, port, &certificates::with("leaf"));
    assert_eq!(audit_of(&agent, client.port())["kind"], "certificate-revoked");
}

#[test]
fn soft_revocation_accepts_and_warns_without_a_current_crl() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let port = free_port();
    let [good, bad] = [(); 2].map(|()| corp.leaf(LeafKind::Valid));
    write_pair(&lab, "good", &good.cert_pem, &good.key_pem);
    write_pair(&lab, "bad", &bad.cert_pem, &bad.key_pem);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[&bad], 1_700_000_000));
    let agent = lab.agent(&server_rule(port, "soft"));
    let client = TlsClient::open(&lab, port, &certificates::with("good"));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
    let shown = agent.show("connections");
    let tls = &shown[0]["tls"];
    assert_eq!(tls["check"]["result"], "revocation-unknown", "{shown}");
    assert_eq!(tls["peer"]["identity"], NAME, "{shown}");
    agent.wait_for_log(" warn revocation-unknown ");
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(" warn revocation-unknown ")).unwrap();
    assert!(line.contains("the CRL of the CA CN=corp CA in [trust.corp] expired at"), "{line}");
    let client = TlsClient::open(&lab, port, &certificates::with("bad"));
    let audit = audit_of(&agent, client.port());
    assert_eq!(audit["kind"], "certificate-revoked", "an old list still tells: {audit}");

    lab.write("hard.toml", policy(&server_rule(port, "hard")));
    let checked = lab.run(TACIT, &["check", "hard.toml"]);
    let said = text_of(&checked);
    assert!(
        checked.status.success() && said.contains("so tacit rejects all certificates of this CA"),
        "{said}"
    );
}

#[test]
fn a_revoked_server_receives_no_data() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let [good, bad] = [(); 2].map(|()| corp.leaf(LeafKind::Valid));
    write_pair(&lab, "good", &good.cert_pem, &good.key_pem);
    write_pair(&lab, "bad", &bad.cert_pem, &bad.key_pem);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[&bad], LATER));
    let mut rules = "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\n".to_owned();
    let mut servers = ["good", "bad"].map(|name| {
        let server = TlsServer::start(&lab, &certificates::with(name));
        (name, free_port(), server)
    });
    for (name, port, server) in &servers {
        // Whatever the name: a chain is looked at.
        let checks = if *name == "good" { "full" } else { "chain" };
        rules += &format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"127.0.0.1:{}\"\ntls = {{ role = \"client\", trust = \"corp\", \
             verify = \"{checks}\", server-name = \"{NAME}\" }}\n",
            server.port
        );
    }
    let agent = lab.agent(&rules);
    for (name, port, server) in &mut servers {
        let mut client = connect(("127.0.0.1", *port));
        if *name == "good" {
            assert_eq!(exchange(Box::new(client), b"hello").unwrap(), b"hello");
            assert_eq!(server.next()["got"], "hello");
            continue;
        }
        // The connection may have been reset by now.
        let sent = client.write_all(b"secret");
        assert!(sent.is_err() || is_reset(&mut client));
        let seen: Value = server.next();
        assert_eq!(seen["got"], "", "{seen}");
        assert!(seen["error"].as_str().unwrap().contains("REVOKED"), "it is told why: {seen}");
        agent.wait_for_log("the server's certificate CN=leaf was revoked");
    }
}

#[test]
fn verify_chain_accepts_any_name() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let leaf = corp.leaf_of("elsewhere.example");
    write_pair(&lab, "leaf", &leaf.cert_pem, &leaf.key_pem);
    lab.write("corp.pem", corp.pem());
    let mut server = TlsServer::start(&lab, &certificates::with("leaf"));
    let port = free_port();
    let agent = lab.agent(&format!(
        "[trust.corp]\nca = \"corp.pem\"\n[[rule]]\nname = \"out\"\nlisten = \"127.0.0.1:{port}\"\n\
         connect = \"127.0.0.1:{}\"\n\
         tls = {{ role = \"client\", trust = \"corp\", verify = \"chain\" }}\n",
        server.port
    ));
    agent.wait_for_log("any server with a certificate from a CA in this [trust] table is accepted");
    let mut client = connect(("127.0.0.1", port));
    assert!(crate::peers::ping(&mut client));
    let shown = agent.show("connections");
    let tls = &shown[0]["tls"];
    assert_eq!(tls["check"]["result"], "chain-valid", "{shown}");
    assert_eq!(tls["peer"]["identity"], "elsewhere.example", "{shown}");
    drop(client);
    server.next();
}
