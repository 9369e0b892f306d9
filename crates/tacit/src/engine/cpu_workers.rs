//! Manages worker threads that are bound to a CPU. Such a worker relays the connections of programs
//! on the same CPU, so that the data stays in the CPU's cache.
//!
//! ```text
//! a program with a connection runs on CPU 3 ── is there a worker for CPU 3?
//!                                                ├─ yes: this worker gets the connection
//!                                                └─ no: the control thread starts a worker
//! ```
//!
//! Limit: one worker for each CPU, and at most [`CPU_WORKERS_MAX`] in total.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{WorkerHandle, WorkerHandles};

/// The maximum number of these workers. Connections of programs on other CPUs do not move.
pub const CPU_WORKERS_MAX: usize = 64;
/// The maximum number of queued requests for workers. A request that does not fit is made again by
/// the next connection.
const WANTED_MAX: usize = 16;

/// Hands connections over to the workers on CPUs of programs.
#[derive(Debug)]
pub struct CpuWorkers<T> {
    handles: WorkerHandles<T>,
    wanted: mpsc::Sender<usize>,
}

impl<T> CpuWorkers<T> {
    /// The state without workers; the receiver gets the CPUs that need one.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::Receiver<usize>) {
        let (wanted, requests) = mpsc::channel(WANTED_MAX);
        (Arc::new(Self { handles: WorkerHandles::default(), wanted }), requests)
    }

    /// Adds a worker for connections of its CPU.
    pub fn add(&self, handle: &WorkerHandle<T>) {
        self.handles.add(handle);
    }

    /// Whether there is a worker on that CPU; if not, requests one.
    #[must_use]
    pub fn is_on(&self, cpu: usize) -> bool {
        let is_there = self.handles.on(cpu).is_some();
        if !is_there {
            // If the queue is full, the next connection requests it again.
            let _ = self.wanted.try_send(cpu);
        }
        is_there
    }

    /// Hands work over to the worker on that CPU, and waits if its queue is full. If there is no
    /// worker, the agent is ending, and the work is dropped.
    pub async fn give(&self, work: T, cpu: usize) {
        if let Some(handed) = self.handles.on(cpu) {
            let _ = handed.send(work).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ThreadLoad;

    #[test]
    fn a_worker_is_requested_for_a_cpu_without_one() {
        let (cpu_workers, mut requests) = CpuWorkers::<()>::new();
        assert!(!cpu_workers.is_on(3));
        assert_eq!(requests.try_recv(), Ok(3));
        let (handed, _received) = mpsc::channel(1);
        let load = Arc::new(ThreadLoad::new("data-cpu-3".to_owned(), Some(3), None));
        cpu_workers.add(&WorkerHandle { load, handed });
        assert!(cpu_workers.is_on(3));
        assert!(requests.try_recv().is_err());
        for _ in 0..WANTED_MAX + 1 {
            assert!(!cpu_workers.is_on(4), "a request that does not fit into the queue is dropped");
        }
    }
}
