//! Maps addresses to names: the names that programs resolved, and the names in the host's
//! `/etc/hosts`.
//!
//! The first name of an address gets the address itself, and keeps this address as long as the
//! [`NameTable`] exists. Every further name of this address gets an *alias*. An alias is a reserved
//! address that stands for one name and one true address. If aliases are disabled, the names share
//! the address.
//!
//! Entries do not expire with the TTL of the answer, because a program may use an address for
//! longer.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::dns::aliases::{AliasPolicy, AliasRanges, Aliases};
use crate::dns::hosts::HostsEntry;

/// The largest number of pairs of name and address. Further pairs are not learned.
pub const NAMES_MAX: usize = 65_536;
/// The largest TTL of an answer.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The largest number of names of one address, if names get no alias addresses. Further names are
/// not learned.
pub const SHARING_MAX: usize = 32;

/// Whether a name may have this address. Programs must reach this host, this link and multicast
/// groups by address only: a DNS answer must not lead a program there.
#[must_use]
pub fn is_nameable(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            !(first == 0 || v4.is_loopback() || v4.is_link_local() || first >= 224)
        }
        IpAddr::V6(v6) => {
            // 0::/16 contains the unspecified address, the loopback address and the mapped
            // addresses.
            let first = v6.segments()[0];
            !(first == 0 || v6.is_unicast_link_local() || v6.is_multicast())
        }
    }
}

/// The largest number of new pairs that are kept for [`NameTable::take_fresh`].
pub const FRESH_MAX: usize = 1024;

/// A table of the names of addresses.
#[derive(Debug, Default)]
pub struct NameTable {
    /// Names from the host's file.
    lasting: HashMap<IpAddr, Vec<String>>,
    /// The names from DNS, by the address that programs use: the true address for the owner, the
    /// alias address for every other name.
    learnt: HashMap<IpAddr, Entry>,
    /// The alias addresses, by name and true address.
    aliases: HashMap<HostsEntry, IpAddr>,
    /// The other names that share an address, by true address.
    sharing: HashMap<IpAddr, Vec<Entry>>,
    /// The number of entries in `sharing`.
    sharing_count: usize,
    /// The numbers of the last alias addresses.
    numbers: Numbers,
    /// The number of pairs learned so far.
    news: u64,
    /// The new pairs that have not been taken yet; empty if there were too many.
    fresh: Vec<KnownName>,
    /// Whether there were more than [`FRESH_MAX`] new pairs.
    has_more_fresh: bool,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// The true address.
    address: IpAddr,
    /// When the last answer for the name expires.
    until: Instant,
}

/// The number of the last alias address of each family. Alias addresses are not reused, so that an
/// address has only one meaning.
#[derive(Debug, Default)]
struct Numbers {
    ranges: AliasRanges,
    v4: u32,
    v6: u32,
}

/// An answer for a name.
#[derive(Clone, Copy, Debug)]
pub struct Learning<'a> {
    /// The name in the question; lower case, no final dot.
    pub name: &'a str,
    /// An address of the name.
    pub address: IpAddr,
    /// How long it is valid.
    pub ttl: Duration,
    /// Whether a rule that matches by address may decide differently from the rule of the name. If
    /// so, the name does not own the address.
    pub is_disputed: bool,
    /// The alias settings of the policy.
    pub aliases: Aliases,
}

/// The reason why a pair of name and address is not learned. The program must not get the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLearnt {
    /// There are [`NAMES_MAX`] pairs.
    Full,
    /// [`SHARING_MAX`] names share the address.
    Shared,
    /// All alias addresses of the range are in use.
    NoAlias,
    /// The address is reserved for alias addresses; see [`Aliases::reserves`].
    Reserved,
}

impl fmt::Display for NotLearnt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(
                f,
                "tacit cannot record another name for this run, because the run already has the \
                 maximum of {NAMES_MAX} pairs of name and address: start the run again"
            ),
            Self::Shared => write!(
                f,
                "this address already has {SHARING_MAX} names, the maximum with aliases = \
                 \"never\": set aliases = \"conflict\" in [agent], so that DNS \
                 answers contain an alias address for each further name"
            ),
            Self::NoAlias => f.write_str(
                "all addresses in `alias-ranges` of [agent] are already assigned to names: set a \
                 larger network in `alias-ranges`, and start the run again",
            ),
            Self::Reserved => f.write_str(
                "the resolver returned an address in `alias-ranges` of [agent], but these \
                 addresses are reserved for the agent: set other networks in `alias-ranges`, or \
                 assign another address to the host with this name",
            ),
        }
    }
}

impl std::error::Error for NotLearnt {}

/// The meaning of an address that a program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDestination {
    /// The name of the address. There are several names if the host's file contains several or if
    /// names get no alias addresses.
    pub names: Vec<String>,
    /// Whether DNS returned the address for a name although another name owns it.
    pub is_shared: bool,
    /// The true address.
    pub address: IpAddr,
    /// The address that the program used, if it is an alias address.
    pub alias: Option<IpAddr>,
}

/// A name that was resolved, and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownName {
    /// The name.
    pub name: String,
    /// The true address.
    pub address: IpAddr,
    /// The alias address that programs use instead, if any.
    pub alias: Option<IpAddr>,
    /// Whether another name has the same address.
    pub is_shared: bool,
    /// How long the pair is still valid. If it is zero, connections to the address have no name,
    /// but no other name gets the address either.
    pub remaining: Duration,
}

impl KnownName {
    /// Returns the address that programs use.
    #[must_use]
    pub fn used(&self) -> IpAddr {
        self.alias.unwrap_or(self.address)
    }
}

impl NameTable {
    /// Replaces the names from the host's file; returns whether they changed.
    pub fn set_lasting(&mut self, hosts: impl IntoIterator<Item = HostsEntry>) -> bool {
        let mut lasting: HashMap<IpAddr, Vec<String>> = HashMap::new();
        for HostsEntry { address, name } in
            hosts.into_iter().filter(|host| is_nameable(host.address))
        {
            let names = lasting.entry(address.to_canonical()).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let is_news = lasting != self.lasting;
        self.lasting = lasting;
        is_news
    }

    /// Learns an answer, and returns the address for the program: the true address or an alias
    /// address. An address that [no name may have](is_nameable) is not learned and is returned
    /// unchanged. The cost does not depend on how many names an address has.
    ///
    /// # Errors
    /// See [`NotLearnt`].
    pub fn learn(&mut self, learning: Learning<'_>, now: Instant) -> Result<IpAddr, NotLearnt> {
        let Learning { name, ttl, is_disputed, aliases, .. } = learning;
        let address = learning.address.to_canonical();
        if aliases.reserves(address) || self.aliased(address).is_some() {
            return Err(NotLearnt::Reserved);
        }
        if !is_nameable(address) {
            return Ok(address);
        }
        let until = now + ttl.min(TTL_MAX);
        let pair = HostsEntry { address, name: name.to_owned() };
        if let Some(entry) = self.known(&pair, aliases.given) {
            entry.until = entry.until.max(until);
            return Ok(self.aliases.get(&pair).copied().unwrap_or(address));
        }
        if self.learnt.len() + self.sharing_count >= NAMES_MAX {
            return Err(NotLearnt::Full);
        }
        let is_owned = self.learnt.contains_key(&address);
        let is_of_others = is_owned
            || self.lasting.get(&address).is_some_and(|names| names.iter().all(|of| of != name));
        let gets_alias = match aliases.given {
            AliasPolicy::Conflict => is_disputed || is_of_others,
            AliasPolicy::Always => true,
            AliasPolicy::Never => false,
        };
        if gets_alias {
            let alias = self.next_alias(aliases.ranges, address).ok_or(NotLearnt::NoAlias)?;
            self.insert(pair, Some(alias), until);
            return Ok(alias);
        }
        if is_owned {
            self.share(pair, until)?;
        } else {
            self.insert(pair, None, until);
        }
        Ok(address)
    }

    /// Restores a pair from another table. If the address already belongs to another name, that
    /// name keeps it.
    pub fn restore(&mut self, known: KnownName, now: Instant) {
        let used = known.used();
        let KnownName { name, address, alias, is_shared, remaining } = known;
        let may_stand_for = |alias: IpAddr| {
            is_nameable(alias) && alias != address && alias.is_ipv4() == address.is_ipv4()
        };
        let is_valid = is_nameable(address) && alias.is_none_or(may_stand_for);
        if !is_valid || self.learnt.len() + self.sharing_count >= NAMES_MAX {
            return;
        }
        let until = now + remaining.min(TTL_MAX);
        let pair = HostsEntry { address, name };
        if is_shared {
            // Pairs beyond the limit are learned when they are resolved again.
            let _ = self.share(pair, until);
        } else if !self.learnt.contains_key(&used) {
            self.insert(pair, alias, until);
        }
    }

    fn insert(&mut self, pair: HostsEntry, alias: Option<IpAddr>, until: Instant) {
        let HostsEntry { address, name } = pair.clone();
        self.learnt.insert(alias.unwrap_or(address), Entry { name, address, until });
        if let Some(alias) = alias {
            self.aliases.insert(pair.clone(), alias);
        }
        self.note_fresh(pair, alias);
    }

    fn note_fresh(&mut self, pair: HostsEntry, alias: Option<IpAddr>) {
        let HostsEntry { address, name } = pair;
        self.news += 1;
        self.has_more_fresh |= self.fresh.len() >= FRESH_MAX;
        if self.has_more_fresh {
            self.fresh.clear();
            return;
        }
        let remaining = Duration::MAX;
        self.fresh.push(KnownName { name, address, alias, is_shared: false, remaining });
    }

    /// Returns the pairs that are new since the last call; `None` if there are more than
    /// [`FRESH_MAX`], see [`Self::pairs`].
    pub fn take_fresh(&mut self) -> Option<Vec<KnownName>> {
        let fresh = std::mem::take(&mut self.fresh);
        let is_complete = !std::mem::take(&mut self.has_more_fresh);
        is_complete.then_some(fresh)
    }

    /// Adds a name to an address.
    fn share(&mut self, pair: HostsEntry, until: Instant) -> Result<(), NotLearnt> {
        let HostsEntry { address, name } = pair.clone();
        let sharing = self.sharing.entry(address).or_default();
        // The limit includes the owner.
        if sharing.len() + 1 >= SHARING_MAX {
            return Err(NotLearnt::Shared);
        }
        sharing.push(Entry { name, address, until });
        self.sharing_count += 1;
        self.note_fresh(pair, None);
        Ok(())
    }

    /// Looks up a pair. A name that shares an address gets an alias address when aliases are
    /// enabled.
    fn known(&mut self, pair: &HostsEntry, given: AliasPolicy) -> Option<&mut Entry> {
        let owns = self.learnt.get(&pair.address).is_some_and(|entry| entry.name == pair.name);
        let used = if owns { Some(pair.address) } else { self.aliases.get(pair).copied() };
        match used {
            Some(used) => self.learnt.get_mut(&used),
            None if given == AliasPolicy::Never => {
                let sharing = self.sharing.get_mut(&pair.address)?;
                sharing.iter_mut().find(|entry| entry.name == pair.name)
            }
            None => None,
        }
    }

    /// Returns the entry of an alias address.
    fn aliased(&self, used: IpAddr) -> Option<&Entry> {
        self.learnt.get(&used).filter(|entry| entry.address != used)
    }

    /// Allocates an alias address of the same family as `address`; `None` if the range is
    /// exhausted.
    fn next_alias(&mut self, ranges: AliasRanges, address: IpAddr) -> Option<IpAddr> {
        if self.numbers.ranges != ranges {
            self.numbers = Numbers { ranges, v4: 0, v6: 0 };
        }
        let number = if address.is_ipv4() { &mut self.numbers.v4 } else { &mut self.numbers.v6 };
        loop {
            // The loop is bounded by the range and by the alias addresses in use.
            let alias = ranges.numbered(address, *number + 1)?;
            *number += 1;
            if ranges.contains(alias) && !self.learnt.contains_key(&alias) {
                return Some(alias);
            }
        }
    }

    /// Returns the number of new pairs that [`Self::learn`] has learned.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.news
    }

    /// Returns the meaning of an address. An address in an alias range that is not in use has no
    /// name and is returned unchanged.
    #[must_use]
    pub fn of(&self, address: IpAddr) -> NamedDestination {
        let used = address.to_canonical();
        if let Some(entry) = self.aliased(used) {
            return NamedDestination {
                names: vec![entry.name.clone()],
                is_shared: false,
                address: entry.address,
                alias: Some(address),
            };
        }
        let mut names = self.lasting.get(&used).cloned().unwrap_or_default();
        let mut is_shared = false;
        let sharing = self.sharing.get(&used).into_iter().flatten();
        let owner = self.learnt.get(&used).filter(|entry| entry.address == used);
        for entry in owner.into_iter().chain(sharing) {
            if !names.contains(&entry.name) {
                is_shared |= !names.is_empty();
                names.push(entry.name.clone());
            }
        }
        NamedDestination { names, is_shared, address, alias: None }
    }

    /// Returns the names of an address in the host's file.
    #[must_use]
    pub fn lasting(&self, address: IpAddr) -> Vec<String> {
        self.lasting.get(&address.to_canonical()).cloned().unwrap_or_default()
    }

    /// Returns every name that was resolved, with each of its addresses.
    #[must_use]
    pub fn all(&self, now: Instant) -> Vec<KnownName> {
        let known = |used: IpAddr, entry: &Entry, is_shared| KnownName {
            name: entry.name.clone(),
            address: entry.address,
            alias: (used != entry.address).then_some(used),
            is_shared,
            remaining: entry.until.saturating_duration_since(now),
        };
        let learnt = self.learnt.iter().map(|(used, entry)| known(*used, entry, false));
        let sharing = self.sharing.values().flatten();
        learnt.chain(sharing.map(|entry| known(entry.address, entry, true))).collect()
    }

    /// Returns every address with each of its names, from the host's file or from DNS.
    #[must_use]
    pub fn pairs(&self, now: Instant) -> Vec<KnownName> {
        let lasting = self.lasting.iter().flat_map(|(address, names)| {
            names.iter().map(|name| KnownName {
                name: name.clone(),
                address: *address,
                alias: None,
                is_shared: false,
                remaining: Duration::MAX,
            })
        });
        self.all(now).into_iter().chain(lasting).collect()
    }
}

#[cfg(test)]
mod tests;
