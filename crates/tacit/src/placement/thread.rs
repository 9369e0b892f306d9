//! Binds the calling thread to the CPU of an engine, and sets the scheduling class of the thread.
//! Each error message explains what to change.

use std::io;

use tacit_core::policy::EngineClass;
use tacit_sys::schedule::{self, SchedulingClass};

/// Binds the calling thread, which has this name, to a CPU.
///
/// # Errors
/// The kernel refuses, or does not do it although it reports no error: a control group does not
/// have the CPU.
pub fn bind_thread(name: &str, cpu: usize) -> io::Result<()> {
    let failed = |cause: &dyn std::fmt::Display| {
        format!(
            "cannot bind the thread {name} to CPU {cpu}: {cause}; use a CPU that exists and that \
             the agent's control group permits (AllowedCPUs=). If a seccomp filter restricts the \
             agent, allow the system call sched_setaffinity"
        )
    };
    schedule::pin_thread(&[cpu]).map_err(|error| io::Error::new(error.kind(), failed(&error)))?;
    let cpus = schedule::allowed_cpus()?;
    if cpus == [cpu] {
        Ok(())
    } else {
        let cause =
            format!("the kernel has bound the thread to CPU {} instead", super::list(&cpus));
        Err(io::Error::other(failed(&cause)))
    }
}

/// Sets the scheduling class and the nice value of the calling thread, an engine.
///
/// # Errors
/// The kernel refuses.
pub fn set_engine_class(class: EngineClass, nice: i32) -> io::Result<()> {
    let kernel_class = match class {
        EngineClass::Normal => SchedulingClass::Normal,
        EngineClass::Batch => SchedulingClass::Batch,
    };
    schedule::set_own_class(kernel_class, nice).map_err(|error| {
        let text = format!(
            "cannot set the scheduling class of [engine] with nice = {nice}: {error}; set a \
             higher value of `nice` (lower priority) in [engine], or give the agent \
             CAP_SYS_NICE or a higher RLIMIT_NICE (LimitNICE=)"
        );
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_the_kernel_refuses_is_an_error_with_the_thread_and_the_cpu() {
        std::thread::spawn(|| {
            let before = schedule::allowed_cpus().unwrap();
            let error = bind_thread("engine-0", 1_022).unwrap_err().to_string();
            assert!(error.contains("cannot bind the thread engine-0 to CPU 1022: "), "{error}");
            assert_eq!(schedule::allowed_cpus().unwrap(), before);
            bind_thread("engine-0", before[0]).unwrap();
            assert_eq!(schedule::allowed_cpus().unwrap(), [before[0]]);
        })
        .join()
        .unwrap();
    }
}
