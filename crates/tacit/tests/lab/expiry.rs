//! Certificates and lists that end soon are told of wherever somebody looks.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::certificates::{self, Ca};
use crate::harness::{Lab, TACIT, echo, free_port, policy, text_of};
use crate::peers::{TlsClient, write_pair};

const DAY_S: i64 = 86_400;

#[test]
fn what_ends_soon_is_told_in_check_log_display_and_metrics() {
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
    assert!(said.contains("list of revoked certificates of CN=corp CA is out of date"), "{said}");

    let agent = lab.agent(&rules);
    agent.wait_for_log(" warn expires kind=identity name=soon subject=CN=leaf ");
    agent.wait_for_log(" warn expires kind=crl name=corp subject=\"CN=corp CA\" ");
    assert!(agent.log().contains("days-left=5 "), "{}", agent.log());

    let shown = agent.show("identities");
    let identity = &shown["identities"][0];
    let trust = &shown["trusts"][0];
    assert_eq!((&identity["days-left"], &trust["revocation"]), (&5.into(), &"soft".into()));
    assert_eq!(trust["lists-until"], now - 3600, "{shown}");
    assert_eq!(trust["lists"][0]["issuer"], "CN=corp CA", "{shown}");
    let table = agent.ok(&["show", "identities"]);
    assert!(table.contains("DAYS") && table.contains("LISTS-UNTIL"), "{table}");

    let metrics = agent.ok(&["show", "metrics"]);
    let family = |name: &str| format!("tacit_{name} ");
    let ends = family("cert_not_after_seconds{kind=\"identity\",name=\"soon\"}");
    assert!(metrics.contains(&format!("{ends}{end}")), "{metrics}");
    let next = family("crl_next_update_seconds{name=\"corp\"}");
    assert!(metrics.contains(&format!("{next}{}", now - 3600)), "{metrics}");

    // It goes on serving, and peers decide for themselves.
    let client = TlsClient::open(&lab, port, &certificates::with("soon"));
    assert_eq!(client.result["reply"], "ping", "{}", client.result);
}
