//! Tests the values that an import uses for AT-TLS attributes: the default of each attribute, and
//! the value of an attribute that several actions set.

use super::*;

/// What the table shows of a word below a rule.
fn shown(table: &str, rule: &str, word: &str) -> Vec<String> {
    let begin = format!("{:40} {rule}", "TTLSRule");
    let mut all = table.lines().skip_while(|row| !row.starts_with(begin.as_str()));
    let first = all.next().expect("the rule is shown");
    assert!(first.ends_with(|c: char| c.is_ascii_digit()), "{first}");
    let rows = all.take_while(|row| !row.is_empty());
    let of_word = rows.filter(|row| row.split_whitespace().next() == Some(word));
    of_word.map(|row| row.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
}

fn rule(name: &str, more: &str) -> String {
    format!(
        "TTLSRule {name}\n{{\nLocalPortRange 1\nDirection Inbound\nTTLSGroupActionRef on\n\
         TTLSEnvironmentActionRef server\n{more}}}\n"
    )
}

#[test]
fn priority_is_1_by_default_and_the_highest_comes_first_then_the_name() {
    let rules = [("b", ""), ("z", "Priority 9\n"), ("a", ""), ("m", "Priority 2000000000\n")];
    let rules: String = rules.iter().map(|(name, more)| rule(name, more)).collect();
    let table = table(&format!("{POLICY}{rules}"));
    let begins = |row: &&str| row.starts_with("TTLSRule");
    let order: Vec<&str> =
        table.lines().filter(begins).filter_map(|row| row.split_whitespace().nth(1)).collect();
    assert_eq!(order, ["m", "z", "a", "b", "web"]);
    assert_eq!(shown(&table, "a", "Priority"), ["1 default"]);
    assert_eq!(shown(&table, "z", "Priority"), ["9 p:40"]);
}

#[test]
fn an_environment_without_advanced_parameters_has_tls_1_0_and_1_1_on() {
    let policy = "TTLSRule r\n{\nLocalPortRange 1\nDirection Inbound\nTTLSGroupActionRef g\n\
                  TTLSEnvironmentActionRef e\n}\nTTLSGroupAction g\n{\nTTLSEnabled On\n}\n\
                  TTLSEnvironmentAction e\n{\nHandshakeRole Server\n}\n";
    let table = table(policy);
    for (version, on) in
        [("TLSv1", "On"), ("TLSv1.1", "On"), ("TLSv1.2", "Off"), ("TLSv1.3", "Off")]
    {
        assert_eq!(shown(&table, "r", version), [format!("{on} default")]);
    }
}

#[test]
fn of_two_blocks_the_later_replaces_the_earlier_entirely() {
    let parms = "TTLSEnvironmentAdvancedParmsRef old\n  TTLSEnvironmentAdvancedParms\n";
    let old = "TTLSEnvironmentAdvancedParms old\n{\nTLSv1 Off\nClientAuthType Full\n}\n";
    let policy = POLICY.replacen("TTLSEnvironmentAdvancedParms\n", parms, 1).replacen(
        "    TLSv1 Off\n",
        "",
        1,
    );
    let policy = policy + old;
    let table = table(&policy);
    assert_eq!(shown(&table, "web", "TLSv1"), ["On default"]);
    assert_eq!(shown(&table, "web", "ClientAuthType"), ["Required default"]);
    let (_, found) = imported(&policy, MAP, AttlsOptions::default());
    let replaced = found
        .iter()
        .find(|found| found.contains("uses only the last one, and ignores the block at p:19"));
    assert!(replaced.is_some_and(|found| found.starts_with("20 changed: ")), "{found:?}");
}

#[test]
fn what_a_comment_hides_falls_back_to_the_default() {
    let table = table(&POLICY.replacen("    TLSv1 Off", "    # TLSv1 Off", 1));
    assert_eq!(shown(&table, "web", "TLSv1"), ["On default"]);
    assert_eq!(shown(&table, "web", "TLSv1.1"), ["Off p:22"]);
}

#[test]
fn connection_actions_have_no_defaults() {
    let action = "TTLSConnectionAction c\n{\nHandshakeRole ServerWithClientAuth\n\
                  TTLSConnectionAdvancedParms\n{\nSecondaryMap Off\n}\n}\n";
    let rule = rule("one", "TTLSConnectionActionRef c\n");
    let table = table(&format!("{POLICY}{rule}{action}"));
    let connection = table.split("TTLSConnectionAction ").nth(1).unwrap();
    let rows: Vec<_> = connection.lines().skip(1).take_while(|row| !row.is_empty()).collect();
    let words: Vec<_> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(words, ["HandshakeRole", "TTLSConnectionAdvancedParms", "SecondaryMap"]);
    assert!(!connection.split("\n\n").next().unwrap().contains("default"), "{connection}");
}

#[test]
fn signature_parameters_of_a_connection_show_their_pairs() {
    let action = "TTLSConnectionAction c\n{\nTTLSSignatureParms\n{\nClientECurves Any\n}\n}\n";
    let rule = rule("one", "TTLSConnectionActionRef c\n");
    let table = table(&format!("{POLICY}{rule}{action}"));
    let connection = table.split("TTLSConnectionAction ").nth(1).unwrap();
    let rows: Vec<_> = connection.lines().skip(1).take_while(|row| !row.is_empty()).collect();
    let words: Vec<_> = rows.iter().filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(words, ["TTLSSignatureParms", "ClientECurves", "SignaturePairs"]);
    assert!(rows[2].contains("0601 0603") && rows[2].ends_with("default"), "{rows:?}");
}

#[test]
fn an_environment_that_says_no_trace_shows_none_and_its_group_decides() {
    let policy = POLICY.replacen("TTLSEnabled On", "TTLSEnabled On\n  Trace 7", 1);
    assert_ne!(policy, POLICY);
    let traces = shown(&table(&policy), "web", "Trace");
    assert!(traces.len() == 1 && traces[0].starts_with("7 p:"), "{traces:?}");
    let traces = shown(&table(POLICY), "web", "Trace");
    assert_eq!(traces, ["2 default"], "of the group");
    assert_eq!(shown(&table(POLICY), "web", "CtraceClearText"), ["Off default"]);
}

/// As `pasearch -t` prints them of an environment that says none.
const GSK_DEFAULTS: &[(&str, &str)] = &[
    ("GSK_V3_SESSION_TIMEOUT", "86400"),
    ("GSK_V3_SIDCACHE_SIZE", "512"),
    ("GSK_SESSION_TICKET_CLIENT_ENABLE", "On"),
    ("GSK_SESSION_TICKET_CLIENT_MAXSIZE", "8192"),
    ("GSK_SESSION_TICKET_SERVER_ENABLE", "On"),
    ("GSK_SESSION_TICKET_SERVER_ALGORITHM", "AESCBC128"),
    ("GSK_SESSION_TICKET_SERVER_COUNT", "2"),
    ("GSK_SESSION_TICKET_SERVER_KEY_REFRESH", "300"),
    ("GSK_SESSION_TICKET_SERVER_TIMEOUT", "300"),
    ("HttpCdpEnable", "Off"),
    ("HttpCdpProxyServerPort", "80"),
    ("HttpCdpResponseTimeout", "15"),
    ("HttpCdpMaxResponseSize", "204800"),
    ("HttpCdpCacheSize", "32"),
    ("HttpCdpCacheEntryMaxsize", "0"),
    ("OcspAiaEnable", "Off"),
    ("OcspProxyServerPort", "80"),
    ("OcspRetrieveViaGet", "Off"),
    ("OcspUrlPriority", "On"),
    ("OcspRequestSigalg", "0401"),
    ("OcspClientCacheSize", "256"),
    ("OcspCliCacheEntryMaxsize", "0"),
    ("OcspNonceGenEnable", "Off"),
    ("OcspNonceCheckEnable", "Off"),
    ("OcspNonceSize", "8"),
    ("OcspResponseTimeout", "15"),
    ("OcspMaxResponseSize", "20480"),
    ("OcspServerStapling", "Off"),
];

#[test]
fn defaults_of_revocation_and_session_tickets_are_shown() {
    let table = table(POLICY);
    for (word, value) in GSK_DEFAULTS {
        assert_eq!(shown(&table, "web", word), [format!("{value} default")], "{word}");
    }
}

#[test]
fn a_whole_number_is_an_address() {
    let policy =
        POLICY.replacen("LocalPortRange 8443", "LocalPortRange 8443\n  RemoteAddr 6793", 1);
    assert_eq!(shown(&table(&policy), "web", "RemoteAddr"), ["0.0.26.137 p:4"]);
    let (_, found) = imported(&policy, MAP, AttlsOptions::default());
    let told = "4 changed: `RemoteAddr 6793` is a number, which the import reads as the address \
                0.0.26.137";
    assert!(found.iter().any(|found| found.starts_with(told)), "{found:?}");
}

#[test]
fn one_list_of_codes_leaves_the_others_their_defaults() {
    let signature = "  TTLSSignatureParms\n  {\n  ClientECurves Any\n  }\n  TTLSKeyringParms\n";
    let table = table(&POLICY.replacen("  TTLSKeyringParms\n", signature, 1));
    assert_eq!(shown(&table, "web", "ClientECurves"), ["Any p:17"]);
    let pairs = shown(&table, "web", "SignaturePairs");
    assert_eq!(pairs, ["0601 0603 0501 0503 0401 0403 0402 0301 0303 0302 0201 0203 0202 default"]);
}

#[test]
fn a_connection_decides_before_its_environment_and_that_before_the_group() {
    let rule = rule("one", "TTLSConnectionActionRef c\n");
    let action = "TTLSConnectionAction c\n{\nHandshakeRole Client\nTTLSConnectionAdvancedParms\n\
                  {\nHandshakeTimeout 77\n}\n}\n";
    let map = format!("{MAP}[rule.one]\nserver-name = \"a.example\"\n");
    let policy = format!("{POLICY}{rule}{action}");
    let (text, _) = imported(&policy, &map, AttlsOptions::default());
    let text = text.unwrap();
    assert!(text.contains("role = \"client\"") && text.contains("\"77s\""), "{text}");
}

#[test]
fn passwords_are_not_shown() {
    let policy = POLICY.replacen(
        "Keyring WEB/RING",
        "Keyring WEB/RING\nKeyringPw geheim\nKeyringPw geheim2",
        1,
    );
    let (text, found) = imported(&policy, MAP, AttlsOptions::default());
    let all = format!("{} {} {}", table(&policy), text.unwrap(), found.join(" "));
    assert!(!all.contains("geheim") && all.contains("(not shown)"), "{all}");

    let twice = policy.replacen("KeyringPw geheim", "KeyringPw geheim\nKeyringPw geheimer", 1);
    let misplaced =
        POLICY.replacen("HandshakeRole Server", "HandshakeRole Server\nKeyringPw geheim", 1);
    for policy in [twice, misplaced] {
        let (_, found) = imported(&policy, MAP, AttlsOptions::default());
        let all = format!("{} {}", table(&policy), found.join(" "));
        assert!(!all.contains("geheim") && all.contains("(not shown)"), "{all}");
    }
}
