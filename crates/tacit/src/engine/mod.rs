//! Engines: threads on CPUs of their own that set connections up and give them away.
//!
//! ```text
//!              turn?        look up, dial, handshake          hand over
//!   listener ────────> engine ─────────────────────────> data worker: relay
//!      │  all engines saturated, and `spill`                  ↑
//!      └──────────────────────────────────────────────────────┘ raw, and counted
//! ```
//!
//! An engine is a data worker's loop on a pinned thread. What it does for a connection ends with
//! one hand-over: the sockets leave its runtime and are watched by the worker's. They stay the
//! same sockets, so that what has come, ended or broken meanwhile is seen there; and an operator's
//! wish to close is kept in the connection's record. A rule may keep its relay on the engine.
//!
//! Limits: `queue` of the policy for each engine, [`HANDED_MAX`] for each worker. An engine at its
//! limit accepts no more, unless all are and the policy lets them spill.

mod load;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::run::Run;
use crate::stream::Begun;
use crate::stream::intercept::{Arrival, Source};
use crate::stream::leg::Parked;

pub use load::{Held, Load};

/// Connections that wait for one worker to take them on: what an engine sets up in half a second.
/// Beyond, engines wait with theirs, and count as busy.
pub const HANDED_MAX: usize = 1024;

/// What an engine thread knows of the others.
#[derive(Debug)]
pub struct Engine {
    /// Its own place among `queues`.
    number: usize,
    queues: Arc<[Queue]>,
    spill: bool,
    workers: Arc<Takers>,
    load: Arc<Load>,
}

/// The places of one engine.
#[derive(Clone, Debug)]
pub struct Queue {
    turns: Arc<Semaphore>,
    /// How many there are.
    max: usize,
}

impl Queue {
    /// Places for `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(max)), max }
    }

    /// Connections that are being set up.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.max.saturating_sub(self.turns.available_permits())
    }

    /// How many there may be.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    fn is_full(&self) -> bool {
        self.turns.available_permits() == 0
    }
}

/// What an engine gives to a worker.
#[derive(Debug)]
pub enum Handed {
    /// What has arrived, with where; nothing was done for it.
    Arrived(Box<Arrival<Parked>>, Source),
    /// A connection.
    Begun(Begun),
}

impl Handed {
    fn run(&self) -> Option<&Run> {
        match self {
            Self::Arrived(arrival, _) => arrival.run.as_deref(),
            Self::Begun(begun) => begun.run(),
        }
    }
}

/// Who sets up the next connection.
#[derive(Debug)]
pub enum Turn {
    /// The engine itself, with one of its places.
    Own(OwnedSemaphorePermit),
    /// A worker: no engine has a place.
    Spill,
}

impl Engine {
    /// The engine at one of the places of `queues`.
    #[must_use]
    pub fn new(
        number: usize,
        queues: Arc<[Queue]>,
        spill: bool,
        workers: Arc<Takers>,
        load: Arc<Load>,
    ) -> Self {
        Self { number, queues, spill, workers, load }
    }

    /// Waits for a place. Where engines spill, the last one that is saturated does not wait; the
    /// others need not watch for that, since it takes what arrives.
    pub async fn turn(&self) -> Turn {
        let Some(own) = self.queues.get(self.number) else { return Turn::Spill };
        match Arc::clone(&own.turns).try_acquire_owned() {
            Ok(place) => Turn::Own(place),
            Err(_) if self.spill && self.queues.iter().all(Queue::is_full) => Turn::Spill,
            // Nobody closes it.
            Err(_) => match Arc::clone(&own.turns).acquire_owned().await {
                Ok(place) => Turn::Own(place),
                Err(_) => Turn::Spill,
            },
        }
    }

    /// Gives an arrival that no engine has a place for to a worker.
    pub async fn spill(&self, handed: Handed) {
        self.load.count_spilled();
        self.workers.give(handed).await;
    }

    /// Gives a connection to the worker that goes on with it.
    pub async fn hand_over(&self, handed: Handed) {
        self.load.count_handed();
        self.workers.give(handed).await;
    }
}

/// The workers that take what engines hand over.
#[derive(Debug, Default)]
pub struct Takers {
    all: ArcSwap<Vec<Taker>>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Taker {
    /// What it does already.
    pub load: Arc<Load>,
    /// The way there.
    pub handed: mpsc::Sender<Handed>,
}

impl Taker {
    /// What it has, and what is on its way there.
    fn connections(&self) -> usize {
        self.load.connections() + self.handed.max_capacity() - self.handed.capacity()
    }
}

impl Takers {
    /// From now on this one takes its share too.
    pub fn add(&self, taker: &Taker) {
        self.all.rcu(|all| {
            let mut all = Vec::clone(all);
            all.push(taker.clone());
            all
        });
    }

    /// Waits until a worker has room: that of the run's CPU, or the one with the least to do.
    async fn give(&self, handed: Handed) {
        let cpu = handed.run().and_then(Run::cpu);
        let sender = {
            let all = self.all.load();
            let there: Vec<_> = all.iter().filter(|taker| !taker.handed.is_closed()).collect();
            let of_run = there.iter().find(|taker| cpu.is_some() && taker.load.cpu() == cpu);
            let idlest = there.iter().min_by_key(|taker| taker.connections());
            of_run.or(idlest).map(|taker| taker.handed.clone())
        };
        // Without a worker the agent is ending, and the connection ends with it.
        if let Some(sender) = sender {
            let _ = sender.send(handed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(count: usize, max: usize, spill: bool) -> Vec<Engine> {
        let queues: Arc<[Queue]> = (0..count).map(|_| Queue::new(max)).collect();
        let engine = |number| {
            let load = Arc::new(Load::new(format!("engine-{number}"), Some(number), None));
            Engine::new(number, Arc::clone(&queues), spill, Arc::default(), load)
        };
        (0..count).map(engine).collect()
    }

    /// A turn that is there at once.
    fn now(engine: &Engine) -> Option<Turn> {
        use std::task::{Context, Poll, Waker};
        let mut turn = std::pin::pin!(engine.turn());
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_the_last_engine_that_is_saturated_spills() {
        let engines = engines(2, 1, true);
        let first = now(&engines[0]);
        assert!(matches!(first, Some(Turn::Own(_))));
        assert!(now(&engines[0]).is_none(), "the other has a place");
        let second = now(&engines[1]);
        assert!(matches!(second, Some(Turn::Own(_))));
        assert!(matches!(now(&engines[1]), Some(Turn::Spill)));
        drop(first);
        assert!(now(&engines[1]).is_none());
        assert!(matches!(now(&engines[0]), Some(Turn::Own(_))));
    }

    #[test]
    fn without_spill_a_saturated_engine_waits() {
        let engines = engines(1, 2, false);
        let _places = [now(&engines[0]).unwrap(), now(&engines[0]).unwrap()];
        assert!(now(&engines[0]).is_none());
        assert_eq!(engines[0].queues[0].in_flight(), 2);
    }
}
