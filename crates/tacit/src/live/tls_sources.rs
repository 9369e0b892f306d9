//! Records the sources of clients that have used TLS, for rules that accept both TLS and clear text
//! (`accept = "both"`).
//!
//! A source is an IPv4 address or an IPv6 /64 network. When [`NETWORKS_PER_SITE_MAX`] sources of
//! one /48 network are recorded, the whole /48 network counts as one source. So one site cannot
//! fill the table of sources.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::address::Source;

/// The largest number of recorded sources of one rule.
pub const TLS_SOURCES_MAX: usize = 65_536;

/// The number of IPv6 networks (/64) of one site (/48) that are recorded separately.
pub const NETWORKS_PER_SITE_MAX: usize = 256;

/// The recorded sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TlsSources {
    single: BTreeSet<Source>,
    /// The first 48 bits of IPv6 addresses.
    #[serde(default)]
    sites: BTreeSet<u64>,
}

impl TlsSources {
    fn len(&self) -> usize {
        self.single.len() + self.sites.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= TLS_SOURCES_MAX
    }

    pub(super) fn contains(&self, source: Source) -> bool {
        self.single.contains(&source)
            || site_of(source).is_some_and(|site| self.sites.contains(&site))
    }

    /// Adds a source, if there is room.
    pub(super) fn add(&mut self, source: Source) {
        if self.is_full() || self.contains(source) {
            return;
        }
        self.single.insert(source);
        if let Some(site) = site_of(source) {
            self.merge(site);
        }
    }

    /// Merges the networks of a site into one source when the site has reached its limit.
    fn merge(&mut self, site: u64) {
        let networks = Source::V6(site << 16)..=Source::V6(site << 16 | 0xffff);
        if self.single.range(networks.clone()).count() < NETWORKS_PER_SITE_MAX {
            return;
        }
        self.single.retain(|one| !networks.contains(one));
        self.sites.insert(site);
    }

    /// Adds all sources of another table, as far as there is room.
    pub(super) fn extend(&mut self, other: Self) {
        let free = TLS_SOURCES_MAX.saturating_sub(self.len());
        self.sites.extend(other.sites.into_iter().take(free));
        for source in other.single {
            self.add(source);
        }
    }
}

/// The first 48 bits of an IPv6 address.
fn site_of(source: Source) -> Option<u64> {
    match source {
        Source::V6(network) => Some(network >> 16),
        Source::V4(_) | Source::Local => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(site: u64, number: u64) -> Source {
        Source::V6(site << 16 | number)
    }

    #[test]
    fn a_site_with_many_networks_is_one_source_and_others_are_not_of_it() {
        let mut sources = TlsSources::default();
        let max = u64::try_from(NETWORKS_PER_SITE_MAX).unwrap();
        for number in 0..max - 1 {
            sources.add(network(7, number));
        }
        assert!(!sources.contains(network(7, 0xffff)));
        for number in max - 1..0x1_0000 {
            sources.add(network(7, number));
        }
        assert_eq!((sources.len(), sources.is_full()), (1, false));
        assert!(sources.contains(network(7, 0)) && sources.contains(network(7, 0xffff)));
        assert!(!sources.contains(network(6, 0)) && !sources.contains(network(8, 0)));
    }

    #[test]
    fn a_successor_has_the_same_sources() {
        let mut sources = TlsSources::default();
        for source in
            (0..300).map(|number| network(1, number)).chain([Source::V4(9), Source::Local])
        {
            sources.add(source);
        }
        let mut successor = TlsSources::default();
        successor.extend(sources.clone());
        assert_eq!(successor, sources);
    }
}
