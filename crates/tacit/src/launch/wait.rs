//! Waits for the program CMD of `tacit run`, and forwards signals to CMD. When a signal such as
//! SIGTSTP suspends CMD, the launcher suspends itself too. When CMD has ended, the launcher exits
//! with the status of CMD.

use std::io;
use std::process::{Child, ExitCode};

use tacit_core::message_id::MessageId;
use tacit_sys::job::{self, ChildState};
use tacit_sys::{orphan, process};

use super::arguments::Orphans;
use super::error::RunError;
use super::running::Running;
use super::stop;
use crate::exit::complain_of;

impl Running {
    /// Forwards signals, stops when CMD stops, handles the processes that CMD leaves, and returns
    /// CMD's exit status.
    pub(super) fn wait(mut self, child: &Child, orphans: Orphans) -> Result<ExitCode, RunError> {
        let own = |error| RunError::SystemCall("wait for the program", error);
        let state = loop {
            match job::child_state(child).map_err(own)? {
                Some(ChildState::Stopped(_)) => stop::stop_with(child.id()).map_err(own)?,
                Some(ended) => break ended,
                None => {
                    let signal = job::next_signal().map_err(own)?;
                    if signal.number == job::CHILD {
                        self.check_children();
                    } else if signal.from_process
                        || signal.number == job::CONTINUE
                        || !job::shares_group(child.id())
                    {
                        // The terminal sends its signals to CMD as well, which is in the same
                        // process group. CMD may have ended meanwhile.
                        let _ = job::forward(child.id(), signal.number);
                    }
                }
            }
        };
        // The program was reaped, so one of the remaining processes may get its number.
        self.program = None;
        self.handle_orphans(orphans).map_err(own)?;
        match state {
            ChildState::Exited(status) => Ok(u8::try_from(status).unwrap_or(u8::MAX).into()),
            ChildState::Killed(signal) => {
                drop(self);
                Ok(end_by_signal(signal))
            }
            ChildState::Stopped(_) => Ok(ExitCode::FAILURE),
        }
    }

    /// The program, and the children that the launcher itself started.
    pub(super) fn own_children(&self) -> Vec<u32> {
        let own = [self.program, self.helper.pid(), self.agent.private_pid()];
        own.into_iter().flatten().collect()
    }

    /// Restarts a helper that died, reports that the agent has ended, and reaps orphans.
    pub(super) fn check_children(&mut self) {
        if self.agent.has_just_ended() {
            complain_of(
                MessageId("agent-ended"),
                "the agent has ended: its relayed connections fail, and new connections of the \
                 program fail, too",
            );
        }
        if let Some(helper) = self.helper.pid()
            && process::try_wait(helper).is_ok_and(|ended| ended.is_some())
        {
            self.helper.forget();
            // Without an agent, no new connection succeeds in any case.
            if self.agent.serves() && std::mem::take(&mut self.needs_helper) {
                complain_of(
                    MessageId("helper-ended"),
                    "the helper process ended: open connections of the program continue, but new \
                     connections fail\n    fix: start the program again",
                );
            }
            // Without an agent, no helper is needed.
            if self.agent.serves()
                && let Err(error) = self.replace_helper()
            {
                complain_of(
                    MessageId("no-helper"),
                    format_args!(
                        "the helper process ended, and tacit cannot start it again ({error}): new \
                         connections of the program fail"
                    ),
                );
            }
        }
        orphan::reap(&self.own_children());
    }

    fn replace_helper(&mut self) -> io::Result<()> {
        let line = self.helper.restart()?;
        self.agent.send_channel(&line)
    }
}

/// Ends this process with a signal. Returns the exit status of shells if that fails.
pub(super) fn end_by_signal(signal: i32) -> ExitCode {
    job::die_by(signal);
    u8::try_from(128 + signal).unwrap_or(u8::MAX).into()
}
