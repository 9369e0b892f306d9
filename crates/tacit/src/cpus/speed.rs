//! Measures how fast one CPU of this machine encrypts and decrypts records with each cipher suite.
//!
//! The measurement runs on a thread of low priority, so that it does not delay other threads. Only
//! the CPU time of this thread is counted.

use std::thread;
use std::time::Duration;

use tacit_core::policy::Suite;
use tacit_core::record::PAYLOAD_BYTES_MAX;
use tacit_sys::schedule::{self, SchedulingClass};
use tacit_tls::measure::{self, CannotMeasure, RecordCosts};

use super::display::SuiteDisplay;

/// How long each suite is measured.
const TRIAL_TIME: Duration = Duration::from_millis(30);
/// The nice value of the measuring thread: the lowest priority.
const NICE: i32 = 19;

/// The speed of every suite, measured on a CPU that is not in `avoided`, if there is one.
pub(super) fn suites(avoided: &[usize]) -> Result<Vec<SuiteDisplay>, CannotMeasure> {
    let measure = || {
        yield_to_others(avoided);
        Suite::DEFAULT.into_iter().map(speed).collect()
    };
    thread::scope(|scope| scope.spawn(measure).join().unwrap_or(Err(CannotMeasure)))
}

/// Lowers the priority of the calling thread. If the kernel does not permit this, the thread
/// measures with its old priority.
fn yield_to_others(avoided: &[usize]) {
    let _ = schedule::set_own_class(SchedulingClass::Batch, NICE);
    let allowed = schedule::allowed_cpus().unwrap_or_default();
    let free: Vec<_> = allowed.into_iter().filter(|cpu| !avoided.contains(cpu)).collect();
    if !free.is_empty() {
        let _ = schedule::pin_thread(&free);
    }
}

fn speed(suite: Suite) -> Result<SuiteDisplay, CannotMeasure> {
    let RecordCosts { seal_us_per_mb, open_us_per_mb } =
        measure::records(suite, PAYLOAD_BYTES_MAX, TRIAL_TIME)?;
    let mb_per_s = |us_per_mb: f64| (1e6 / us_per_mb).round();
    Ok(SuiteDisplay {
        suite: suite.name().to_owned(),
        seal_mb_per_s: mb_per_s(seal_us_per_mb),
        open_mb_per_s: mb_per_s(open_us_per_mb),
    })
}
