//! Confines a process of tacit to the files, system calls and capabilities that it needs. Agents
//! and link servers use this module.

mod reach;
mod rights;

use std::io;

use tacit_sys::sandbox::{FilesConfined, Reach};

pub use reach::{NamedFile, Reachable, named_files, policy_files};
pub use rights::{OF_LOG, missing_for_files, names_of, with_only};

use crate::log::Log;

/// What displays show for files if the kernel does not support Landlock.
pub const NO_LANDLOCK: &str = "access to files is not limited: this kernel has no Landlock";
/// What displays show for system calls if the kernel does not support seccomp filters.
pub const NO_SECCOMP: &str =
    "system calls are not limited: this kernel does not support seccomp filters";

/// Limits the calling thread and the log thread to these files.
///
/// # Errors
/// The error of the kernel. A kernel without Landlock is not an error.
pub fn confine_threads(files: &Reach, log: &Log) -> io::Result<FilesConfined> {
    let rules = files.rules()?;
    let copy = rules.copy()?;
    // An error is not reported here: the call below fails in the same way.
    let of_log = log.on_its_thread(move || drop(copy.confine_thread()));
    let confined = rules.confine_thread();
    of_log.wait();
    confined
}
