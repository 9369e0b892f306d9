//! Sets the CPUs on which threads may run, and their scheduling class.
//!
//! Control groups may limit the whole process further; this module does not read them.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How the kernel schedules a thread that is no real-time one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingClass {
    /// `SCHED_OTHER`.
    Normal,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`, the lowest.
    Idle,
    /// A class that this module does not set: a real-time one, or a newer one.
    Other,
}

/// Returns the CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// The kernel knows more CPUs than a set holds.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// The CPU that the calling thread is on now.
#[must_use]
pub fn own_cpu() -> u16 {
    u16::try_from(rustix::thread::sched_getcpu()).unwrap_or(u16::MAX)
}

/// Lets the calling thread run on `cpus` only; threads it starts later inherit that.
///
/// # Errors
/// The kernel's: none of `cpus` is there or allowed. A number that no CPU set can hold is refused
/// as invalid input.
pub fn pin_thread(cpus: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cpus)?)?)
}

/// The same for every thread that this process has.
///
/// # Errors
/// As [`pin_thread`].
pub fn pin_process(cpus: &[usize]) -> io::Result<()> {
    let set = set_of(cpus)?;
    for task in std::fs::read_dir("/proc/self/task")? {
        let name = task?.file_name();
        let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        match sched_setaffinity(thread, &set) {
            // It has ended meanwhile.
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

/// How the kernel schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// Its class.
    pub class: SchedulingClass,
    /// Its nice value.
    pub nice: i32,
}

/// Returns how the calling thread is scheduled.
///
/// # Errors
/// None that the kernel documents for the caller itself.
pub fn own_scheduling() -> io::Result<Scheduling> {
    // SAFETY: takes no pointers; 0 is the calling thread.
    let policy = match unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        policy => i32::try_from(policy).unwrap_or(-1),
    };
    // A child does not inherit it where this bit is set; it is no part of the class.
    let class = match policy & !libc::SCHED_RESET_ON_FORK {
        libc::SCHED_OTHER => SchedulingClass::Normal,
        libc::SCHED_BATCH => SchedulingClass::Batch,
        libc::SCHED_IDLE => SchedulingClass::Idle,
        _ => SchedulingClass::Other,
    };
    Ok(Scheduling { class, nice: rustix::process::getpriority_process(None)? })
}

/// Gives the calling thread a class and a nice value; threads it starts later inherit both.
///
/// # Errors
/// `PermissionDenied`: the nice value is below the present one and the caller may not. The class
/// is one that cannot be set.
pub fn set_own_class(class: SchedulingClass, nice: i32) -> io::Result<()> {
    let class = match class {
        SchedulingClass::Normal => libc::SCHED_OTHER,
        SchedulingClass::Batch => libc::SCHED_BATCH,
        SchedulingClass::Idle | SchedulingClass::Other => {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    };
    // The nice value first: leaving the lowest class is allowed by it.
    rustix::process::setpriority_process(None, nice)?;
    // One integer, which must be 0 in these classes.
    let parameter: libc::c_int = 0;
    // SAFETY: `sched_param` of the kernel is one int, live for the length of the call; 0 is the
    // calling thread. The C library's own function refuses in some of them.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, class, &raw const parameter) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
