//! Reads `CLOCK_BOOTTIME`, the clock that also runs while the machine is suspended.

use std::time::Duration;

/// Returns the time since the machine was started, with the time for which it was suspended
/// (`CLOCK_BOOTTIME`).
///
/// It calls the C library, not the kernel, so that a test can replace the clock of a program.
#[must_use]
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call. Every supported kernel has this clock; otherwise
    // the time remains zero.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_kernel() {
        // The first number is the time since the start in seconds (proc_uptime(5)).
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split_whitespace().next().unwrap().parse().unwrap();
        let later = since_boot();
        // /proc has hundredths.
        assert!(later.as_secs_f64() + 0.01 >= seconds, "{later:?} {text}");
        assert!(since_boot() >= later);
    }
}
