//! Tests every value of `client-cert` with every kind of client certificate.

use serde_json::{Value, json};

use crate::certificates::{self, Ca, LeafKind, NAME};
use crate::harness::{Agent, Lab, echo, free_port, wait_for};
use crate::peers::{TlsClient, audit_after, audit_of, write_pair};
use crate::programs::{Peer, only_connection};

const LEVELS: [&str; 7] =
    ["none", "preferred", "required", "full", "passthru", "at-full", "safcheck"];

/// Who has a name, and who is denied; everybody else has none.
const MAP: &str = "[[map.people]]\ndns = \"db.example\"\nname = \"orders\"\n\
                   [[map.people]]\nsubject = \"CN=denied.example\"\ndeny = true\n";

fn rule(level: &str, port: u16, app: impl std::fmt::Display) -> String {
    let more = match level {
        "none" | "passthru" => "",
        "full" | "safcheck" => ", trust = \"corp\", map = \"people\"",
        _ => ", trust = \"corp\"",
    };
    format!(
        "[[rule]]\nname = \"{level}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{app}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"{level}\"{more} }}\n"
    )
}

fn rules(ports: [u16; 7]) -> String {
    let app = echo();
    let trust = "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\n";
    let rules = LEVELS.into_iter().zip(ports).map(|(level, port)| rule(level, port, app));
    format!("{trust}{MAP}{}", rules.collect::<String>())
}

/// What the displays say of a client's connection.
fn shown(agent: &Agent, client: &TlsClient) -> Value {
    let remote = format!("127.0.0.1:{}", client.port());
    let all = agent.show("connections");
    let found = all.as_array().unwrap().iter().find(|one| one["remote"] == remote.as_str());
    found.unwrap_or_else(|| panic!("{remote} is not shown: {all}"))["tls"].clone()
}

/// The line of an event about the connection that an audit line is about.
fn log_of<'a>(log: &'a str, event: &str, audit: &Value) -> &'a str {
    let connection = format!(" conn={} ", audit["conn"]);
    let about = |line: &&str| line.contains(event) && line.contains(&connection);
    log.lines().find(about).unwrap_or("")
}

/// Writes `NAME.pem` and `NAME.key` of every kind, and returns for each why it is not trusted, if
/// it is not. Those trusted are `valid`, `unmapped` and `denied`.
fn write_all(lab: &Lab) -> Vec<(&'static str, &'static str)> {
    let corp = Ca::new("corp CA");
    let mut table = certificates::write_of(lab, &corp);
    // A client is trusted by its chain; it needs no name. A key that proves nothing is refused
    // at every level that asks for one.
    table.retain(|(name, _)| !["wrong-name", "cn-only", "v1", "rsa-1024"].contains(name));
    let revoked = corp.leaf(LeafKind::Valid);
    let more = [
        ("revoked", &revoked, "the client's certificate CN=leaf was revoked: issue a new"),
        ("unmapped", &corp.leaf_of("unmapped.example"), ""),
        ("denied", &corp.leaf_of("denied.example"), ""),
    ];
    for (name, leaf, words) in more {
        write_pair(lab, name, &leaf.cert_pem, &leaf.key_pem);
        table.push((name, words));
    }
    lab.write("corp.crl", corp.crl(&[&revoked], 4_000_000_000));
    table.push((
        "absent",
        "the client sent no certificate, but the rule requires a client certificate",
    ));
    table
}

/// What a level makes of a certificate.
enum Outcome {
    /// The words of the refusal.
    Refused(String),
    /// The check's result, whose name the client has, and what it claims.
    Served(&'static str, Value, Value),
}

fn wanted(level: &str, name: &str, words: &str) -> Outcome {
    let served = |check| Outcome::Served(check, Value::Null, Value::Null);
    let mapped = ["full", "safcheck"].contains(&level);
    let subject = match name {
        "unmapped" | "denied" => format!("{name}.example"),
        _ => "leaf".to_owned(),
    };
    match (level, name) {
        ("none", _) => served("not-asked"),
        ("preferred" | "passthru" | "at-full", "absent") => served("absent"),
        (_, "absent") => Outcome::Refused(words.to_owned()),
        ("passthru", _) => {
            Outcome::Served("not-checked", Value::Null, json!(format!("CN={subject}")))
        }
        (_, "valid") => {
            Outcome::Served("valid", json!(if mapped { "orders" } else { NAME }), Value::Null)
        }
        (_, "unmapped") if mapped => {
            Outcome::Refused("no entry of [[map.people]] matches".to_owned())
        }
        (_, "denied") if mapped => {
            Outcome::Refused("the entry of [[map.people]] in line".to_owned())
        }
        (_, "unmapped" | "denied") => Outcome::Served("valid", json!(subject), Value::Null),
        ("preferred", _) => Outcome::Served("invalid", Value::Null, json!("CN=leaf")),
        (_, _) => Outcome::Refused(words.to_owned()),
    }
}

#[test]
fn every_client_cert_level_decides_on_every_certificate() {
    let lab = Lab::new();
    let table = write_all(&lab);
    let ports = LEVELS.map(|_| free_port());
    let agent = lab.agent(&rules(ports));
    for (name, words) in table {
        for (level, port) in LEVELS.into_iter().zip(ports) {
            for version in ["1.2", "1.3"] {
                let mut options = match name {
                    "absent" => json!({}),
                    _ => certificates::with(name),
                };
                options["max"] = version.into();
                let before = agent.audit().len();
                let client = TlsClient::open(&lab, port, &options);
                let audit = audit_after(&agent, before, client.port());
                let case = format!("{name} at {level} over {version}: {}\n{audit}", client.result);
                let wanted = wanted(level, name, words);
                meets(&agent, Met { client: &client, audit: &audit, level, case: &case }, wanted);
            }
        }
    }
}

/// A client, and what it met.
struct Met<'a> {
    client: &'a TlsClient,
    audit: &'a Value,
    level: &'a str,
    case: &'a str,
}

/// Outcome at the client, in the audit log, the log and the displays.
fn meets(agent: &Agent, met: Met<'_>, wanted: Outcome) {
    let Met { client, audit, level, case } = met;
    let said = (level != "none").then_some(level);
    assert_eq!(audit["client-cert"].as_str(), said, "{case}");
    let (check, identity, claim) = match wanted {
        Outcome::Refused(words) => {
            assert!(client.result["reply"].is_null(), "{case}");
            assert!(client.result["error"].as_str().unwrap().contains("ALERT"), "{case}");
            assert_eq!(audit["outcome"], "failed", "{case}");
            assert!(audit["reason"].as_str().unwrap().contains(&words), "{words}: {case}");
            // Of failures that repeat, one line a second is written.
            let about = format!(" client-cert={level} ");
            let is_it = |line: &str| {
                line.contains(" warn failed ") && line.contains(&about) && line.contains(&words)
            };
            wait_for(case, || agent.log().lines().any(is_it));
            return;
        }
        Outcome::Served(check, identity, claim) => (check, identity, claim),
    };
    assert_eq!(client.result["reply"], "ping", "{case}");
    assert_eq!((&audit["outcome"], &audit["check"]), (&"allowed".into(), &check.into()), "{case}");
    assert_eq!(audit["peer"], identity, "{case}");
    let tls = shown(agent, client);
    assert_eq!((&tls["client-cert"], &tls["check"]["result"]), (&level.into(), &check.into()));
    assert_eq!(tls["peer"]["identity"], identity, "{case}: {tls}");
    assert_eq!(tls["peer"]["claimed-subject"], claim, "{case}: {tls}");
    let log = agent.log();
    let waived = log_of(&log, " warn certificate-waived ", audit);
    assert_eq!(!waived.is_empty(), check == "invalid", "{case}\n{log}");
    if check == "invalid" {
        let reason = tls["check"]["reason"].as_str().unwrap();
        let words = reason.split(':').next().unwrap();
        assert!(waived.contains(words) && waived.contains("CN=leaf"), "{case}\n{waived}");
        assert!(waived.contains(&format!("client-cert={level} ")), "{case}\n{waived}");
    }
}

#[test]
fn settings_can_be_given_one_by_one() {
    let lab = Lab::new();
    write_all(&lab);
    let port = free_port();
    let agent = lab.agent(&format!(
        "[trust.corp]\nca = \"corp.pem\"\n[[rule]]\nname = \"in\"\n\
         listen = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n[rule.tls]\nrole = \"server\"\n\
         identity = \"localhost\"\ntrust = \"corp\"\n\
         client-cert = {{ absent = \"deny\", invalid = \"log\", identity = \"none\" }}\n",
        echo()
    ));
    let level = "absent=deny,invalid=log,identity=none";
    let absent = TlsClient::open(&lab, port, &json!({}));
    assert_eq!(audit_of(&agent, absent.port())["kind"], "client-certificate-absent");
    for (name, check) in [("expired", "invalid"), ("valid", "valid")] {
        let client = TlsClient::open(&lab, port, &certificates::with(name));
        assert_eq!(client.result["reply"], "ping", "{name}: {}", client.result);
        let tls = shown(&agent, &client);
        assert_eq!((&tls["client-cert"], &tls["check"]["result"]), (&level.into(), &check.into()));
        assert_eq!(tls["peer"]["identity"], Value::Null, "{name}: {tls}");
    }
    assert_eq!(waived(&agent), ["invalid 1", "revocation-unknown 0", "warned 0"]);
}

/// The metric of waived certificates of rule `in`, by check.
fn waived(agent: &Agent) -> Vec<String> {
    let series = "tacit_certificates_waived_total{rule=\"in\",check=\"";
    let metrics = agent.ok(&["show", "metrics"]);
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(series));
    samples.map(|sample| sample.replace("\"}", "")).collect()
}

#[test]
fn a_certificate_with_the_wrong_key_is_rejected_at_every_level() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    lab.write("corp.crl", corp.crl(&[], 4_000_000_000));
    let table = certificates::write_of(&lab, &corp);
    let ports = LEVELS.map(|_| free_port());
    let agent = lab.agent(&rules(ports));
    for (name, words) in table.iter().filter(|(name, _)| ["v1", "rsa-1024"].contains(name)) {
        for (level, port) in LEVELS.into_iter().zip(ports).skip(1) {
            let client = TlsClient::open(&lab, port, &certificates::with(name));
            assert!(client.result["reply"].is_null(), "{name} at {level}: {}", client.result);
            let audit = audit_of(&agent, client.port());
            assert!(audit["reason"].as_str().unwrap().contains(words), "{name}, {level}: {audit}");
        }
    }
}

/// A map of one policy, and one `full` rule with it.
fn mapped(entries: &str, port: u16) -> String {
    format!(
        "{entries}[[rule]]\nname = \"in\"\nlisten = \"0.0.0.0:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"full\", \
         trust = \"ca\", map = \"people\" }}\n",
        echo()
    )
}

/// The session may be the one of a client that has a name; who comes with it must have one too.
#[test]
fn a_resumed_session_is_mapped_again() {
    let lab = Lab::new();
    let port = free_port();
    let entries = "[[map.people]]\nsubject = \"CN=alice\"\naddress = \"127.0.0.1\"\n\
                   name = \"ALICE\"\n[[map.people]]\nsubject = \"*\"\ndeny = true\n";
    let agent = lab.agent(&mapped(entries, port));
    for version in ["-tls1_2", "-tls1_3"] {
        let client = |source: &str, words: &str| {
            let words = format!(
                "s_client -connect 127.0.0.1:{port} -bind {source} -cert alice.pem -key alice.key \
                 {version} {words}"
            );
            Peer::start(lab.command("openssl").args(words.split_whitespace()))
        };
        let mut first = client("127.0.0.1", &format!("-sess_out session{version}"));
        first.say("hello\n");
        first.wait_for("hello\n");
        let shown = only_connection(&agent, "in");
        assert_eq!(shown["tls"]["peer"]["identity"], "ALICE", "{shown}");
        first.say("Q\n");
        let said = first.end().said;
        assert!(said.contains("New, TLS"), "{said}");
        wait_for("its end", || agent.show("connections") == json!([]));
        let thief = client("127.0.0.2", &format!("-ign_eof -sess_in session{version}"));
        let said = thief.end().said;
        assert!(said.contains("Reused, TLS"), "{said}");
        assert!(said.contains("alert access denied"), "{said}");
    }
    let is_refusal = |line: &&str| line.contains("kind=certificate-denied");
    wait_for("both refusals", || agent.log().lines().filter(is_refusal).count() == 2);
    let log = agent.log();
    assert!(log.lines().filter(is_refusal).all(|line| line.contains("remote=127.0.0.2:")), "{log}");
}

#[test]
fn a_map_entry_with_warn_accepts_and_warns_until_it_denies() {
    let lab = Lab::new();
    let port = free_port();
    let entry = "[[map.people]]\nsubject = \"CN=alice\"\ndeny = true\n";
    let agent = lab.agent(&mapped(&format!("{entry}warn = true\n"), port));
    agent.wait_for_log(
        "because of `warn`, tacit logs the clients that match this entry, but does not deny them",
    );
    let client = TlsClient::open(&lab, port, &certificates::with("alice"));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
    let tls = shown(&agent, &client);
    assert_eq!(
        (&tls["check"]["result"], &tls["peer"]["identity"]),
        (&"valid".into(), &Value::Null)
    );
    let warned = tls["peer"]["warned"].as_str().unwrap();
    assert!(warned.starts_with("[[map.people]] in line "), "{tls}");
    agent.wait_for_log(" warn certificate-warned ");
    let log = agent.log();
    assert_eq!(waived(&agent), ["invalid 0", "revocation-unknown 0", "warned 1"]);
    let line = log_of(&log, " warn certificate-warned ", &audit_of(&agent, client.port()));
    assert!(
        line.contains("would deny the client, but the entry has `warn`")
            && line.contains("CN=alice"),
        "{log}"
    );
    let table = agent.ok(&["show", "connections", "--wide"]);
    assert!(
        table.contains(
            "no identity: a `warn` entry of an identity map matches the certificate (valid)"
        ),
        "{table}"
    );

    agent.write_policy(&mapped(entry, port));
    let said = agent.ok(&["reload"]);
    assert!(said.contains("changed: in"), "another map is another rule: {said}");
    let client = TlsClient::open(&lab, port, &certificates::with("alice"));
    let audit = audit_of(&agent, client.port());
    assert_eq!(audit["kind"], "certificate-denied", "{audit}");
}
