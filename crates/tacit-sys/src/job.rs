//! Runs a child process so that a shell can control the child (job control). The calling process
//! forwards signals to the child, stops when the child stops, and exits with the child's status.
//!
//! Call this module while the process has only one thread. The module sets the signal mask of the
//! calling thread, and only threads that start later inherit this mask.

use std::io;
use std::mem::MaybeUninit;
use std::process::Child;
use std::ptr;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};

/// The signals that this process receives with [`next_signal`] instead of by their default action.
const WATCHED: [libc::c_int; 14] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGCONT,
    libc::SIGCHLD,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGPIPE,
];

/// The signals with which a process or a terminal asks a process to end.
const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals with which a terminal stops a process.
const STOPPING: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// The signal for a child that has ended, stopped or continued.
pub const CHILD: i32 = libc::SIGCHLD;

/// The signal to continue after a stop.
pub const CONTINUE: i32 = libc::SIGCONT;

/// Whether the sender of this signal wants the process to end.
#[must_use]
pub fn asks_to_end(number: i32) -> bool {
    ENDING.contains(&number)
}

/// Whether this signal of the terminal stops the process.
#[must_use]
pub fn asks_to_stop(number: i32) -> bool {
    STOPPING.contains(&number)
}

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Its number.
    pub number: i32,
    /// Whether a process sent the signal. Signals of the terminal come from the kernel. The child
    /// is in the same process group and receives them itself.
    pub from_process: bool,
}

/// A change in the state of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildState {
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
}

/// Blocks the signals that [`next_signal`] returns. [`crate::spawn::LauncherState`] has recorded
/// the previous mask, and restores it for the program.
///
/// # Errors
/// The error of `sigprocmask`.
pub fn watch_signals() -> io::Result<()> {
    change_mask(libc::SIG_BLOCK, &watched_set())
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the pointer is to an initialised set; the old one is not asked for.
    let result = unsafe { libc::sigprocmask(how, ptr::from_ref(set), ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for the next signal.
///
/// # Errors
/// The error of `sigwaitinfo`, except for an interruption.
pub fn next_signal() -> io::Result<ReceivedSignal> {
    let ages = Duration::from_secs(i32::MAX.unsigned_abs().into());
    loop {
        if let Some(arrived) = next_signal_within(ages)? {
            return Ok(arrived);
        }
    }
}

/// Waits for the next signal, at most for `wait`.
///
/// # Errors
/// The error of `sigtimedwait`. An interruption, for example because this process was stopped and
/// continued, counts as a timeout.
pub fn next_signal_within(wait: Duration) -> io::Result<Option<ReceivedSignal>> {
    next_of(&watched_set(), wait)
}

fn next_of(set: &libc::sigset_t, wait: Duration) -> io::Result<Option<ReceivedSignal>> {
    let wait = libc::timespec {
        tv_sec: wait.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: all three pointers are valid for their types; the second is written on success.
    let number = unsafe { libc::sigtimedwait(set, info.as_mut_ptr(), &raw const wait) };
    if number > 0 {
        // SAFETY: siginfo_t is plain data; it was zeroed and then filled by the kernel.
        let info = unsafe { info.assume_init() };
        return Ok(Some(ReceivedSignal { number, from_process: info.si_code <= 0 }));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

/// The signal that asks this process to end, if one has arrived. Signals that this process ignores,
/// such as those of `nohup`, do not count. Other watched signals stay pending. Call it after
/// [`watch_signals`].
///
/// # Errors
/// The error of `sigtimedwait`.
pub fn end_requested() -> io::Result<Option<i32>> {
    while let Some(arrived) = next_of(&set_of(&ENDING), Duration::ZERO)? {
        if !is_ignored(arrived.number) {
            return Ok(Some(arrived.number));
        }
    }
    Ok(None)
}

/// Stops this process if a signal has arrived with which a terminal stops a process. It returns
/// when another process continues this one. Call it after [`watch_signals`], and only while there
/// is no child to which the signals are forwarded.
///
/// # Errors
/// The error of `sigprocmask` or `sigtimedwait`.
pub fn stop_if_requested() -> io::Result<()> {
    let stopping = set_of(&STOPPING);
    if !is_pending(&STOPPING)? {
        return Ok(());
    }
    change_mask(libc::SIG_UNBLOCK, &stopping)?;
    // This process was stopped and continued, unless it ignores the signal.
    change_mask(libc::SIG_BLOCK, &stopping)?;
    // Discards SIGCONT. Otherwise, it would later be forwarded to a child that was not stopped.
    while next_of(&set_of(&[CONTINUE]), Duration::ZERO)?.is_some() {}
    Ok(())
}

/// Whether one of these blocked signals has arrived.
fn is_pending(numbers: &[libc::c_int]) -> io::Result<bool> {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is valid; the call writes the set on success.
    if unsafe { libc::sigpending(pending.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written the set.
    let pending = unsafe { pending.assume_init() };
    // SAFETY: the set is initialised and the numbers are signals.
    Ok(numbers.iter().any(|number| unsafe { libc::sigismember(&raw const pending, *number) } == 1))
}

fn is_ignored(number: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is set, and the pointer is valid for the old one.
    let result = unsafe { libc::sigaction(number, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed memory is a valid sigaction, and the kernel has filled it on success.
    result == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn watched_set() -> libc::sigset_t {
    set_of(&WATCHED)
}

fn set_of(numbers: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset writes the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was just initialised.
    let mut set = unsafe { set.assume_init() };
    for number in numbers {
        // SAFETY: the set is initialised and the number is a signal.
        unsafe { libc::sigaddset(&raw mut set, *number) };
    }
    set
}

/// Returns what happened to the child since the last call, if anything did.
///
/// # Errors
/// The error of `waitpid`.
pub fn child_state(child: &Child) -> io::Result<Option<ChildState>> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    let pid = pid_of(child.id())?;
    let Some((_, status)) = rustix::process::waitpid(Some(pid), options)? else {
        return Ok(None);
    };
    let state = [
        status.exit_status().map(ChildState::Exited),
        status.terminating_signal().map(ChildState::Killed),
        status.stopping_signal().map(ChildState::Stopped),
    ];
    Ok(state.into_iter().flatten().next())
}

/// Sends a signal to a child by number.
///
/// # Errors
/// The error of `kill`.
pub fn forward(child: u32, number: i32) -> io::Result<()> {
    let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid_of(child)?, signal)?)
}

/// Whether the child is still in this process's group, and therefore receives the terminal's
/// signals itself.
#[must_use]
pub fn shares_group(child: u32) -> bool {
    let group = pid_of(child).and_then(|pid| Ok(rustix::process::getpgid(Some(pid))?));
    // A child that has ended needs no signal.
    group.map_or(true, |group| group == rustix::process::getpgrp())
}

/// Stops this process as its child was stopped, until another process continues it.
///
/// # Errors
/// The error of `kill`.
pub fn stop_self() -> io::Result<()> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?)
}

/// Whether a process is stopped, by a signal or by a tracer. A process that has ended is not
/// stopped.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain any character.
    let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
    matches!(state, Some('T' | 't'))
}

/// Ends this process with the signal that ended its child, without a core dump. So the parent of
/// this process sees the same status.
pub fn die_by(number: i32) {
    // Each step may fail. The caller then exits with 128 + number, as shells do.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // SAFETY: restoring a default disposition involves no handler.
    unsafe { libc::signal(number, libc::SIG_DFL) };
    let mut set = watched_set();
    // SAFETY: the set is initialised and the number came from a wait status.
    unsafe { libc::sigaddset(&raw mut set, number) };
    let _ = forward(std::process::id(), number);
    // SAFETY: the pointer is to an initialised set; the old one is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

fn pid_of(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
