//! Tests revocation lists (CRLs), when tacit is the TLS client and when tacit is the TLS server.

use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tacit_core::policy::{
    Absent, ExpiredAnchors, Invalid, Revocation, SourcePosition, Trust, TrustSource,
};

use crate::check::PeerCheck;
use crate::credentials::{LoadedTrust, load_trust};
use crate::test_certificates::{Ca, Directory, LeafKind, NAME};
use crate::verify::{ChainCache, ClientCheck, ServerCheck};

const LONG: i64 = 4_000_000_000;

fn at(unix_seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(unix_seconds.unsigned_abs()))
}

fn trust(directory: &Directory, crls: &[&str], revocation: Revocation) -> LoadedTrust {
    let trust = Trust {
        source: TrustSource::Files(vec!["ca.pem".into()]),
        pinned: Vec::new(),
        crls: crls.iter().map(Into::into).collect(),
        revocation,
        expired_anchors: ExpiredAnchors::Reject,
        position: SourcePosition::default(),
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    load_trust("corp", &trust, directory.path()).unwrap()
}

/// Returns the results of a chain at a time in both roles.
fn both(trust: &LoadedTrust, chain: &[CertificateDer<'_>], now: i64) -> [PeerCheck; 2] {
    let client = ClientCheck::made(trust, Absent::Deny, Invalid::Deny).unwrap();
    let server = ServerCheck::full(trust).unwrap();
    let name = ServerName::try_from(NAME).unwrap();
    let checks =
        [client.recheck(chain, at(now)).check, server.recheck(chain, &name, at(now)).check];
    let allows = [client.allows(&checks[0]), server.allows(&checks[1])];
    assert_eq!(allows, checks.each_ref().map(PeerCheck::is_trusted));
    checks
}

fn reason(check: &PeerCheck) -> &str {
    match check {
        PeerCheck::Invalid { reason } | PeerCheck::RevocationUnknown { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_list_names_is_refused_in_both_roles_hard_and_soft() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let [good, bad] = [(); 2].map(|()| ca.leaf(LeafKind::Valid));
    directory.write("ca.pem", ca.pem(), 0o644);
    directory.write("crl.pem", ca.crl(&[&bad], LONG), 0o644);
    for revocation in [Revocation::Hard, Revocation::Soft] {
        let trust = trust(&directory, &["crl.pem"], revocation);
        assert_eq!(both(&trust, &good.chain, 2_000_000_000), [const { PeerCheck::Valid }; 2]);
        for check in both(&trust, &bad.chain, 2_000_000_000) {
            assert!(matches!(check, PeerCheck::Invalid { .. }), "{check:?}");
            assert!(reason(&check).contains("certificate CN=leaf was revoked: issue"), "{check:?}");
        }
    }
    let trust = trust(&directory, &["crl.pem"], Revocation::Off);
    assert_eq!(both(&trust, &bad.chain, 2_000_000_000), [const { PeerCheck::Valid }; 2]);
}

#[test]
fn without_a_current_crl_hard_rejects_and_soft_reports() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let other = Ca::new("other CA");
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("ca.pem", ca.pem() + &other.pem(), 0o644);
    directory.write("other.pem", other.crl(&[], LONG), 0o644);
    directory.write("old.pem", ca.crl(&[], 1_900_000_000), 0o644);
    for (file, words) in [
        ("other.pem", "[trust.corp] has no CRL of the CA CN=corp CA: add the CRL to `crl`"),
        ("old.pem", "the CRL of the CA CN=corp CA in [trust.corp] expired at 2030"),
    ] {
        for check in both(&trust(&directory, &[file], Revocation::Hard), &leaf.chain, 2_000_000_000)
        {
            assert!(matches!(check, PeerCheck::Invalid { .. }), "{file}: {check:?}");
            assert!(reason(&check).contains(words), "{file}: {check:?}");
        }
        for check in both(&trust(&directory, &[file], Revocation::Soft), &leaf.chain, 2_000_000_000)
        {
            assert!(matches!(check, PeerCheck::RevocationUnknown { .. }), "{file}: {check:?}");
            assert!(reason(&check).contains(words), "{file}: {check:?}");
        }
    }
    let expired = ca.leaf(LeafKind::Expired);
    for check in
        both(&trust(&directory, &["other.pem"], Revocation::Soft), &expired.chain, 2_000_000_000)
    {
        assert!(reason(&check).contains("expired at"), "soft waives nothing else: {check:?}");
    }
}

#[test]
fn a_remembered_chain_is_looked_at_again_when_a_list_is_out_of_date() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("ca.pem", ca.pem(), 0o644);
    directory.write("crl.pem", ca.crl(&[], 2_100_000_000), 0o644);
    let chains = Some(Arc::<ChainCache>::default());
    let trust = trust(&directory, &["crl.pem"], Revocation::Hard);
    let check = ClientCheck::made(&trust, Absent::Deny, Invalid::Deny).unwrap();
    let check = check.remembering(chains.as_ref());
    assert_eq!(check.recheck(&leaf.chain, at(2_000_000_000)).check, PeerCheck::Valid);
    assert_eq!(chains.as_ref().unwrap().len(), 1);
    assert_eq!(check.recheck(&leaf.chain, at(2_100_000_000)).check, PeerCheck::Valid);
    let late = check.recheck(&leaf.chain, at(2_100_000_001)).check;
    assert!(reason(&late).contains("expired at"), "{late:?}");
}

#[test]
fn of_several_lists_of_one_ca_the_newest_counts() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    let old = ca.crl_made(1_700_000_000, &[], LONG);
    let new = ca.crl_made(1_800_000_000, &[&leaf], LONG);
    directory.write("ca.pem", ca.pem(), 0o644);
    directory.write("old.pem", &old, 0o644);
    directory.write("new.pem", &new, 0o644);
    directory.write("both.pem", old + &new, 0o644);
    for files in [&["old.pem", "new.pem"][..], &["new.pem", "old.pem"], &["both.pem"]] {
        let trust = trust(&directory, files, Revocation::Hard);
        for check in both(&trust, &leaf.chain, 2_000_000_000) {
            let PeerCheck::Invalid { reason } = &check else { panic!("{files:?}: {check:?}") };
            assert!(reason.contains("was revoked"), "{reason}");
        }
    }
}

#[test]
fn another_list_is_another_trust() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    let leaf = ca.leaf(LeafKind::Valid);
    directory.write("ca.pem", ca.pem(), 0o644);
    directory.write("crl.pem", ca.crl(&[], LONG), 0o644);
    let chains = Some(Arc::<ChainCache>::default());
    let check = |trust: &LoadedTrust| {
        let check = ClientCheck::made(trust, Absent::Deny, Invalid::Deny).unwrap();
        check.remembering(chains.as_ref()).recheck(&leaf.chain, at(2_000_000_000)).check
    };
    let before = trust(&directory, &["crl.pem"], Revocation::Hard);
    assert_eq!(check(&before), PeerCheck::Valid);
    assert!(before.same(&trust(&directory, &["crl.pem"], Revocation::Hard)));
    assert!(!before.same(&trust(&directory, &["crl.pem"], Revocation::Soft)));
    directory.write("crl.pem", ca.crl(&[&leaf], LONG), 0o644);
    assert!(before.sources.iter().any(|file| file.changed()));
    let now = trust(&directory, &["crl.pem"], Revocation::Hard);
    assert!(!before.same(&now));
    assert!(reason(&check(&now)).contains("was revoked"));
}

#[test]
fn a_chain_without_a_name_is_checked_but_for_the_name() {
    let directory = Directory::new();
    let ca = Ca::new("corp CA");
    directory.write("ca.pem", ca.pem(), 0o644);
    let trust = trust(&directory, &[], Revocation::Off);
    let chains = Some(Arc::<ChainCache>::default());
    let check = ServerCheck::chain(&trust).unwrap().remembering(chains.as_ref());
    let full = ServerCheck::full(&trust).unwrap().remembering(chains.as_ref());
    let name = ServerName::try_from("elsewhere.example").unwrap();
    for (kind, believed) in [
        (LeafKind::Valid, true),
        (LeafKind::CnOnly, true),
        (LeafKind::Expired, false),
        (LeafKind::WrongUsage, false),
    ] {
        let leaf = ca.leaf(kind);
        for _ in 0..2 {
            let outcome = check.recheck(&leaf.chain, &name, at(2_000_000_000)).check;
            assert_eq!(outcome == PeerCheck::ChainValid, believed, "{kind:?}: {outcome:?}");
            assert_eq!(check.allows(&outcome), believed, "{kind:?}");
        }
        // A chain that was trusted without a name is not trusted with a name.
        let outcome = full.recheck(&leaf.chain, &name, at(2_000_000_000)).check;
        assert!(matches!(outcome, PeerCheck::Invalid { .. }), "{kind:?}: {outcome:?}");
    }
}
