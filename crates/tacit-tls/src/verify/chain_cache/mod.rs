//! Chains that were verified before, so that a peer seen again costs no signature of a CA.
//!
//! ```text
//!   role, trust's generation, name, every certificate's bytes --SHA-256--> key
//!   key --> the time all of the chain is valid in, and what the leaf says
//! ```
//!
//! Only what was believed is kept. It counts again for the very same question within the validity
//! of every certificate sent, and while the lists of revoked certificates are current: another
//! byte, name, role or a trust that was loaded anew is another key. What is kept proves nothing
//! about who sends the chain: that a peer holds the leaf's key is checked in every full handshake,
//! and was in the one that a resumed session began with.
//!
//! One table serves all threads, so that a chain is verified once and not once a thread; neither
//! who asks nor who adds waits for another. Limit: [`CHAINS_MAX`]. What was used last is in one
//! half, what was used before in the other; a full half pushes out the other one.

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{self, SHA256};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::check::PeerChain;
use crate::credentials::TrustGeneration;
use crate::diagnose::PeerRole;
use crate::facts::CertificateFacts;

/// A chain as it was sent.
#[derive(Clone, Copy)]
pub(super) struct SentChain<'a> {
    pub(super) leaf: &'a CertificateDer<'a>,
    pub(super) rest: &'a [CertificateDer<'a>],
}

/// Verified chains that are remembered: the peers of a large site, in some 20 MB, the
/// chains themselves included.
pub const CHAINS_MAX: usize = 4096;

/// The table.
#[derive(Debug, Default)]
pub struct ChainCache {
    halves: ArcSwap<Halves>,
}

type Half = papaya::HashMap<ChainKey, Arc<VerifiedChain>>;

#[derive(Debug, Default)]
struct Halves {
    recent: Arc<Half>,
    earlier: Arc<Half>,
}

/// What was asked of a chain, as one number that nobody finds twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChainKey([u8; 32]);

/// A chain that was believed.
#[derive(Debug)]
struct VerifiedChain {
    /// Unix seconds between which every certificate of it is valid.
    not_before: i64,
    not_after: i64,
    known: KnownChain,
}

/// What is known of a chain that was believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownChain {
    /// What its leaf says.
    pub(super) leaf: Arc<CertificateFacts>,
    /// The chain itself.
    pub(super) chain: Arc<PeerChain>,
}

impl ChainKey {
    /// `None`: a kind of name that is not known here, whose chain is always verified.
    pub(super) fn of(
        peer: PeerRole,
        trust: TrustGeneration,
        name: Option<&ServerName<'_>>,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
    ) -> Option<Self> {
        let text = name.map(ServerName::to_str).unwrap_or_default();
        let kind = match (peer, name) {
            (PeerRole::Client, _) => 0,
            (PeerRole::Server, Some(ServerName::DnsName(_))) => 1,
            (PeerRole::Server, Some(ServerName::IpAddress(_))) => 2,
            (PeerRole::Server, None) => 3,
            (PeerRole::Server, Some(_)) => return None,
        };
        let mut hash = digest::Context::new(&SHA256);
        hash.update(&[kind]);
        hash.update(&trust.number().to_be_bytes());
        // Each part after its length: no two questions run into the same bytes.
        let certificates = std::iter::once(leaf).chain(rest).map(CertificateDer::as_ref);
        for part in std::iter::once(text.as_bytes()).chain(certificates) {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finish().as_ref().try_into().ok().map(Self)
    }
}

impl VerifiedChain {
    fn holds_at(&self, now: UnixTime) -> bool {
        i64::try_from(now.as_secs())
            .is_ok_and(|now| (self.not_before..=self.not_after).contains(&now))
    }
}

impl ChainCache {
    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        let halves = self.halves.load();
        halves.recent.len() + halves.earlier.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known of the chain, if it was believed before and would be now.
    pub(super) fn find(&self, key: ChainKey, now: UnixTime) -> Option<KnownChain> {
        let halves = self.halves.load();
        let recent = halves.recent.pin();
        if let Some(verified) = recent.get(&key) {
            return verified.holds_at(now).then(|| verified.known.clone());
        }
        let verified = Arc::clone(halves.earlier.pin().get(&key)?);
        if !verified.holds_at(now) {
            return None;
        }
        let known = verified.known.clone();
        self.put(key, verified);
        Some(known)
    }

    /// Remembers a chain that was believed at `now`; returns what its leaf says. `until`: when the
    /// first list that may have told of it is out of date or its anchor expires, in unix seconds.
    pub(super) fn keep(
        &self,
        key: ChainKey,
        SentChain { leaf, rest }: SentChain<'_>,
        chain: Arc<PeerChain>,
        until: Option<i64>,
        now: UnixTime,
    ) -> Option<Arc<CertificateFacts>> {
        let leaf = Arc::new(CertificateFacts::from_der(leaf).ok()?);
        let mut not_before = leaf.not_before;
        let mut not_after = leaf.not_after;
        not_after = not_after.min(until.unwrap_or(i64::MAX));
        for above in rest {
            // It may be superfluous: the chain is good, but until when is not known.
            let Ok(above) = CertificateFacts::from_der(above) else { return Some(leaf) };
            not_before = not_before.max(above.not_before);
            not_after = not_after.min(above.not_after);
        }
        let known = KnownChain { leaf: Arc::clone(&leaf), chain };
        let verified = VerifiedChain { not_before, not_after, known };
        if verified.holds_at(now) {
            self.put(key, Arc::new(verified));
        }
        Some(leaf)
    }

    fn put(&self, key: ChainKey, verified: Arc<VerifiedChain>) {
        let halves = self.halves.load();
        halves.recent.pin().insert(key, verified);
        if halves.recent.len() >= CHAINS_MAX / 2 {
            let next = Halves { recent: Arc::default(), earlier: Arc::clone(&halves.recent) };
            // Who comes second leaves it as the first has made it.
            self.halves.compare_and_swap(&halves, Arc::new(next));
        }
    }
}

#[cfg(test)]
mod tests;
