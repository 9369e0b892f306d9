//! Handles processes of `tacit run CMD` that still exist when CMD has ended. The option `--orphans`
//! selects what happens:
//!
//! ```text
//! terminate   send SIGTERM, wait, then send SIGKILL until no process is left; print a message
//! wait        wait until all have ended
//! leave       do nothing: they continue without a network
//! ```
//!
//! While `tacit run` waits, the agent and the helper continue to serve these processes. If `tacit
//! run` receives a signal such as SIGTERM, `tacit run` ends these processes sooner. With `wait`,
//! `tacit run` then sends SIGTERM, waits, and sends SIGKILL. With `terminate`, `tacit run` sends
//! SIGKILL at once if it has already sent SIGTERM to these processes.

use std::io;
use std::time::{Duration, Instant};

use tacit_core::message_id::MessageId;
use tacit_sys::job::{self, ReceivedSignal};
use tacit_sys::orphan;
use tacit_sys::process::Signal;

use super::arguments::Orphans;
use super::running::Running;
use crate::exit::warn;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for killed processes; one may be blocked in the kernel.
const KILL_WAIT_MAX: Duration = Duration::from_secs(5);
/// How often to look for remaining processes if no signal arrives.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long to wait before the launcher prints a message about remaining processes.
const MESSAGE_DELAY: Duration = Duration::from_millis(200);

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    NoneLeft,
    TimeOver,
    /// The launcher received a signal to end.
    Signal,
}

impl Running {
    /// Handles the remaining processes as the command line says. CMD has ended.
    pub(super) fn handle_orphans(&mut self, how: Orphans) -> io::Result<()> {
        if how == Orphans::Leave || self.orphans().is_empty() {
            return Ok(());
        }
        // Short-lived processes, such as the agent of a run inside this run, end by themselves.
        let delay = (how == Orphans::Terminate).then_some(MESSAGE_DELAY);
        if self.wait_for_orphans(delay)? == Waited::NoneLeft {
            return Ok(());
        }
        let left = self.orphans().len();
        let grace = GRACE.as_secs();
        let what = if left == 1 { "process" } else { "processes" };
        warn(
            MessageId("orphans-ended"),
            format_args!(
                "the program ended and left {left} {what} running: tacit sends SIGTERM now, and \
                 SIGKILL after {grace} s (see --orphans)"
            ),
        );
        // A stopped process handles no signal until it continues.
        self.signal_orphans(&[Signal::TERM, Signal::CONT]);
        if self.wait_for_orphans(Some(GRACE))? == Waited::NoneLeft {
            return Ok(());
        }
        let end = Instant::now() + KILL_WAIT_MAX;
        while Instant::now() < end {
            // Repeat: a process may have started another one before it was killed.
            self.signal_orphans(&[Signal::KILL]);
            if self.wait_for_orphans(Some(POLL_INTERVAL))? == Waited::NoneLeft {
                return Ok(());
            }
        }
        let left = self.orphans().len();
        warn(
            MessageId("orphans-left"),
            format_args!(
                "{left} {what} of the program continue to run, because tacit cannot kill them"
            ),
        );
        Ok(())
    }

    fn orphans(&self) -> Vec<u32> {
        orphan::members(&self.own_children())
    }

    fn signal_orphans(&self, signals: &[Signal]) {
        for pid in self.orphans() {
            for signal in signals {
                // The process may have ended in the meantime.
                let _ = orphan::signal(pid, *signal);
            }
        }
    }

    fn wait_for_orphans(&mut self, at_most: Option<Duration>) -> io::Result<Waited> {
        let end = at_most.map(|wait| Instant::now() + wait);
        loop {
            if self.orphans().is_empty() {
                // Only the launcher can reap these children.
                orphan::reap(&self.own_children());
                return Ok(Waited::NoneLeft);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Waited::TimeOver);
            }
            let wait = left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL));
            match job::next_signal_within(wait)? {
                Some(ReceivedSignal { number, .. }) if job::asks_to_end(number) => {
                    return Ok(Waited::Signal);
                }
                Some(ReceivedSignal { number, .. }) if job::asks_to_stop(number) => {
                    job::stop_self()?
                }
                _ => self.check_children(),
            }
        }
    }
}
