//! Reads and changes settings of the calling process: its limits, its standard descriptors, and
//! whether other processes may inspect it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit};

use crate::allocator;

/// Raises the limit of open descriptors of this process to its hard limit, and returns the limit.
///
/// # Errors
/// The error of `setrlimit`.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    )?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Keeps keys out of core dumps, and denies debuggers of the same user access to the memory. Also
/// gives up permanently the right to gain privileges by exec.
///
/// # Errors
/// The error of `prctl` or `setrlimit`.
pub fn keep_secrets() -> io::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none)?;
    hide_memory()?;
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Keeps other processes of the same user from reading the memory of this process, and keeps its
/// pages out of core dumps.
///
/// # Errors
/// The error of `prctl`.
pub fn hide_memory() -> io::Result<()> {
    // This must be the first step, because the file cannot be written afterwards. Even if it fails,
    // no core dump is written.
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// Marks the memory that this process has now to be left out of core dumps, whatever their filter
/// is. Memory that is mapped later needs another call.
///
/// Where the process cannot read its mappings, only [`hide_memory`] excludes them.
pub fn exclude_memory_from_dumps() {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (start, bytes) in mappings.lines().filter_map(own_memory) {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // Another thread may have removed the mapping meanwhile.
        // SAFETY: the advice changes no memory, only what a core dump contains.
        let _ = unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxDontDump) };
    }
}

/// The start and length of a line of `/proc/self/maps`, if it is a mapping without a file.
fn own_memory(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let inode = words.nth(3)?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let start = number(start)?;
    let end = number(end)?;
    (inode == "0").then_some((start, end.checked_sub(start)?))
}

/// Returns freed memory to the kernel: pages that contain no object in use, beside others that do.
/// This takes a few milliseconds after ten thousand connections, and longer after more. It delays
/// threads that allocate during this time.
pub fn return_freed_memory() {
    allocator::return_free_pages();
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps the memory of this process out of swap space, if the process may lock any amount of
/// memory. Otherwise it does nothing, because a limit would make later allocations fail.
pub fn lock_memory() {
    let may_lock_all = rustix::process::getrlimit(Resource::Memlock).current.is_none();
    if may_lock_all {
        use rustix::mm::MlockAllFlags as Flags;
        // Without the lock, keys may be swapped out, as in any other process.
        let _ = rustix::mm::mlockall(Flags::CURRENT | Flags::FUTURE | Flags::ONFAULT);
    }
}

/// Whether a process is in another network namespace or user namespace than this one. Such a
/// process does not control this one. A process that cannot be examined counts as elsewhere.
#[must_use]
pub fn lives_elsewhere(pid: i32) -> bool {
    ["net", "user"].into_iter().any(|kind| {
        let own = std::fs::read_link(format!("/proc/self/ns/{kind}"));
        match (own, std::fs::read_link(format!("/proc/{pid}/ns/{kind}"))) {
            (Ok(own), Ok(other)) => own != other,
            _ => true,
        }
    })
}

/// Returns the parent of a process: the process that started it, or the one that adopted it.
#[must_use]
pub fn parent_of(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character; state and parent follow it.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Returns all descendants of a process.
///
/// # Errors
/// `/proc` cannot be read.
pub fn descendants(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // A process may end between the two reads.
        if let (Some(parent), Ok(child)) = (parent_of(child), u32::try_from(child)) {
            parents.push((child, parent));
        }
    }
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&elder) = family.get(next) {
        family
            .extend(parents.iter().filter(|(_, parent)| *parent == elder).map(|(child, _)| child));
        next += 1;
    }
    Ok(family.split_off(1))
}

/// Sets the name of the calling thread, which `top -H` and `ps -L` show. At most 15 bytes are used.
pub fn name_thread(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        // A thread works without a name too.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Sends a signal to a process that this process has started.
///
/// # Errors
/// The error of `kill`; `InvalidInput` if the number cannot be a process ID.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(process(pid)?, signal)?)
}

/// Sends a signal to all processes of the group that this process leads.
///
/// # Errors
/// The error of `kill`.
pub fn signal_group(leader: u32, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process_group(process(leader)?, signal)?)
}

/// Makes this process, and the programs that it executes, ignore these signals.
///
/// # Errors
/// The error of `signal`.
pub fn ignore(signals: &[Signal]) -> io::Result<()> {
    for signal in signals {
        // SAFETY: no handler of ours is replaced; to ignore a signal runs no code.
        if unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// `InvalidInput` if the number cannot be a process ID.
fn process(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

pub use rustix::process::Signal;

/// How long [`fork`] waits until threads have ended.
const JOINED_THREADS_WAIT: Duration = Duration::from_millis(100);

/// Forks this process. The copy calls `work` and exits with the status that `work` returns. This
/// costs a tenth of starting a program. Returns the process ID of the copy.
///
/// This process must have only one thread. The copy would have the memory and the locks of other
/// threads, but not the threads that release the locks.
///
/// # Errors
/// `EAGAIN` or `ENOMEM`, or `InvalidInput` if there is more than one thread.
pub fn fork(work: impl FnOnce() -> u8) -> io::Result<u32> {
    // A thread that another one has joined is still listed for a moment.
    let deadline = Instant::now() + JOINED_THREADS_WAIT;
    while std::fs::read_dir("/proc/self/task")?.count() != 1 {
        if Instant::now() >= deadline {
            let error = "the process has more than one thread";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: the process has one thread, so nothing in the copy is locked or half done.
    match unsafe { libc::fork() } {
        0 => {
            let work = std::panic::AssertUnwindSafe(work);
            let status = std::panic::catch_unwind(work).unwrap_or(101);
            // SAFETY: ends the copy at once; what the original holds open or registered for its
            // exit is not run.
            unsafe { libc::_exit(status.into()) }
        }
        pid => u32::try_from(pid).map_err(|_| io::Error::last_os_error()),
    }
}

/// Returns the status of a child that has ended; `None` if it still runs.
///
/// # Errors
/// The error of `waitpid`; `ECHILD` if the process is not a child of this process.
pub fn try_wait(pid: u32) -> io::Result<Option<ExitStatus>> {
    let pid = i32::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut status = 0;
    // SAFETY: the status is a live int.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        0 => Ok(None),
        ended if ended == pid => Ok(Some(ExitStatus::from_raw(status))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for a child to end.
///
/// # Errors
/// The error of `waitpid`.
pub fn wait(pid: u32) -> io::Result<()> {
    rustix::process::waitpid(Some(process(pid)?), rustix::process::WaitOptions::empty())?;
    Ok(())
}

/// What happens to the standard error of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardError {
    /// It is kept.
    Kept,
    /// It is replaced by `/dev/null`.
    Discarded,
}

/// Closes all descriptors of a copy that [`fork`] made, except `descriptors`. So no process waits
/// for the copy to close a pipe that it does not use. Standard input and output become `/dev/null`,
/// and standard error with [`StandardError::Discarded`] too.
///
/// # Errors
/// The error of `open`, `dup2` or `close_range`.
pub fn keep_only(descriptors: &[BorrowedFd<'_>], error: StandardError) -> io::Result<()> {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    let unusable =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot open /dev/null: {error}"));
    let null = opened.map_err(unusable)?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if error == StandardError::Discarded {
        rustix::stdio::dup2_stderr(&null)?;
    }
    let mut kept: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    kept.sort_unstable();
    let mut first: RawFd = 3;
    for one in kept.into_iter().filter(|one| *one >= 3).chain([RawFd::MAX]) {
        if one > first {
            close_range(first.unsigned_abs(), (one - 1).unsigned_abs())?;
        }
        first = one.saturating_add(1);
    }
    // The descriptor was opened above, and was closed by the call before this line.
    std::mem::forget(null);
    Ok(())
}

/// Closes all inherited descriptors except the standard streams. Call this before any descriptor is
/// opened.
///
/// # Errors
/// The error of `close_range`.
pub fn close_inherited() -> io::Result<()> {
    close_range(3, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: what is closed has no owner in this process: of a copy, the original has it and the
    // copy does not come back to its code; else the process was started with it.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts the child into a process group of its own, so that it gets no interrupts of the terminal.
/// The parent decides what an interrupt means.
pub fn own_process_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}

/// Moves a copy that [`fork`] made into a process group of its own, away from that of the terminal.
///
/// # Errors
/// The error of `setpgid`.
pub fn lead_process_group() -> io::Result<()> {
    Ok(rustix::process::setpgid(None, None)?)
}

/// A user whose identity the process takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user ID.
    pub uid: u32,
    /// The primary group ID.
    pub gid: u32,
    /// The user name, which determines the supplementary groups. Without a name there are none.
    pub name: Option<String>,
}

/// Changes this process permanently from root to that user, with the user's groups. Other processes
/// of the user may then inspect this process. The process must have only one thread.
///
/// # Errors
/// The error of the kernel. The process may then have parts of both identities, and should exit.
pub fn become_user(user: &User) -> io::Result<()> {
    let name = user.name.as_deref().map(std::ffi::CString::new).transpose()?;
    let groups = match &name {
        // SAFETY: the name is a live C string; one thread: no other reads the group database.
        Some(name) => unsafe { libc::initgroups(name.as_ptr(), user.gid as _) },
        // SAFETY: one group, live for the call.
        None => unsafe { libc::setgroups(1, &raw const user.gid) },
    };
    let done = |result| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    done(groups)?;
    // SAFETY: takes no pointers.
    done(unsafe { libc::setgid(user.gid) })?;
    // SAFETY: takes no pointers.
    done(unsafe { libc::setuid(user.uid) })?;
    // A change of the user makes the process undumpable. This is undone, because the process holds
    // no secrets yet.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
    Ok(())
}

/// Returns the effective user ID of this process.
#[must_use]
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_below_their_parent_only() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 20 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = shell.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        let sleeper: u32 = line.trim().parse().unwrap();
        assert_eq!(descendants(shell.id()).unwrap(), [sleeper]);
        assert!(descendants(std::process::id()).unwrap().contains(&sleeper));
        assert!(descendants(sleeper).unwrap().is_empty());
        signal(sleeper, Signal::KILL).unwrap();
        shell.wait().unwrap();
    }
}
