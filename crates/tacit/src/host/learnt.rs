//! Keeps a copy of the DNS names and captured addresses that the helper of `tacit agent --host` has
//! stored in nftables sets. If another program removes the sets, the helper stores the names and
//! addresses again.
//!
//! Limits: [`NAMED_ADDRESSES_MAX`] addresses, [`NAMES_MAX`] names.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tacit_core::dns::NAMES_MAX;
use tacit_core::policy::{HostName, NamedAddress};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{self as table, NAMED_ADDRESSES_MAX, StoredName};

/// Captured addresses and names, with their ends.
#[derive(Default)]
pub(super) struct Learnt {
    addresses: HashMap<(IpAddr, u32), End>,
    names: HashMap<(IpAddr, String), End>,
}

/// When the kernel forgets something. Never is the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    At(Instant),
    Never,
}

impl End {
    fn after(seconds: Option<u64>, now: Instant) -> Self {
        seconds.map_or(Self::Never, |seconds| Self::At(now + Duration::from_secs(seconds)))
    }

    /// The time that is left, if there is an end.
    fn left(self, now: Instant) -> Option<u64> {
        match self {
            Self::At(end) => Some(end.saturating_duration_since(now).as_secs()),
            Self::Never => None,
        }
    }
}

impl Learnt {
    /// Replaces all addresses by these; the names stay.
    pub(super) fn replace_addresses(&mut self, addresses: &[NamedAddress], now: Instant) {
        self.addresses.clear();
        self.add(addresses, &[], now);
    }

    /// Adds addresses and names that were written to the kernel. Those that are known keep their
    /// end if it is later.
    pub(super) fn add(&mut self, addresses: &[NamedAddress], names: &[HostName], now: Instant) {
        for one in addresses {
            extend(&mut self.addresses, (one.address, one.part), End::after(one.seconds, now));
        }
        for one in names {
            let key = (one.address, one.name.clone());
            extend(&mut self.names, key, End::after(Some(one.seconds), now));
        }
        prune(&mut self.addresses, NAMED_ADDRESSES_MAX, now);
        prune(&mut self.names, NAMES_MAX, now);
    }

    /// The addresses whose time is not over.
    pub(super) fn addresses(&self, now: Instant) -> Vec<NamedAddress> {
        let lasting = self.addresses.iter().filter(|(_, end)| **end > End::At(now));
        let lasting = lasting.map(|(&(address, part), end)| NamedAddress {
            address,
            part,
            seconds: end.left(now),
        });
        lasting.collect()
    }

    /// The names whose time is not over.
    pub(super) fn names(&self, now: Instant) -> Vec<HostName> {
        let lasting = self.names.iter().filter(|(_, end)| **end > End::At(now));
        let lasting = lasting.map(|((address, name), end)| HostName {
            address: *address,
            name: name.clone(),
            seconds: end.left(now).unwrap_or_default(),
        });
        lasting.collect()
    }
}

fn extend<K: Hash + Eq>(ends: &mut HashMap<K, End>, key: K, end: End) {
    let known = ends.entry(key).or_insert(end);
    *known = end.max(*known);
}

/// Removes what has ended, if there is more than the limit, and then what ends first. The agent
/// observes the limits, but it does not know at once which addresses the kernel keeps for longer
/// because programs use them.
fn prune<K: Hash + Eq>(ends: &mut HashMap<K, End>, max: usize, now: Instant) {
    if ends.len() <= max {
        return;
    }
    ends.retain(|_, end| *end > End::At(now));
    let excess = ends.len().saturating_sub(max);
    if excess == 0 {
        return;
    }
    let mut all: Vec<End> = ends.values().copied().collect();
    let (_, last_removed, _) = all.select_nth_unstable(excess - 1);
    let last_removed = *last_removed;
    let mut removable = excess;
    ends.retain(|_, end| {
        let is_removed = *end <= last_removed && removable > 0;
        removable -= usize::from(is_removed);
        !is_removed
    });
}

/// Captures addresses and stores names in the kernel.
///
/// # Errors
/// The kernel's.
pub(super) fn learn(
    capture: &mut HostCapture,
    addresses: &[NamedAddress],
    names: &[HostName],
) -> io::Result<()> {
    let names = names.iter().map(|one| StoredName {
        address: one.address,
        name: one.name.clone(),
        time: Duration::from_secs(one.seconds),
    });
    let addresses: Vec<_> = addresses.iter().map(named_address).collect();
    capture.learn(&addresses, &names.collect::<Vec<_>>()).map_err(io::Error::other)
}

/// The names that the kernel has.
///
/// # Errors
/// The kernel's.
pub(super) fn kept_names(capture: &mut HostCapture) -> io::Result<Vec<HostName>> {
    let kept = capture.stored_names().map_err(io::Error::other)?.into_iter();
    let kept = kept.map(|StoredName { address, name, time }| HostName {
        address,
        name,
        seconds: time.as_secs(),
    });
    Ok(kept.collect())
}

/// The addresses with names that the kernel captures.
///
/// # Errors
/// The kernel's.
pub(super) fn captured_addresses(capture: &mut HostCapture) -> io::Result<Vec<NamedAddress>> {
    let captured = capture.named_addresses().map_err(io::Error::other)?.into_iter();
    let captured = captured.map(|table::PartAddress { address, part, time }| NamedAddress {
        address,
        part,
        seconds: time.map(|time| time.as_secs()),
    });
    Ok(captured.collect())
}

/// An address in the data types of the kernel.
pub(super) fn named_address(one: &NamedAddress) -> table::PartAddress {
    let NamedAddress { address, part, seconds } = *one;
    table::PartAddress { address, part, time: seconds.map(Duration::from_secs) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn what_has_ended_is_not_installed_again() {
        let now = Instant::now();
        let address =
            |last, seconds| NamedAddress { address: [10, 0, 0, last].into(), part: 0, seconds };
        let mut learnt = Learnt::default();
        learnt.add(&[address(1, Some(60)), address(2, Some(3)), address(3, None)], &[], now);
        let mut left = learnt.addresses(now + Duration::from_secs(10));
        left.sort_by_key(|one| one.address);
        assert_eq!(left, [address(1, Some(50)), address(3, None)]);
        learnt.replace_addresses(&[address(4, None)], now);
        assert_eq!(learnt.addresses(now), [address(4, None)]);
    }

    #[test]
    fn a_shorter_time_does_not_replace_a_longer_one() {
        let now = Instant::now();
        let address = |seconds| NamedAddress { address: [10, 0, 0, 1].into(), part: 0, seconds };
        let name = |seconds| HostName {
            address: [10, 0, 0, 1].into(),
            name: "db.example".to_owned(),
            seconds,
        };
        let mut learnt = Learnt::default();
        learnt.add(&[address(Some(900))], &[name(900)], now);
        learnt.add(&[address(Some(60))], &[name(60)], now);
        assert_eq!(learnt.addresses(now), [address(Some(900))]);
        assert_eq!(learnt.names(now)[0].seconds, 900);
        learnt.add(&[address(None)], &[], now);
        learnt.add(&[address(Some(60))], &[], now);
        assert_eq!(learnt.addresses(now), [address(None)]);
    }

    #[test]
    fn beyond_the_limit_what_ends_first_is_removed() {
        let now = Instant::now();
        let address = |number: u32, seconds| NamedAddress {
            address: Ipv4Addr::from_bits(number).into(),
            part: 0,
            seconds: Some(seconds),
        };
        let limit = u32::try_from(NAMED_ADDRESSES_MAX).unwrap();
        let all: Vec<_> = (0..limit).map(|number| address(number, 100)).collect();
        let mut learnt = Learnt::default();
        learnt.add(&all, &[], now);
        learnt.add(&[address(limit, 200), address(limit + 1, 200)], &[], now);
        let left = learnt.addresses(now);
        assert_eq!(left.len(), NAMED_ADDRESSES_MAX);
        assert_eq!(left.iter().filter(|one| one.seconds == Some(200)).count(), 2);
        learnt.add(&[address(limit + 2, 300)], &[], now + Duration::from_secs(150));
        assert_eq!(learnt.addresses.len(), 3, "ended ones are removed first");
    }
}
