//! Tests `[trust]` tables that list pinned certificates: only these exact certificates are
//! accepted.

use rustls::AlertDescription as Alert;
use tacit_core::policy::{
    ChainCheck, ClientCert, ClientCertPolicy, ExpiredAnchors, PeerName, Preset, Revocation,
    SourcePosition, Trust, TrustSource, Verify,
};

use super::path::{NOW, answers, at, chain_of, expect, expect_trusted};
use super::*;
use crate::credentials::{CredentialError, load_trust};
use crate::dry_run::{self, ClientPeer, ClientRequirements};
use crate::test_certificates::{CertificateParams, CustomExtension, Directory, KeyUsagePurpose};

const NOT_PINNED: &str = "is not pinned in [trust.corp]";

/// Loads a trust from the directory: `ca.pem` and `crl.pem` if they exist, and `pins.pem`.
fn load(directory: &Directory, revocation: Revocation) -> Result<LoadedTrust, CredentialError> {
    let has = |name: &str| directory.path().join(name).exists();
    let source = match has("ca.pem") {
        true => TrustSource::Files(vec!["ca.pem".into()]),
        false => TrustSource::Pinned,
    };
    let crls = if has("crl.pem") { vec!["crl.pem".into()] } else { Vec::new() };
    let trust = Trust {
        source,
        pinned: vec!["pins.pem".into()],
        crls,
        revocation,
        expired_anchors: ExpiredAnchors::Reject,
        position: SourcePosition::default(),
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    load_trust("corp", &trust, directory.path())
}

/// Pins these certificates, without anchors.
fn pinning(pins: &str) -> LoadedTrust {
    let directory = Directory::new();
    directory.write("pins.pem", pins, 0o644);
    load(&directory, Revocation::Off).unwrap()
}

/// Pins these certificates, and trusts the CA.
fn pinning_beside(ca: &Ca, pins: &str) -> LoadedTrust {
    let directory = Directory::new();
    directory.write("pins.pem", pins, 0o644);
    directory.write("ca.pem", ca.pem(), 0o644);
    load(&directory, Revocation::Off).unwrap()
}

#[test]
fn a_pinned_certificate_is_equal_in_each_byte_and_another_one_is_refused() {
    let ca = Ca::new("corp CA");
    let issuer = ca.ca("issuing CA", |_| {});
    let leaf = issuer.leaf(LeafKind::Valid);
    let others = [
        ("the same name and key", issuer.leaf_again(&leaf)),
        ("the same name, another key", issuer.leaf(LeafKind::Valid)),
        ("another name", issuer.leaf_of("other.example")),
        ("another CA", Ca::new("issuing CA").leaf(LeafKind::Valid)),
    ];
    for trust in [pinning(&leaf.cert_pem), pinning_beside(&ca, &leaf.cert_pem)] {
        for (what, other) in &others {
            let chain = [other.chain.clone(), vec![issuer.der()]].concat();
            expect(&answers(&trust, &chain, NOW), NOT_PINNED, Alert::CertificateUnknown);
            // A pinned certificate that follows another leaf proves nothing.
            let behind = [other.chain.clone(), leaf.chain.clone(), vec![issuer.der()]].concat();
            let refused = answers(&trust, &behind, NOW);
            assert!(refused.iter().all(|answer| answer.alert().is_some()), "{what}");
        }
        let chain = [leaf.chain.clone(), vec![issuer.der()]].concat();
        expect_trusted(&answers(&trust, &chain, NOW));
    }
    // Without anchors, the other certificates in the chain have no effect.
    expect_trusted(&answers(&pinning(&leaf.cert_pem), &leaf.chain, NOW));
    let both = pinning(&(others[1].1.cert_pem.clone() + &leaf.cert_pem));
    expect_trusted(&answers(&both, &leaf.chain, NOW));
    expect_trusted(&answers(&both, &others[1].1.chain, NOW));
}

#[test]
fn a_pinned_ca_vouches_for_no_other_certificate() {
    let ca = Ca::new("corp CA");
    let issuer = ca.ca("issuing CA", |_| {});
    let chain = chain_of(issuer.leaf(LeafKind::Valid), &[&issuer, &ca]);
    let trust = pinning(&(issuer.pem() + &ca.pem()));
    let warning = trust.warnings.join("\n");
    assert!(
        warning
            .contains("CN=issuing CA is a CA certificate. A pinned certificate must be identical"),
        "{warning}"
    );
    assert!(!warning.contains("corp CA"), "it may be a self-signed leaf: {warning}");
    expect(&answers(&trust, &chain, NOW), NOT_PINNED, Alert::CertificateUnknown);
    let trust = pinning_beside(&ca, &issuer.pem());
    expect(&answers(&trust, &chain, NOW), NOT_PINNED, Alert::CertificateUnknown);
}

#[test]
fn anchors_beside_pins_must_hold_as_well() {
    let ca = Ca::new("corp CA");
    let stranger = Ca::new("stranger CA").leaf(LeafKind::Valid);
    let trust = pinning_beside(&ca, &stranger.cert_pem);
    let said = "ends at the issuer CN=stranger CA, but [trust.corp] does not contain this CA";
    expect(&answers(&trust, &stranger.chain, NOW), said, Alert::UnknownCA);

    let directory = Directory::new();
    let leaf = ca.leaf(LeafKind::Valid);
    let unknown_revocation = Ca::new("other CA");
    directory.write("ca.pem", ca.pem() + &unknown_revocation.pem(), 0o644);
    directory.write("crl.pem", ca.crl(&[&leaf], 4_000_000_000), 0o644);
    let other = unknown_revocation.leaf(LeafKind::Valid);
    directory.write("pins.pem", leaf.cert_pem.clone() + &other.cert_pem, 0o644);
    let trust = load(&directory, Revocation::Soft).unwrap();
    expect(&answers(&trust, &leaf.chain, NOW), "was revoked", Alert::CertificateRevoked);
    expect_trusted(&answers(&trust, &other.chain, NOW));
    // Even if no CRL covers it, a certificate that is not pinned is rejected.
    let third = unknown_revocation.leaf(LeafKind::Valid);
    expect(&answers(&trust, &third.chain, NOW), NOT_PINNED, Alert::CertificateUnknown);
}

#[test]
fn a_pinned_certificate_is_refused_out_of_its_time_use_and_name() {
    let ca = Ca::new("corp CA");
    let signs_nothing =
        |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    for (leaf, words, alert) in [
        (ca.leaf(LeafKind::Expired), "expired at 2021-02-03 00:00 UTC", Alert::CertificateExpired),
        (ca.leaf(LeafKind::NotYetValid), "not valid before 2080-04-05", Alert::CertificateExpired),
        (
            ca.leaf(LeafKind::WrongUsage),
            "allows codeSigning, but not",
            Alert::UnsupportedCertificate,
        ),
        (ca.leaf_made(signs_nothing), "does not allow signatures", Alert::UnsupportedCertificate),
    ] {
        let trust = pinning(&leaf.cert_pem);
        expect(&answers(&trust, &leaf.chain, NOW), words, alert);
    }
    let other = ca.leaf(LeafKind::WrongName);
    let trust = pinning(&other.cert_pem);
    let name = ServerName::try_from(NAME).unwrap();
    let full = ServerCheck::full(&trust).unwrap().recheck(&other.chain, &name, at(NOW)).check;
    assert!(reason(Some(&full)).contains("is for other.example, not for db.example"), "{full:?}");
    let chain = ServerCheck::chain(&trust).unwrap().recheck(&other.chain, &name, at(NOW)).check;
    assert_eq!(chain, PeerCheck::ChainValid);
    // The pinned certificate's own dates decide, to the second.
    let leaf = ca.leaf_until(NOW);
    let trust = pinning(&leaf.cert_pem);
    expect_trusted(&answers(&trust, &leaf.chain, NOW));
    let late = answers(&trust, &leaf.chain, NOW + 1);
    expect(&late, "expired at", Alert::CertificateExpired);
}

#[test]
fn a_pinned_certificate_that_signed_itself_is_trusted_as_ca_or_leaf() {
    let ca = Ca::made("peer", |params| {
        let name = NAME.try_into().unwrap();
        params.subject_alt_names = vec![crate::test_certificates::SanType::DnsName(name)];
    });
    expect_trusted(&answers(&pinning(&ca.pem()), &[ca.der()], NOW));
    let leaf = self_signed();
    expect_trusted(&answers(&pinning(&leaf.cert_pem), &leaf.chain, NOW));
}

#[test]
fn handshakes_of_both_roles_take_the_pinned_certificate_alone() {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let again = ca.leaf_again(&leaf);
    let trust = pinning(&leaf.cert_pem);
    for version in VERSIONS {
        for (key, is_pinned) in [(of(&leaf), true), (of(&again), false)] {
            let server = server_config(version, Some(required(&trust).unwrap()), of(&leaf));
            let client = client_config(version, ServerCheck::none(), Some(key.clone()));
            let at_server = handshake(HandshakeRole::Server, &client, &server);
            let server = server_config(version, None, key.clone());
            let full = ServerCheck::full(&trust).unwrap();
            let at_client =
                handshake(HandshakeRole::Client, &client_config(version, full, None), &server);
            for handshaken in [at_server, at_client] {
                assert_eq!(handshaken.failure.is_none(), is_pinned, "{version:?}");
                assert_eq!(handshaken.check == Some(PeerCheck::Valid), is_pinned);
                let said = reason(handshaken.check.as_ref());
                assert_eq!(said.contains(NOT_PINNED), !is_pinned, "{said}");
            }
            let server = server_config(version, Some(preferred(&trust).unwrap()), of(&leaf));
            let client = client_config(version, ServerCheck::none(), Some(key));
            let handshaken = handshake(HandshakeRole::Server, &client, &server);
            assert!(handshaken.failure.is_none(), "preferred logs it");
            assert_eq!(handshaken.check.unwrap().is_trusted(), is_pinned, "and gives no identity");
        }
        // A peer with another key cannot use the pinned certificate.
        let stolen = keyed(leaf.chain.clone(), &ca.leaf(LeafKind::Valid).key);
        let full = ServerCheck::full(&trust).unwrap();
        let server = server_config(version, None, stolen);
        let handshaken =
            handshake(HandshakeRole::Client, &client_config(version, full, None), &server);
        assert!(handshaken.failure.unwrap().message.contains("did not prove"), "{version:?}");
    }
}

#[test]
fn what_was_remembered_resumed_or_is_open_is_checked_against_the_pins_of_now() {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let renewed = ca.leaf_again(&leaf);
    let chains = Some(Arc::default());
    let name = ServerName::try_from(NAME).unwrap();
    for beside in [false, true] {
        let pin = |pem: &str| match beside {
            true => pinning_beside(&ca, pem),
            false => pinning(pem),
        };
        let before = pin(&leaf.cert_pem);
        let check = required(&before).unwrap().remembering(chains.as_ref());
        let open = check.recheck(&leaf.chain, at(NOW)).chain.unwrap();
        // Once more, from the cache.
        assert_eq!(check.recheck(&leaf.chain, at(NOW)).check, PeerCheck::Valid);
        assert_eq!(check.check_open(&open, at(NOW)), PeerCheck::Valid);
        let after = pin(&renewed.cert_pem);
        assert!(!before.same(&after) && before.same(&pin(&leaf.cert_pem)));
        let clients = required(&after).unwrap().remembering(chains.as_ref());
        let servers = ServerCheck::full(&after).unwrap().remembering(chains.as_ref());
        for check in [
            clients.recheck(&leaf.chain, at(NOW)).check,
            clients.check_open(&open, at(NOW)),
            servers.recheck(&leaf.chain, &name, at(NOW)).check,
            servers.check_open(&open, std::slice::from_ref(&name), at(NOW)),
        ] {
            assert!(reason(Some(&check)).contains(NOT_PINNED), "{check:?}");
            assert!(!clients.allows(&check) && !servers.allows(&check));
        }
    }
    assert!(!pinning(&leaf.cert_pem).same(&pinning_beside(&ca, &leaf.cert_pem)));
    let trust = pinning(&ca.leaf_until(NOW).cert_pem);
    let check = required(&trust).unwrap();
    assert!(trust.warnings.is_empty() && check.recheck(&leaf.chain, at(NOW)).chain.is_none());
    let ending = ca.leaf_until(NOW);
    let check = required(&pinning(&ending.cert_pem)).unwrap();
    let open = check.recheck(&ending.chain, at(NOW)).chain.unwrap();
    assert_eq!(open.next_end(NOW), Some(NOW));
    assert_eq!(check.check_open(&open, at(NOW + 1)).word(), "expired");
}

#[test]
fn a_dry_run_knows_pins() {
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let trust = pinning(&leaf.cert_pem);
    let chain = ChainCheck::Made {
        trust: "corp".into(),
        invalid: Invalid::Deny,
        name: PeerName::Certificate,
    };
    let preset = Some(Preset::Required);
    let level = ClientCert::Requested(ClientCertPolicy { preset, absent: Absent::Deny, chain });
    let verify = Verify::Full { trust: "corp".into(), server_name: Some(NAME.into()) };
    for (shown, is_pinned) in [(&leaf, true), (&ca.leaf_again(&leaf), false)] {
        let requirements = ClientRequirements { level: &level, trust: Some(&trust), map: None };
        let client = ClientPeer { chain: &shown.chain, address: None };
        let client = dry_run::client(requirements, client, at(NOW)).unwrap();
        let server = dry_run::server(&verify, Some(&trust), &shown.chain, &[], at(NOW)).unwrap();
        for run in [client, server] {
            let why = run.mapped.as_ref().err().map_or("", String::as_str);
            assert_eq!((why.is_empty(), why.contains(NOT_PINNED)), (is_pinned, !is_pinned));
        }
    }
}

#[test]
fn pins_that_can_hold_no_peer_are_refused_or_warned_about() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let refused = |pins: &str| {
        directory.write("pins.pem", pins, 0o644);
        load(&directory, Revocation::Off).unwrap_err().to_string()
    };
    assert!(refused("").contains("pins.pem: the file contains no certificate"));
    assert!(refused(&ca.leaf(LeafKind::Valid).key_pem).contains("contains no certificate"));
    assert!(refused(&openssl_v1(2048).cert_pem).contains("CN=db.example can never be accepted"));
    let critical = ca.leaf_made(|params| {
        let oid = [1, 3, 6, 1, 4, 1, 99_999];
        let mut unknown = CustomExtension::from_oid_content(&oid, vec![5, 0]);
        unknown.set_criticality(true);
        params.custom_extensions.push(unknown);
    });
    assert!(refused(&critical.cert_pem).contains("can never be accepted"));
    let many = ca.leaf(LeafKind::Valid).cert_pem.repeat(crate::credentials::PINNED_MAX + 1);
    assert!(
        refused(&many).contains("too many pinned certificates: the limit for each table is 4096")
    );
    std::fs::remove_file(directory.path().join("pins.pem")).unwrap();
    assert!(load(&directory, Revocation::Off).is_err());

    let warned = |pins: &str| pinning(pins).warnings.join("\n");
    let old = warned(&ca.leaf(LeafKind::Expired).cert_pem);
    assert!(old.contains("pinned certificate of CN=leaf expired at 2021-02-03"), "{old}");
    assert!(old.contains(": tacit rejects a peer with this certificate"), "{old}");
    let small = warned(&openssl_v3(1024).cert_pem);
    assert!(
        small.contains(
            "has a key that is too weak (RSA 1024): every handshake with this certificate fails"
        ),
        "{small}"
    );
    // The pinned certificate may be in the file of its CA.
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("ca.pem", leaf.cert_pem.clone() + &ca.pem(), 0o644);
    directory.write("pins.pem", leaf.cert_pem + &ca.pem(), 0o644);
    let trust = load(&directory, Revocation::Off).unwrap();
    assert!(trust.warnings.is_empty(), "{:?}", trust.warnings);
    assert_eq!((trust.sources.len(), trust.pinned.unwrap().facts().len()), (2, 2));
}
