//! Tests tacit as the TLS client, for every kind of server certificate. If the certificate is
//! invalid, tacit must forward no data to the server.

use std::io::{Read, Write};

use crate::certificates::{self, NAME};
use crate::harness::{Lab, connect, free_port};
use crate::peers::{TlsServer, exchange, is_reset};

/// A server with one of the certificates.
struct Listed {
    /// The certificate's name.
    name: &'static str,
    /// Where the rule that leads to it listens.
    port: u16,
    server: TlsServer,
}

/// One rule for each certificate, to a server that has it. `tls` is what the rules say more.
fn rules(servers: &[Listed], tls: &str) -> String {
    let mut rules = "[trust.corp]\nca = \"corp.pem\"\n".to_owned();
    for Listed { name, port, server } in servers {
        rules += &format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"127.0.0.1:{}\"\n\
             tls = {{ role = \"client\", server-name = \"{NAME}\", {tls} }}\n",
            server.port
        );
    }
    rules
}

fn servers(lab: &Lab, table: &[(&'static str, &'static str)]) -> Vec<Listed> {
    let start = |name| {
        let server = TlsServer::start(lab, &certificates::with(name));
        Listed { name, port: free_port(), server }
    };
    table.iter().map(|(name, _)| start(name)).collect()
}

#[test]
fn a_server_with_a_wrong_certificate_receives_no_data() {
    let lab = Lab::new();
    let table = certificates::write_all(&lab);
    let mut servers = servers(&lab, &table);
    let agent = lab.agent(&rules(&servers, "trust = \"corp\""));
    for ((name, words), Listed { port, server, .. }) in table.iter().zip(&mut servers) {
        let mut client = connect(("127.0.0.1", *port));
        let written = client.write_all(b"secret");
        if *name == "valid" {
            written.unwrap();
            assert_eq!(exchange(Box::new(client), b"").unwrap(), b"secret");
            assert_eq!(server.next()["got"], "secret");
            continue;
        }
        // The reset may be there before the client writes.
        assert!(written.is_err() || is_reset(&mut client), "{name}");
        let seen = server.next();
        assert_eq!(seen["got"], "", "{name}: {seen}");
        assert!(seen["error"].is_string(), "{name}: the server is told: {seen}");
        agent.wait_for_log(words);
        agent.wait_for_log(&format!("rule={name} "));
        let log = agent.log();
        let line = log.lines().find(|line| line.contains(&format!("rule={name} "))).unwrap();
        assert!(line.contains(words) && line.contains(" warn failed "), "{name}: {line}");
        let next_step = ["reissue", "renew", "wait", "issue a", "add this CA", "server-name"];
        assert!(next_step.iter().any(|step| line.contains(step)), "{name}: {line}");
    }
}

#[test]
fn verify_none_accepts_any_certificate_and_warns() {
    let lab = Lab::new();
    let table = certificates::write_all(&lab);
    let mut servers = servers(&lab, &table);
    let agent = lab.agent(&rules(&servers, "verify = \"none\""));
    agent.wait_for_log("the server's certificate is not checked: any server is accepted");
    for Listed { name, port, server } in &mut servers {
        let mut client = connect(("127.0.0.1", *port));
        let written = client.write_all(b"secret");
        if ["v1", "rsa-1024"].contains(name) {
            assert!(written.is_err() || is_reset(&mut client), "{name}");
            assert_eq!(server.next()["got"], "", "{name}");
            continue;
        }
        written.unwrap();
        let mut back = [0; 6];
        client.read_exact(&mut back).unwrap();
        let shown = agent.show("connections");
        let tls = &shown[0]["tls"];
        assert_eq!(tls["check"]["result"], "not-checked", "{name}: {shown}");
        assert!(tls["peer"]["identity"].is_null(), "{name}: {shown}");
        assert_eq!(tls["peer"]["claimed-subject"], "CN=leaf", "{name}: {shown}");
        drop(client);
        server.next();
        crate::harness::wait_for("the end", || agent.show("connections") == serde_json::json!([]));
    }
}

#[test]
fn a_client_certificate_is_sent_only_where_the_rule_names_an_identity() {
    let lab = Lab::new();
    let mut options = certificates::with("localhost");
    options["ca"] = "ca.pem".into();
    let mut server = TlsServer::start(&lab, &options);
    let with = free_port();
    let without = free_port();
    let connect_to = format!("127.0.0.1:{}", server.port);
    let agent = lab.agent(&format!(
        r#"
        [[rule]]
        name = "with"
        listen = "127.0.0.1:{with}"
        connect = "{connect_to}"
        tls = {{ role = "client", trust = "ca", identity = "alice" }}
        [[rule]]
        name = "without"
        listen = "127.0.0.1:{without}"
        connect = "{connect_to}"
        tls = {{ role = "client", trust = "ca" }}
        "#
    ));
    let back = exchange(Box::new(connect(("127.0.0.1", with))), b"hello").unwrap();
    assert_eq!((back.as_slice(), &server.next()["got"]), (&b"hello"[..], &"hello".into()));
    assert!(is_reset(&mut connect(("127.0.0.1", without))));
    assert!(server.next()["error"].as_str().unwrap().contains("PEER_DID_NOT_RETURN"));
    agent.wait_for_log(
        "requires a certificate from tacit (alert CertificateRequired): set `identity`",
    );
}
