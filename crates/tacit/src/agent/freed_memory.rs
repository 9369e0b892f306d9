//! Decides when the agent returns freed memory to the kernel: once after each peak of open
//! connections, when more than half of these connections have ended.
//!
//! ```text
//!   connections   ▁▁█████▆▃▁▁▁▁
//!   check          ·   ·   ·   ·
//!                              └ the agent returns memory
//! ```
//!
//! Returning memory takes milliseconds. So the agent ignores peaks below [`PEAK_NOTED`]. While many
//! connections are ending, the agent waits: if the number of open connections has fallen by more
//! than half since the last check, the agent decides at its next check.

/// Below this peak, the memory of ended connections is too small to be returned.
const PEAK_NOTED: usize = 1000;

/// What the last check found.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    /// The most connections that were open at a time since memory was last returned.
    peak: usize,
    /// The connections that were open at the last check.
    open: usize,
}

impl FreedMemory {
    /// Whether freed memory is returned now. `open` connections are open, and at most `open_max`
    /// were open at a time since the last check.
    pub(super) fn is_due(&mut self, open: usize, open_max: usize) -> bool {
        self.peak = self.peak.max(open_max).max(open);
        let are_ending = open < self.open / 2;
        self.open = open;
        let is_due = self.peak >= PEAK_NOTED && open < self.peak / 2 && !are_ending;
        if is_due {
            self.peak = open;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks at which memory is returned; each has the connections that are open, and the
    /// most since the look before it.
    fn due(looks: &[(usize, usize)]) -> Vec<usize> {
        let mut memory = FreedMemory::default();
        let is_due =
            |(_, (open, open_max)): &(usize, &(usize, usize))| memory.is_due(*open, *open_max);
        looks.iter().enumerate().filter(is_due).map(|(at, _)| at).collect()
    }

    #[test]
    fn memory_is_returned_when_most_connections_of_a_peak_have_ended() {
        assert_eq!(due(&[(5000, 5000), (4000, 5000), (3000, 4000), (2400, 3000)]), [3]);
        assert!(due(&[(999, 999), (0, 999), (0, 0)]).is_empty(), "too few");
        assert!(due(&[(5000, 5000), (2600, 5000), (5000, 5000)]).is_empty(), "over half are open");
    }

    #[test]
    fn a_peak_between_two_looks_is_noticed() {
        assert_eq!(due(&[(3, 3), (3, 9000), (3, 3)]), [1]);
    }

    #[test]
    fn memory_is_returned_after_the_last_of_many_connections_has_ended() {
        assert_eq!(due(&[(9000, 9000), (900, 9000), (10, 900), (10, 10), (10, 10)]), [3]);
    }
}
