//! Limits log lines to one a second for each key. A key consists of the kind and the cause of a log
//! line. For example, the cause is a rule or a run (a program under `tacit run`). The limiter
//! counts the omitted lines, and keeps the latest omitted line.
//!
//! ```text
//!   0.0 s         offer() ──> the caller writes the line
//!   0.3 s, 0.7 s  offer() ──> the limiter omits and counts the line, and keeps the latest one
//!   1.0 s         due()   ──> returns the line of 0.7 s, and the number of lines omitted before
//! ```
//!
//! The cause is part of the key, so one cause cannot suppress the lines of another.
//!
//! Limits: one line in [`INTERVAL`] for each key; [`KEYS_MAX`] keys in total, and
//! [`KEYS_PER_CAUSE_MAX`] keys for each cause. Above these limits, all other lines of a cause share
//! one key. At most [`CAUSES_MAX`] causes have a shared key. Above that limit, the lines of all
//! other causes share a single key.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Minimum interval between two lines with the same key.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of keys at a time; only programs read 1,024 lines a second.
pub const KEYS_MAX: usize = 1024;
/// Maximum number of keys of one cause.
pub const KEYS_PER_CAUSE_MAX: usize = KEYS_MAX / 8;
/// The largest number of causes that have a shared slot for lines without a slot of their own.
pub const CAUSES_MAX: usize = 1024;

/// Decides which lines are written. `C` is the cause of a line, `K` its subject.
#[derive(Debug)]
pub struct Limiter<C, K, V> {
    slots: HashMap<Slot<C, K>, Option<Kept<V>>>,
    /// When the interval of each slot ends, in order.
    ends: VecDeque<(Instant, Slot<C, K>)>,
    /// The number of keys of each cause in `slots`.
    keys: HashMap<C, usize>,
    /// The number of keys and of shared slots of causes.
    keys_count: usize,
    causes_count: usize,
}

/// The group of lines that share one slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Slot<C, K> {
    Key(C, K),
    /// Lines of a cause without room for their keys.
    Cause(C),
    /// Lines whose cause has no slot.
    Rest,
}

/// A line that was kept, and the number of lines that were omitted before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<V> {
    /// The latest line.
    pub latest: V,
    /// The number of omitted lines.
    pub left_out: u64,
}

impl<C, K, V> Default for Limiter<C, K, V> {
    fn default() -> Self {
        Self {
            slots: HashMap::new(),
            ends: VecDeque::new(),
            keys: HashMap::new(),
            keys_count: 0,
            causes_count: 0,
        }
    }
}

impl<C: Clone + Eq + Hash, K: Clone + Eq + Hash, V> Limiter<C, K, V> {
    /// Handles a line. Returns the line if it must be written now. Call [`Self::due`] with the same
    /// time before this.
    pub fn offer(&mut self, cause: C, key: K, line: V, now: Instant) -> Option<V> {
        let slot = self.slot(cause, key);
        match self.slots.get_mut(&slot) {
            Some(Some(kept)) => {
                kept.latest = line;
                kept.left_out += 1;
                None
            }
            Some(empty @ None) => {
                *empty = Some(Kept { latest: line, left_out: 0 });
                None
            }
            None => {
                self.begin(slot, now);
                Some(line)
            }
        }
    }

    /// Returns the slot of a line, which may be a new one.
    fn slot(&self, cause: C, key: K) -> Slot<C, K> {
        let keys_of_cause = self.keys.get(&cause).copied().unwrap_or(0);
        let has_room = self.keys_count < KEYS_MAX && keys_of_cause < KEYS_PER_CAUSE_MAX;
        let own = Slot::Key(cause.clone(), key);
        if has_room || self.slots.contains_key(&own) {
            return own;
        }
        let shared = Slot::Cause(cause);
        let has_room = self.causes_count < CAUSES_MAX;
        if has_room || self.slots.contains_key(&shared) { shared } else { Slot::Rest }
    }

    fn begin(&mut self, slot: Slot<C, K>, now: Instant) {
        match &slot {
            Slot::Key(cause, _) => {
                self.keys_count += 1;
                *self.keys.entry(cause.clone()).or_default() += 1;
            }
            Slot::Cause(_) => self.causes_count += 1,
            Slot::Rest => {}
        }
        self.slots.insert(slot.clone(), None);
        self.ends.push_back((now + INTERVAL, slot));
    }

    fn end(&mut self, slot: &Slot<C, K>) -> Option<Kept<V>> {
        match slot {
            Slot::Key(cause, _) => {
                self.keys_count -= 1;
                if let Some(count) = self.keys.get_mut(cause) {
                    *count -= 1;
                    if *count == 0 {
                        self.keys.remove(cause);
                    }
                }
            }
            Slot::Cause(_) => self.causes_count -= 1,
            Slot::Rest => {}
        }
        self.slots.remove(slot).flatten()
    }

    /// Takes the kept lines that are due.
    pub fn due(&mut self, now: Instant) -> Vec<Kept<V>> {
        let mut due = Vec::new();
        while let Some((end, _)) = self.ends.front()
            && *end <= now
        {
            let Some((_, slot)) = self.ends.pop_front() else { break };
            // A slot is removed if its interval had no further lines.
            if let Some(kept) = self.end(&slot) {
                due.push(kept);
                self.begin(slot, now);
            }
        }
        due
    }

    /// Takes all kept lines, before the program ends.
    pub fn take_all(&mut self) -> Vec<Kept<V>> {
        let slots = std::mem::take(self).slots;
        slots.into_values().flatten().collect()
    }

    /// Returns when to call [`Self::due`] next; `None` if no line is kept.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.ends.front().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    #[test]
    fn what_repeats_is_one_line_a_second_with_a_count() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let mut written = Vec::new();
        for step in 0..25_u32 {
            let now = start + STEP * step;
            written.extend(limiter.due(now).into_iter().map(|kept| (kept.latest, kept.left_out)));
            written.extend(limiter.offer((), "db", step, now).map(|line| (line, 0)));
        }
        assert_eq!(written, [(0, 0), (9, 8), (19, 9)]);
        let rest: Vec<_> = limiter.take_all();
        assert_eq!(rest, [Kept { latest: 24, left_out: 4 }], "no line is lost without a count");
        assert_eq!(limiter.next_due(), None);
    }

    #[test]
    fn keys_do_not_disturb_each_other_and_a_silent_one_is_forgotten() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        assert_eq!(limiter.offer((), "a", 1, now), Some(1));
        assert_eq!(limiter.offer((), "b", 2, now), Some(2));
        assert_eq!(limiter.offer((), "a", 3, now), None);
        assert_eq!(limiter.next_due(), Some(now + INTERVAL));
        assert_eq!(limiter.due(now + INTERVAL), [Kept { latest: 3, left_out: 0 }]);
        assert_eq!(limiter.slots.len(), 1, "b was silent");
        assert!(limiter.due(now + 2 * INTERVAL).is_empty());
        assert_eq!(limiter.offer((), "a", 4, now + 2 * INTERVAL), Some(4));
    }

    #[test]
    fn keys_without_room_share_one_line_a_second() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let keys_count = KEYS_PER_CAUSE_MAX + 100;
        let offered = |key| limiter.offer("flood", key, key, now);
        let written = (0..keys_count).filter_map(offered).count();
        assert_eq!(written, KEYS_PER_CAUSE_MAX + 1, "the first that finds no room is written too");
        assert_eq!(limiter.slots.len(), KEYS_PER_CAUSE_MAX + 1);
        let due = limiter.due(now + INTERVAL);
        assert_eq!(due, [Kept { latest: keys_count - 1, left_out: 98 }]);
        assert_eq!((limiter.keys_count, limiter.keys.len(), limiter.causes_count), (0, 0, 1));
        assert!(limiter.due(now + 2 * INTERVAL).is_empty());
        assert_eq!((limiter.slots.len(), limiter.causes_count), (0, 0), "all are forgotten");
    }

    #[test]
    fn one_cause_of_many_lines_does_not_suppress_those_of_others() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        for flood in 0..KEYS_MAX / KEYS_PER_CAUSE_MAX {
            assert_eq!(limiter.offer(usize::MAX, flood, 0, now), Some(0), "there is room");
            for key in 0..2 * KEYS_MAX {
                limiter.offer(flood, key, 0, now);
            }
        }
        assert_eq!(limiter.keys_count, KEYS_MAX);
        let quiet = |limiter: &mut Limiter<_, _, _>, now| limiter.offer(usize::MAX - 1, 0, 7, now);
        assert_eq!(quiet(&mut limiter, now), Some(7), "written at once, in a slot of its cause");
        assert_eq!(quiet(&mut limiter, now), None);
        let due = limiter.due(now + INTERVAL);
        assert!(due.contains(&Kept { latest: 7, left_out: 0 }), "{due:?}");
    }

    #[test]
    fn causes_are_bounded() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let causes = KEYS_MAX + CAUSES_MAX + 50;
        let written = (0..causes).filter_map(|cause| limiter.offer(cause, 0, cause, now)).count();
        assert_eq!(written, KEYS_MAX + CAUSES_MAX + 1);
        assert_eq!(limiter.slots.len(), written);
        let due = limiter.due(now + INTERVAL);
        assert_eq!(due, [Kept { latest: causes - 1, left_out: 48 }]);
    }
}
