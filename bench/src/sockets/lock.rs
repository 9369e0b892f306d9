//! Implements the four kinds of locking that `bench sockets` compares: one lock for all calls, one
//! lock for calls that write, a reader-writer lock, and no lock. The lock protects the table of
//! connections. While a thread waits for the lock, the thread spins.

use std::hint::spin_loop;
use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};
use std::thread;
use std::time::Instant;

use clap::ValueEnum;

/// Attempts before a spinning thread yields its CPU.
const SPINS_MAX: u32 = 1000;

/// The kind of lock around the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LockKind {
    /// One lock, taken by every call
    Global,
    /// A reader-writer lock, shared by calls that only read
    Rw,
    /// One lock, taken by calls that write (phase 1 of z/TPF)
    Writers,
    /// No lock, as in the agent
    None,
}

/// The number and the duration of waits for a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitCounts {
    pub(super) count: u64,
    pub(super) ns: u64,
}

/// The lock around the table.
pub(super) enum Lock {
    Global(Mutex<()>),
    Rw(RwLock<()>),
    Writers(Mutex<()>),
    None,
}

/// A guard of the lock.
#[expect(dead_code, reason = "a guard holds the lock until the guard is dropped")]
pub(super) enum LockGuard<'a> {
    Mutex(MutexGuard<'a, ()>),
    Read(RwLockReadGuard<'a, ()>),
    Write(RwLockWriteGuard<'a, ()>),
    Free,
}

impl Lock {
    pub(super) fn of(kind: LockKind) -> Self {
        match kind {
            LockKind::Global => Self::Global(Mutex::new(())),
            LockKind::Rw => Self::Rw(RwLock::new(())),
            LockKind::Writers => Self::Writers(Mutex::new(())),
            LockKind::None => Self::None,
        }
    }

    pub(super) fn exclusive(&self, waits: &mut WaitCounts) -> LockGuard<'_> {
        match self {
            Self::Global(lock) | Self::Writers(lock) => {
                spin(waits, || tried(lock.try_lock()).map(LockGuard::Mutex))
            }
            Self::Rw(lock) => spin(waits, || tried(lock.try_write()).map(LockGuard::Write)),
            Self::None => LockGuard::Free,
        }
    }

    pub(super) fn shared(&self, waits: &mut WaitCounts) -> LockGuard<'_> {
        match self {
            Self::Rw(lock) => spin(waits, || tried(lock.try_read()).map(LockGuard::Read)),
            // As in the agent, the table can be read while it is written.
            Self::Writers(_) | Self::None => LockGuard::Free,
            Self::Global(_) => self.exclusive(waits),
        }
    }
}

/// The guard of a free lock. A lock is also free if its holder panicked: it protects no data.
fn tried<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tries until it succeeds. The clock is read only if the lock was taken.
fn spin<'a>(waits: &mut WaitCounts, attempt: impl Fn() -> Option<LockGuard<'a>>) -> LockGuard<'a> {
    if let Some(guard) = attempt() {
        return guard;
    }
    let start = Instant::now();
    let mut tries = 0_u32;
    let guard = loop {
        if let Some(guard) = attempt() {
            break guard;
        }
        tries = tries.wrapping_add(1);
        if tries.is_multiple_of(SPINS_MAX) { thread::yield_now() } else { spin_loop() }
    };
    waits.count += 1;
    waits.ns += u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    guard
}

/// Calls `work` while a lock is held.
pub(super) fn locked<T>(guard: LockGuard<'_>, work: impl FnOnce() -> T) -> T {
    let made = work();
    drop(guard);
    made
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn readers_ignore_a_writer_lock_and_wait_for_a_global_one() {
        for kind in [LockKind::Writers, LockKind::None] {
            let lock = Lock::of(kind);
            let mut waits = WaitCounts::default();
            let guard = lock.exclusive(&mut waits);
            assert!(matches!(lock.shared(&mut waits), LockGuard::Free), "{kind:?}");
            drop(guard);
            assert_eq!(waits.count, 0);
        }
        let lock = Lock::of(LockKind::Global);
        let mut waits = WaitCounts::default();
        assert!(matches!(lock.shared(&mut waits), LockGuard::Mutex(_)));
    }

    #[test]
    fn waits_for_a_taken_lock_are_counted() {
        let lock = Lock::of(LockKind::Rw);
        let mut ours = WaitCounts::default();
        let mut theirs = WaitCounts::default();
        let first = lock.shared(&mut ours);
        drop(lock.shared(&mut ours));
        assert_eq!(ours.count, 0, "readers share");
        thread::scope(|scope| {
            let writer = scope.spawn(|| drop(lock.exclusive(&mut theirs)));
            thread::sleep(Duration::from_millis(20));
            drop(first);
            writer.join().unwrap();
        });
        assert_eq!(theirs.count, 1);
        assert!(theirs.ns > 1_000_000, "{theirs:?}");
    }
}
