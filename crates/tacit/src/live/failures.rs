//! Counts the failed connections of a rule by kind of failure (`kind` in the log).
//!
//! Threads count without a lock. Each kind has its own counter. The first failure of a kind creates
//! the counter of this kind.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tacit_core::failure_kind::FailureKind;

/// The maximum number of kinds with a counter of their own; others are counted as [`OTHER`].
const KINDS_MAX: usize = 48;
/// The kind of all failures without a counter of their own.
const OTHER: FailureKind = FailureKind("other");

/// Failures by their kind. A rule without any needs no memory for the slots.
#[derive(Debug, Default)]
pub(super) struct FailureCounts(OnceLock<Box<Slots>>);

#[derive(Debug)]
struct Slots {
    kinds: [Slot; KINDS_MAX],
    other: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    kind: OnceLock<&'static str>,
    count: AtomicU64,
}

impl Default for Slots {
    fn default() -> Self {
        let slot = || Slot { kind: OnceLock::new(), count: AtomicU64::new(0) };
        Self { kinds: std::array::from_fn(|_| slot()), other: AtomicU64::new(0) }
    }
}

impl FailureCounts {
    /// Counts a failure of this kind.
    pub(super) fn add(&self, kind: FailureKind) {
        let kind = kind.0;
        let slots = self.0.get_or_init(Box::default);
        let slot = slots.kinds.iter().find(|slot| *slot.kind.get_or_init(|| kind) == kind);
        let count = slot.map_or(&slots.other, |slot| &slot.count);
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of failures of all kinds.
    #[must_use]
    pub(super) fn total(&self) -> u64 {
        self.by_kind().map(|(_, count)| count).sum()
    }

    /// The number of failures for each kind that has occurred.
    pub(super) fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let slots = self.0.get();
        let named = slots.into_iter().flat_map(|slots| &slots.kinds);
        let named = named.filter_map(|slot| Some((*slot.kind.get()?, &slot.count)));
        let other = slots.map(|slots| (OTHER.0, &slots.other));
        named
            .chain(other)
            .map(|(kind, count)| (kind, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_by_their_kind_within_a_limit() {
        let failures = FailureCounts::default();
        assert_eq!(failures.by_kind().count(), 0);
        for kind in ["dial", "handshake", "dial"] {
            failures.add(FailureKind(kind));
        }
        assert_eq!(failures.by_kind().collect::<Vec<_>>(), [("dial", 2), ("handshake", 1)]);
        let kinds: Vec<&'static str> =
            (0..KINDS_MAX).map(|number| &*Box::leak(format!("kind-{number}").into())).collect();
        for kind in kinds {
            failures.add(FailureKind(kind));
        }
        assert_eq!(failures.by_kind().last(), Some((OTHER.0, 2)));
        assert_eq!(failures.total(), 3 + KINDS_MAX as u64);
    }
}
