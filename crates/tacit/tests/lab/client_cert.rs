//! `client-cert`: every level meets every kind of client certificate, over real connections.

use serde_json::{Value, json};

use crate::certificates::{self, NAME};
use crate::harness::{Agent, Lab, echo, free_port};
use crate::peers::{TlsClient, audit_of};

const LEVELS: [&str; 3] = ["none", "preferred", "required"];

fn rules(ports: &[u16; 3]) -> String {
    let app = echo();
    let mut rules = "[trust.corp]\nca = \"corp.pem\"\n".to_owned();
    for (level, port) in LEVELS.into_iter().zip(ports) {
        let trust = if level == "none" { "" } else { ", trust = \"corp\"" };
        rules += &format!(
            "[[rule]]\nname = \"{level}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{app}\"\n\
             tls = {{ role = \"server\", identity = \"localhost\", \
             client-cert = \"{level}\"{trust} }}\n"
        );
    }
    rules
}

/// What the displays say of a client's connection.
fn shown(agent: &Agent, client: &TlsClient) -> Value {
    let remote = format!("127.0.0.1:{}", client.port());
    let all = agent.show("connections");
    let found = all.as_array().unwrap().iter().find(|one| one["remote"] == remote.as_str());
    found.unwrap_or_else(|| panic!("{remote} is not shown: {all}"))["tls"].clone()
}

fn log_of<'a>(log: &'a str, event: &str, client: &TlsClient) -> &'a str {
    let remote = format!("remote=127.0.0.1:{} ", client.port());
    let about = |line: &&str| line.contains(event) && line.contains(&remote);
    log.lines().find(about).unwrap_or("")
}

#[test]
fn every_level_meets_every_client_certificate() {
    let lab = Lab::new();
    let mut table = certificates::write_all(&lab);
    // A client is believed by its chain; it needs no name. A key that proves nothing is refused
    // at every level that asks for one.
    table.retain(|(name, _)| !["wrong-name", "cn-only", "v1", "rsa-1024"].contains(name));
    table.push(("absent", "the client sent no certificate and the rule requires one"));
    let ports = [free_port(), free_port(), free_port()];
    let agent = lab.agent(&rules(&ports));
    for (name, words) in table {
        for (level, port) in LEVELS.into_iter().zip(ports) {
            let case = format!("{name} at {level}");
            let options = if name == "absent" { json!({}) } else { certificates::with(name) };
            let client = TlsClient::open(&lab, port, &options);
            let audit = audit_of(&agent, client.port());
            assert_eq!(audit["rule"], level, "{case}: {audit}");
            if level == "required" && name != "valid" {
                assert!(client.result["reply"].is_null(), "{case}: {}", client.result);
                assert_eq!(audit["outcome"], "failed", "{case}: {audit}");
                assert!(audit["reason"].as_str().unwrap().contains(words), "{case}: {audit}");
                let log = agent.log();
                assert!(log_of(&log, " warn failed ", &client).contains(words), "{case}: {log}");
                continue;
            }
            assert_eq!(client.result["reply"], "ping", "{case}: {}", client.result);
            assert_eq!(audit["outcome"], "allowed", "{case}: {audit}");
            let check = match (level, name) {
                ("none", _) => "not-asked",
                (_, "absent") => "absent",
                (_, "valid") => "valid",
                _ => "invalid",
            };
            assert_eq!(audit["check"], check, "{case}: {audit}");
            let tls = shown(&agent, &client);
            assert_eq!(tls["check"]["result"], check, "{case}: {tls}");
            let (identity, claim) = match check {
                "valid" => (json!(NAME), Value::Null),
                "invalid" => (Value::Null, json!("CN=leaf")),
                _ => (Value::Null, Value::Null),
            };
            assert_eq!(tls["peer"]["identity"], identity, "{case}: {tls}");
            assert_eq!(tls["peer"]["claimed-subject"], claim, "{case}: {tls}");
            let log = agent.log();
            let waived = log_of(&log, " warn certificate-waived ", &client);
            assert_eq!(!waived.is_empty(), check == "invalid", "{case}: {log}");
            if check == "invalid" {
                assert!(tls["check"]["reason"].as_str().unwrap().contains(words), "{case}: {tls}");
                assert!(waived.contains(words) && waived.contains("CN=leaf"), "{case}: {waived}");
            }
        }
    }
}

#[test]
fn a_certificate_whose_key_proves_nothing_is_refused_wherever_one_is_asked_for() {
    let lab = Lab::new();
    let table = certificates::write_all(&lab);
    let ports = [free_port(), free_port(), free_port()];
    let agent = lab.agent(&rules(&ports));
    for (name, words) in table.iter().filter(|(name, _)| ["v1", "rsa-1024"].contains(name)) {
        for (level, port) in LEVELS.into_iter().zip(ports).skip(1) {
            let client = TlsClient::open(&lab, port, &certificates::with(name));
            assert!(client.result["reply"].is_null(), "{name} at {level}: {}", client.result);
            let audit = audit_of(&agent, client.port());
            assert!(audit["reason"].as_str().unwrap().contains(words), "{name}, {level}: {audit}");
        }
    }
}
