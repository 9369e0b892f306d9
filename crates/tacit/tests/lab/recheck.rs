//! Tests that the agent closes an open connection if the peer is no longer trusted, or if the
//! connection reaches `max-age`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::certificates::{self, Ca, LeafKind, NAME};
use crate::harness::{Agent, Lab, connect, echo, free_port, wait_for_or};
use crate::peers::{TlsClient, TlsServer, is_reset, write_pair};

const LATER: i64 = 4_000_000_000;
const TRUST: &str = "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\n";

fn rule(port: u16, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"required\", \
         trust = \"corp\"{more} }}\n",
        echo()
    )
}

/// Puts a file in the place of another, as programs that renew files do.
fn replace(lab: &Lab, name: &str, content: impl AsRef<[u8]>) {
    lab.write("next", content);
    std::fs::rename(lab.path("next"), lab.path(name)).unwrap();
}

/// What displays say of the check of each open connection's peer, and its identity.
fn checks(agent: &Agent) -> Vec<(String, Value)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let shown = agent.show("connections");
    let tls = shown.as_array().unwrap().iter().map(|one| &one["tls"]);
    tls.map(|tls| (text(&tls["check"]["result"]), tls["peer"]["identity"].clone())).collect()
}

fn wait_for_checks(agent: &Agent, words: &[&str]) {
    let said = || checks(agent).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
    wait_for_or("the checks", || said() == words, || format!("{:?}\n{}", said(), agent.log()));
}

fn write_leaf(lab: &Lab, name: &str, leaf: &certificates::Leaf) {
    write_pair(lab, name, &leaf.cert_pem, &leaf.key_pem);
}

fn served(lab: &Lab, port: u16, name: &str) -> TlsClient {
    let client = TlsClient::open(lab, port, &certificates::with(name));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
    client
}

#[test]
fn a_peer_that_is_revoked_is_shown_and_closed_by_hand() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let port = free_port();
    let [good, bad] = [(); 2].map(|()| corp.leaf(LeafKind::Valid));
    write_leaf(&lab, "good", &good);
    write_leaf(&lab, "bad", &bad);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let agent = lab.agent(&format!("{TRUST}{}", rule(port, "")));
    let _clients = ["good", "bad", "bad"].map(|name| served(&lab, port, name));
    wait_for_checks(&agent, &["valid"; 3]);
    replace(&lab, "corp.crl", corp.crl(&[&bad], LATER));
    wait_for_checks(&agent, &["valid", "revoked", "revoked"]);
    let shown = checks(&agent);
    assert_eq!((&shown[0].1, &shown[1].1), (&Value::from(NAME), &Value::Null));
    agent.wait_for_log(" peers-checked connections=3 chains=2 no-longer-trusted=2");
    let log = agent.log();
    let line = log.lines().find(|line| line.contains(" warn peer-invalid ")).unwrap();
    assert!(line.contains("check=revoked") && line.contains("was revoked: issue"), "{line}");
    // A reload finds nothing new, and says nothing twice.
    agent.ok(&["reload"]);
    agent.wait_for_log(" peers-checked connections=1 chains=1 no-longer-trusted=0");
    assert_eq!(agent.ok(&["close", "--peer", "invalid"]), "closed 2\n");
    wait_for_checks(&agent, &["valid"]);
}

#[test]
fn a_peer_that_is_revoked_is_closed_where_the_rule_says_so() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let port = free_port();
    let [good, bad] = [(); 2].map(|()| corp.leaf(LeafKind::Valid));
    write_leaf(&lab, "good", &good);
    write_leaf(&lab, "bad", &bad);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let agent = lab.agent(&format!("{TRUST}{}", rule(port, ", recheck = \"close\"")));
    let _clients = ["good", "bad"].map(|name| served(&lab, port, name));
    replace(&lab, "corp.crl", corp.crl(&[&bad], LATER));
    agent.wait_for_log("end=\"the peer is no longer trusted, so tacit closed the connection\"");
    wait_for_checks(&agent, &["valid"]);
    let audit = agent.audit();
    assert!(audit.lines().any(|line| line.contains("peer-invalid")), "{audit}");
}

#[test]
fn a_peer_whose_certificate_expires_is_shown_and_closed_where_the_rule_says_so() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let [shown, closed] = [free_port(), free_port()];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let end = i64::try_from(now).unwrap() + 12;
    write_leaf(&lab, "leaf", &corp.leaf_until(end));
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let closing = rule(closed, ", recheck = \"close\"").replace("\"in\"", "\"closing\"");
    let agent = lab.agent(&format!("{TRUST}{}{closing}", rule(shown, "")));
    let _clients = [shown, closed].map(|port| served(&lab, port, "leaf"));
    assert_eq!(checks(&agent).len(), 2);
    wait_for_checks(&agent, &["expired"]);
    agent.wait_for_log("end=\"the peer is no longer trusted, so tacit closed the connection\"");
    assert!(agent.log().contains("certificate CN=leaf expired at"), "{}", agent.log());
}

/// A connection through a rule of role client that has carried bytes.
fn open_through(port: u16) -> TcpStream {
    let mut client = connect(("127.0.0.1", port));
    client.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    client
}

#[test]
fn connections_to_servers_of_a_removed_ca_are_closed() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    write_leaf(&lab, "leaf", &corp.leaf(LeafKind::Valid));
    lab.write("corp.pem", corp.pem());
    let servers = [(); 2].map(|()| TlsServer::start(&lab, &certificates::with("leaf")));
    let [port, other_port] = [free_port(), free_port()];
    let rule = |name: &str, port: u16, trust: &str| {
        let server = &servers[usize::from(name == "gone")];
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n\
             connect = \"127.0.0.1:{}\"\ntls = {{ role = \"client\", trust = \"{trust}\", \
             server-name = \"{NAME}\", recheck = \"close\" }}\n",
            server.port
        )
    };
    let trust = |name: &str| format!("[trust.{name}]\nca = \"{name}.pem\"\n");
    let corp_trust = trust("corp");
    let agent = lab.agent(&format!(
        "{corp_trust}{}{}",
        rule("kept", port, "corp"),
        rule("gone", other_port, "corp")
    ));
    let mut kept = open_through(port);
    let mut gone = open_through(other_port);
    // The same trust once more changes nothing.
    agent.ok(&["reload"]);
    agent.wait_for_log("no-longer-trusted=0");
    wait_for_checks(&agent, &["valid"; 2]);
    lab.write("other.pem", Ca::new("other CA").pem());
    agent.write_policy(&format!("{}{}", trust("other"), rule("kept", port, "other")));
    agent.ok(&["reload"]);
    wait_for_checks(&agent, &[]);
    assert!(is_reset(&mut kept) && is_reset(&mut gone), "a reset is no end of data");
    agent.wait_for_log("ends at the issuer CN=corp CA, but [trust.other] does not");
    agent.wait_for_log("the policy no longer has [trust.corp]");
}

#[test]
fn each_connection_ends_at_its_own_max_age() {
    let lab = Lab::new();
    let [aged, ageless] = [free_port(), free_port()];
    let rule = |name: &str, port: u16, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
             tls = {{ role = \"server\", identity = \"localhost\", \
             client-cert = \"none\"{more} }}\n",
            echo()
        )
    };
    let rules = rule("aged", aged, ", max-age = \"3s\"") + &rule("ageless", ageless, "");
    let agent = lab.agent(&rules);
    let opened = Instant::now();
    let options = serde_json::json!({});
    let _clients = [aged, ageless].map(|port| TlsClient::open(&lab, port, &options));
    agent.wait_for_log(
        "end=\"the connection reached the `max-age` of its rule, so tacit closed it\"",
    );
    assert!(opened.elapsed() > Duration::from_millis(2_600), "{:?}", opened.elapsed());
    assert_eq!(agent.show("connections").as_array().unwrap().len(), 1);
    // The installed rule decides about those that are open.
    agent.write_policy(&rules.replace("\"none\" }", "\"none\", max-age = \"1s\" }"));
    agent.ok(&["reload"]);
    wait_for_checks(&agent, &[]);
}
