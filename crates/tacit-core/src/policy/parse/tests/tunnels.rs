//! Tests how the policy parser reads the settings of IPsec tunnels. The policies have tables
//! `[ike.NAME]`, which define IPsec peers, and several rules with the key `ipsec`.

use super::{errors, sound, warnings};
use crate::flow::{Address, Direction, Flow, Protocol};
use crate::policy::{IkeHost, IkeName, IkePeer, IkeSuite, InnerAddressSource, Target, explain};

#[test]
fn a_peer_of_tunnels_has_defaults_and_the_words_of_strongswan() {
    let text = "version = 1\n[ike.b]\npeer = \"192.0.2.1\"\npsk-file = \"b.psk\"\nlocal-id = \
                \"C.example\"\ninner = \"gateway\"\n";
    let peer = sound(text).ikes.remove("b").unwrap();
    assert_eq!(peer.address(), Some("192.0.2.1:4500".parse().unwrap()));
    assert_eq!(peer.unresolved(), None);
    assert_eq!(peer.remote_id, IkeName::Address([192, 0, 2, 1].into()));
    assert_eq!(peer.local_id, IkeName::Fqdn("c.example".to_owned()));
    assert_eq!(peer.inner, InnerAddressSource::Gateway);
    let words = |suites: &[IkeSuite]| suites.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(words(&peer.proposals), IkePeer::PROPOSALS_DEFAULT);
    assert_eq!(peer.esp_proposals.len(), IkePeer::ESP_PROPOSALS_DEFAULT.len());
    assert_eq!(peer.esp_offers().len(), 9, "three ciphers with three groups");
    let more = "remote-id = \"a@gw.example\"\npfs = false\nproposals = \
                \"AES256-SHA2_512-curve25519\"\nesp-proposals = \
                [\"aes128-sha256\"]\nlifetime-bytes = \"1GiB\"\nport = 500\nversion = 2\n";
    let inner = "inner = [\"10.1.0.1\", \"fd01::1\"]";
    let peer = sound(&format!("{text}{more}").replace("inner = \"gateway\"", inner))
        .ikes
        .remove("b")
        .unwrap();
    assert_eq!(words(&peer.proposals), ["aes256-sha512-prfsha512-x25519"]);
    let offers: Vec<_> = peer.esp_offers().iter().map(ToString::to_string).collect();
    assert_eq!(offers, ["aes128-sha256"]);
    assert_eq!(peer.remote_id, IkeName::UserFqdn("a@gw.example".to_owned()));
    assert_eq!(peer.lifetime.bytes, Some(1 << 30));
    let InnerAddressSource::Policy(inner) = peer.inner else { panic!() };
    assert_eq!(inner.len(), 2);
}

#[test]
fn a_peer_that_only_moves_in_the_text_stays_the_same() {
    for credentials in ["psk-file = \"b.psk\"", "identity = \"web\"\ntrust = \"system\""] {
        let peer = |before: &str, local_id: &str| {
            let text = format!(
                "version = 1\n[identity.web]\ncert = \"web.pem\"\nkey = \"web.key\"\n{before}\
                 [ike.b]\npeer = \"192.0.2.1\"\n{before}{credentials}\n{before}local-id = \
                 \"{local_id}\"\ninner = \"gateway\"\n"
            );
            sound(&text).ikes.remove("b").unwrap()
        };
        let first = peer("", "c.example");
        assert!(first.same(&peer("# moved\n", "c.example")), "{credentials}");
        assert!(!first.same(&peer("", "d.example")), "{credentials}");
    }
}

#[test]
fn a_distinguished_name_is_an_identity_of_both_sides() {
    let text = "version = 1\n[ike.b]\npeer = \"192.0.2.1\"\npsk-file = \"b.psk\"\nlocal-id = \
                \"C=DE, O=Corp, CN=branch\"\nremote-id = \"commonName = gw\"\ninner = \
                \"gateway\"\n";
    let peer = sound(text).ikes.remove("b").unwrap();
    assert_eq!(peer.local_id.to_string(), "C=DE, O=Corp, CN=branch");
    assert_eq!(peer.remote_id.to_string(), "CN=gw");
    let IkeName::DistinguishedName(name) = peer.local_id else { panic!() };
    let kinds: Vec<_> = name.iter().map(|one| one.oid.as_str()).collect();
    assert_eq!(kinds, ["2.5.4.6", "2.5.4.10", "2.5.4.3"]);
}

#[test]
fn a_peer_can_have_a_name_which_is_then_its_identity() {
    let text = "version = 1\n[ike.b]\npeer = \"GW.example.\"\nport = 500\npsk-file = \
                \"b.psk\"\nlocal-id = \"c.example\"\ninner = \"gateway\"\n";
    let peer = sound(text).ikes.remove("b").unwrap();
    assert_eq!(peer.remote_id, IkeName::Fqdn("gw.example".to_owned()));
    assert_eq!(peer.address(), None);
    assert_eq!(peer.unresolved(), Some(Target::Name { host: "gw.example".to_owned(), port: 500 }));
}

#[test]
fn an_exception_before_a_tunnel_is_allowed() {
    let ikes: String = ["a", "b"]
        .map(|name| {
            format!(
                "[ike.{name}]\npeer = \"192.0.2.1\"\npsk-file = \"b.psk\"\nlocal-id = \
                 \"c.example\"\ninner = \"gateway\"\n"
            )
        })
        .concat();
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\n{more}\n")
    };
    let narrow = rule("one", "remote = \"10.2.0.1\"\nipsec = { ike = \"a\" }");
    let wide = rule("two", "remote = \"10.2.0.0/16\"\nipsec = { ike = \"b\" }");
    assert_eq!(errors(&format!("version = 1\n{ikes}{narrow}{wide}")), [""; 0]);
    assert_eq!(errors(&format!("version = 1\n{ikes}{wide}{narrow}")).len(), 1);
    let runs = |text: &str, run: &str| text.replace("ipsec", &format!("run = \"{run}\"\nipsec"));
    let apart = format!("version = 1\n{ikes}{}{}", runs(&wide, "x"), runs(&narrow, "y"));
    assert_eq!(errors(&apart), [""; 0]);
}

#[test]
fn a_rule_whose_addresses_have_another_ip_version_than_inner_is_warned_about() {
    let text = |inner: &str, remote: &str| {
        format!(
            "version = 1\n[ike.b]\npeer = \"192.0.2.1\"\npsk-file = \"b.psk\"\nlocal-id = \
             \"c.example\"\ninner = {inner}\n[[rule]]\nname = \"r\"\ndirection = \
             \"outbound\"\n{remote}\nipsec = {{ ike = \"b\" }}\n"
        )
    };
    let both = "remote = [\"10.2.0.0/16\", \"fd02::/64\"]";
    let v4 = "remote = [\"10.2.0.0/16\", \"10.3.0.1-10.3.0.9\"]";
    let v6 = "remote = \"fd02::/64\"";
    for (inner, remote) in [
        ("\"10.1.0.1\"", v4),
        ("\"10.1.0.1\"", both),
        ("\"10.1.0.1\"", ""),
        ("\"fd01::1\"", v6),
        ("\"fd01::1\"", both),
        ("[\"10.1.0.1\", \"fd01::1\"]", v4),
        ("\"gateway\"", v6),
    ] {
        assert_eq!(warnings(&text(inner, remote)), [""; 0], "{inner} {remote}");
    }
    let warning = |remote: &str, inner: &str| {
        format!(
            "10:10: rule `r` never matches a packet: `remote` has only {remote} addresses, but \
             `inner` of [ike.b] has only an {inner} address | add an {remote} address to `inner` \
             of [ike.b], or write {inner} addresses in `remote`"
        )
    };
    assert_eq!(warnings(&text("\"fd01::1\"", v4)), [warning("IPv4", "IPv6")]);
    assert_eq!(warnings(&text("\"10.1.0.1\"", v6)), [warning("IPv6", "IPv4")]);
    let sa = "[sa.b]\npeer = \"192.0.2.1\"\nencryption = \"aes256-cbc\"\nintegrity = \
              \"sha256\"\nspi-in = 256\nspi-out = 256\nkeys-in = \"in\"\nkeys-out = \
              \"out\"\n";
    let text = text("\"fd01::1\"", v4).replace("{ ike =", "{ sa =");
    let at = [text.find("[ike.b]").unwrap(), text.find("inner").unwrap()];
    let text = format!("{}{sa}{}", &text[..at[0]], &text[at[1]..]);
    let found = warnings(&text);
    assert!(found.len() == 1 && found[0].contains("`inner` of [sa.b] has only"), "{found:?}");
}

#[test]
fn an_explanation_names_the_peer_of_the_tunnel() {
    let policy = sound(
        "version = 1\n[ike.b]\npeer = \"192.0.2.1\"\npsk-file = \"b.psk\"\nlocal-id = \
         \"c.example\"\ninner = \"gateway\"\n[[rule]]\nname = \"a\"\ndirection = \
         \"outbound\"\nprotocol = \"icmp\"\nremote = \"10.2.0.0/16\"\nipsec = { ike = \"b\" }\n",
    );
    let flow = Flow {
        direction: Direction::Outbound,
        protocol: Protocol::Icmp,
        listen: None,
        local: Address::Unnamed,
        remote: "10.2.0.1:0".parse().unwrap(),
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        to_own_host: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: Some(String::new()),
        at_unix_s: 0,
    };
    let text = "line 7: rule `a` matches: ipsec, through a tunnel to the peer [ike.b]\n    \
                peer 192.0.2.1:4500, address of the run inside the tunnel: an address that the \
                peer assigns\n    without the tunnel: the program cannot connect \
                (EHOSTUNREACH) until the peer has assigned an address. After that, a \
                packet waits up to 10 s for the tunnel. If the tunnel is then still missing, \
                the packet is dropped. No packet leaves in clear";
    assert_eq!(explain(&policy, &flow).to_string(), text);
    let mut policy = policy;
    policy.ikes.get_mut("b").unwrap().host = IkeHost::Name("gw.example".to_owned());
    let text = text.replace("192.0.2.1:4500", "gw.example:4500");
    assert_eq!(explain(&policy, &flow).to_string(), text);
}
