//! Compares a running stunnel with an agent. The policy of the agent is imported from the
//! configuration of stunnel. The tests cover the option `verifyPeer`, and the levels 3 and 4 of the
//! option `verify`. Both client services and server services are tested.

use std::fmt::Write as _;
use std::io::{Read, Write as _};

use tacit_tls::test_certificates;

use crate::certificates::{Ca, LeafKind};
use crate::harness::{Lab, TACIT, connect, echo, free_port, text_of, wait_for_or};
use crate::peers::write_pair;
use crate::programs::Peer;

/// Whose certificates are shown; of `peer`, `again` has the name and key, `same` the name.
const SHOWN: [&str; 5] = ["peer", "again", "same", "old", "self"];
/// What stands in `CAfile`.
const FILES: [(&str, &[&str]); 3] = [
    ("alone", &["peer", "old", "self"]),
    ("chain", &["peer", "old", "self", "corp"]),
    ("cas", &["corp"]),
];
const OPTIONS: [&str; 4] =
    ["verify = 3", "verify = 4", "verifyPeer = yes", "verifyPeer = yes\nverifyChain = yes"];

fn lab() -> Lab {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let peer = corp.leaf(LeafKind::Valid);
    let leaves = [corp.leaf_again(&peer), corp.leaf(LeafKind::Valid), corp.leaf(LeafKind::Expired)];
    // OpenSSL finds issuers by name: the one that signed itself needs one of its own.
    let own = test_certificates::openssl_v3(2048);
    write_pair(&lab, "self", &own.cert_pem, &own.key_pem);
    write_pair(&lab, "peer", &peer.cert_pem, &peer.key_pem);
    for (name, leaf) in SHOWN[1..].iter().zip(&leaves) {
        write_pair(&lab, name, &leaf.cert_pem, &leaf.key_pem);
    }
    lab.write("corp.pem", corp.pem());
    for (file, names) in FILES {
        let read = |name: &&str| std::fs::read_to_string(lab.path(&format!("{name}.pem"))).unwrap();
        lab.write(&format!("{file}.pem"), names.iter().map(read).collect::<String>());
    }
    lab
}

/// What is asked of one service.
struct Question {
    what: String,
    port: u16,
    /// The certificate that the asker shows; `None`: the service is a client.
    shows: Option<&'static str>,
}

impl Question {
    /// Whether bytes come back.
    fn is_served(&self, lab: &Lab) -> bool {
        let Some(shows) = self.shows else {
            let mut stream = connect(("127.0.0.1", self.port));
            let mut answer = [0; 4];
            return stream.write_all(b"abc\n").is_ok()
                && stream.read_exact(&mut answer).is_ok()
                && answer == *b"cba\n";
        };
        let port = self.port;
        let words =
            format!("s_client -connect 127.0.0.1:{port} -cert {shows}.pem -key {shows}.key");
        let mut client = Peer::start(lab.command("openssl").args(words.split(' ')));
        client.say("there and back\n");
        let said = || client.said();
        // A refusal is an alert, or a reset where the line was written before it came.
        let ends = ["back\n", "alert", "errno"];
        wait_for_or("an answer", || ends.iter().any(|end| said().contains(end)), said);
        client.said().contains("there and back\n")
    }
}

/// A service for each option, file and certificate, in both roles.
fn configuration(servers: &[u16]) -> (String, Vec<Question>) {
    let mut text = "foreground = yes\npid =\nsyslog = no\nsslVersionMin = TLSv1.2\n".to_owned();
    let mut questions = Vec::new();
    let app = echo();
    for (number, options) in OPTIONS.iter().enumerate() {
        for (file, _) in FILES {
            // No peer is accepted there, and tacit rejects such a trust.
            if file == "cas" && [OPTIONS[0], OPTIONS[3]].contains(options) {
                continue;
            }
            let mut service = |name: &str, more: &str| {
                let port = free_port();
                let _ = write!(
                    text,
                    "[{number}-{file}-{name}]\naccept = 127.0.0.1:{port}\nCAfile = {file}.pem\n\
                     {options}\n{more}\n"
                );
                port
            };
            let more = format!("cert = localhost.pem\nkey = localhost.key\nconnect = {app}");
            let accepting = service("in", &more);
            for (shown, server) in SHOWN.into_iter().zip(servers) {
                let more = format!("client = yes\nconnect = 127.0.0.1:{server}");
                let port = service(shown, &more);
                let what = format!("{options:?}, {file}, {shown}");
                questions.push(Question { what: format!("client, {what}"), port, shows: None });
                let what = format!("server, {what}");
                questions.push(Question { what, port: accepting, shows: Some(shown) });
            }
        }
    }
    (text, questions)
}

#[test]
fn pinned_peers_are_those_of_stunnel_except_for_reissued_certificates() {
    let lab = lab();
    let ports = SHOWN.map(|_| free_port());
    let _servers: Vec<_> = SHOWN
        .iter()
        .zip(ports)
        .map(|(shown, port)| {
            let words = format!(
                "s_server -accept 127.0.0.1:{port} -rev -cert {shown}.pem -key {shown}.key"
            );
            let mut server = Peer::start(lab.command("openssl").args(words.split(' ')));
            server.wait_for("ACCEPT");
            server
        })
        .collect();
    let (text, questions) = configuration(&ports);
    lab.write("stunnel.conf", text);
    let ask = || questions.iter().map(|one| one.is_served(&lab)).collect::<Vec<_>>();
    let mut stunnel = Peer::start(lab.command("stunnel").arg("stunnel.conf"));
    stunnel.wait_for("Configuration successful");
    let by_stunnel = ask();
    drop(stunnel);
    let policy = lab.tacit(&["import", "stunnel", "stunnel.conf"]);
    let agent = lab.try_agent(policy.strip_prefix("version = 1\n").unwrap(), &[]);
    agent.wait_until_serving();
    let by_tacit = ask();

    let mut served = 0;
    let mut of_the_same_key = 0;
    for ((question, before), now) in questions.iter().zip(by_stunnel).zip(by_tacit) {
        // The import reports it: stunnel looks at the name and the key alone.
        if question.what.ends_with("again") {
            assert!(!now, "{}", question.what);
            of_the_same_key += usize::from(before);
        } else {
            assert_eq!(now, before, "{}\n{}", question.what, agent.log());
            served += usize::from(now);
        }
    }
    // Each role: `peer` by its chain four times and alone twice, `self` each time it stands there.
    assert_eq!((served, of_the_same_key), (2 * (6 + 8), 2 * 6));
}

#[test]
fn files_of_peers_with_cas_alone_fail_the_check() {
    let lab = lab();
    let service = "[in]\naccept = 127.0.0.1:1\nconnect = 127.0.0.1:2\ncert = localhost.pem\n\
                   key = localhost.key\nCAfile = cas.pem\nverify = 3\n";
    lab.write("stunnel.conf", service);
    lab.tacit(&["import", "stunnel", "stunnel.conf", "-o", "policy.toml"]);
    let check = lab.run(TACIT, &["check", "policy.toml"]);
    let said = text_of(&check);
    assert_eq!(check.status.code(), Some(78), "{said}");
    assert!(
        said.contains(
            "pins the certificate of CN=corp CA, but tacit rejects every client that sends"
        ),
        "{said}"
    );
}
