//! Runs the work of each connection of a workload on a separate thread.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::error::WorkloadError;

/// The number of CPUs that this process may use.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Stack size of a thread. Its buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// Calls `work` for each worker on its own thread, and returns the results. If one fails, `failed`
/// is set, and the other workers should stop.
pub(super) fn run_on_threads<W: Send, T: Send>(
    workers: &mut [W],
    failed: &AtomicBool,
    work: impl Fn(usize, &mut W) -> Result<T, WorkloadError> + Sync,
) -> Result<Vec<T>, WorkloadError> {
    let do_work = |number, worker: &mut W| {
        let made = work(number, worker);
        failed.fetch_or(made.is_err(), Ordering::Relaxed);
        made
    };
    thread::scope(|scope| {
        let start = |(number, worker)| {
            let do_work = &do_work;
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, move || {
                // By default the kernel may wake a sleeping thread 50 us late, which would count as
                // latency with --rate. If the kernel refuses, the latency includes it.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                do_work(number, worker)
            });
            failed.fetch_or(thread.is_err(), Ordering::Relaxed);
            thread.map_err(WorkloadError::Thread)
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let made = threads.into_iter().map(|thread| match thread?.join() {
            Ok(made) => made,
            Err(_) => Err(WorkloadError::Panicked),
        });
        // Joins all threads before it returns the first error.
        made.collect::<Vec<_>>().into_iter().collect()
    })
}
