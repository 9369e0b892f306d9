//! Tests pinned certificates of clients and of servers, with OpenSSL as the peer.

use std::io::{Read, Write};

use rcgen::KeyUsagePurpose;
use tacit_tls::test_certificates;

use crate::certificates::{Ca, LeafKind, NAME};
use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, text_of, wait_for_or};
use crate::peers::write_pair;
use crate::programs::{Ended, Peer, only_connection};

const ALONE: &str = "[trust.pins]\npinned = \"pins.pem\"\n";
const BESIDE: &str = "[trust.pins]\nca = \"corp.pem\"\npinned = \"pins.pem\"\n";
const NOT_PINNED: &str = "is not pinned in [trust.pins]";
const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];
const ACCEPTS: &str = "role = \"server\", identity = \"localhost\", client-cert = \"required\"";

/// A lab with these leaves of one CA: `peer`; `again`, with its name and key; `other`, with its
/// name; and `old`, which has expired. `peer` and `old` are pinned.
fn lab() -> (Lab, Ca) {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    lab.write("corp.pem", corp.pem());
    let peer = corp.leaf(LeafKind::Valid);
    let old = corp.leaf(LeafKind::Expired);
    lab.write("pins.pem", peer.cert_pem.clone() + &old.cert_pem);
    let again = corp.leaf_again(&peer);
    let other = corp.leaf(LeafKind::Valid);
    for (name, leaf) in [("peer", &peer), ("again", &again), ("other", &other), ("old", &old)] {
        write_pair(&lab, name, &leaf.cert_pem, &leaf.key_pem);
    }
    (lab, corp)
}

fn rule(port: u16, connect: &str, tls: &str) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{connect}\"\n\
         tls = {{ {tls}, trust = \"pins\" }}\n"
    )
}

fn s_client(lab: &Lab, port: u16, words: &str) -> Peer {
    let words = format!("s_client -connect 127.0.0.1:{port} -CAfile ca.pem {words}");
    Peer::start(lab.command("openssl").args(words.split_whitespace()))
}

/// Puts another certificate in the place of those pinned.
fn pin(lab: &Lab, name: &str) {
    std::fs::copy(lab.path(&format!("{name}.pem")), lab.path("next")).unwrap();
    std::fs::rename(lab.path("next"), lab.path("pins.pem")).unwrap();
}

fn is_served(lab: &Lab, port: u16, words: &str) -> bool {
    let mut client = s_client(lab, port, words);
    client.say("there and back\n");
    let said = || client.said();
    // A refusal is an alert, or a reset where the line was written before it came.
    let ends = ["back\n", "alert", "errno"];
    wait_for_or(words, || ends.iter().any(|end| said().contains(end)), said);
    let is_served = client.said().contains("there and back\n");
    if is_served {
        client.say("Q\n");
    }
    let Ended { said, succeeded } = client.end();
    let is_told = ["alert certificate unknown", "alert certificate expired", "errno"]
        .iter()
        .any(|words| said.contains(words));
    assert!(is_served == succeeded && is_served != is_told, "{said}");
    is_served
}

#[test]
fn clients_of_openssl_need_the_pinned_certificate() {
    for trust in [ALONE, BESIDE] {
        let (lab, _) = lab();
        let port = free_port();
        let agent = lab.agent(&format!("{trust}{}", rule(port, &echo().to_string(), ACCEPTS)));
        for version in VERSIONS {
            let with = |name: &str| format!("{version} -cert {name}.pem -key {name}.key");
            let names = ["peer", "again", "other", "old"];
            let served = names.map(|name| is_served(&lab, port, &with(name)));
            assert_eq!(served, [true, false, false, false], "{trust} {version}\n{}", agent.log());
        }
        agent.wait_for_log(NOT_PINNED);
        agent.wait_for_log("CN=leaf expired at 2021-02-03");
    }
}

#[test]
fn servers_of_openssl_need_the_pinned_certificate() {
    let (lab, _) = lab();
    for (trust, verify) in [(ALONE, "full"), (ALONE, "chain"), (BESIDE, "full")] {
        for (name, version) in
            ["peer", "again", "other", "old"].map(|n| VERSIONS.map(|v| (n, v))).concat()
        {
            let [port, target] = [free_port(), free_port()];
            let words = format!(
                "s_server -accept 127.0.0.1:{target} -rev -cert {name}.pem -key {name}.key \
                 {version}"
            );
            let mut server = Peer::start(lab.command("openssl").args(words.split_whitespace()));
            server.wait_for("ACCEPT");
            let tls = format!("role = \"client\", verify = \"{verify}\", server-name = \"{NAME}\"");
            let to = format!("127.0.0.1:{target}");
            let agent = lab.agent(&format!("{trust}{}", rule(port, &to, &tls)));
            let mut stream = connect(("127.0.0.1", port));
            let _ = stream.write_all(b"abc\n");
            let mut answer = [0; 4];
            let is_served = stream.read_exact(&mut answer).is_ok() && answer == *b"cba\n";
            assert_eq!(is_served, name == "peer", "{trust} {words}\n{}", agent.log());
            if is_served {
                let word = if verify == "full" { "valid" } else { "chain-valid" };
                assert_eq!(only_connection(&agent, "r")["tls"]["check"]["result"], word);
            } else {
                let words = if name == "old" { "expired at" } else { NOT_PINNED };
                agent.wait_for_log(words);
            }
        }
    }
}

#[test]
fn a_resumed_session_counts_only_while_its_certificate_is_pinned() {
    let (lab, _) = lab();
    let port = free_port();
    let agent = lab.agent(&format!("{ALONE}{}", rule(port, &echo().to_string(), ACCEPTS)));
    for version in VERSIONS {
        let words = |how: &str| format!("{version} -cert peer.pem -key peer.key {how} session");
        assert!(is_served(&lab, port, &words("-sess_out")));
        assert!(is_served(&lab, port, &words("-sess_in session -sess_out")));
        pin(&lab, "other");
        let shows_other = || {
            let shown = agent.show("identities");
            shown["trusts"][0]["pinned"].as_array().unwrap().len() == 1
        };
        wait_for_or("the new pin", shows_other, || agent.log());
        assert!(!is_served(&lab, port, &words("-sess_in")), "{}", agent.log());
        std::fs::write(lab.path("next"), pem(&lab, "peer") + &pem(&lab, "old")).unwrap();
        std::fs::rename(lab.path("next"), lab.path("pins.pem")).unwrap();
        wait_for_or("the old pins", || !shows_other(), || agent.log());
    }
}

fn pem(lab: &Lab, name: &str) -> String {
    std::fs::read_to_string(lab.path(&format!("{name}.pem"))).unwrap()
}

#[test]
fn an_open_connection_is_closed_when_its_pin_is_removed() {
    let (lab, _) = lab();
    let port = free_port();
    let tls = format!("{ACCEPTS}, recheck = \"close\"");
    let agent = lab.agent(&format!("{ALONE}{}", rule(port, &echo().to_string(), &tls)));
    let mut client = s_client(&lab, port, "-cert peer.pem -key peer.key");
    client.say("there and back\n");
    client.wait_for("there and back\n");
    assert_eq!(only_connection(&agent, "r")["tls"]["peer"]["identity"], NAME);
    pin(&lab, "again");
    agent.wait_for_log("end=\"the peer is no longer trusted, so tacit closed the connection\"");
    assert!(agent.log().contains(NOT_PINNED), "{}", agent.log());
    assert!(client.end().said.contains("there and back"));
}

fn explained(lab: &Lab, peer: &str) -> String {
    let words = ["explain", "--policy", "p.toml", "--rule", "r", "--peer", peer];
    text_of(&lab.run(TACIT, &words))
}

#[test]
fn check_and_explain_know_pins() {
    let (lab, corp) = lab();
    let good = format!("{ALONE}{}", rule(8443, "127.0.0.1:1", ACCEPTS));
    lab.write("p.toml", crate::harness::policy(&good));
    let said = text_of(&lab.run(TACIT, &["check", "p.toml"]));
    assert!(said.contains("the pinned certificate of CN=leaf expired at 2021-02-03"), "{said}");
    let [peer, again] = ["peer.pem", "again.pem"].map(|peer| explained(&lab, peer));
    assert!(!peer.contains(NOT_PINNED) && again.contains(NOT_PINNED), "{peer}\n{again}");
    let usages = [KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = Ca::made("CA", |params| params.key_usages = usages.to_vec()).pem();
    let server = corp.leaf(LeafKind::ServerOnly).cert_pem;
    for (pins, words) in [
        (String::new(), "pins.pem: the file contains no certificate"),
        (test_certificates::openssl_v1(2048).cert_pem, "can never be accepted"),
        (authority.clone(), "the keyUsage of the certificate does not include digitalSignature"),
        (server.clone(), "pins the certificate of CN=leaf, but tacit rejects every client"),
        (server + &authority, "pin the certificate that the client sends"),
    ] {
        lab.write("pins.pem", pins);
        let output = lab.run(TACIT, &["check", "p.toml"]);
        assert_eq!(output.status.code(), Some(78));
        assert!(text_of(&output).contains(words), "{}", text_of(&output));
    }
    // With a chain, a CA certificate is never the peer's own; without one, OpenSSL makes such.
    for (trust, accepts) in [(ALONE, true), (BESIDE, false)] {
        lab.write("p.toml", crate::harness::policy(&good.replace(ALONE, trust)));
        lab.write("pins.pem", corp.pem());
        let output = lab.run(TACIT, &["check", "p.toml"]);
        assert_eq!(output.status.success(), accepts, "{}", text_of(&output));
        let words = "is a CA certificate, but tacit pins only leaf certificates";
        assert_ne!(text_of(&output).contains(words), accepts, "{}", text_of(&output));
        // One that can be used is enough.
        lab.write("pins.pem", pem(&lab, "peer") + &authority);
        assert!(lab.run(TACIT, &["check", "p.toml"]).status.success());
    }
    lab.write("pins.pem", corp.leaf(LeafKind::Valid).cert_pem);
    let more = |more: &str| {
        lab.write(
            "p.toml",
            crate::harness::policy(&good.replace(ALONE, &format!("{ALONE}{more}"))),
        );
        text_of(&lab.run(TACIT, &["check", "p.toml"]))
    };
    for key in ["crl = \"a.crl\"", "revocation = \"hard\"", "expired-anchors = \"accept\""] {
        let said = more(&format!("{key}\n"));
        assert!(said.contains("does not belong here: this key needs a CA"), "{said}");
        assert!(!said.contains("has no `crl`"), "{said}");
    }
}

#[test]
fn a_new_pin_that_can_never_match_is_not_loaded() {
    let (lab, corp) = lab();
    let port = free_port();
    let agent = lab.agent(&format!("{ALONE}{}", rule(port, &echo().to_string(), ACCEPTS)));
    write_pair(&lab, "server", &corp.leaf(LeafKind::ServerOnly).cert_pem, "");
    pin(&lab, "server");
    agent.wait_for_log("allows serverAuth, but not clientAuth; pin the certificate");
    assert!(is_served(&lab, port, "-cert peer.pem -key peer.key"), "{}", agent.log());
}

#[test]
fn pins_outside_the_sandbox_need_a_restart() {
    let (lab, corp) = lab();
    let elsewhere = Lab::new();
    elsewhere.write("pins.pem", corp.leaf(LeafKind::Valid).cert_pem);
    let of = |trust: &str| format!("{trust}{}", rule(free_port(), &echo().to_string(), ACCEPTS));
    let agent: Agent = lab.agent(&of(ALONE));
    let there = elsewhere.path("pins.pem").display().to_string();
    agent.write_policy(&of(&ALONE.replace("pins.pem", &there)));
    let refused = text_of(&agent.verb(&["reload"]));
    assert!(
        refused.contains("this agent cannot read ") && refused.contains("pins.pem: its sandbox"),
        "{refused}"
    );
}
