//! Limits how many bytes and packets one key protects: the lifetime of an SA (security
//! association).
//!
//! At the soft limit, IKE negotiates a new SA. At the hard limit, the SA processes no more packets
//! (RFC 4301 section 4.4.2.1). IKE, not this module, limits the time for which a key is used.

use super::counters::SaCounters;

/// An amount of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataVolume {
    /// The number of packets.
    pub packets: u64,
    /// The bytes of the inner packets.
    pub bytes: u64,
}

impl DataVolume {
    /// More than an SA ever processes.
    pub const UNLIMITED: Self = Self { packets: u64::MAX, bytes: u64::MAX };

    fn is_reached(self, counters: &SaCounters) -> bool {
        counters.packets() >= self.packets || counters.bytes() >= self.bytes
    }
}

/// The lifetime of an SA in data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLifetime {
    /// From here on a new SA is due.
    pub soft: DataVolume,
    /// From here on the SA processes nothing more.
    pub hard: DataVolume,
}

/// Where an SA stands in its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeState {
    /// The SA is below its soft limit.
    Current,
    /// A new SA is due; this one still works.
    RekeyDue,
    /// The SA processes nothing more.
    Expired,
}

impl DataLifetime {
    /// No limit but that of the sequence numbers.
    pub const UNLIMITED: Self = Self { soft: DataVolume::UNLIMITED, hard: DataVolume::UNLIMITED };

    /// Returns the state of an SA that has processed this much.
    #[must_use]
    pub fn state(&self, counters: &SaCounters) -> LifetimeState {
        if self.hard.is_reached(counters) {
            LifetimeState::Expired
        } else if self.soft.is_reached(counters) {
            LifetimeState::RekeyDue
        } else {
            LifetimeState::Current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_bytes_each_end_a_lifetime() {
        let soft = DataVolume { packets: 2, bytes: 1_000 };
        let hard = DataVolume { packets: 4, bytes: 2_000 };
        let lifetime = DataLifetime { soft, hard };
        for (sizes, wanted) in [
            (&[999][..], LifetimeState::Current),
            (&[1_000], LifetimeState::RekeyDue),
            (&[1, 1], LifetimeState::RekeyDue),
            (&[2_000], LifetimeState::Expired),
            (&[1, 1, 1, 1], LifetimeState::Expired),
        ] {
            let counters = SaCounters::default();
            sizes.iter().for_each(|bytes| counters.add_packet(*bytes));
            assert_eq!(lifetime.state(&counters), wanted, "{sizes:?}");
            assert_eq!(DataLifetime::UNLIMITED.state(&counters), LifetimeState::Current);
        }
    }
}
