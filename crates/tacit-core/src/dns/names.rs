//! Which names an address has: what programs asked for, as long as the answers may be believed.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Pairs of name and address that are remembered; the oldest make room.
pub const NAMES_MAX: usize = 65_536;
/// The shortest time a pair is remembered: programs connect later than their answer's last second.
pub const TTL_MIN: Duration = Duration::from_secs(60);
/// The longest.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// A table of names by address.
#[derive(Debug, Default)]
pub struct Names {
    by_address: HashMap<IpAddr, Vec<Entry>>,
    /// In order of arrival; entries that were renewed or forgotten since stay until they come up.
    order: VecDeque<(IpAddr, String)>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    until: Instant,
}

impl Names {
    /// Remembers that `name` was given `address`; tells whether the pair is new.
    pub fn record(&mut self, name: &str, address: IpAddr, ttl: Duration, now: Instant) -> bool {
        let until = now + ttl.clamp(TTL_MIN, TTL_MAX);
        let entries = self.by_address.entry(address.to_canonical()).or_default();
        entries.retain(|entry| entry.until > now || entry.name == name);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name == name) {
            entry.until = entry.until.max(until);
            return false;
        }
        entries.push(Entry { name: name.to_owned(), until });
        self.order.push_back((address.to_canonical(), name.to_owned()));
        while self.order.len() > NAMES_MAX {
            self.forget_oldest();
        }
        true
    }

    /// The names an address has now, the oldest first.
    #[must_use]
    pub fn of(&self, address: IpAddr, now: Instant) -> Vec<String> {
        let entries = self.by_address.get(&address.to_canonical());
        let live = entries.into_iter().flatten().filter(|entry| entry.until > now);
        live.map(|entry| entry.name.clone()).collect()
    }

    /// Every name with each address it has now, and for how long more.
    #[must_use]
    pub fn all(&self, now: Instant) -> Vec<(String, IpAddr, Duration)> {
        let pairs = self.by_address.iter().flat_map(|(address, entries)| {
            let live = entries.iter().filter(|entry| entry.until > now);
            live.map(|entry| (entry.name.clone(), *address, entry.until - now))
        });
        pairs.collect()
    }

    fn forget_oldest(&mut self) {
        let Some((address, name)) = self.order.pop_front() else { return };
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
    fn a_name_lives_as_long_as_its_ttl_within_limits() {
        let (mut names, now) = (Names::default(), Instant::now());
        assert!(names.record("short.example", ip(1), Duration::ZERO, now));
        assert!(names.record("long.example", ip(1), Duration::from_secs(600), now));
        assert!(!names.record("long.example", ip(1), Duration::from_secs(300), now));
        assert_eq!(names.of(ip(1), now), ["short.example", "long.example"]);
        assert_eq!(names.of(ip(1), now + TTL_MIN), ["long.example"]);
        assert!(names.of(ip(1), now + Duration::from_secs(600)).is_empty());
        assert!(names.of(ip(2), now).is_empty());
    }

    #[test]
    fn a_mapped_address_is_the_same_address() {
        let (mut names, now) = (Names::default(), Instant::now());
        names.record("v4.example", "::ffff:10.0.0.9".parse().unwrap(), TTL_MAX, now);
        assert_eq!(names.of(ip(9), now), ["v4.example"]);
    }

    #[test]
    fn the_table_is_bounded_and_the_oldest_make_room() {
        let (mut names, now) = (Names::default(), Instant::now());
        let count = u32::try_from(NAMES_MAX).unwrap() + 10;
        for last in 0..count {
            names.record("many.example", ip(last), TTL_MAX, now);
        }
        assert_eq!(names.by_address.len(), NAMES_MAX);
        assert!(names.of(ip(9), now).is_empty());
        assert_eq!(names.of(ip(count - 1), now), ["many.example"]);
    }
}
