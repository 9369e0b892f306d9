//! Reads the CPU clocks of processes and threads, in nanoseconds.
//!
//! A clock counts system and user time. The clock of a process includes threads that have ended.
//! When a process sends packets, its clock includes the kernel's work to send the packets. On
//! loopback, the clock also includes the kernel's work to receive these packets.
//!
//! The CPU time of the whole machine has a resolution of 10 ms ([`machine_ns`]).

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The largest process ID that Linux supports. A clock ID contains the process ID shifted left: a
/// larger number would silently select another process, and zero would select the caller.
const PID_MAX: libc::pid_t = 1 << 22;

/// Returns the CPU time that process `pid` has used so far, in nanoseconds.
///
/// # Errors
/// The error of the kernel: there is no such process, or `pid` is the ID of a thread.
pub fn process_ns(pid: u32) -> io::Result<u64> {
    let Ok(pid @ 1..=PID_MAX) = libc::pid_t::try_from(pid) else {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is a live, writable clockid_t for the length of the call.
    let refused = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    read_clock(clock)
}

fn read_clock(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live, writable timespec for the length of the call.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(nanoseconds(time.tv_sec, time.tv_nsec))
}

/// Returns the CPU time of the ended children of process `pid`, and of their ended children, in
/// nanoseconds. It includes only children for which their parent has waited. The kernel reports it
/// in steps of [`MACHINE_STEP_NS`].
///
/// # Errors
/// There is no such process, or `/proc` has an unexpected format.
pub fn waited_for_ns(pid: u32) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // A program name may contain any character, including a closing parenthesis.
    let after_name = text.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks: Option<u64> = after_name
        .split_ascii_whitespace()
        .skip(CUTIME_AFTER_NAME)
        .take(2)
        .map(|field| field.parse::<u64>().ok())
        .sum();
    ticks.map(|ticks| ticks * MACHINE_STEP_NS).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The number of fields of `/proc/PID/stat` between the name and `cutime`; `cstime` follows
/// `cutime`.
const CUTIME_AFTER_NAME: usize = 13;

/// Returns the ID by which other threads of this process read the CPU clock of the calling thread.
#[must_use]
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns the CPU time that a thread of this process has used so far, in nanoseconds.
///
/// # Errors
/// The thread has ended.
pub fn thread_ns_of(id: u32) -> io::Result<u64> {
    /// The kind of clock that counts the nanoseconds of one thread: `CPUCLOCK_PERTHREAD_MASK |
    /// CPUCLOCK_SCHED`.
    const KIND: libc::clockid_t = 0b110;
    let Ok(id @ 1..=PID_MAX) = libc::pid_t::try_from(id) else {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    // This is how the kernel builds such clock IDs. The C library's function needs a thread handle
    // instead of a thread ID.
    read_clock((!id << 3) | KIND)
}

/// Returns the CPU time that this process has used so far, in nanoseconds.
#[must_use]
pub fn own_process_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    nanoseconds(tv_sec, tv_nsec)
}

/// Returns the time that a thread of this process has been ready to run but had no CPU, in
/// nanoseconds.
///
/// # Errors
/// The thread has ended, or the kernel does not count this time (`CONFIG_SCHED_INFO`).
pub fn thread_waited_ns_of(id: u32) -> io::Result<u64> {
    waited_ns(&std::fs::read_to_string(schedstat(id))?)
}

/// Reads how long a thread has been ready to run but had no CPU. The file stays open, because a
/// data worker cannot open files.
#[derive(Debug)]
pub struct WaitClock(File);

impl WaitClock {
    /// Opens the clock of the calling thread.
    ///
    /// # Errors
    /// The kernel does not count this time (`CONFIG_SCHED_INFO`).
    pub fn of_this_thread() -> io::Result<Self> {
        File::open(schedstat(thread_id())).map(Self)
    }

    /// Returns the waiting time of the thread so far, in nanoseconds.
    ///
    /// # Errors
    /// The same as [`thread_waited_ns_of`].
    pub fn ns(&self) -> io::Result<u64> {
        let mut buffer = [0; SCHEDSTAT_BYTES_MAX];
        let bytes = self.0.read_at(&mut buffer, 0)?;
        waited_ns(&String::from_utf8_lossy(buffer.get(..bytes).unwrap_or_default()))
    }
}

/// Room for three numbers of at most 20 digits each.
const SCHEDSTAT_BYTES_MAX: usize = 64;

fn schedstat(thread: u32) -> String {
    format!("/proc/self/task/{thread}/schedstat")
}

fn waited_ns(schedstat: &str) -> io::Result<u64> {
    let waited = schedstat.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    waited.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns the CPU time of ended children of this process, and of their ended children, in
/// nanoseconds. The kernel counts it in microseconds. It includes only children for which their
/// parent has waited.
///
/// # Errors
/// The kernel documents no error for this call.
pub fn children_ns() -> io::Result<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a live, writable rusage for the length of the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, which is a value of this struct of integers, and then filled.
    let usage = unsafe { usage.assume_init() };
    let of =
        |time: libc::timeval| nanoseconds(time.tv_sec, 0) + nanoseconds(0, time.tv_usec) * 1000;
    Ok(of(usage.ru_utime) + of(usage.ru_stime))
}

/// Returns the CPU time that the calling thread has used so far, in nanoseconds.
#[must_use]
pub fn thread_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    nanoseconds(tv_sec, tv_nsec)
}

/// Returns a count that rises at a constant rate while this machine runs. This is the cheapest
/// clock. The counts of two CPUs may differ. On machines without such a counter, the count is in
/// nanoseconds.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86_64 CPU has the instruction, it reads a register and touches no memory.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    monotonic_ns()
}

/// Returns the nanoseconds since a fixed moment in the past, without the time in which the machine
/// was suspended.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    nanoseconds(tv_sec, tv_nsec)
}

/// The step in which the kernel counts the machine's time: a hundredth of a second.
pub const MACHINE_STEP_NS: u64 = 10_000_000;

/// Returns the CPU time that the machine has used since it started, in nanoseconds and in steps of
/// [`MACHINE_STEP_NS`]. Time that a hypervisor has taken away counts as used.
///
/// # Errors
/// `/proc/stat` cannot be read or has an unexpected format.
pub fn machine_ns() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&text).ok_or(io::ErrorKind::InvalidData)?;
    Ok(ticks * MACHINE_STEP_NS)
}

/// Adds user, nice, system, irq, softirq and steal time of the line for all CPUs.
fn busy_ticks(text: &str) -> Option<u64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers = line.split_whitespace().map(|field| field.parse().ok());
    let fields = numbers.collect::<Option<Vec<u64>>>()?;
    let busy = [0, 1, 2, 5, 6, 7].into_iter().map(|index| fields.get(index).copied());
    busy.sum()
}

/// Reads how long CPUs have been idle. The file stays open.
#[derive(Debug)]
pub struct IdleClock(File);

impl IdleClock {
    /// Opens the clock of this machine.
    ///
    /// # Errors
    /// `/proc/stat` cannot be opened.
    pub fn new() -> io::Result<Self> {
        File::open("/proc/stat").map(Self)
    }

    /// Returns the total idle time of these CPUs since the machine started, in nanoseconds and in
    /// steps of [`MACHINE_STEP_NS`].
    ///
    /// # Errors
    /// The same as [`machine_ns`].
    pub fn ns(&self, cpus: &[usize]) -> io::Result<u64> {
        let mut file = &self.0;
        file.seek(SeekFrom::Start(0))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let ticks = idle_ticks(&text, cpus).ok_or(io::ErrorKind::InvalidData)?;
        Ok(ticks * MACHINE_STEP_NS)
    }
}

/// Adds idle and iowait of the lines of these CPUs. A CPU that was removed has no line.
fn idle_ticks(text: &str, cpus: &[usize]) -> Option<u64> {
    let mut ticks = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("cpu")) {
        let mut fields = line.split(' ');
        let is_one_of = fields.next()?.parse().is_ok_and(|cpu| cpus.contains(&cpu));
        if is_one_of {
            let numbers = fields.skip(3).take(2).map(|field| field.parse::<u64>().ok());
            ticks += numbers.sum::<Option<u64>>()?;
        }
    }
    Some(ticks)
}

/// A CPU clock starts at zero and only grows, so neither part is negative.
fn nanoseconds(seconds: impl TryInto<u64>, nanos: impl TryInto<u64>) -> u64 {
    let [seconds, nanos] = [seconds.try_into().unwrap_or(0), nanos.try_into().unwrap_or(0)];
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin_until(mut done: impl FnMut() -> bool) {
        let mut work = 0_u64;
        while !done() {
            work = std::hint::black_box(work.wrapping_add(1));
        }
    }

    #[test]
    fn the_three_clocks_move_with_work_and_agree_on_their_order() {
        let thread = thread_ns();
        let own = own_process_ns();
        let by_id = process_ns(std::process::id()).unwrap();
        spin_until(|| thread_ns() > thread + 2_000_000);
        let by_id_later = process_ns(std::process::id()).unwrap();
        let own_later = own_process_ns();
        assert!(by_id >= own, "same clock, read later");
        assert!(own_later >= by_id_later, "same clock, read later");
        assert!(by_id_later - by_id >= 1_500_000, "the thread's work is the process's work");
    }

    #[test]
    fn ticks_rise_with_time() {
        let ticks_before = ticks();
        let before = monotonic_ns();
        spin_until(|| monotonic_ns() > before + 1_000_000);
        assert!(ticks() > ticks_before);
    }

    #[test]
    fn a_threads_clock_is_read_by_others() {
        let id = thread_id();
        let before = thread_ns();
        spin_until(|| thread_ns() > before + 2_000_000);
        let read = std::thread::spawn(move || thread_ns_of(id)).join().unwrap().unwrap();
        assert!(read >= before + 2_000_000, "{read} {before}");
        let ended = std::thread::spawn(thread_id).join().unwrap();
        // The kernel wakes the thread that joins before it removes the ended one.
        spin_until(|| thread_ns_of(ended).is_err());
        assert!(thread_ns_of(0).is_err());
        assert!(thread_waited_ns_of(id).is_ok() && thread_waited_ns_of(ended).is_err());
    }

    #[test]
    fn a_child_counts_once_it_has_been_waited_for() {
        let before = children_ns().unwrap();
        let work = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        std::process::Command::new("sh").args(["-c", work]).status().unwrap();
        assert!(children_ns().unwrap() > before);
        assert!(waited_for_ns(std::process::id()).is_ok());
        assert!(waited_for_ns(u32::MAX).is_err());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        for pid in [child.id(), 0, 0x7fff_ffff, u32::MAX] {
            assert!(process_ns(pid).is_err(), "{pid}");
        }
    }

    #[test]
    fn idle_time_is_not_busy_time() {
        let text = "cpu  1 2 4 1000 2000 8 16 32 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_ticks(text), Some(63));
        assert_eq!(busy_ticks("cpu  1 2 4 1000"), None);
        let text =
            "cpu  1 2 4 9 9\ncpu0 1 1 1 10 1 1\ncpu1 1 1 1 200 2 1\ncpu2 1 1 1 4 4\nintr 7\n";
        assert_eq!(idle_ticks(text, &[0, 1, 5]), Some(213));
        assert_eq!(idle_ticks("cpu0 1 1 1 x 1", &[0]), None);
        assert!(IdleClock::new().unwrap().ns(&[0]).is_ok());
        let clock = WaitClock::of_this_thread().unwrap();
        assert!(clock.ns().unwrap() <= thread_waited_ns_of(thread_id()).unwrap());
        assert!(machine_ns().unwrap() > 0);
    }
}
