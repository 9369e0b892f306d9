//! Caches trusted certificate chains, so that the verifier does not check the signatures of a known
//! chain again.
//!
//! ```text
//!   role, trust generation, server name, bytes of all certificates --SHA-256--> cache key
//!   cache key --> the period in which the whole chain is valid, and the parsed leaf certificate
//! ```
//!
//! An entry is valid while all its certificates are valid and the revocation lists (CRLs) are
//! current. Each time the agent loads a `[trust.NAME]` table, the table gets a new *trust
//! generation*, so that no earlier entry matches. Any peer can send a cached chain, so every full
//! handshake still checks that the peer holds the private key.
//!
//! All threads share the cache without waiting for each other. Limit: [`CHAINS_MAX`] chains.

use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::digest::{self, SHA256};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::check::PeerChain;
use crate::credentials::TrustGeneration;
use crate::diagnose::PeerRole;
use crate::facts::CertificateFacts;

/// A chain as the peer sent it.
#[derive(Clone, Copy)]
pub(super) struct SentChain<'a> {
    pub(super) leaf: &'a CertificateDer<'a>,
    pub(super) rest: &'a [CertificateDer<'a>],
}

/// Maximum number of cached chains: enough for the peers of a large site, in about 20 MB.
pub const CHAINS_MAX: usize = 4096;

/// The cache of verified chains.
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

/// The hash of a check: role, trust, name and chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChainKey([u8; 32]);

/// A trusted chain.
#[derive(Debug)]
struct VerifiedChain {
    /// The time in which all certificates of the chain are valid, in unix seconds.
    not_before: i64,
    not_after: i64,
    known: KnownChain,
}

/// The facts of a trusted chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownChain {
    /// The facts of its leaf.
    pub(super) leaf: Arc<CertificateFacts>,
    /// The chain itself.
    pub(super) chain: Arc<PeerChain>,
}

impl ChainKey {
    /// Computes the key; `None` for an unknown type of name, because such chains are always
    /// verified.
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
        // The length of each part precedes it, so that two different checks never give the same
        // bytes.
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
    /// Returns the number of cached chains.
    #[must_use]
    pub fn len(&self) -> usize {
        let halves = self.halves.load();
        halves.recent.len() + halves.earlier.len()
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the facts of the chain if it was trusted before and still is.
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

    /// Adds a chain that is trusted at `now`, and returns the facts of its leaf. `until` is when
    /// the first CRL becomes outdated or the anchor expires, in unix seconds.
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
            // The chain is valid, perhaps without this certificate, but its end is unknown. So it
            // is not cached.
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
            // If another thread was first, its exchange is kept.
            self.halves.compare_and_swap(&halves, Arc::new(next));
        }
    }
}

#[cfg(test)]
mod tests;
