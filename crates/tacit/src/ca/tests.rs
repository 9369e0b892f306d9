//! Tests that the `openssl` command accepts the CA, certificates and keys that `tacit ca` creates.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    ca: CaArgs,
}

/// An empty directory for one test, removed at its end.
pub(super) struct Scratch(PathBuf);

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub(super) fn scratch(test: &str) -> Scratch {
    let dir = std::env::temp_dir().join(format!("tacit-ca-{test}-{}", std::process::id()));
    drop(fs::remove_dir_all(&dir));
    fs::create_dir_all(&dir).unwrap();
    Scratch(dir)
}

fn tacit_ca_at(now: SystemTime, dir: &Path, line: &str) -> Result<String, CaError> {
    let words = ["ca"].into_iter().chain(line.split(' '));
    let args = Cli::try_parse_from(words.chain(["--dir", dir.to_str().unwrap()])).unwrap();
    let mut out = Vec::new();
    run_at(args.ca, now, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn tacit_ca(dir: &Path, line: &str) -> Result<String, CaError> {
    tacit_ca_at(SystemTime::now(), dir, line)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Runs `openssl` in the directory; returns its standard output, and whether it succeeded.
fn openssl(dir: &Path, line: &str) -> (bool, String) {
    let output = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(dir)
        .output()
        .expect("these tests need the openssl command");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn openssl_verifies_what_was_issued_for_its_usage_and_its_names() {
    let dir = scratch("verify");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&dir, "issue web.corp.example --san 10.0.0.7 --san *.web.corp.example").unwrap();
    tacit_ca(&dir, "issue alice --client").unwrap();
    tacit_ca(&dir, "issue ::1 --server").unwrap();
    let verdict = |line: &str| openssl(&dir, &format!("verify -x509_strict -CAfile ca.pem {line}"));

    for good in [
        "-purpose sslserver -verify_hostname web.corp.example web.corp.example.pem",
        "-purpose sslserver -verify_hostname a.web.corp.example web.corp.example.pem",
        "-purpose sslclient -verify_ip 10.0.0.7 web.corp.example.pem",
        "-purpose sslclient alice.pem",
        "-purpose sslserver -verify_ip ::1 ::1.pem",
    ] {
        let (content, said) = verdict(good);
        assert!(content, "{good}: {said}");
    }
    for bad in [
        "-purpose sslserver alice.pem",
        "-purpose sslclient ::1.pem",
        "-verify_hostname other.example web.corp.example.pem",
    ] {
        assert!(!verdict(bad).0, "{bad} was verified");
    }
    let (_, text) = openssl(&dir, "x509 -noout -text -in ca.pem");
    assert!(text.contains("CA:TRUE, pathlen:0") && text.contains("prime256v1"), "{text}");
}

#[test]
fn a_leaf_cannot_sign() {
    let dir = scratch("leaf-signs");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&dir, "issue web").unwrap();
    let below = scratch("leaf-signs-below");
    fs::copy(dir.join("web.pem"), below.join("ca.pem")).unwrap();
    fs::copy(dir.join("web.key"), below.join("ca.key")).unwrap();
    assert!(matches!(tacit_ca(&below, "issue victim"), Err(CaError::Unusable(..))));
}

#[test]
fn keys_are_private_and_nothing_else_is_left() {
    let parent = scratch("modes");
    let dir = parent.join("made");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&dir, "issue web").unwrap();
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join("ca.key")), 0o600);
    assert_eq!(mode(&dir.join("web.key")), 0o600);
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["ca.key", "ca.pem", "web.key", "web.pem"]);
    let pem = fs::read_to_string(dir.join("web.pem")).unwrap();
    assert_eq!(pem.matches("-----BEGIN").count(), 1, "web.pem holds more than the leaf");
}

#[test]
fn nothing_is_overwritten() {
    let dir = scratch("overwrite");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&dir, "issue web").unwrap();
    let before: Vec<_> = ["ca.pem", "ca.key", "web.pem", "web.key"]
        .map(|name| fs::read_to_string(dir.join(name)).unwrap())
        .into();
    assert!(matches!(tacit_ca(&dir, "init"), Err(CaError::Exists(_))));
    assert!(matches!(tacit_ca(&dir, "issue web"), Err(CaError::Exists(_))));
    fs::remove_file(dir.join("ca.pem")).unwrap();
    assert!(matches!(tacit_ca(&dir, "init"), Err(CaError::Exists(_))), "ca.key alone");
    fs::write(dir.join("ca.pem"), &before[0]).unwrap();
    let after: Vec<_> = ["ca.pem", "ca.key", "web.pem", "web.key"]
        .map(|name| fs::read_to_string(dir.join(name)).unwrap())
        .into();
    assert_eq!(before, after);
}

#[test]
fn renewal_keeps_names_usage_and_key_and_changes_the_expiry() {
    let dir = scratch("renew");
    tacit_ca(&dir, "init").unwrap();
    assert!(matches!(tacit_ca(&dir, "issue web --renew"), Err(CaError::NothingToRenew(_))));
    tacit_ca(&dir, "issue web --san 10.0.0.7 --server --days 3").unwrap();
    let key = fs::read_to_string(dir.join("web.key")).unwrap();
    let old = Certificate::read(&dir.join("web.pem")).unwrap();
    tacit_ca(&dir, "issue web --renew").unwrap();
    let new = Certificate::read(&dir.join("web.pem")).unwrap();
    assert_eq!((&new.facts.sans, new.roles()), (&old.facts.sans, old.roles()));
    assert_eq!(new.facts.sans, ["web", "10.0.0.7"]);
    assert_eq!(fs::read_to_string(dir.join("web.key")).unwrap(), key);
    assert!(new.facts.not_after > old.facts.not_after);
    assert!(openssl(&dir, "verify -CAfile ca.pem -purpose sslserver web.pem").0);
}

#[test]
fn a_certificate_expires_no_later_than_its_ca() {
    let dir = scratch("outlive");
    tacit_ca(&dir, "init --days 30").unwrap();
    let error = tacit_ca(&dir, "issue web").unwrap_err();
    assert!(matches!(error, CaError::Outlives { .. }), "{error}");
    let advice = error.to_string();
    let days = advice.split("--days ").nth(1).unwrap().split(' ').next().unwrap();
    tacit_ca(&dir, &format!("issue web --days {days}")).unwrap();
}

#[test]
fn a_foreign_or_readable_key_does_not_sign() {
    let dir = scratch("stranger");
    let other = scratch("stranger-other");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&other, "init").unwrap();
    fs::copy(other.join("ca.key"), dir.join("ca.key")).unwrap();
    assert!(matches!(tacit_ca(&dir, "issue web"), Err(CaError::Mismatch { .. })));
    fs::set_permissions(other.join("ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(tacit_ca(&other, "issue web"), Err(CaError::KeyOpenToOthers(_, 0o644))));
    assert!(matches!(tacit_ca(&scratch("no-ca"), "issue web"), Err(CaError::NoCa(_))));
}

#[test]
fn show_lists_the_ca_first_and_marks_expired_certificates() {
    let dir = scratch("show");
    tacit_ca(&dir, "init").unwrap();
    tacit_ca(&dir, "issue aaa").unwrap();
    tacit_ca(&dir, "issue web --san 10.0.0.7 --days 1").unwrap();
    let fresh: serde_json::Value =
        serde_json::from_str(&tacit_ca(&dir, "show --json").unwrap()).unwrap();
    assert_eq!(fresh["certificates"][1]["days-left"], 90, "{fresh}");
    // Half a day after a certificate has expired, the number of days left is negative.
    let later = SystemTime::now() + days(1) + days(1) / 2;
    let text = tacit_ca_at(later, &dir, "show").unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("FILE"), "{text}");
    assert!(lines[1].starts_with("ca.pem") && lines[1].contains("valid"), "{text}");
    assert!(lines[3].contains("expired") && lines[3].ends_with("web, 10.0.0.7"), "{text}");

    let printed = tacit_ca_at(later, &dir, "show --json").unwrap();
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let web = &json["certificates"][2];
    assert_eq!(web["sans"], serde_json::json!(["web", "10.0.0.7"]));
    assert_eq!(web["usages"], serde_json::json!(["serverAuth", "clientAuth"]));
    assert_eq!((&web["state"], web["days-left"].as_i64()), (&"expired".into(), Some(-1)));
}
