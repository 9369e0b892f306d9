//! Tests the parsing of links (the tables `[link.NAME]`), and of rules with the key `link`.

use std::net::SocketAddr;

use super::{errors, sound};
use crate::flow::{Direction, Flow, Protocol};
use crate::policy::lookup::Index;
use crate::policy::{
    Link, LinkNames, LinkSelection, LinkSharing, LinkVerdict, LinkVsock, Lookup, Policy, parse,
};

const LINKS: &str = "version = 1\n[link.guest]\n[link.other]\nsockets = 7\nnames = false\nshare = \
                     true\nlisten = \"/run/o.sock\"\n";

fn rule(name: &str, more: &str) -> String {
    format!("[[rule]]\nname = \"{name}\"\n{more}\n")
}

fn flow(direction: Direction, protocol: Protocol, local: &str, remote: &str) -> Flow {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap().into();
    Flow {
        direction,
        protocol,
        listen: None,
        local: address(local),
        remote: address(remote),
        remote_names: Vec::new(),
        alias: None,
        is_shared: false,
        program: None,
        user: None,
        group: None,
        cgroup: None,
        run: None,
        to_own_host: false,
        at_unix_s: 0,
    }
}

fn verdict(policy: &Policy, link: &str, flow: &Flow) -> Option<(String, LinkVerdict)> {
    policy.link_rule(link, flow).map(|rule| (rule.name.clone(), rule.verdict))
}

#[test]
fn requests_are_decided_by_rules_with_link_only() {
    let text = LINKS.to_owned()
        + &rule("all", "direction = \"outbound\"\npermit = true")
        + &rule(
            "no",
            "link = \"guest\"\ndirection = \"outbound\"\nremote = \"10.0.0.9\"\ndeny = true",
        )
        + &rule(
            "out",
            "link = [\"guest\", \"other\"]\ndirection = \"outbound\"\nremote = \"10.0.0.0/24\"\n\
             remote-ports = 80\npermit = true",
        )
        + &rule(
            "in",
            "link = \"guest\"\ndirection = \"inbound\"\nlocal = \"10.1.1.1\"\nlocal-ports = \
             \"8000-8010\"\npermit = true",
        );
    let policy = sound(&text);
    let out = |to: &str| flow(Direction::Outbound, Protocol::Tcp, "0.0.0.0:0", to);
    let found = |link: &str, flow: &Flow| verdict(&policy, link, flow);
    let named = |name: &str, verdict| Some((name.to_owned(), verdict));
    assert_eq!(found("guest", &out("10.0.0.1:80")), named("out", LinkVerdict::Permit));
    assert_eq!(found("other", &out("10.0.0.9:80")), named("out", LinkVerdict::Permit));
    assert_eq!(found("guest", &out("10.0.0.9:80")), named("no", LinkVerdict::Deny));
    assert_eq!(found("guest", &out("10.0.0.1:81")), None);
    assert_eq!(found("nobody", &out("10.0.0.1:80")), None);
    let own = Flow { to_own_host: true, ..out("10.0.0.1:80") };
    assert_eq!(found("guest", &own), None, "a network must not lead to an address of this host");
    let udp = Flow { protocol: Protocol::Udp, ..out("10.0.0.1:80") };
    assert_eq!(found("guest", &udp), None);
    let listen = |at: &str| flow(Direction::Inbound, Protocol::Tcp, at, "0.0.0.0:0");
    assert_eq!(found("guest", &listen("10.1.1.1:8003")), named("in", LinkVerdict::Permit));
    for at in ["10.1.1.1:0", "0.0.0.0:8003", "10.1.1.1:8011"] {
        assert_eq!(found("guest", &listen(at)), None, "{at}");
    }
    // Flows of runs see none of these rules.
    let Lookup { rule, .. } = Index::new(&policy.rules).lookup(&out("10.0.0.9:80"));
    assert_eq!((policy.rules.len(), rule), (1, Some(0)));
    let other = &policy.links["other"];
    assert_eq!((other.sockets_max, other.names), (7, LinkNames::Refused));
    assert_eq!(other.sharing, LinkSharing::Shared);
    let guest = &policy.links["guest"];
    assert_eq!((guest.names, guest.sharing), (LinkNames::Resolved, LinkSharing::Isolated));
}

#[test]
fn keys_that_the_other_side_could_claim_are_errors() {
    for key in ["program = \"/bin/x\"", "user = \"x\"", "run = \"x\"", "cgroup = \"x\""] {
        let text = LINKS.to_owned()
            + &rule(
                "r",
                &format!("link = \"guest\"\ndirection = \"outbound\"\npermit = true\n{key}"),
            );
        let found = errors(&text);
        assert!(found.len() == 1 && found[0].contains("never match"), "{key}: {found:?}");
    }
}

#[test]
fn a_link_without_rules_is_a_warning() {
    let text =
        LINKS.to_owned() + &rule("r", "link = \"guest\"\ndirection = \"outbound\"\npermit = true");
    let warnings: Vec<_> = parse(&text).diagnostics.iter().map(|one| one.message.clone()).collect();
    assert!(
        warnings.iter().any(|one| one.contains("no rule has link = \"other\"")),
        "{warnings:?}"
    );
    assert!(!warnings.iter().any(|one| one.contains("guest")), "{warnings:?}");
}

#[test]
fn a_policy_that_only_connects_to_a_link_needs_no_rules() {
    let parsed = parse("version = 1\n[link.far]\nconnect = \"unix:/run/far.sock\"\n");
    let warnings: Vec<_> = parsed.diagnostics.iter().map(|one| one.message.clone()).collect();
    assert!(parsed.policy.is_some() && warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_link_has_one_local_address_of_each_ip_version() {
    let text = "version = 1\n[link.one]\nlocal = \"192.0.2.1\"\n[link.two]\nlocal = \
                [\"192.0.2.1\", \"2001:db8::1\"]\n[link.none]\n"
        .to_owned()
        + &rule(
            "r",
            "link = [\"one\", \"two\", \"none\"]\ndirection = \"outbound\"\npermit = true",
        );
    let policy = sound(&text);
    let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap();
    for (link, remote, local, is_reached) in [
        ("one", "198.51.100.7", Some("192.0.2.1"), true),
        ("one", "127.0.0.1", None, true),
        ("one", "2001:db8::7", None, false),
        ("two", "2001:db8::7", Some("2001:db8::1"), true),
        ("two", "::1", None, true),
        ("none", "198.51.100.7", None, true),
        ("none", "2001:db8::7", None, true),
    ] {
        let link = &policy.links[link];
        assert_eq!(link.local_for(ip(remote)), local.map(ip), "{remote}");
        assert_eq!(link.has_local_like(ip(remote)), is_reached, "{remote}");
    }
}

#[test]
fn a_policy_has_one_default_link() {
    let text = "version = 1\n[link.01]\ndefault = true\nruns = 7\n[link.02]\n".to_owned()
        + &rule("r", "link = \"02\"\ndirection = \"outbound\"\npermit = true");
    // Runs use it, so it needs no rules of this policy.
    let parsed = parse(&text);
    assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
    let policy = sound(&text);
    let of = |name: &str| (policy.links[name].selection, policy.links[name].runs_max);
    assert_eq!(of("01"), (LinkSelection::Default, 7));
    assert_eq!(of("02"), (LinkSelection::Named, Link::RUNS_MAX));
    let found = errors(&text.replace("[link.02]\n", "[link.02]\ndefault = true\n"));
    assert!(found.len() == 1 && found[0].contains("a run uses only one link"), "{found:?}");
    for (text, part) in [("0", "runs"), ("1025", "runs")] {
        let found = errors(&format!("version = 1\n[link.a]\nruns = {text}\n"));
        assert!(found.len() == 1 && found[0].contains(part), "{text}: {found:?}");
    }
}

#[test]
fn a_link_listens_for_one_context_of_vsock() {
    let listen = |text: &str| format!("version = 1\n[link.a]\nlisten = \"{text}\"\n");
    let policy = sound(&listen("vsock:3:7000"));
    assert_eq!(policy.links["a"].vsock, Some(LinkVsock { cid: 3, port: 7000 }));
    assert_eq!((&policy.links["a"].listen, &policy.links["a"].tcp), (&None, &None));
    for text in ["vsock:7000", "vsock:0:7000", "vsock:4294967295:7000", "vsock:3:x", "vsock:3:"] {
        let found = errors(&listen(text));
        assert!(found.len() == 1 && found[0].contains("vsock:3:7000"), "{text}: {found:?}");
    }
    let found = errors(&(listen("vsock:3:7000") + "connect = \"vsock:2:7000\"\n"));
    assert!(found.len() == 1 && found[0].contains("cannot listen"), "{found:?}");
}
