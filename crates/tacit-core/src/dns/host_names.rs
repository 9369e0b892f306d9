//! Stores the names of each address: the names that programs have resolved to this address. `tacit
//! agent --host` uses this module. A rule with a DNS name matches a flow to an address if this
//! module has stored the name for this address.
//!
//! A name is stored only if it matches a rule. An entry is removed one day after the DNS answer has
//! expired. By then, no DNS cache of the host contains the answer.
//!
//! Limits: [`NAMES_MAX`] pairs of name and address, [`NAME_BYTES_MAX`] for a name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::names::{KnownName, NAMES_MAX, NamedDestination};

/// How long a pair is known after its answer has expired.
pub const KEPT_AFTER_TTL: Duration = Duration::from_secs(24 * 3600);
/// A pair may end earlier by this time, so that not every answer has to be stored again.
pub const STORED_EARLY: Duration = Duration::from_secs(3600);
/// The longest TTL that a program gets for a name with rules.
pub const HOST_TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest name, in bytes: the longest of DNS (RFC 1035, section 2.3.4).
pub const NAME_BYTES_MAX: usize = 253;
/// The shortest time between two searches for expired pairs in a full table.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// The number of names of a group that are passed to the decision. With two names, rules that need
/// a single server name reject the flow.
const DECIDING_MAX: usize = 2;

/// A table of names by address.
#[derive(Debug, Default)]
pub struct HostNames {
    /// The names of each address, by the rules that exist for them.
    addresses: HashMap<IpAddr, BTreeMap<Vec<u32>, Group>>,
    count: usize,
    forgotten: Option<Instant>,
}

type Group = BTreeMap<String, Entry>;

#[derive(Debug)]
struct Entry {
    until: Instant,
    /// Whether the kernel stores the pair until then.
    is_stored: bool,
}

/// A name and one of its addresses, from an answer or from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct HostAnswer<'a> {
    /// The name in lower case, without a final dot.
    pub name: &'a str,
    /// The address.
    pub address: IpAddr,
    /// The rules that the name matches.
    pub rules: &'a [u32],
    /// When the pair ends.
    pub until: Instant,
}

/// Why a pair is not learned; the program must not get the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNotLearnt {
    /// There are [`NAMES_MAX`] pairs.
    Full,
    /// The name is longer than [`NAME_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for HostNotLearnt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(
                f,
                "tacit cannot record another name, because it already has the maximum of \
                 {NAMES_MAX} pairs of name and address that match rules: use fewer wildcards \
                 (`*.`) in `remote`, or write addresses instead of names"
            ),
            Self::TooLong => {
                write!(f, "the name is longer than {NAME_BYTES_MAX} bytes, the limit of DNS")
            }
        }
    }
}

impl std::error::Error for HostNotLearnt {}

/// Whether a pair must be stored in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLearning {
    /// The pair is new, or must last longer than in the kernel.
    Store,
    /// The kernel stores the pair already.
    Known,
}

impl HostNames {
    /// Learns a pair. It counts as not stored until [`Self::set_stored`].
    ///
    /// # Errors
    /// See [`HostNotLearnt`].
    pub fn learn(
        &mut self,
        answer: HostAnswer<'_>,
        now: Instant,
    ) -> Result<HostLearning, HostNotLearnt> {
        let HostAnswer { name, rules, until, .. } = answer;
        let address = answer.address.to_canonical();
        if name.len() > NAME_BYTES_MAX {
            return Err(HostNotLearnt::TooLong);
        }
        if let Some(entry) = self.entry(address, rules, name) {
            if entry.is_stored && until <= entry.until + STORED_EARLY {
                return Ok(HostLearning::Known);
            }
            entry.until = entry.until.max(until);
            entry.is_stored = false;
            return Ok(HostLearning::Store);
        }
        if self.count >= NAMES_MAX {
            self.forget_expired(now);
        }
        if self.count >= NAMES_MAX {
            return Err(HostNotLearnt::Full);
        }
        self.insert(answer, HostLearning::Store);
        Ok(HostLearning::Store)
    }

    /// The number of pairs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds a pair that the kernel stores, unless the limit is reached.
    pub fn restore(&mut self, answer: HostAnswer<'_>) {
        let is_new = self.entry(answer.address.to_canonical(), answer.rules, answer.name).is_none();
        if is_new && self.count < NAMES_MAX && answer.name.len() <= NAME_BYTES_MAX {
            self.insert(answer, HostLearning::Known);
        }
    }

    /// Records that the kernel has a pair.
    pub fn set_stored(&mut self, address: IpAddr, rules: &[u32], name: &str) {
        if let Some(entry) = self.entry(address.to_canonical(), rules, name) {
            entry.is_stored = true;
        }
    }

    /// Extends the time of the names of an address that programs still use. Returns the names that
    /// must be stored again, with their rules.
    pub fn prolong(&mut self, address: IpAddr, until: Instant) -> Vec<(Vec<u32>, String)> {
        let mut prolonged = Vec::new();
        let groups = self.addresses.get_mut(&address.to_canonical()).into_iter().flatten();
        for (rules, group) in groups.filter(|(rules, _)| !rules.is_empty()) {
            for (name, entry) in group {
                if until > entry.until + STORED_EARLY {
                    *entry = Entry { until, is_stored: false };
                    prolonged.push((rules.clone(), name.clone()));
                }
            }
        }
        prolonged
    }

    fn insert(&mut self, answer: HostAnswer<'_>, learning: HostLearning) {
        let HostAnswer { name, address, rules, until } = answer;
        let is_stored = learning == HostLearning::Known;
        let groups = self.addresses.entry(address.to_canonical()).or_default();
        let group = groups.entry(rules.to_vec()).or_default();
        group.insert(name.to_owned(), Entry { until, is_stored });
        self.count += 1;
    }

    fn entry(&mut self, address: IpAddr, rules: &[u32], name: &str) -> Option<&mut Entry> {
        self.addresses.get_mut(&address)?.get_mut(rules)?.get_mut(name)
    }

    /// Groups all names again, for other rules.
    pub fn regroup(&mut self, rules_of: impl Fn(&str) -> Vec<u32>) {
        for groups in self.addresses.values_mut() {
            let names = std::mem::take(groups).into_values().flatten();
            for (name, entry) in names {
                groups.entry(rules_of(&name)).or_default().insert(name, entry);
            }
        }
    }

    /// Removes the pairs that have ended, at most once a minute.
    fn forget_expired(&mut self, now: Instant) {
        let is_due = |last: Instant| now.saturating_duration_since(last) >= FORGET_INTERVAL;
        if !self.forgotten.is_none_or(is_due) {
            return;
        }
        self.forgotten = Some(now);
        for groups in self.addresses.values_mut() {
            for group in groups.values_mut() {
                group.retain(|_, entry| entry.until > now);
            }
            groups.retain(|_, group| !group.is_empty());
        }
        self.addresses.retain(|_, groups| !groups.is_empty());
        let groups = self.addresses.values().flat_map(BTreeMap::values);
        self.count = groups.map(BTreeMap::len).sum();
    }

    /// The meaning of an address: two names of each group at most, after those of the host's file.
    #[must_use]
    pub fn of(&self, address: IpAddr, lasting: Vec<String>) -> NamedDestination {
        let mut names = lasting;
        let mut is_shared = false;
        let groups = self.addresses.get(&address.to_canonical()).into_iter().flatten();
        // Names without rules do not affect the decision.
        for (_, group) in groups.filter(|(rules, _)| !rules.is_empty()) {
            for name in group.keys().take(DECIDING_MAX) {
                if !names.contains(name) {
                    is_shared |= !names.is_empty();
                    names.push(name.clone());
                }
            }
        }
        NamedDestination { names, is_shared, address, alias: None }
    }

    /// Every pair, with the time until it ends.
    #[must_use]
    pub fn all(&self, now: Instant) -> Vec<KnownName> {
        let mut all = Vec::with_capacity(self.count);
        for (address, groups) in &self.addresses {
            for (name, entry) in groups.values().flatten() {
                let remaining = entry.until.saturating_duration_since(now);
                let known = KnownName {
                    name: name.clone(),
                    address: *address,
                    alias: None,
                    is_shared: false,
                    remaining,
                };
                all.push(known);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn ip(last: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + last).to_be_bytes())
    }

    fn answer(name: &str, address: IpAddr, until: Instant) -> HostAnswer<'_> {
        HostAnswer { name, address, rules: &[1], until }
    }

    fn names_of(names: &HostNames, address: IpAddr) -> Vec<String> {
        names.of(address, Vec::new()).names
    }

    #[test]
    fn a_pair_is_stored_again_when_it_lasts_much_longer() {
        let mut names = HostNames::default();
        let now = Instant::now();
        let name = "db.example";
        let first = answer(name, ip(1), now + DAY);
        assert_eq!(names.learn(first, now), Ok(HostLearning::Store));
        assert_eq!(names.learn(first, now), Ok(HostLearning::Store), "the kernel has refused it");
        names.set_stored(ip(1), &[1], name);
        let soon = answer(name, ip(1), now + DAY + STORED_EARLY);
        assert_eq!(names.learn(soon, now), Ok(HostLearning::Known));
        let later = answer(name, ip(1), now + DAY + 2 * STORED_EARLY);
        assert_eq!(names.learn(later, now), Ok(HostLearning::Store));
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(names_of(&names, mapped), [name]);
    }

    #[test]
    fn two_names_of_a_group_decide_and_names_without_rules_do_not() {
        let mut names = HostNames::default();
        let until = Instant::now() + DAY;
        for (name, rules) in
            [("c.example", &[1][..]), ("a.example", &[1]), ("b.example", &[1]), ("d.example", &[2])]
        {
            names.restore(HostAnswer { name, address: ip(1), rules, until });
        }
        let found = names.of(ip(1), vec!["file".to_owned(), "a.example".to_owned()]);
        assert_eq!(found.names, ["file", "a.example", "b.example", "d.example"]);
        assert!(found.is_shared);
        names.regroup(|name| if name == "c.example" { vec![7] } else { Vec::new() });
        assert_eq!(names_of(&names, ip(1)), ["c.example"]);
        assert!(!names.of(ip(1), Vec::new()).is_shared);
        assert_eq!(names.all(until).len(), 4, "their rules may come back");
    }

    #[test]
    fn names_of_an_address_in_use_last_longer() {
        let mut names = HostNames::default();
        let now = Instant::now();
        names.restore(answer("a.example", ip(1), now + DAY));
        names.restore(answer("b.example", ip(1), now + 9 * DAY));
        names.restore(HostAnswer { rules: &[], ..answer("c.example", ip(1), now + DAY) });
        let prolonged = names.prolong(ip(1), now + 8 * DAY);
        assert_eq!(prolonged, [(vec![1], "a.example".to_owned())]);
        names.set_stored(ip(1), &[1], "a.example");
        assert!(names.prolong(ip(1), now + 8 * DAY + STORED_EARLY).is_empty());
        assert!(names.prolong(ip(2), now + 8 * DAY).is_empty());
        let known = answer("a.example", ip(1), now + DAY);
        assert_eq!(names.learn(known, now), Ok(HostLearning::Known));
    }

    #[test]
    fn a_full_table_has_room_again_when_pairs_have_ended() {
        let mut names = HostNames::default();
        let now = Instant::now();
        let limit = u32::try_from(NAMES_MAX).unwrap();
        for last in 0..limit {
            names.restore(answer("a.example", ip(last), now + DAY));
        }
        let more = answer("more.example", ip(limit), now + 3 * DAY);
        assert_eq!(names.learn(more, now), Err(HostNotLearnt::Full));
        assert_eq!(names_of(&names, ip(limit)), [""; 0]);
        assert_eq!(names.learn(more, now + 2 * DAY), Ok(HostLearning::Store));
        assert_eq!(names.all(now).len(), 1);
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(names.learn(answer(&long, ip(1), now), now), Err(HostNotLearnt::TooLong));
    }

    proptest! {
        #[test]
        fn every_group_of_an_address_has_a_name_among_those_that_decide(
            pairs in prop::collection::vec((0_u32..3, 0_u8..9, 0_u32..4), 0..40),
        ) {
            let mut names = HostNames::default();
            let now = Instant::now();
            for (last, name, _) in &pairs {
                let name = format!("n{name}.example");
                names.learn(answer(&name, ip(*last), now + DAY), now).unwrap();
            }
            // The rules of a name are a function of it.
            names.regroup(|name| vec![u32::from(name.as_bytes()[1]) % 3]);
            for (last, name, _) in &pairs {
                let found = names_of(&names, ip(*last));
                let digit = u32::from(format!("{name}").as_bytes()[0]);
                let same = found.iter().filter(|one| u32::from(one.as_bytes()[1]) % 3 == digit % 3);
                prop_assert!((1..=DECIDING_MAX).contains(&same.count()));
            }
        }
    }
}
