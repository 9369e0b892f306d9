//! How many lines that may repeat wait in the queue, of all causes and of each.
//!
//! ```text
//!   worker ── enter ──> queue ──> writer ── leave
//! ```
//!
//! Limits: [`REPEATED_LINES_MAX`] of all, [`LINES_PER_CAUSE_MAX`] of one. Causes are counted in
//! [`COUNTERS`] counters, by a hash with a secret of this process: two may share one, and then
//! what is of one.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{EventCause, QUEUE_LINES_MAX};

/// How many lines of the queue may be of those of which one program can cause any number at little
/// cost: what repeats, and connections that are refused or fail. The others carry bytes.
pub(super) const REPEATED_LINES_MAX: usize = QUEUE_LINES_MAX / 2;
/// How many of them may be of one cause.
pub(super) const LINES_PER_CAUSE_MAX: usize = REPEATED_LINES_MAX / 4;
const COUNTERS: usize = 256;

/// Lines in the queue that may repeat.
#[derive(Debug)]
pub(super) struct Queued {
    all: AtomicUsize,
    by_cause: [AtomicUsize; COUNTERS],
    hash: RandomState,
}

impl Default for Queued {
    fn default() -> Self {
        Self {
            all: AtomicUsize::new(0),
            by_cause: [const { AtomicUsize::new(0) }; COUNTERS],
            hash: RandomState::new(),
        }
    }
}

impl Queued {
    /// Counts a line that is about to be queued; `false`: there is no room for it.
    pub(super) fn enter(&self, cause: &EventCause) -> bool {
        let of_cause = self.of(cause);
        let has_room = self.all.load(Ordering::Relaxed) < REPEATED_LINES_MAX
            && of_cause.load(Ordering::Relaxed) < LINES_PER_CAUSE_MAX;
        if has_room {
            self.all.fetch_add(1, Ordering::Relaxed);
            of_cause.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// A line that entered is no longer in the queue.
    pub(super) fn leave(&self, cause: &EventCause) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.of(cause).fetch_sub(1, Ordering::Relaxed);
    }

    fn of(&self, cause: &EventCause) -> &AtomicUsize {
        let at = self.hash.hash_one(cause) % COUNTERS as u64;
        // In range: the remainder is below the length.
        &self.by_cause[usize::try_from(at).unwrap_or(0)]
    }
}
