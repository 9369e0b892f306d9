//! One line a second about one thing: what repeats is counted, and its latest line is kept.
//!
//! ```text
//!   0.0 s  offer ──> written          0.3 s, 0.7 s  offer ──> kept and counted
//!   1.0 s  due   ──> the line of 0.7 s, with the count of those left out before it
//! ```
//!
//! Limits: [`INTERVAL`] between two lines with one key, [`KEYS_MAX`] keys at a time; lines with
//! further keys share one slot until there is room.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How far apart two lines with the same key are.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Keys that are known at a time; 1,024 lines a second are still read by nothing but programs.
pub const KEYS_MAX: usize = 1024;

/// Decides which lines are written.
#[derive(Debug)]
pub struct Limiter<K, V> {
    /// By key; the key `None` stands for all that came when there was no room.
    slots: HashMap<Option<K>, Option<Kept<V>>>,
    /// When the second of each key is over, the first one first.
    ends: VecDeque<(Instant, Option<K>)>,
}

/// What came since the last line with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<V> {
    /// The latest.
    pub latest: V,
    /// How many were left out before it.
    pub left_out: u64,
}

impl<K, V> Default for Limiter<K, V> {
    fn default() -> Self {
        Self { slots: HashMap::new(), ends: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, V> Limiter<K, V> {
    /// Takes a line; `Some`: it is to be written now. Call [`Self::due`] with the same time before.
    pub fn offer(&mut self, key: K, line: V, now: Instant) -> Option<V> {
        let key = Some(key);
        let key =
            if self.slots.contains_key(&key) || self.slots.len() < KEYS_MAX { key } else { None };
        match self.slots.get_mut(&key) {
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
                self.slots.insert(key.clone(), None);
                self.ends.push_back((now + INTERVAL, key));
                Some(line)
            }
        }
    }

    /// The lines that were kept and whose second is over by now.
    pub fn due(&mut self, now: Instant) -> Vec<Kept<V>> {
        let mut due = Vec::new();
        while let Some((end, _)) = self.ends.front()
            && *end <= now
        {
            let Some((_, key)) = self.ends.pop_front() else { break };
            // A key that was silent for its second is forgotten.
            if let Some(Some(kept)) = self.slots.remove(&key) {
                due.push(kept);
                self.slots.insert(key.clone(), None);
                self.ends.push_back((now + INTERVAL, key));
            }
        }
        due
    }

    /// All lines that are kept, whenever they are due: the end is near.
    pub fn take_all(&mut self) -> Vec<Kept<V>> {
        self.ends.clear();
        self.slots.drain().filter_map(|(_, kept)| kept).collect()
    }

    /// When [`Self::due`] may have something next; `None`: not before another line is offered.
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
            written.extend(limiter.offer("db", step, now).map(|line| (line, 0)));
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
        assert_eq!(limiter.offer("a", 1, now), Some(1));
        assert_eq!(limiter.offer("b", 2, now), Some(2));
        assert_eq!(limiter.offer("a", 3, now), None);
        assert_eq!(limiter.next_due(), Some(now + INTERVAL));
        assert_eq!(limiter.due(now + INTERVAL), [Kept { latest: 3, left_out: 0 }]);
        assert_eq!(limiter.slots.len(), 1, "b was silent");
        assert!(limiter.due(now + 2 * INTERVAL).is_empty());
        assert_eq!(limiter.offer("a", 4, now + 2 * INTERVAL), Some(4));
    }

    #[test]
    fn keys_without_room_share_one_line_a_second() {
        let mut limiter = Limiter::default();
        let now = Instant::now();
        let keys_count = KEYS_MAX + 100;
        let written = (0..keys_count).filter_map(|key| limiter.offer(key, key, now)).count();
        assert_eq!(written, KEYS_MAX + 1, "the first that finds no room is written too");
        assert!(limiter.slots.len() <= KEYS_MAX + 1);
        let due = limiter.due(now + INTERVAL);
        assert_eq!(due, [Kept { latest: keys_count - 1, left_out: 98 }]);
    }
}
