//! Starts and ends a program of the benchmark, and measures its CPU time and memory.
//!
//! A program may consist of several processes: for example, tacit's agent is a child of its
//! supervisor. This module starts one process, and measures and ends it together with its
//! descendants.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tacit_sys::process::{Signal, descendants, signal};

/// Number of log lines in an error message.
const LOG_LINES_MAX: usize = 15;

/// A running program. Dropping it kills and reaps its processes.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    /// The descendants of the child when it was ready.
    descendants: Vec<u32>,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `DIR/NAME.log`.
    ///
    /// The program gets SIGTERM from the kernel when the benchmark ends, even by SIGKILL. The
    /// command setpriv (util-linux) sets this parent-death signal, and then executes the program
    /// under the same process id.
    pub(crate) fn start(name: String, command: &Command, dir: &Path) -> Result<Self, String> {
        let log = dir.join(format!("{name}.log"));
        let start = || -> io::Result<Child> {
            let output = File::create(&log)?;
            guarded(command)
                .current_dir(dir)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()
        };
        let child = start().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { name, child, descendants: Vec::new(), log })
    }

    /// Wraps a child that was started with [`guarded`] and uses pipes.
    pub(crate) fn adopt(name: &str, child: Child) -> Self {
        let name = name.to_owned();
        Self { name, child, descendants: Vec::new(), log: PathBuf::new() }
    }

    /// The process id of the program.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Adds the current descendants of the program to it.
    pub(crate) fn count_descendants(&mut self) -> Result<(), String> {
        self.descendants =
            descendants(self.child.id()).map_err(|error| format!("cannot read /proc: {error}"))?;
        Ok(())
    }

    /// CPU time of all processes of the program so far, in nanoseconds. It is an error if one of
    /// them has ended, because its time would be missing.
    pub(crate) fn cpu_ns(&self) -> Result<u64, String> {
        let all = self.descendants.iter().copied().chain([self.child.id()]);
        let sum: io::Result<u64> = all.map(tacit_sys::cpu::process_ns).sum();
        sum.map_err(|error| {
            format!("{} ended unexpectedly: {error}\n{}", self.name, self.log_tail())
        })
    }

    /// Resident memory in bytes of all processes of the program except `without`.
    pub(crate) fn resident_bytes(&self, without: Option<u32>) -> Result<u64, String> {
        let all = self.descendants.iter().copied().chain([self.child.id()]);
        let others = all.filter(|pid| Some(*pid) != without);
        let sum: io::Result<u64> = others.map(resident_bytes).sum();
        sum.map_err(|error| {
            format!("{} ended unexpectedly: {error}\n{}", self.name, self.log_tail())
        })
    }

    /// Fails if the program has ended.
    pub(crate) fn check_running(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(format!("{} ended unexpectedly: {status}\n{}", self.name, self.log_tail()))
            }
            Err(error) => Err(format!("cannot wait for {}: {error}", self.name)),
        }
    }

    /// The last lines of the program's output, for an error message.
    pub(crate) fn log_tail(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES_MAX)..];
        format!("--- end of {} ---\n{}", self.log.display(), tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The descendants are determined before the child ends, and killed afterwards, because the
        // child could start others. Errors are ignored: a process may have ended already.
        let descendants = descendants(self.child.id()).unwrap_or_default();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in descendants {
            let _ = signal(pid, Signal::KILL);
        }
    }
}

/// Resident memory of a process. Shared pages count in each process.
fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kilobytes.unwrap_or(0) * 1024)
}

/// The same command with a parent-death signal: the kernel sends it SIGTERM when the calling thread
/// ends.
pub(crate) fn guarded(command: &Command) -> Command {
    let mut guarded = Command::new("setpriv");
    guarded.args(["--pdeathsig", "TERM", "--"]);
    guarded.arg(command.get_program()).args(command.get_args());
    guarded
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn within_seconds(mut done: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if done() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn cpu_time_of_a_child_counts_and_the_child_ends_with_its_program() {
        let dir = std::env::temp_dir().join(format!("bench-process-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut shell = Command::new("sh");
        // The child has its own process group; the shell only waits.
        shell.args(["-c", "setsid sh -c 'while :; do :; done' & wait"]);
        let mut process = Process::start("family".to_owned(), &shell, &dir).unwrap();
        assert!(within_seconds(|| !descendants(process.child.id()).unwrap().is_empty()));
        process.count_descendants().unwrap();
        let child = process.descendants[0];
        let before = process.cpu_ns().unwrap();
        assert!(within_seconds(|| process.cpu_ns().unwrap() > before + 20_000_000));
        drop(process);
        let ended = || match fs::read_to_string(format!("/proc/{child}/stat")) {
            // It may be a zombie if its parent has not reaped it.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        assert!(within_seconds(ended));
        fs::remove_dir_all(&dir).unwrap();
    }
}
