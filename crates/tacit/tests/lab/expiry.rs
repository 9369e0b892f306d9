//! Tests what the log, the metrics and `tacit show` report about certificates and CRLs that expire
//! soon.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::certificates::{self, Ca, LeafKind};
use crate::harness::{Lab, TACIT, echo, free_port, policy, text_of};
use crate::peers::{TlsClient, audit_of, write_pair};

const DAY_S: i64 = 86_400;

#[test]
fn expiry_is_reported_by_check_log_displays_and_metrics() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    let port = free_port();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = i64::try_from(since.as_secs()).unwrap();
    let end = now + 5 * DAY_S + 3600;
    let leaf = corp.leaf_until(end);
    write_pair(&lab, "soon", &leaf.cert_pem, &leaf.key_pem);
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], now - 3600));
    let rules = format!(
        "[identity.soon]\ncert = \"soon.pem\"\nkey = \"soon.key\"\n\
         [trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\nrevocation = \"soft\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         tls = {{ role = \"server\", identity = \"soon\", client-cert = \"preferred\", \
         trust = \"corp\" }}\n",
        echo()
    );
    lab.write("p.toml", policy(&rules));
    let checked = lab.run(TACIT, &["check", "p.toml"]);
    let said = text_of(&checked);
    assert!(checked.status.success() && said.contains("expires in 5 days"), "{said}");
    assert!(said.contains("CRL of CN=corp CA expired at"), "{said}");

    let agent = lab.agent(&rules);
    agent.wait_for_log(" warn expires kind=identity name=soon subject=CN=leaf ");
    agent.wait_for_log(" warn expires kind=crl name=corp subject=\"CN=corp CA\" ");
    assert!(agent.log().contains("days-left=5 "), "{}", agent.log());

    let shown = agent.show("identities");
    let identity = &shown["identities"][0];
    let trust = &shown["trusts"][0];
    assert_eq!((&identity["days-left"], &trust["revocation"]), (&5.into(), &"soft".into()));
    let until: jiff::Timestamp = trust["crl-until"].as_str().unwrap().parse().unwrap();
    assert_eq!(until.as_second(), now - 3600, "{shown}");
    assert_eq!(trust["crls"][0]["issuer"], "CN=corp CA", "{shown}");
    let table = agent.ok(&["show", "identities"]);
    assert!(table.contains("DAYS") && table.contains("CRL-UNTIL"), "{table}");

    let metrics = agent.ok(&["show", "metrics"]);
    let family = |name: &str| format!("tacit_{name} ");
    let ends = family("cert_not_after_seconds{kind=\"identity\",name=\"soon\"}");
    assert!(metrics.contains(&format!("{ends}{end}")), "{metrics}");
    let next = family("crl_next_update_seconds{name=\"corp\"}");
    assert!(metrics.contains(&format!("{next}{}", now - 3600)), "{metrics}");

    // It continues to serve, and peers decide for themselves.
    let client = TlsClient::open(&lab, port, &certificates::with("soon"));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
}

#[test]
fn an_expired_anchor_is_not_trusted() {
    let lab = Lab::new();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let corp = Ca::until("corp CA", i64::try_from(since.as_secs()).unwrap() + 12);
    let leaf = corp.leaf(LeafKind::Valid);
    write_pair(&lab, "leaf", &leaf.cert_pem, &leaf.key_pem);
    lab.write("corp.pem", corp.pem());
    let [rejecting, accepting] = [free_port(), free_port()];
    let trust = "[trust.corp]\nca = \"corp.pem\"\n\
                 [trust.old]\nca = \"corp.pem\"\nexpired-anchors = \"accept\"\n";
    let rule = |port: u16, trust: &str| {
        format!(
            "[[rule]]\nname = \"{trust}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
             tls = {{ role = \"server\", identity = \"localhost\", client-cert = \"required\", \
             trust = \"{trust}\" }}\n",
            echo()
        )
    };
    let rules = format!("{trust}{}{}", rule(rejecting, "corp"), rule(accepting, "old"));
    let agent = lab.agent(&rules);
    let options = certificates::with("leaf");
    let _open = [rejecting, accepting].map(|port| TlsClient::open(&lab, port, &options));
    let words = || {
        let shown = agent.show("connections");
        let all = shown.as_array().unwrap().iter();
        all.map(|one| one["tls"]["check"]["result"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(words(), ["\"valid\""; 2]);
    // Open connections are looked at again, and new ones are refused.
    agent.wait_for_log("ends at the CA CN=corp CA, whose certificate expired at");
    assert_eq!(words(), ["\"expired\"", "\"valid\""]);
    let refused = TlsClient::open(&lab, rejecting, &options);
    assert_eq!(audit_of(&agent, refused.port())["kind"], "certificate-expired");
    let served = TlsClient::open(&lab, accepting, &options);
    assert_eq!(served.result["reply"], "ping", "{}", served.result);
    lab.write("p.toml", policy(&rules));
    let said = text_of(&lab.run(TACIT, &["check", "p.toml"]));
    assert!(said.contains("tacit rejects chains that end at this certificate"), "{said}");
}
