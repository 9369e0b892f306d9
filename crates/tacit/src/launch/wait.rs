//! Standing in for CMD until it ends.

use std::process::ExitCode;

use tacit_sys::job::{self, ChildState};
use tacit_sys::process;

use super::{RunError, Running};
use crate::cli::complain;

/// `SIGCHLD`.
const CHILD: i32 = 17;
/// `SIGCONT`.
const CONTINUE: i32 = 18;

impl Running {
    /// Forwards signals, stops when CMD stops, and returns its status when it ends.
    pub(super) fn wait(mut self) -> Result<ExitCode, RunError> {
        let own = |error| RunError::Own("wait for the program", error);
        let state = loop {
            match job::child_state(&self.child).map_err(own)? {
                Some(ChildState::Stopped(_)) => job::stop_self().map_err(own)?,
                Some(ended) => break ended,
                None => {
                    let signal = job::next_signal().map_err(own)?;
                    if signal.number == CHILD {
                        self.look_after_others();
                    // The terminal's signals have gone to the whole group, CMD included.
                    } else if signal.from_process || signal.number == CONTINUE {
                        // CMD may have ended a moment ago.
                        let _ = job::forward(self.child.id(), signal.number);
                    }
                }
            }
        };
        match state {
            ChildState::Exited(status) => Ok(u8::try_from(status).unwrap_or(u8::MAX).into()),
            ChildState::Killed(signal) => {
                drop(self);
                job::die_by(signal);
                Ok(u8::try_from(128 + signal).unwrap_or(u8::MAX).into())
            }
            ChildState::Stopped(_) => Ok(ExitCode::FAILURE),
        }
    }

    /// Starts a helper that died anew, and says so when the agent has ended.
    fn look_after_others(&mut self) {
        if process::try_wait(self.helper.pid()).is_ok_and(|ended| ended.is_some()) {
            let anew = self.helper.start_anew().and_then(|line| self.agent.bring(&line));
            if let Err(error) = anew {
                complain(format_args!("tacit: the helper ended, and no other starts: {error}"));
            }
        }
        if let Some(agent) = self.agent.private_pid()
            && process::try_wait(agent).is_ok_and(|ended| ended.is_some())
        {
            self.agent.forget();
            complain("tacit: the agent has ended: the program's connections are refused");
        }
    }
}
