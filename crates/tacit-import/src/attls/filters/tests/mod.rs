//! Tests the import of z/OS IP filter rules, alone and together with TLS rules.

use crate::attls::AttlsOptions;
use crate::attls::tests::Given;
use crate::{Findings, Input};
use tacit_core::policy::{Action, Policy, parse};

const TLS: &str = "\
TTLSRule web
{
LocalPortRange 443
Direction Inbound
Priority 2
TTLSGroupActionRef g
TTLSEnvironmentActionRef server
}
TTLSRule out
{
RemotePortRange 8000-8999
Direction Outbound
TTLSGroupActionRef g
TTLSEnvironmentActionRef client
}
TTLSGroupAction g
{
TTLSEnabled On
}
TTLSEnvironmentAction server
{
HandshakeRole Server
TTLSKeyringParms
{
Keyring ring
}
}
TTLSEnvironmentAction client
{
HandshakeRole Client
TTLSKeyringParms
{
Keyring ring
}
}
";

const MAP: &str = "[keyring.ring]\ncert = \"a.pem\"\nkey = \"a.key\"\nca = \"ca.pem\"\n";

/// A policy of filter rules, each with its services, and both actions.
fn filters(rules: &[(&str, &str, &str)]) -> String {
    let mut text = "IpFilterPolicy\n{\n".to_owned();
    for (name, ..) in rules {
        text.push_str(&format!("IpFilterRuleRef {name}\n"));
    }
    text.push_str("}\nIpGenericFilterAction permit\n{\nIpFilterAction permit\n}\n");
    text.push_str("IpGenericFilterAction deny\n{\nIpFilterAction deny\nDiscardAction icmp\n}\n");
    for (name, action, body) in rules {
        text.push_str(&format!(
            "IpFilterRule {name}\n{{\n{body}\nIpGenericFilterActionRef {action}\n}}\n"
        ));
    }
    text
}

fn service(body: &str) -> String {
    format!("IpService\n{{\n{body}\n}}")
}

fn imported(tls: &str, filters: &str) -> (Option<String>, Vec<String>) {
    let mut findings = Findings::default();
    let filters = [Input { file: "ipsec", bytes: filters.as_bytes() }];
    let policies = [Input { file: "tls", bytes: tls.as_bytes() }];
    let mut given = Given { filters: &filters, ..Given::default() };
    if !tls.is_empty() {
        given.policies = &policies;
        given.map = Some(Input { file: "map", bytes: MAP.as_bytes() });
    }
    let policy = given.import(&mut findings).policy;
    let found = findings.finish().into_iter();
    let found =
        found.map(|f| format!("{}:{}: {}: {}", f.file, f.line, f.severity.word(), f.message));
    (policy, found.collect())
}

fn policy(tls: &str, filters: &str) -> Policy {
    let (policy, found) = imported(tls, filters);
    parse(&policy.unwrap_or_else(|| panic!("{found:#?}\n{filters}"))).policy.unwrap()
}

/// Each rule in one line.
fn shown(policy: &Policy) -> Vec<String> {
    let rule = |rule: &tacit_core::policy::Rule| {
        let s = &rule.selectors;
        let list = |all: &[tacit_core::policy::selector::AddressSelector]| {
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        format!(
            "{} {:?} {:?} {} {:?} -> {} {:?} at {}: {}{}",
            rule.name,
            s.direction,
            s.protocol,
            list(&s.local),
            s.local_ports,
            list(&s.remote),
            s.remote_ports,
            rule.listens().iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            rule.action.word(),
            if rule.log { " log" } else { "" },
        )
    };
    policy.rules.iter().map(|one| rule(one)).collect()
}

#[test]
fn filter_rules_keep_their_order_and_end_in_a_deny() {
    let dns =
        service("Protocol udp\nDestinationPortRange 53\nDirection bidirectional OutboundConnect");
    let ssh = service("Protocol tcp\nSourcePortRange 22\nDirection bidirectional InboundConnect");
    let any = service("Protocol all\nDirection bidirectional");
    let text = filters(&[
        ("bad", "deny", &format!("IpSourceAddr All\nIpDestAddr 10.9.0.0/16\n{any}")),
        ("dns", "permit", &format!("IpSourceAddr All\nIpDestAddr 10.0.0.53\n{dns}")),
        ("ssh", "permit", &format!("IpSourceAddr 192.0.2.1\nIpDestAddr 10.0.0.0/8\n{ssh}")),
    ]);
    let (_, found) = imported("", &text);
    assert_eq!(
        found,
        [
            "ipsec:1: info: traffic that no filter rule permits is denied, as on z/OS; programs \
             get an error immediately",
            "ipsec:27: info: `tacit check` warns about this part of the imported policy: rule \
             `dns` lets programs resolve every name, so a program can send out data in DNS queries",
            "ipsec:31: info: policy rules do not apply to DNS queries: tacit receives the \
             queries to port 53, and sends its own queries to the resolvers of the host",
        ]
    );
    assert_eq!(
        shown(&policy("", &text)),
        [
            "bad Inbound Tcp  [] -> 10.9.0.0/16 [] at 192.0.2.1:22: deny",
            "bad-2 Outbound Tcp  [] -> 10.9.0.0/16 [] at : deny",
            "bad-3 Outbound Udp  [] -> 10.9.0.0/16 [] at : deny",
            "dns Outbound Udp  [] -> 10.0.0.53 [53..=53] at : permit",
            "ssh Inbound Tcp  [] -> 10.0.0.0/8 [] at 192.0.2.1:22: permit",
        ]
    );
}

#[test]
fn a_connection_must_pass_the_filters_and_then_gets_its_tls_rule() {
    let web = service("Protocol tcp\nSourcePortRange 443\nDirection bidirectional InboundConnect");
    let tcp = service("Protocol tcp\nDirection bidirectional OutboundConnect");
    let text = filters(&[
        ("bad", "deny", &format!("IpSourceAddr All\nIpDestAddr 10.9.0.0/16\n{web}\n{tcp}")),
        ("web", "permit", &format!("IpSourceAddr 192.0.2.1\nIpDestAddr All\n{web}")),
        ("lan", "permit", &format!("IpSourceAddr All\nIpDestAddr 10.0.0.0/8\n{tcp}")),
    ]);
    assert_eq!(
        shown(&policy(TLS, &text)),
        [
            "bad Inbound Tcp  [] -> 10.9.0.0/16 [] at 192.0.2.1:443: deny",
            "bad-2 Outbound Tcp  [] -> 10.9.0.0/16 [] at : deny",
            "web.web Inbound Tcp  [] ->  [] at 192.0.2.1:443: tls",
            "out.lan Outbound Tcp  [] -> 10.0.0.0/8 [8000..=8999] at : tls",
            "lan Outbound Tcp  [] -> 10.0.0.0/8 [] at : permit",
        ]
    );
}

const GROUPS: &str = "\
IpFilterPolicy
{
FilterLogging on
IpFilterGroupRef all
}
IpFilterGroup all
{
IpFilterRuleRef b
IpFilterRule a
{
IpSourceAddrRef here
IpDestAddrGroupRef there
IpServiceGroupRef both
IpTimeConditionRef office
IpGenericFilterActionRef log
}
}
IpFilterRule b
{
IpSourceAddr All
IpDestAddr All6
IpServiceRef web
IpGenericFilterActionRef log
}
IpServiceGroup both
{
IpServiceRef web
IpService
{
Protocol 17
DestinationPortRange 123
Direction bidirectional
}
}
IpService web
{
Protocol tcp
DestinationPortRange 80
Direction bidirectional OutboundConnect
Routing local
}
IpAddr here
{
Addr 192.0.2.1
}
IpAddrGroup there
{
IpAddr
{
Addr 10.0.0.0/8
}
IpAddr
{
Addr 172.16.0.1-172.16.0.9
}
}
IpTimeCondition office
{
DayOfWeekMask 0111110
}
IpGenericFilterAction log
{
IpFilterAction permit
IpFilterLogging LogPermit
}
";

#[test]
fn groups_services_actions_and_times_are_followed() {
    let policy = policy("", GROUPS);
    assert_eq!(
        shown(&policy),
        [
            "b Outbound Tcp  [] -> ::/0 [80..=80] at : permit log",
            "a Outbound Tcp 192.0.2.1 [] -> 10.0.0.0/8 172.16.0.1-172.16.0.9 [80..=80] at : \
             permit log",
            "a-2 Outbound Udp 192.0.2.1 [] -> 10.0.0.0/8 172.16.0.1-172.16.0.9 [123..=123] at : \
             permit log",
        ]
    );
    let when = policy.rules[1].selectors.when.as_ref().unwrap().to_string();
    assert_eq!(when, "mon-fri 00:00-24:00 local");
}

#[test]
fn services_that_rules_cannot_express_are_reported() {
    let body = |more: &str| format!("IpSourceAddr All\nIpDestAddr All\n{}", service(more));
    let both = "Protocol tcp\nDestinationPortRange 80\nDirection bidirectional OutboundConnect";
    for (action, text, severity, message) in [
        (
            "permit",
            "Protocol tcp\nDirection outbound",
            "error",
            "this service covers one direction, but a TCP",
        ),
        ("permit", "Protocol tcp\nDirection up", "error", "`Direction` cannot be `up`"),
        ("permit", "Protocol tcp", "error", "the service has no `Direction`"),
        ("permit", "Direction bidirectional", "error", "the service has no `Protocol`"),
        ("permit", "Protocol ftp\nDirection bidirectional", "error", "`Protocol` cannot be `ftp`"),
        (
            "permit",
            &format!("{both}\nRouting routed"),
            "error",
            "the import does not convert filters for packets",
        ),
        (
            "permit",
            &format!("{both}\nRouting either"),
            "changed",
            "the imported rule covers only packets from or to",
        ),
        (
            "permit",
            &format!("{both}\nSecurityClass 3"),
            "error",
            "the import does not convert SecurityClass",
        ),
        (
            "permit",
            "Protocol icmp\nDirection bidirectional",
            "changed",
            "the policy cannot permit `icmp`:",
        ),
        (
            "permit",
            "Protocol udp\nDirection outbound",
            "changed",
            "the service matches UDP datagrams in one direction only, but",
        ),
        (
            "permit",
            "Protocol udp\nDirection bidirectional",
            "changed",
            "tacit relays UDP flows that",
        ),
        (
            "permit",
            "Protocol tcp\nDirection bidirectional InboundConnect",
            "changed",
            "filter `r` permits inbound connections to all ports, but",
        ),
        ("nobody", both, "error", "there is no IpGenericFilterAction `nobody`"),
    ] {
        let (policy, found) = imported("", &filters(&[("r", action, &body(text))]));
        let wanted = format!(" {severity}: {message}");
        assert!(found.iter().any(|found| found.contains(&wanted)), "{text}: {found:#?}");
        assert_eq!(policy.is_none(), severity == "error", "{text}: {found:#?}");
    }
}

#[test]
fn ipsec_and_ike_are_not_built_yet() {
    let text = filters(&[("r", "permit", "IpDynVpnActionRef gold")]);
    let text = format!("{text}KeyExchangeRule k\n{{\nKeyExchangeActionRef a\n}}\n");
    let (policy, found) = imported("", &text);
    assert_eq!(policy, None);
    for message in [
        "`KeyExchangeRule` is not supported yet: the import",
        "`IpDynVpnActionRef` is not supported yet: the import",
    ] {
        assert!(found.iter().any(|found| found.contains(message)), "{found:#?}");
    }
}

mod oracle;

#[test]
fn a_file_of_the_other_kind_is_an_error_and_not_passed_over() {
    let filter = filters(&[("f", "deny", &service("Protocol all\nDirection bidirectional"))]);
    let (policy, found) = imported(&format!("{TLS}{filter}"), &filter);
    assert_eq!(policy, None);
    assert!(
        found.iter().any(|one| one.contains("this file was given without --ipsec")),
        "{found:#?}"
    );
    let (policy, found) = imported(TLS, &format!("{filter}{TLS}"));
    assert_eq!(policy, None);
    assert!(found.iter().any(|one| one.contains("this file was given with --ipsec")), "{found:#?}");
}

#[test]
fn datagrams_that_only_arrive_open_no_way_out() {
    let filter = filters(&[("f", "permit", &service("Protocol udp\nDirection inbound"))]);
    let (policy, found) = imported(TLS, &filter);
    assert!(!policy.unwrap().contains("udp"));
    assert!(found.iter().any(|one| one.contains("does not relay UDP flows")), "{found:#?}");
}

#[test]
fn a_filter_with_two_actions_or_two_sources_is_an_error() {
    let tcp = service("Protocol tcp\nDirection bidirectional");
    let action = "IpGenericFilterAction\n{\nIpFilterAction deny\n}";
    let addresses = "IpSourceAddr 10.0.0.1\nIpSourceAddrRef a";
    for (more, told) in [(action, "has two actions"), (addresses, "both `IpSourceAddr` and")] {
        let filter = filters(&[("f", "permit", &format!("{tcp}\n{more}"))]);
        let filter = format!("{filter}IpAddr a\n{{\nAddr 10.0.0.2\n}}\n");
        let (policy, found) = imported(TLS, &filter);
        assert_eq!(policy, None);
        assert!(found.iter().any(|one| one.contains(told)), "{found:#?}");
    }
}

#[test]
fn that_fail_closed_has_no_effect_on_filters_is_reported() {
    let filter = filters(&[("f", "permit", &service("Protocol tcp\nDirection bidirectional"))]);
    let mut findings = Findings::default();
    let input = |file, text| Input { file, bytes: str::as_bytes(text) };
    let options = AttlsOptions { fail_closed: true, ..AttlsOptions::default() };
    let given = Given {
        policies: &[input("t", TLS)],
        filters: &[input("f", &filter)],
        map: Some(input("m", MAP)),
        options,
    };
    let policy = given.import(&mut findings).policy;
    assert!(policy.unwrap().contains("permit = true"));
    let told = |message: &str| message.contains("--fail-closed has no effect on filters");
    assert!(findings.finish().iter().any(|one| told(&one.message)));
}

#[test]
fn what_a_filter_permits_to_other_runs_stays_permitted() {
    let tls = TLS.replacen("Direction Outbound", "Direction Outbound\nJobname NIGHT1", 1);
    assert_ne!(tls, TLS);
    let ports = "DestinationPortRange 8000-8999\nProtocol TCP";
    let body = service(&format!("{ports}\nDirection bidirectional OutboundConnect"));
    let text = filters(&[("all", "permit", &body)]);
    let mut findings = Findings::default();
    let map = format!("{MAP}[job]\nNIGHT1 = {{ run = \"night1\" }}\n");
    let given = Given {
        filters: &[Input { file: "ipsec", bytes: text.as_bytes() }],
        policies: &[Input { file: "tls", bytes: tls.as_bytes() }],
        map: Some(Input { file: "map", bytes: map.as_bytes() }),
        ..Given::default()
    };
    let policy = given.import(&mut findings).policy;
    let policy = policy.unwrap_or_else(|| panic!("{:#?}", findings.finish()));
    let rules = parse(&policy).policy.unwrap().rules;
    let permits = |run: &[&str], is_tls: bool| {
        rules.iter().any(|rule| {
            rule.selectors.run == run
                && rule.selectors.remote_ports == [8000..=8999]
                && matches!(rule.action, Action::Tls(_)) == is_tls
        })
    };
    assert!(permits(&["night1"], true) && permits(&[], false), "{policy}");
}
