//! Who has a place, who waits, and who is next: no clock and no runtime of its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tacit_core::policy::Limits;
use tokio::sync::{Notify, oneshot};

use super::Peer;
use crate::address::Source;

/// A handshake that has taken so long is slow: others may displace it.
pub(super) const SLOW: Duration = Duration::from_millis(300);

/// Of those who wait of one source, how many are looked at for one whose rule has a place.
const LOOKED_AT_MAX: usize = 16;

/// Who wants a place, and which.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) source: Source,
    /// Handshakes in flight of the rule; changed by a queue alone.
    pub(super) rule: Arc<AtomicUsize>,
    pub(super) peer: Peer,
    /// Notified when it is to make room.
    pub(super) displaced: Arc<Notify>,
}

/// What becomes of one that asks for a place.
#[derive(Debug)]
pub(super) enum Entered {
    /// It has one, by this number.
    Place(u64),
    /// It waits under this number; the sender is dropped when it is refused.
    Waits(u64, oneshot::Receiver<()>),
}

#[derive(Debug)]
struct Holder {
    number: u64,
    since: Instant,
    peer: Peer,
    displaced: Arc<Notify>,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    entry: Entry,
    granted: oneshot::Sender<()>,
}

/// One source, for as long as it has a place or waits. The oldest are first.
#[derive(Debug, Default)]
struct OfSource {
    holders: VecDeque<Holder>,
    waiters: VecDeque<Waiter>,
}

/// All places, and all who wait.
#[derive(Debug)]
pub(super) struct Queue {
    all: usize,
    per_rule: usize,
    per_source: usize,
    waiting_max: usize,
    in_flight: usize,
    waiting: usize,
    next_number: u64,
    sources: BTreeMap<Source, OfSource>,
}

impl Queue {
    pub(super) fn new(limits: &Limits, waiting_max: usize) -> Self {
        Self {
            all: limits.handshakes,
            per_rule: limits.handshakes_per_rule,
            per_source: limits.handshakes_per_source,
            waiting_max,
            in_flight: 0,
            waiting: 0,
            next_number: 0,
            sources: BTreeMap::new(),
        }
    }

    /// Handshakes in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Gives a place, or a number to wait under.
    pub(super) fn enter(&mut self, entry: Entry, now: Instant) -> Entered {
        let number = self.next_number;
        self.next_number += 1;
        if self.has_place_for(&entry) {
            self.hold(number, &entry, now);
            return Entered::Place(number);
        }
        if self.waiting >= self.waiting_max {
            self.refuse_one();
        }
        self.waiting += 1;
        let (granted, grant) = oneshot::channel();
        let source = self.sources.entry(entry.source).or_default();
        source.waiters.push_back(Waiter { number, entry, granted });
        Entered::Waits(number, grant)
    }

    /// A handshake is over: the next one gets its place.
    pub(super) fn leave(&mut self, entry: &Entry, number: u64, now: Instant) {
        self.release(entry, number);
        self.admit(now);
    }

    /// One that waited does not any more; it may have got a place a moment ago.
    pub(super) fn give_up(&mut self, entry: &Entry, number: u64, now: Instant) {
        if let Some(source) = self.sources.get_mut(&entry.source)
            && let Some(at) = source.waiters.iter().position(|one| one.number == number)
        {
            source.waiters.remove(at);
            self.waiting -= 1;
            self.forget_if_idle(entry.source);
            return;
        }
        self.leave(entry, number, now);
    }

    /// Has the oldest handshake of the busiest source make room for one of a source that has less
    /// than half as many, if it is slow and nothing else is in the way.
    pub(super) fn displace_for(&self, entry: &Entry, now: Instant) {
        let own = self.sources.get(&entry.source).map_or(0, |source| source.holders.len());
        let may_go = |holder: &&Holder| holder.peer == Peer::Came && now - holder.since >= SLOW;
        let busiest = self.sources.values().max_by_key(|source| source.holders.len());
        if own < self.per_source
            && let Some(busiest) = busiest.filter(|busiest| busiest.holders.len() > 2 * own + 1)
            && let Some(slow) = busiest.holders.iter().find(may_go)
        {
            slow.displaced.notify_one();
        }
    }

    /// Whether there is a place for it; the last quarters are for sources that have none.
    fn has_place_for(&self, entry: &Entry) -> bool {
        let own = self.sources.get(&entry.source).map_or(0, |source| source.holders.len());
        let usable = |all: usize| if own == 0 { all } else { all - all / 4 };
        own < self.per_source
            && entry.rule.load(Ordering::Relaxed) < usable(self.per_rule)
            && self.in_flight < usable(self.all)
    }

    fn hold(&mut self, number: u64, entry: &Entry, now: Instant) {
        let Entry { source, rule, peer, displaced } = entry;
        rule.fetch_add(1, Ordering::Relaxed);
        self.in_flight += 1;
        let displaced = Arc::clone(displaced);
        let holder = Holder { number, since: now, peer: *peer, displaced };
        self.sources.entry(*source).or_default().holders.push_back(holder);
    }

    fn release(&mut self, entry: &Entry, number: u64) {
        let Some(source) = self.sources.get_mut(&entry.source) else { return };
        let Some(at) = source.holders.iter().position(|one| one.number == number) else { return };
        source.holders.remove(at);
        entry.rule.fetch_sub(1, Ordering::Relaxed);
        self.in_flight -= 1;
        self.forget_if_idle(entry.source);
    }

    /// Gives free places to those who wait: first to the source that has the fewest.
    fn admit(&mut self, now: Instant) {
        while let Some(waiter) = self.take_next() {
            self.hold(waiter.number, &waiter.entry, now);
            if waiter.granted.send(()).is_err() {
                // It gave up a moment ago, and says so when it comes to it.
                self.release(&waiter.entry, waiter.number);
            }
        }
    }

    fn take_next(&mut self) -> Option<Waiter> {
        if self.waiting == 0 || self.in_flight >= self.all {
            return None;
        }
        let fewest = self.sources.iter().filter_map(|(source, of)| {
            let mut first = of.waiters.iter().take(LOOKED_AT_MAX);
            let at = first.position(|one| self.has_place_for(&one.entry))?;
            Some((of.holders.len(), *source, at))
        });
        let (_, source, at) = fewest.min()?;
        self.waiting -= 1;
        self.sources.get_mut(&source)?.waiters.remove(at)
    }

    /// Refuses the oldest of those who wait of the source that has the most of them.
    fn refuse_one(&mut self) {
        let came =
            |of: &OfSource| of.waiters.iter().filter(|one| one.entry.peer == Peer::Came).count();
        let most = self.sources.iter().max_by_key(|(_, of)| came(of)).map(|(source, _)| *source);
        let Some(source) = most else { return };
        let Some(of) = self.sources.get_mut(&source) else { return };
        if let Some(at) = of.waiters.iter().position(|one| one.entry.peer == Peer::Came) {
            of.waiters.remove(at);
            self.waiting -= 1;
            self.forget_if_idle(source);
        }
    }

    fn forget_if_idle(&mut self, source: Source) {
        let is_idle = |of: &OfSource| of.holders.is_empty() && of.waiters.is_empty();
        if self.sources.get(&source).is_some_and(is_idle) {
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests;
