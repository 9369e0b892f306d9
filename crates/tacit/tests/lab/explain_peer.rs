//! Tests `tacit explain --peer`. The command checks a certificate against a rule or an identity
//! map, and needs no connection.

use serde_json::{Value, json};
use tacit_tls::test_certificates;

use crate::certificates::{Ca, LeafKind};
use crate::harness::{Lab, TACIT, policy};
use crate::peers::write_pair;

const RULES: &str = r#"
[trust.corp]
ca = "corp.pem"
crl = "corp.crl"
[[map.people]]
dns = "db.example"
address = "10.7.0.0/16"
name = "orders"
[[map.people]]
subject = "CN=denied.example"
deny = true
[[map.people]]
subject = "*"
issuer = "CN=corp CA"
address = "192.0.2.0/24"
deny = true
warn = true
[[rule]]
name = "in"
listen = "127.0.0.1:8443"
connect = "127.0.0.1:8080"
[rule.tls]
role = "server"
identity = "localhost"
client-cert = "full"
trust = "corp"
map = "people"
[[rule]]
name = "waiving"
listen = "127.0.0.1:8444"
connect = "127.0.0.1:8080"
[rule.tls]
role = "server"
identity = "localhost"
client-cert = "passthru"
[[rule]]
name = "out"
direction = "outbound"
tls = { trust = "corp" }
[[rule]]
name = "clear"
direction = "outbound"
remote-ports = 25
permit = true
"#;

struct Asked(Lab);

impl Asked {
    fn new() -> Self {
        let lab = Lab::new();
        let corp = Ca::new("corp CA");
        let revoked = corp.leaf(LeafKind::Valid);
        for (name, leaf) in [
            ("valid", &corp.leaf(LeafKind::Valid)),
            ("expired", &corp.leaf(LeafKind::Expired)),
            ("denied", &corp.leaf_of("denied.example")),
            ("revoked", &revoked),
        ] {
            write_pair(&lab, name, &leaf.cert_pem, &leaf.key_pem);
        }
        let small = test_certificates::openssl_v3(1024);
        write_pair(&lab, "small", &small.cert_pem, &small.key_pem);
        lab.write("corp.pem", corp.pem());
        lab.write("corp.crl", corp.crl(&[&revoked], 4_000_000_000));
        lab.write("p.toml", policy(RULES));
        // No key is needed to explain.
        std::fs::remove_file(lab.path("localhost.key")).unwrap();
        Self(lab)
    }

    fn text(&self, words: &str) -> String {
        let words: Vec<_> = words.split_whitespace().collect();
        self.0.tacit(&[&["explain", "--policy", "p.toml", "--peer"], words.as_slice()].concat())
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.text(&format!("{words} --json"))).unwrap()
    }

    fn refuses(&self, words: &str) -> String {
        self.fails(64, words)
    }

    fn fails(&self, status: i32, words: &str) -> String {
        let more: Vec<_> = words.split_whitespace().collect();
        let arguments = [&["explain", "--policy", "p.toml"], more.as_slice()].concat();
        let output = self.0.run(TACIT, &arguments);
        assert_eq!(output.status.code(), Some(status), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn explain_peer_names_the_check_and_the_map_entry() {
    let asked = Asked::new();
    let said = asked.text("valid.pem --address 10.7.0.9 --rule in");
    for line in [
        "certificate: CN=leaf, issued by CN=corp CA",
        "names: db.example, 10.7.0.1, ::1, spiffe://example/db",
        "rule: in (full)",
        "check: valid",
        "[[map.people]] matches: name orders",
        "[[map.people]] does not match: `subject` does not match",
        "[[map.people]] does not match: `address` does not match",
        "served as orders",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let elsewhere = asked.json("valid.pem --address 10.8.0.9 --rule in");
    assert_eq!(
        (&elsewhere["verdict"], &elsewhere["map"]["decide"]),
        (&"refused".into(), &json!([]))
    );
    let reason = elsewhere["reason"].as_str().unwrap();
    assert!(reason.contains("no entry of [[map.people]] matches the certificate"), "{elsewhere}");
    assert_eq!(elsewhere["map"]["passed"].as_array().unwrap().len(), 3, "{elsewhere}");

    let warned = asked.json("valid.pem --address 192.0.2.1 --rule in");
    assert_eq!((&warned["verdict"], &warned["identity"]), (&"served".into(), &Value::Null));
    assert!(warned["reason"].as_str().unwrap().contains("has deny = true and warn = true"));

    let denied = asked.json("denied.pem --rule in");
    assert_eq!(denied["map"]["decide"][0]["outcome"], "deny", "{denied}");
    assert!(denied["reason"].as_str().unwrap().contains("the entry of [[map.people]] in line"));
}

#[test]
fn certificates_that_are_not_trusted_are_not_mapped() {
    let asked = Asked::new();
    for (file, words) in [("expired.pem", "expired at 2021"), ("revoked.pem", "was revoked")] {
        let answer = asked.json(&format!("{file} --address 10.7.0.9 --rule in"));
        assert_eq!((&answer["check"]["result"], &answer["map"]), (&"invalid".into(), &Value::Null));
        assert_eq!(answer["verdict"], "refused");
        assert!(answer["reason"].as_str().unwrap().contains(words), "{answer}");
        // A query of the map alone assumes a trusted certificate.
        let alone = asked.json(&format!("{file} --address 10.7.0.9 --map people"));
        assert_eq!((&alone["check"], &alone["identity"]), (&Value::Null, &"orders".into()));
    }
    let early = asked.json("expired.pem --address 10.7.0.9 --rule in --at 2020-06-01T12:00:00Z");
    assert_eq!(early["identity"], "orders", "{early}");
}

#[test]
fn certificates_without_a_usable_key_are_refused_at_every_level() {
    let asked = Asked::new();
    assert_eq!(asked.json("expired.pem --rule waiving")["verdict"], "served");
    for rule in ["waiving", "in", "out --name db.example"] {
        let answer = asked.json(&format!("small.pem --rule {rule}"));
        assert_eq!(answer["verdict"], "refused", "{answer}");
        assert!(answer["reason"].as_str().unwrap().contains("too weak (RSA 1024)"), "{answer}");
    }
}

#[test]
fn explain_peer_checks_the_name_that_a_program_looks_up() {
    let asked = Asked::new();
    let good = asked.json("valid.pem --rule out --name db.example");
    assert_eq!((&good["verdict"], &good["identity"]), (&"served".into(), &"db.example".into()));
    let other = asked.json("valid.pem --rule out --name db.example --name x.example");
    assert!(other["reason"].as_str().unwrap().contains("not for x.example"), "{other}");
    assert!(asked.refuses("--peer valid.pem --rule out").contains("give this name with --name"));
}

#[test]
fn explain_peer_rejects_contradictory_options() {
    let asked = Asked::new();
    assert!(asked.refuses("--peer valid.pem --rule clear").contains("checks no certificates"));
    let unknown = asked.refuses("--peer valid.pem --rule gone");
    let fix = "no rule `gone`\n    fix: use a rule with `tls`: `in`, `waiving`, `out`";
    assert!(unknown.contains(fix), "{unknown}");
    let similar = asked.refuses("--peer valid.pem --rule waving");
    assert!(similar.contains("fix: did you mean `waiving`?"), "{similar}");
    assert!(asked.refuses("--peer valid.pem --map gone").contains("no [[map.gone]]"));
    assert!(asked.fails(1, "--peer valid.key --rule in").contains("contains no certificate"));
    for query in ["--rule in", "--map people"] {
        let absent = asked.fails(1, &format!("--peer absent.pem {query}"));
        assert!(absent.contains("absent.pem: the file does not exist"), "{absent}");
    }
    assert!(asked.refuses("--peer valid.pem").contains("--rule"));
    assert!(asked.refuses("--map people --listen 127.0.0.1:8443").contains("--peer"));
}
