//! Tests the import of stunnel services. The tests check the rules and the reported findings.

use proptest::prelude::*;

use super::*;
use crate::files::texts;
use crate::{Finding, InMemory};
use tacit_core::policy::{Policy, parse};

const SERVER: &str = "[s]\naccept = 127.0.0.1:993\nconnect = 127.0.0.1:143\ncert = /c.pem\n";
const CLIENT: &str = "[c]\nclient = yes\naccept = 127.0.0.1:143\nconnect = mail.example:993\n\
                      CAfile = /ca.pem\nverifyChain = yes\ncheckHost = mail.example\n";

/// The policy, and findings as `line: severity: message`.
fn import_with(text: &str, options: &StunnelOptions) -> (Option<String>, Vec<String>) {
    let mut findings = Findings::default();
    let files = [("f", text), ("/cas/0a1b2c3d.0", ""), ("/cas/README", ""), ("/none/x", "")];
    let policy = import(&["f".to_owned()], &InMemory(&texts(&files)), options, &mut findings);
    let shown = |f: Finding| format!("{}: {}: {}", f.line, f.severity.word(), f.message);
    (policy, findings.finish().into_iter().map(shown).collect())
}

fn imported(text: &str) -> (Option<String>, Vec<String>) {
    import_with(text, &StunnelOptions::default())
}

/// The rules that come of a text that has no errors.
fn rules(text: &str) -> Policy {
    let (policy, found) = imported(text);
    let policy = policy.unwrap_or_else(|| panic!("{text}\n{found:?}"));
    parse(&policy).policy.unwrap()
}

const TWO_SERVICES: &str = "\
; mail
setuid = nobody
debug = 5
cert = /etc/stunnel/mail.pem
sslVersionMin = TLSv1.2

[imaps]
accept = 993
connect = 143
TIMEOUTclose = 0

[smtp out]
client = yes
accept = /run/smtp.sock
setuid = mail
setgid = mail
connect = mx.example:465
CAfile = /etc/stunnel/ca.pem
verifyChain = yes
checkHost = mx.example
ciphers = ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA
curves = P-256
sessionResume = no
TIMEOUTconnect = 3
";

#[test]
fn services_become_rules() {
    let (policy, found) = imported(TWO_SERVICES);
    assert_eq!(
        policy.as_deref(),
        Some(
            r#"version = 1

# from f:4
[identity.mail]
cert = "/etc/stunnel/mail.pem"
key = "/etc/stunnel/mail.pem"

# from f:18
[trust.ca]
ca = "/etc/stunnel/ca.pem"

# from f:7
[[rule]]
name = "imaps"
listen = "0.0.0.0:993"
connect = "localhost:143"
tls = { role = "server", identity = "mail", client-cert = "none" }

# from f:12
[[rule]]
name = "smtp-out"
listen = "unix:/run/smtp.sock"
connect = "mx.example:465"
unix-owner = "mail:mail"
connect-timeout = "3s"
[rule.tls]
role = "client"
identity = "mail"
trust = "ca"
suites = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
]
groups = ["X25519MLKEM768", "secp256r1"]
resumption = false
"#
        ),
        "{found:?}"
    );
    assert_eq!(
        found,
        [
            "2: changed: `setuid`: the agent does not switch to another user",
            "3: info: `debug`: the agent logs to standard error, or to the destination of `--log`; \
             `--audit FILE` records every connection",
            "4: info: service `smtp out` sends this certificate to servers that request a \
             certificate, because `cert` is a global option",
            "10: info: `TIMEOUTclose`: the agent sends close_notify and does not wait for the \
             answer of the peer",
            "21: changed: tacit does not support these suites in `ciphers`, and drops them: \
             AES128-SHA",
            "22: info: the import adds X25519MLKEM768 as the first group, for peers that support \
             post-quantum key exchange",
        ]
    );
}

/// `connect` and `order` of the only rule, and what is reported.
fn targets(text: &str) -> (String, Vec<String>) {
    let (policy, found) = imported(text);
    let policy = policy.unwrap_or_else(|| panic!("{text}\n{found:?}"));
    let rule = &parse(&policy).policy.unwrap().rules[0];
    let forward = rule.forward().unwrap();
    let connect = forward.connect.as_ref().unwrap();
    let all: Vec<_> = connect.targets.iter().map(ToString::to_string).collect();
    let timeout = forward.connect_timeout.as_secs();
    (format!("{} {} {timeout}s", all.join(","), connect.order.word()), found)
}

#[test]
fn several_targets_are_those_of_the_rule_in_the_order_of_stunnel() {
    for (more, wanted) in [
        ("", "localhost:143 first 10s"),
        ("failover = rr", "localhost:143 first 10s"),
        ("connect = [::1]:144", "localhost:143,[::1]:144 first 20s"),
        ("connect = /run/x\nfailover = prio", "localhost:143,unix:/run/x first 20s"),
        ("connect = 144\nfailover = RR", "localhost:143,localhost:144 round-robin 20s"),
        ("connect = 144\nfailover = rr\ndelay = yes", "localhost:143,localhost:144 first 20s"),
        ("connect = 144\nTIMEOUTconnect = 3", "localhost:143,localhost:144 first 6s"),
        ("connect = 144\nTIMEOUTconnect = 400", "localhost:143,localhost:144 first 600s"),
        ("connect = 143", "localhost:143 first 10s"),
    ] {
        let text = format!("{}{more}\n", SERVER.replace("127.0.0.1:143", "143"));
        assert_eq!(targets(&text).0, wanted, "{more}");
    }
    let server = |more: &str| targets(&format!("{SERVER}{more}\n")).1;
    let skipped = "5: changed: if a target does not answer, service `s` skips the target for 10 s; \
                   stunnel tried the target again for each connection";
    let resumed = "5: changed: when a client resumes its TLS session, service `s` may connect the \
                   client to another target";
    let off_host =
        "1: changed: as in stunnel, the rule of service `s` connects in clear to 192.0.2.1:1";
    assert_eq!(server("connect = 127.0.0.1:144"), [skipped]);
    assert_eq!(server("connect = 127.0.0.1:144\nfailover = rr"), [skipped, resumed]);
    assert_eq!(server("connect = 192.0.2.1:1"), [off_host, skipped]);
    assert_eq!(
        server("connect = 127.0.0.1:143"),
        ["5: changed: `connect = 127.0.0.1:143` is set twice"]
    );
    let by_name = CLIENT.replace("CAfile", "failover = rr\nCAfile");
    assert!(targets(&by_name).1[0].contains("`failover = rr` does not apply to the addresses of"));
    let many: String =
        (0..16).map(|port| format!("connect = 127.0.0.1:{}\n", 200 + port)).collect();
    let (policy, found) = imported(&format!("{SERVER}{many}"));
    assert_eq!(
        (policy, found[0].as_str()),
        (None, "5: error: service `s` connects to 17 addresses, but the limit is 16")
    );
}

#[test]
fn several_servers_prove_their_own_names_unless_one_is_set() {
    let server_name = |text: &str| match &rules(text).rules[0].action {
        tacit_core::policy::Action::Tls(tacit_core::policy::Tls::Client(tls)) => {
            match &tls.verify {
                tacit_core::policy::Verify::Full { server_name, .. }
                | tacit_core::policy::Verify::Chain { server_name, .. }
                | tacit_core::policy::Verify::None { server_name } => server_name.clone(),
            }
        }
        other => panic!("{other:?}"),
    };
    let check = "checkHost = mail.example\n";
    let more = |connect: &str| format!("{CLIENT}connect = {connect}\n");
    assert_eq!(server_name(&more("b.example:993")).as_deref(), Some("mail.example"));
    assert_eq!(server_name(&more("/run/x")).as_deref(), Some("mail.example"));
    assert_eq!(server_name(&more("mail.example:994")).as_deref(), Some("mail.example"));
    let unsaid = more("b.example:993").replace(check, "");
    assert_eq!(server_name(&unsaid), None);
    let own = "1: changed: service `c` has several targets: tacit checks that the certificate of \
               each target contains the host name of this target";
    assert!(imported(&unsaid).1.iter().any(|line| line == own), "{:?}", imported(&unsaid).1);
    let by_sni = unsaid.replace("verifyChain", "sni = mail.example\nverifyChain");
    assert_eq!(server_name(&by_sni).as_deref(), Some("mail.example"));
    let (policy, found) = imported(&more("/run/x").replace(check, ""));
    assert!(policy.is_none() && found.iter().any(|line| line.contains("cannot determine")));
}

/// The message for a service that starts a program.
const EXEC_IS_REJECTED: &str =
    "`exec = /bin/cat`: the import does not convert services that start a program";

#[test]
fn what_a_rule_cannot_say_stops_the_import() {
    let no_version =
        "the service allows neither TLS 1.2 nor 1.3, and tacit supports no other version";
    for (text, line, message) in [
        ("exec = /bin/cat", 5, EXEC_IS_REJECTED),
        ("connect = nowhere", 5, "`connect = nowhere` has no port from 1 to 65535"),
        ("failover = random", 5, "`failover = random` is neither rr nor prio"),
        ("transparent = source", 5, "`transparent = source` is not possible in a forwarding rule"),
        ("protocol = imap", 5, "`protocol = imap` is not supported"),
        (
            "protocolHost = x",
            5,
            "`protocolHost`: tacit has no equivalent for this option, which controls the exchange \
             before TLS",
        ),
        ("PSKsecrets = /psk", 5, "`PSKsecrets`: tacit does not support TLS with pre-shared keys"),
        ("OCSPaia = yes", 5, "`OCSPaia`: tacit does not use OCSP"),
        (
            "redirect = 80",
            5,
            "`redirect`: tacit rejects clients without a valid certificate, and cannot redirect \
             them to another target",
        ),
        ("verifyPeer = yes", 5, "service `s` has no file with the certificates of its peers"),
        (
            "verifyPeer = yes\nCAfile = /p\nCRLfile = /l",
            7,
            "`CRLfile` cannot be used with `verifyPeer` alone: tacit checks revocation only if it \
             verifies the certificate chain to a CA",
        ),
        ("verify = 2", 1, "service `s` has no CA for client certificates"),
        ("checkHost = a", 5, "`checkHost` has no effect without verifyChain or verifyPeer"),
        ("sslVersion = TLSv1.1", 5, no_version),
        ("ciphers = RC4-SHA:AES128-SHA", 5, "tacit supports none of the suites in `ciphers`"),
        ("curves = X448", 5, "tacit supports none of the groups in `curves`"),
        ("curve = X448", 5, "tacit supports none of the groups in `curve`"),
        ("securityLevel = 3", 5, "`securityLevel = 3`: tacit has no security level above 2"),
        ("ciphers = HIGH@SECLEVEL=3", 5, "`@SECLEVEL=3`: tacit has no security level above 2"),
        ("ciphers = HIGH:@SECLEVEL=x", 5, "`@SECLEVEL=x` is not a security level"),
        ("options = NO_TLSv9", 5, "`options`: OpenSSL has no option `NO_TLSv9`"),
        ("options = -0x4", 5, "`options`: OpenSSL has no option `0x4`"),
        ("options = no_ssl_mask", 5, no_version),
        ("cert = pkcs11:token=a", 5, "`cert = pkcs11:token=a` is not a PEM file"),
        ("cert = /c.p12", 5, "`cert = /c.p12` is not a PEM file"),
        (
            "socket = a:SO_BINDTODEVICE=lo",
            5,
            "`a:SO_BINDTODEVICE=lo`: tacit binds sockets to addresses, not to network devices",
        ),
        ("libwrap = yes", 5, "`libwrap`: tacit does not read /etc/hosts.allow or /etc/hosts.deny"),
        ("chekHost = a", 5, "stunnel has no option `chekHost`"),
        ("chroot = /jail", 5, "`chroot` is a global option, but is set in a service"),
        (
            "accept = mail.example:993",
            5,
            "`accept = mail.example:993` has a host name, but tacit listens on addresses only",
        ),
        (
            "CApath = /none",
            5,
            "stunnel finds certificates by their hashes, but the directory /none has no file with \
             a name such as 5ed36f99.0",
        ),
        ("client = maybe", 5, "`client = maybe` is neither yes nor no"),
    ] {
        let (policy, found) = imported(&format!("{SERVER}{text}\n"));
        assert_eq!(policy, None, "{text}");
        let errors: Vec<_> = found.iter().filter(|found| found.contains(": error: ")).collect();
        assert_eq!(errors.first().map(|e| e.as_str()), Some(&*format!("{line}: error: {message}")));
    }
}

#[test]
fn an_incomplete_configuration_is_not_imported() {
    for text in ["", "[s]\naccept = 1\n", "cert = /c.pem\nconnect = 1\n"] {
        assert_eq!(imported(text).0, None, "{text}");
    }
}

#[test]
fn what_comes_of_a_program_for_each_connection_is_a_command_line() {
    let fix_of = |text: &str| {
        let mut findings = Findings::default();
        let files = [("f", text)];
        _ = import(
            &["f".to_owned()],
            &InMemory(&texts(&files)),
            &StunnelOptions::default(),
            &mut findings,
        );
        findings.finish().into_iter().find(|f| f.message.contains("exec")).unwrap().fix.unwrap()
    };
    let inetd = "[s]\naccept = 993\ncert = /c.pem\nexec = /usr/sbin/imapd\nexecArgs = imapd -v\n";
    let command = "systemd-socket-activate --listen=127.0.0.1:PORT --accept --inetd \
                   /usr/sbin/imapd -v";
    assert!(fix_of(inetd).ends_with(command), "{}", fix_of(inetd));
    let both = "[c]\nclient = yes\nconnect = vpn:9\nexec = /usr/sbin/pppd\nexecArgs = pppd local\n";
    let command = "tacit run --policy policy.toml -- /usr/sbin/pppd local";
    assert!(fix_of(both).ends_with(command), "{}", fix_of(both));
}

#[test]
fn clients_that_trust_every_server_check_it_unless_an_option_forbids() {
    let blind = "[c]\nclient = yes\naccept = 127.0.0.1:143\nconnect = mail.example:993\n";
    let (policy, found) = imported(blind);
    assert!(policy.unwrap().contains(r#"tls = { role = "client", trust = "system" }"#));
    assert_eq!(
        found,
        ["1: changed: service `c` now requires a server certificate for mail.example \
             from a trusted CA (trust = \"system\"); stunnel did not verify the server"]
    );
    let keep = StunnelOptions { keep_no_verification: true, ..StunnelOptions::default() };
    let (policy, found) = import_with(blind, &keep);
    assert!(policy.unwrap().contains(r#"verify = "none""#));
    let unverified = "1: changed: as in stunnel, service `c` does not verify its server";
    assert_eq!(found, [unverified]);

    let nameless = CLIENT.replace("checkHost = mail.example\n", "");
    let (policy, found) = imported(&nameless);
    assert!(policy.unwrap().contains(r#"tls = { role = "client", trust = "ca" }"#));
    assert_eq!(
        found,
        ["1: changed: service `c` now requires a server certificate for mail.example; \
             stunnel accepted any certificate from its CAs"]
    );
    // A service that sets every check gets no warning.
    assert_eq!(imported(CLIENT).1, [""; 0]);
}

#[test]
fn certificates_of_peers_are_pinned() {
    let client = "[c]\nclient = yes\naccept = 127.0.0.1:143\nconnect = mail.example:993\n";
    let pinned = "[trust.p]\npinned = \"/p.pem\"\n";
    let both = "[trust.p]\nca = \"/p.pem\"\npinned = \"/p.pem\"\n";
    for (options, table, client_keys, server_keys) in [
        ("verify = 4", pinned, "verify = \"chain\"", "client-cert = \"required\""),
        ("verifyPeer = yes", pinned, "verify = \"chain\"", "client-cert = \"required\""),
        ("verify = 3", both, "verify = \"chain\"", "client-cert = \"required\""),
        ("verify = 4\nverifyChain = yes", both, "verify = \"chain\"", "client-cert = \"required\""),
        ("verify = 4\nrequireCert = no", pinned, "verify = \"chain\"", "client-cert = \"at-full\""),
        ("verify = 3\ncheckHost = mail.example", both, "", "client-cert = \"full\""),
    ] {
        for (text, keys) in [(client, client_keys), (SERVER, server_keys)] {
            let text = format!("{text}CAfile = /p.pem\n{options}\n");
            let (policy, found) = imported(&text);
            let policy = policy.unwrap_or_else(|| panic!("{text}: {found:?}"));
            assert!(policy.contains(table), "{text}: {policy}");
            let tls = policy.lines().find(|line| line.starts_with("tls")).unwrap();
            assert!(tls.contains(keys) && tls.contains("trust = \"p\""), "{text}: {policy}");
            assert_eq!(tls.contains("verify"), text.starts_with("[c]") && !keys.is_empty());
            let message =
                "accepts only certificates that are byte-for-byte equal to a certificate in its";
            assert_eq!(
                found.iter().filter(|found| found.contains(message)).count(),
                1,
                "{found:?}"
            );
            // No option that keeps what was unsafe makes it weaker.
            let unsafe_too = StunnelOptions {
                keep_no_verification: true,
                keep_no_name_check: true,
                ..StunnelOptions::default()
            };
            assert_eq!(import_with(&text, &unsafe_too).0.as_ref(), Some(&policy));
        }
    }
    // One file may be CAs to one service and peers to another.
    let text = format!(
        "{CLIENT}{}CAfile = /ca.pem\nverify = 4\n",
        client.replace("[c]", "[d]").replace(":143", ":144")
    );
    let trusts = rules(&text).trusts;
    assert_eq!(trusts.values().filter(|trust| trust.pinned.is_empty()).count(), 1);
    assert_eq!(trusts.len(), 2);
    // Taken back, nothing is pinned, and the CAs of the distribution are files like others.
    let (policy, _) = imported(&format!("{client}CAfile = /p.pem\nverify = 4\nverifyPeer = no\n"));
    assert!(!policy.unwrap().contains("pinned"));
    let system = format!("{client}CAfile = /etc/ssl/cert.pem\nverify = 3\n");
    assert!(imported(&system).0.unwrap().contains("pinned = \"/etc/ssl/cert.pem\""));
    let unix =
        format!("{}CAfile = /p.pem\nverify = 4\n", client.replace("mail.example:993", "/x.sock"));
    assert!(imported(&unix).0.unwrap().contains("verify = \"chain\""));
}

#[test]
fn the_name_that_is_checked_is_the_one_that_was() {
    let tls = |text: &str| {
        let (policy, found) = imported(text);
        let policy = policy.unwrap_or_else(|| panic!("{text}: {found:?}"));
        policy.lines().find(|line| line.starts_with("tls")).unwrap().to_owned()
    };
    let to_host = CLIENT.replace("connect = mail.example:993", "connect = 192.0.2.1:993");
    assert!(tls(&to_host).contains(r#"server-name = "mail.example""#));
    let by_ip = to_host.replace("checkHost = mail.example", "checkIP = 192.0.2.1");
    assert!(!tls(&by_ip).contains("server-name"), "it is where the rule connects to");
    let several = CLIENT.replace("checkHost = ", "checkHost = other.example\ncheckHost = ");
    assert!(!tls(&several).contains("server-name"));
    assert!(imported(&several).1[0].contains("certificate must now be for `"));
    assert!(tls(&format!("{CLIENT}sni =\n")).contains("sni = false"));
    let (policy, found) = imported(&format!("{CLIENT}sni = other.example\n"));
    assert_eq!((policy, found.len()), (None, 1));
    let unix = "[c]\nclient = yes\naccept = 127.0.0.1:1\nconnect = /x.sock\n";
    assert!(imported(unix).1.iter().any(|f| f.contains(
        "the import cannot determine which name the server certificate of service `c` must contain"
    )));
}

#[test]
fn clients_are_asked_for_certificates_as_before() {
    use tacit_core::policy::{Action, Tls};
    let level = |more: &str| {
        let policy = rules(&format!("{SERVER}{more}"));
        match &policy.rules[0].action {
            Action::Tls(Tls::Server(tls)) => tls.client_cert.to_string(),
            other => panic!("{other:?}"),
        }
    };
    for (text, wanted) in [
        ("", "none"),
        ("CAfile = /ca.pem\n", "none"),
        ("CAfile = /ca.pem\nverifyChain = yes\n", "required"),
        ("CAfile = /ca.pem\nverify = 2\n", "required"),
        ("CAfile = /ca.pem\nrequireCert = no\nverifyChain = yes\n", "required"),
        ("CAfile = /ca.pem\nrequireCert = yes\n", "required"),
        ("CAfile = /ca.pem\nverifyChain = yes\nverifyChain = no\nrequireCert = no\n", "none"),
        ("verify = 0\n", "none"),
    ] {
        assert_eq!(level(text), wanted, "{text}");
    }
    let cas = imported(&format!("{SERVER}CApath = /cas\nverifyChain = yes\n"));
    assert!(cas.0.unwrap().contains("ca = \"/cas/0a1b2c3d.0\""));
    let system = format!("{SERVER}CApath = /etc/ssl/certs/\nverifyChain = yes\n");
    assert!(imported(&system).0.unwrap().contains("trust = \"system\""));
}

#[test]
fn clients_must_have_one_of_the_names_that_were_checked() {
    let more =
        "CAfile = /ca.pem\nverifyChain = yes\ncheckHost = a.example\ncheckEmail = ann@b.example\n";
    let (policy, found) = imported(&format!("{SERVER}{more}"));
    let policy = policy.unwrap_or_else(|| panic!("{found:?}"));
    for wanted in [
        "client-cert = \"full\"",
        "map = \"s\"",
        "[[map.s]]\ndns = \"a.example\"\nname = \"a.example\"\n",
        "[[map.s]]\nemail = \"ann@b.example\"\n",
    ] {
        assert!(policy.contains(wanted), "{wanted}\n{policy}");
    }
    let optional = format!("{SERVER}{}", more.replace("verifyChain = yes", "verify = 1"));
    let (policy, found) = imported(&optional);
    assert!(policy.unwrap_or_else(|| panic!("{found:?}")).contains("absent = \"allow\""));
    let (policy, found) = imported(&format!("{SERVER}CAfile = /ca.pem\nverify = 1\n"));
    let policy = policy.unwrap_or_else(|| panic!("{found:?}"));
    assert!(policy.contains("client-cert = \"at-full\""));
    let crl = format!("{SERVER}CAfile = /ca.pem\nCRLfile = /crl.pem\nverify = 2\n");
    let (policy, found) = imported(&crl);
    assert!(policy.unwrap_or_else(|| panic!("{found:?}")).contains("crl = \"/crl.pem\""));
}

#[test]
fn an_exchange_before_tls_needs_a_rule_with_starttls() {
    for (text, wanted) in [
        (format!("{SERVER}protocol = smtp\n"), "starttls = \"smtp\""),
        (format!("{CLIENT}protocol = pgsql\n"), "starttls = \"postgres\""),
        (format!("{SERVER}protocol = proxy\n"), "send-proxy = true"),
    ] {
        let (policy, found) = imported(&text);
        let policy = policy.unwrap_or_else(|| panic!("{found:?}"));
        assert!(policy.contains(wanted), "{policy}");
    }
}

#[test]
fn clear_bytes_on_the_network_are_reported() {
    for (text, message) in [
        (
            SERVER.replace("127.0.0.1:143", "app.example:143"),
            "connects in clear to app.example:143",
        ),
        (CLIENT.replace("127.0.0.1:143", "143"), "accepts connections in clear from other hosts"),
    ] {
        let (policy, found) = imported(&text);
        assert!(policy.unwrap().contains("clear = true"), "{text}");
        assert!(found.len() == 1 && found[0].contains(message), "{found:?}");
    }
}

#[test]
fn services_for_names_are_certificates_to_choose_from() {
    let second = "[t]\nsni = s:b.example\ncert = /b.pem\nconnect = 127.0.0.1:143\n";
    let (policy, found) = imported(&format!("{SERVER}{second}"));
    assert!(policy.unwrap().contains(r#"identity = ["c", "b"]"#));
    assert!(found.len() == 1 && found[0].starts_with("6: changed: "), "{found:?}");
    for (from, to) in [("127.0.0.1:143", "127.0.0.1:144"), ("s:", "u:"), ("cert = /b.pem", "")] {
        let (policy, found) = imported(&format!("{SERVER}{}", second.replace(from, to)));
        assert_eq!(policy, None, "{found:?}");
    }
}

#[test]
fn a_service_for_names_that_asks_for_something_else_is_not_folded_into_another() {
    let second = "[t]\nsni = s:b.example\ncert = /b.pem\nconnect = 127.0.0.1:143\n";
    for more in [
        "verifyPeer = yes\n",
        "CRLfile = /crl.pem\n",
        "checkHost = a.example\n",
        "sslVersionMin = TLSv1.3\n",
        "ciphers = ECDHE-RSA-AES128-GCM-SHA256\n",
    ] {
        let (policy, found) = imported(&format!("{SERVER}{second}{more}"));
        assert_eq!(policy, None, "{more}");
        assert!(
            found
                .iter()
                .any(|one| one.contains("need a separate rule, because the service differs")),
            "{found:?}"
        );
    }
    // What is a default of both is taken back by one.
    let both = format!("verifyChain = yes\nCAfile = /ca.pem\n{SERVER}verifyChain = no\n{second}");
    assert_eq!(imported(&both).0, None);
}

#[test]
fn of_several_files_of_cas_the_last_counts() {
    let ca = |text: &str| {
        let (policy, found) = imported(text);
        let policy = policy.unwrap_or_else(|| panic!("{found:?}"));
        parse(&policy).policy.unwrap().trusts
    };
    let trusts =
        ca(&format!("CAfile = /public.pem\nCRLfile = /public.crl\n{CLIENT}CRLfile = /c\n"));
    let (name, trust) = trusts.iter().find(|(name, _)| *name != "system").unwrap();
    assert_eq!(name, "ca");
    assert_eq!(trust.source, tacit_core::policy::TrustSource::Files(vec!["/ca.pem".into()]));
    assert_eq!(trust.crls, [std::path::PathBuf::from("/c")]);
    // The distribution's CAs lose no list of what was revoked.
    let system = CLIENT.replace("/ca.pem", "/etc/ssl/certs/ca-certificates.crt");
    let trusts = ca(&format!("{system}CRLfile = /c\n"));
    let listed = trusts.values().find(|trust| !trust.crls.is_empty()).unwrap();
    assert_eq!(listed.crls, [std::path::PathBuf::from("/c")]);
}

#[test]
fn names_of_rules_are_made_to_fit_and_differ() {
    let text = format!("{SERVER}{}", SERVER.replace("[s]", "[s]\n").replace(":993", ":994"));
    let names: Vec<String> = rules(&text).rules.iter().map(|rule| rule.name.clone()).collect();
    assert_eq!(names, ["s", "s-2"]);
    let odd = SERVER.replace("[s]", "[mail \u{e4}/1]");
    assert_eq!(rules(&odd).rules[0].name, "mail---1");
}

/// What the sample of stunnel 5.68 says, without its comments.
const SAMPLE: &str = "\u{feff}; Sample stunnel configuration file
[gmail-pop3]
client = yes
accept = 127.0.0.1:110
connect = pop.gmail.com:995
verifyChain = yes
CApath = /etc/ssl/certs
checkHost = pop.gmail.com
OCSPaia = yes

[gmail-imap]
client = yes
accept = 127.0.0.1:143
connect = imap.gmail.com:993
verifyChain = yes
CApath = /etc/ssl/certs
checkHost = imap.gmail.com
OCSPaia = yes
";

#[test]
fn services_that_ask_ocsp_are_imported_where_the_option_says_so() {
    let mut findings = Findings::default();
    let files = [("f", SAMPLE)];
    let files = texts(&files);
    let read = InMemory(&files);
    assert_eq!(import(&["f".to_owned()], &read, &StunnelOptions::default(), &mut findings), None);
    let found = findings.finish();
    let errors: Vec<&Finding> =
        found.iter().filter(|one| one.severity == crate::Severity::Error).collect();
    assert_eq!(errors.iter().map(|one| one.line).collect::<Vec<_>>(), [9, 18]);
    assert!(errors.iter().all(|one| one.fix.as_ref().unwrap().contains("--without-ocsp")));

    let without = StunnelOptions { without_ocsp: true, ..StunnelOptions::default() };
    let (policy, found) = import_with(SAMPLE, &without);
    let rules = parse(&policy.unwrap_or_else(|| panic!("{found:?}"))).policy.unwrap().rules;
    assert_eq!(rules.len(), 2);
    for line in [9, 18] {
        let told = format!("{line}: changed: `OCSPaia`: tacit does not use OCSP");
        assert!(found.contains(&told), "{found:?}");
    }
    for option in ["OCSP = http://a/", "OCSPflag = NOCHECKS", "OCSPnonce = yes"] {
        let (policy, found) = import_with(&format!("{CLIENT}{option}\n"), &without);
        assert!(policy.is_some() && found[0].starts_with("8: changed: "), "{found:?}");
    }
}

#[test]
fn levels_groups_and_options_of_the_tls_library_are_read_as_stunnel_does() {
    for (text, wanted) in [
        ("curve = P-256", "groups = [\"X25519MLKEM768\", \"secp256r1\"]"),
        ("curve = P-256\ncurves = P-384", "groups = [\"X25519MLKEM768\", \"secp384r1\"]"),
        ("ciphers = DEFAULT@SECLEVEL=2", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("options = no_tlsv1_2", "min-version = \"1.3\""),
        ("options = NO_TLSv1_2\noptions = SINGLE_DH_USE", "min-version = \"1.3\""),
    ] {
        let (policy, found) = imported(&format!("{SERVER}{text}\n"));
        let policy = policy.unwrap_or_else(|| panic!("{found:?}"));
        assert!(policy.contains(wanted), "{text}\n{policy}");
        assert!(!found.iter().any(|one| one.contains(" changed: ")), "{found:?}");
    }
    let (policy, found) = imported(&format!("{SERVER}ciphers = DEFAULT@SECLEVEL=0\n"));
    assert!(policy.is_some());
    let told = "5: changed: `@SECLEVEL=0`: tacit rejects keys with less than 112 bits of security";
    assert!(found.iter().any(|one| one == told), "{found:?}");
}

#[test]
fn every_option_has_one_fate() {
    for word in words::WORDS {
        let same = words::WORDS.iter().filter(|w| w.name.eq_ignore_ascii_case(word.name));
        assert_eq!(same.count(), 1, "{}", word.name);
    }
}

proptest! {
    /// Any mixture of options ends in a policy or in an error.
    #[test]
    fn no_configuration_is_neither_imported_nor_refused(
        lines in proptest::collection::vec(
            (0..words::WORDS.len(), "(yes|no|[0-9]{1,5}|/[a-z]{1,3}|\\PC{0,6}|127\\.0\\.0\\.1:9)"),
            0..20,
        ),
    ) {
        let mut text = "[s]\n".to_owned();
        for (word, value) in lines {
            text.push_str(&format!("{} = {value}\n", words::WORDS[word].name));
        }
        let (policy, found) = imported(&text);
        prop_assert_eq!(policy.is_none(), found.iter().any(|found| found.contains(": error: ")));
    }
}
