//! Policies that are wrong or odd, and what is said about them.

use super::*;
use proptest::prelude::*;

/// A change to [`POLICY`], and the findings that come of it.
struct Case {
    replace: &'static str,
    by: &'static str,
    found: &'static [&'static str],
}

/// Makes the change and compares; of each finding, as much as the case says.
fn check(severity: Severity, cases: &[Case]) {
    for Case { replace, by, found } in cases {
        assert!(POLICY.contains(replace), "{replace}");
        let policy = POLICY.replacen(replace, by, 1);
        let (text, said) = imported(&policy, MAP, Options::default());
        let of_case = |said: &&String| {
            severity_of(said) == severity && !said.starts_with("1 changed: what no rule matches")
        };
        let said: Vec<&String> = said.iter().filter(of_case).collect();
        let expected = said.len() == found.len()
            && said.iter().zip(*found).all(|(said, found)| said.starts_with(found));
        assert!(expected, "{by}\n{said:#?}\ninstead of\n{found:#?}");
        assert_eq!(text.is_none(), severity == Severity::Error, "{by}");
    }
}

macro_rules! case {
    ($replace:literal => $by:literal, $($found:literal),+) => {
        Case { replace: $replace, by: $by, found: &[$($found),+] }
    };
}

#[test]
fn what_cannot_be_read_stops_the_import_where_it_stands() {
    check(
        Severity::Error,
        &[
            case!("TTLSGroupAction on" => "TLLSGroupAction on",
            "8 error: unknown statement `TLLSGroupAction` (did you mean `TTLSGroupAction`?)"),
            case!("TTLSEnabled On" => "TLLSEnabled On",
            "10 error: unknown word `TLLSEnabled` in TTLSGroupAction (did you mean `TTLSEnabled`?)"),
            case!("TTLSEnabled On" => "TTLSEnabled Yes",
            "8 error: the group action does not say `TTLSEnabled`",
            "10 error: `TTLSEnabled` cannot be `Yes` (one of `On`, `Off`)"),
            case!("Direction Inbound" => "Direction Inbuond",
            "1 error: the rule has no `Direction`",
            "4 error: `Direction` cannot be `Inbuond` (did you mean `Inbound`?)"),
            case!("TTLSEnvironmentActionRef server" => "TTLSEnvironmentActionRef sever",
            "6 error: there is no TTLSEnvironmentAction `sever` (did you mean `server`?)"),
            case!("TTLSEnvironmentAdvancedParms\n" => "TTLSEnvironmentAdvancedParm\n",
            "19 error: unknown word `TTLSEnvironmentAdvancedParm` in TTLSEnvironmentAction \
             (did you mean `TTLSEnvironmentAdvancedParms`?)"),
            case!("TTLSKeyringParms\n" => "TTLSKeyringParmsRef\n",
            "15 error: `TTLSKeyringParmsRef` takes a name, and a block follows it \
             (write `TTLSKeyringParms` before a block, or `TTLSKeyringParmsRef NAME`)"),
            case!("  TTLSKeyringParms\n  {\n    Keyring WEB/RING\n  }\n" => "",
            "12 error: the environment of the rule has no key ring"),
            case!("  HandshakeRole Server\n" => "",
            "12 error: the actions of the rule say no `HandshakeRole`"),
            case!("  TTLSGroupActionRef on\n" => "", "1 error: the rule names no group action"),
            case!("  TTLSEnvironmentActionRef server\n" => "",
            "1 error: the rule names no environment action"),
            case!("  LocalPortRange 8443\n" => "",
            "1 error: the rule has no condition but its direction"),
            case!("LocalPortRange 8443" => "LocalPortRange 70000",
            "1 error: the rule has no condition but its direction",
            "3 error: `LocalPortRange` cannot be `70000`: no port"),
            case!("LocalPortRange 8443" => "LocalPortRange 9-8",
            "1 error: the rule has no condition but its direction",
            "3 error: `LocalPortRange` cannot be `9-8`: no port"),
            case!("LocalPortRange 8443" => "LocalPortRange 8443\n  RemoteAddr 10.0.0.0/33",
            "4 error: `RemoteAddr` cannot be `10.0.0.0/33`: no address"),
            case!("LocalPortRange 8443" => "LocalPortRange ?serverPort?",
            "1 error: the rule has no condition but its direction",
            "3 error: `?serverPort?` is a placeholder, not a value",
            "3 error: `LocalPortRange` cannot be"),
            case!("Keyring WEB/RING" => "Keyring <ring>",
            "17 error: `<ring>` is a placeholder",
            "17 error: no files stand for the key ring `<ring>`"),
            case!("TLSv1.2 On" => "...",
            "23 error: `...` is a placeholder",
            "23 error: unknown word `...` in TTLSEnvironmentAdvancedParms"),
            case!("Keyring WEB/RING" => "Keyring *TOKEN*/MINE",
            "17 error: `*TOKEN*/MINE` is a PKCS #11 token, and keys are read from files only"),
            case!("Keyring WEB/RING" => "Keyring /u/key.kdb",
            "17 error: `/u/key.kdb` is a key database, which only System SSL reads"),
            case!("TTLSGroupAction on\n" => "TTLSGroupAction on\n{\nTTLSEnabled Off\n}\nTTLSGroupAction on\n",
            "12 error: TTLSGroupAction `on` is defined again, and differs from that at p:8"),
            case!("TTLSEnabled On" => "TTLSEnabled On\n  V3CipherSuites 2F",
            "11 error: `V3CipherSuites` does not belong in TTLSGroupAction (it belongs in `TTLSCipherParms`)"),
            case!("TTLSEnabled On" => "TTLSEnabled On\n  FIPS140 Level1",
            "11 error: `FIPS140` cannot be kept: there is no FIPS 140 mode"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    ApplicationControlled On",
            "25 error: the program of rule `web` decides when TLS begins"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    SecondaryMap On",
            "25 error: connections that belong to another one are followed for FTP only"),
            case!("TLSv1.2 On\n    TLSv1.3 On" => "", "12 error: every version of TLS is off"),
            case!("TTLSKeyringParms\n" => "TTLSCipherParms\n{\nV3CipherSuites 002F\nV3CipherSuites4Char C0\n}\n  TTLSKeyringParms\n",
            "18 error: `V3CipherSuites4Char` cannot be `C0`",
            "18 error: no cipher suite of the rule is one that is spoken here"),
            case!("TTLSKeyringParms\n" => "TTLSCipherParms\n{\nV3CipherSuites TLS_AES_128_GCM_SHA265\n}\n  TTLSKeyringParms\n",
            "17 error: unknown cipher suite `TLS_AES_128_GCM_SHA265` (did you mean `TLS_AES_128_GCM_SHA256`?)",
            "17 error: no cipher suite of the rule is one that is spoken here"),
            case!("TTLSKeyringParms\n" => "TTLSSignatureParms\n{\nServerKexECurves 0021\n}\n  TTLSKeyringParms\n",
            "17 error: no group of the rule is one that is spoken here"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    CertificateLabel Other Server",
            "25 error: no certificate stands for the label `Other Server` of key ring `WEB/RING` \
             (add to m:|[keyring.\"WEB/RING\".label.\"Other Server\"]|cert = \"other-server.pem\"|key = \"other-server.key\")"),
            case!("LocalPortRange 8443" => "LocalPortRange 8443\n  LocalAddr 10.0.0.0/8",
            "1 error: rule `web` accepts at 10.0.0.0/8, and only single addresses can be listened at \
             (add to m:|[rule.web]|listen = [\"0.0.0.0:8443\", \"[::]:8443\"])"),
            case!("LocalPortRange 8443" => "LocalPortRange 1024-65535",
            "1 error: rule `web` has 64512 local ports, and at most 64 are listened at"),
            case!("LocalPortRange 8443" => "RemoteAddr 10.1.1.1",
            "1 error: rule `web` is about what is accepted, and says no local port"),
            case!("LocalPortRange 8443" => "LocalPortRange 8443\n  Jobname CICS*\n  Userid WEBSRV",
            "4 error: no program stands for the job name `CICS*` (add to m:|[job]|\"CICS*\" = { program = ",
            "5 error: no user stands for the user ID `WEBSRV` (add to m:|[user]|\"WEBSRV\" = \"websrv\")"),
        ],
    );
}

#[test]
fn what_is_not_as_it_was_is_told() {
    check(
        Severity::Changed,
        &[
            case!("    TLSv1 Off\n" => "",
            "12 changed: TLSv1 is on by default: TLS 1.2 is the oldest that is spoken (say Off"),
            case!("TLSv1.1 Off" => "TLSv1.1 On", "22 changed: TLSv1.1 is on: TLS 1.2 is the oldest"),
            case!("TLSv1.3 On" => "TLSv1.3 Off", "24 changed: TLS 1.3 is on too"),
            case!("TLSv1.2 On" => "TLSv1.2 On\n    TLSv1.2 On",
            "24 changed: `TLSv1.2` is said twice, both times `On`"),
            case!("TLSv1.2 On" => "TLSv1.2 Off\n    TLSv1.2 On",
            "24 changed: `TLSv1.2` is said twice: `On` counts, `Off` does not"),
            case!("HandshakeRole Server" => "HandshakeRole ServerWithClientAuth\n  ClientAuthType Full",
            "15 changed: `ClientAuthType` does not belong in TTLSEnvironmentAction, and is taken as \
             if it stood in its TTLSEnvironmentAdvancedParms"),
            case!("HandshakeRole Server" => "HandshakeRole Client",
            "12 changed: the server's certificate must cover the name"),
            case!("TTLSKeyringParms\n" => "TTLSCipherParms\n{\nV3CipherSuites 2F0A\nV3CipherSuites4Char C02FC027FFFF\n}\n  TTLSKeyringParms\n",
            "17 changed: cipher suite 002F (TLS_RSA_WITH_AES_128_CBC_SHA) is dropped: CBC",
            "17 changed: cipher suite 000A (TLS_RSA_WITH_3DES_EDE_CBC_SHA) is dropped: 64-bit",
            "18 changed: cipher suite C027 (TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256) is dropped: CBC",
            "18 changed: cipher suite FFFF is dropped: it is none that is spoken here"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    ResetCipherTimer 60",
            "25 changed: no new keys are made by time: that needs TLS 1.3, and 1.2 is on"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    HandshakeTimeout 0",
            "25 changed: a handshake may take 600 s"),
            case!("TLSv1.3 On" => "TLSv1.3 On\n    ServerHandshakeSNI Required",
            "25 changed: `ServerHandshakeSNI` is dropped: a client that names no server"),
            case!("TLSv1.3 On\n  }" => "TLSv1.3 On\n  }\n  TTLSGskAdvancedParms\n  {\n  TTLSGskOcspParms\n  {\n  OcspAiaEnable On\n  }\n  }",
            "30 changed: revocation is not asked for online, and the map names no `crl`"),
        ],
    );
}

#[test]
fn what_becomes_nothing_is_told() {
    let unused = "TTLSKeyringParms spare\n{\nKeyring X\n}\nTTLSEnvironmentAction server\n";
    let cases = [
        (
            "TTLSEnvironmentAction server\n",
            unused,
            "12 info: no rule uses TTLSKeyringParms `spare`",
        ),
        ("TTLSEnabled On", "TTLSEnabled On\n  Trace 7", "11 info: Trace 7: begin and end"),
        ("TLSv1.3 On", "TLSv1.3 On\n    Renegotiation Disabled", "25 info: `Renegotiation` is not"),
        (
            "TLSv1.3 On",
            "TLSv1.3 On\n    3DesKeyCheck On",
            "25 info: `3DesKeyCheck` is not taken over",
        ),
        (
            "TTLSGroupAction on\n",
            "TTLSGroupAction on\n{\nTTLSEnabled On\n}\nTTLSGroupAction on\n",
            "12 info: TTLSGroupAction `on` says the same again as at p:8",
        ),
        (
            "LocalPortRange 8443",
            "LocalPortRange 8443\n  RemoteAddr 10.1.2.3/8",
            "4 info: `10.1.2.3/8` is the network 10.0.0.0/8",
        ),
    ];
    for (replace, by, wanted) in cases {
        let (text, found) = imported(&POLICY.replacen(replace, by, 1), MAP, Options::default());
        assert!(text.is_some(), "{found:?}");
        assert!(found.iter().any(|found| found.starts_with(wanted)), "{wanted}: {found:#?}");
    }
}

/// Every attribute of an action either has an effect or is told of.
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
    ];
    let actions =
        Kind::ALL.into_iter().filter(|kind| kind.word().starts_with("TTLS") && *kind != Kind::Rule);
    for attribute in actions.flat_map(Kind::attributes) {
        let is_part = matches!(attribute.form, words::Form::Block(_) | words::Form::Ref(_));
        let told = ignored::is_told(attribute.word);
        assert!(
            is_part || told != effect.contains(&attribute.word),
            "`{}` is told: {told}",
            attribute.word
        );
    }
}

#[test]
fn everything_the_map_lacks_is_told_at_once_with_the_lines_to_add() {
    let policy = POLICY.replacen("HandshakeRole Server", "HandshakeRole ServerWithClientAuth", 1);
    let policy = policy.replacen("TLSv1.3 On", "TLSv1.3 On\n    ClientAuthType SAFCheck", 1);
    let file = Input { file: "p", bytes: policy.as_bytes() };
    let mut findings = Findings::default();
    let text = import(&[file], None, Options::default(), &mut findings).policy;
    assert_eq!(text, None);
    let errors = findings.finish().into_iter().filter(|one| one.severity == Severity::Error);
    let fixes: Vec<String> = errors.filter_map(|error| error.fix).collect();
    // What is printed is a map file, and with it the import succeeds.
    let lines = fixes.iter().flat_map(|fix| fix.lines().skip(1));
    let map: String = lines.map(|line| format!("{line}\n")).collect();
    let (text, found) = imported(&policy, &map, Options::default());
    assert!(text.is_some(), "{map}\n{found:#?}");
}

#[test]
fn a_map_file_is_read_as_strictly_as_a_policy() {
    for (map, wanted) in [
        ("[keyring.\"WEB/RING\"]\ncert = \"a\"\n", "m1 error: [keyring.\"WEB/RING\"] has no `key`"),
        (
            "[keyrings]\n",
            "m1 error: unknown key `keyrings` in the top of the map file (did you mean `keyring`?)",
        ),
        (
            "[rule.wbe]\nstart = \"immediate\"\n",
            "m1 error: no rule is named `wbe` (did you mean `web`?)",
        ),
        ("[rule.web]\nstart = \"later\"\n", "m2 error: `start` cannot be `later`"),
        (
            "[rule.web]\nlistn = 1\n",
            "m2 error: unknown key `listn` in [rule.\"web\"] (did you mean `listen`?)",
        ),
        ("[job]\nA = { any = true, user = \"x\" }\n", "m2 error: a job has `any` beside others"),
        ("[job]\nA = {}\n", "m2 error: a job says nothing"),
        ("[keyring.A]\nca = \"system\"\ncrl = \"a\"\n", "m1 error: `crl` does not go with"),
        ("[user]\nA = 1\n", "m2 error: `user` cannot be a whole number"),
        ("[rule.web]\nlisten = 1.5\n", "m2 error: `listen` cannot be a fraction"),
        ("nonsense\n", "m1 error: not TOML"),
    ] {
        let (text, found) = imported(POLICY, map, Options::default());
        assert_eq!(text, None, "{map}");
        assert!(found.iter().any(|found| found.starts_with(wanted)), "{wanted}\n{found:#?}");
    }
}

proptest! {
    #[test]
    fn whatever_the_policy_findings_have_a_line_of_it(
        changes in prop::collection::vec((0..POLICY.len(), 0..20_usize, "[A-Za-z0-9{}#\n .*/-]{0,9}"), 0..6)
    ) {
        let mut policy = POLICY.to_owned();
        for (at, length, by) in changes {
            let at = at.min(policy.len());
            policy.replace_range(at..(at + length).min(policy.len()), &by);
        }
        let mut findings = Findings::default();
        let file = Input { file: "p", bytes: policy.as_bytes() };
        let map = Input { file: "m", bytes: MAP.as_bytes() };
        let imported = import(&[file], Some(map), Options::default(), &mut findings);
        prop_assert_eq!(imported.policy.is_none(), findings.has_errors());
        let lines = policy.lines().count().max(1);
        for finding in findings.finish() {
            prop_assert!((1..=lines).contains(&finding.line), "{}", finding.render());
        }
    }
}
