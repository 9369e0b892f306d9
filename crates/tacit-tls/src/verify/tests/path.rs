//! Tests certificate chains whose signatures are valid. These chains have defects of other kinds,
//! such as wrong key usages and expired trust anchors. Also tests the error messages.

use std::time::Duration;

use rustls::AlertDescription as Alert;
use tacit_core::policy::{
    ChainCheck, ClientCert, ClientCertPolicy, ExpiredAnchors, PeerName, Preset, Revocation,
    SourcePosition, Trust, TrustSource, Verify,
};

use super::*;
use crate::credentials::load_trust;
use crate::diagnose::PeerRole;
use crate::dry_run::{self, ClientPeer, ClientRequirements};
use crate::test_certificates::{
    BasicConstraints, CertificateParams, CustomExtension, Directory, GeneralSubtree, IsCa,
    KeyUsagePurpose as Usage, NameConstraints, SanType, date_time_ymd, openssl_key, openssl_sha1,
};

pub(super) const NOW: i64 = 1_900_000_000;

pub(super) fn at(unix_seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(unix_seconds.unsigned_abs()))
}

/// A trust with these certificates, and with these CRLs if there are any.
fn loaded(ca_pem: &str, crl: Option<String>, expired_anchors: ExpiredAnchors) -> LoadedTrust {
    let directory = Directory::new();
    directory.write("ca.pem", ca_pem, 0o644);
    let revocation = if crl.is_some() { Revocation::Hard } else { Revocation::Off };
    let crls = crl.iter().map(|_| "crl.pem".into()).collect();
    directory.write("crl.pem", crl.unwrap_or_default(), 0o644);
    let trust = Trust {
        source: TrustSource::Files(vec!["ca.pem".into()]),
        pinned: Vec::new(),
        crls,
        revocation,
        expired_anchors,
        position: SourcePosition::default(),
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    load_trust("corp", &trust, directory.path()).unwrap()
}

fn trusting(ca: &Ca) -> LoadedTrust {
    loaded(&ca.pem(), None, ExpiredAnchors::Reject)
}

/// Returns the result of a chain in both roles: the reason, and the alert that the peer gets.
pub(super) fn answers(trust: &LoadedTrust, chain: &[CertificateDer<'_>], now: i64) -> [Answer; 2] {
    let (leaf, rest) = chain.split_first().unwrap();
    let client = required(trust).unwrap();
    let server = ServerCheck::full(trust).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let verified = [
        observe(|| client.verify_client_cert(leaf, rest, at(now)).map(|_| ())),
        observe(|| server.verify_server_cert(leaf, rest, &name, &[], at(now)).map(|_| ())),
    ];
    verified.map(|Observed { result, outcome }| {
        let check = outcome.checked.map(|checked| checked.check);
        let reason = reason(check.as_ref()).to_owned();
        assert!(!reason.contains("Other"), "words of the library: {reason}");
        let alert = result.err().map(|error| match error {
            rustls::Error::InvalidCertificate(why) => Alert::from(why),
            other => panic!("{other}"),
        });
        Answer { reason, alert }
    })
}

#[derive(Debug)]
pub(super) struct Answer {
    reason: String,
    alert: Option<Alert>,
}

impl Answer {
    pub(super) fn alert(&self) -> Option<Alert> {
        self.alert
    }
}

pub(super) fn expect(answers: &[Answer; 2], words: &str, alert: Alert) {
    for answer in answers {
        assert!(answer.reason.contains(words), "{answer:?}");
        assert_eq!(answer.alert, Some(alert), "{answer:?}");
    }
}

pub(super) fn expect_trusted(answers: &[Answer; 2]) {
    assert!(answers.iter().all(|answer| answer.alert.is_none()), "{answers:?}");
}

pub(super) fn chain_of(leaf: Leaf, above: &[&Ca]) -> Vec<CertificateDer<'static>> {
    leaf.chain.into_iter().chain(above.iter().map(|ca| ca.der())).collect()
}

#[test]
fn a_chain_that_ends_at_an_expired_anchor_is_rejected_unless_the_trust_accepts_it() {
    let ca = Ca::made("corp CA", |params| params.not_after = date_time_ymd(2030, 1, 1));
    let end = 1_893_456_000;
    let chain = ca.leaf(LeafKind::Valid).chain;
    let trust = trusting(&ca);
    expect_trusted(&answers(&trust, &chain, end));
    let late = answers(&trust, &chain, end + 1);
    expect(
        &late,
        "ends at the CA CN=corp CA, whose certificate expired at 2030-01-01",
        Alert::CertificateExpired,
    );
    let accepting = loaded(&ca.pem(), None, ExpiredAnchors::Accept);
    expect_trusted(&answers(&accepting, &chain, end + 1));
    assert!(!trust.same(&accepting) && trust.same(&trusting(&ca)));
    // The next certificate of the CA, in addition to the expired one.
    let next = ca.reissued("corp CA", |_| {});
    for both in [ca.pem() + &next.pem(), next.pem() + &ca.pem()] {
        let trust = loaded(&both, None, ExpiredAnchors::Reject);
        expect_trusted(&answers(&trust, &chain, end + 1));
    }

    // Cached chains, and stored chains of open connections, also end with the anchor.
    let chains = Some(Arc::default());
    let check = required(&trust).unwrap().remembering(chains.as_ref());
    let checked = check.recheck(&chain, at(end));
    assert_eq!(checked.check, PeerCheck::Valid);
    let kept = checked.chain.unwrap();
    assert_eq!(kept.next_end(end), Some(end));
    assert!(reason(Some(&check.recheck(&chain, at(end + 1)).check)).contains("expired at"));
    assert_eq!(check.check_open(&kept, at(end + 1)).word(), "expired");
}

#[test]
fn a_key_is_used_for_what_its_certificate_allows_alone() {
    let signs_crls = |params: &mut CertificateParams| params.key_usages = vec![Usage::CrlSign];
    let signs_all = |params: &mut CertificateParams| {
        params.key_usages = vec![Usage::KeyCertSign, Usage::CrlSign];
    };
    let root = Ca::made("root CA", signs_all);
    let trust = trusting(&root);
    let [good, bad] = [root.ca("good CA", signs_all), root.ca("bad CA", signs_crls)];
    let leaf = good.leaf_made(|params| params.key_usages = vec![Usage::DigitalSignature]);
    expect_trusted(&answers(&trust, &chain_of(leaf, &[&good]), NOW));
    let chain = chain_of(bad.leaf(LeafKind::Valid), &[&bad]);
    let said = "through the CA CN=bad CA, but the keyUsage of this CA does not allow signing";
    expect(&answers(&trust, &chain, NOW), said, Alert::UnsupportedCertificate);
    let leaf = good.leaf_made(|params| params.key_usages = vec![Usage::KeyEncipherment]);
    let said = "cannot be used in handshakes, because its keyUsage does not allow signatures";
    let answered = answers(&trust, &chain_of(leaf, &[&good]), NOW);
    expect(&answered, said, Alert::UnsupportedCertificate);
    let anchor = Ca::made("anchor CA", signs_crls);
    let chain = anchor.leaf(LeafKind::Valid).chain;
    let answered = answers(&trusting(&anchor), &chain, NOW);
    expect(&answered, "CA CN=anchor CA, but the keyUsage", Alert::UnsupportedCertificate);
}

#[test]
fn a_list_counts_only_where_the_anchor_may_sign_lists() {
    let signs = |params: &mut CertificateParams| params.key_usages = vec![Usage::KeyCertSign];
    let ca = Ca::made("corp CA", |params| {
        params.key_usages = vec![Usage::KeyCertSign, Usage::CrlSign];
    });
    let chain = ca.leaf(LeafKind::Valid).chain;
    let listed = loaded(&ca.pem(), Some(ca.crl(&[], 4_000_000_000)), ExpiredAnchors::Reject);
    expect_trusted(&answers(&listed, &chain, NOW));
    let anchor = ca.reissued("corp CA", signs);
    expect_trusted(&answers(&trusting(&anchor), &chain, NOW));
    let listed = loaded(&anchor.pem(), Some(ca.crl(&[], 4_000_000_000)), ExpiredAnchors::Reject);
    let said = "CN=corp CA, but the keyUsage of this CA does not allow signing CRLs";
    expect(&answers(&listed, &chain, NOW), said, Alert::CertificateUnknown);
    // A CRL that another key has signed.
    let forged = Ca::new("corp CA").crl(&[], 4_000_000_000);
    let listed = loaded(&ca.pem(), Some(forged), ExpiredAnchors::Reject);
    let said = "has no valid signature of this CA";
    expect(&answers(&listed, &chain, NOW), said, Alert::CertificateUnknown);
}

#[test]
fn limits_of_cas_and_old_signatures_are_named_and_answered_as_faults_of_the_certificate() {
    let none_below = |params: &mut CertificateParams| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    };
    let root = Ca::new("root CA");
    let middle = root.ca("middle CA", none_below);
    let below = middle.ca("below CA", |_| {});
    let chain = chain_of(below.leaf(LeafKind::Valid), &[&below, &middle]);
    let said = "contains more intermediate CAs than a CA in the chain allows (pathLenConstraint)";
    expect(&answers(&trusting(&root), &chain, NOW), said, Alert::BadCertificate);

    let limited = Ca::made("mail CA", |params| {
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::Rfc822Name("corp.example".into())],
            excluded_subtrees: Vec::new(),
        });
    });
    let leaf = limited.leaf_made(|params| {
        let address = "orders@corp.example".try_into().unwrap();
        params.subject_alt_names.push(SanType::Rfc822Name(address));
    });
    let said = "type of name that tacit cannot check, such as an e-mail address";
    expect(&answers(&trusting(&limited), &leaf.chain, NOW), said, Alert::BadCertificate);

    let old = openssl_sha1();
    let trust = loaded(&old.cert_pem, None, ExpiredAnchors::Reject);
    let said = "is signed with an algorithm that tacit does not accept (SHA-1";
    expect(&answers(&trust, &old.chain, NOW), said, Alert::BadCertificate);
    let namesake = Ca::new("root CA").leaf(LeafKind::Valid);
    let answered = answers(&trusting(&root), &namesake.chain, NOW);
    expect(&answered, "was not signed by the CA", Alert::BadCertificate);
}

/// Leaves whose keys cannot be proved in any handshake, and the texts about them.
fn unprovable(ca: &Ca) -> Vec<(Vec<CertificateDer<'static>>, &'static str)> {
    let critical = ca.leaf_made(|params| {
        let mut unknown =
            CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999], vec![5, 0]);
        unknown.set_criticality(true);
        params.custom_extensions.push(unknown);
    });
    let p192 = openssl_key(&["ecparam", "-name", "prime192v1", "-genkey", "-noout"]);
    vec![
        (openssl_v3(1024).chain, "has a key that is too weak (RSA 1024)"),
        (p192.chain, "and tacit cannot check signatures of this type"),
        (critical.chain, "has a critical extension that tacit does not"),
    ]
}

#[test]
fn a_dry_run_refuses_what_no_handshake_can_prove_at_any_level() {
    let ca = Ca::new("corp CA");
    let trust = trusting(&ca);
    let level = |preset, chain| {
        let absent = Absent::Allow;
        ClientCert::Requested(ClientCertPolicy { preset: Some(preset), absent, chain })
    };
    let made =
        |invalid| ChainCheck::Made { trust: "corp".into(), invalid, name: PeerName::Certificate };
    let levels = [
        level(Preset::Required, made(Invalid::Deny)),
        level(Preset::Preferred, made(Invalid::Log)),
        level(Preset::PassThru, ChainCheck::Waived),
    ];
    let mut signature = vec![0x08, 0x04, 0, 128];
    signature.resize(4 + 128, 7);
    let signed = DigitallySignedStruct::read(&mut Reader::init(&signature)).unwrap();
    for (chain, words) in unprovable(&ca) {
        for level in &levels {
            let requirements = ClientRequirements { level, trust: Some(&trust), map: None };
            let client = ClientPeer { chain: &chain, address: None };
            let run = dry_run::client(requirements, client, at(NOW)).unwrap();
            assert!(run.mapped.as_ref().is_err_and(|why| why.contains(words)), "{level}: {run:?}");
        }
        let verify = Verify::None { server_name: None };
        let run = dry_run::server(&verify, None, &chain, &[], at(NOW)).unwrap();
        assert!(run.mapped.as_ref().is_err_and(|why| why.contains(words)), "{run:?}");
        // The handshake gives the same text.
        let none = ServerCheck::none();
        let Observed { result, outcome } =
            observe(|| none.verify_tls13_signature(b"transcript", &chain[0], &signed));
        let check = outcome.checked.map(|checked| checked.check);
        assert!(reason(check.as_ref()).contains(words), "{check:?}");
        let Err(rustls::Error::InvalidCertificate(why)) = result else { panic!("{result:?}") };
        assert_eq!(Alert::from(why), Alert::BadCertificate);
    }
    for leaf in [ca.leaf(LeafKind::Valid), ca.rsa_leaf(), self_signed()] {
        assert_eq!(provable(PeerRole::Client, &leaf.chain[0]), Ok(()));
    }
    for curve in ["secp384r1", "secp521r1"] {
        let made = openssl_key(&["ecparam", "-name", curve, "-genkey", "-noout"]);
        assert_eq!(provable(PeerRole::Server, &made.chain[0]), Ok(()), "{curve}");
    }
    let ed25519 = openssl_key(&["genpkey", "-algorithm", "ed25519"]);
    assert_eq!(provable(PeerRole::Server, &ed25519.chain[0]), Ok(()));
}
