//! Which name an address has: what programs asked for, for as long as the answers are valid, and
//! what the host's own file says.
//!
//! An address that a name was learnt for belongs to that name for the life of the table. Every
//! other name with the same address gets an alias: an address from a reserved range that stands
//! for one name and one true address. So an answer for one name never changes what a connection
//! to another name means.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::dns::hosts::Host;

/// Pairs of name and address that are remembered; further ones are not learnt.
pub const NAMES_MAX: usize = 65_536;
/// How long a pair is remembered after its answer's last second, and after its last use: programs
/// keep addresses longer than they should.
pub const GRACE: Duration = Duration::from_secs(3600);
/// The longest time that an answer is taken to last.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The first alias for IPv4, from 198.18.0.0/15 (RFC 2544). The range holds twice [`NAMES_MAX`].
const ALIASES_V4: u32 = 0xc612_0000;
/// Bits that are the same in every alias for IPv4.
const ALIASES_V4_MASK: u32 = 0xfffe_0000;
/// The aliases for IPv6 are those of 100::/64 (RFC 6666).
const ALIASES_V6: u128 = 0x100 << 112;
/// Bits that are the same in every alias for IPv6.
const ALIASES_V6_MASK: u128 = 0xffff_ffff_ffff_ffff << 64;
/// The address of every run's own loopback interface in 100::/64 (100::15) is no alias.
const OWN_V6: u128 = ALIASES_V6 | 0x15;

/// Whether an address is reserved for aliases.
#[must_use]
pub fn is_alias(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_bits() & ALIASES_V4_MASK == ALIASES_V4,
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            bits & ALIASES_V6_MASK == ALIASES_V6 && bits != OWN_V6
        }
    }
}

/// Whether an address can be had by a name at all. A DNS answer could otherwise lead a program to
/// this host, this link, or to many at once: those are reached by their address alone.
#[must_use]
pub fn is_nameable(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            !(first == 0 || v4.is_loopback() || v4.is_link_local() || first >= 224)
        }
        IpAddr::V6(v6) => {
            // 0::/16 holds the unspecified, the loopback and the mapped addresses.
            let first = v6.segments()[0];
            !(first == 0 || v6.is_unicast_link_local() || v6.is_multicast())
        }
    }
}

/// A table of names by address.
#[derive(Debug, Default)]
pub struct Names {
    /// From the host's file.
    lasting: HashMap<IpAddr, Vec<String>>,
    /// By the address that programs use: the true one of the owner, the alias of every other name.
    learnt: HashMap<IpAddr, Entry>,
    /// Aliases by name and true address.
    aliases: HashMap<Host, IpAddr>,
    /// Aliases that were given, for each family.
    given: Given,
    /// Counts pairs that were not known.
    news: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// The true address.
    address: IpAddr,
    until: Instant,
}

/// Aliases are given in order and never again, so that an address means one thing.
#[derive(Debug, Default)]
struct Given {
    v4: u32,
    v6: u32,
}

/// What an answer says of a name.
#[derive(Clone, Copy, Debug)]
pub struct Learning<'a> {
    /// The name that was asked for; lower case, no final dot.
    pub name: &'a str,
    /// An address of it.
    pub address: IpAddr,
    /// How long that is valid.
    pub ttl: Duration,
    /// Whether a rule by address may decide otherwise than the name's rule: the address then does
    /// not become the name's own.
    pub is_disputed: bool,
}

/// A pair of name and address that is not learnt: the program must not get the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLearnt {
    /// There are [`NAMES_MAX`] pairs.
    Full,
    /// The address is one that stands for another: [`is_alias`].
    Reserved,
}

impl fmt::Display for NotLearnt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(
                f,
                "the run has learnt {NAMES_MAX} names with their addresses, and learns no more; \
                 start it again"
            ),
            Self::Reserved => f.write_str(
                "the resolver gave an address that is reserved for aliases (198.18.0.0/15, \
                 100::/64): give the host another address",
            ),
        }
    }
}

impl std::error::Error for NotLearnt {}

/// What an address that a program uses stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The name that has the address; several only if the host's file gives several.
    pub names: Vec<String>,
    /// The true address.
    pub address: IpAddr,
    /// The address that the program used, if it is an alias.
    pub alias: Option<IpAddr>,
}

/// A name that was asked for, and an address that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The name.
    pub name: String,
    /// The true address.
    pub address: IpAddr,
    /// The address that programs use instead, if it is an alias.
    pub alias: Option<IpAddr>,
    /// How long the two still belong together; zero: a connection to the address has no name, and
    /// the address still belongs to no other.
    pub remaining: Duration,
}

impl Known {
    /// The address that programs use.
    #[must_use]
    pub fn used(&self) -> IpAddr {
        self.alias.unwrap_or(self.address)
    }
}

impl Names {
    /// Replaces what the host's file said before; returns whether that has changed.
    pub fn set_lasting(&mut self, hosts: impl IntoIterator<Item = Host>) -> bool {
        let mut lasting: HashMap<IpAddr, Vec<String>> = HashMap::new();
        let nameable = |host: &Host| is_nameable(host.address) && !is_alias(host.address);
        for Host { address, name } in hosts.into_iter().filter(nameable) {
            let names = lasting.entry(address.to_canonical()).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let is_news = lasting != self.lasting;
        self.lasting = lasting;
        is_news
    }

    /// Remembers what an answer says, and returns the address that the program must get: the true
    /// one, or an alias. An address that [cannot be had by a name](is_nameable) is not remembered
    /// and returned as it is. The cost does not depend on how many names an address has.
    ///
    /// # Errors
    /// See [`NotLearnt`].
    pub fn learn(&mut self, learning: Learning<'_>, now: Instant) -> Result<IpAddr, NotLearnt> {
        let Learning { name, ttl, is_disputed, .. } = learning;
        let address = learning.address.to_canonical();
        if is_alias(address) {
            return Err(NotLearnt::Reserved);
        }
        if !is_nameable(address) {
            return Ok(address);
        }
        let until = now + ttl.min(TTL_MAX) + GRACE;
        let pair = Host { address, name: name.to_owned() };
        let used = self.used_by(&pair);
        if let Some(entry) = used.and_then(|used| self.learnt.get_mut(&used)) {
            self.news += u64::from(entry.until <= now);
            entry.until = entry.until.max(until);
            return Ok(used.unwrap_or(address));
        }
        if self.learnt.len() >= NAMES_MAX {
            return Err(NotLearnt::Full);
        }
        let is_of_others = self.learnt.contains_key(&address)
            || self.lasting.get(&address).is_some_and(|names| names.iter().all(|of| of != name));
        let alias = (is_disputed || is_of_others).then(|| self.given.next(address));
        self.insert(pair, alias, until);
        Ok(alias.unwrap_or(address))
    }

    /// Takes over what another table knew, as it was. An address that belongs to another name here
    /// already stays so.
    pub fn restore(&mut self, known: Known, now: Instant) {
        let used = known.used();
        let Known { name, address, alias, remaining } = known;
        let is_valid = is_nameable(address)
            && !is_alias(address)
            && alias.is_none_or(|alias| Given::may_hold(alias, address));
        if !is_valid || self.learnt.contains_key(&used) || self.learnt.len() >= NAMES_MAX {
            return;
        }
        if let Some(alias) = alias {
            self.given.skip(alias);
        }
        let until = now + remaining.min(TTL_MAX + GRACE);
        self.insert(Host { address, name }, alias, until);
    }

    fn insert(&mut self, pair: Host, alias: Option<IpAddr>, until: Instant) {
        let Host { address, name } = pair.clone();
        self.learnt.insert(alias.unwrap_or(address), Entry { name, address, until });
        if let Some(alias) = alias {
            self.aliases.insert(pair, alias);
        }
        self.news += 1;
    }

    /// The address that programs use for a pair that is known.
    fn used_by(&self, pair: &Host) -> Option<IpAddr> {
        let owns = self.learnt.get(&pair.address).is_some_and(|entry| entry.name == pair.name);
        if owns { Some(pair.address) } else { self.aliases.get(pair).copied() }
    }

    /// How often [`Self::learn`] learnt what was not known.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.news
    }

    /// The same as [`Self::of`] for a connection to the address: its name is remembered longer.
    pub fn used(&mut self, address: IpAddr, now: Instant) -> Destination {
        let entry = self.learnt.get_mut(&address.to_canonical());
        if let Some(entry) = entry.filter(|entry| entry.until > now) {
            entry.until = entry.until.max(now + GRACE);
        }
        self.of(address, now)
    }

    /// What an address stands for now. An address of the alias ranges that stands for nothing has
    /// no name and stays as it is.
    #[must_use]
    pub fn of(&self, address: IpAddr, now: Instant) -> Destination {
        let used = address.to_canonical();
        let entry = self.learnt.get(&used).filter(|entry| entry.until > now);
        if let Some(entry) = entry.filter(|_| is_alias(used)) {
            let names = vec![entry.name.clone()];
            return Destination { names, address: entry.address, alias: Some(address) };
        }
        let mut names = self.lasting.get(&used).cloned().unwrap_or_default();
        if let Some(entry) = entry
            && !names.contains(&entry.name)
        {
            names.push(entry.name.clone());
        }
        Destination { names, address, alias: None }
    }

    /// The names that the host's file gives an address.
    #[must_use]
    pub fn lasting(&self, address: IpAddr) -> Vec<String> {
        self.lasting.get(&address.to_canonical()).cloned().unwrap_or_default()
    }

    /// Every name that was asked for with each address it has, forgotten ones included.
    #[must_use]
    pub fn all(&self, now: Instant) -> Vec<Known> {
        let known = self.learnt.iter().map(|(used, entry)| Known {
            name: entry.name.clone(),
            address: entry.address,
            alias: (*used != entry.address).then_some(*used),
            remaining: entry.until.saturating_duration_since(now),
        });
        known.collect()
    }

    /// Every address with each name it has now, from the host's file or because it was asked for.
    #[must_use]
    pub fn pairs(&self, now: Instant) -> Vec<Known> {
        let lasting = self.lasting.iter().flat_map(|(address, names)| {
            names.iter().map(|name| Known {
                name: name.clone(),
                address: *address,
                alias: None,
                remaining: Duration::MAX,
            })
        });
        let asked = self.all(now).into_iter().filter(|known| !known.remaining.is_zero());
        asked.chain(lasting).collect()
    }
}

impl Given {
    /// An alias of the address's family that was never given. There are more of them than pairs.
    fn next(&mut self, address: IpAddr) -> IpAddr {
        loop {
            let alias = match address {
                IpAddr::V4(_) => {
                    self.v4 += 1;
                    Ipv4Addr::from_bits(ALIASES_V4 + self.v4).into()
                }
                IpAddr::V6(_) => {
                    self.v6 += 1;
                    Ipv6Addr::from_bits(ALIASES_V6 + u128::from(self.v6)).into()
                }
            };
            if is_alias(alias) {
                return alias;
            }
        }
    }

    /// Whether a table can have given this alias for the address.
    fn may_hold(alias: IpAddr, address: IpAddr) -> bool {
        let max = NAMES_MAX as u128;
        let is_given = match (alias, address) {
            (IpAddr::V4(v4), IpAddr::V4(_)) => {
                u128::from(v4.to_bits()) <= u128::from(ALIASES_V4) + max
            }
            // One more, for the address that is left out.
            (IpAddr::V6(v6), IpAddr::V6(_)) => v6.to_bits() <= ALIASES_V6 + max + 1,
            _ => false,
        };
        is_given && is_alias(alias)
    }

    /// Gives no alias up to this one.
    fn skip(&mut self, alias: IpAddr) {
        match alias {
            IpAddr::V4(v4) => self.v4 = self.v4.max(v4.to_bits() - ALIASES_V4),
            IpAddr::V6(v6) => {
                let number = u32::try_from(v6.to_bits() - ALIASES_V6);
                self.v6 = self.v6.max(number.unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests;
