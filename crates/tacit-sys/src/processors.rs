//! Reads statistics of this machine's CPUs. The statistics show whether a CPU is online, how busy
//! the CPU was, and which instructions the CPU supports. The statistics also show how long threads
//! waited for a CPU.
//!
//! Limit: this module reads the waiting times of at most `THREADS_MAX` threads.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::cpu::MACHINE_STEP_NS;

/// The largest number of threads whose waiting times are read; each thread needs two small files.
const THREADS_MAX: usize = 16_384;
/// The numbers of CPUs are below this value.
const CPUS_MAX: usize = 8192;

/// How long a CPU was busy and idle since the machine started, in steps of [`MACHINE_STEP_NS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuActivity {
    /// In nanoseconds. Includes time that a hypervisor has taken from the CPU.
    pub busy_ns: u64,
    /// In nanoseconds. Includes time in which the CPU waited for disks.
    pub idle_ns: u64,
}

/// The time in which a thread was ready to run and had no CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadWait {
    /// The CPU on which the thread ran last.
    pub cpu: usize,
    /// The time since the thread started, in nanoseconds.
    pub waited_ns: u64,
}

/// Returns the CPUs that this machine has, in ascending order.
///
/// # Errors
/// `/sys` cannot be read or has an unexpected format.
pub fn present() -> io::Result<Vec<usize>> {
    listed("/sys/devices/system/cpu/present")
}

/// Returns the CPUs that are online, in ascending order.
///
/// # Errors
/// The same as [`present`].
pub fn online() -> io::Result<Vec<usize>> {
    listed("/sys/devices/system/cpu/online")
}

/// Returns the busy and the idle time of each online CPU.
///
/// # Errors
/// `/proc/stat` cannot be read or has an unexpected format.
pub fn times() -> io::Result<BTreeMap<usize, CpuActivity>> {
    let text = std::fs::read_to_string("/proc/stat")?;
    parse_times(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns for each CPU how long threads have waited for it since the machine started, in
/// nanoseconds.
///
/// # Errors
/// `NotFound` if the kernel does not count this time for each CPU (`CONFIG_SCHEDSTATS`), or
/// `/proc/schedstat` has an unexpected format.
pub fn waits_ns() -> io::Result<BTreeMap<usize, u64>> {
    let text = std::fs::read_to_string("/proc/schedstat")?;
    parse_waits(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns for each thread of this machine, by thread ID, how long it has waited for a CPU. Threads
/// that end during the reading are omitted.
///
/// # Errors
/// `/proc` cannot be read; there are more than `THREADS_MAX` threads.
pub fn thread_waits() -> io::Result<BTreeMap<u32, ThreadWait>> {
    let mut found = BTreeMap::new();
    for process in std::fs::read_dir("/proc")? {
        let process = process?;
        if number_of(&process.file_name()).is_none() {
            continue;
        }
        let Ok(tasks) = std::fs::read_dir(process.path().join("task")) else { continue };
        for task in tasks.flatten() {
            let Some(id) = number_of(&task.file_name()) else { continue };
            if found.len() == THREADS_MAX {
                return Err(io::Error::other(format!(
                    "cannot read how long threads wait for a CPU: the processes of this machine \
                     have more than {THREADS_MAX} threads"
                )));
            }
            found.extend(thread_wait(&task.path()).map(|wait| (id, wait)));
        }
    }
    Ok(found)
}

/// Returns the names of the features that every CPU has, from `/proc/cpuinfo`.
///
/// # Errors
/// `/proc/cpuinfo` cannot be read.
pub fn features() -> io::Result<Vec<String>> {
    Ok(parse_features(&std::fs::read_to_string("/proc/cpuinfo")?))
}

fn number_of(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

fn listed(path: &str) -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string(path)?;
    parse_list(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses a list such as `0-2,5`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last = last.parse::<usize>().ok().filter(|last| *last < CPUS_MAX)?;
        cpus.extend(first.parse::<usize>().ok()?..=last);
    }
    Some(cpus)
}

/// Splits a line into the number of its CPU and its fields.
fn fields_of_cpu(line: &str) -> Option<(usize, Vec<u64>)> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = words.next()?.parse().ok()?;
    let fields = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some((cpu, fields))
}

/// Parses user, nice, system, idle, iowait, irq, softirq and steal of each CPU. The line for all
/// CPUs together begins with `cpu` and a space.
fn parse_times(text: &str) -> Option<BTreeMap<usize, CpuActivity>> {
    let lines = text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let times = lines.map(|line| {
        let (cpu, fields) = fields_of_cpu(line)?;
        let ns = |indexes: &[usize]| {
            let ticks = indexes.iter().map(|index| fields.get(*index).copied());
            Some(ticks.sum::<Option<u64>>()? * MACHINE_STEP_NS)
        };
        Some((cpu, CpuActivity { busy_ns: ns(&[0, 1, 2, 5, 6, 7])?, idle_ns: ns(&[3, 4])? }))
    });
    times.collect()
}

/// Parses the eighth field of the line of each CPU: the time in which threads waited for the CPU.
fn parse_waits(text: &str) -> Option<BTreeMap<usize, u64>> {
    let lines = text.lines().filter(|line| line.starts_with("cpu"));
    let waits = lines.map(|line| {
        let (cpu, fields) = fields_of_cpu(line)?;
        Some((cpu, *fields.get(7)?))
    });
    waits.collect()
}

fn thread_wait(task: &Path) -> Option<ThreadWait> {
    let schedstat = std::fs::read_to_string(task.join("schedstat")).ok()?;
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    parse_thread_wait(&schedstat, &stat)
}

/// The waiting time is the second field of `schedstat`. The CPU is field 36 after the name in
/// `stat`; the name may contain any character, including a closing parenthesis.
fn parse_thread_wait(schedstat: &str, stat: &str) -> Option<ThreadWait> {
    let waited_ns = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let cpu = after_name.split_ascii_whitespace().nth(36)?.parse().ok()?;
    Some(ThreadWait { cpu, waited_ns })
}

/// The line is `flags` on x86, `Features` on arm64 and `features` on s390x. x86 and arm64 have a
/// line for each CPU: only features that all CPUs have are returned.
fn parse_features(text: &str) -> Vec<String> {
    let is_key = |key: &str| ["flags", "features"].contains(&key.trim().to_lowercase().as_str());
    let mut lines = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| is_key(key))
        .map(|(_, words)| words.split_ascii_whitespace().collect::<Vec<_>>());
    let Some(mut common) = lines.next() else { return Vec::new() };
    for words in lines {
        common.retain(|word| words.contains(word));
    }
    common.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5").unwrap(), [0, 1, 2, 5]);
        assert_eq!(parse_list("0").unwrap(), [0]);
        assert_eq!(parse_list("").unwrap(), [0; 0], "no CPU is offline");
        for wrong in ["a", "0-", "-1", "0-99999999999"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn busy_and_idle_times_of_each_cpu_are_distinguished() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 40 50 6 7 8 0 0\n\
                    cpu2 0 0 0 1 0 0 0 0 0 0\nintr 7\n";
        let times = parse_times(text).unwrap();
        assert_eq!(times.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let first = CpuActivity { busy_ns: 27 * MACHINE_STEP_NS, idle_ns: 90 * MACHINE_STEP_NS };
        assert_eq!(times[&0], first);
        assert_eq!(parse_times("cpu0 1 2 3\n"), None);
    }

    #[test]
    fn the_waiting_time_of_each_cpu_is_its_eighth_field() {
        let text = "version 17\ntimestamp 4294966\ncpu0 0 0 0 0 0 0 111 222 333\n\
                    domain0 MC 3 1 2\ncpu1 0 0 0 0 0 0 4 5 6\n";
        assert_eq!(parse_waits(text).unwrap(), BTreeMap::from([(0, 222), (1, 5)]));
        assert_eq!(parse_waits("cpu0 1 2\n"), None);
    }

    #[test]
    fn the_waiting_time_of_a_thread_counts_for_its_last_cpu() {
        let fields: Vec<_> = (3..53).map(|field| field.to_string()).collect();
        let stat = format!("7 (a) b) S {}", fields[1..].join(" "));
        let wait = parse_thread_wait("10 20 30\n", &stat).unwrap();
        assert_eq!(wait, ThreadWait { cpu: 39, waited_ns: 20 }, "proc_pid_stat(5): field 39");
        assert_eq!(parse_thread_wait("10", &stat), None);
    }

    #[test]
    fn a_feature_counts_if_every_cpu_has_it() {
        let text = "processor\t: 0\nflags\t\t: fpu aes sha_ni\n\nprocessor\t: 1\n\
                    flags\t\t: aes fpu\n";
        assert_eq!(parse_features(text), ["fpu", "aes"]);
        assert_eq!(
            parse_features("Features\t: fp aes pmull sha2\n"),
            ["fp", "aes", "pmull", "sha2"]
        );
        assert_eq!(parse_features("features\t: esan3 zarch msa\n"), ["esan3", "zarch", "msa"]);
        assert!(parse_features("vendor_id : x\n").is_empty());
    }

    #[test]
    fn this_machine_has_a_cpu_and_this_thread() {
        let online = online().unwrap();
        assert!(!online.is_empty());
        assert!(online.iter().all(|cpu| present().unwrap().contains(cpu)));
        assert!(times().unwrap().len() >= online.len());
        assert!(!features().unwrap().is_empty() || cfg!(not(target_arch = "x86_64")));
        if Path::new("/proc/self/schedstat").exists() {
            assert!(thread_waits().unwrap().contains_key(&crate::cpu::thread_id()));
        }
    }
}
