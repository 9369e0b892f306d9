//! Implements engines. An engine is a thread on a reserved CPU. The engine accepts connections,
//! does their TLS handshakes, and hands the connections over to data workers.
//!
//! ```text
//!            accepts                              hand over
//!   listener ───────> engine: handshake ───────────────────────> data worker: relays
//!      │                                                           ↑
//!      └── if all engines are busy, and the policy has `spill` ────┘ accepts, does the handshake
//! ```
//!
//! An engine runs the same code as a data worker. An engine hands over each connection at most
//! once. The sockets stay open during the hand-over, so no data is lost. If the rule of a
//! connection has `relay = "engine"`, the engine also relays, and does not hand the connection
//! over.
//!
//! Limits: the key `queue` of `[engine]` limits how many connections an engine sets up at a time.
//! At this limit, the engine stops accepting. If all engines are at this limit and the policy has
//! `spill`, data workers set up connections too. At most [`HAND_OVER_QUEUE_MAX`] connections wait
//! for a data worker after their hand-over.

mod cpu_workers;
mod load;
mod slots;
mod state;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::placement::CpuBinding;

pub use cpu_workers::{CPU_WORKERS_MAX, CpuWorkers};
pub use load::{ClockLook, LoadGuard, ThreadLoad, class_word};
pub use slots::EngineSlots;
pub use state::{ThreadPurpose, ThreadState};

/// The maximum number of connections in the queue of a worker: as many as an engine sets up in half
/// a second. If the queue is full, engines wait and count as busy.
pub const HAND_OVER_QUEUE_MAX: usize = 1024;

/// A thread's own state, and its access to the other threads.
#[derive(Debug)]
pub struct Thread<T> {
    /// The counters of the thread.
    pub load: Arc<ThreadLoad>,
    /// The other engines and the workers, for an engine; `None` on a worker.
    pub engine: Option<EngineThread<T>>,
    /// The workers on CPUs of programs; `None` if connections do not move to them.
    pub cpu_workers: Option<Arc<CpuWorkers<T>>>,
    /// Binds the thread to its CPU; `None` if it is always bound, or never.
    pub binding: Option<CpuBinding>,
}

/// An engine's access to the other engines and the workers.
#[derive(Debug)]
pub struct EngineThread<T> {
    /// Its own index in `queues`.
    number: usize,
    queues: Arc<[EngineSlots]>,
    when_saturated: WhenSaturated,
    workers: Arc<WorkerHandles<T>>,
    load: Arc<ThreadLoad>,
}

/// How connections are handled while all engines are saturated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenSaturated {
    /// They wait in the kernel's queue until an engine has a free slot.
    Wait,
    /// Workers set them up.
    Spill,
}

/// Which thread sets up the next connection.
#[derive(Debug)]
pub enum SetupSlot {
    /// The engine itself, with one of its slots.
    Engine(OwnedSemaphorePermit),
    /// A worker, because no engine has a free slot.
    Spill,
}

impl<T: Send> EngineThread<T> {
    /// The engine with the index `number` in `queues`.
    #[must_use]
    pub fn new(
        number: usize,
        queues: Arc<[EngineSlots]>,
        when_saturated: WhenSaturated,
        workers: Arc<WorkerHandles<T>>,
        load: Arc<ThreadLoad>,
    ) -> Self {
        Self { number, queues, when_saturated, workers, load }
    }

    /// Waits for a free slot. With `spill`, the last engine that becomes saturated does not wait,
    /// but accepts connections for workers.
    pub async fn acquire_slot(&self) -> SetupSlot {
        let Some(own) = self.queues.get(self.number) else { return SetupSlot::Spill };
        match own.try_enter() {
            Ok(place) => SetupSlot::Engine(place),
            Err(_)
                if self.when_saturated == WhenSaturated::Spill
                    && self.queues.iter().all(EngineSlots::is_full) =>
            {
                SetupSlot::Spill
            }
            // The semaphore is never closed.
            Err(_) => match own.enter().await {
                Ok(place) => SetupSlot::Engine(place),
                Err(_) => SetupSlot::Spill,
            },
        }
    }

    /// Hands work for which no engine has a slot over to the worker on that CPU, or to the least
    /// busy worker.
    pub async fn spill(&self, work: T, cpu: Option<usize>) {
        self.load.count_spilled();
        self.workers.give(work, cpu).await;
    }

    /// Hands work over to the worker on that CPU, or to the least busy worker.
    pub async fn hand_over(&self, work: T, cpu: Option<usize>) {
        self.load.count_handed();
        self.workers.give(work, cpu).await;
    }
}

/// The workers to which engines hand connections over.
#[derive(Debug)]
pub struct WorkerHandles<T> {
    all: ArcSwap<Vec<WorkerHandle<T>>>,
}

impl<T> Default for WorkerHandles<T> {
    fn default() -> Self {
        Self { all: ArcSwap::default() }
    }
}

/// A worker, for hand-overs.
#[derive(Debug)]
pub struct WorkerHandle<T> {
    /// The counters of the worker.
    pub load: Arc<ThreadLoad>,
    /// The queue of the worker.
    pub handed: mpsc::Sender<T>,
}

impl<T> Clone for WorkerHandle<T> {
    fn clone(&self) -> Self {
        Self { load: Arc::clone(&self.load), handed: self.handed.clone() }
    }
}

impl<T> WorkerHandle<T> {
    /// The number of its connections, including those in its queue.
    fn connections(&self) -> usize {
        self.load.connections() + self.handed.max_capacity() - self.handed.capacity()
    }
}

impl<T> WorkerHandles<T> {
    /// Adds a worker.
    pub fn add(&self, handle: &WorkerHandle<T>) {
        self.all.rcu(|all| {
            let mut all = Vec::clone(all);
            all.push(handle.clone());
            all
        });
    }

    /// The queue of the worker on that CPU.
    fn on(&self, cpu: usize) -> Option<mpsc::Sender<T>> {
        let all = self.all.load();
        let is_there = |handle: &&WorkerHandle<T>| {
            handle.load.cpu() == Some(cpu) && !handle.handed.is_closed()
        };
        all.iter().find(is_there).map(|handle| handle.handed.clone())
    }

    /// Sends work to the worker on that CPU or to the least busy one, and waits if its queue is
    /// full.
    async fn give(&self, work: T, cpu: Option<usize>) {
        let sender = {
            let all = self.all.load();
            let there = all.iter().filter(|handle| !handle.handed.is_closed());
            let idlest = || there.min_by_key(|handle| handle.connections());
            cpu.and_then(|cpu| self.on(cpu)).or_else(|| Some(idlest()?.handed.clone()))
        };
        // If there is no worker, the agent is ending, and the connection is dropped.
        if let Some(sender) = sender {
            let _ = sender.send(work).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(count: usize, max: usize, when_saturated: WhenSaturated) -> Vec<EngineThread<()>> {
        let queues: Arc<[EngineSlots]> = (0..count).map(|_| EngineSlots::new(max)).collect();
        let engine = |number| {
            let load = Arc::new(ThreadLoad::new(format!("engine-{number}"), Some(number), None));
            EngineThread::new(number, Arc::clone(&queues), when_saturated, Arc::default(), load)
        };
        (0..count).map(engine).collect()
    }

    /// The slot that is available without waiting.
    fn now(engine: &EngineThread<()>) -> Option<SetupSlot> {
        use std::task::{Context, Poll, Waker};
        let mut turn = std::pin::pin!(engine.acquire_slot());
        match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn only_the_last_engine_that_is_saturated_spills() {
        let engines = engines(2, 1, WhenSaturated::Spill);
        let first = now(&engines[0]);
        assert!(matches!(first, Some(SetupSlot::Engine(_))));
        assert!(now(&engines[0]).is_none(), "the other engine has a slot");
        let second = now(&engines[1]);
        assert!(matches!(second, Some(SetupSlot::Engine(_))));
        assert!(matches!(now(&engines[1]), Some(SetupSlot::Spill)));
        drop(first);
        assert!(now(&engines[1]).is_none());
        assert!(matches!(now(&engines[0]), Some(SetupSlot::Engine(_))));
    }

    #[test]
    fn without_spill_a_saturated_engine_waits() {
        let engines = engines(1, 2, WhenSaturated::Wait);
        let _places = [now(&engines[0]).unwrap(), now(&engines[0]).unwrap()];
        assert!(now(&engines[0]).is_none());
        assert_eq!(engines[0].queues[0].in_flight(), 2);
    }
}
