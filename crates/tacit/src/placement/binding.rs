//! Binds a thread to one CPU. When this CPU is busy and other CPUs are idle, unbinds the thread for
//! some time.
//!
//! ```text
//!   bound ── waits for its CPU while other CPUs are idle ──> unbound ── UNBOUND_TIME ──> bound
//! ```
//!
//! While all CPUs are busy, the thread stays bound, because it would also have to wait on every
//! other CPU.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tacit_sys::cpu::{IdleClock, WaitClock};
use tacit_sys::schedule;

/// The interval between two checks of the thread's waiting time.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Two checks that are further apart than this do not describe the current state.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// A thread that waits during more than this share of the time does not get enough of its CPU.
const WAITING_SHARE: f64 = 0.2;
/// Other CPUs are idle if their idle time exceeds this share of the time of one CPU.
const IDLE_SHARE: f64 = 0.5;
/// How long the thread then stays unbound.
const UNBOUND_TIME: Duration = Duration::from_secs(1);

/// Binds the calling thread to a CPU, and unbinds it.
#[derive(Debug)]
pub struct CpuBinding {
    cpu: usize,
    /// The CPUs that the thread may use while it is unbound.
    cpus: Vec<usize>,
    /// The time that the thread has waited; `None`: the kernel does not count it, and the thread
    /// stays bound.
    waited: Option<WaitClock>,
    idle: Option<IdleClock>,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The thread is bound. The fields describe the last check: its time, the time that the thread
    /// had waited by then and, if it waited too much, the idle time of all CPUs.
    Bound {
        looked_at: Instant,
        waited_ns: u64,
        idle_ns: Option<u64>,
    },
    Unbound {
        until: Instant,
    },
}

impl CpuBinding {
    /// The calling thread, which is bound to `cpu`, and may be on `cpus` while it is unbound.
    #[must_use]
    pub fn new(cpu: usize, cpus: Vec<usize>) -> Self {
        let binding = Self {
            cpu,
            cpus,
            waited: WaitClock::of_this_thread().ok(),
            idle: IdleClock::new().ok(),
            state: Cell::new(State::Unbound { until: Instant::now() }),
        };
        binding.state.set(binding.bound(Instant::now()));
        binding
    }

    /// Checks whether the CPU has time for the thread. The check is cheap if the last one was
    /// recent.
    pub fn look(&self) {
        let now = Instant::now();
        match self.state.get() {
            State::Unbound { until } if now < until => {}
            State::Unbound { .. } => {
                // If the thread cannot be bound because the CPU was removed, nothing changes.
                let _ = schedule::pin_thread(&[self.cpu]);
                self.state.set(self.bound(now));
            }
            State::Bound { looked_at, waited_ns, idle_ns } => {
                let wall = now.duration_since(looked_at);
                if wall >= LOOK_INTERVAL {
                    let waited = Duration::from_nanos(self.waited_ns().saturating_sub(waited_ns));
                    let is_short = wall < LOOK_INTERVAL_MAX && is_more(waited, wall, WAITING_SHARE);
                    self.state.set(if is_short {
                        self.short(now, wall, idle_ns)
                    } else {
                        self.bound(now)
                    });
                }
            }
        }
    }

    /// Handles a thread that waits too much for its CPU: a second check determines whether other
    /// CPUs are idle.
    fn short(&self, now: Instant, wall: Duration, idle_before_ns: Option<u64>) -> State {
        let idle_ns = self.idle.as_ref().and_then(|clock| clock.ns(&self.cpus).ok());
        let Some(idle_ns) = idle_ns else { return self.bound(now) };
        let idle =
            idle_before_ns.map(|before| Duration::from_nanos(idle_ns.saturating_sub(before)));
        if idle.is_some_and(|idle| is_more(idle, wall, IDLE_SHARE)) {
            let _ = schedule::pin_thread(&self.cpus);
            return State::Unbound { until: now + UNBOUND_TIME };
        }
        State::Bound { looked_at: now, waited_ns: self.waited_ns(), idle_ns: Some(idle_ns) }
    }

    fn bound(&self, now: Instant) -> State {
        State::Bound { looked_at: now, waited_ns: self.waited_ns(), idle_ns: None }
    }

    fn waited_ns(&self) -> u64 {
        self.waited.as_ref().and_then(|clock| clock.ns().ok()).unwrap_or(0)
    }
}

fn is_more(part: Duration, wall: Duration, share: f64) -> bool {
    part.as_secs_f64() > wall.as_secs_f64() * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_unbound_for_a_time_and_bound_again() {
        let cpus = schedule::allowed_cpus().unwrap();
        std::thread::spawn(move || {
            let own = *cpus.first().unwrap();
            schedule::pin_thread(&[own]).unwrap();
            let binding = CpuBinding::new(own, cpus.clone());
            binding.look();
            assert_eq!(
                schedule::allowed_cpus().unwrap(),
                [own],
                "the thread did not wait for its CPU"
            );
            schedule::pin_thread(&cpus).unwrap();
            let until = Instant::now() + UNBOUND_TIME;
            binding.state.set(State::Unbound { until });
            binding.look();
            assert_eq!(schedule::allowed_cpus().unwrap(), cpus, "UNBOUND_TIME is not over");
            binding.state.set(State::Unbound { until: Instant::now() });
            binding.look();
            assert_eq!(schedule::allowed_cpus().unwrap(), [own]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_is_unbound_after_two_checks_if_other_cpus_are_idle() {
        let cpus = schedule::allowed_cpus().unwrap();
        std::thread::spawn(move || {
            let binding = CpuBinding::new(cpus[0], cpus);
            let first = binding.short(Instant::now(), LOOK_INTERVAL, None);
            let State::Bound { idle_ns: Some(idle_ns), .. } = first else { panic!("{first:?}") };
            let later = Some(idle_ns + 60_000_000_000);
            let all_busy = binding.short(Instant::now(), LOOK_INTERVAL, later);
            assert!(matches!(all_busy, State::Bound { .. }), "{all_busy:?}");
            let earlier = Some(idle_ns.saturating_sub(60_000_000));
            let idle = binding.short(Instant::now(), LOOK_INTERVAL, earlier);
            assert!(matches!(idle, State::Unbound { .. }), "{idle:?}");
        })
        .join()
        .unwrap();
    }
}
