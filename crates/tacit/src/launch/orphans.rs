//! What becomes of the processes that CMD leaves behind when it ends.
//!
//! ```text
//! terminate   SIGTERM, a grace, SIGKILL until no process is left; reported on standard error
//! wait        as long as it takes
//! leave       nothing: they continue, and every connection of theirs is refused
//! ```
//!
//! While the launcher waits, the run's agent and helper keep serving them. A signal to end cuts
//! the waiting short: `wait` then terminates, and `terminate` kills at once.

use std::io;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::job::{self, Arrived};
use tacit_sys::orphan;
use tacit_sys::process::Signal;

use super::arguments::Orphans;
use super::running::Running;
use crate::exit::warn;

/// How long a process has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// How long killed processes may take to be gone; one may hang in the kernel.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody is left, should no signal say so.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long orphans are not spoken of.
const PATIENCE: Duration = Duration::from_millis(200);

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    NobodyLeft,
    TimeOver,
    /// Somebody wants the launcher to end.
    Signal,
}

impl Running {
    /// Does with them what the command line says; CMD has ended.
    pub(super) fn see_off_orphans(&mut self, how: Orphans) -> io::Result<()> {
        if how == Orphans::Leave || self.orphans().is_empty() {
            return Ok(());
        }
        // What is left for a moment, such as the agent of a run inside this one, ends by itself.
        let patience = (how == Orphans::Terminate).then_some(PATIENCE);
        if self.wait_for_orphans(patience)? == Waited::NobodyLeft {
            return Ok(());
        }
        let left = self.orphans().len();
        let grace = GRACE.as_secs();
        let what = if left == 1 { "process" } else { "processes" };
        warn(
            MessageId("orphans-ended"),
            format_args!(
                "the program has ended and left {left} {what}: told to end, killed after \
             {grace} s (--orphans says otherwise)"
            ),
        );
        // A stopped process handles no signal before it continues.
        self.signal_orphans(&[Signal::TERM, Signal::CONT]);
        if self.wait_for_orphans(Some(GRACE))? == Waited::NobodyLeft {
            return Ok(());
        }
        let end = Instant::now() + KILL_WAIT_MAX;
        while Instant::now() < end {
            // Again and again: one may have started another before it was killed.
            self.signal_orphans(&[Signal::KILL]);
            if self.wait_for_orphans(Some(LOOK_EVERY))? == Waited::NobodyLeft {
                return Ok(());
            }
        }
        let left = self.orphans().len();
        warn(
            MessageId("orphans-left"),
            format_args!("{left} {what} cannot be killed and stay behind"),
        );
        Ok(())
    }

    fn orphans(&self) -> Vec<u32> {
        orphan::members(&self.own_children())
    }

    fn signal_orphans(&self, signals: &[Signal]) {
        for pid in self.orphans() {
            for signal in signals {
                // One that is gone needs none.
                let _ = orphan::signal(pid, *signal);
            }
        }
    }

    fn wait_for_orphans(&mut self, at_most: Option<Duration>) -> io::Result<Waited> {
        let end = at_most.map(|wait| Instant::now() + wait);
        loop {
            if self.orphans().is_empty() {
                // No other process collects the children that just ended.
                orphan::reap(&self.own_children());
                return Ok(Waited::NobodyLeft);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Waited::TimeOver);
            }
            let wait = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
            match job::next_signal_within(wait)? {
                Some(Arrived { number, .. }) if job::asks_to_end(number) => {
                    return Ok(Waited::Signal);
                }
                Some(Arrived { number, .. }) if job::asks_to_stop(number) => job::stop_self()?,
                _ => self.look_after_others(),
            }
        }
    }
}
