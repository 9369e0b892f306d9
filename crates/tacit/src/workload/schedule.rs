//! Computes the times at which a workload client with `--rate` sends its requests.
//!
//! Without a schedule, a client sends fewer requests while the server is slow. So the report of
//! this client contains too few long delays ("coordinated omission"). With a schedule, the client
//! measures latency from the time at which a request is due.

/// The due times of one connection, at equal intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Schedule {
    first_ns: f64,
    interval_ns: f64,
}

impl Schedule {
    /// The schedule of connection `number` of `connections`, which together send `rate` requests
    /// per second in turns.
    pub(super) fn of_connection(rate: f64, connections: usize, number: usize) -> Self {
        let turn_ns = 1e9 / rate;
        let interval_ns = turn_ns * connections as f64;
        Self { first_ns: turn_ns * number as f64, interval_ns }
    }

    /// The time at which request `number` (from 0) is due, in nanoseconds from the start.
    pub(super) fn due_ns(self, number: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is not negative, and the cast saturates at `u64::MAX`"
        )]
        let due = (self.first_ns + self.interval_ns * number as f64) as u64;
        due
    }

    /// The due times of the requests from `number` on that are due before `end_ns`.
    pub(super) fn due_before(self, number: u64, end_ns: u64) -> impl Iterator<Item = u64> {
        (number..).map(move |number| self.due_ns(number)).take_while(move |due| *due < end_ns)
    }
}

#[cfg(test)]
mod tests {
    use tacit_core::statistics::Histogram;

    use super::*;

    #[test]
    fn connections_take_turns_and_keep_the_rate() {
        let mut due: Vec<u64> = (0..4)
            .flat_map(|number| {
                Schedule::of_connection(1000.0, 4, number).due_before(0, 1_000_000_000)
            })
            .collect();
        due.sort_unstable();
        assert_eq!(due.len(), 1000);
        assert!(due.windows(2).all(|pair| (999_990..=1_000_010).contains(&(pair[1] - pair[0]))));
        assert_eq!(due[0], 0);
    }

    /// A server that takes 10 us for each request and pauses once, for a tenth of the time. The
    /// pause meets a tenth of the requests that users would send; a closed loop sees one of them.
    #[test]
    fn a_pause_is_seen_by_every_request_that_was_due_in_it() {
        let second = 1_000_000_000_u64;
        let pause = 100_000_000;
        let service = 10_000;
        let serve = |from: u64| match from < second / 2 || from > second / 2 + pause {
            true => from + service,
            false => second / 2 + pause + service,
        };
        let schedule = Schedule::of_connection(1000.0, 1, 0);
        let mut scheduled = Histogram::default();
        let mut closed = Histogram::default();
        let mut free = 0;
        for due in schedule.due_before(0, second) {
            free = serve(free.max(due));
            scheduled.record(free - due);
        }
        let mut now = 0;
        while now < second {
            let done = serve(now);
            closed.record(done - now);
            now = done;
        }
        let near = service..=service * 129 / 128;
        assert!(near.contains(&closed.per_mille(999)), "the closed loop knows of no pause");
        assert!(near.contains(&scheduled.per_mille(500)));
        assert!(scheduled.per_mille(950) > pause / 3, "{}", scheduled.per_mille(950));
        assert!(scheduled.per_mille(990) > pause * 8 / 10);
    }
}
