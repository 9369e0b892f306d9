//! The lock around the table: one, a reader-writer lock, one for writers only, or none. It spins.

use std::hint::spin_loop;
use std::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};
use std::thread;
use std::time::Instant;

use clap::ValueEnum;

/// Tries before a spinning thread gives its CPU away.
const SPINS_MAX: u32 = 1000;

/// What is put around the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LockKind {
    /// One lock, held by every call
    Global,
    /// A reader-writer lock; calls that only read share it
    Rw,
    /// One lock, held by calls that change something: z/TPF's phase 1
    Writers,
    /// None: the table as the agent has it
    None,
}

/// How often, and how long, a lock was waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
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

/// A guard: its holder may use the table.
#[expect(dead_code, reason = "held for its end")]
pub(super) enum Held<'a> {
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

    pub(super) fn exclusive(&self, waits: &mut Waits) -> Held<'_> {
        match self {
            Self::Global(lock) | Self::Writers(lock) => {
                spin(waits, || tried(lock.try_lock()).map(Held::Mutex))
            }
            Self::Rw(lock) => spin(waits, || tried(lock.try_write()).map(Held::Write)),
            Self::None => Held::Free,
        }
    }

    pub(super) fn shared(&self, waits: &mut Waits) -> Held<'_> {
        match self {
            Self::Rw(lock) => spin(waits, || tried(lock.try_read()).map(Held::Read)),
            // The table can be read while it is written, as the agent does it.
            Self::Writers(_) | Self::None => Held::Free,
            Self::Global(_) => self.exclusive(waits),
        }
    }
}

/// A lock that was free. One whose holder panicked is free too: it guards nothing of its own.
fn tried<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Tries until it succeeds. Only a wait costs a look at the clock.
fn spin<'a>(waits: &mut Waits, attempt: impl Fn() -> Option<Held<'a>>) -> Held<'a> {
    if let Some(held) = attempt() {
        return held;
    }
    let start = Instant::now();
    let mut tries = 0_u32;
    let held = loop {
        if let Some(held) = attempt() {
            break held;
        }
        tries = tries.wrapping_add(1);
        if tries.is_multiple_of(SPINS_MAX) { thread::yield_now() } else { spin_loop() }
    };
    waits.count += 1;
    waits.ns += u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    held
}

/// Does something while a lock is held.
pub(super) fn locked<T>(held: Held<'_>, work: impl FnOnce() -> T) -> T {
    let made = work();
    drop(held);
    made
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn readers_pass_a_lock_of_writers_and_wait_for_a_global_one() {
        for kind in [LockKind::Writers, LockKind::None] {
            let lock = Lock::of(kind);
            let mut waits = Waits::default();
            let held = lock.exclusive(&mut waits);
            assert!(matches!(lock.shared(&mut waits), Held::Free), "{kind:?}");
            drop(held);
            assert_eq!(waits.count, 0);
        }
        let lock = Lock::of(LockKind::Global);
        let mut waits = Waits::default();
        assert!(matches!(lock.shared(&mut waits), Held::Mutex(_)));
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_and_the_wait_is_counted() {
        let lock = Lock::of(LockKind::Rw);
        let mut ours = Waits::default();
        let mut theirs = Waits::default();
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
