//! The process itself: what it may open, and what others may see of it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit};

/// Lets this process open as many descriptors as its hard limit allows, and says how many.
///
/// # Errors
/// Whatever `setrlimit` answers.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    )?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Keeps keys out of core dumps and out of reach of a debugger of the same user, and gives up for
/// good the right to gain privileges by exec.
///
/// # Errors
/// Whatever `prctl` or `setrlimit` answer.
pub fn keep_secrets() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Names the calling thread, as `top -H` and `ps -L` show it; 15 bytes at most count.
pub fn name_thread(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        // A thread without a name works as well.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Sends a signal to a process this one started.
///
/// # Errors
/// Whatever `kill` answers, `InvalidInput` for a number that cannot be a process.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

pub use rustix::process::Signal;

/// Makes the child ignore terminal interrupts of its own: the parent decides what they mean.
pub fn own_process_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// The effective user of this process.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
