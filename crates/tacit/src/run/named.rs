//! Computes, for `tacit agent --host`, which addresses the kernel must capture for the DNS names in
//! policy rules. The result is a set of pairs. Each pair is an address and a group of ports.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tacit_core::dns::{
    HOST_TTL_MAX, HostNotLearnt, HostsEntry, KEPT_AFTER_TTL, KnownName, STORED_EARLY, is_nameable,
};
use tacit_core::policy::{NameRules, NamedAddress};
use tacit_sys::netlink::nft::host::NAMED_ADDRESSES_MAX;

/// Why an answer cannot be given to a program: its addresses would not be captured.
#[derive(Debug)]
pub enum LearnError {
    /// The table of names rejects the name.
    NotLearnt(HostNotLearnt),
    /// [`NAMED_ADDRESSES_MAX`] pairs of address and part are captured.
    Full,
    /// The kernel or the helper refuses.
    Kernel(io::Error),
}

impl fmt::Display for LearnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLearnt(error) => error.fmt(f),
            Self::Full => write!(
                f,
                "tacit cannot capture more addresses of DNS names, because the limit of \
                 {NAMED_ADDRESSES_MAX} combinations of address and ports is reached: use fewer \
                 wildcards (`*.`) in `remote`, or set the same `remote-ports` in all rules that \
                 have host names in `remote`"
            ),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LearnError {}

/// The end of a pair of name and address whose answer is valid for this time.
#[must_use]
pub fn end_of(ttl: Duration, now: Instant) -> Instant {
    now + ttl.min(HOST_TTL_MAX) + KEPT_AFTER_TTL + STORED_EARLY
}

/// Captured pairs of address and part, and their ends; `None` for names in the host's `/etc/hosts`.
type Pairs = HashMap<(IpAddr, u32), Option<Instant>>;

/// The pairs that the kernel has, and the rules that they were computed from.
#[derive(Debug, Default)]
pub struct NamedCapture {
    rules: NameRules,
    pairs: Pairs,
}

impl NamedCapture {
    /// Computes the pairs from the recorded names and the host's `/etc/hosts`.
    #[must_use]
    pub fn of(rules: NameRules, named: &[KnownName], hosts: &[HostsEntry], now: Instant) -> Self {
        let mut pairs = Pairs::new();
        for KnownName { name, address, remaining, .. } in named {
            for part in rules.parts(&rules.rules_of(name)) {
                let until = pairs.entry((*address, part)).or_insert(Some(now));
                *until = (*until).max(Some(now + *remaining));
            }
        }
        for HostsEntry { address, name } in hosts.iter().filter(|one| is_nameable(one.address)) {
            for part in rules.parts(&rules.rules_of(name)) {
                pairs.insert((address.to_canonical(), part), None);
            }
        }
        Self { rules, pairs }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &NameRules {
        &self.rules
    }

    /// Whether both capture the same pairs.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_lasting = |pairs: &Pairs, pair: &(IpAddr, u32)| pairs[pair].is_none();
        self.rules == other.rules
            && self.pairs.len() == other.pairs.len()
            && self.pairs.keys().all(|pair| {
                other.pairs.contains_key(pair)
                    && is_lasting(&self.pairs, pair) == is_lasting(&other.pairs, pair)
            })
    }

    /// The pairs of an address that the kernel does not have, or not for this time.
    ///
    /// # Errors
    /// There are too many pairs.
    pub fn missing(
        &mut self,
        name: &str,
        address: IpAddr,
        until: Instant,
        now: Instant,
    ) -> Result<Vec<NamedAddress>, LearnError> {
        let parts: BTreeSet<u32> = self.rules.parts(&self.rules.rules_of(name));
        let is_there = |part: &u32| {
            let has = |end: &Option<Instant>| end.is_none_or(|end| until <= end + STORED_EARLY);
            self.pairs.get(&(address, *part)).is_some_and(has)
        };
        let missing: Vec<u32> = parts.into_iter().filter(|part| !is_there(part)).collect();
        if self.pairs.len() + missing.len() > NAMED_ADDRESSES_MAX {
            self.pairs.retain(|_, end| end.is_none_or(|end| end > now));
        }
        if self.pairs.len() + missing.len() > NAMED_ADDRESSES_MAX {
            return Err(LearnError::Full);
        }
        let seconds = Some(until.saturating_duration_since(now).as_secs());
        Ok(missing.into_iter().map(|part| NamedAddress { address, part, seconds }).collect())
    }

    /// Records that the kernel has these pairs. Those that it has for longer keep their end.
    pub fn add(&mut self, added: &[NamedAddress], now: Instant) {
        for one in added {
            let until = one.seconds.map(|seconds| now + Duration::from_secs(seconds));
            let end = self.pairs.entry((one.address, one.part)).or_insert(until);
            *end = end.zip(until).map(|(end, until)| end.max(until));
        }
    }

    /// Every pair, for the helper.
    #[must_use]
    pub fn addresses(&self, now: Instant) -> Vec<NamedAddress> {
        let left = |end: Instant| end.saturating_duration_since(now).as_secs();
        let pairs = self.pairs.iter().filter(|(_, end)| end.is_none_or(|end| end > now));
        let all = pairs.map(|(&(address, part), end)| NamedAddress {
            address,
            part,
            seconds: end.map(left),
        });
        all.collect()
    }

    /// The number of pairs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::parse;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn rules() -> NameRules {
        let text = "version = 1\n[host]\nunmatched = \"permit\"\n\
                    [[rule]]\nname = \"a\"\ndirection = \"outbound\"\nremote = \"*.example\"\n\
                    remote-ports = [80, 443]\ndeny = true\n\
                    [[rule]]\nname = \"b\"\ndirection = \"outbound\"\nremote = \"db.example\"\n\
                    remote-ports = 443\ndeny = true\n";
        NameRules::of(&parse(text).policy.unwrap(), 0).unwrap()
    }

    fn known(name: &str, address: IpAddr, remaining: Duration) -> KnownName {
        KnownName { name: name.to_owned(), address, alias: None, is_shared: false, remaining }
    }

    #[test]
    fn names_and_the_hosts_file_result_in_pairs_that_end_with_the_last_name() {
        let now = Instant::now();
        let [one, two] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let named =
            [known("a.example", one, DAY), known("db.example", one, 2 * DAY), known("c", two, DAY)];
        let hosts = [HostsEntry { address: two, name: "db.example".to_owned() }];
        let capture = NamedCapture::of(rules(), &named, &hosts, now);
        let mut found: Vec<_> = capture.addresses(now);
        found.sort_by_key(|pair| (pair.address, pair.part));
        let found: Vec<_> =
            found.iter().map(|pair| (pair.address, pair.part, pair.seconds)).collect();
        let days = |count| Some(count * DAY.as_secs());
        assert_eq!(found, [(one, 0, days(2)), (one, 1, days(2)), (two, 0, None), (two, 1, None)]);
        assert!(capture.is_same(&NamedCapture::of(rules(), &named, &hosts, now + DAY)));
        assert!(!capture.is_same(&NamedCapture::of(rules(), &named, &[], now)));
        assert_eq!(capture.addresses(now + 3 * DAY).len(), 2, "the others have ended");
    }

    #[test]
    fn a_pair_is_missing_until_it_is_added_and_when_it_lasts_longer() {
        let now = Instant::now();
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut capture = NamedCapture::of(rules(), &[], &[], now);
        let until = end_of(Duration::from_secs(60), now);
        let missing = |capture: &mut NamedCapture, name: &str, until| {
            capture.missing(name, address, until, now).unwrap()
        };
        let added = missing(&mut capture, "a.example", until);
        assert_eq!(added.len(), 2);
        assert_eq!(missing(&mut capture, "a.example", until).len(), 2);
        capture.add(&added, now);
        assert!(missing(&mut capture, "db.example", until + STORED_EARLY / 2).is_empty());
        assert_eq!(missing(&mut capture, "a.example", until + DAY).len(), 2);
        assert!(missing(&mut capture, "other", until).is_empty());
    }

    #[test]
    fn a_full_table_takes_no_more_pairs() {
        let now = Instant::now();
        let address = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        let named: Vec<_> = (0..u32::try_from(NAMED_ADDRESSES_MAX).unwrap() / 2)
            .map(|number| known("a.example", address(number), DAY))
            .collect();
        let mut capture = NamedCapture::of(rules(), &named, &[], now);
        assert_eq!(capture.count(), NAMED_ADDRESSES_MAX);
        let more = address(u32::MAX >> 8);
        let full = capture.missing("a.example", more, now + 9 * DAY, now);
        assert!(matches!(full, Err(LearnError::Full)));
        let later = capture.missing("a.example", more, now + 9 * DAY, now + 2 * DAY);
        assert_eq!(later.unwrap().len(), 2);
    }
}
