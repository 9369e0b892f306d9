//! Defines [`Polling`], which decides whether an engine polls for packets or waits.
//!
//! An engine polls for a short time after each packet. The next packet then does not have to wake
//! the engine. But if other threads need the CPU, polling takes CPU time from them. Later, when
//! the engine has packets, the scheduler runs these threads first. So if another thread runs while
//! the engine polls, the engine stops polling. During the next [`REST`], the engine waits for
//! packets without polling.

use std::time::{Duration, Instant};

/// How long an engine does not poll after another thread has used its CPU.
const REST: Duration = Duration::from_millis(100);

/// Whether a thread polls.
#[derive(Debug)]
pub(super) struct Polling {
    /// How long it polls after its last packet; zero: never.
    time: Duration,
    until: Instant,
    rests_until: Instant,
    /// When the last poll began; `None`: the thread has waited since then.
    polled_at: Option<Instant>,
}

impl Polling {
    pub(super) fn new(time: Duration, now: Instant) -> Self {
        Self { time, until: now, rests_until: now, polled_at: None }
    }

    /// Records that packets have been processed, which were there at the time `woken`.
    pub(super) fn note_packets(&mut self, woken: Instant, now: Instant) {
        self.rest_if_others_ran(woken);
        self.until = now + self.time;
        self.polled_at = None;
    }

    /// Reports whether the thread polls now, instead of waiting.
    pub(super) fn polls(&mut self, now: Instant) -> bool {
        self.rest_if_others_ran(now);
        let polls = now < self.until && now >= self.rests_until;
        self.polled_at = polls.then_some(now);
        polls
    }

    /// A poll takes a microsecond, unless another thread runs meanwhile.
    fn rest_if_others_ran(&mut self, now: Instant) {
        let others_ran = |since: Instant| now.saturating_duration_since(since) >= self.time;
        if self.polled_at.is_some_and(others_ran) {
            self.rests_until = now + REST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_polls_for_a_time_and_not_while_others_need_its_cpu() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut polling = Polling::new(Duration::from_micros(50), start);
        assert!(!polling.polls(at(0)), "there was no packet");
        polling.note_packets(at(9), at(10));
        assert!(polling.polls(at(11)) && polling.polls(at(59)));
        assert!(!polling.polls(at(60)), "50 us are over");
        polling.note_packets(at(999), at(1_000));
        assert!(polling.polls(at(1_001)));
        assert!(!polling.polls(at(1_051)), "another thread had the CPU for 50 us");
        polling.note_packets(at(1_059), at(1_060));
        assert!(!polling.polls(at(1_061)), "it rests");
        polling.note_packets(at(101_051), at(101_052));
        assert!(polling.polls(at(101_053)));
        polling.note_packets(at(101_103), at(101_104));
        assert!(!polling.polls(at(101_105)), "a packet came while another thread had the CPU");
        polling.note_packets(at(202_000), at(202_001));
        assert!(polling.polls(at(202_002)));
        polling.note_packets(at(202_010), at(202_100));
        assert!(polling.polls(at(202_101)), "packets took the time");
        let mut never = Polling::new(Duration::ZERO, start);
        never.note_packets(at(9), at(10));
        assert!(!never.polls(at(10)));
    }
}
