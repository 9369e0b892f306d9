//! The client's threads.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::error::WorkloadError;

/// CPUs that this process may use.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A thread of the client needs little: its buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// Lets every worker do its work, each on a thread, and returns what each of them made. When one
/// fails, `failed` tells the others to stop.
pub(super) fn at_once<W: Send, T: Send>(
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
                // The kernel lets a sleeper oversleep by 50 us otherwise, which would count as
                // latency where a rate is kept; where it refuses, it does.
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
        // All of them are joined, whatever the first one says.
        made.collect::<Vec<_>>().into_iter().collect()
    })
}
