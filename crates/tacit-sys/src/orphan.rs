//! Lists the processes of a run. A descendant of the launcher (`tacit run`) is in the list if the
//! descendant and the launcher have different network namespaces.
//!
//! ```text
//! launcher ── helper               not listed: the caller excludes its process ID
//!          ── agent                not listed: it is in the launcher's network namespace
//!          ── CMD ── ...           listed
//!          ── orphans ── ...       listed
//! ```
//!
//! When the parent of a process ends, the process becomes a child of the launcher (an orphan). A
//! process of the run cannot hide from this list, because it cannot enter the launcher's network
//! namespace. If the process creates a namespace of its own, it is still listed. Zombie processes
//! are not listed.
//!
//! The limits of [`crate::owner::descendants`] apply. While the caller ends the listed processes, a
//! process can start another process. So to end all processes, the caller must list and end
//! processes repeatedly, until the list is empty.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::owner;

/// Makes the kernel assign orphaned descendants of this process to it as children.
///
/// # Errors
/// The error of `prctl`.
pub fn collect() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Returns the processes of the run, without those in `kept` and their descendants: the program
/// must have ended.
#[must_use]
pub fn members(kept: &[u32]) -> Vec<u32> {
    let mut children = owner::children(std::process::id());
    children.retain(|pid| !kept.contains(pid));
    if children.is_empty() {
        return Vec::new();
    }
    let Ok(outside) = fs::read_link("/proc/self/ns/net") else { return Vec::new() };
    let below = children.iter().flat_map(|child| owner::descendants(*child));
    let mut all: Vec<_> = below.chain(children.iter().copied()).collect();
    all.retain(|pid| is_inside(*pid, &outside));
    all
}

/// Sends a signal to a process of the run. Returns whether it exists and belongs to the run.
#[must_use]
pub fn signal(pid: u32, what: Signal) -> bool {
    let Ok(outside) = fs::read_link("/proc/self/ns/net") else { return false };
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // The number may already belong to another process. The descriptor identifies one process. If
    // that process ends after this line, it gets no signal.
    let Ok(process) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else {
        return false;
    };
    is_inside(pid, &outside) && rustix::process::pidfd_send_signal(process, what).is_ok()
}

/// Reaps children that have ended, except those in `kept`.
pub fn reap(kept: &[u32]) {
    for pid in owner::children(std::process::id()) {
        if kept.contains(&pid) {
            continue;
        }
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // The child still runs, or has been reaped. In both cases there is nothing to do.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// A process whose namespace cannot be read is not part of the run: the launcher can read the
/// namespace of every process of the run.
fn is_inside(pid: u32, outside: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|network| network != outside)
}
