//! Tests the content of `tacit show policy`.

use super::*;
use tacit_core::policy::{parse, parse_duration};

const POLICY: &str = r#"version = 1
[agent]
workers = 2
[identity.web]
cert = "web.pem"
key = "web.key"
[trust.corp]
ca = "ca.pem"
[[rule]]
name = "front"
listen = "0.0.0.0:8443"
connect = "127.0.0.1:8080"
[rule.tls]
role = "server"
identity = "web"
client-cert = "none"
min-version = "1.3"
rekey = { after = "1h30m" }
[[rule]]
name = "db"
direction = "outbound"
remote = "*.corp.example"
remote-ports = [5432, "8000-8999"]
tls = { trust = "corp" }
[[rule]]
name = "rest"
direction = "outbound"
remote = "192.0.2.0/24"
deny = true
[[rule]]
name = "clear"
direction = "outbound"
remote = "10.0.0.0/8"
permit = true
"#;

fn setting<'t>(table: &'t PolicyTable, key: &str) -> &'t Setting {
    let found = table.settings.iter().find(|setting| setting.key == key);
    found.unwrap_or_else(|| panic!("no `{key}` in {table:#?}"))
}

#[test]
fn every_value_in_force_is_shown_and_defaults_are_marked() {
    let policy = parse(POLICY).policy.unwrap();
    let tables = tables(&policy);
    let titles: Vec<_> = tables.iter().map(|table| table.title.as_str()).collect();
    assert_eq!(titles, ["[agent]", "[limits]", "[identity.web]", "[trust.corp]"]);
    let rules: Vec<_> = policy.rules.iter().map(|one| rule(&policy, one, None)).collect();
    for (table, key, value, default) in [
        (&tables[0], "workers", SettingValue::Number(2), false),
        (&tables[0], "signer", true.into(), true),
        (&tables[0], "metrics-clear", false.into(), true),
        (&tables[1], "handshakes", SettingValue::Number(1024), true),
        (&tables[3], "revocation", "off".into(), true),
        (&rules[0], "tls.min-version", "1.3".into(), false),
        (&rules[0], "tls.rekey.after", "1h30m".into(), false),
        (&rules[0], "tls.client-cert", "none".into(), false),
        (&rules[0], "tls.handshake-timeout", "10s".into(), true),
        (&rules[0], "connect-timeout", "10s".into(), true),
        (&rules[0], "clear", false.into(), true),
        (&rules[1], "tls.role", "client".into(), true),
        (&rules[1], "tls.verify", "full".into(), true),
        (&rules[1], "tls.server-name", SettingValue::None, true),
        (&rules[1], "remote-ports", vec!["5432".to_owned(), "8000-8999".into()].into(), false),
        (&rules[2], "deny", "refused".into(), true),
        (&rules[3], "path", "auto".into(), true),
        (&rules[3], "run", Vec::new().into(), true),
    ] {
        let setting = setting(table, key);
        assert_eq!((&setting.value, setting.default), (&value, default), "{key}");
    }
    let suites = &setting(&rules[0], "tls.suites");
    let SettingValue::List(names) = &suites.value else { panic!("{suites:?}") };
    assert_eq!((names.len(), suites.default), (3, true), "those of TLS 1.3");
}

#[test]
fn durations_are_written_as_policies_write_them() {
    for text in ["500ms", "10s", "1h30m", "1d", "2m5s"] {
        assert_eq!(duration(parse_duration(text).unwrap()), text);
    }
}

#[test]
fn a_policy_that_permits_bytes_in_clear_on_the_network_shows_it() {
    let agent = "[agent]\nmetrics = \"0.0.0.0:9464\"\nmetrics-clear = true\n";
    let to_network = "connect = \"192.0.2.7:8080\"\nclear = true";
    let text =
        POLICY.replace("[agent]\n", agent).replace("connect = \"127.0.0.1:8080\"", to_network);
    let policy = parse(&text).policy.unwrap();
    let of_agent = &tables(&policy)[0];
    let front = rule(&policy, &policy.rules[0], None);
    for (table, key) in [(of_agent, "metrics-clear"), (&front, "clear")] {
        let setting = setting(table, key);
        assert_eq!((&setting.value, setting.default), (&true.into(), false), "{key}");
    }
}

/// Policies that together have each kind of rule and of table.
const ALL_KINDS: [&str; 3] = [
    r#"version = 1
[engine]
cpus = "1"
[identity.web]
cert = "web.pem"
key = "web.key"
[trust.corp]
ca = "ca.pem"
[[map.staff]]
dns = "*.corp.example"
name = "staff"
[activate.orders]
command = ["/usr/bin/orders"]
[ike.hub]
peer = "192.0.2.1"
psk-file = "hub.psk"
local-id = "branch.example"
inner = "gateway"
[link.net]
listen = "/run/tacit/link.sock"
[[rule]]
name = "front"
listen = ["0.0.0.0:8443", "unix:/run/front.sock"]
connect = ["127.0.0.1:8080", "127.0.0.1:8081"]
tls = { role = "server", identity = "web", client-cert = "full", trust = "corp", map = "staff" }
[[rule]]
name = "starts"
listen = "127.0.0.1:8444"
activate = "orders"
[rule.tls]
role = "server"
identity = "web"
client-cert = "none"
accept = "both"
clear-sources = "10.1.0.0/16"
[[rule]]
name = "mail"
direction = "outbound"
remote = "*.corp.example"
remote-ports = 25
tls = { trust = "corp", starttls = "smtp" }
[[rule]]
name = "shop"
direction = "outbound"
remote = "shop.corp.example"
remote-ports = 8080
tls = { trust = "corp" }
[[rule]]
name = "permitted"
direction = "outbound"
remote = "10.7.0.0/16"
permit = true
[[rule]]
name = "serve"
direction = "inbound"
listen = "127.0.0.1:8446"
local-ports = 8085
tls = { identity = "web", client-cert = "none" }
[[rule]]
name = "far"
direction = "outbound"
remote = "10.9.0.0/16"
ipsec = { ike = "hub" }
[[rule]]
name = "datagrams"
direction = "outbound"
protocol = "udp"
remote = "10.8.0.0/16"
permit = true
[[rule]]
name = "rest"
direction = "outbound"
remote = "192.0.2.0/24"
deny = true
[[rule]]
name = "of-link"
link = "net"
direction = "outbound"
remote = "10.0.0.0/8"
permit = true
"#,
    r#"version = 1
[host]
unmatched = "permit"
classes = { eth0 = 3 }
[[rule]]
name = "packets"
filter = "deny"
protocol = "tcp"
class = 3
"#,
    r#"version = 1
[sa.far]
peer = "192.0.2.1"
encryption = "aes128-cbc"
integrity = "sha256"
spi-in = 4096
spi-out = 4097
keys-in = "in.key"
keys-out = "out.key"
inner = "10.7.0.1"
[[rule]]
name = "far"
direction = "outbound"
remote = "10.9.0.0/16"
ipsec = { sa = "far" }
"#,
];

/// The keys of rules that the display shows in another form: the name in the title, slices as
/// control groups, classes as interfaces, and the parts of `when` as one text.
const IN_ANOTHER_FORM: [&str; 3] = ["name", "slice", "class"];

#[test]
fn every_key_that_the_schema_of_policies_has_is_shown() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../../../../docs/schema/policy.json")).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let properties = value["properties"].as_object();
        properties.into_iter().flat_map(|all| all.keys().cloned()).collect()
    };
    let mut of_tables = Vec::new();
    let mut of_rules = Vec::new();
    for text in ALL_KINDS {
        let parsed = parse(text);
        let policy = parsed.policy.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics));
        of_tables.extend(tables(&policy));
        let rules = policy.rules.iter().map(|one| rule(&policy, one, None));
        let rules: Vec<_> = filter::with_filters(&policy, rules);
        of_rules.extend(rules.into_iter().chain(link::rules(&policy)));
    }
    let is_shown = |tables: &[PolicyTable], key: &str| {
        let inner = format!("{key}.");
        let is_it = |one: &Setting| one.key == key || one.key.starts_with(&inner);
        tables.iter().any(|table| table.settings.iter().any(is_it))
    };
    for name in ["agent", "engine", "limits"] {
        let title = format!("[{name}]");
        let table = of_tables.iter().find(|table| table.title == title).unwrap();
        for key in keys(&schema["properties"][name]) {
            setting(table, &key);
        }
    }
    let schema_of_rules = &schema["properties"]["rule"]["items"];
    let mut expected = keys(schema_of_rules);
    expected.retain(|key| !IN_ANOTHER_FORM.contains(&key.as_str()));
    for table in ["tls", "ipsec"] {
        let inner = keys(&schema_of_rules["properties"][table]);
        expected.extend(inner.into_iter().map(|key| format!("{table}.{key}")));
    }
    expected.retain(|key| !is_shown(&of_rules, key));
    assert_eq!(expected, Vec::<String>::new());
}
