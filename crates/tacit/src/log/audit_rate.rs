//! Limits how many refusals and failures are written to the audit log, so that clients cannot fill
//! the disk. Lines about established connections are always written.
//!
//! ```text
//!   line ──> share of its run or client ── used up ──> common share ── used up ──> omitted
//! ```
//!
//! Each run (a program under `tacit run`) and each client has its own share. So one run or client
//! cannot suppress the lines of others.
//!
//! Limits for each second: [`SHARE_LINES`] lines in a share, [`COMMON_LINES`] in the common share.
//! At most [`SHARES_MAX`] runs and [`SHARES_MAX`] clients have a share of their own. All others use
//! the common share.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cause::{ByGroup, EventCause};

/// The share of one run or client: lines in one second.
pub(super) const SHARE_LINES: usize = 100;
/// The maximum number of runs, and of clients, that have a share in one second.
pub(super) const SHARES_MAX: usize = 128;
/// The share of all runs and clients together: lines in one second beyond their own shares.
pub(super) const COMMON_LINES: usize = 1000;
/// How many runs are reported by name if their lines were left out in one second.
const NAMED_RUNS_MAX: usize = 16;

const SECOND: Duration = Duration::from_secs(1);

/// Counts the lines of the current second.
#[derive(Debug, Default)]
pub(super) struct AuditRate {
    begun: Option<Instant>,
    shares: ByGroup<HashMap<EventCause, Share>>,
    common_written: usize,
    left_out: u64,
}

/// The lines of one run or client in the current second.
#[derive(Debug, Default)]
struct Share {
    written: usize,
    left_out: u64,
}

/// A number of lines that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// The name of the run that caused them; `None` for all others.
    pub(super) run: Option<String>,
    pub(super) count: u64,
}

impl AuditRate {
    /// Whether a line may be written now. Counts the line as written or as left out.
    pub(super) fn admits(&mut self, cause: &EventCause, now: Instant) -> bool {
        let is_over = self.begun.is_none_or(|begun| now.duration_since(begun) >= SECOND);
        // The lines that were left out in the last second are reported before a new second begins.
        if is_over && self.left_out == 0 {
            *self = Self { begun: Some(now), ..Self::default() };
        }
        let shares = self.shares.of(cause);
        if !shares.contains_key(cause) && shares.len() < SHARES_MAX {
            shares.insert(cause.clone(), Share::default());
        }
        let mut share = shares.get_mut(cause);
        if let Some(share) = &mut share
            && share.written < SHARE_LINES
        {
            share.written += 1;
            return true;
        }
        if self.common_written < COMMON_LINES {
            self.common_written += 1;
            return true;
        }
        self.left_out += 1;
        if let Some(share) = share {
            share.left_out += 1;
        }
        false
    }

    /// When lines that were left out are reported next; `None` if there are none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.begun.filter(|_| self.left_out > 0).map(|begun| begun + SECOND)
    }

    /// Returns how many lines were left out, after the second is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<LeftOut> {
        match self.next_due() {
            Some(due) if due <= now => self.take(),
            _ => Vec::new(),
        }
    }

    /// Returns how many lines were left out so far: for the runs with the most by name, then for
    /// all others together.
    pub(super) fn take(&mut self) -> Vec<LeftOut> {
        let mut rest = std::mem::take(&mut self.left_out);
        let mut reported = Vec::new();
        for (cause, share) in &mut self.shares.runs {
            let count = std::mem::take(&mut share.left_out);
            if let EventCause::Run(run) = cause
                && count > 0
            {
                reported.push((count, run.id, run.name.clone()));
            }
        }
        reported.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        reported.truncate(NAMED_RUNS_MAX);
        self.shares.clients.values_mut().for_each(|share| share.left_out = 0);
        let mut lines = Vec::new();
        for (count, _, name) in reported {
            rest -= count;
            lines.push(LeftOut { run: Some(name), count });
        }
        if rest > 0 {
            lines.push(LeftOut { run: None, count: rest });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Source;
    use tacit_core::refusal::RunLabel;

    const ALL_OF_ONE: usize = SHARE_LINES + COMMON_LINES;

    fn run(id: u64) -> EventCause {
        EventCause::Run(RunLabel { id, name: format!("run-{id}") })
    }

    fn left_out(run: Option<u64>, count: u64) -> LeftOut {
        LeftOut { run: run.map(|id| format!("run-{id}")), count }
    }

    fn offer(rate: &mut AuditRate, cause: &EventCause, lines: usize, now: Instant) -> usize {
        (0..lines).filter(|_| rate.admits(cause, now)).count()
    }

    #[test]
    fn lines_beyond_the_limit_of_a_second_are_counted() {
        let mut rate = AuditRate::default();
        let begun = Instant::now();
        assert_eq!(offer(&mut rate, &run(1), ALL_OF_ONE + 7, begun), ALL_OF_ONE);
        assert_eq!(rate.next_due(), Some(begun + SECOND));
        assert_eq!(rate.take_due(begun + SECOND / 2), [], "the second is not over");
        assert_eq!(rate.take_due(begun + SECOND), [left_out(Some(1), 7)]);
        assert_eq!((rate.take_due(begun + SECOND), rate.next_due()), (Vec::new(), None));
        assert!(rate.admits(&run(1), begun + SECOND), "the next second begins");
    }

    #[test]
    fn lines_within_the_limit_are_all_written() {
        let mut rate = AuditRate::default();
        let begun = Instant::now();
        for second in 0..5 {
            let now = begun + SECOND * second;
            assert_eq!(offer(&mut rate, &EventCause::Agent, ALL_OF_ONE, now), ALL_OF_ONE);
        }
        assert_eq!(rate.take(), []);
    }

    #[test]
    fn one_run_does_not_use_up_the_shares_of_others() {
        let mut rate = AuditRate::default();
        let now = Instant::now();
        let client = |number| EventCause::Source(Source::V4(number));
        assert_eq!(offer(&mut rate, &run(1), 15_000, now), ALL_OF_ONE);
        assert_eq!(offer(&mut rate, &run(2), 30, now), 30);
        assert_eq!(offer(&mut rate, &client(1), 130, now), SHARE_LINES);
        assert_eq!(offer(&mut rate, &client(2), 30, now), 30);
        assert_eq!(offer(&mut rate, &run(2), 100, now), 70, "the rest of its share");
        assert_eq!(
            rate.take_due(now + SECOND),
            [left_out(Some(1), 13_900), left_out(Some(2), 30), left_out(None, 30)],
        );
    }

    #[test]
    fn shares_and_reports_are_bounded_and_clients_use_no_shares_of_runs() {
        let mut rate = AuditRate::default();
        let now = Instant::now();
        let clients = 0..5_000;
        let lines: usize = clients
            .map(|number| offer(&mut rate, &EventCause::Source(Source::V6(number)), 200, now))
            .sum();
        assert_eq!(lines, SHARES_MAX * SHARE_LINES + COMMON_LINES);
        let runs = u64::try_from(SHARES_MAX).unwrap() + 2;
        for id in 0..runs {
            let written = offer(&mut rate, &run(id), 110, now);
            let has_share = id < runs - 2;
            assert_eq!(written, if has_share { SHARE_LINES } else { 0 }, "run {id}");
        }
        assert!(rate.shares.runs.len() <= SHARES_MAX && rate.shares.clients.len() <= SHARES_MAX);
        let reported = rate.take_due(now + SECOND);
        assert_eq!(reported.len(), NAMED_RUNS_MAX + 1);
        let sum: u64 = reported.iter().map(|one| one.count).sum();
        let offered = 5_000 * 200 + runs * 110;
        let written = lines + SHARES_MAX * SHARE_LINES;
        assert_eq!(sum + u64::try_from(written).unwrap(), offered, "every line is counted");
    }
}
