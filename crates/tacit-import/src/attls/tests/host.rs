//! Tests the import of AT-TLS policies for a captured host (`tacit agent --host`).

use tacit_core::flow::Flow;
use tacit_core::policy::{Action, Index, RuleForm, parse};

use super::owners::{RING, flow, rules};
use super::*;

const HOST: AttlsOptions =
    AttlsOptions { host: true, fail_closed: false, keep_no_name_check: false };

#[test]
fn jobs_of_a_host_are_distinguished_by_units_and_control_groups() {
    let map = format!(
        "[job]\nNIGHT1 = {{ program = \"/usr/bin/java\", unit = \"night1.service\" }}\n\
         NIGHT2 = {{ unit = [\"night2.service\", \"night2b.service\"] }}\n\
         DAY1 = {{ cgroup = \"batch.slice/day\" }}\n\"*\" = {{ program = \"/p/rest\" }}\n{RING}"
    );
    let flows = [
        ("/usr/bin/java", "system.slice/night1.service"),
        ("/x", "system.slice/night1.service"),
        ("/usr/bin/java", "system.slice/night2.service"),
        ("/x", "system.slice/night2b.service"),
        ("/usr/bin/java", "batch.slice/day/one"),
        ("/p/rest", "user.slice"),
    ];
    for (name, wanted) in [
        ("NIGHT1", [true, false, false, false, false, false]),
        ("NIGHT2", [false, false, true, true, false, false]),
        ("DAY1", [false, false, false, false, true, false]),
        ("*", [true, false, true, true, true, true]),
    ] {
        let (policy, found) = imported(&rules(&[name]), &map, HOST);
        let text = policy.unwrap_or_else(|| panic!("{name}: {found:#?}"));
        assert!(text.contains("[host]\nunmatched = \"permit\"\n"), "{text}");
        let policy = parse(&text).policy.unwrap();
        let got = flows.map(|(program, cgroup)| {
            let flow = Flow { cgroup: Some(cgroup.to_owned()), ..flow(program, "u") };
            let place = Index::new(&policy.rules).lookup(&flow).rule.unwrap();
            matches!(policy.rules[place].action, Action::Tls(_))
        });
        assert_eq!(got, wanted, "{name}: {text}");
    }
}

#[test]
fn values_of_a_job_are_checked_as_for_a_host() {
    for (entry, wanted) in [
        ("unit = \"night\"", "unit"),
        ("cgroup = \"batch.slice//day\"", "cgroup"),
        ("run = \"night1\"", "`run` selects programs under `tacit run`"),
        ("any = false", "at least one of the keys `program`, `unit`, `cgroup`"),
    ] {
        let map = format!("[job]\nNIGHT1 = {{ {entry} }}\n{RING}");
        let (policy, found) = imported(&rules(&["NIGHT1"]), &map, HOST);
        assert_eq!(policy, None, "{entry}");
        let is_named = |one: &String| one.starts_with("m2 error: ") && one.contains(wanted);
        assert!(found.iter().any(is_named), "{entry}: {found:#?}");
    }
    let (_, found) = imported(&rules(&["NIGHT1"]), RING, HOST);
    let wanted = "[job]|# or { unit = \"NAME.service\" }";
    assert!(found.iter().any(|one| one.contains(wanted)), "{found:#?}");
}

#[test]
fn what_a_host_accepts_is_one_rule_for_all_its_ports_and_addresses() {
    let ports = POLICY.replacen("LocalPortRange 8443", "LocalPortRange 8443 8449", 1);
    let (text, found) = imported(&ports, MAP, HOST);
    let text = text.unwrap_or_else(|| panic!("{found:#?}"));
    assert!(text.contains("local-ports = \"8443-8449\"\n") && !text.contains("listen"), "{text}");
    assert!(!text.contains("unmatched-inbound") && !text.contains("names ="), "{text}");
    let rules = parse(&text).policy.unwrap().rules;
    let forms: Vec<_> = rules.iter().map(|rule| &rule.form).collect();
    assert_eq!(forms, [&RuleForm::HostInbound, &RuleForm::Outbound, &RuleForm::Outbound]);

    // Other clients of the port are in clear, as on z/OS.
    let narrow = POLICY.replacen("Direction", "RemoteAddr 10.0.0.1\n  Direction", 1);
    let (text, found) = imported(&narrow, MAP, HOST);
    let rules = parse(&text.unwrap_or_else(|| panic!("{found:#?}"))).policy.unwrap().rules;
    let named: Vec<_> = rules.iter().map(|r| (r.name.as_str(), r.action.word())).collect();
    let unmatched = ["unmatched-inbound-1", "unmatched-tcp", "unmatched-udp"];
    assert_eq!(named[0], ("web", "tls"));
    assert_eq!(named[1..], unmatched.map(|name| (name, "permit")));
    let closed = AttlsOptions { fail_closed: true, ..HOST };
    let text = imported(&narrow, MAP, closed).0.unwrap();
    assert!(text.contains("unmatched = \"deny\"") && !text.contains("permit"), "{text}");

    let one = POLICY.replacen("Direction", "LocalAddr 10.0.0.1\n  Direction", 1);
    let (text, found) = imported(&one, MAP, HOST);
    assert!(text.is_some(), "{found:#?}");
    let changed = "1 changed: tacit captures connections to all addresses of this host";
    assert!(found.iter().any(|one| one.starts_with(changed)), "{found:#?}");
    let clear = one.replacen("TTLSEnabled On", "TTLSEnabled Off", 1);
    let (text, found) = imported(&clear, MAP, HOST);
    assert_eq!(text, None);
    assert!(
        found.iter().any(|one| one.contains(
            "In tacit, the rule would permit unencrypted connections to these addresses"
        )),
        "{found:#?}"
    );
}

#[test]
fn filters_are_not_imported_for_a_host() {
    let mut findings = Findings::default();
    let policy = Input { file: "p", bytes: POLICY.as_bytes() };
    let filters = Input { file: "f", bytes: b"IpFilterPolicy\n{\n}\n" };
    let map = Some(Input { file: "map.toml", bytes: MAP.as_bytes() });
    let given = Given { policies: &[policy], filters: &[filters], map, options: HOST };
    assert_eq!(given.import(&mut findings).policy, None);
    let found = findings.finish();
    assert!(found.iter().any(|one| one.message.contains("does not support IP filter")));
}
