//! Sets the CPU affinity and the scheduling class of threads.
//!
//! Control groups may also restrict the CPUs of a thread. This module does not read control groups.

use std::io;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The scheduling class of a thread that is not a real-time thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingClass {
    /// `SCHED_OTHER`.
    Normal,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`, the lowest.
    Idle,
    /// A class that this module cannot set: a real-time class, or a newer one.
    Other,
}

/// Returns the CPUs on which the calling thread may run, in ascending order.
///
/// # Errors
/// The machine has more CPUs than fit into a CPU set.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Returns the CPU on which the calling thread is running.
#[must_use]
pub fn own_cpu() -> u16 {
    u16::try_from(rustix::thread::sched_getcpu()).unwrap_or(u16::MAX)
}

/// Limits the calling thread to the CPUs `cpus`. Threads that it starts later inherit this.
///
/// # Errors
/// The error of the kernel: none of `cpus` exists or is allowed. A number that does not fit into a
/// CPU set is an invalid argument.
pub fn pin_thread(cpus: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cpus)?)?)
}

/// Limits every thread of this process to the CPUs `cpus`.
///
/// # Errors
/// The same as [`pin_thread`].
pub fn pin_process(cpus: &[usize]) -> io::Result<()> {
    let set = set_of(cpus)?;
    for task in std::fs::read_dir("/proc/self/task")? {
        let name = task?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(thread, &set) {
            // The thread has ended since the list was read.
            Err(rustix::io::Errno::SRCH) => {}
            other => other?,
        }
    }
    Ok(())
}

pub(crate) fn set_of(cpus: &[usize]) -> io::Result<CpuSet> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set.set(cpu);
    }
    Ok(set)
}

/// The scheduling parameters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Its class.
    pub class: SchedulingClass,
    /// Its nice value.
    pub nice: i32,
}

/// Returns the scheduling parameters of the calling thread.
///
/// # Errors
/// The kernel documents no error for the calling thread.
pub fn own_scheduling() -> io::Result<Scheduling> {
    // SAFETY: takes no pointers; 0 is the calling thread.
    let policy = match unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        policy => i32::try_from(policy).unwrap_or(-1),
    };
    // This bit means that children do not inherit the class. It is not part of the class.
    let class = match policy & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => SchedulingClass::Normal,
        libc::SCHED_BATCH => SchedulingClass::Batch,
        libc::SCHED_IDLE => SchedulingClass::Idle,
        _ => SchedulingClass::Other,
    };
    Ok(Scheduling { class, nice: rustix::process::getpriority_process(None)? })
}

/// Sets the scheduling class and the nice value of the calling thread. Threads that it starts later
/// inherit both.
///
/// # Errors
/// `PermissionDenied` if the nice value is below the current one and the caller may not lower it;
/// an error if the class cannot be set.
pub fn set_own_class(class: SchedulingClass, nice: i32) -> io::Result<()> {
    let class = match class {
        SchedulingClass::Normal => libc::SCHED_OTHER,
        SchedulingClass::Batch => libc::SCHED_BATCH,
        SchedulingClass::Idle | SchedulingClass::Other => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    };
    // The nice value must be set first, because it decides whether the thread may leave the lowest
    // class.
    rustix::process::setpriority_process(None, nice)?;
    // The parameter is one integer, which must be 0 in these classes.
    let parameter: libc::c_int = 0;
    // SAFETY: `sched_param` of the kernel is one int, live for the length of the call; 0 is the
    // calling thread. The C library's own function refuses in some of them.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const parameter) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the time slice of the calling thread: how long the kernel lets it run while other threads
/// wait for its CPU. A shorter slice lets it run more often, for the same share of the CPU. Kernels
/// before 6.12 ignore the value; later ones limit it to between 0.1 and 100 ms. Threads that the
/// calling thread starts later inherit it.
///
/// # Errors
/// `InvalidInput` if the thread is in another class than `SCHED_OTHER` or `SCHED_BATCH`, or the
/// error of the kernel.
pub fn set_own_slice(slice: Duration) -> io::Result<()> {
    let Scheduling { class, nice } = own_scheduling()?;
    let class = match class {
        SchedulingClass::Normal => libc::SCHED_OTHER,
        SchedulingClass::Batch => libc::SCHED_BATCH,
        SchedulingClass::Idle | SchedulingClass::Other => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    };
    let attributes = libc::sched_attr {
        size: ATTRIBUTES_BYTES,
        sched_policy: class.cast_unsigned(),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        // The kernel uses the field of another class for the slice.
        sched_runtime: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: `attributes` has the length in its field `size`, and is live for the length of the
    // call; the first 0 is the calling thread, the last means no flags.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The length of `struct sched_attr` in its first version, which every kernel knows.
const ATTRIBUTES_BYTES: u32 = 48;
const _: () = assert!(size_of::<libc::sched_attr>() == ATTRIBUTES_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    /// The time slice of the calling thread in nanoseconds; 0 before Linux 6.12.
    fn own_slice_ns() -> u64 {
        // SAFETY: the structure consists of numbers, for which zeros are valid.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let into = &raw mut attributes;
        // SAFETY: `into` has the length that is passed, and is live for the length of the call.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, into, ATTRIBUTES_BYTES, 0) };
        assert_eq!(result, 0);
        attributes.sched_runtime
    }

    #[test]
    fn a_shorter_slice_leaves_class_and_nice_value_as_they_are() {
        on_a_thread(|| {
            let before = own_scheduling().unwrap();
            let slice_before_ns = own_slice_ns();
            set_own_slice(Duration::from_micros(150)).unwrap();
            assert_eq!(own_scheduling().unwrap(), before);
            if slice_before_ns == 0 {
                eprintln!("SKIPPED: this kernel does not report time slices");
                return;
            }
            assert_eq!(own_slice_ns(), 150_000);
        });
    }

    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_pinned_thread_runs_on_its_cpu_only() {
        on_a_thread(|| {
            let cpu = allowed_cpus().unwrap()[0];
            pin_thread(&[cpu]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
            assert_eq!(rustix::thread::sched_getcpu(), cpu);
            assert!(pin_thread(&[]).is_err());
            assert!(pin_thread(&[CpuSet::MAX_CPU]).is_err());
        });
    }

    #[test]
    fn a_thread_gets_a_class_of_its_own() {
        on_a_thread(|| {
            let nice = own_scheduling().unwrap().nice + 1;
            set_own_class(SchedulingClass::Batch, nice).unwrap();
            assert_eq!(
                own_scheduling().unwrap(),
                Scheduling { class: SchedulingClass::Batch, nice }
            );
            assert!(set_own_class(SchedulingClass::Idle, 0).is_err());
        });
        assert_eq!(
            own_scheduling().unwrap().class,
            SchedulingClass::Normal,
            "other threads keep theirs"
        );
    }
}
