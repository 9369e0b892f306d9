//! Stops the launcher (`tacit run`) when the program CMD stops, and resumes the launcher when CMD
//! continues.
//!
//! Another process can send SIGCONT to CMD only, and not to the launcher. A stopped launcher cannot
//! detect that CMD continues, so a second child process watches CMD. When CMD continues, the second
//! child process resumes the launcher.
//!
//! Limit: the second child process checks CMD every [`LOOK_INTERVAL`].

use std::io;
use std::os::unix::process::parent_id;
use std::time::Duration;

use tacit_sys::job;
use tacit_sys::process::{self, Signal, StandardError};

/// The time between two checks of CMD's state.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Stops this process until CMD is no longer stopped, or another process continues this one.
///
/// # Errors
/// The error of `kill`.
pub(super) fn stop_with(cmd: u32) -> io::Result<()> {
    let launcher = std::process::id();
    // Without a watcher the launcher is stopped until another process continues it.
    let watcher = process::fork(|| watch(launcher, cmd));
    let stopped = job::stop_self();
    if let Ok(watcher) = watcher {
        // The watcher may have ended already.
        let _ = process::signal(watcher, Signal::KILL);
        let _ = process::wait(watcher);
    }
    stopped
}

/// Continues the launcher once it is stopped and CMD is not.
fn watch(launcher: u32, cmd: u32) -> u8 {
    // This process must not hold the launcher's descriptors: otherwise the agent would not notice
    // that a killed launcher has ended.
    if process::keep_only(&[], StandardError::Discarded).is_err() {
        return 1;
    }
    while parent_id() == launcher {
        if !job::is_stopped(cmd) && job::is_stopped(launcher) {
            let _ = process::signal(launcher, Signal::CONT);
            return 0;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    0
}
