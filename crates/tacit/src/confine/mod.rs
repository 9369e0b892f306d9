//! Confines a process of tacit to the files, system calls and capabilities that it needs. Agents
//! and servers of links use this module.

mod reach;
mod rights;

use std::io;

use tacit_sys::sandbox::{FilesConfined, Reach};

pub use reach::{NamedFile, Reachable, named_files};
pub use rights::{missing_for_files, names_of, with_only};

use crate::log::Log;

/// Limits the calling thread and the log thread to these files.
///
/// # Errors
/// The error of the kernel. A kernel without Landlock is not an error.
pub fn confine_threads(files: &Reach, log: &Log) -> io::Result<FilesConfined> {
    let rules = files.rules()?;
    let copy = rules.copy()?;
    // An error is not reported here: the call below fails in the same way.
    log.on_its_thread(move || drop(copy.confine_thread()));
    rules.confine_thread()
}
