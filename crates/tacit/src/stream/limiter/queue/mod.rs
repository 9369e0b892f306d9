//! Decides which waiting TLS handshake gets the next permit of the handshake limiter. The code
//! reads no clock and needs no async runtime.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    pub(super) signals: Arc<Signals>,
}

/// The messages between a handshake and the queue.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Notified when another handshake needs the permit.
    pub(super) displaced: Notify,
    /// Whether the peer has sent enough to get an answer. Until then it is silent.
    pub(super) is_answered: AtomicBool,
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
    rule: Arc<AtomicUsize>,
    initiator: Initiator,
    signals: Arc<Signals>,
}

impl PermitHolder {
    /// Whether it is a client's, and slow.
    fn may_be_displaced(&self, now: Instant) -> bool {
        self.initiator == Initiator::Peer && now - self.since >= SLOW
    }

    fn is_silent(&self) -> bool {
        !self.signals.is_answered.load(Ordering::Relaxed)
    }
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
        if self.has_room_for(&request, self.holders_of(request.source)) {
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

    /// Displaces a slow handshake, if its end makes room for the request: the oldest of the busiest
    /// sources. The source must have more than twice as many as the requesting one, or one silent
    /// handshake where the requesting source has none.
    pub(super) fn displace_for(&self, request: &PermitRequest, now: Instant) {
        let own = self.holders_of(request.source);
        if own >= self.per_source {
            return;
        }
        let of_any_rule = self.has_room_in_rule(request, own);
        let makes_room =
            |holder: &PermitHolder| of_any_rule || Arc::ptr_eq(&holder.rule, &request.rule);
        let slow = self.sources.values().filter_map(|of| {
            let is_busier = of.holders.len() > 2 * own + 1;
            let may_go = |holder: &&PermitHolder| {
                holder.may_be_displaced(now)
                    && makes_room(holder)
                    && (is_busier || own == 0 && holder.is_silent())
            };
            let oldest = of.holders.iter().find(may_go)?;
            Some((of.holders.len(), oldest))
        });
        if let Some((_, slow)) = slow.max_by_key(|(count, slow)| (*count, Reverse(slow.since))) {
            slow.signals.displaced.notify_one();
        }
    }

    /// Whether a permit is free for it; the last quarters are for sources that have none. `own`
    /// are the permits that its source has.
    fn has_room_for(&self, request: &PermitRequest, own: usize) -> bool {
        own < self.per_source
            && self.has_room_in_rule(request, own)
            && self.in_flight < usable(self.all, own)
    }

    /// The same of the rule's permits alone.
    fn has_room_in_rule(&self, request: &PermitRequest, own: usize) -> bool {
        request.rule.load(Ordering::Relaxed) < usable(self.per_rule, own)
    }

    fn holders_of(&self, source: Source) -> usize {
        self.sources.get(&source).map_or(0, |of| of.holders.len())
    }

    fn hold(&mut self, number: u64, request: &PermitRequest, now: Instant) {
        let PermitRequest { source, rule, initiator, signals } = request.clone();
        rule.fetch_add(1, Ordering::Relaxed);
        self.in_flight += 1;
        let holder = PermitHolder { number, since: now, rule, initiator, signals };
        self.sources.entry(source).or_default().holders.push_back(holder);
    }

    fn release(&mut self, request: &PermitRequest, number: u64) {
        let Some(source) = self.sources.get_mut(&request.source) else { return };
        let Some(at) = source.holders.iter().position(|one| one.number == number) else { return };
        source.holders.remove(at);
        request.rule.fetch_sub(1, Ordering::Relaxed);
        self.in_flight -= 1;
        self.forget_if_idle(request.source);
    }

    /// Grants free permits to waiting requests: first to the source that has the fewest, and of
    /// several to the one that came last.
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
        let rooms = self.sources.iter().filter_map(|(source, of)| {
            let mut first = of.waiters.iter().take(LOOKED_AT_MAX);
            let own = of.holders.len();
            let at = first.position(|one| self.has_room_for(&one.request, own))?;
            // Clients that came later do not delay handshakes of the agent itself.
            let is_client = of.waiters.get(at)?.request.initiator == Initiator::Peer;
            let number = of.waiters.front()?.number;
            Some((own, is_client, Reverse(number), *source, at))
        });
        let (.., source, at) = rooms.min()?;
        self.waiting -= 1;
        self.sources.get_mut(&source)?.waiters.remove(at)
    }

    /// Rejects the oldest waiting request of the source that has the most of them; of several
    /// sources, of the one that came first.
    fn refuse_one(&mut self) {
        let is_client = |one: &&QueuedRequest| one.request.initiator == Initiator::Peer;
        let clients = self.sources.iter().filter_map(|(source, of)| {
            let first = of.waiters.iter().find(is_client)?.number;
            Some((of.waiters.iter().filter(is_client).count(), Reverse(first), *source))
        });
        let Some((_, Reverse(first), source)) = clients.max() else { return };
        if let Some(of) = self.sources.get_mut(&source) {
            of.waiters.retain(|one| one.number != first);
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

/// The permits that a source with `own` permits may use: the last quarter is for sources without.
fn usable(all: usize, own: usize) -> usize {
    if own == 0 { all } else { all - all / 4 }
}

#[cfg(test)]
mod tests;
