//! Counts the connections, handshakes and CPU time of a worker or engine. `tacit show` prints the
//! counters, and engines use them to find the worker with the fewest connections.
//!
//! Each thread writes only its own counters, but may read the counters of other threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use tacit_sys::schedule::{Scheduling, SchedulingClass};
use tacit_sys::{cpu, schedule};

use super::slots::EngineSlots;
use super::state::{ThreadPurpose, ThreadState};

/// One thread, an engine or a data worker.
#[derive(Debug)]
pub struct ThreadLoad {
    name: String,
    cpu: Option<usize>,
    /// The slots of an engine; `None` for a worker.
    queue: Option<EngineSlots>,
    started: OnceLock<Started>,
    connections: AtomicUsize,
    relays: AtomicUsize,
    handshakes: AtomicU64,
    handed: AtomicU64,
    spilled: AtomicU64,
    left: AtomicU64,
}

/// Facts about a running thread.
#[derive(Debug)]
struct Started {
    thread: u32,
    at: Instant,
    class: SchedulingClass,
    nice: i32,
}

/// A reading of the CPU clock of a thread.
#[derive(Clone, Copy, Debug)]
pub struct ClockLook {
    /// The time of the reading.
    pub at: Instant,
    /// The CPU time in nanoseconds.
    pub cpu_ns: u64,
}

impl ThreadLoad {
    /// The state of a thread that is about to start, with its CPU if it has one.
    #[must_use]
    pub fn new(name: String, cpu: Option<usize>, queue: Option<EngineSlots>) -> Self {
        Self {
            name,
            cpu,
            queue,
            started: OnceLock::new(),
            connections: AtomicUsize::new(0),
            relays: AtomicUsize::new(0),
            handshakes: AtomicU64::new(0),
            handed: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            left: AtomicU64::new(0),
        }
    }

    /// Records that the calling thread is this thread.
    pub fn begin(&self) {
        let unknown = Scheduling { class: SchedulingClass::Other, nice: 0 };
        let Scheduling { class, nice } = schedule::own_scheduling().unwrap_or(unknown);
        let started = Started { thread: cpu::thread_id(), at: Instant::now(), class, nice };
        // A thread starts only once.
        let _ = self.started.set(started);
    }

    /// The name of the thread.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The CPU to which the thread is bound.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// The number of connections that it sets up or relays.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection until [`Self::end_connection`].
    pub fn begin_connection(&self) {
        add_one(&self.connections);
    }

    /// Counts the end of a connection.
    pub fn end_connection(&self) {
        subtract_one(&self.connections);
    }

    /// Counts a relayed connection until the guard is dropped.
    #[must_use]
    pub fn hold_relay(&self) -> LoadGuard<'_> {
        LoadGuard::new(&self.relays)
    }

    /// Counts a handshake.
    pub fn count_handshake(&self) {
        raise(&self.handshakes);
    }

    /// Counts a connection that was handed over: by an engine to workers, or to this worker.
    pub fn count_handed(&self) {
        raise(&self.handed);
    }

    /// Counts a connection for which no engine had a free slot.
    pub fn count_spilled(&self) {
        raise(&self.spilled);
    }

    /// Counts a connection that moved to the worker on its program's CPU.
    pub fn count_left(&self) {
        raise(&self.left);
    }

    /// The CPU time of the thread so far, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        let thread = self.started.get().map(|started| started.thread);
        thread.and_then(|thread| cpu::thread_ns_of(thread).ok()).unwrap_or(0)
    }

    /// The time that the thread was runnable and waited for a CPU, in nanoseconds, if the kernel
    /// counts that.
    fn waited_ns(&self) -> Option<u64> {
        let thread = self.started.get().map(|started| started.thread);
        thread.and_then(|thread| cpu::thread_waited_ns_of(thread).ok())
    }

    /// The sum of CPU time and waiting time.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.cpu_ns() + self.waited_ns().unwrap_or(0)
    }

    /// The row of `tacit show engines`; `before` is an earlier reading of its clock.
    #[must_use]
    pub fn show(&self, before: ClockLook) -> ThreadState {
        let now = Instant::now();
        let cpu_ns = self.cpu_ns();
        let percent = |since: Instant, before_ns: u64| {
            let wall = now.duration_since(since).as_secs_f64();
            (wall > 0.0).then(|| round(as_us(cpu_ns.saturating_sub(before_ns)) / wall / 1e4))
        };
        let started = self.started.get();
        let queue = self.queue.as_ref();
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ThreadState {
            thread: self.name.clone(),
            kind: if queue.is_some() { ThreadPurpose::Engine } else { ThreadPurpose::Worker },
            cpu: self.cpu,
            class: started.map(|started| class_word(started.class).to_owned()),
            nice: started.map(|started| started.nice),
            state: self.state().to_owned(),
            in_flight: queue.map(EngineSlots::in_flight),
            queue: queue.map(EngineSlots::max),
            connections: self.connections(),
            relays: self.relays.load(Ordering::Relaxed),
            handshakes: counter(&self.handshakes),
            handed: counter(&self.handed),
            left: queue.is_none().then(|| counter(&self.left)),
            spilled: queue.map(|_| counter(&self.spilled)),
            cpu_us: as_us(cpu_ns),
            delay_us: self.waited_ns().map(as_us),
            percent: started.and_then(|started| percent(started.at, 0)),
            percent_recent: percent(before.at, before.cpu_ns),
        }
    }

    fn state(&self) -> &'static str {
        match &self.queue {
            Some(queue) if queue.is_full() => "saturated",
            _ if self.connections() > 0 => "busy",
            _ => "idle",
        }
    }
}

/// Adds one to a counter, and subtracts it when it is dropped.
#[derive(Debug)]
pub struct LoadGuard<'a>(&'a AtomicUsize);

impl<'a> LoadGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        add_one(count);
        Self(count)
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        subtract_one(self.0);
    }
}

fn add_one(count: &AtomicUsize) {
    // There is only one writer, so a load and a store are sufficient.
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

fn subtract_one(count: &AtomicUsize) {
    count.store(count.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
}

fn raise(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The word of a scheduling class in displays.
#[must_use]
pub fn class_word(class: SchedulingClass) -> &'static str {
    match class {
        SchedulingClass::Normal => "normal",
        SchedulingClass::Batch => "batch",
        SchedulingClass::Idle => "idle",
        SchedulingClass::Other => "other",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a display needs only the precision of a float")]
fn as_us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Rounds to a tenth of a percent; the clocks are less precise.
fn round(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}
