//! Verifies the peers of open connections again. This is necessary when a `[trust.NAME]` table or
//! one of its files changes, and when a certificate expires.
//!
//! Each connection to a trusted peer stores a [`TrustedPeer`]: the peer's certificate chain, and
//! the names that a server's certificate must match. The caller creates a [`PeerRechecker`] from
//! the current settings of each rule. [`PeerRechecker::check`] verifies a [`TrustedPeer`], and
//! returns the result as a [`PeerCheck`]. Each chain is verified once for the same names.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use rustls::pki_types::{ServerName, UnixTime};
use tacit_core::policy::Tls;

use super::check::{PeerChain, PeerCheck};
use super::config::{
    ClientSettings, NamedCheck, ServerSettings, SettingsError, client_check, server_check,
};
use super::credentials::LoadedTrust;
use super::verify::{ClientCheck, ServerCheck};

/// A trusted peer, with the data that is needed to check it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedPeer {
    /// The chain that it sent.
    pub chain: Arc<PeerChain>,
    /// The names that a server's certificate must match; empty for clients.
    pub names: Box<[ServerName<'static>]>,
}

/// Checks the peers of one rule's open connections again.
#[derive(Debug)]
pub struct PeerRechecker {
    check: Check,
    /// The results so far, by chain and names.
    known: RefCell<HashMap<Question, PeerCheck>>,
}

/// The key of a result: the hash of a chain, and the names that the certificate must match.
type Question = ([u8; 32], Box<[ServerName<'static>]>);

#[derive(Debug)]
enum Check {
    Clients(Arc<ClientCheck>),
    Servers(Arc<ServerCheck>),
}

impl PeerRechecker {
    /// Creates the checker for a rule in the server role; `None` if the rule requests no
    /// certificates.
    #[must_use]
    pub fn clients(settings: &ServerSettings) -> Option<Self> {
        settings.client_check.as_ref().map(|check| Self::new(Check::Clients(Arc::clone(check))))
    }

    /// Creates the checker for a rule in the client role.
    #[must_use]
    pub fn servers(settings: &ClientSettings) -> Self {
        Self::new(Check::Servers(Arc::clone(&settings.check)))
    }

    /// Creates the checker for a rule that is no longer installed, with the trust that has this
    /// name now; `None` if the rule requests no certificates.
    ///
    /// # Errors
    /// The trust no longer exists, or has no anchors.
    pub fn of(tls: &Tls, trust: Option<&LoadedTrust>) -> Result<Option<Self>, SettingsError> {
        Ok(match tls {
            Tls::Server(tls) => client_check(&tls.client_cert, trust)?
                .map(|check| Self::new(Check::Clients(Arc::new(check)))),
            Tls::Client(tls) => {
                let NamedCheck { check, .. } = server_check(&tls.verify, trust)?;
                Some(Self::new(Check::Servers(Arc::new(check))))
            }
        })
    }

    fn new(check: Check) -> Self {
        Self { check, known: RefCell::default() }
    }

    /// Checks a peer that was trusted; [`PeerCheck::NotChecked`] if the rule does not check peers.
    #[must_use]
    pub fn check(&self, peer: &TrustedPeer, now: UnixTime) -> PeerCheck {
        let question = (*peer.chain.sha256(), peer.names.clone());
        let mut known = self.known.borrow_mut();
        let check = known.entry(question).or_insert_with(|| match &self.check {
            Check::Clients(check) => check.check_open(&peer.chain, now),
            Check::Servers(check) => check.check_open(&peer.chain, &peer.names, now),
        });
        check.clone()
    }

    /// Returns how many chains were verified. A chain counts once for each set of names.
    #[must_use]
    pub fn verified(&self) -> usize {
        self.known.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tacit_core::policy::{
        Absent, ChainCheck, ClientCert, ClientCertPolicy, ExpiredAnchors, Invalid, PeerName,
        Preset, Revocation, SourcePosition, Trust, TrustSource, Verify,
    };

    use super::*;
    use crate::credentials::load_trust;
    use crate::test_certificates::{Ca, Directory, Leaf, LeafKind, NAME};

    const LONG: i64 = 4_000_000_000;

    fn at(unix_seconds: i64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(unix_seconds.unsigned_abs()))
    }

    fn trust(directory: &Directory, revocation: Revocation) -> LoadedTrust {
        let trust = Trust {
            source: TrustSource::Files(vec!["ca.pem".into()]),
            pinned: Vec::new(),
            crls: vec!["ca.crl".into()],
            revocation,
            expired_anchors: ExpiredAnchors::Reject,
            position: SourcePosition::default(),
            file_positions: tacit_core::policy::FilePositions::default(),
        };
        load_trust("corp", &trust, directory.path()).unwrap()
    }

    fn peer(leaf: &Leaf, names: &[&str]) -> TrustedPeer {
        let names = names.iter().map(|name| ServerName::try_from((*name).to_owned()).unwrap());
        let chain = Arc::new(PeerChain::new(&leaf.chain[0], &leaf.chain[1..], None));
        TrustedPeer { chain, names: names.collect() }
    }

    fn both(trust: &LoadedTrust) -> [PeerRechecker; 2] {
        let level = ClientCert::Requested(ClientCertPolicy {
            preset: Some(Preset::Required),
            absent: Absent::Deny,
            chain: ChainCheck::Made {
                trust: "corp".into(),
                invalid: Invalid::Deny,
                name: PeerName::Certificate,
            },
        });
        let verify = Verify::Full { trust: "corp".into(), server_name: None };
        let clients = client_check(&level, Some(trust)).unwrap().unwrap();
        let NamedCheck { check: servers, .. } = server_check(&verify, Some(trust)).unwrap();
        [Check::Clients(Arc::new(clients)), Check::Servers(Arc::new(servers))]
            .map(PeerRechecker::new)
    }

    fn words(trust: &LoadedTrust, leaf: &Leaf, now: i64) -> [&'static str; 2] {
        let peer = peer(leaf, &[NAME]);
        both(trust).map(|recheck| recheck.check(&peer, at(now)).word())
    }

    #[test]
    fn what_was_trusted_expires_is_revoked_or_loses_its_ca() {
        let directory = Directory::new();
        let ca = Ca::new("corp CA");
        let leaf = ca.leaf_until(2_000_000_000);
        directory.write("ca.pem", ca.pem(), 0o644);
        directory.write("ca.crl", ca.crl(&[], LONG), 0o644);
        let before = trust(&directory, Revocation::Hard);
        assert_eq!(words(&before, &leaf, 1_900_000_000), ["valid"; 2]);
        assert_eq!(words(&before, &leaf, 2_000_000_001), ["expired"; 2]);
        directory.write("ca.crl", ca.crl(&[&leaf], LONG), 0o644);
        let after = trust(&directory, Revocation::Hard);
        assert_eq!(words(&after, &leaf, 1_900_000_000), ["revoked"; 2]);
        let other = Ca::new("other CA");
        directory.write("ca.pem", other.pem(), 0o644);
        let after = trust(&directory, Revocation::Off);
        assert_eq!(words(&after, &leaf, 1_900_000_000), ["invalid"; 2]);
        let [_, servers] = both(&before);
        let misnamed = servers.check(&peer(&leaf, &[NAME, "other.example"]), at(1_900_000_000));
        assert!(misnamed.reason().unwrap().contains("not for other.example"), "{misnamed:?}");
    }

    #[test]
    fn a_list_that_is_out_of_date_does_not_make_a_trusted_peer_invalid() {
        let directory = Directory::new();
        let ca = Ca::new("corp CA");
        let leaf = ca.leaf(LeafKind::Valid);
        directory.write("ca.pem", ca.pem(), 0o644);
        directory.write("ca.crl", ca.crl(&[], 1_900_000_000), 0o644);
        for revocation in [Revocation::Hard, Revocation::Soft] {
            let trust = trust(&directory, revocation);
            assert_eq!(words(&trust, &leaf, 1_800_000_000), ["valid"; 2]);
            assert_eq!(words(&trust, &leaf, 2_000_000_000), ["revocation-unknown"; 2]);
        }
    }

    #[test]
    fn each_distinct_chain_is_verified_once() {
        let directory = Directory::new();
        let ca = Ca::new("corp CA");
        let leaves = [(); 3].map(|()| ca.leaf(LeafKind::Valid));
        directory.write("ca.pem", ca.pem(), 0o644);
        directory.write("ca.crl", ca.crl(&[], LONG), 0o644);
        let [clients, _] = both(&trust(&directory, Revocation::Hard));
        for number in 0..300 {
            // The connections do not share a chain in memory.
            let peer = peer(&leaves[number % leaves.len()], &[]);
            assert_eq!(clients.check(&peer, at(1_900_000_000)), PeerCheck::Valid);
        }
        assert_eq!(clients.verified(), leaves.len());
    }

    #[test]
    fn a_chain_ends_with_each_of_its_certificates() {
        let ca = Ca::new("corp CA");
        let leaf = ca.leaf_until(2_000_000_000);
        let early = ca.leaf_until(1_900_000_000);
        let chain = PeerChain::new(&leaf.chain[0], &early.chain, None);
        let ends = [1_800_000_000, 1_900_000_001, 2_000_000_001].map(|now| chain.next_end(now));
        assert_eq!(ends, [Some(1_900_000_000), Some(2_000_000_000), None]);
        assert!(!chain.has_ended(1_900_000_000) && chain.has_ended(1_900_000_001));
    }
}
