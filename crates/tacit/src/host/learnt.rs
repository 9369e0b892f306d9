//! Records the names and captured addresses that the helper has written to the kernel, so that it
//! can write them again if another program has removed them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tacit_core::dns::NAMES_MAX;
use tacit_core::policy::{HostName, NamedAddress};
use tacit_sys::host::HostCapture;
use tacit_sys::netlink::nft::host::{self as table, StoredName};

/// Captured addresses and names, with their ends.
#[derive(Default)]
pub(super) struct Learnt {
    addresses: HashMap<(IpAddr, u32), Option<Instant>>,
    names: HashMap<(IpAddr, String), Instant>,
}

impl Learnt {
    /// Replaces all addresses by these; the names stay.
    pub(super) fn replace_addresses(&mut self, addresses: &[NamedAddress], now: Instant) {
        self.addresses.clear();
        self.add(addresses, &[], now);
    }

    /// Adds addresses and names that were written to the kernel.
    pub(super) fn add(&mut self, addresses: &[NamedAddress], names: &[HostName], now: Instant) {
        let end = |seconds| now + Duration::from_secs(seconds);
        self.addresses
            .extend(addresses.iter().map(|one| ((one.address, one.part), one.seconds.map(end))));
        self.names
            .extend(names.iter().map(|one| ((one.address, one.name.clone()), end(one.seconds))));
        // The agent observes this limit, and removes expired names.
        if self.names.len() > NAMES_MAX {
            self.names.retain(|_, end| *end > now);
        }
    }

    /// The addresses whose time is not over.
    pub(super) fn addresses(&self, now: Instant) -> Vec<NamedAddress> {
        let left = |end: Instant| end.saturating_duration_since(now).as_secs();
        let lasting = self.addresses.iter().filter(|(_, end)| end.is_none_or(|end| end > now));
        let lasting = lasting.map(|(&(address, part), end)| NamedAddress {
            address,
            part,
            seconds: end.map(left),
        });
        lasting.collect()
    }

    /// The names whose time is not over.
    pub(super) fn names(&self, now: Instant) -> Vec<HostName> {
        let lasting = self.names.iter().filter(|(_, end)| **end > now);
        let lasting = lasting.map(|((address, name), end)| HostName {
            address: *address,
            name: name.clone(),
            seconds: end.saturating_duration_since(now).as_secs(),
        });
        lasting.collect()
    }
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
}
