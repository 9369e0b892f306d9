//! Reads the kernel's counters of all CPUs twice, and computes the difference.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;
use tacit_sys::processors::{self, CpuActivity, ThreadWait};

/// The counters at one time.
pub(super) struct Look {
    at: Instant,
    present: Vec<usize>,
    online: Vec<usize>,
    times: BTreeMap<usize, CpuActivity>,
    waits: Option<Waits>,
}

/// The time that threads have waited for CPUs.
enum Waits {
    /// Times by CPU.
    Cpus(BTreeMap<usize, u64>),
    /// Times by thread, because the kernel does not count them by CPU.
    Threads(BTreeMap<u32, ThreadWait>),
}

/// The source of the time that threads wait for a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitSource {
    /// The kernel's counters of CPUs.
    Cpus,
    /// The times of threads. Each counts for the CPU on which the thread ran last.
    Threads,
}

/// The differences between two readings.
pub(super) struct Sample {
    pub(super) interval: Duration,
    pub(super) cpus: Vec<CpuSample>,
    pub(super) wait_source: Option<WaitSource>,
}

/// The values of one CPU in the interval.
pub(super) struct CpuSample {
    pub(super) cpu: usize,
    pub(super) is_online: bool,
    /// The part of the time that it was busy; `None` if it was offline.
    pub(super) utilisation: Option<f64>,
    /// The time that threads waited for it.
    pub(super) waited: Option<Duration>,
}

impl Look {
    /// Reads the counters.
    pub(super) fn take() -> io::Result<Self> {
        Ok(Self {
            at: Instant::now(),
            present: processors::present()?,
            online: processors::online()?,
            times: processors::times()?,
            waits: Waits::read(),
        })
    }

    /// Returns the differences from an earlier reading.
    pub(super) fn since(&self, before: &Self) -> Sample {
        let waits = self.waits.as_ref().zip(before.waits.as_ref());
        let waits = waits.and_then(|(after, before)| after.since(before));
        let cpu = |&cpu: &usize| CpuSample {
            cpu,
            is_online: self.online.contains(&cpu),
            utilisation: utilisation(self.times.get(&cpu), before.times.get(&cpu)),
            waited: waits
                .as_ref()
                .map(|waited| Duration::from_nanos(waited.get(&cpu).copied().unwrap_or(0))),
        };
        Sample {
            interval: self.at - before.at,
            cpus: self.present.iter().map(cpu).collect(),
            wait_source: waits.as_ref().and(self.waits.as_ref()).map(Waits::source),
        }
    }
}

impl Waits {
    /// `None`: the kernel counts neither.
    fn read() -> Option<Self> {
        let by_cpu = processors::waits_ns().ok().map(Self::Cpus);
        by_cpu.or_else(|| processors::thread_waits().ok().map(Self::Threads))
    }

    fn source(&self) -> WaitSource {
        match self {
            Self::Cpus(_) => WaitSource::Cpus,
            Self::Threads(_) => WaitSource::Threads,
        }
    }

    /// The time in nanoseconds by CPU. A thread counts for the CPU that it was on last, if it was
    /// there at both readings.
    fn since(&self, before: &Self) -> Option<BTreeMap<usize, u64>> {
        let mut waited = BTreeMap::new();
        match (self, before) {
            (Self::Cpus(after), Self::Cpus(before)) => {
                for (cpu, ns) in after {
                    let earlier = before.get(cpu).copied().unwrap_or(*ns);
                    waited.insert(*cpu, ns.saturating_sub(earlier));
                }
            }
            (Self::Threads(after), Self::Threads(before)) => {
                for (id, wait) in after {
                    let Some(earlier) = before.get(id) else { continue };
                    let ns = wait.waited_ns.saturating_sub(earlier.waited_ns);
                    *waited.entry(wait.cpu).or_default() += ns;
                }
            }
            _ => return None,
        }
        Some(waited)
    }
}

/// The busy part of the time between two readings of a CPU.
fn utilisation(after: Option<&CpuActivity>, before: Option<&CpuActivity>) -> Option<f64> {
    let (after, before) = after.zip(before)?;
    let busy = after.busy_ns.saturating_sub(before.busy_ns) as f64;
    let idle = after.idle_ns.saturating_sub(before.idle_ns) as f64;
    // Two readings within one step of the kernel's counters.
    (busy + idle > 0.0).then(|| busy / (busy + idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: Instant, busy_ns: u64, waits: Option<Waits>) -> Look {
        let times = CpuActivity { busy_ns, idle_ns: busy_ns * 3 };
        Look {
            at,
            present: vec![0, 1],
            online: vec![0],
            times: BTreeMap::from([(0, times)]),
            waits,
        }
    }

    #[test]
    fn a_sample_is_the_difference_of_two_readings() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let waits = |ns| Some(Waits::Cpus(BTreeMap::from([(0, ns)])));
        let sample = look(later, 250, waits(700)).since(&look(start, 50, waits(200)));
        let [first, second] = &sample.cpus[..] else { panic!("two CPUs") };
        assert_eq!(
            (first.utilisation, first.waited),
            (Some(0.25), Some(Duration::from_nanos(500)))
        );
        assert_eq!((second.is_online, second.utilisation), (false, None));
        assert_eq!(sample.wait_source, Some(WaitSource::Cpus));
        let same = look(later, 50, None).since(&look(start, 50, None));
        assert_eq!((same.cpus[0].utilisation, same.cpus[0].waited), (None, None));
    }

    #[test]
    fn threads_count_for_their_last_cpu_if_they_were_there_at_both_readings() {
        let wait = |cpu, waited_ns| ThreadWait { cpu, waited_ns };
        let before = BTreeMap::from([(7, wait(0, 100)), (8, wait(1, 10))]);
        let after = BTreeMap::from([(7, wait(1, 160)), (8, wait(1, 15)), (9, wait(0, 1000))]);
        let waited = Waits::Threads(after).since(&Waits::Threads(before)).unwrap();
        assert_eq!(waited, BTreeMap::from([(1, 65)]));
    }
}
