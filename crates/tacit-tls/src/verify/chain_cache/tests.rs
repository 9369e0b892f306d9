//! Tests the cache of certificate chains: which chains the cache accepts without another
//! verification, and which chains it rejects.

use std::cell::Cell;
use std::time::Duration;

use rustls::{CertificateError, Error};

use super::super::trust_check::{ChainCheckResult, TrustCheck};
use super::super::{ClientCheck, ServerCheck};
use super::*;
use crate::check::PeerCheck;
use crate::credentials::{LoadedTrust, load_trust};
use crate::test_certificates::{Ca, Directory, Leaf, LeafKind, NAME};

/// A check that counts its verifications.
struct Counted {
    full: TrustCheck<()>,
    verified: Cell<u32>,
}

impl Counted {
    fn new(chains: &Arc<ChainCache>, generation: TrustGeneration) -> Self {
        let trust = "corp".to_owned();
        let chains = Some(Arc::clone(chains));
        let full = TrustCheck {
            trust,
            generation,
            verifier: Arc::new(()),
            accepting_unknown: None,
            crls: Vec::new(),
            chains,
        };
        Self { full, verified: Cell::new(0) }
    }

    /// Whether the chain was verified; otherwise it was found in the cache.
    fn verifies(
        &self,
        peer: PeerRole,
        chain: &[CertificateDer<'_>],
        name: Option<&str>,
        now: UnixTime,
    ) -> bool {
        let before = self.verified.get();
        let (leaf, rest) = chain.split_first().unwrap();
        let name = name.map(|name| ServerName::try_from(name).unwrap());
        let ChainCheckResult { checked, verdict } =
            self.full.check_by(peer, SentChain { leaf, rest }, name.as_ref(), now, |()| {
                self.verified.set(before + 1);
                Ok(None)
            });
        assert!(verdict.is_ok() && checked.check == PeerCheck::Valid);
        assert_eq!(checked.leaf.unwrap().subject, "CN=leaf");
        self.verified.get() > before
    }
}

fn at(unix_seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(unix_seconds))
}

fn trust(ca: &Ca) -> LoadedTrust {
    let directory = Directory::new();
    directory.write("ca.pem", ca.pem(), 0o644);
    loaded(&directory)
}

fn loaded(directory: &Directory) -> LoadedTrust {
    let source = tacit_core::policy::TrustSource::Files(vec!["ca.pem".into()]);
    let position = tacit_core::policy::SourcePosition::default();
    let crls = Vec::new();
    let revocation = tacit_core::policy::Revocation::Off;
    let trust = tacit_core::policy::Trust {
        source,
        pinned: Vec::new(),
        crls,
        revocation,
        expired_anchors: tacit_core::policy::ExpiredAnchors::Reject,
        position,
        file_positions: tacit_core::policy::FilePositions::default(),
    };
    load_trust("corp", &trust, directory.path()).unwrap()
}

fn required(trust: &LoadedTrust) -> ClientCheck {
    use tacit_core::policy::{Absent, Invalid};
    ClientCheck::made(trust, Absent::Deny, Invalid::Deny).unwrap()
}

fn is_refused(check: &PeerCheck) -> bool {
    matches!(check, PeerCheck::Invalid { .. })
}

#[test]
fn a_chain_seen_again_is_not_verified_again() {
    let ca = Ca::new("corp CA");
    let chain = [ca.leaf(LeafKind::Valid).chain.remove(0), ca.der()];
    let chains = Arc::default();
    let check = Counted::new(&chains, TrustGeneration::next());
    let now = UnixTime::now();
    assert!(check.verifies(PeerRole::Client, &chain, None, now));
    assert!(!check.verifies(PeerRole::Client, &chain, None, now));
    assert_eq!(chains.len(), 1);

    let off = TrustCheck { chains: None, ..check.full };
    let off = Counted { full: off, verified: Cell::new(0) };
    let sent = SentChain { leaf: &chain[0], rest: &chain[1..] };
    for _ in 0..2 {
        let verified = off.verified.get();
        let verify = |(): &()| {
            off.verified.set(verified + 1);
            Ok(None)
        };
        assert!(off.full.check_by(PeerRole::Client, sent, None, now, verify).verdict.is_ok());
    }
    assert_eq!(off.verified.get(), 2, "without a table every chain is verified");
}

#[test]
fn it_counts_for_the_very_same_question_only() {
    let ca = Ca::new("corp CA");
    let Leaf { chain, .. } = ca.leaf(LeafKind::Valid);
    let now = UnixTime::now();
    let chains = Arc::default();
    let check = Counted::new(&chains, TrustGeneration::next());
    let server = |chain: &[_], name| check.verifies(PeerRole::Server, chain, Some(name), now);
    assert!(server(&chain, NAME) && !server(&chain, NAME));

    assert!(server(&chain, "other.example"), "another name");
    assert!(server(&chain, "10.7.0.1"), "an address");
    assert!(check.verifies(PeerRole::Client, &chain, None, now), "another role");
    assert!(server(&[chain[0].clone(), ca.der()], NAME), "a certificate more");
    assert!(server(&ca.leaf(LeafKind::Valid).chain, NAME), "another leaf of the same names");
    let reloaded = Counted::new(&chains, TrustGeneration::next());
    assert!(reloaded.verifies(PeerRole::Server, &chain, Some(NAME), now), "the trust loaded anew");
    assert!(!server(&chain, NAME));
}

#[test]
fn what_was_refused_is_never_remembered() {
    let ca = Ca::new("corp CA");
    let Leaf { chain, .. } = ca.leaf(LeafKind::Valid);
    let chains = Arc::default();
    let Counted { full, .. } = Counted::new(&chains, TrustGeneration::next());
    let sent = SentChain { leaf: &chain[0], rest: &[] };
    for _ in 0..2 {
        let refuse = |(): &()| Err(Error::InvalidCertificate(CertificateError::Revoked));
        let ChainCheckResult { checked, verdict } =
            full.check_by(PeerRole::Client, sent, None, UnixTime::now(), refuse);
        assert!(verdict.is_err() && is_refused(&checked.check) && chains.is_empty());
    }
}

#[test]
fn it_falls_when_the_first_of_its_certificates_expires() {
    let ca = Ca::new("corp CA");
    let Leaf { chain: leaf, .. } = ca.leaf_until(2_000_000_000);
    let Leaf { chain: above, .. } = ca.leaf_until(1_900_000_000);
    let chain = [leaf[0].clone(), above[0].clone()];
    let chains = Arc::default();
    let check = Counted::new(&chains, TrustGeneration::next());
    let client = |chain: &[_], seconds| check.verifies(PeerRole::Client, chain, None, at(seconds));
    assert!(client(&chain, 1_800_000_000) && !client(&chain, 1_900_000_000));
    assert!(client(&chain, 1_900_000_001), "the one above the leaf has expired");
    assert!(client(&chain, 1_900_000_001), "and cannot be remembered any more");
    assert!(client(&chain, 1_500_000_000), "before its time it was not valid either");

    assert!(client(&leaf, 1_800_000_000) && !client(&leaf, 2_000_000_000));
    let trust = trust(&ca);
    let chains: Arc<ChainCache> = Arc::default();
    let real = required(&trust).remembering(Some(&chains));
    assert_eq!(real.recheck(&leaf, at(2_000_000_000)).check, PeerCheck::Valid);
    assert_eq!(chains.len(), 1);
    assert!(is_refused(&real.recheck(&leaf, at(2_000_000_001)).check), "expired after it was kept");
}

#[test]
fn another_name_or_usage_is_refused_though_the_chain_is_known() {
    let ca = Ca::new("corp CA");
    let trust = trust(&ca);
    let chains: Arc<ChainCache> = Arc::default();
    let server = ServerCheck::full(&trust).unwrap().remembering(Some(&chains));
    let client = required(&trust).remembering(Some(&chains));
    let Leaf { chain, .. } = ca.leaf(LeafKind::ServerOnly);
    let now = UnixTime::now();
    let named = |name| server.recheck(&chain, &ServerName::try_from(name).unwrap(), now).check;
    assert_eq!(named(NAME), PeerCheck::Valid);
    assert!(is_refused(&named("other.example")) && is_refused(&named("10.9.9.9")));
    assert!(is_refused(&client.recheck(&chain, now).check), "it is for servers");
    assert_eq!(named(NAME), PeerCheck::Valid);
    assert_eq!(chains.len(), 1);
}

#[test]
fn a_trust_loaded_again_trusts_nothing_that_only_the_old_one_trusted() {
    let directory = Directory::new();
    let old = Ca::new("corp CA");
    let new = Ca::new("corp CA");
    let Leaf { chain, .. } = old.leaf(LeafKind::Valid);
    let chains: Arc<ChainCache> = Arc::default();
    let now = UnixTime::now();
    let check = || {
        let check = required(&loaded(&directory));
        check.remembering(Some(&chains)).recheck(&chain, now).check
    };
    directory.write("ca.pem", old.pem(), 0o644);
    assert_eq!(check(), PeerCheck::Valid);
    directory.write("ca.pem", new.pem(), 0o644);
    assert!(is_refused(&check()));
}

#[test]
fn the_table_stays_within_its_limit_and_keeps_what_is_used() {
    let chains = ChainCache::default();
    let Leaf { chain, .. } = Ca::new("corp CA").leaf(LeafKind::Valid);
    let leaf = Arc::new(CertificateFacts::from_der(&chain[0]).unwrap());
    let known = KnownChain {
        leaf: Arc::clone(&leaf),
        chain: Arc::new(PeerChain::new(&chain[0], &[], None)),
    };
    let add = |number: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        let not_before = leaf.not_before;
        let not_after = leaf.not_after;
        let verified = VerifiedChain { not_before, not_after, known: known.clone() };
        chains.put(ChainKey(key), Arc::new(verified));
    };
    let now = UnixTime::now();
    add(0);
    for number in 1..3 * CHAINS_MAX as u64 {
        add(number);
        assert!(chains.len() <= CHAINS_MAX, "{} after {number}", chains.len());
        if number % 1000 == 0 {
            assert!(chains.find(ChainKey([0; 32]), now).is_some(), "in use at {number}");
        }
    }
    let mut second = [0; 32];
    second[7] = 1;
    assert!(chains.find(ChainKey(second), now).is_none(), "not used since the beginning");
}
