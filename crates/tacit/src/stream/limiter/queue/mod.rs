//! Decides which waiting TLS handshake gets the next permit of the handshake limiter. The code
//! reads no clock and needs no async runtime.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tacit_core::policy::Limits;
use tokio::sync::{Notify, oneshot};

use super::Initiator;
use crate::address::Source;

/// A handshake that takes longer than this is slow: others may displace it.
pub(super) const SLOW: Duration = Duration::from_millis(300);

/// How many waiting handshakes of one source are checked for one whose rule has a free permit.
const LOOKED_AT_MAX: usize = 16;

/// A handshake that needs a permit.
#[derive(Clone, Debug)]
pub(super) struct PermitRequest {
    pub(super) source: Source,
    /// Handshakes in flight of the rule; only a queue changes it.
    pub(super) rule: Arc<AtomicUsize>,
    pub(super) initiator: Initiator,
    /// Notified when another handshake needs the permit.
    pub(super) displaced: Arc<Notify>,
}

/// The answer to a request for a permit.
#[derive(Debug)]
pub(super) enum Admission {
    /// A permit, with this number.
    Granted(u64),
    /// A number in the queue; the sender is dropped when the request is rejected.
    Queued(u64, oneshot::Receiver<()>),
}

#[derive(Debug)]
struct PermitHolder {
    number: u64,
    since: Instant,
    initiator: Initiator,
    displaced: Arc<Notify>,
}

#[derive(Debug)]
struct QueuedRequest {
    number: u64,
    request: PermitRequest,
    granted: oneshot::Sender<()>,
}

/// A source with at least one handshake in flight or waiting. The oldest are first.
#[derive(Debug, Default)]
struct OfSource {
    holders: VecDeque<PermitHolder>,
    waiters: VecDeque<QueuedRequest>,
}

/// All permits, and all requests that wait for one.
#[derive(Debug)]
pub(super) struct PermitQueue {
    all: usize,
    per_rule: usize,
    per_source: usize,
    waiting_max: usize,
    in_flight: usize,
    waiting: usize,
    next_number: u64,
    sources: BTreeMap<Source, OfSource>,
}

impl PermitQueue {
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

    /// Grants a permit, or queues the request.
    pub(super) fn acquire(&mut self, request: PermitRequest, now: Instant) -> Admission {
        let number = self.next_number;
        self.next_number += 1;
        if self.has_room_for(&request) {
            self.hold(number, &request, now);
            return Admission::Granted(number);
        }
        if self.waiting >= self.waiting_max {
            self.refuse_one();
        }
        self.waiting += 1;
        let (granted, grant) = oneshot::channel();
        let source = self.sources.entry(request.source).or_default();
        source.waiters.push_back(QueuedRequest { number, request, granted });
        Admission::Queued(number, grant)
    }

    /// Takes back the permit of a handshake that has ended, and grants it to the next one.
    pub(super) fn leave(&mut self, request: &PermitRequest, number: u64, now: Instant) {
        self.release(request, number);
        self.admit(now);
    }

    /// Removes a request that no longer waits. It may have been granted a moment ago.
    pub(super) fn give_up(&mut self, request: &PermitRequest, number: u64, now: Instant) {
        if let Some(source) = self.sources.get_mut(&request.source)
            && let Some(at) = source.waiters.iter().position(|one| one.number == number)
        {
            source.waiters.remove(at);
            self.waiting -= 1;
            self.forget_if_idle(request.source);
            return;
        }
        self.leave(request, number, now);
    }

    /// Displaces the oldest slow handshake of the busiest source if the requesting source has less
    /// than half as many.
    pub(super) fn displace_for(&self, request: &PermitRequest, now: Instant) {
        let own = self.sources.get(&request.source).map_or(0, |source| source.holders.len());
        let may_go = |holder: &&PermitHolder| {
            holder.initiator == Initiator::Peer && now - holder.since >= SLOW
        };
        let busiest = self.sources.values().max_by_key(|source| source.holders.len());
        if own < self.per_source
            && let Some(busiest) = busiest.filter(|busiest| busiest.holders.len() > 2 * own + 1)
            && let Some(slow) = busiest.holders.iter().find(may_go)
        {
            slow.displaced.notify_one();
        }
    }

    /// Whether a permit is free for it; the last quarters are for sources that have none.
    fn has_room_for(&self, request: &PermitRequest) -> bool {
        let own = self.sources.get(&request.source).map_or(0, |source| source.holders.len());
        let usable = |all: usize| if own == 0 { all } else { all - all / 4 };
        own < self.per_source
            && request.rule.load(Ordering::Relaxed) < usable(self.per_rule)
            && self.in_flight < usable(self.all)
    }

    fn hold(&mut self, number: u64, request: &PermitRequest, now: Instant) {
        let PermitRequest { source, rule, initiator, displaced } = request;
        rule.fetch_add(1, Ordering::Relaxed);
        self.in_flight += 1;
        let displaced = Arc::clone(displaced);
        let holder = PermitHolder { number, since: now, initiator: *initiator, displaced };
        self.sources.entry(*source).or_default().holders.push_back(holder);
    }

    fn release(&mut self, request: &PermitRequest, number: u64) {
        let Some(source) = self.sources.get_mut(&request.source) else { return };
        let Some(at) = source.holders.iter().position(|one| one.number == number) else { return };
        source.holders.remove(at);
        request.rule.fetch_sub(1, Ordering::Relaxed);
        self.in_flight -= 1;
        self.forget_if_idle(request.source);
    }

    /// Grants free permits to waiting requests, first to the source that has the fewest.
    fn admit(&mut self, now: Instant) {
        while let Some(waiter) = self.take_next() {
            self.hold(waiter.number, &waiter.request, now);
            if waiter.granted.send(()).is_err() {
                // The waiting handshake has just given up; its `give_up` then finds nothing to
                // remove.
                self.release(&waiter.request, waiter.number);
            }
        }
    }

    fn take_next(&mut self) -> Option<QueuedRequest> {
        if self.waiting == 0 || self.in_flight >= self.all {
            return None;
        }
        let fewest = self.sources.iter().filter_map(|(source, of)| {
            let mut first = of.waiters.iter().take(LOOKED_AT_MAX);
            let at = first.position(|one| self.has_room_for(&one.request))?;
            Some((of.holders.len(), *source, at))
        });
        let (_, source, at) = fewest.min()?;
        self.waiting -= 1;
        self.sources.get_mut(&source)?.waiters.remove(at)
    }

    /// Rejects the oldest waiting request of the source that has the most of them.
    fn refuse_one(&mut self) {
        let came = |of: &OfSource| {
            of.waiters.iter().filter(|one| one.request.initiator == Initiator::Peer).count()
        };
        let most = self.sources.iter().max_by_key(|(_, of)| came(of)).map(|(source, _)| *source);
        let Some(source) = most else { return };
        let Some(of) = self.sources.get_mut(&source) else { return };
        if let Some(at) = of.waiters.iter().position(|one| one.request.initiator == Initiator::Peer)
        {
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
