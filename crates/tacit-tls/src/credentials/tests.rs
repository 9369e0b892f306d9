//! Tests the error messages for key, certificate and trust files with typical mistakes.

use std::process::Command;

use tacit_core::policy::Identity;

use super::expiry::now_seconds;
use super::*;
use crate::facts::DAY_SECONDS;
use crate::files::FileStamp;
use crate::signer::KeyProvider;
use crate::test_certificates::{Ca, Directory, Leaf, LeafKind, openssl_v1, openssl_v3};

fn load(directory: &Directory) -> Result<LoadedIdentity, CredentialError> {
    let identity = Identity {
        cert: "web.pem".into(),
        key: "web.key".into(),
        position: tacit_core::policy::SourcePosition::default(),
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    load_identity("web", &identity, directory.path(), &KeyProvider::local())
}

fn write(directory: &Directory, leaf: &Leaf) {
    directory.write("web.pem", &leaf.cert_pem, 0o644);
    directory.write("web.key", &leaf.key_pem, 0o600);
}

/// The one line that an operator sees, without the directory.
fn refusal(directory: &Directory) -> String {
    let line = load(directory).expect_err("must be refused").to_string();
    assert!(!line.contains('\n'), "{line}");
    line.replace(&format!("{}/", directory.path().display()), "")
}

#[test]
fn a_good_identity_loads_and_notices_its_files() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("web.pem", leaf.cert_pem.clone() + &ca.pem(), 0o644);
    directory.write("web.key", &leaf.key_pem, 0o400);
    let identity = load(&directory).unwrap();
    assert_eq!(identity.certified_key.cert.len(), 2);
    assert_eq!((identity.name.as_str(), identity.facts.subject.as_str()), ("web", "CN=leaf"));
    assert!(identity.warnings.is_empty(), "{:?}", identity.warnings);
    assert!(!identity.sources.iter().any(FileStamp::changed));
    write(&directory, &ca.leaf(LeafKind::Valid));
    assert!(identity.sources.iter().all(FileStamp::changed));
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_next_step() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let other = ca.leaf(LeafKind::Valid);
    let missing = refusal(&directory);
    assert!(missing.starts_with("[identity.web]: web.pem: the file does not exist"), "{missing}");

    // Each entry: the certificate file, the key file, and a part of the error line.
    let damaged = leaf.key_pem.replacen('\n', "\n!", 1);
    let both = format!("{}{}", leaf.key_pem, other.key_pem);
    let chain = format!("{}{}", ca.pem(), leaf.cert_pem);
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let table: [(&str, &str, &str); 8] = [
        ("", &leaf.key_pem, "web.pem: the file contains no certificate"),
        (not_x509, &leaf.key_pem, "web.pem: certificate 1 in the file is not valid X.509"),
        (&leaf.cert_pem, "", "web.key: the file contains no private key"),
        (&leaf.cert_pem, &both, "web.key: the file contains 2 private keys"),
        (
            &leaf.cert_pem,
            &damaged,
            "web.key: the file is not valid PEM (the private key is damaged)",
        ),
        (&leaf.cert_pem, &other.key_pem, "web.key: the private key does not match the certificate"),
        (&chain, &leaf.key_pem, "put the leaf certificate first"),
        ("-----BEGIN CERTIFICATE-----\nAAAA", &leaf.key_pem, "web.pem: the file is not valid PEM"),
    ];
    for (cert, key, expected) in table {
        directory.write("web.pem", cert, 0o644);
        directory.write("web.key", key, 0o600);
        let line = refusal(&directory);
        assert!(line.contains(expected), "{expected}: {line}");
    }
    write(&directory, &leaf);
    directory.write("web.pem", leaf.chain[0].as_ref(), 0o644);
    assert!(refusal(&directory).contains("openssl x509 -inform DER"), "{}", refusal(&directory));
    let pkcs12 = [0x30, 0x82, 0x09, 0x5f, 0x02, 0x01, 0x03, 0x30, 0x82, 0x09, 0x25, 0x06];
    directory.write("web.pem", pkcs12, 0o644);
    let line = refusal(&directory);
    assert!(line.contains("is PKCS #12, not PEM") && line.contains("-nokeys"), "{line}");
    write(&directory, &leaf);
    directory.write("web.key", pkcs12, 0o600);
    let line = refusal(&directory);
    assert!(line.contains("web.key: the file is PKCS #12") && line.contains("-nocerts"), "{line}");
    write(&directory, &leaf);
    std::fs::remove_file(directory.path().join("web.key")).unwrap();
    assert!(refusal(&directory).contains("web.key: the file does not exist"));
}

#[test]
fn each_certificate_of_a_chain_is_checked() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    write(&directory, &leaf);
    directory.write("web.pem", format!("{}{}{not_x509}", leaf.cert_pem, ca.pem()), 0o644);
    let line = refusal(&directory);
    assert!(line.contains("web.pem: certificate 3 in the file is not valid X.509"), "{line}");
}

#[test]
fn byte_order_marks_are_ignored() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("web.pem", format!("\u{feff}{}\u{feff}{}", leaf.cert_pem, ca.pem()), 0o644);
    directory.write("web.key", format!("\u{feff}{}", leaf.key_pem), 0o600);
    assert_eq!(load(&directory).unwrap().certified_key.cert.len(), 2);
}

#[test]
fn a_key_that_others_can_read_is_refused_wherever_it_stands() {
    let directory = Directory::new();
    let leaf = Ca::new("CA").leaf(LeafKind::Valid);
    write(&directory, &leaf);
    for mode in [0o640, 0o604, 0o660, 0o601] {
        directory.write("web.key", &leaf.key_pem, mode);
        let line = refusal(&directory);
        assert!(line.contains(&format!("(mode {mode:04o}); run: chmod 600 ")), "{line}");
    }
    directory.write("web.key", &leaf.key_pem, 0o600);
    directory.write("web.pem", format!("{}{}", leaf.cert_pem, leaf.key_pem), 0o644);
    assert!(
        refusal(&directory).starts_with("[identity.web]: web.pem: the file contains a private key")
    );
}

#[test]
fn encrypted_keys_are_refused_in_both_forms() {
    let directory = Directory::new();
    let leaf = Ca::new("CA").leaf(LeafKind::Valid);
    write(&directory, &leaf);
    for form in [["pkcs8", "-topk8"].as_slice(), &["ec", "-aes128"]] {
        directory.write("web.key", &leaf.key_pem, 0o600);
        let key = directory.path().join("web.key");
        let output = Command::new("openssl")
            .args(form)
            .args(["-passout", "pass:secret", "-in"])
            .arg(&key)
            .output()
            .expect("this test needs the openssl command");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        directory.write("web.key", &output.stdout, 0o600);
        assert!(refusal(&directory).contains("the private key is encrypted"), "{form:?}");
    }
}

#[test]
fn certificates_that_peers_refuse_are_refused_at_once() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    for (kind, expected) in [
        (LeafKind::Expired, "the certificate of CN=leaf expired at 2021-02-03 00:00 UTC; renew"),
        (LeafKind::NotYetValid, "is not valid before 2080-04-05 00:00 UTC"),
    ] {
        write(&directory, &ca.leaf(kind));
        let line = refusal(&directory);
        assert!(line.contains(expected), "{line}");
    }
    for (old, expected) in [
        (openssl_v1(2048), "is X.509 v1, which peers reject"),
        (openssl_v3(1024), "has a weak key (RSA 1024), which peers reject"),
    ] {
        directory.write("web.pem", old.cert_pem, 0o644);
        directory.write("web.key", old.key_pem, 0o600);
        let line = refusal(&directory);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn what_will_probably_not_work_is_warned_about() {
    let directory = Directory::new();
    let ca = Ca::new("CA");
    for (leaf, expected) in [
        (ca.leaf_until(now_seconds() + 5 * DAY_SECONDS + 60), "expires in 5 days"),
        (ca.leaf(LeafKind::CnOnly), "has no subjectAltName"),
    ] {
        write(&directory, &leaf);
        let warnings = load(&directory).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    write(&directory, &ca.leaf_until(now_seconds() + 40 * DAY_SECONDS));
    assert!(load(&directory).unwrap().warnings.is_empty());
}
