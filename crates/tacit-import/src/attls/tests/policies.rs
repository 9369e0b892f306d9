//! Tests which tacit rules an import creates from AT-TLS rules.

use super::*;
use tacit_core::policy::parse;

/// A client beside the server.
const CLIENT: &str = "\
TTLSRule out
{
  RemoteAddr 10.7.0.0/16
  RemotePortRange 443
  Direction Outbound
  TTLSGroupActionRef on
  TTLSEnvironmentActionRef client
}
TTLSEnvironmentAction client
{
  HandshakeRole Client
  TTLSKeyringParms
  {
    Keyring WEB/RING
  }
  TTLSEnvironmentAdvancedParms
  {
    TLSv1 Off
    TLSv1.1 Off
    TLSv1.3 On
  }
}
";

#[test]
fn a_whole_policy_is_written_with_where_each_part_is_from() {
    let (text, found) = imported(&format!("{POLICY}{CLIENT}"), MAP, AttlsOptions::default());
    let wanted = "\
# Imported by `tacit import attls`; tacit.toml(5) describes the keys.
version = 1

# from p:40
# key ring WEB/RING
[trust.web-ring]
ca = \"ca.pem\"

# from p:17
# key ring WEB/RING
[identity.web-ring]
cert = \"web.pem\"
key = \"web.key\"

# from p:27
# priority 1, ports 443; actions on, client
[[rule]]
name = \"out\"
direction = \"outbound\"
remote = \"10.7.0.0/16\"
remote-ports = 443
tls = { trust = \"web-ring\", min-version = \"1.3\" }

# from p:1
# priority 1, ports 8443; actions on, server
[[rule]]
name = \"web\"
direction = \"inbound\"
listen = [\"0.0.0.0:8443\", \"[::]:8443\"]
local-ports = 8443
tls = { identity = \"web-ring\", client-cert = \"none\" }

# from p:1
# WARNING: connections that match no rule above are in clear, as on z/OS.
[[rule]]
name = \"unmatched-tcp\"
direction = \"outbound\"
protocol = \"tcp\"
permit = true

# from p:1
# WARNING: connections that match no rule above are in clear, as on z/OS.
[[rule]]
name = \"unmatched-udp\"
direction = \"outbound\"
protocol = \"udp\"
permit = true
";
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&text.unwrap()), lines(wanted), "{found:#?}");
    assert_eq!(POLICY.lines().count(), POLICY_LINES);
}

#[test]
fn what_no_rule_matches_is_permitted_aloud_or_denied() {
    let (text, found) = imported(POLICY, MAP, AttlsOptions::default());
    assert!(text.unwrap().contains("unmatched-tcp"));
    let told = |found: &[String], words: &str| {
        found.iter().any(|one| one.starts_with("1 changed") && one.contains(words))
    };
    assert!(told(&found, "are in clear, as on z/OS"), "{found:?}");
    let (text, found) =
        imported(POLICY, MAP, AttlsOptions { fail_closed: true, ..AttlsOptions::default() });
    assert!(!text.unwrap().contains("permit"));
    assert!(told(&found, "are denied; on z/OS they were in clear"), "{found:?}");
}

#[test]
fn that_accepting_programs_are_not_distinguished_is_reported() {
    let policy = POLICY.replacen("Direction", "Jobname WEB\n  Direction", 1);
    let map = format!("{MAP}[job]\nWEB = {{ program = \"/usr/bin/web\" }}\n");
    let (text, found) = imported_rules(&policy, &map);
    // Nothing that arrives at the port goes in clear.
    assert!(!text.contains("program") && !text.contains("unmatched-8443"), "{text}");
    assert!(
        found.iter().any(|one| one.starts_with("4 changed: tacit cannot see which program")),
        "{found:#?}"
    );
    let policy = policy.replacen("TTLSEnabled On", "TTLSEnabled Off", 1);
    let (text, found) = imported(&policy, &map, AttlsOptions::default());
    assert_eq!(text, None);
    assert!(
        found.iter().any(|one| one.starts_with("4 error: tacit cannot see which program")),
        "{found:#?}"
    );
}

#[test]
fn the_old_meaning_of_no_name_check_is_kept_on_demand() {
    let policy = format!("{POLICY}{CLIENT}");
    let options = AttlsOptions { keep_no_name_check: true, ..AttlsOptions::default() };
    let (text, found) = imported(&policy, MAP, options);
    assert!(text.unwrap().contains("verify = \"chain\""), "{found:?}");
    assert!(found.iter().any(|one| one.contains("the server's name is not checked")), "{found:?}");
    let named = policy
        .replace("    TLSv1.3 On\n", "    TLSv1.3 On\n    HostReferenceIdDNS DB.example.com\n");
    let (text, _) = imported(&named, MAP, options);
    assert!(text.unwrap().contains("server-name = \"db.example.com\""));
}

#[test]
fn client_auth_types_become_levels() {
    let policy = |kind: &str| {
        let policy =
            POLICY.replacen("HandshakeRole Server", "HandshakeRole ServerWithClientAuth", 1);
        policy.replacen("TLSv1.3 On", &format!("TLSv1.3 On\n    {kind}"), 1)
    };
    let map = format!(
        "{MAP}[rule.web]\nmap = \"people\"\n\
         [[map.people]]\nsubject = \"CN=alice\"\nname = \"alice\"\n"
    );
    for (kind, map, wanted) in [
        ("", MAP, "trust = \"web-ring\", client-cert = \"required\""),
        ("ClientAuthType Required", MAP, "trust = \"web-ring\", client-cert = \"required\""),
        ("ClientAuthType full", MAP, "trust = \"web-ring\", client-cert = \"at-full\""),
        ("ClientAuthType PassThru", MAP, "identity = \"web-ring\", client-cert = \"passthru\""),
        ("ClientAuthType SAFCheck", &map, "client-cert = \"safcheck\", map = \"people\""),
    ] {
        let (text, found) = imported_rules(&policy(kind), map);
        let text = text
            .replace('\n', "|")
            .replace("|trust = ", "trust = ")
            .replace("|client-cert", ", client-cert");
        assert!(text.contains(wanted), "{kind}: {text} {found:?}");
    }
}

#[test]
fn well_known_ports_say_when_tls_begins() {
    let controlled = POLICY.replacen("TLSv1.3 On", "TLSv1.3 On\n    ApplicationControlled On", 1);
    let start = |port: &str, map: &str| {
        let policy = controlled.replacen("8443", port, 1);
        let (text, found) = imported(&policy, map, AttlsOptions::default());
        let text = text.unwrap_or_else(|| panic!("{port}: {found:#?}"));
        let line = text.lines().find(|line| line.contains("starttls")).unwrap_or("-").to_owned();
        (line, found)
    };
    for (port, wanted) in [
        ("21", "\"ftp\""),
        ("23", "\"telnet\""),
        ("25", "\"smtp\""),
        ("587", "\"smtp\""),
        ("990", "{ protocol = \"ftp\", implicit = true }"),
        ("5432", "\"postgres\""),
    ] {
        let (line, found) = start(port, MAP);
        assert!(line.contains(&format!("starttls = {wanted}")), "{port}: {line} {found:?}");
    }
    let (line, found) = start("992", MAP);
    assert_eq!(line, "-");
    let told = "on z/OS the program itself started TLS; in tacit, TLS begins at the first byte";
    assert!(found.iter().any(|one| one.contains(told)), "{found:#?}");
    let map = format!("{MAP}[rule.web]\nstarttls = \"telnet\"\n");
    assert!(start("2023", &map).0.contains("starttls = \"telnet\""));
    let map = format!("{MAP}[rule.web]\nstart = \"immediate\"\n");
    assert_eq!(start("2023", &map).0, "-");
}

#[test]
fn each_port_is_a_way_in_of_its_own() {
    let policy =
        POLICY.replacen("LocalPortRange 8443", "LocalPortRange 7001 7002\n  LocalAddr 10.0.0.1", 1);
    let (text, found) = imported_rules(&policy, MAP);
    assert!(found.is_empty(), "{found:?}");
    for port in [7001, 7002] {
        let rule = format!(
            "name = \"web-{port}\"\ndirection = \"inbound\"\nlisten = \"10.0.0.1:{port}\"\n\
             local-ports = {port}\n"
        );
        assert!(text.contains(&rule), "{text}");
    }
}

#[test]
fn addresses_ports_and_times_come_from_all_that_is_named() {
    let far = "RemoteAddrGroupRef far\n  IpTimeConditionRef work";
    let timers = "TLSv1.3 On\n    ResetCipherTimer 480\n    HandshakeTimeout 30";
    let policy = CLIENT
        .replacen("RemoteAddr 10.7.0.0/16", far, 1)
        .replacen("RemotePortRange 443", "RemotePortGroupRef many", 1)
        .replacen("TLSv1.3 On", timers, 1);
    let more = "TTLSGroupAction on\n{\nTTLSEnabled On\n}\n\
        IpAddrGroup far\n{\nIpAddr\n{\nAddr 10.0.0.9\n}\nIpAddrRef one\n\
        IpAddrSet\n{\nPrefix 10.8.0.0/16\nRange 10.9.0.1-10.9.0.7\n}\n}\n\
        IpAddr one\n{\nAddr 2001:db8::1\n}\n\
        PortGroup many\n{\nPortRangeRef https\nPortRange\n{\nPort 8000-8999\n}\n}\n\
        PortRange https\n{\nPort 443\n}\n\
        IpTimeCondition work\n{\nMonthOfYearMask 111111000000\n\
        DayOfMonthMask 1000000000000000000000000000000\n\
        DayOfWeekMask 0111110\nTimeOfDayRange 08:00-18:30\nTimeZone UTC\n\
        ConditionTimeRange 20250601080000:20270601080000\n}\n";
    let (text, found) = imported_rules(&format!("{policy}{more}"), MAP);
    for wanted in [
        "remote = [\"10.0.0.9\", \"2001:db8::1\", \"10.8.0.0/16\", \"10.9.0.1-10.9.0.7\"]",
        "remote-ports = [443, \"8000-8999\"]",
        "from = \"2025-06-01 08:00\"",
        "until = \"2027-06-01 08:00\"",
        "months = [\"jan\", \"feb\", \"mar\", \"apr\", \"may\", \"jun\"]",
        "days-of-month = [1]",
        "days = [\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]",
        "hours = \"08:00-18:30\"",
        "zone = \"UTC\"",
        "rekey = { after = \"480m\" }",
        "handshake-timeout = \"30s\"",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}\n{found:?}");
    }
}

#[test]
fn both_directions_and_exclusions_become_rules_of_their_own() {
    let both = POLICY.replacen(
        "Direction Inbound",
        "Direction Both\n  RemotePortRange 99\n  Priority 5",
        1,
    );
    let off = "TTLSRule a~off\n{\nRemotePortRange 25\nDirection Outbound\nPriority 9\n\
               TTLSGroupActionRef off\n}\nTTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
    let (text, found) = imported(&format!("{both}{off}"), MAP, AttlsOptions::default());
    let policy = parse(&text.unwrap()).policy.unwrap();
    let rules: Vec<_> =
        policy.rules.iter().map(|rule| (rule.name.as_str(), rule.action.word())).collect();
    assert_eq!(
        rules,
        [
            ("a-off", "permit"),
            ("web-inbound", "tls"),
            ("web-outbound", "tls"),
            ("unmatched-8443", "permit"),
            ("unmatched-tcp", "permit"),
            ("unmatched-udp", "permit"),
        ],
        "{found:#?}"
    );
    // The role is the one that the policy sets, whichever side connects.
    let tacit_core::policy::Action::Tls(tls) = &policy.rules[2].action else { panic!() };
    assert_eq!(tls.role(), "server");
}

#[test]
fn jobs_users_and_overrides_come_from_the_map() {
    let policy = POLICY.replacen(
        "LocalPortRange 8443",
        "LocalPortRange 1000-9000\n  Jobname CICS*\n  Userid WEBSRV",
        1,
    );
    // Programs that accept are not told apart.
    let policy = policy.replacen("Inbound", "Both", 1);
    let map = format!(
        "{MAP}[job]\n\"CICS*\" = {{ program = [\"/usr/bin/a\", \"/usr/bin/b\"] }}\n[user]\n\
         \"WEBSRV\" = \"web\"\n[rule.web]\nlisten = \"127.0.0.1:8443\"\nlocal-ports = 8443\n"
    );
    let (text, found) = imported_rules(&policy, &map);
    for wanted in [
        "listen = \"127.0.0.1:8443\"\nlocal-ports = 8443\n",
        "program = [\"/usr/bin/a\", \"/usr/bin/b\"]\nuser = \"web\"\n",
    ] {
        assert!(text.contains(wanted), "{text} {found:?}");
    }
}

#[test]
fn groups_that_are_named_are_kept_behind_the_hybrid_one() {
    let signature =
        "TTLSSignatureParms\n{\nServerKeyShareGroups 0029002300240030\n}\n  TTLSKeyringParms\n";
    let (text, found) = imported_rules(&POLICY.replacen("TTLSKeyringParms\n", signature, 1), MAP);
    let wanted = "groups = [\"X25519MLKEM768\", \"x25519\", \"secp256r1\", \"secp384r1\"]";
    assert!(text.contains(wanted), "{text}");
    assert!(found.iter().any(|one| one.contains("0030 (x448) is dropped")), "{found:?}");
    assert!(
        found.iter().any(|one| one.contains("info: the import adds X25519MLKEM768 before the")),
        "{found:?}"
    );
}

#[test]
fn addresses_that_cannot_be_listened_at_together_are_an_error() {
    let second = "TTLSRule one\n{\nLocalPortRange 8443\nLocalAddr 10.0.0.1\nDirection Inbound\n\
                  TTLSGroupActionRef on\nTTLSEnvironmentActionRef server\n}\n";
    let (text, found) = imported(&format!("{POLICY}{second}"), MAP, AttlsOptions::default());
    assert_eq!(text, None);
    let told = "27 error: this rule listens on port 8443 of the address 10.0.0.1, and the rule at";
    assert!(found.iter().any(|one| one.starts_with(told)), "{found:#?}");
}

#[test]
fn several_files_are_one_policy_in_any_encoding() {
    let (rule, actions) = POLICY.split_at(POLICY.find("TTLSGroupAction on\n").unwrap());
    let latin1 = [b"# \xa9\n", actions.as_bytes()].concat();
    let mut findings = Findings::default();
    let files = [Input { file: "a", bytes: rule.as_bytes() }, Input { file: "b", bytes: &latin1 }];
    let map = Input { file: "m", bytes: MAP.as_bytes() };
    let given = Given { policies: &files, map: Some(map), ..Given::default() };
    assert!(given.import(&mut findings).policy.is_some());
    let found = findings.finish();
    assert!(
        found
            .iter()
            .any(|one| one.file == "b" && one.message == "the import read the file as ISO 8859-1")
    );
}

#[test]
fn a_ring_without_owner_is_that_of_the_rules_user_where_the_map_has_one() {
    let policy = POLICY.replacen("Keyring WEB/RING", "Keyring RING", 1);
    let policy = policy.replacen("LocalPortRange 8443", "LocalPortRange 8443\n  Userid WEBSRV", 1);
    let ring = |name: &str, file: &str| {
        format!("[keyring.{name:?}]\ncert = \"{file}.pem\"\nkey = \"{file}.key\"\n")
    };
    let user = "[user]\n\"WEBSRV\" = \"web\"\n";
    let every = format!("{user}{}", ring("RING", "every"));
    // A user ID has no case.
    let own = format!("{every}{}", ring("websrv/RING", "own"));
    for (map, wanted) in [(&every, "every.pem"), (&own, "own.pem")] {
        let (text, found) = imported(&policy, map, AttlsOptions::default());
        assert!(text.is_some_and(|text| text.contains(wanted)), "{found:#?}");
    }
}

#[test]
fn a_rule_that_an_earlier_one_covers_is_reported() {
    let wide = CLIENT.replacen("TTLSRule out", "TTLSRule all", 1).replacen(
        "  Direction",
        "  Priority 9\n  Direction",
        1,
    );
    let rule = wide.split("TTLSEnvironmentAction client").next().unwrap();
    let (text, found) = imported(&format!("{POLICY}{CLIENT}{rule}"), MAP, AttlsOptions::default());
    assert!(text.is_some());
    let told = found.iter().any(|one| one.contains("rule `out` is never used"));
    assert!(told, "{found:#?}");
}

#[test]
fn the_name_that_a_client_sends_is_the_one_that_is_checked() {
    let client = |more: &str| {
        let policy = format!("{POLICY}{CLIENT}");
        policy.replace("    TLSv1.3 On\n  }\n}\n", &format!("    TLSv1.3 On\n{more}  }}\n}}\n"))
    };
    let sni = "ClientHandshakeSNI Required\nClientHandshakeSNIList db.example.com\n";
    let name = "HostReferenceIdDNS db.example.com\nHostRefWildcardValidation On\n";
    let other = "HostReferenceIdDNS other.example.com\nHostRefWildcardValidation On\n";
    for (more, wanted, told) in [
        (sni.to_owned(), "db.example.com", "must now contain the server name that tacit sends"),
        (format!("{sni}{name}"), "db.example.com", ""),
        (format!("{sni}{other}"), "other.example.com", "not send the server name `db.example.com`"),
    ] {
        let (text, found) = imported(&client(&more), MAP, AttlsOptions::default());
        let text = text.unwrap_or_default();
        assert!(text.contains(&format!("server-name = \"{wanted}\"")), "{text} {found:#?}");
        let changed = found.iter().filter(|one| {
            one.contains(" changed: ") && one.contains("example.com")
                || one.contains("that tacit sends; on z/OS")
        });
        let changed: Vec<_> = changed.collect();
        assert!(
            if told.is_empty() { changed.is_empty() } else { changed[0].contains(told) },
            "{found:#?}"
        );
    }
}

#[test]
fn sessions_that_are_never_kept_are_never_resumed() {
    let gsk =
        "  TTLSGskAdvancedParms\n  {\n    GSK_V3_SESSION_TIMEOUT 0\n  }\n  TTLSKeyringParms\n";
    let (text, found) = imported_rules(&POLICY.replacen("  TTLSKeyringParms\n", gsk, 1), MAP);
    assert!(text.contains("resumption = false"), "{text} {found:#?}");
}

#[test]
fn connections_that_follow_another_are_those_of_ftp() {
    let policy = POLICY.replacen("8443", "21", 1);
    let policy = policy.replacen(
        "TLSv1.3 On",
        "TLSv1.3 On\n    ApplicationControlled On\n    SecondaryMap On",
        1,
    );
    let (text, found) = imported_rules(&policy, MAP);
    assert!(text.contains("starttls = \"ftp\""), "{found:#?}");
    let told = "26 info: FTP data connections use the TLS settings of their control connection";
    assert!(found.iter().any(|one| one == told), "{found:#?}");
}

#[test]
fn of_repeated_conditions_and_actions_the_last_counts_and_is_reported() {
    let rule = "IpAddr two\n{\nAddr 10.0.0.1\nAddr 10.0.0.2\n}\nIpAddr one\n{\nAddr 10.9.0.1\n}\n\
                TTLSGroupAction off\n{\nTTLSEnabled Off\n}\nTTLSRule r\n{\n\
                LocalAddr 10.1.0.1\nLocalAddr 10.1.0.2\nRemoteAddrRef one\nRemoteAddrRef two\n\
                RemotePortRange 22\nRemotePortRange 23\nDirection Outbound\n\
                TTLSGroupActionRef off\nTTLSGroupActionRef on\nTTLSGroupActionRef off\n}\n";
    let (rules, found) = imported_rules(&format!("{POLICY}{rule}"), MAP);
    for wanted in
        ["local = \"10.1.0.2\"", "remote = \"10.0.0.2\"", "remote-ports = 23", "permit = true"]
    {
        assert!(rules.contains(wanted), "{wanted}\n{rules}");
    }
    for told in [
        "`Addr` is set twice: `10.0.0.2` is used, `",
        "`LocalAddr` is set twice: `10.1.0.2` is used, `",
        "`RemoteAddrRef` is set twice: `two` is used, `",
        "`RemotePortRange` is set twice: `23` is used, `",
        "`TTLSGroupActionRef` is set twice: `off` is used, `on` is ignored",
    ] {
        assert!(found.iter().any(|one| one.contains(told)), "{told}\n{found:#?}");
    }
}

#[test]
fn a_job_name_that_the_map_lacks_is_reported() {
    let rule = "TTLSGroupAction off\n{\nTTLSEnabled Off\n}\nTTLSRule r\n{\nJobname CICS\n\
                Userid WEB\nDirection Outbound\nTTLSGroupActionRef off\n}\n";
    let map = format!("{MAP}[rule.r]\nuser = \"web\"\n");
    let (rules, found) = imported_rules(&format!("{POLICY}{rule}"), &map);
    assert!(rules.contains("user = \"web\"") && !rules.contains("program"), "{rules}");
    let told = "the import ignores the job name";
    assert!(found.iter().any(|one| one.contains(told)), "{found:#?}");
}

#[test]
fn a_policy_without_rules_is_an_error() {
    let group = "TTLSGroupAction g\n{\nTTLSEnabled On\n}\n";
    let (policy, found) = imported(group, MAP, AttlsOptions::default());
    assert_eq!(policy, None);
    assert!(found.iter().any(|one| one.contains("there is no TTLSRule")), "{found:#?}");
}

#[test]
fn what_is_to_be_added_for_an_address_range_is_taken() {
    let ranges = "LocalPortRange 8443-8444\n  LocalAddr 10.0.0.0/8";
    let policy = POLICY.replacen("LocalPortRange 8443", ranges, 1);
    let (_, found) = imported(&policy, MAP, AttlsOptions::default());
    let fix = found.iter().find_map(|one| one.split("[rule.web]|").nth(1)).unwrap();
    let line = fix.trim_end_matches(')').replace('|', "\n");
    let map = format!("{MAP}[rule.web]\n{line}\n");
    let (policy, found) = imported(&policy, &map, AttlsOptions::default());
    assert!(policy.is_some(), "{line}\n{found:#?}");
}

#[test]
fn starttls_in_the_wrong_direction_names_the_direction() {
    let policy = POLICY.replacen("TLSv1.3 On", "TLSv1.3 On\n    ApplicationControlled On", 1);
    let map = format!("{MAP}[rule.web]\nstarttls = \"telnet\"\n");
    let outbound = policy.replacen("Direction Inbound", "Direction Outbound", 1);
    let both_as_client = policy.replacen("Direction Inbound", "Direction Both", 1).replacen(
        "HandshakeRole Server",
        "HandshakeRole Client",
        1,
    );
    for (policy, message, fix) in [
        (outbound, "`Direction Outbound` contradicts the TLS role", "set `Direction Inbound`"),
        (both_as_client, "`Direction Both` contradicts the TLS role", "set `Direction Outbound`"),
    ] {
        let (text, found) = imported(&policy, &map, AttlsOptions::default());
        assert_eq!(text, None);
        let errors: Vec<_> = found.iter().filter(|one| one.contains(" error: ")).collect();
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(errors[0].starts_with(&format!("4 error: {message}")), "{errors:#?}");
        assert!(errors[0].contains(fix), "{errors:#?}");
    }
    let (text, found) = imported(&policy, &map, AttlsOptions::default());
    assert!(text.is_some(), "{found:#?}");
}

#[test]
fn starttls_of_both_directions_is_for_what_is_accepted() {
    let policy = POLICY
        .replacen("TLSv1.3 On", "TLSv1.3 On\n    ApplicationControlled On", 1)
        .replacen("Direction Inbound", "Direction Both", 1);
    let by_map = format!("{MAP}[rule.web]\nstarttls = \"telnet\"\n");
    let by_port = policy.replacen("LocalPortRange 8443", "LocalPortRange 23", 1);
    for (policy, map) in [(policy.as_str(), by_map.as_str()), (&by_port, MAP)] {
        let (text, found) = imported(policy, map, AttlsOptions::default());
        let text = text.unwrap_or_else(|| panic!("{found:#?}"));
        assert!(
            found.iter().any(|one| one.starts_with("4 changed: `Direction Both`")),
            "{found:#?}"
        );
        assert_eq!(text.matches("starttls = \"telnet\"").count(), 1, "{text}");
        let rules = parse(&text).policy.unwrap().rules;
        let words: Vec<_> =
            rules.iter().take(2).map(|rule| (rule.name.as_str(), rule.action.word())).collect();
        assert_eq!(words, [("web-inbound", "tls"), ("web-outbound", "deny")]);
    }
    // What begins at the first byte stays TLS in both directions.
    let map = format!("{MAP}[rule.web]\nstart = \"immediate\"\n");
    let (text, found) = imported(&policy, &map, AttlsOptions::default());
    let rules = parse(&text.unwrap_or_else(|| panic!("{found:#?}"))).policy.unwrap().rules;
    assert!(rules.iter().take(2).all(|rule| rule.action.word() == "tls"), "{rules:#?}");
}

#[test]
fn a_rule_with_the_name_of_one_that_is_added_keeps_it() {
    for protocol in ["tcp", "udp", "8443"] {
        let name = format!("unmatched-{protocol}");
        let policy = POLICY.replace("TTLSRule web", &format!("TTLSRule {name}"));
        let policy = policy.replacen("Direction", "RemoteAddr 10.0.0.1\n  Direction", 1);
        let map = MAP.replace("[rule.web]", &format!("[rule.{name}]"));
        let (text, found) = imported(&policy, &map, AttlsOptions::default());
        let text = text.unwrap_or_else(|| panic!("{found:#?}"));
        assert!(text.contains(&format!("name = \"{name}\"\n")), "{text}");
        assert!(text.contains(&format!("name = \"{name}-2\"\n")), "{text}");
        let message = format!(
            "in the policy, this rule has the name `{name}-2`, because the name `{name}` is not \
             available"
        );
        assert!(found.iter().any(|one| one.contains(&message)), "{found:#?}");
    }
}
