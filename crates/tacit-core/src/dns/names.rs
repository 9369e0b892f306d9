//! Which names an address has: what programs asked for, as long as the answers may be believed, and
//! what the host's own file says.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::hosts::Host;

/// Pairs of name and address that are remembered; the oldest make room.
pub const NAMES_MAX: usize = 65_536;
/// How long a pair is remembered after its answer's last second, and after its last use: programs
/// keep addresses longer than they should.
pub const GRACE: Duration = Duration::from_secs(3600);
/// The longest time that an answer is taken to last.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Whether an address can be had by a name at all. Whoever answers DNS could otherwise lead a
/// program to this host, this link, or to many at once: those are reached by their address alone.
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
    by_address: HashMap<IpAddr, Vec<Entry>>,
    /// In order of arrival; entries that were renewed or forgotten since stay until they come up.
    order: VecDeque<Host>,
    /// Counts pairs that were not known.
    news: u64,
}

#[derive(Debug)]
struct Entry {
    name: String,
    until: Instant,
}

/// A name that was asked for, and an address that it has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// How long the two still belong together.
    pub remaining: Duration,
}

impl Names {
    /// Takes what the host's file says in place of what it said before; tells whether that is
    /// another.
    pub fn set_lasting(&mut self, hosts: impl IntoIterator<Item = Host>) -> bool {
        let mut lasting: HashMap<IpAddr, Vec<String>> = HashMap::new();
        for Host { address, name } in hosts.into_iter().filter(|host| is_nameable(host.address)) {
            let names = lasting.entry(address.to_canonical()).or_default();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let is_news = lasting != self.lasting;
        self.lasting = lasting;
        is_news
    }

    /// Remembers that `name` was given `address`; tells whether that was not known. An address that
    /// [cannot be had by a name](is_nameable) is not remembered.
    pub fn record(&mut self, name: &str, address: IpAddr, ttl: Duration, now: Instant) -> bool {
        if !is_nameable(address) {
            return false;
        }
        let until = now + ttl.min(TTL_MAX) + GRACE;
        let entries = self.by_address.entry(address.to_canonical()).or_default();
        entries.retain(|entry| entry.until > now || entry.name == name);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name == name) {
            let was_forgotten = entry.until <= now;
            entry.until = entry.until.max(until);
            self.news += u64::from(was_forgotten);
            return was_forgotten;
        }
        entries.push(Entry { name: name.to_owned(), until });
        self.news += 1;
        self.order.push_back(Host { address: address.to_canonical(), name: name.to_owned() });
        while self.order.len() > NAMES_MAX {
            self.forget_oldest();
        }
        true
    }

    /// How often [`Self::record`] was told what was not known.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.news
    }

    /// The same as [`Self::of`] for a connection to the address: its names are remembered longer.
    pub fn used(&mut self, address: IpAddr, now: Instant) -> Vec<String> {
        let entries = self.by_address.get_mut(&address.to_canonical());
        for entry in entries.into_iter().flatten().filter(|entry| entry.until > now) {
            entry.until = entry.until.max(now + GRACE);
        }
        self.of(address, now)
    }

    /// The names an address has now: those of the file, then those asked for, the oldest first.
    #[must_use]
    pub fn of(&self, address: IpAddr, now: Instant) -> Vec<String> {
        let mut names = self.lasting.get(&address.to_canonical()).cloned().unwrap_or_default();
        let entries = self.by_address.get(&address.to_canonical());
        for entry in entries.into_iter().flatten().filter(|entry| entry.until > now) {
            if !names.contains(&entry.name) {
                names.push(entry.name.clone());
            }
        }
        names
    }

    /// The names that the host's file gives an address.
    #[must_use]
    pub fn lasting(&self, address: IpAddr) -> Vec<String> {
        self.lasting.get(&address.to_canonical()).cloned().unwrap_or_default()
    }

    /// Every name that was asked for with each address it has now, and for how long more.
    #[must_use]
    pub fn all(&self, now: Instant) -> Vec<Known> {
        let known = self.by_address.iter().flat_map(|(address, entries)| {
            let live = entries.iter().filter(|entry| entry.until > now);
            live.map(|entry| Known {
                name: entry.name.clone(),
                address: *address,
                remaining: entry.until - now,
            })
        });
        known.collect()
    }

    /// Every address with each name it has now, from the host's file or because it was asked for.
    #[must_use]
    pub fn pairs(&self, now: Instant) -> Vec<Host> {
        let known = self.all(now).into_iter();
        let asked = known.map(|Known { name, address, .. }| Host { address, name });
        let lasting = self.lasting.iter().flat_map(|(address, names)| {
            names.iter().map(|name| Host { address: *address, name: name.clone() })
        });
        asked.chain(lasting).collect()
    }

    fn forget_oldest(&mut self) {
        let Some(Host { address, name }) = self.order.pop_front() else { return };
        if let Some(entries) = self.by_address.get_mut(&address) {
            entries.retain(|entry| entry.name != name);
            if entries.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + last).to_be_bytes())
    }

    #[test]
    fn a_name_lives_as_long_as_its_ttl_and_its_use() {
        let mut names = Names::default();
        let now = Instant::now();
        let ttl = Duration::from_secs(600);
        let second = Duration::from_secs(1);
        assert!(names.record("short.example", ip(1), Duration::ZERO, now));
        assert!(names.record("long.example", ip(1), ttl, now));
        assert!(!names.record("long.example", ip(1), Duration::ZERO, now), "it is known");
        assert_eq!(names.of(ip(1), now), ["short.example", "long.example"]);
        assert_eq!(names.of(ip(1), now + GRACE), ["long.example"]);
        assert!(names.of(ip(1), now + ttl + GRACE).is_empty());
        assert!(names.of(ip(2), now).is_empty());
        let late = now + ttl + GRACE - second;
        assert_eq!(names.used(ip(1), late), ["long.example"]);
        assert_eq!(names.of(ip(1), late + GRACE - second), ["long.example"]);
        let forgotten = late + GRACE;
        assert!(names.of(ip(1), forgotten).is_empty());
        assert_eq!(names.news(), 2);
        assert!(names.record("long.example", ip(1), ttl, forgotten), "it is news again");
        assert_eq!(names.news(), 3);
        assert!(names.record("ever.example", ip(3), Duration::MAX, now));
        assert!(names.of(ip(3), now + TTL_MAX + GRACE).is_empty());
    }

    #[test]
    fn a_mapped_address_is_the_same_address() {
        let mut names = Names::default();
        let now = Instant::now();
        names.record("v4.example", "::ffff:10.0.0.9".parse().unwrap(), TTL_MAX, now);
        assert_eq!(names.of(ip(9), now), ["v4.example"]);
    }

    #[test]
    fn what_the_hosts_file_says_lasts_until_it_says_something_else() {
        let mut names = Names::default();
        let now = Instant::now();
        let host = |address: IpAddr, name: &str| Host { address, name: name.to_owned() };
        let pairs = |last: u32| [host(ip(last), "db"), host(ip(last), "db.example")];
        assert!(names.set_lasting(pairs(1)));
        assert!(!names.set_lasting(pairs(1)), "no news");
        names.record("db.example", ip(1), Duration::ZERO, now);
        assert_eq!(names.of(ip(1), now), ["db", "db.example"], "each once");
        assert_eq!((names.all(now).len(), names.pairs(now).len()), (1, 3));
        assert_eq!(names.of(ip(1), now + 2 * TTL_MAX), ["db", "db.example"]);
        assert!(names.set_lasting(pairs(2)));
        assert_eq!(names.of(ip(1), now), ["db.example"], "it was asked for too");
        let localhost = host("127.0.0.1".parse().unwrap(), "localhost");
        assert!(!names.set_lasting(pairs(2).into_iter().chain([localhost])));
    }

    #[test]
    fn a_name_does_not_lead_to_this_host_or_this_link() {
        let mut names = Names::default();
        let now = Instant::now();
        for no in [
            "127.0.0.1",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
        ] {
            assert!(!names.record("rebound.example", no.parse().unwrap(), TTL_MAX, now), "{no}");
        }
        assert!(names.all(now).is_empty());
        for yes in ["10.0.0.1", "192.168.0.1", "fd00::1", "2001:db8::1", "::ffff:10.0.0.2"] {
            assert!(names.record("there.example", yes.parse().unwrap(), TTL_MAX, now), "{yes}");
        }
    }

    #[test]
    fn the_table_is_bounded_and_the_oldest_make_room() {
        let mut names = Names::default();
        let now = Instant::now();
        let count = u32::try_from(NAMES_MAX).unwrap() + 10;
        for last in 0..count {
            names.record("many.example", ip(last), TTL_MAX, now);
        }
        assert_eq!(names.by_address.len(), NAMES_MAX);
        assert!(names.of(ip(9), now).is_empty());
        assert_eq!(names.of(ip(count - 1), now), ["many.example"]);
    }
}
