//! Tests the parser with whole policy texts. The tests check the parsed policies, and each error
//! with its position and fix.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;

mod large;
mod links;
mod starttls;
mod targets;
mod tunnels;

use super::words::Scope;
use super::{POLICY_BYTES_MAX, ParsedPolicy, parse};
use crate::policy::selector::Near;
use crate::policy::{
    Action, Cancel, Connect, DataResumption, Diagnostic, DiagnosticSeverity, EngineClass,
    EngineSettings, FtpOptions, Group, Placement, Policy, PostgresOptions, RelayOn, Rule, Start,
    Starttls, StarttlsMode, StarttlsProtocol, Suite, TARGETS_MAX, Target, TargetOrder, Tls,
    TlsVersion, TrustSource, Verify,
};

/// The tables that most tests need before their rule; the text ends in line 6.
const TABLES: &str = r#"version = 1
[identity.web]
cert = "web.pem"
key  = "web.key"
[trust.corp]
ca = "corp.pem"
"#;

const EXAMPLE: &str = include_str!("../../../../../../etc/policy.toml");

fn rendered(parsed: &ParsedPolicy, severity: DiagnosticSeverity) -> Vec<String> {
    let found = parsed.diagnostics.iter().filter(|finding| finding.severity == severity);
    found
        .map(|finding| {
            let fix = finding.fix.as_deref().unwrap_or("none");
            format!("{}: {} | {fix}", finding.position, finding.message)
        })
        .collect()
}

fn errors(text: &str) -> Vec<String> {
    let parsed = parse(text);
    let errors = rendered(&parsed, DiagnosticSeverity::Error);
    assert_eq!(parsed.policy.is_none(), !errors.is_empty());
    errors
}

fn warnings(text: &str) -> Vec<String> {
    let parsed = parse(text);
    assert_eq!(rendered(&parsed, DiagnosticSeverity::Error), [""; 0]);
    rendered(&parsed, DiagnosticSeverity::Warning)
}

fn sound(text: &str) -> Policy {
    let parsed = parse(text);
    assert_eq!(rendered(&parsed, DiagnosticSeverity::Error), [""; 0]);
    parsed.policy.unwrap()
}

fn only_rule(text: &str) -> Rule {
    let mut rules = sound(text).rules;
    assert_eq!(rules.len(), 1);
    Arc::unwrap_or_clone(rules.remove(0))
}

/// A forwarding rule. Its `tls` table begins at 11:7, and `more` is inserted at 12:3.
fn forward(listen: &str, connect: &str, role: &str, more: &str) -> String {
    format!(
        "{TABLES}[[rule]]\nname = \"r\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\ntls = {{ \
         role = \"{role}\"\n, {more} }}"
    )
}

fn server(more: &str) -> String {
    forward("0.0.0.0:1", "127.0.0.1:2", "server", &format!("{more}, identity = \"web\""))
}

fn client(connect: &str, more: &str) -> String {
    forward("127.0.0.1:1", connect, "client", more)
}

#[test]
fn aliases_are_chosen_in_agent() {
    let aliases = |text: &str| {
        let parsed = parse(&format!("version = 1\n[agent]\n{text}"));
        parsed.policy.map(|policy| policy.agent.aliases)
    };
    assert_eq!(aliases(""), Some(crate::dns::Aliases::default()));
    let chosen = "aliases = \"always\"\nalias-ranges = [\"10.99.0.0/16\", \"fd99::/64\"]";
    let chosen = aliases(chosen).unwrap();
    assert_eq!(chosen.given, crate::dns::AliasPolicy::Always);
    assert_eq!(chosen.ranges.to_string(), "10.99.0.0/16, fd99::/64");
    let one = aliases("alias-ranges = \"fd99::/64\"").unwrap();
    assert_eq!(one.ranges.to_string(), "198.18.0.0/15, fd99::/64");
    let rule = |remote: &str, agent: &str| {
        let text = format!(
            "version = 1\n{agent}\n[[rule]]\ndirection = \"outbound\"\n\
             remote = \"{remote}\"\npermit = true\nname = \"r\""
        );
        parse(&text).policy.is_some()
    };
    for remote in ["198.18.0.0/16", "198.18.0.1", "198.18.0.1-198.19.0.0", "100::7"] {
        assert!(!rule(remote, ""), "{remote}");
        assert!(rule(remote, "[agent]\naliases = \"never\""), "{remote}");
    }
    assert!(rule("198.0.0.0/8", "") && rule("0.0.0.0/0", "") && rule("10.0.0.1", ""));
    assert!(!rule("10.0.0.1", "[agent]\nalias-ranges = \"10.0.0.0/8\""));
}

#[test]
fn the_example_is_sound_and_has_no_warnings() {
    let parsed = parse(EXAMPLE);
    assert_eq!(parsed.diagnostics, []);
    assert!(parsed.policy.unwrap().rules.len() >= 3);
}

#[test]
fn both_roles_of_the_fixed_form_are_read() {
    assert_eq!(parse(EXAMPLE).diagnostics, []);
    let roles = |name: &str| match &sound(EXAMPLE).rule(name).unwrap().action {
        Action::Tls(tls) => tls.role(),
        action => panic!("{action:?}"),
    };
    assert_eq!(roles("web"), "server");
    assert_eq!(roles("orders-db"), "client");
}

#[test]
fn a_server_rule_with_defaults() {
    let policy = sound(&server("client-cert = \"required\", trust = \"corp\""));
    assert_eq!(policy.identities["web"].cert.to_str(), Some("web.pem"));
    assert_eq!(policy.trusts["corp"].source, TrustSource::Files(vec!["corp.pem".into()]));
    let Action::Tls(Tls::Server(tls)) = &policy.rules[0].action else { panic!("not a server") };
    assert_eq!(tls.identities, ["web"]);
    assert_eq!((tls.client_cert.to_string().as_str(), tls.client_cert.map()), ("required", None));
    assert_eq!(tls.client_cert.trust(), Some("corp"));
    assert_eq!(tls.common.min_version, TlsVersion::V1_2);
    assert_eq!(tls.common.suites, Suite::DEFAULT);
    assert_eq!(tls.common.groups, Group::DEFAULT);
    assert_eq!(tls.common.handshake_timeout, Duration::from_secs(10));
    assert!(tls.common.resumption && tls.common.alpn.is_empty());
    let forward = policy.rules[0].forward().unwrap();
    assert_eq!(forward.connect_timeout, Duration::from_secs(10));
    assert_eq!(forward.unix.mode, 0o600);
}

#[test]
fn a_client_rule_checks_the_host_it_connects_to() {
    let name_of = |text: &str| match only_rule(text).action {
        Action::Tls(Tls::Client(tls)) => match &tls.verify {
            Verify::Full { server_name, .. } => server_name.clone(),
            Verify::Chain { .. } => Some("chain".to_owned()),
            Verify::None { .. } => Some("none".to_owned()),
        },
        action => panic!("{action:?}"),
    };
    let trust = "trust = \"system\"";
    assert_eq!(name_of(&client("DB.example:5", trust)).as_deref(), Some("db.example"));
    assert_eq!(name_of(&client("[fd00::1]:5", trust)).as_deref(), Some("fd00::1"));
    let named = format!("{trust}, server-name = \"other.example\"");
    assert_eq!(name_of(&client("unix:/x", &named)).as_deref(), Some("other.example"));
    let run = "version = 1\n[[rule]]\nname = \"r\"\ndirection = \"outbound\"\n\
               tls = { trust = \"system\" }";
    assert_eq!(name_of(run), None, "the program chooses the name");
    assert_eq!(sound(run).trusts["system"].position.line, 5);
}

#[test]
fn an_inbound_rule_about_a_run_is_a_way_in() {
    let text = format!(
        "{TABLES}[[rule]]\nname = \"r\"\ndirection = \"inbound\"\nlisten = [\"0.0.0.0:992\", \
         \"[::]:992\"]\nlocal-ports = [23, \"8000-8009\"]\nremote = \"10.0.0.0/8\"\n\
         tls = {{ identity = \"web\", client-cert = \"required\", trust = \"corp\" }}\n\
         [[rule]]\nname = \"s\"\ndirection = \"inbound\"\nlisten = \"[::]:992\"\n\
         local-ports = 24\npermit = true"
    );
    let policy = sound(&text);
    assert_eq!(warnings(&text), [""; 0], "rules about runs may share an address");
    let rule = &policy.rules[0];
    assert!(matches!(&rule.action, Action::Tls(Tls::Server(_))), "the role follows: {rule:?}");
    let inbound = rule.inbound().unwrap();
    assert_eq!(inbound.local_ports, [23..=23, 8000..=8009]);
    assert_eq!(inbound.listen, rule.listens());
    assert_eq!((rule.listens().len(), rule.forward()), (2, None));
    assert_eq!(rule.selectors.local_ports, [], "they say where to, and select nothing");
}

#[test]
fn windows_are_read_with_their_defaults() {
    let when = |text: &str| {
        let rule = format!(
            "version = 1\n[[rule]]\nname = \"r\"\nlisten = \"[::1]:1\"\nwhen = {text}\n\
             deny = true\n[[rule]]\nname = \"s\"\nlisten = \"[::1]:1\"\nwhen = {text}\n\
             deny = true"
        );
        let warned = warnings(&rule);
        assert!(warned.len() == 1 && warned[0].contains("`s` is never used"), "{warned:?}");
        sound(&rule).rules[0].selectors.when.as_ref().unwrap().to_string()
    };
    assert_eq!(when("{ days = \"mon-fri\" }"), "mon-fri 00:00-24:00 local");
    assert_eq!(when("{ hours = \"22:00-6:00\", zone = \"UTC\" }"), "mon-sun 22:00-06:00 UTC");
    let lists = "{ days = [\"sun\", \"tue-wed\"], hours = [\"6:00-7:00\", \"8:00-9:00\"], \
                 zone = \"Europe/Berlin\" }";
    assert_eq!(when(lists), "tue-wed,sun 06:00-07:00, 08:00-09:00 Europe/Berlin");
    let dates = "{ months = [\"nov-jan\", \"mar\"], days-of-month = [\"1-7\", -1], \
                 from = \"2025-06-01 08:00\", until = \"2026-01-01T00:00:00\" }";
    let wanted = "mon-sun 00:00-24:00 jan,mar,nov-dec day 1-7,-1 from 2025-06-01 08:00 \
                  until 2026-01-01 00:00 local";
    assert_eq!(when(dates), wanted);
}

#[test]
fn rekey_and_versions_are_read() {
    let more = "trust = \"corp\", min-version = \"1.3\", rekey = { bytes = \"1GiB\", after = \
                \"1h\" }, groups = [\"SECP256R1\"], alpn = \"h2\", resumption = false";
    let rule = only_rule(&client("db.example:5", more));
    let Action::Tls(tls) = rule.action else { panic!("not tls") };
    let common = tls.common();
    assert_eq!(common.suites, Suite::DEFAULT[..3], "those of 1.3");
    assert_eq!(common.groups, [Group::Secp256r1]);
    assert_eq!(common.alpn, ["h2"]);
    assert_eq!(common.rekey.bytes.unwrap().get(), 1 << 30);
    assert_eq!(common.rekey.after, Some(Duration::from_secs(3600)));
    assert!(!common.resumption);
}

#[test]
fn limits_keep_their_proportions() {
    let policy =
        sound("version = 1\n[limits]\nhandshakes = 100\ndrain = \"5m\"\n[agent]\nworkers = 3");
    assert_eq!(policy.limits.handshakes_per_rule, 75);
    assert_eq!(policy.limits.handshakes_per_source, 25);
    assert_eq!(policy.limits.drain, Some(Duration::from_secs(300)));
    assert_eq!(policy.agent.workers, Some(3));
    assert!(policy.agent.chain_cache);
    assert!(!sound("version = 1\n[agent]\nchain-cache = false").agent.chain_cache);
    assert!(policy.agent.trace);
    assert!(!sound("version = 1\n[agent]\ntrace = false").agent.trace);
    let one = sound("version = 1\n[limits]\nhandshakes = 1").limits;
    assert_eq!((one.handshakes_per_rule, one.handshakes_per_source), (1, 1));
}

#[test]
fn cpus_are_set_aside_and_programs_placed() {
    let engine = sound("version = 1\n[engine]\ncpus = \"0, 4-6\"").engine.unwrap();
    assert_eq!(engine.cpus, [0, 4, 5, 6]);
    assert!(engine.spill && engine.poll && engine.queue == EngineSettings::QUEUE_DEFAULT);
    assert_eq!((engine.class, engine.nice), (EngineClass::Normal, 0));
    let policy = sound(
        "version = 1\n[agent]\nplacement = \"split\"\nplacement-cpus = \"1\"\n\
         [engine]\ncpus = \"0\"\nspill = false\npoll = false\nqueue = 7\nclass = \"batch\"\n\
         nice = -5",
    );
    assert_eq!(
        (policy.agent.placement, &policy.agent.placement_cpus),
        (Placement::Split, &vec![1])
    );
    let engine = policy.engine.unwrap();
    assert!(!engine.spill && !engine.poll && engine.queue == 7);
    assert_eq!(engine.class, EngineClass::Batch);
    assert_eq!(engine.nice, -5);
    let policy = sound(&format!(
        "{TABLES}[engine]\ncpus = \"0\"\n[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\n\
         connect = \"unix:/a\"\ntls = {{ role = \"server\", identity = \"web\", \
         client-cert = \"none\", relay = \"engine\" }}"
    ));
    let Action::Tls(tls) = &policy.rules[0].action else { panic!() };
    assert_eq!(tls.common().relay, RelayOn::Engine);
    assert!(sound("version = 1").engine.is_none());
}

#[test]
fn metrics_stay_on_this_host_unless_the_policy_says_otherwise() {
    let served = |at: &str| format!("version = 1\n[agent]\nmetrics = \"{at}\"\n");
    for at in ["127.0.0.1:9464", "[::1]:9464", "unix:/run/tacit/metrics.sock", "unix:@metrics"] {
        let metrics = sound(&served(at)).agent.metrics;
        assert_eq!(metrics.map(|address| address.to_string()).as_deref(), Some(at));
        let needless = parse(&format!("{}metrics-clear = true", served(at)));
        let warned = rendered(&needless, DiagnosticSeverity::Warning);
        assert!(warned.iter().any(|w| w.contains("has no effect")), "{at}: {warned:?}");
    }
    assert_eq!(sound("version = 1").agent.metrics, None);
    let everywhere = format!("{}metrics-clear = true", served("0.0.0.0:9464"));
    assert!(sound(&everywhere).agent.metrics.is_some());
    let warned = rendered(&parse(&everywhere), DiagnosticSeverity::Warning);
    assert!(!warned.iter().any(|warning| warning.contains("metrics")), "{warned:?}");
}

/// The cases of errors: texts with the expected diagnostics. The file describes its format.
const ERRORS: &str = include_str!("../errors.txt");

#[test]
fn every_error_has_its_position_message_and_fix() {
    let cases: Vec<&str> = ERRORS.split("\n=== ").skip(1).collect();
    for case in &cases {
        let (kind, rest) = case.split_once('\n').unwrap();
        let lines = || rest.lines().filter(|line| !line.is_empty());
        let is_finding = |line: &&str| line.starts_with("=> ") || line.starts_with("   fix: ");
        let text: Vec<&str> = lines().filter(|line| !is_finding(line)).collect();
        let wanted: Vec<&str> = lines().filter(is_finding).collect();
        let tables = if kind == "rule" { TABLES } else { "" };
        let text = format!("{tables}{}", text.join("\n"));
        let parsed = parse(&text);
        assert!(parsed.policy.is_none(), "{text}");
        let errors = parsed
            .diagnostics
            .iter()
            .filter(|finding| finding.severity == DiagnosticSeverity::Error);
        let found: Vec<String> = errors
            .flat_map(|finding| {
                let Diagnostic { position, message, fix, .. } = finding;
                let fix = fix.as_deref().unwrap_or("none");
                [format!("=> {position}: {message}"), format!("   fix: {fix}")]
            })
            .collect();
        assert_eq!(found, wanted, "{text}\n{}", found.join("\n"));
    }
    assert!(cases.len() > 50, "only {} cases were read", cases.len());
}

#[test]
fn a_warning_about_clear_clients_advises_an_end_only_if_there_is_none() {
    for (keys, advises_end) in [("", true), (", clear-until = \"2027-01-01T00:00:00Z\"", false)] {
        let text = format!(
            "{TABLES}[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\nconnect = \"127.0.0.1:2\"\n\
             tls = {{ role = \"server\", identity = \"web\", client-cert = \"none\", \
             accept = \"both\"{keys} }}\n"
        );
        let warned = rendered(&parse(&text), DiagnosticSeverity::Warning);
        let clear = warned.iter().find(|one| one.contains("without TLS")).expect("a warning");
        assert_eq!(clear.contains("set `clear-until`"), advises_end, "{clear}");
    }
}

#[test]
fn clear_text_to_other_hosts_must_be_requested() {
    let rule = |listen: &str, connect: &str, tls: &str, more: &str| {
        format!(
            "{TABLES}[[rule]]\nname = \"r\"\nlisten = \"{listen}\"\nconnect = \"{connect}\"\ntls = \
             {{ {tls} }}\n{more}"
        )
    };
    let server = "role = \"server\", identity = \"web\", client-cert = \"none\"";
    let client = "role = \"client\", trust = \"corp\"";
    let fix = "use loopback or a UNIX socket; or, if you trust the network between tacit and this \
               address, set clear = true";
    for (text, wanted) in [
        (
            rule("0.0.0.0:1", "10.0.0.1:2", server, ""),
            format!("10:11: rule `r` would send decrypted data to 10.0.0.1:2 in clear | {fix}"),
        ),
        (
            rule("0.0.0.0:1", "db.example:2", server, "clear = false"),
            format!("10:11: rule `r` would send decrypted data to db.example:2 in clear | {fix}"),
        ),
        (
            rule("0.0.0.0:1", "db.example:2", client, ""),
            format!(
                "9:10: at 0.0.0.0:1, rule `r` would accept data in clear from other hosts | {fix}"
            ),
        ),
    ] {
        assert_eq!(errors(&text), [wanted]);
        assert_eq!(
            errors(&text.replace("clear = false", "").replace("tls =", "clear = true\ntls =")),
            [""; 0]
        );
    }
    for (listen, connect, tls) in [
        ("0.0.0.0:1", "127.0.0.9:2", server),
        ("0.0.0.0:1", "[::1]:2", server),
        ("0.0.0.0:1", "localhost:2", server),
        ("0.0.0.0:1", "unix:/x", server),
        ("127.0.0.1:1", "db.example:2", client),
        ("unix:@x", "db.example:2", client),
    ] {
        assert_eq!(errors(&rule(listen, connect, tls, "")), [""; 0], "{listen} {connect}");
        let needless = parse(&rule(listen, connect, tls, "clear = true"));
        let warned = rendered(&needless, DiagnosticSeverity::Warning);
        assert!(
            warned.iter().any(|w| w.contains("`clear = true` has no effect: this rule")),
            "{warned:?}"
        );
    }
}

#[test]
fn warnings_name_what_was_probably_not_meant() {
    let text = format!(
        "{TABLES}[[rule]]\nname = \"a\"\nlisten = [\"[::1]:1\", \"[::1]:3\"]\nremote = \
         \"10.0.0.0/8\"\nconnect = \"web.example:2\"\npermit = true\n\
         [[rule]]\nname = \"b\"\nlisten = \"[::1]:1\"\nremote = [\"10.1.0.0/16\", \
         \"10.2.0.1-10.2.0.9\"]\ndeny = true\n\
         [[rule]]\nname = \"c\"\ndirection = \"outbound\"\ntls = {{ verify = \"none\" }}\n\
         [[rule]]\nname = \"d\"\nlisten = \"unix:/x\"\nremote = \"10.0.0.1\"\ndeny = true"
    );
    assert_eq!(
        warnings(&text),
        [
            "2:1: no rule uses [identity.web] | remove the table, or use its name in \
             `tls` of a rule",
            "5:1: no rule uses [trust.corp] | remove the table, or use its name in \
             `tls` of a rule",
            "11:11: rule `a` permits connections by name, so an attacker who forges DNS \
             answers can choose the destination | write addresses instead of names, or use \
             `tls`, which verifies the server's name",
            "13:1: rule `b` is never used, because all flows that it matches already \
             match rule `a` in line 7 | move this rule before rule `a`, or remove this rule",
            "21:18: the server's certificate is not checked: any server is accepted | set \
             `trust` to a table that contains the server's CA (`ca`) or the server's own \
             certificate (`pinned`)",
            "25:1: `remote` has no effect, because clients of a UNIX socket have no IP address | \
             remove `remote`; `unix-mode` controls which users may connect",
        ]
    );
}

#[test]
fn a_run_is_named_by_rules_about_what_its_programs_open_alone() {
    let out = "direction = \"outbound\"\nremote-ports = 443\npermit = true";
    let text = |form: &str| {
        format!("version = 1\n[[rule]]\nname = \"a\"\nrun = [\"night\", \"day\"]\n{form}\n")
    };
    assert_eq!(only_rule(&text(out)).selectors.run, ["night", "day"]);
    for (form, words) in [
        (
            "direction = \"inbound\"\nlisten = \"[::]:1\"\nlocal-ports = 1\npermit = true",
            "`run` does not belong here: an inbound rule cannot select a single run",
        ),
        (
            "listen = \"[::1]:1\"\nconnect = \"[::1]:2\"\npermit = true",
            "`run` does not belong here: this key selects programs",
        ),
        (&out.replace("443", "443\nrun = \"b\""), "TOML"),
    ] {
        let said = errors(&text(form));
        assert!(said.len() == 1 && (words == "TOML" || said[0].contains(words)), "{said:?}");
    }
    // A rule for some runs does not cover a rule for other runs.
    let both = format!("{}[[rule]]\nname = \"b\"\nrun = \"other\"\n{out}\n", text(out));
    assert_eq!(warnings(&both), [""; 0]);
    let hidden = format!("{}[[rule]]\nname = \"b\"\nrun = \"day\"\n{out}\n", text(out));
    let hidden = hidden.replace("permit", "deny");
    assert!(warnings(&hidden)[0].contains("rule `b` is never used, because"), "{hidden}");
}

#[test]
fn a_trust_pins_certificates_beside_anchors_or_alone() {
    let text = |trust: &str, verify: &str| {
        format!(
            "version = 1\n[trust.t]\n{trust}\n[[rule]]\nname = \"a\"\nlisten = \"[::1]:1\"\n\
             connect = \"db.example:1\"\n\
             tls = {{ role = \"client\", trust = \"t\", verify = \"{verify}\" }}\n"
        )
    };
    let trust = |trust: &str| sound(&text(trust, "full")).trusts["t"].clone();
    let alone = trust("pinned = \"a.pem\"");
    assert_eq!((&alone.source, alone.pinned.len()), (&TrustSource::Pinned, 1));
    let beside = trust("ca = \"ca.pem\"\npinned = [\"a.pem\", \"b.pem\"]\ncrl = \"a.crl\"");
    assert_eq!(beside.source, TrustSource::Files(vec!["ca.pem".into()]));
    let files: Vec<_> = beside.files().map(|file| file.display().to_string()).collect();
    assert_eq!(files, ["ca.pem", "a.pem", "b.pem", "a.crl"]);
    // A pinned certificate identifies the server better than a name.
    assert_eq!(warnings(&text("pinned = \"a.pem\"", "chain")), [""; 0]);
    assert_eq!(warnings(&text("ca = \"a.pem\"", "chain")).len(), 1);
    let why = "does not belong here: this key needs a CA";
    for key in [
        "crl = \"a.crl\"",
        "revocation = \"off\"",
        "revocation = \"hard\"",
        "expired-anchors = \"accept\"",
    ] {
        let said = errors(&text(&format!("pinned = \"a.pem\"\n{key}"), "full"));
        assert!(said.len() == 1 && said[0].contains(why), "{said:?}");
    }
    for (key, words) in [
        ("pinned = []", "`pinned` is an empty list"),
        ("pinned = [\"a\", \"a\"]", "this value occurs twice in `pinned`"),
        ("pinned = 1", "`pinned` cannot be a whole number"),
        (
            "revocation = \"off\"",
            "[trust.t] has no `ca` | set a PEM file with CA certificates (ca = \"corp-ca.pem\"), \
             or a PEM file with the peer's own certificate (pinned = \"peer.pem\")",
        ),
    ] {
        let said = errors(&text(key, "full"));
        assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    }
}

#[test]
fn names_that_lead_around_the_policy_are_warned_about() {
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\n{more}\n")
    };
    let all =
        rule("all", "remote = \"10.0.0.0/8\"\nnames = [\"*.a.example\", \"*\"]\npermit = true");
    assert_eq!(
        warnings(&format!("version = 1\n{all}")),
        ["6:9: rule `all` lets programs resolve every name, so a program can send out data in \
             DNS queries | write only the domains that are needed: names = [\"*.example.com\"]"]
    );
    let checked = "remote-ports = 443\ntls = { trust = \"system\" }";
    let tls = rule("strict", &format!("remote = \"b.example\"\n{checked}"));
    let weak = |more: &str| rule("weak", &format!("remote = \"*.a.example\"\n{more}"));
    let is_told = |first: &str, second: &str| {
        let text = format!("version = 1\n{first}{second}");
        warnings(&text).iter().any(|one| one.contains("tacit cannot always distinguish the names"))
    };
    let unchecked = "remote-ports = [80, \"400-500\"]\ntls = { verify = \"none\" }";
    assert!(is_told(&weak("permit = true"), &tls) && is_told(&weak(unchecked), &tls));
    assert!(!is_told(&tls, &weak("permit = true")), "the stricter one stands first");
    assert!(!is_told(&weak("remote-ports = 80\npermit = true"), &tls), "another port");
    assert!(!is_told(&weak("deny = true"), &tls) && !is_told(&weak(checked), &tls));
    assert!(!is_told(&weak("protocol = \"udp\"\npermit = true"), &tls));
}

#[test]
fn rules_that_leave_something_for_later_ones_are_not_warned_about() {
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\nlisten = \"[::1]:1\"\n{more}\n")
    };
    for (first, second) in [
        ("remote = \"10.0.0.0/8\"\ndeny = true", "deny = true"),
        ("remote-ports = \"1-1024\"\ndeny = true", "remote-ports = \"1024-1025\"\ndeny = true"),
        ("program = \"/bin/a\"\ndeny = true", "program = [\"/bin/a\", \"/bin/b\"]\ndeny = true"),
        ("user = \"a\"\nconnect = \"[::1]:2\"\npermit = true", "user = \"a\"\ndeny = true"),
        ("remote = \"::/0\"\ndeny = true", "remote = \"10.0.0.1\"\ndeny = true"),
        ("when = { days = \"mon\" }\ndeny = true", "when = { hours = \"1:00-2:00\" }\ndeny = true"),
        ("when = { days = \"mon\" }\ndeny = true", "deny = true"),
    ] {
        let text = format!("version = 1\n{}{}", rule("a", first), rule("b", second));
        assert_eq!(warnings(&text), [""; 0], "{text}");
    }
}

#[test]
fn every_error_is_reported_in_one_run() {
    let text = "version = 1\n[[rule]]\nname = \"a\"\nlisten = [\":1\", \"1.2.3.4:0\"]\nlgo = true\n\
                connect = \"x:99999\"\nlog = \"yes\"\n[[rule]]\ndirection = \"up\"\nallow = true\n";
    let place = |error: &String| error.split(": ").next().unwrap().to_owned();
    let lines: Vec<String> = errors(text).iter().map(place).collect();
    assert_eq!(lines, ["2:1", "4:11", "4:17", "5:1", "6:11", "7:7", "9:13", "10:1"]);
    let without = text.replace("allow = true\n", "");
    let lines: Vec<String> = errors(&without).iter().map(place).collect();
    assert_eq!(lines, ["2:1", "4:11", "4:17", "5:1", "6:11", "7:7", "8:1", "8:1", "9:13"]);
}

#[test]
fn an_unknown_key_is_reported_without_the_errors_that_it_causes() {
    let misspelled = [
        ("listen", "lisen"),
        ("connect", "conect"),
        ("name", "nmae"),
        ("tls", "tsl"),
        ("role", "rolle"),
        ("identity = \"web\"", "identiy = \"web\""),
        ("trust", "trst"),
        ("[identity.web]", "[identitty.web]"),
        ("cert =", "crt ="),
        ("ca =", "cas ="),
    ];
    let rule = server("client-cert = \"required\", trust = \"corp\"");
    sound(&rule);
    for (key, written) in misspelled {
        let text = rule.replacen(key, written, 1);
        assert_ne!(text, rule, "{key}");
        let found = errors(&text);
        let key = key.split([' ', '.']).next().unwrap().trim_start_matches('[');
        assert_eq!(found.len(), 1, "{written}: {found:?}");
        assert!(found[0].contains("unknown key"), "{found:?}");
        assert!(found[0].ends_with(&format!("did you mean `{key}`?")), "{found:?}");
    }
    // A key that resembles no known key may stand for any missing key.
    let found = errors(&rule.replacen("listen", "frobnicate", 1).replacen("name", "log = 1 #", 1));
    assert!(found[0].contains("`log` cannot be a whole number"), "{found:?}");
    assert!(found.iter().any(|error| error.contains("unknown key `frobnicate`")), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");
    // If a key and its misspelling are both given, the correct key is used.
    let found = errors(&rule.replacen("listen", "lisen = 5\nlisten", 1));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn text_that_is_not_toml_is_not_blamed_for_what_cannot_be_read() {
    let text = "version = 1\n[[rule]]\nname = \"a\nlisten = 5\n[limits]\nconections = 5\n";
    let found = errors(text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].starts_with("3:10: not valid TOML: "), "{found:?}");
    assert!(found[1].starts_with("4:10: `listen` cannot be a whole number"), "{found:?}");
    assert!(found[2].ends_with("did you mean `connections`?"), "{found:?}");
    let header = errors("version = 1\n[[rule]\nname = \"a\"\n");
    assert_eq!(header.len(), 1, "not also that `name` is unknown at the top: {header:?}");
}

#[test]
fn a_control_character_in_a_comment_is_reported_as_such() {
    let found = errors("version = 1\n[limits] # a\u{1b}b\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("2:13: not valid TOML: invalid comment character"), "{found:?}");
    assert!(found[0].ends_with("| remove the control character from the comment"), "{found:?}");
}

#[test]
fn columns_count_characters_and_not_bytes() {
    let text = "version = 1\nrule = [ { name = \"aé\", listne = \"ü\" } ]";
    let found = errors(text);
    assert!(found.iter().any(|e| e.starts_with("2:25: unknown key `listne`")), "{found:?}");
    let with_mark = errors(&format!("\u{feff}{text}"));
    assert_eq!(with_mark, found, "a byte order mark is no part of the first line");
}

#[test]
fn texts_and_lists_beyond_their_limits_are_refused() {
    let text = " ".repeat(POLICY_BYTES_MAX + 1);
    assert_eq!(errors(&text).len(), 1);
    let ports = "1,".repeat(4097);
    let rule = "[[rule]]\nname = \"a\"\ndirection = \"outbound\"\ndeny = true";
    assert_eq!(
        errors(&format!("version = 1\n{rule}\nremote-ports = [{ports}]")),
        ["6:16: `remote-ports` has 4097 entries; the limit is 4096 | merge some of the \
             entries, or use several rules"]
    );
}

#[test]
fn rules_with_too_many_address_ranges_are_rejected() {
    let wide: Vec<String> = (0..400).map(|i| (2 * i + 1).to_string()).collect();
    let rule = |name: &str, more: &str| {
        format!("[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\n{more}\npermit = true\n")
    };
    let hosts = |count: u8| {
        let host = |i| {
            let more = format!("remote = \"10.0.0.{}\"\nremote-ports = 2", 2 * i);
            rule(&format!("h{i}"), &more)
        };
        let ports = format!("remote-ports = [{}]", wide.join(", "));
        format!("version = 1\n{}{}", rule("wide", &ports), (0..count).map(host).collect::<String>())
    };
    assert_eq!(errors(&hosts(50)), [""; 0]);
    assert_eq!(
        errors(&hosts(100)),
        ["1:1: the outbound rules need 65536 or more ranges of addresses and ports, which are \
          too many for the kernel | replace several rules by one rule with a network or a port \
          range"]
    );
}

#[test]
fn the_manual_page_has_every_word() {
    let page = include_str!("../../../../../../docs/tacit.toml.5")
        .replace("\\-", "-")
        .replace("\\(dq", "\"");
    let words: BTreeSet<&str> = page
        .split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'))
        .map(|word| word.trim_matches('.'))
        .collect();
    let values = [Scope::ClientCert, Scope::StarttlsProtocol];
    let scopes = Scope::TABLES.into_iter().chain(values);
    let keys = scopes.flat_map(|scope| scope.words().iter().copied());
    let suites = Suite::DEFAULT.into_iter().map(Suite::name);
    let groups = Group::DEFAULT.into_iter().map(Group::name);
    let nears = Near::ALL.into_iter().map(Near::word);
    for word in keys.chain(suites).chain(groups).chain(nears) {
        assert!(words.contains(word), "tacit.toml(5) does not describe `{word}`");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_text_is_read_without_panic(text in "(?s).{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn a_mutated_policy_is_read_without_panic(
        cuts in vec((any::<u16>(), 0..40_usize, "(?s)[ -~\n\u{0}é]{0,6}"), 1..4),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().filter(|c| *c != '#').collect();
        for (at, length, insert) in cuts {
            let at = usize::from(at) % text.len();
            let end = (at + length).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        let parsed = parse(&text);
        let sound = parsed.diagnostics.iter().all(|d| d.severity == DiagnosticSeverity::Warning);
        prop_assert_eq!(parsed.policy.is_some(), sound);
    }

    #[test]
    fn a_policy_with_other_values_is_read_without_panic(
        changes in vec((any::<usize>(), select(VALUES)), 1..4),
    ) {
        let mut lines: Vec<String> = EXAMPLE.lines().map(str::to_owned).collect();
        for (at, value) in changes {
            let at = at % lines.len();
            let key = lines[at].split(" = ").next().unwrap_or_default();
            lines[at] = format!("{key} = {value}");
        }
        let parsed = parse(&lines.join("\n"));
        let sound = parsed.diagnostics.iter().all(|d| d.severity == DiagnosticSeverity::Warning);
        prop_assert_eq!(parsed.policy.is_some(), sound);
    }
}

/// Valid TOML values, each of which is right for some keys.
const VALUES: &[&str] = &[
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1e9",
    "0xffff",
    "18446744073709551616",
    "1979-05-27",
    "[]",
    "{}",
    "[[]]",
    "[1, \"a\", {}]",
    "\"\"",
    "\"\\u0000\"",
    "\"é\"",
    "\"-\"",
    "\":\"",
    "\"/\"",
    "\"*.\"",
    "\"[::]\"",
    "\"[::]:1\"",
    "\"::/129\"",
    "\"::/0\"",
    "\"0.0.0.0/0\"",
    "\"::-::\"",
    "\"::1:65536\"",
    "\"unix:@\"",
    "\"unix:/a\"",
    "\"a:1\"",
    "\"1h\"",
    "\"1TiB\"",
    "\"1-65535\"",
    "\"none\"",
    "\"full\"",
    "\"1.3\"",
    "\"system\"",
    "\"web\"",
    "\"corp\"",
    "\"0660\"",
    "{ role = \"client\", verify = \"none\" }",
    "{ role = \"server\", identity = \"web\" }",
];
