//! How many refusals and failures the audit log takes: what strangers can cause without end must
//! not fill a disk. What carries bytes is never left out.

use std::time::{Duration, Instant};

/// Lines about refusals and failures in one second.
pub(super) const REFUSALS_PER_S_MAX: usize = 1000;

const SECOND: Duration = Duration::from_secs(1);

/// Counts the lines of one second after the other.
#[derive(Debug, Default)]
pub(super) struct AuditRate {
    begun: Option<Instant>,
    written: usize,
    left_out: u64,
}

impl AuditRate {
    /// Whether a line may be written now; one that may not is counted.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let is_over = self.begun.is_none_or(|begun| now.duration_since(begun) >= SECOND);
        // What was left out in the second before is reported first.
        if is_over && self.left_out == 0 {
            self.begun = Some(now);
            self.written = 0;
        }
        let admits = self.written < REFUSALS_PER_S_MAX;
        self.written += usize::from(admits);
        self.left_out += u64::from(!admits);
        admits
    }

    /// When there is something to report; `None`: nothing was left out.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.begun.filter(|_| self.left_out > 0).map(|begun| begun + SECOND)
    }

    /// How many lines were left out, once their second is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u64> {
        self.next_due().filter(|due| *due <= now)?;
        self.take()
    }

    /// How many lines were left out so far; `None`: none.
    pub(super) fn take(&mut self) -> Option<u64> {
        let left_out = std::mem::take(&mut self.left_out);
        (left_out > 0).then_some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_a_count_of_the_others() {
        let mut rate = AuditRate::default();
        let begun = Instant::now();
        let admitted = (0..REFUSALS_PER_S_MAX + 7).filter(|_| rate.admits(begun)).count();
        assert_eq!(admitted, REFUSALS_PER_S_MAX);
        assert_eq!(rate.next_due(), Some(begun + SECOND));
        assert_eq!(rate.take_due(begun + SECOND / 2), None, "it is not over");
        assert_eq!(rate.take_due(begun + SECOND), Some(7));
        assert_eq!((rate.take_due(begun + SECOND), rate.next_due()), (None, None));
        assert!(rate.admits(begun + SECOND), "the next second begins");
    }

    #[test]
    fn few_lines_are_all_written() {
        let mut rate = AuditRate::default();
        let begun = Instant::now();
        for second in 0..5 {
            for _ in 0..REFUSALS_PER_S_MAX {
                assert!(rate.admits(begun + SECOND * second));
            }
        }
        assert_eq!(rate.take(), None);
    }
}
