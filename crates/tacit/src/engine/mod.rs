//! Engines: threads on CPUs set aside for cryptographic work. They accept connections, do the
//! handshakes, and hand the connections over to data workers.
//!
//! ```text
//!              slot         look up, dial, handshake          hand over
//!   listener ────────> engine ─────────────────────────> data worker: relay
//!      │  all engines saturated, and `spill`                  ↑
//!      └──────────────────────────────────────────────────────┘ raw, and counted
//! ```
//!
//! An engine runs the loop of a data worker on a pinned thread. It hands each connection over once:
//! the worker's runtime then watches the sockets. They stay open, so the worker sees data, an end
//! or an error that came meanwhile. An operator's request to close stays in the connection's
//! record. A rule may keep its relay on the engine.
//!
//! Limits: `queue` of the policy for each engine, [`HAND_OVER_QUEUE_MAX`] for each worker. An
//! engine at its limit accepts no more, unless all engines are at their limits and the policy has
//! `spill`.

mod cpu_workers;
mod load;
mod slots;
mod state;

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::placement::CpuBinding;

pub use cpu_workers::{CPU_WORKERS_MAX, CpuWorkers};
pub use load::{ClockLook, LoadGuard, ThreadLoad};
pub use slots::EngineSlots;
pub use state::{ThreadPurpose, ThreadState};

/// Connections that wait for one worker: what an engine sets up in half a second. Beyond that,
/// engines wait and count as busy.
pub const HAND_OVER_QUEUE_MAX: usize = 1024;

/// A thread's own state, and its access to the other threads.
#[derive(Debug)]
pub struct Thread<T> {
    /// What displays see of it.
    pub load: Arc<ThreadLoad>,
    /// What an engine knows of the others; `None` on a worker.
    pub engine: Option<EngineThread<T>>,
    /// Where connections follow their programs to; `None`: they do not.
    pub cpu_workers: Option<Arc<CpuWorkers<T>>>,
    /// How it keeps to its CPU; `None`: always, or it has none.
    pub binding: Option<CpuBinding>,
}

/// What an engine thread knows of the others.
#[derive(Debug)]
pub struct EngineThread<T> {
    /// Its own place among `queues`.
    number: usize,
    queues: Arc<[EngineSlots]>,
    when_saturated: WhenSaturated,
    workers: Arc<WorkerHandles<T>>,
    load: Arc<ThreadLoad>,
}

/// What happens to connections while all engines are saturated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenSaturated {
    /// They wait in the kernel until an engine has a free slot.
    Wait,
    /// Workers set them up.
    Spill,
}

/// Which thread sets up the next connection.
#[derive(Debug)]
pub enum SetupSlot {
    /// The engine itself, with one of its slots.
    Engine(OwnedSemaphorePermit),
    /// A worker: no engine has a free slot.
    Spill,
}

impl<T: Send> EngineThread<T> {
    /// The engine at one of the places of `queues`.
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

    /// Waits for a free slot. With `spill`, the last engine that becomes saturated does not wait:
    /// it accepts for all, so the others need not watch for that.
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
pub struct WorkerHandles<T> {
    all: ArcSwap<Vec<WorkerHandle<T>>>,
}

impl<T> Default for WorkerHandles<T> {
    fn default() -> Self {
        Self { all: ArcSwap::default() }
    }
}

/// One of them.
#[derive(Debug)]
pub struct WorkerHandle<T> {
    /// What it does already.
    pub load: Arc<ThreadLoad>,
    /// The way there.
    pub handed: mpsc::Sender<T>,
}

impl<T> Clone for WorkerHandle<T> {
    fn clone(&self) -> Self {
        Self { load: Arc::clone(&self.load), handed: self.handed.clone() }
    }
}

impl<T> WorkerHandle<T> {
    /// What it has, and what is on its way there.
    fn connections(&self) -> usize {
        self.load.connections() + self.handed.max_capacity() - self.handed.capacity()
    }
}

impl<T> WorkerHandles<T> {
    /// From now on this one takes its share too.
    pub fn add(&self, handle: &WorkerHandle<T>) {
        self.all.rcu(|all| {
            let mut all = Vec::clone(all);
            all.push(handle.clone());
            all
        });
    }

    /// The way to the worker on that CPU.
    fn on(&self, cpu: usize) -> Option<mpsc::Sender<T>> {
        let all = self.all.load();
        let is_there = |handle: &&WorkerHandle<T>| {
            handle.load.cpu() == Some(cpu) && !handle.handed.is_closed()
        };
        all.iter().find(is_there).map(|handle| handle.handed.clone())
    }

    /// Waits until a worker has room: the one on that CPU, or the least busy.
    async fn give(&self, work: T, cpu: Option<usize>) {
        let sender = {
            let all = self.all.load();
            let there = all.iter().filter(|handle| !handle.handed.is_closed());
            let idlest = || there.min_by_key(|handle| handle.connections());
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

    fn engines(count: usize, max: usize, when_saturated: WhenSaturated) -> Vec<EngineThread<()>> {
        let queues: Arc<[EngineSlots]> = (0..count).map(|_| EngineSlots::new(max)).collect();
        let engine = |number| {
            let load = Arc::new(ThreadLoad::new(format!("engine-{number}"), Some(number), None));
            EngineThread::new(number, Arc::clone(&queues), when_saturated, Arc::default(), load)
        };
        (0..count).map(engine).collect()
    }

    /// A turn that is there at once.
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
