//! Detects replayed packets by their sequence numbers. Also computes the upper half of extended
//! sequence numbers.
//!
//! ```text
//!            top - 8,191                 top
//!   too old │        known in the bitmap   │ new: moves the window
//! ```
//!
//! `top` is the highest sequence number received. The bitmap is a ring of words (RFC 6479), so no
//! word is shifted when the window moves. Only the words between the old and the new `top` are
//! cleared. The ring has more words than the window needs, so clearing never removes numbers that
//! are still in the window.
//!
//! A packet contains only the lower half of an extended number. The receiver computes the upper
//! half from the position of the window (RFC 4303 appendix A2.2).

use crate::child::ReplayCheck;

/// The number of sequence numbers that may arrive in any order. One receive call brings 64 packets
/// of one sender, and several CPUs may reorder such batches.
pub const REPLAY_WINDOW: u64 = 8_192;

const WORD_BITS: u64 = 64;
/// A power of two, larger than the words of the window.
const WORDS: usize = 256;

/// Which sequence numbers have been received.
#[derive(Debug)]
pub(crate) struct ReplayWindow {
    has_extended_sequence: bool,
    check: ReplayCheck,
    /// The highest number that was received; 0: none.
    top: u64,
    words: Box<[u64; WORDS]>,
}

/// Why a sequence number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayError {
    /// It lies before the window, so it is unknown whether it was received.
    TooOld,
    /// It was received.
    Duplicate,
}

impl ReplayWindow {
    /// Creates a window for sequence numbers of 32 bits.
    pub(crate) fn new(check: ReplayCheck) -> Self {
        let words = Box::new([0; WORDS]);
        Self { has_extended_sequence: false, check, top: 0, words }
    }

    /// Creates a window for extended sequence numbers.
    pub(crate) fn extended() -> Self {
        Self { has_extended_sequence: true, ..Self::new(ReplayCheck::On) }
    }

    /// Returns the highest number that was received.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Returns the whole sequence number of a packet, and whether it may be accepted. Changes
    /// nothing, because the packet is not authenticated yet.
    pub(crate) fn check(&self, low: u32) -> Result<u64, ReplayError> {
        let number = self.completed(low).ok_or(ReplayError::TooOld)?;
        // RFC 4303 section 3.4.3: without the service, a receiver does not examine the number.
        if number > self.top || self.check == ReplayCheck::Off {
            return Ok(number);
        }
        // RFC 4303 section 3.3.2: the first number is 1.
        if number == 0 || number + REPLAY_WINDOW <= self.top {
            return Err(ReplayError::TooOld);
        }
        let (word, bit) = position(number);
        if self.words[word] & bit != 0 { Err(ReplayError::Duplicate) } else { Ok(number) }
    }

    /// Records the number of an authenticated packet, which [`Self::check`] has returned.
    pub(crate) fn accept(&mut self, number: u64) {
        if self.check == ReplayCheck::Off {
            self.top = self.top.max(number);
            return;
        }
        if number > self.top {
            let steps = number / WORD_BITS - self.top / WORD_BITS;
            for step in 1..=steps.min(u64::try_from(WORDS).unwrap_or(steps)) {
                let (word, _) = position((self.top / WORD_BITS + step) * WORD_BITS);
                self.words[word] = 0;
            }
            self.top = number;
        }
        let (word, bit) = position(number);
        self.words[word] |= bit;
    }

    /// Derives the upper half of a number (RFC 4303 appendix A2.2).
    fn completed(&self, low: u32) -> Option<u64> {
        if !self.has_extended_sequence {
            return Some(u64::from(low));
        }
        let half = 1_u64 << 32;
        let bottom = (self.top + 1).saturating_sub(REPLAY_WINDOW);
        let upper = self.top & !(half - 1);
        let same = upper | u64::from(low);
        let window_starts_in_this_half = bottom >= upper;
        if window_starts_in_this_half {
            // Case A: a number below the window belongs to the next half.
            if same >= bottom { Some(same) } else { same.checked_add(half) }
        } else {
            // Case B: the window spans two halves.
            let is_of_lower_half = u64::from(low) >= bottom & (half - 1);
            if is_of_lower_half { same.checked_sub(half) } else { Some(same) }
        }
    }
}

/// Returns the word and the bit of a number.
fn position(number: u64) -> (usize, u64) {
    let words = u64::try_from(WORDS).unwrap_or(1);
    let word = usize::try_from(number / WORD_BITS % words).unwrap_or(0);
    (word, 1 << (number % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn low(number: u64) -> u32 {
        u32::try_from(number & u64::from(u32::MAX)).unwrap()
    }

    /// Starts after `top` was received.
    fn after(top: u64, mut window: ReplayWindow) -> ReplayWindow {
        window.accept(top);
        window
    }

    #[test]
    fn each_number_is_accepted_once_and_only_inside_the_window() {
        let mut window = after(10_000, ReplayWindow::new(ReplayCheck::On));
        assert_eq!(window.check(10_000), Err(ReplayError::Duplicate));
        assert_eq!(window.check(10_000 - 8_192), Err(ReplayError::TooOld));
        assert_eq!(window.check(10_000 - 8_191), Ok(10_000 - 8_191));
        window.accept(10_000 - 8_191);
        assert_eq!(window.check(10_000 - 8_191), Err(ReplayError::Duplicate));
        window.accept(10_001);
        assert_eq!(window.check(10_000 - 8_191), Err(ReplayError::TooOld));
        assert_eq!(window.check(0), Err(ReplayError::TooOld));
    }

    #[test]
    fn zero_is_never_a_sequence_number() {
        assert_eq!(ReplayWindow::new(ReplayCheck::On).check(0), Err(ReplayError::TooOld));
        assert_eq!(ReplayWindow::extended().check(0), Err(ReplayError::TooOld));
    }

    #[test]
    fn the_upper_half_follows_the_window() {
        let half = 1_u64 << 32;
        // The window ends shortly before the boundary: the next numbers belong to the next half.
        let before = after(half - 10, ReplayWindow::extended());
        assert_eq!(before.check(5), Ok(half + 5));
        assert_eq!(before.check(low(half - 9)), Ok(half - 9));
        // The window spans the boundary: numbers of the lower half still belong to it.
        let beyond = after(half + 10, ReplayWindow::extended());
        assert_eq!(beyond.check(low(half - 100)), Ok(half - 100));
        assert_eq!(beyond.check(9), Ok(half + 9));
        assert_eq!(beyond.check(5_000), Ok(half + 5_000));
        // Without extended numbers the same bits are old.
        let short = after(half - 10, ReplayWindow::new(ReplayCheck::On));
        assert_eq!(short.check(5), Err(ReplayError::TooOld));
        // Before the first boundary there is no lower half.
        let first = after(10, ReplayWindow::extended());
        assert_eq!(first.check(low(half - 1)), Ok(half - 1));
    }

    proptest! {
        /// The window agrees with a set of everything that was received.
        #[test]
        fn the_window_agrees_with_a_set(
            start in prop::sample::select(vec![0, 8_000, u64::from(u32::MAX) - 20_000, 1 << 40]),
            steps in prop::collection::vec((-10_000_i64..12_000, any::<bool>()), 1..300),
        ) {
            let mut window = ReplayWindow::extended();
            let mut received = BTreeSet::new();
            let mut top = start.max(1);
            window.accept(top);
            received.insert(top);
            for (step, is_authentic) in steps {
                let Some(number) = top.checked_add_signed(step) else { continue };
                let is_old = number == 0 || number + REPLAY_WINDOW <= top;
                let wanted = if is_old {
                    // The number may look like one of the next half, which authentication refuses.
                    continue;
                } else if received.contains(&number) {
                    Err(ReplayError::Duplicate)
                } else {
                    Ok(number)
                };
                prop_assert_eq!(window.check(low(number)), wanted);
                if is_authentic && wanted.is_ok() {
                    window.accept(number);
                    received.insert(number);
                    top = top.max(number);
                }
                prop_assert_eq!(window.top(), top);
            }
        }

        #[test]
        fn old_numbers_are_never_accepted_without_extension(
            top in 1_u32.., numbers in prop::collection::vec(any::<u32>(), 1..100),
        ) {
            let window = after(u64::from(top), ReplayWindow::new(ReplayCheck::On));
            for number in numbers {
                let is_old = number == 0 || u64::from(number) + REPLAY_WINDOW <= u64::from(top);
                let is_refused = window.check(number).is_err();
                prop_assert_eq!(is_refused, is_old || number == top);
            }
        }
    }
}
