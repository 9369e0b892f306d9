//! Stores the timers of DNS queries, and finds the expired ones.
//!
//! The timers are in several queues. All timers in one queue have the same delay, so each queue is
//! always sorted by expiry.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::order::{NEXT_DELAY, SUSPECTED_DELAY};

/// Which delay a timer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerKind {
    /// The delay after a query to a suspected server.
    Suspected,
    /// The delay after a query to a server that is not suspected.
    Next,
    /// The full timeout, after a query to the last server or over TCP.
    Timeout(Duration),
}

impl TimerKind {
    pub(super) fn delay(self) -> Duration {
        match self {
            Self::Suspected => SUSPECTED_DELAY,
            Self::Next => NEXT_DELAY,
            Self::Timeout(time) => time,
        }
    }

    fn queue(self) -> usize {
        match self {
            Self::Suspected => 0,
            Self::Next => 1,
            Self::Timeout(_) => 2,
        }
    }
}

/// The timers of all queries. Most queries end before their timer expires. The timer of an ended
/// query is removed when the timer reaches the front of its queue.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queues: [VecDeque<Timer>; 3],
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    number: u64,
    due: Instant,
}

impl Timers {
    /// Adds a timer. `is_current` returns whether the query still waits for a timer.
    pub(super) fn push(
        &mut self,
        kind: TimerKind,
        number: u64,
        due: Instant,
        is_current: impl Fn(u64, Instant) -> bool,
    ) {
        let queue = &mut self.queues[kind.queue()];
        while queue.front().is_some_and(|timer| !is_current(timer.number, timer.due)) {
            queue.pop_front();
        }
        queue.push_back(Timer { number, due });
    }

    /// Removes an expired and valid timer, and returns the number of its query.
    pub(super) fn pop(
        &mut self,
        now: Instant,
        is_current: impl Fn(u64, Instant) -> bool,
    ) -> Option<u64> {
        for queue in &mut self.queues {
            while let Some(timer) = queue.pop_front_if(|timer| timer.due <= now) {
                if is_current(timer.number, timer.due) {
                    return Some(timer.number);
                }
            }
        }
        None
    }

    /// Returns when the next timer expires. The query of this timer may have ended already.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|timer| timer.due).min()
    }
}
