//! Divides work among two threads.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

/// The largest number of parts. Each thread takes one part after the other, so that a thread whose
/// CPU is busy does less.
const PARTS_MAX: usize = 16;

/// Calls a function with each part of a range, on this thread and another one. Returns the results
/// in the order of the parts. No part has less than `part_min`, unless the range has less.
///
/// With more threads, these would often wait for each other: a kernel takes longer to distribute
/// new threads among its CPUs than they take for their work.
pub(crate) fn map_parts<R: Send>(
    whole: Range<usize>,
    part_min: usize,
    work: impl Fn(Range<usize>) -> R + Sync,
) -> Vec<R> {
    let count = (whole.len() / part_min).clamp(1, PARTS_MAX);
    let edge = |place: usize| whole.start + whole.len() * place / count;
    let next = AtomicUsize::new(0);
    let take_parts = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= count {
                return done;
            }
            done.push((place, work(edge(place)..edge(place + 1))));
        }
    };
    if count == 1 {
        return take_parts().into_iter().map(|(_, result)| result).collect();
    }
    let mut done = thread::scope(|scope| {
        // If the system has no more threads, this thread does all the work.
        let other = start(scope, &take_parts);
        let mut done = take_parts();
        done.extend(other.into_iter().flat_map(end));
        done
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The results of two functions.
#[derive(Debug)]
pub struct Joined<A, B> {
    /// That of the function that another thread called.
    pub other: A,
    /// That of the function that this thread called.
    pub own: B,
}

/// For fewer items, to start a thread would take longer than it saves.
const JOINED_ITEMS_MIN: usize = 256;

/// Calls one function on another thread, and one on this thread. Both work on so many items; if
/// these are few, this thread calls both.
pub fn join<A: Send, B>(
    items: usize,
    other: impl Fn() -> A + Sync,
    own: impl FnOnce() -> B,
) -> Joined<A, B> {
    if items < JOINED_ITEMS_MIN {
        return Joined { other: other(), own: own() };
    }
    thread::scope(|scope| {
        // If the system has no more threads, this thread calls both.
        let thread = start(scope, &other);
        let own = own();
        Joined { other: thread.map_or_else(&other, end), own }
    })
}

/// Locks what both threads change. Each change must be one step, so that a panic of one thread
/// leaves it complete for the other.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What each thread that this module starts does before and after its work.
#[derive(Clone, Copy, Debug)]
pub struct ThreadHooks {
    /// Called before the work.
    pub begin: fn(),
    /// Called after the work.
    pub end: fn(),
}

static HOOKS: OnceLock<ThreadHooks> = OnceLock::new();

/// Sets the hooks of the process. Only the first call has an effect.
pub fn set_thread_hooks(hooks: ThreadHooks) {
    // The hooks that are set stay the same.
    let _ = HOOKS.set(hooks);
}

/// Starts a thread; `None` if the system has no more threads.
fn start<'s, R: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: &'s (impl Fn() -> R + Sync),
) -> Option<ScopedJoinHandle<'s, R>> {
    let work = || {
        let hooks = HOOKS.get();
        hooks.inspect(|hooks| (hooks.begin)());
        let result = work();
        hooks.inspect(|hooks| (hooks.end)());
        result
    };
    thread::Builder::new().name("parallel".to_owned()).spawn_scoped(scope, work).ok()
}

fn end<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_in_order() {
        for length in [0, 1, 9, 10, 19, 20, 1000] {
            let parts = map_parts(5..5 + length, 10, |part| part);
            assert!(parts.len() <= PARTS_MAX);
            assert!(parts.len() == 1 || parts.iter().all(|part| part.len() >= 10), "{parts:?}");
            let all: Vec<usize> = parts.into_iter().flatten().collect();
            assert!(all.into_iter().eq(5..5 + length));
        }
    }

    #[test]
    fn two_functions_are_joined_on_one_or_two_threads() {
        let id = || thread::current().id();
        for items in [1, JOINED_ITEMS_MIN] {
            let Joined { other, own } = join(items, id, id);
            assert_eq!(own, id());
            assert_eq!(own == other, items < JOINED_ITEMS_MIN);
        }
    }

    #[test]
    fn a_thread_calls_its_hooks() {
        static BEGUN: AtomicUsize = AtomicUsize::new(0);
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        let hooks = ThreadHooks {
            begin: || {
                BEGUN.fetch_add(1, Ordering::Relaxed);
            },
            end: || {
                ENDED.fetch_add(1, Ordering::Relaxed);
            },
        };
        set_thread_hooks(hooks);
        join(JOINED_ITEMS_MIN, || assert!(BEGUN.load(Ordering::Relaxed) > 0), || ());
        assert!(ENDED.load(Ordering::Relaxed) > 0);
    }
}
