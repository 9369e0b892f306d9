//! Chooses the address for the next attempt to connect to an IKE peer. In the policy, the peer is
//! an address or a DNS name.
//!
//! The control thread resolves the name, and the first attempt waits a limited time for the result.
//! After each failed attempt, this module chooses the next address of the name.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an attempt waits for the first address of a name.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it looks for the address.
const STEP: Duration = Duration::from_millis(200);

/// The address for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressChoice {
    /// The attempt can begin.
    Use(SocketAddr),
    /// The first answer is missing; choose again at this time.
    Later(Instant),
    /// The name has no address.
    Unresolved,
}

/// Chooses addresses of one peer.
#[derive(Debug, Default)]
pub(super) struct AddressChooser {
    /// Since when an attempt waits for the first answer.
    waiting_since: Option<Instant>,
}

impl AddressChooser {
    /// Chooses among the addresses that are known now, after so many failures.
    pub(super) fn choose(
        &mut self,
        known: &[SocketAddr],
        failures: u32,
        now: Instant,
    ) -> AddressChoice {
        let number = usize::try_from(failures).unwrap_or_default();
        if let Some(address) = known.get(number % known.len().max(1)) {
            self.waiting_since = None;
            return AddressChoice::Use(*address);
        }
        let since = *self.waiting_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        if waited < WAIT_MAX { AddressChoice::Later(now + STEP) } else { AddressChoice::Unresolved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_leads_to_the_next_address() {
        let address = |last: u8| SocketAddr::from(([192, 0, 2, last], 4500));
        let known = [address(1), address(2)];
        let mut chooser = AddressChooser::default();
        let now = Instant::now();
        let chosen = [0, 0, 1, 2, 3].map(|failures| chooser.choose(&known, failures, now));
        assert_eq!(chosen, [1, 1, 2, 1, 2].map(|last| AddressChoice::Use(address(last))));
    }

    #[test]
    fn a_name_without_an_address_is_a_failure_after_a_time() {
        let mut chooser = AddressChooser::default();
        let now = Instant::now();
        assert_eq!(chooser.choose(&[], 0, now), AddressChoice::Later(now + STEP));
        let later = now + WAIT_MAX - STEP;
        assert_eq!(chooser.choose(&[], 0, later), AddressChoice::Later(later + STEP));
        assert_eq!(chooser.choose(&[], 0, now + WAIT_MAX), AddressChoice::Unresolved);
        // The next attempt fails at once, and an answer is used at once.
        assert_eq!(chooser.choose(&[], 1, now + WAIT_MAX * 2), AddressChoice::Unresolved);
        let address = SocketAddr::from(([192, 0, 2, 1], 4500));
        assert_eq!(chooser.choose(&[address], 2, later), AddressChoice::Use(address));
        assert_eq!(chooser.choose(&[], 0, later), AddressChoice::Later(later + STEP));
    }
}
