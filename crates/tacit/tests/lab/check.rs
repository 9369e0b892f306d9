//! Tests `tacit check` and `tacit explain`: each error has a position and a fix.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::certificates::{self, Ca, LeafKind};
use crate::harness::{Lab, TACIT, text_of};
use crate::import_stunnel::blocks;
use crate::peers::write_pair;

/// What `tacit check` came to.
struct Checked {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn check(lab: &Lab, text: &str, more: &[&str]) -> Checked {
    lab.write("p.toml", text);
    let output = lab.run(TACIT, &[&["check", "p.toml"], more].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let stdout = text(output.stdout);
    let stderr = text(output.stderr);
    Checked { code: output.status.code(), stdout, stderr }
}

const RULE: &str = "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:8443\"\n\
                    connect = \"127.0.0.1:8080\"\n";

const PEER: &str = "[ike.branch]\npeer = \"192.0.2.1\"\npsk-file = \"branch.psk\"\nlocal-id = \
                    \"client.example\"\ninner = \"gateway\"\n";

const TUNNEL: &str = "[[rule]]\nname = \"t\"\ndirection = \"outbound\"\nremote = \
                      \"10.2.0.0/16\"\nipsec = { ike = \"branch\" }\n";

#[test]
fn files_that_programs_see_for_a_moment_after_a_change_are_named() {
    let lab = Lab::new();
    let private = lab.path("private");
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["alice.pem", "alice.key"] {
        std::fs::rename(lab.path(name), private.join(name)).unwrap();
    }
    let policy = |directory: &str| {
        format!(
            "version = 1\n[trust.ca]\nca = \"ca.pem\"\n[identity.a]\n\
             cert = \"{directory}alice.pem\"\nkey = \"{directory}alice.key\"\n\
             [[rule]]\nname = \"r\"\ndirection = \"outbound\"\nremote = \"10.0.0.1\"\n\
             tls = {{ trust = \"ca\", identity = \"a\" }}\n"
        )
    };
    let Checked { stdout, .. } = check(&lab, &policy("private/"), &[]);
    let [own, ca, key] =
        ["p.toml", "ca.pem", "alice.key"].map(|name| lab.path(name).display().to_string());
    let names = |files: &str| format!("file for some milliseconds: {files}\n");
    assert!(stdout.contains(&names(&format!("{ca}, {own}"))), "{stdout}");
    for name in ["alice.pem", "alice.key"] {
        std::fs::rename(private.join(name), lab.path(name)).unwrap();
    }
    let Checked { stdout, .. } = check(&lab, &policy(""), &[]);
    assert!(stdout.contains(&names(&format!("{key}, {ca}, {own}"))), "{stdout}");
    let Checked { stdout, .. } = check(&lab, &policy(""), &["--json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["exposed-when-replaced"], serde_json::json!([key, ca, own]));
}

/// The literal blocks of a manual page.
fn literal_blocks(page: &str) -> Vec<String> {
    let blocks = page.split(".Bd -literal -offset indent\n").skip(1);
    let text = |block: &str| block.split(".Ed\n").next().unwrap().replace("\\-", "-");
    blocks.map(text).collect()
}

/// The first block that contains a text.
fn find<'b>(blocks: &'b [impl AsRef<str>], part: &str) -> &'b str {
    let mut texts = blocks.iter().map(AsRef::as_ref);
    texts.find(|block| block.contains(part)).unwrap_or_else(|| panic!("no block has {part}"))
}

/// The commands of a block that shows them after a prompt.
fn commands(block: &str) -> String {
    let lines = block.lines().filter_map(|line| line.strip_prefix(['$', '>']));
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs the commands of a manual.
fn follow(lab: &Lab, commands: &str) {
    let script = format!("set -e\ntacit() {{ '{TACIT}' \"$@\"; }}\n{commands}");
    let output = lab.run("sh", &["-c", &script]);
    assert!(output.status.success(), "{commands}: {}", text_of(&output));
}

/// Checks that programs can read no file of a policy for a moment after a change.
fn assert_hidden(lab: &Lab, policy: &str) {
    let output = lab.run(TACIT, &["check", "--json", policy]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], true, "{}", text_of(&output));
    assert_eq!(json["exposed-when-replaced"], serde_json::json!([]), "{policy}");
}

#[test]
fn the_layouts_of_the_manuals_expose_no_file() {
    let lab = Lab::new();
    let of_run = literal_blocks(include_str!("../../../../docs/tacit-run.1"));
    follow(&lab, find(&of_run, "tacit ca init"));
    follow(&lab, find(&of_run, "mkdir -m 700 server client"));
    for (file, part) in
        [("server/policy.toml", "[identity.web]"), ("client/policy.toml", "[identity.alice]")]
    {
        lab.write(file, find(&of_run, part));
        assert_hidden(&lab, file);
    }

    let lab = Lab::new();
    let of_tacit = literal_blocks(include_str!("../../../../docs/tacit.1"));
    let example = find(&of_tacit, "client/run.toml").split("tacit run").next().unwrap();
    follow(&lab, &format!("tacit ca init --dir pki\n{example}"));
    assert_hidden(&lab, "client/run.toml");
}

#[test]
fn the_layouts_of_the_page_on_tunnels_expose_no_file() {
    let page = include_str!("../../../../docs/ipsec.md");
    let consoles = blocks(page, "console");
    let policies = blocks(page, "toml");
    let file = "vpn/policy.toml";

    let lab = Lab::new();
    let shared_key = find(&policies, "psk-file");
    follow(&lab, &commands(find(&consoles, "> vpn/psk")));
    lab.write(file, shared_key);
    assert_hidden(&lab, file);

    let rule = shared_key.split("[[rule]]").nth(1).unwrap();
    let certificates = find(&policies, "[identity.branch]");
    follow(&lab, &commands(find(&consoles, "openssl req -x509")));
    follow(&lab, &commands(find(&consoles, "cp -p branch.pem")));
    lab.write(file, format!("version = 1\n{certificates}[[rule]]{rule}"));
    assert_hidden(&lab, file);

    let lab = Lab::new();
    follow(&lab, &commands(find(&consoles, "vpn/$n.keys")));
    lab.write(file, find(&policies, "encryption = \"aes256-cbc\""));
    assert_hidden(&lab, file);
}

#[test]
fn every_error_has_a_position_and_a_fix() {
    let lab = Lab::new();
    let permit = format!("version = 1\n{RULE}permit = true\n");
    let out = "tls = { role = \"client\", trust = \"system\", server-name = \"a.example\" }\n";
    for (text, place, words) in [
        (format!("{permit}conect = 1\n"), "p.toml:7:1", "connect"),
        (format!("{permit}deny = true\n"), "p.toml:7:1", "two actions"),
        (format!("version = 1\n{RULE}"), "p.toml:2:1", "no action"),
        (format!("{permit}{RULE}permit = true\n"), "p.toml:8:8", "two rules are named `r`"),
        (permit.replace("8443", "70000"), "p.toml:4:10", "70000"),
        (format!("{permit}remote = \"10.0.0.0/33\"\n"), "p.toml:7:10", "10.0.0.0/33"),
        (format!("{permit}remote = \"10.0.0.1/8\"\n"), "p.toml:7:10", "10.0.0.0/8"),
        (permit.replace("version = 1", "version = 2"), "p.toml:1:11", "version 2"),
        (permit.replace("permit = true", "permit = yes"), "p.toml:6:10", ""),
        (format!("version = 1\n{PEER}{TUNNEL}"), "p.toml:4:12", "No such file"),
        (
            permit.replace("permit = true", out).replace("127.0.0.1:8443", "0.0.0.0:8443"),
            "p.toml:4:10",
            "clear = true",
        ),
    ] {
        let Checked { code, stdout, stderr: said } = check(&lab, &text, &[]);
        assert_eq!((code, stdout.as_str()), (Some(78), ""), "{text}\n{said}");
        assert!(said.contains(&format!("{place}: error[")), "{text}\n{said}");
        assert!(said.contains(words) && said.contains("fix: "), "{text}\n{said}");
        let agent = lab.run(TACIT, &["agent", "--policy", "p.toml", "--control", "c.sock"]);
        assert_eq!(agent.status.code(), Some(78));
        let refused = String::from_utf8(agent.stderr).unwrap();
        assert!(refused.contains(place), "{refused}");
    }
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_file() {
    let lab = Lab::new();
    let text = format!("version = 1\nnonsense = 1\n{RULE}permit = true\nfoo = 2\nbar = 3\n");
    let Checked { code, stderr: said, .. } = check(&lab, &text, &[]);
    assert_eq!(code, Some(78));
    let places: Vec<_> = said.match_indices("p.toml:").map(|(at, _)| &said[at..at + 10]).collect();
    assert_eq!(places, ["p.toml:2:1", "p.toml:8:1", "p.toml:9:1"], "{said}");
    let Checked { code, stdout: json, .. } = check(&lab, &text, &["--json"]);
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &value["ok"]), (Some(78), &Value::Bool(false)));
    assert_eq!(value["findings"].as_array().unwrap().len(), 3);
    assert_eq!(value["findings"][0]["position"]["line"], 2, "{json}");
}

#[test]
fn errors_of_files_have_the_position_that_names_the_file() {
    let lab = Lab::new();
    certificates::write_all(&lab);
    let identity = |cert: &str, key: &str| {
        format!(
            "version = 1\n[identity.web]\ncert = \"{cert}\"\nkey = \"{key}\"\n{RULE}\
             tls = {{ role = \"server\", identity = \"web\", client-cert = \"none\" }}\n"
        )
    };
    for (cert, key, words) in [
        ("nothing.pem", "valid.key", "nothing.pem"),
        ("valid.pem", "nothing.key", "nothing.key"),
        ("valid.pem", "expired.key", "does not match"),
        ("expired.pem", "expired.key", "expired at 2021-02-03"),
        ("not-yet.pem", "not-yet.key", "2080-04-05"),
        ("rsa-1024.pem", "rsa-1024.key", "RSA 1024"),
        ("v1.pem", "v1.key", "v1"),
        ("corp.pem", "corp.pem", "key"),
    ] {
        let Checked { code, stderr: said, .. } = check(&lab, &identity(cert, key), &[]);
        assert_eq!(code, Some(78), "{cert} {key}: {said}");
        let place = if cert == "valid.pem" { "4:7" } else { "3:8" };
        let place = format!("p.toml:{place}: error[unusable-file]");
        assert!(said.contains(&place) && said.contains(words), "{cert} {key}: {said}");
        assert!(said.contains("\n    fix: "), "{cert} {key}: {said}");
    }
    let Checked { code, stdout: said, .. } = check(&lab, &identity("valid.pem", "valid.key"), &[]);
    assert_eq!((code, said.as_str()), (Some(0), "policy OK, 1 rule\n"));
}

#[test]
fn a_local_id_that_the_certificate_does_not_contain_is_warned_about() {
    let lab = Lab::new();
    let text = |local_id: &str| {
        format!(
            "version = 1\n[identity.gw]\ncert = \"localhost.pem\"\nkey = \"localhost.key\"\n\
             [trust.corp]\nca = \"ca.pem\"\n[ike.branch]\npeer = \"192.0.2.1\"\n\
             identity = \"gw\"\ntrust = \"corp\"\nlocal-id = \"{local_id}\"\n\
             inner = \"gateway\"\n{TUNNEL}"
        )
    };
    for local_id in ["LocalHost", "127.0.0.1", "CN=localhost"] {
        let Checked { code, stderr: said, .. } = check(&lab, &text(local_id), &[]);
        assert_eq!(code, Some(0), "{said}");
        assert!(!said.contains("wrong-local-id"), "{local_id}: {said}");
    }
    for (local_id, part) in [
        ("branch.example", "in its subjectAltName"),
        ("127.0.0.2", "in its subjectAltName"),
        ("localhost@corp.example", "in its subjectAltName"),
        ("O=Corp, CN=localhost", "as its subject"),
    ] {
        let Checked { code, stderr: said, .. } = check(&lab, &text(local_id), &[]);
        assert_eq!(code, Some(0), "{said}");
        for words in [
            "p.toml:11:12: warning[wrong-local-id]: `local-id` of [ike.branch]",
            "the certificate of [identity.gw] does not contain this name",
            "The certificate has localhost, 127.0.0.1, the subject `CN=localhost`",
            &format!("or use a certificate with `{local_id}` {part}"),
        ] {
            assert!(said.contains(words), "{local_id}: {words}: {said}");
        }
    }
}

#[test]
fn rules_of_links_are_counted() {
    let text = "version = 1\n[link.guest]\n[[rule]]\nname = \"out\"\nlink = \"guest\"\n\
                direction = \"outbound\"\nremote = \"192.0.2.1\"\npermit = true\n";
    let Checked { code, stdout: said, .. } = check(&Lab::new(), text, &[]);
    assert_eq!((code, said.as_str()), (Some(0), "policy OK, 1 rule\n"));
}

#[test]
fn certificates_for_another_use_are_rejected() {
    let lab = Lab::new();
    let ca = Ca::new("CA");
    for (name, kind) in [("server", LeafKind::ServerOnly), ("both", LeafKind::Valid)] {
        let leaf = ca.leaf(kind);
        write_pair(&lab, name, &leaf.cert_pem, &leaf.key_pem);
    }
    lab.write("corp.pem", ca.pem());
    let text = |identity: &str, trust: &str, tls: &str| {
        format!(
            "version = 1\n[identity.web]\ncert = \"{identity}.pem\"\nkey = \"{identity}.key\"\n\
             [trust.corp]\nca = \"{trust}.pem\"\n{RULE}tls = {{ identity = \"web\", {tls} }}\n"
        )
    };
    let server = "role = \"server\", client-cert = \"required\", trust = \"corp\"";
    let client = "role = \"client\", trust = \"corp\", server-name = \"a.example\"";
    for (identity, trust, tls, place, words) in [
        ("alice", "corp", server, "7:1", "allows clientAuth, but not serverAuth"),
        ("server", "corp", client, "7:1", "allows serverAuth, but not clientAuth"),
        ("both", "server", server, "6:6", "CN=leaf is a leaf certificate"),
        ("both", "server", client, "6:6", "the certificate of the issuer, CN=CA"),
    ] {
        let Checked { code, stderr: said, .. } = check(&lab, &text(identity, trust, tls), &[]);
        assert_eq!(code, Some(78), "{identity} {trust}: {said}");
        assert!(said.contains(&format!("p.toml:{place}: error[")), "{said}");
        assert!(said.contains(words), "{said}");
        let agent = lab.run(TACIT, &["agent", "--policy", "p.toml", "--control", "c.sock"]);
        assert_eq!(agent.status.code(), Some(78));
    }
    for (identity, tls) in
        [("server", server), ("both", server), ("alice", client), ("both", client)]
    {
        let Checked { code, stderr: said, .. } = check(&lab, &text(identity, "corp", tls), &[]);
        assert_eq!(code, Some(0), "{identity}: {said}");
    }
}

#[test]
fn warnings_are_reported_and_are_no_errors() {
    let lab = Lab::new();
    let ca = Ca::new("CA");
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let leaf = ca.leaf_until(i64::try_from(soon.as_secs()).unwrap() + 5 * 86_400 + 3600);
    write_pair(&lab, "soon", &leaf.cert_pem, &leaf.key_pem);
    let valid = ca.leaf(LeafKind::Valid);
    write_pair(&lab, "unused", &valid.cert_pem, &valid.key_pem);
    let text = "version = 1\n\
        [identity.soon]\ncert = \"soon.pem\"\nkey = \"soon.key\"\n\
        [identity.unused]\ncert = \"unused.pem\"\nkey = \"unused.key\"\n\
        [[rule]]\nname = \"a\"\nlisten = \"127.0.0.1:8443\"\nconnect = \"db.example:1\"\n\
        permit = true\n\
        [[rule]]\nname = \"b\"\nlisten = \"127.0.0.1:8443\"\ndeny = true\n\
        [[rule]]\nname = \"c\"\nlisten = \"127.0.0.1:8444\"\nconnect = \"127.0.0.1:1\"\n\
        tls = { role = \"client\", verify = \"none\", identity = \"soon\" }\n";
    let Checked { code, stdout, stderr: said } = check(&lab, text, &[]);
    assert_eq!((code, stdout.as_str()), (Some(0), "policy OK, 3 rules\n"), "{said}");
    for words in [
        "expires in 5 days",
        "unused",
        "permits connections by name",
        "rule `b` is never used, because all flows",
        "the server's certificate is not checked",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains(": error["), "{said}");
    let Checked { stdout: json, .. } = check(&lab, text, &["--json"]);
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&value["ok"], &value["rules"]), (&Value::Bool(true), &Value::from(3)));
}

#[test]
fn explain_names_the_rule_and_why_others_do_not_match() {
    let lab = Lab::new();
    let text = "version = 1\n\
        [[rule]]\nname = \"a\"\nlisten = \"0.0.0.0:8443\"\nremote = \"10.0.0.0/8\"\ndeny = true\n\
        [[rule]]\nname = \"b\"\nlisten = \"0.0.0.0:9443\"\ndeny = true\n\
        [[rule]]\nname = \"c\"\nlisten = \"0.0.0.0:8443\"\nconnect = \"127.0.0.1:1\"\n\
        permit = true\n";
    lab.write("p.toml", text);
    let explain = |remote: &str, more: &[&str]| {
        let words = ["explain", "--policy", "p.toml", "--listen", "0.0.0.0:8443", "--remote"];
        lab.tacit(&[&words[..], &[remote], more].concat())
    };
    let said = explain("192.0.2.7:40000", &[]);
    for words in ["c", "permit", "a", "remote", "b", "listen"] {
        assert!(said.contains(words), "{said}");
    }
    let value: Value = serde_json::from_str(&explain("10.1.1.1:40000", &["--json"])).unwrap();
    assert!(value.to_string().contains("\"a\""), "{value}");
    let usage = lab.run(TACIT, &["explain", "--policy", "p.toml"]);
    assert_eq!(usage.status.code(), Some(64));
}

#[test]
fn explain_finds_the_rule_of_an_inbound_flow() {
    let lab = Lab::new();
    let text = "version = 1\n\
        [[rule]]\nname = \"guests\"\ndirection = \"inbound\"\nlisten = \"0.0.0.0:992\"\n\
        local-ports = 23\nremote = \"10.9.0.0/16\"\ndeny = true\n\
        [[rule]]\nname = \"telnet\"\ndirection = \"inbound\"\nlisten = \"0.0.0.0:992\"\n\
        local-ports = 23\npermit = true\n\
        [[rule]]\nname = \"out\"\ndirection = \"outbound\"\npermit = true\n";
    let Checked { code, stdout, stderr: said } = check(&lab, text, &[]);
    assert_eq!(
        (code, stdout.lines().next(), said.as_str()),
        (Some(0), Some("policy OK, 3 rules"), "")
    );
    let explain = |words: &[&str]| {
        let output = lab.run(TACIT, &[&["explain", "--policy", "p.toml"], words].concat());
        let bytes = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(bytes).unwrap())
    };
    let (_, said) = explain(&["--listen", "0.0.0.0:992", "--remote", "192.0.2.7:40000"]);
    let wanted = "rule `guests` does not match: remote address 192.0.2.7 does not match";
    assert!(said.contains(wanted), "{said}");
    assert!(said.ends_with("rule `telnet` matches: permit\n"), "{said}");
    let (_, said) = explain(&["--direction", "outbound", "--remote", "192.0.2.7:80"]);
    assert!(
        said.contains(
            "`telnet` does not match: the rule is for connections that clients open to 0.0.0.0:992"
        ),
        "{said}"
    );
    assert!(said.ends_with("rule `out` matches: permit\n"), "{said}");
    let (code, said) = explain(&["--direction", "inbound", "--remote", "192.0.2.7:80"]);
    assert!(code == Some(64) && said.contains("add --listen ADDRESS"), "{said}");
    let (code, said) = explain(&["--remote", "192.0.2.7:80"]);
    assert!(code == Some(64) && said.contains("add --direction outbound"), "{said}");
}

#[test]
fn errors_of_rules_for_runs_name_the_missing_key() {
    let lab = Lab::new();
    let rule = "version = 1\n[[rule]]\nname = \"r\"\ndirection = \"inbound\"\n\
                listen = \"127.0.0.1:8443\"\nlocal-ports = 80\npermit = true\n";
    assert_eq!(check(&lab, rule, &[]).code, Some(0));
    for (text, place, words) in [
        (rule.replace("listen = \"127.0.0.1:8443\"\n", ""), "2:1", "no `listen`"),
        (rule.replace("local-ports = 80\n", ""), "2:1", "no `local-ports`"),
        (rule.replace("127.0.0.1:8443", "unix:/x"), "5:10", "cannot be unix:/x"),
        (format!("{rule}connect = \"127.0.0.1:1\"\n"), "8:1", "`connect` does not belong"),
        (format!("{rule}protocol = \"udp\"\n"), "8:12", "inbound rules are for TCP"),
        (rule.replace("inbound", "outbound"), "5:1", "`listen` does not belong"),
        (
            format!("{rule}{}", RULE.replace("\"r\"", "\"s\"") + "permit = true\n"),
            "10:10",
            "one is a forwarding rule, and the other is a rule for programs under `tacit run`",
        ),
    ] {
        let Checked { code, stderr: said, .. } = check(&lab, &text, &[]);
        assert_eq!(code, Some(78), "{text}\n{said}");
        assert!(said.contains(&format!("p.toml:{place}: error[")), "{text}\n{said}");
        assert!(said.contains(words) && said.contains("fix: "), "{text}\n{said}");
    }
}

#[test]
fn explain_reports_that_a_rule_must_name_the_host() {
    let lab = Lab::new();
    let text = "version = 1\n\
        [[rule]]\nname = \"wide\"\ndirection = \"outbound\"\n\
        remote = [\"0.0.0.0/0\", \"db.example\"]\npermit = true\n\
        [[rule]]\nname = \"here\"\ndirection = \"outbound\"\nremote = \"loopback\"\n\
        permit = true\n";
    let Checked { code, stderr: said, .. } = check(&lab, text, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("never reached"), "{said}");
    let words = ["explain", "--policy", "p.toml", "--direction", "outbound", "--remote"];
    let explain = |more: &[&str]| lab.tacit(&[&words[..], more].concat());
    let said = explain(&["127.0.0.1:80", "--name", "db.example"]);
    let wanted = "rule `wide` does not match: remote address 127.0.0.1 is a loopback address: \
                  only a rule with this address in `remote` matches";
    assert!(said.contains(wanted) && said.ends_with("rule `here` matches: permit\n"), "{said}");
    let said = explain(&["169.254.169.254:80", "--json"]);
    let value: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(value["verdict"], "deny", "{said}");
    assert_eq!(value["earlier"][0]["selector"], "remote-not-named", "{said}");
    let Checked { code, stderr: said, .. } =
        check(&lab, &text.replace("\"loopback\"", "\"localhost\""), &[]);
    assert_eq!(code, Some(78));
    assert!(said.contains("p.toml:10:10: error[") && said.contains("write \"loopback\""), "{said}");
}

#[test]
fn windows_are_checked_and_explained_for_any_time() {
    let lab = Lab::new();
    let rule = "version = 1\n[[rule]]\nname = \"office\"\ndirection = \"outbound\"\n\
                permit = true\n";
    for (when, place, words) in [
        ("{ days = \"mon-fry\" }", "6:17", "`days` cannot be `mon-fry`"),
        ("{ hours = \"6-22\" }", "6:18", "`hours` cannot be `6-22`"),
        ("{ days = \"mon\", zone = \"Europe/Berln\" }", "6:31", "did you mean `Europe/Berlin`?"),
        ("{ zone = \"UTC\" }", "6:8", "`when` must have at least one of the keys `days`, `hours`"),
        ("\"mon\"", "6:8", "write a table"),
    ] {
        let Checked { code, stderr: said, .. } =
            check(&lab, &format!("{rule}when = {when}\n"), &[]);
        assert_eq!(code, Some(78), "{when}: {said}");
        assert!(said.contains(&format!("p.toml:{place}: error[")), "{when}: {said}");
        assert!(said.contains(words) && said.contains("fix: "), "{when}: {said}");
    }
    let when = "{ days = \"fri\", hours = \"22:00-06:00\", zone = \"Europe/Berlin\" }";
    let Checked { code, stdout, stderr: said } =
        check(&lab, &format!("{rule}when = {when}\n"), &[]);
    assert_eq!(
        (code, stdout.lines().next(), said.as_str()),
        (Some(0), Some("policy OK, 1 rule"), "")
    );
    let command = "explain --policy p.toml --direction outbound --remote 192.0.2.1:80 --at";
    let words: Vec<&str> = command.split(' ').collect();
    let explain = |at: &str| lab.tacit(&[&words[..], &[at]].concat());
    // In summer Berlin is two hours ahead of UTC, in winter one.
    assert!(explain("2025-06-06T20:00:00Z").ends_with("rule `office` matches: permit\n"));
    assert!(explain("2025-06-07T05:59:59+02:00").ends_with("rule `office` matches: permit\n"));
    let said = explain("2025-12-05T20:59:59Z");
    let wanted =
        "does not match: fri 21:59 is outside the time window fri 22:00-06:00 Europe/Berlin";
    assert!(said.contains(wanted) && said.ends_with("no rule matches: deny\n"), "{said}");
    let bad = lab.run(TACIT, &[&words[..], &["yesterday"]].concat());
    assert_eq!(bad.status.code(), Some(64));
}

#[test]
fn the_local_zone_is_that_of_this_host() {
    let lab = Lab::new();
    let rule = "version = 1\n[[rule]]\nname = \"office\"\ndirection = \"outbound\"\n\
                permit = true\nwhen = { hours = \"06:00-22:00\" }\n";
    lab.write("p.toml", rule);
    let explain = |zone: &str| {
        let words = "explain --policy p.toml --direction outbound --remote 192.0.2.1:80 --at \
                     2025-06-06T05:00:00Z";
        let output = lab.command(TACIT).args(words.split(' ')).env("TZ", zone).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let wanted = "fri 05:00 is outside the time window mon-sun 06:00-22:00 local";
    assert!(explain("UTC").contains(wanted));
    assert!(explain("Europe/Berlin").ends_with("rule `office` matches: permit\n"));
}

#[test]
fn the_line_of_an_error_is_quoted_with_a_mark_below_the_column() {
    let lab = Lab::new();
    let rule = "version = 1\n[[rule]]\nname = \"r\"\ndirection = \"outbound\"\n\
                remote = \"10.0.0.0/33\"\npermit = true\n";
    let Checked { stderr: said, .. } = check(&lab, rule, &[]);
    let quoted = "\n    5 | remote = \"10.0.0.0/33\"\n      |          ^\n    fix: ";
    assert!(said.contains(quoted), "{said}");
    // So do the verbs that read the file themselves.
    let explain = ["explain", "--policy", "p.toml", "--direction", "outbound", "--remote"];
    let output = lab.run(TACIT, &[&explain[..], &["192.0.2.1:1"]].concat());
    assert!(text_of(&output).contains(quoted), "{}", text_of(&output));
    let output = lab.run(TACIT, &["agent", "--policy", "p.toml"]);
    assert!(text_of(&output).contains(quoted), "{}", text_of(&output));
    // What is wrong with a file that the policy names has a place, too.
    let trust = "version = 1\n[trust.none]\nca = \"nowhere.pem\"\n[[rule]]\nname = \"r\"\n\
                 direction = \"outbound\"\ntls = { trust = \"none\" }\n";
    let Checked { stderr: said, .. } = check(&lab, trust, &[]);
    assert!(said.contains("nowhere.pem: ") && said.contains(" | ca = \"nowhere.pem\"\n"), "{said}");
    let Checked { stdout, .. } = check(&lab, rule, &["--json"]);
    let value: Value = serde_json::from_str(&stdout).unwrap();
    let keys: Vec<_> = value["findings"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["fix", "id", "message", "position", "severity"]);
}

#[test]
fn programs_that_run_as_the_user_of_the_agent_are_a_warning() {
    let lab = Lab::new();
    let policy = |user: &str| {
        format!(
            "version = 1\n[activate.p]\ncommand = \"/bin/cat\"\n{user}\n[[rule]]\nname = \"r\"\n\
             listen = \"127.0.0.1:1\"\nactivate = \"p\"\npermit = true\n"
        )
    };
    for (user, warnings) in [("", 1), ("user = \"nobody\"", 0)] {
        lab.write("p.toml", policy(user));
        let output = lab.run(TACIT, &["check", "p.toml"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("warning[program-of-agent-user]").count(), warnings, "{said}");
    }
}
