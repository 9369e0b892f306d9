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
mod placed;
mod queue;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::placement::Bond;

pub use load::{ClockLook, Held, Load};
pub use placed::{PLACED_MAX, Placed};
pub use queue::Queue;

/// Connections that wait for one worker to take them on: what an engine sets up in half a second.
/// Beyond, engines wait with theirs, and count as busy.
pub const HANDED_MAX: usize = 1024;

/// What a thread knows of itself and of the others.
#[derive(Debug)]
pub struct Thread<T> {
    /// What displays see of it.
    pub load: Arc<Load>,
    /// What an engine knows of the others; `None` on a worker.
    pub engine: Option<Engine<T>>,
    /// Where connections follow their programs to; `None`: they do not.
    pub placed: Option<Arc<Placed<T>>>,
    /// How it keeps to its CPU; `None`: always, or it has none.
    pub bond: Option<Bond>,
}

/// What an engine thread knows of the others.
#[derive(Debug)]
pub struct Engine<T> {
    /// Its own place among `queues`.
    number: usize,
    queues: Arc<[Queue]>,
    when_saturated: WhenSaturated,
    workers: Arc<Takers<T>>,
    load: Arc<Load>,
}

/// What becomes of connections while all engines are saturated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenSaturated {
    /// They wait in the kernel until an engine has a place.
    Wait,
    /// Workers set them up.
    Spill,
}

/// Who sets up the next connection.
#[derive(Debug)]
pub enum Turn {
    /// The engine itself, with one of its places.
    Own(OwnedSemaphorePermit),
    /// A worker: no engine has a place.
    Spill,
}

impl<T: Send> Engine<T> {
    /// The engine at one of the places of `queues`.
    #[must_use]
    pub fn new(
        number: usize,
        queues: Arc<[Queue]>,
        when_saturated: WhenSaturated,
        workers: Arc<Takers<T>>,
        load: Arc<Load>,
    ) -> Self {
        Self { number, queues, when_saturated, workers, load }
    }

    /// Waits for a place. Where engines spill, the last one that is saturated does not wait; the
    /// others need not watch for that, since it takes what arrives.
    pub async fn turn(&self) -> Turn {
        let Some(own) = self.queues.get(self.number) else { return Turn::Spill };
        match own.try_enter() {
            Ok(place) => Turn::Own(place),
            Err(_)
                if self.when_saturated == WhenSaturated::Spill
                    && self.queues.iter().all(Queue::is_full) =>
            {
                Turn::Spill
            }
            // Nobody closes it.
            Err(_) => match own.enter().await {
                Ok(place) => Turn::Own(place),
                Err(_) => Turn::Spill,
            },
        }
    }

    /// Gives work for which no engine has a slot to the worker on that CPU, or to the least busy.
    pub async fn spill(&self, work: T, cpu: Option<usize>) {
        self.load.count_spilled();
        self.workers.give(work, cpu).await;
    }

    /// Gives work to the worker on that CPU, or to the least busy, which continues it.
    pub async fn hand_over(&self, work: T, cpu: Option<usize>) {
        self.load.count_handed();
        self.workers.give(work, cpu).await;
    }
}

/// The workers that take what engines hand over.
#[derive(Debug)]
pub struct Takers<T> {
    all: ArcSwap<Vec<Taker<T>>>,
}

impl<T> Default for Takers<T> {
    fn default() -> Self {
        Self { all: ArcSwap::default() }
    }
}

/// One of them.
#[derive(Debug)]
pub struct Taker<T> {
    /// What it does already.
    pub load: Arc<Load>,
    /// The way there.
    pub handed: mpsc::Sender<T>,
}

impl<T> Clone for Taker<T> {
    fn clone(&self) -> Self {
        Self { load: Arc::clone(&self.load), handed: self.handed.clone() }
    }
}

impl<T> Taker<T> {
    /// What it has, and what is on its way there.
    fn connections(&self) -> usize {
        self.load.connections() + self.handed.max_capacity() - self.handed.capacity()
    }
}

impl<T> Takers<T> {
    /// From now on this one takes its share too.
    pub fn add(&self, taker: &Taker<T>) {
        self.all.rcu(|all| {
            let mut all = Vec::clone(all);
            all.push(taker.clone());
            all
        });
    }

    /// The way to the worker on that CPU.
    fn on(&self, cpu: usize) -> Option<mpsc::Sender<T>> {
        let all = self.all.load();
        let is_there =
            |taker: &&Taker<T>| taker.load.cpu() == Some(cpu) && !taker.handed.is_closed();
        all.iter().find(is_there).map(|taker| taker.handed.clone())
    }

    /// Waits until a worker has room: the one on that CPU, or the least busy.
    async fn give(&self, work: T, cpu: Option<usize>) {
        let sender = {
            let all = self.all.load();
            let there = all.iter().filter(|taker| !taker.handed.is_closed());
            let idlest = || there.min_by_key(|taker| taker.connections());
            cpu.and_then(|cpu| self.on(cpu)).or_else(|| Some(idlest()?.handed.clone()))
        };
        // Without a worker the agent is ending, and the connection ends with it.
        if let Some(sender) = sender {
            let _ = sender.send(work).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(count: usize, max: usize, when_saturated: WhenSaturated) -> Vec<Engine<()>> {
        let queues: Arc<[Queue]> = (0..count).map(|_| Queue::new(max)).collect();
        let engine = |number| {
            let load = Arc::new(Load::new(format!("engine-{number}"), Some(number), None));
            Engine::new(number, Arc::clone(&queues), when_saturated, Arc::default(), load)
        };
        (0..count).map(engine).collect()
    }

    /// A turn that is there at once.
    fn now(engine: &Engine<()>) -> Option<Turn> {
        use std::task::{Context, Poll, Waker};
        let mut turn = std::pin::pin!(engine.turn());
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_the_last_engine_that_is_saturated_spills() {
        let engines = engines(2, 1, WhenSaturated::Spill);
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
        let engines = engines(1, 2, WhenSaturated::Wait);
        let _places = [now(&engines[0]).unwrap(), now(&engines[0]).unwrap()];
        assert!(now(&engines[0]).is_none());
        assert_eq!(engines[0].queues[0].in_flight(), 2);
    }
}
