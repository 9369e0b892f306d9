//! Places for handshakes, so that neither one source nor one rule can take them all.
//!
//! A handshake holds a place of its source, one of its rule, and one of all. The last quarter of a
//! rule's places and of all is a reserve: only sources with no other handshake in flight may use
//! it. Who finds no place waits.
//!
//! ```text
//! enter ─┬─ a place is free ─────────────────────> Place
//!        └─ waits ─┬─ a place becomes free ──────> Place   the source with the fewest first
//!                  └─ a busier source is slow ───> Place   its oldest handshake ends
//! ```
//!
//! Strangers that connect and say nothing get no further than that: what they hold is taken from
//! them when another source needs it, the oldest of the busiest source first; and when half of all
//! connections wait, the oldest of the source with the most of them is refused. What a program of
//! ours has opened is neither displaced nor refused.

mod queue;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tacit_core::flow::Address;
use tacit_core::policy::Limits;

use crate::address::Source;
use crate::live::LiveRule;

use queue::{Entered, Entry, Queue};

/// When one that waits looks for slow ones again first; the pauses double, as thousands may wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// All places of the agent.
#[derive(Debug)]
pub struct Gates {
    queue: Mutex<Queue>,
}

/// Whose the other end of the handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A client that connected: it may be displaced.
    Came,
    /// A program of ours wants it.
    IsWanted,
}

/// Others needed the place, or there are too many that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced;

/// A handshake's places; given back when dropped.
#[derive(Debug)]
pub struct Place<'a> {
    gates: &'a Gates,
    number: u64,
    entry: Entry,
}

impl Place<'_> {
    /// Ends when the handshake has to make room.
    pub async fn displaced(&self) -> Displaced {
        self.entry.displaced.notified().await;
        Displaced
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.gates.lock().leave(&self.entry, self.number, Instant::now());
    }
}

/// One that waits; it gives up when this is dropped.
struct Waiting<'a> {
    gates: &'a Gates,
    number: u64,
    entry: Option<Entry>,
}

impl<'a> Waiting<'a> {
    /// It has a place by now.
    fn into_place(mut self) -> Option<Place<'a>> {
        let Self { gates, number, .. } = self;
        self.entry.take().map(|entry| Place { gates, number, entry })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            self.gates.lock().give_up(entry, self.number, Instant::now());
        }
    }
}

impl Gates {
    /// Opens the gates with a policy's limits; half of all connections may wait for a place.
    #[must_use]
    pub fn new(limits: &Limits, connections_max: usize) -> Self {
        let waiting_max = (connections_max / 2).max(1);
        Self { queue: Mutex::new(Queue::new(limits, waiting_max)) }
    }

    /// Handshakes in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().in_flight()
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// Too many others wait.
    pub async fn enter(
        &self,
        rule: &LiveRule,
        remote: &Address,
        peer: Peer,
    ) -> Result<Place<'_>, Displaced> {
        let source = Source::of(remote);
        let rule = Arc::clone(&rule.handshakes);
        let entry = Entry { source, rule, peer, displaced: Arc::default() };
        let entered = self.lock().enter(entry.clone(), Instant::now());
        let (number, mut granted) = match entered {
            Entered::Place(number) => return Ok(Place { gates: self, number, entry }),
            Entered::Waits(number, granted) => (number, granted),
        };
        let waiting = Waiting { gates: self, number, entry: Some(entry.clone()) };
        let mut pause = LOOK_INTERVAL;
        loop {
            self.lock().displace_for(&entry, Instant::now());
            match tokio::time::timeout(pause, &mut granted).await {
                Ok(Ok(())) => return waiting.into_place().ok_or(Displaced),
                Ok(Err(_)) => return Err(Displaced),
                Err(_) => pause *= 2,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
