//! Tests tunnels whose peers authenticate with certificates, and what `tacit show` reports about
//! tunnels.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::{Scenario, WEB};

/// Makes a CA, and certificates of both sides with keys of this kind.
pub(crate) const CERTIFICATES: &str = r#"
certificate() {
    openssl req -x509 -CA ca.pem -CAkey ca.key -newkey "$@" -nodes -days 30 -subj "/CN=$name" \
        -addext "subjectAltName=DNS:$name.example" -addext "basicConstraints=critical,CA:false" \
        -keyout $name.key -out $name.pem
}
certificates() {
    openssl req -x509 -newkey "$@" -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem &&
        name=gw && certificate "$@" && name=branch && certificate "$@"
}
use_certificates() {
    certificates "$@" >openssl.log 2>&1 || fail "$(cat openssl.log)"
    mkdir swanctl/x509 swanctl/x509ca swanctl/private
    cp gw.pem swanctl/x509; cp ca.pem swanctl/x509ca; cp gw.key swanctl/private
    sed -i 's/auth = psk/auth = pubkey/; s/^            id = gw.example/&\n certs = gw.pem/' \
        swanctl/swanctl.conf
    swan --load-all >load 2>&1 || fail "$(cat load)"
    cp branch.pem branch.key ca.pem private
    chmod 600 private/*
    sed -i 's/^psk-file.*/identity = "branch"\ntrust = "ca"/' private/run.toml
    echo '[identity.branch]
        cert = "branch.pem"
        key = "branch.key"
        [trust.ca]
        ca = "ca.pem"' >>private/run.toml
    [ -z "$OWNER_OF_RUNS" ] || chown -R "$OWNER_OF_RUNS" private
}
"#;

fn scenario(steps: &str) -> String {
    Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps }.output()
}

#[test]
fn certificates_prove_both_sides_and_the_key_stays_in_the_signer() {
    for key in ["ec -pkeyopt ec_paramgen_curve:P-256", "ed25519"] {
        let text = scenario(&format!(
            "{CERTIFICATES}\nuse_certificates {key}
            run curl -sS -m 20 http://10.2.0.1/
            grep -q 'authentication of .gw.example. (myself) with' charon.log || fail signature
            clear"
        ));
        assert_eq!(text, "from behind\nonly UDP 4500\n", "{key}");
    }
}

#[test]
fn the_subjects_of_certificates_can_be_the_identities_of_both_sides() {
    let text = scenario(&format!(
        "{CERTIFICATES}\nuse_certificates ed25519
        sed -i 's/id = gw.example/id = \"CN=gw\"/; s/id = branch.example/id = \"CN=branch\"/' \\
            swanctl/swanctl.conf
        swan --load-all >load 2>&1 || fail \"$(cat load)\"
        sed -i 's/^local-id.*/local-id = \"CN=branch\"/; s/^remote-id.*/remote-id = \"CN=gw\"/' \\
            private/run.toml
        run curl -sS -m 20 http://10.2.0.1/
        for name in gw branch; do
            grep -q \"authentication of 'CN=$name' .*with\" charon.log || fail $name
        done
        clear"
    ));
    assert_eq!(text, "from behind\nonly UDP 4500\n");
}

#[test]
fn a_peer_with_a_certificate_of_another_ca_gets_no_packet() {
    let text = scenario(&format!(
        "{CERTIFICATES}\nuse_certificates ed25519
        openssl req -x509 -newkey ed25519 -nodes -days 30 -subj /CN=ca -keyout other.key \
            -out private/ca.pem 2>/dev/null
        agent
        enrolled bash -c 'curl -sS -m 3 http://10.2.0.1/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
        until_true [ -e scratch/up ]
        control show ike | grep -o 'cannot verify the peer with .trust.'
        touch scratch/end; wait $program
        grep -o 'timed out' run.log
        until_true grep -q 'ike-failed.*cannot verify the peer with .trust.' agent.log
        clear"
    ));
    assert_eq!(text, "cannot verify the peer with [trust.\ntimed out\nonly UDP 4500\n");
}

#[test]
fn displays_have_the_connection_its_keys_and_the_packets() {
    let text = scenario(
        "agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' >/dev/null & program=$!
        until_true [ -e scratch/up ]
        control show ike --json | tr -d '\\n'; echo
        control show sa --json | tr -d '\\n'; echo
        control show ike
        control show sa
        control explain --direction outbound --remote 10.2.0.1:80
        control show rules | grep '^web '
        control show metrics | grep '^tacit_\\(ike\\|tunnel\\)'
        touch scratch/end; wait $program",
    );
    let mut lines = text.lines();
    let [ike, sa] = [(); 2].map(|()| lines.next().unwrap());
    assert_fits("show-ike", ike);
    assert_fits("show-sa", sa);
    let ike: Value = serde_json::from_str(ike).unwrap();
    let one = &ike["connections"][0];
    assert_eq!(one["state"], "established", "{text}");
    assert_eq!((&one["ike"], &one["identity"]), (&"branch".into(), &"gw.example".into()));
    assert_eq!(one["proposal"], "aes256gcm16-prfsha384-x25519");
    let sa: Value = serde_json::from_str(sa).unwrap();
    let one = &sa["tunnels"][0];
    assert_eq!(one["is-sending"], true);
    for way in ["inbound", "outbound"] {
        assert!(one[way]["packets"].as_u64().unwrap() > 3, "{text}");
    }
    let others: Vec<&str> = lines.collect();
    let has = |start: &str| others.iter().any(|line| line.starts_with(start));
    assert!(has("tacit_ike_connections{ike=\"branch\",state=\"established\"} 1"), "{text}");
    assert!(has("tacit_tunnel_packets_total{direction=\"inbound\"} "), "{text}");
    assert!(text.contains("10.99.0.2:4500  established"), "{text}");
    assert!(
        text.contains("rule `web` matches: ipsec, through a tunnel to the peer [ike.branch]"),
        "{text}"
    );
    let rule = others.iter().find(|line| line.starts_with("web ")).unwrap();
    assert!(rule.contains(" ipsec "), "{text}");
}
