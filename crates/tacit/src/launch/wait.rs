//! Standing in for CMD until it ends.

use std::process::ExitCode;

use tacit_sys::job::{self, ChildState};

use super::{RunError, Running};

/// `SIGCHLD`.
const CHILD: i32 = 17;
/// `SIGCONT`.
const CONTINUE: i32 = 18;

impl Running {
    /// Forwards signals, stops when CMD stops, and returns its status when it ends.
    pub(super) fn wait(self) -> Result<ExitCode, RunError> {
        let own = |error| RunError::Own("wait for the program", error);
        let state = loop {
            match job::child_state(&self.child).map_err(own)? {
                Some(ChildState::Stopped(_)) => job::stop_self().map_err(own)?,
                Some(ended) => break ended,
                None => {
                    let signal = job::next_signal().map_err(own)?;
                    // The terminal's signals have gone to the whole group, CMD included.
                    if signal.number != CHILD && (signal.from_process || signal.number == CONTINUE)
                    {
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
}
