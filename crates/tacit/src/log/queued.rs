//! Limits how many refusals, failures and repeated lines wait in the log's queue. So the queue
//! always has room for other lines.
//!
//! ```text
//! worker ── enter ──> queue ──> writer ── leave
//! ```
//!
//! Limits: [`REPEATED_LINES_MAX`] lines in total, [`LINES_PER_CAUSE_MAX`] lines of each cause. A
//! cause is a run (a program under `tacit run`) or a client. A hash with a random key assigns
//! causes to [`COUNTERS`] counters. So two causes may share one counter, and thus one limit.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{EventCause, QUEUE_LINES_MAX};

/// The maximum number of queued lines that one program can easily cause: repeated lines, refusals
/// and failures. The rest of the queue is for other lines.
pub(super) const REPEATED_LINES_MAX: usize = QUEUE_LINES_MAX / 2;
/// The maximum number of these lines from one cause.
pub(super) const LINES_PER_CAUSE_MAX: usize = REPEATED_LINES_MAX / 4;
const COUNTERS: usize = 256;

/// Counts the lines in the queue that may repeat.
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
    /// Counts a line that is about to be queued. Returns `false` if a limit is reached.
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

    /// Subtracts a line that has left the queue.
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
