//! Tests the findings that an import reports for AT-TLS policies with errors or unusual settings.

use super::*;
use crate::attls::words::Kind;
use proptest::prelude::*;

/// Changes to [`POLICY`] and the findings that come of each.
const CASES: &str = include_str!("findings.txt");

/// The lines of a case that begin with a mark, without it.
fn marked(case: &str, mark: &str) -> String {
    let lines = case.lines().filter_map(|line| line.strip_prefix(mark));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn errors_and_changes_are_reported_with_their_position() {
    let cases: Vec<&str> = CASES.split("\n===\n").skip(1).collect();
    assert!(cases.len() > 40, "{}", cases.len());
    for case in cases {
        let [replace, by, found] = ["- ", "+ ", "=> "].map(|mark| marked(case, mark));
        assert!(POLICY.contains(&replace), "{case}");
        let severity = severity_of(&found);
        let (text, reported) =
            imported(&POLICY.replacen(&replace, &by, 1), MAP, AttlsOptions::default());
        let of_case = |reported: &&String| {
            severity_of(reported) == severity
                && !reported.starts_with("1 changed: connections that match no rule")
        };
        let reported: Vec<&String> = reported.iter().filter(of_case).collect();
        let expected = reported.len() == found.lines().count()
            && reported
                .iter()
                .zip(found.lines())
                .all(|(reported, found)| reported.starts_with(found));
        assert!(expected, "{case}\n{reported:#?}");
        assert_eq!(text.is_none(), severity == Severity::Error, "{case}");
    }
}

#[test]
fn statements_without_effect_are_reported() {
    let unused = "TTLSKeyringParms spare\n{\nKeyring X\n}\nTTLSEnvironmentAction server\n";
    let cases = [
        (
            "TTLSEnvironmentAction server\n",
            unused,
            "12 info: no rule uses TTLSKeyringParms `spare`",
        ),
        (
            "TTLSEnabled On",
            "TTLSEnabled On\n  Trace 7",
            "11 info: Trace 7: the agent logs the start and the end",
        ),
        (
            "TTLSGroupAction on\n",
            "TTLSRule WEB2\n{\nRemotePortRange 9\nDirection Outbound\n\
             TTLSGroupActionRef on\nTTLSEnvironmentActionRef server\n}\nTTLSGroupAction on\n",
            "1 changed: tacit tries rule `WEB2` before this rule: both have the priority 1, so \
             tacit tries them in the order of their names. z/OS tries this rule",
        ),
        ("TLSv1.3 On", "TLSv1.3 On\n    Renegotiation Disabled", "25 info: `Renegotiation` is not"),
        (
            "TLSv1.3 On",
            "TLSv1.3 On\n    3DesKeyCheck On",
            "25 info: `3DesKeyCheck` is not imported:",
        ),
        (
            "TTLSGroupAction on\n",
            "TTLSGroupAction on\n{\nTTLSEnabled On\n}\nTTLSGroupAction on\n",
            "12 info: TTLSGroupAction `on` repeats the definition at p:8",
        ),
        (
            "LocalPortRange 8443",
            "LocalPortRange 8443\n  RemoteAddr 10.1.2.3/8",
            "4 info: the import reads `10.1.2.3/8` as the network 10.0.0.0/8",
        ),
    ];
    for (replace, by, wanted) in cases {
        let (text, found) =
            imported(&POLICY.replacen(replace, by, 1), MAP, AttlsOptions::default());
        assert!(text.is_some(), "{found:?}");
        assert!(found.iter().any(|found| found.starts_with(wanted)), "{wanted}: {found:#?}");
    }
}

/// Every attribute of an action either takes effect or is reported.
#[test]
fn no_attribute_is_ignored_in_silence() {
    let effect = [
        "TTLSEnabled",
        "Trace",
        "SecondaryMap",
        "HandshakeRole",
        "SuiteBProfile",
        "Keyring",
        "V2CipherSuites",
        "V3CipherSuites",
        "V3CipherSuites4Char",
        "ClientECurves",
        "ClientKeyShareGroups",
        "ServerKeyShareGroups",
        "ServerKexECurves",
        "SSLv2",
        "SSLv3",
        "TLSv1",
        "TLSv1.1",
        "TLSv1.2",
        "TLSv1.3",
        "ApplicationControlled",
        "HandshakeTimeout",
        "ResetCipherTimer",
        "CertificateLabel",
        "ServerCertificateLabel",
        "HostReferenceIdDNS",
        "HostReferenceIdCN",
        "HostRefWildcardValidation",
        "ClientAuthType",
        "ServerHandshakeSNIList",
        "ClientHandshakeSNIList",
    ];
    let actions =
        Kind::ALL.into_iter().filter(|kind| kind.word().starts_with("TTLS") && *kind != Kind::Rule);
    for attribute in actions.flat_map(Kind::attributes) {
        let is_part = matches!(attribute.form, words::Form::Block(_) | words::Form::Ref(_));
        let told = ignored::is_reported(attribute.word);
        assert!(
            is_part || told != effect.contains(&attribute.word),
            "`{}` is told: {told}",
            attribute.word
        );
    }
}

#[test]
fn everything_the_map_lacks_is_reported_at_once_with_the_lines_to_add() {
    let policy = POLICY.replacen("HandshakeRole Server", "HandshakeRole ServerWithClientAuth", 1);
    let policy = policy.replacen("TLSv1.3 On", "TLSv1.3 On\n    ClientAuthType SAFCheck", 1);
    let file = Input { file: "p", bytes: policy.as_bytes() };
    let mut findings = Findings::default();
    let text = Given { policies: &[file], ..Given::default() }.import(&mut findings).policy;
    assert_eq!(text, None);
    let errors = findings.finish().into_iter().filter(|one| one.severity == Severity::Error);
    let fixes: Vec<String> = errors.filter_map(|error| error.fix).collect();
    // What is printed is a map file, and with it the import succeeds.
    let lines = fixes.iter().flat_map(|fix| fix.lines().skip(1));
    let map: String = lines.map(|line| format!("{line}\n")).collect();
    let (text, found) = imported(&policy, &map, AttlsOptions::default());
    assert!(text.is_some(), "{map}\n{found:#?}");
}

#[test]
fn a_map_file_is_read_as_strictly_as_a_policy() {
    for (map, wanted) in [
        ("[keyring.\"WEB/RING\"]\ncert = \"a\"\n", "m1 error: [keyring.\"WEB/RING\"] has no `key`"),
        (
            "[keyrings]\n",
            "m1 error: unknown key `keyrings` in the top level of the map file (did you mean \
             `keyring`?)",
        ),
        (
            "[rule.wbe]\nstart = \"immediate\"\n",
            "m1 error: the AT-TLS policy has no rule `wbe` (did you mean `web`?)",
        ),
        ("[rule.web]\nstart = \"later\"\n", "m2 error: `start` cannot be `later`"),
        (
            "[rule.web]\nlistn = 1\n",
            "m2 error: unknown key `listn` in [rule.\"web\"] (did you mean `listen`?)",
        ),
        (
            "[job]\nA = { any = true, user = \"x\" }\n",
            "m2 error: an entry of [job] with `any` cannot have other keys",
        ),
        (
            "[job]\nA = {}\n",
            "m2 error: an entry of [job] needs at least one of the keys `program`, `run`, `user` \
             and `any`",
        ),
        ("[keyring.A]\nca = \"system\"\ncrl = \"a\"\n", "m1 error: `crl` cannot be used with ca ="),
        ("[user]\nA = 1\n", "m2 error: `user` cannot be a whole number"),
        ("[user]\nA = \"a b\"\n", "m2 error: `a b` cannot be a name"),
        ("[job]\nA = { run = \"night*\" }\n", "m2 error: `night*` cannot be a name"),
        ("[job]\nA = { program = [\"/a\", \"b\"] }\n", "m2 error: `program` cannot be `b`"),
        ("[rule.web]\nlisten = \"80\"\n", "m2 error: `80` has no port"),
        ("[rule.web]\nlocal-ports = 70000\n", "m2 error: "),
        ("[rule.web]\nremote = \"10.0.0.0/33\"\n", "m2 error: "),
        ("[rule.web]\nlisten = 1.5\n", "m2 error: `listen` cannot be a fraction"),
        (
            "[keyring.\"WEB/RING\"]\ncert = \"a\"\nkey = \"b\"\n[rule.web]\nserver-name = \"a\"\n",
            "m4 error: `server-name` of [rule.\"web\"] has no effect",
        ),
        (
            "[rule.web]\nstart = \"immediate\"\nstarttls = \"smtp\"\n",
            "m1 error: the rule has both `starttls` and `start`",
        ),
        ("nonsense\n", "m1 error: not valid TOML"),
    ] {
        let (text, found) = imported(POLICY, map, AttlsOptions::default());
        assert_eq!(text, None, "{map}");
        assert!(found.iter().any(|found| found.starts_with(wanted)), "{wanted}\n{found:#?}");
    }
}

#[test]
fn a_map_file_with_an_error_is_not_reported_to_lack_entries() {
    for map in [
        MAP.replacen("\"web.pem\"", "web.pem", 1),
        MAP.replacen("\"web.pem\"", "1", 1),
        MAP.replacen("[keyring", "[keyrings", 1),
    ] {
        let (text, found) = imported(POLICY, &map, AttlsOptions::default());
        assert_eq!(text, None, "{map}");
        let mut errors = found.iter().filter(|found| found.contains(" error: ")).peekable();
        assert!(errors.peek().is_some(), "{found:#?}");
        assert!(errors.all(|error| error.starts_with('m')), "{found:#?}");
    }
}

/// Where, how many bytes, and what stands there instead.
fn change() -> impl Strategy<Value = (usize, usize, String)> {
    (0..POLICY.len(), 0..20_usize, "[A-Za-z0-9{}#\n .*/-]{0,9}")
}

proptest! {
    #[test]
    fn whatever_the_policy_findings_have_a_line_of_it(
        changes in prop::collection::vec(change(), 0..6)
    ) {
        let mut policy = POLICY.to_owned();
        for (at, length, by) in changes {
            let at = at.min(policy.len());
            policy.replace_range(at..(at + length).min(policy.len()), &by);
        }
        let mut findings = Findings::default();
        let file = Input { file: "p", bytes: policy.as_bytes() };
        let map = Input { file: "m", bytes: MAP.as_bytes() };
        let given = Given { policies: &[file], map: Some(map), ..Given::default() };
        let imported = given.import(&mut findings);
        prop_assert_eq!(imported.policy.is_none(), findings.has_errors());
        let lines = policy.lines().count().max(1);
        for finding in findings.finish() {
            prop_assert!((1..=lines).contains(&finding.line), "{}", finding.render());
        }
    }
}
