//! Workers that are bound to a CPU each, for connections whose programs run there.
//!
//! ```text
//!   worker ── relay: its program runs on CPU 3 ──> is_on(3)?  yes: hand over
//!                                                     └─ no: wanted ──> control starts one
//! ```
//!
//! Limit: one for each CPU, [`PLACED_MAX`] at most.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Taker, Takers};

/// Workers of this kind at most. Programs on further CPUs keep the worker that they have.
pub const PLACED_MAX: usize = 64;
/// CPUs that wait for their worker; further wishes are repeated by the next connection.
const WANTED_MAX: usize = 16;

/// The workers, as those who hand over to them see them.
#[derive(Debug)]
pub struct Placed<T> {
    takers: Takers<T>,
    wanted: mpsc::Sender<usize>,
}

impl<T> Placed<T> {
    /// None yet, and the CPUs that want one, as they come.
    #[must_use]
    pub fn new() -> (Arc<Self>, mpsc::Receiver<usize>) {
        let (wanted, wishes) = mpsc::channel(WANTED_MAX);
        (Arc::new(Self { takers: Takers::default(), wanted }), wishes)
    }

    /// From now on this one takes connections of its CPU.
    pub fn add(&self, taker: &Taker<T>) {
        self.takers.add(taker);
    }

    /// Whether there is a worker on that CPU; if not, one is asked for.
    #[must_use]
    pub fn is_on(&self, cpu: usize) -> bool {
        let is_there = self.takers.on(cpu).is_some();
        if !is_there {
            // The next connection asks again.
            let _ = self.wanted.try_send(cpu);
        }
        is_there
    }

    /// Gives work to the worker on that CPU once it has room; without one the agent is ending, and
    /// the work ends with it.
    pub async fn give(&self, work: T, cpu: usize) {
        if let Some(handed) = self.takers.on(cpu) {
            let _ = handed.send(work).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Load;

    #[test]
    fn a_worker_is_asked_for_where_there_is_none() {
        let (placed, mut wishes) = Placed::<()>::new();
        assert!(!placed.is_on(3));
        assert_eq!(wishes.try_recv(), Ok(3));
        let (handed, _received) = mpsc::channel(1);
        let load = Arc::new(Load::new("data-cpu-3".to_owned(), Some(3), None));
        placed.add(&Taker { load, handed });
        assert!(placed.is_on(3));
        assert!(wishes.try_recv().is_err());
        for _ in 0..WANTED_MAX + 1 {
            assert!(!placed.is_on(4), "a wish that does not fit is no error");
        }
    }
}
