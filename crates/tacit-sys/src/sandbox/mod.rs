//! Confines a process after its start: limits the system calls, files and capabilities of the
//! process.
//!
//! ```text
//! system calls    a filter for all threads, and a stricter filter for data workers     seccomp
//! files           only some directories, for reading or also for writing               Landlock
//! capabilities    only those that the caller lists, for the calling thread
//! ```
//!
//! A data worker is a thread that serves connections.
//!
//! The process cannot undo these limits, and its child processes inherit the limits. If the kernel
//! does not support one of these limits, this module reports the missing limit. Then the agent
//! continues without this limit.
//!
//! The limits for files and capabilities apply only to the calling thread and to threads that it
//! starts later.

mod calls;
mod files;
mod filter;

use std::io;

pub use files::{FilesConfined, Reach, Rules, has_file_confinement};
pub use filter::{ProcessSockets, WorkerSockets};
pub use rustix::thread::CapabilitySet;

use crate::seccomp;

/// Denies every thread of this process the system calls that no agent needs.
///
/// # Errors
/// `Unsupported` on a machine whose system call numbers are not known; otherwise the error of the
/// kernel.
pub fn filter_process(sockets: ProcessSockets) -> io::Result<()> {
    install(filter::of_every_thread(std::process::id(), sockets), libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// Denies the calling thread, and threads that it starts later, to execute programs and to create
/// processes.
///
/// # Errors
/// The same as [`filter_process`].
pub fn filter_programs() -> io::Result<()> {
    install(filter::without_programs(), 0)
}

/// Limits every thread of this process to the system calls of a signer. A signer may open files for
/// reading and start threads, but may not create processes or sockets.
///
/// # Errors
/// The same as [`filter_process`].
pub fn filter_signer() -> io::Result<()> {
    install(filter::of_signer(std::process::id()), libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// Limits the calling thread to the system calls of a data worker. The thread can no longer open
/// files, execute programs or start threads.
///
/// # Errors
/// The same as [`filter_process`].
pub fn filter_worker(sockets: WorkerSockets) -> io::Result<()> {
    install(filter::of_worker(std::process::id(), sockets), 0)
}

fn install(program: Option<Vec<libc::sock_filter>>, flags: libc::c_ulong) -> io::Result<()> {
    let program = program.ok_or(io::ErrorKind::Unsupported)?;
    // The agent's own code needs no protection against speculation, which old kernels would
    // otherwise enable and which would slow it down.
    let result = seccomp::install(&program, flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)?;
    // With `TSYNC` the kernel returns the ID of a thread that could not use the filter.
    match result {
        0 => Ok(()),
        id => Err(io::Error::other(format!(
            "the kernel cannot install the seccomp filter for the thread {id}"
        ))),
    }
}

/// Whether this kernel supports system call filters, and the system call numbers of this machine
/// are known.
#[must_use]
pub fn has_call_filters() -> bool {
    filter::without_programs().is_some() && rustix::thread::secure_computing_mode().is_ok()
}

/// Reduces the capabilities of the calling thread to those in `kept`.
///
/// # Errors
/// The error of `capset`.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable &= kept;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Reduces the capabilities of the calling thread to those in `kept`, and lets programs that it
/// starts inherit none (the kernel removes the ambient ones with the inheritable ones). A program
/// of root gets those of the bounding set nevertheless.
///
/// # Errors
/// The error of `capset`.
pub fn keep_uninherited_capabilities(kept: CapabilitySet) -> io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable = CapabilitySet::empty();
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// The rights that data workers keep.
#[derive(Clone, Copy, Debug)]
pub struct WorkerRights {
    /// Their capabilities.
    pub capabilities: CapabilitySet,
    /// The kinds of sockets that they may create.
    pub sockets: WorkerSockets,
}

/// Returns the capabilities of the calling thread.
///
/// # Errors
/// The error of `capget`.
pub fn capabilities() -> io::Result<CapabilitySet> {
    Ok(rustix::thread::capabilities(None)?.effective)
}

#[cfg(test)]
mod tests;
