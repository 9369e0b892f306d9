//! Provides what the measurements of `tacit workload paper` need: a directory, a network namespace
//! and processes.
//!
//! ```text
//!   tacit workload paper ── unshare ──> the same command in new namespaces (user, network, mount)
//!                                         ├ a tmpfs with certificates, policies and logs
//!                                         ├ lo, and an address at which a run can reach servers
//!                                         └ agents, peers, servers and clients
//! ```
//!
//! When this command ends, all these processes end too, because each has a parent-death signal.
//! Each process also has a time limit. When the last process ends, the namespaces end.

use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tacit_sys::process::{Signal, descendants, signal};

use super::super::error::WorkloadError;
use super::super::watch::ProgressLines;
use super::cell::Gap;
use super::sheet::Machine;
use crate::exit;

/// The address of servers; not on loopback, which each run has for itself.
pub(super) const SERVER: &str = "10.9.8.7";
/// How long a measurement may take in addition to its own length. One that takes longer has failed.
const MEASUREMENT_TIME_MAX: Duration = Duration::from_secs(180);
/// How much longer a client may run than its output is awaited.
const CLIENT_MARGIN: Duration = Duration::from_secs(60);
/// How long a server or an agent may run.
const SERVER_TIME_MAX: Duration = Duration::from_secs(86_400);
/// How long a listener may take to appear.
const LISTEN_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a process may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(2);
/// How long the end of a process that was killed may take.
const KILLED_TIME_MAX: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// The number of lines of a log in a reason.
const LOG_LINES_MAX: usize = 3;
/// Where programs are searched in addition to `PATH`.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin";

/// Prepares the network of the namespace: the address of servers, and a default route, without
/// which runs and pasta have no network. The device for the route leads nowhere. Ended connections
/// do not stay in the state TIME-WAIT: tens of thousands of them would use up the ports, and each
/// `connect` would search for a free one.
const NETWORK: &str = "\
mount -t tmpfs tacit .
echo 0 >/proc/sys/net/ipv4/tcp_max_tw_buckets
ip link set lo up
ip route add local 10.9.8.7/32 dev lo
ip link add away0 type veth peer name away1
ip link set away0 up
ip link set away1 up
ip address add 192.168.77.1/24 dev away0
ip route add default via 192.168.77.2
echo 10000 65000 >/proc/sys/net/ipv4/ip_local_port_range
for name in cubic reno; do
    (echo $name >/proc/sys/net/ipv4/tcp_congestion_control) 2>/dev/null && break
done
";

/// Where and how the papers are measured.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    program: String,
    pub(super) extent: Extent,
    prints_progress: bool,
    /// Measurements, and those that other programs disturbed.
    measurements: Cell<usize>,
    disturbed: Cell<usize>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// The number of measurements of each cell.
    pub(super) rounds: usize,
    /// The length of a measurement that has no length in the paper.
    pub(super) time: Duration,
    /// The divisor of transfers that have a length in the paper.
    pub(super) divisor: u64,
    /// The length of the file that lfp transfers, before the division.
    pub(super) file_bytes: u64,
}

impl Extent {
    /// How long a client may run: it may measure all rounds.
    pub(super) fn time_max(&self) -> Duration {
        let rounds = u32::try_from(self.rounds).unwrap_or(u32::MAX);
        MEASUREMENT_TIME_MAX.saturating_add(self.time).saturating_mul(rounds)
    }
}

/// A process, which ends when the value is dropped.
#[derive(Debug)]
pub(super) struct StagedProcess {
    pub(super) child: Child,
    name: String,
    log: PathBuf,
}

/// Executes this command again in new namespaces; returns only if that fails.
pub(super) fn enter_namespaces(arguments: &[std::ffi::OsString]) -> WorkloadError {
    const UNSHARE: [&str; 5] = ["--user", "--map-root-user", "--net", "--mount", "--"];
    let tried = Command::new("unshare").args(UNSHARE).arg("true").output();
    match tried {
        Err(error) => return WorkloadError::Namespace(format!("cannot run unshare: {error}")),
        Ok(Output { status, stderr, .. }) if !status.success() => {
            let reason = String::from_utf8_lossy(&stderr);
            return WorkloadError::Namespace(reason.trim().to_owned());
        }
        Ok(_) => {}
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return WorkloadError::Namespace(format!("cannot find tacit: {error}")),
    };
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(program).args(arguments).arg("--inside");
    WorkloadError::Namespace(format!("cannot run unshare: {}", command.exec()))
}

impl Stage {
    /// Prepares the namespaces in which this process is.
    pub(super) fn prepare(extent: Extent, progress: ProgressLines) -> Result<Self, WorkloadError> {
        let failed = |what: &str, error: io::Error| {
            WorkloadError::Namespace(format!("cannot {what}: {error}"))
        };
        let name = format!("tacit-paper-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).map_err(|error| failed("make a directory", error))?;
        let program = std::env::current_exe().map_err(|error| failed("find tacit", error))?;
        let stage = Self {
            directory,
            program: program.to_string_lossy().into_owned(),
            extent,
            prints_progress: progress.are_printed(),
            measurements: Cell::new(0),
            disturbed: Cell::new(0),
        };
        stage.shell(NETWORK).map_err(|gap| WorkloadError::Namespace(gap.reason))?;
        Ok(stage)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The program of this command.
    pub(super) fn tacit(&self) -> &str {
        &self.program
    }

    /// A path in the directory.
    pub(super) fn path(&self, name: &str) -> String {
        self.directory.join(name).to_string_lossy().into_owned()
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Gap> {
        let written = fs::write(self.directory.join(name), text);
        written.map_err(|error| Gap::failed(format!("cannot write {name}: {error}")))
    }

    /// Prints what is measured now.
    pub(super) fn progress(&self, what: &str) {
        if self.prints_progress {
            exit::complain(format_args!("{what}"));
        }
    }

    /// The reason why a program is not used; `None` if it is installed.
    pub(super) fn missing(&self, program: &str, script: &str) -> Option<Gap> {
        let path = std::env::var("PATH").unwrap_or_default();
        let found = format!("{path}:{SYSTEM_PATH}");
        let is_there = |folder: &str| Path::new(folder).join(program).is_file();
        (!found.split(':').any(is_there)).then(|| {
            Gap::skipped(format!("{program} is not installed; run {script} in the source tree"))
        })
    }

    /// A command in the directory, with a time limit and a parent-death signal.
    fn command(&self, words: &[&str], time_max: Duration) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=5"]);
        command.arg(time_max.as_secs().to_string()).args(words);
        let path = std::env::var("PATH").unwrap_or_default();
        command.current_dir(&self.directory).env("PATH", format!("{path}:{SYSTEM_PATH}"));
        for variable in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"] {
            command.env(variable, &self.directory);
        }
        command
    }

    /// Runs a shell script in the directory, which ends at the first error.
    pub(super) fn shell(&self, script: &str) -> Result<String, Gap> {
        // The script may mount a file system on the directory, so it enters the directory itself.
        let directory = self.path("");
        let steps = format!("cd {directory}\n{script}");
        let mut command = self.command(&["sh", "-ec", &steps], MEASUREMENT_TIME_MAX);
        let output = command.current_dir("/").stdin(Stdio::null()).output();
        let output = output.map_err(|error| Gap::failed(format!("cannot run sh: {error}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Gap::failed(format!("cannot prepare: {}", last_lines(&output.stderr))))
    }

    /// Starts a process, which writes to `NAME.log`.
    pub(super) fn start(&self, name: &str, words: &[&str]) -> Result<StagedProcess, Gap> {
        self.start_with_input(name, words, Stdio::null())
    }

    /// The same with a standard input.
    pub(super) fn start_with_input(
        &self,
        name: &str,
        words: &[&str],
        input: Stdio,
    ) -> Result<StagedProcess, Gap> {
        let failed = |error: io::Error| Gap::failed(format!("cannot start {name}: {error}"));
        let log = self.directory.join(format!("{name}.log"));
        let output = File::create(&log).map_err(failed)?;
        let mut command = self.command(words, SERVER_TIME_MAX);
        command.stdin(input).stderr(output.try_clone().map_err(failed)?).stdout(output);
        let child = command.spawn().map_err(failed)?;
        Ok(StagedProcess { child, name: name.to_owned(), log })
    }

    /// Starts a process with pipes to its standard input and output.
    pub(super) fn start_with_pipes(
        &self,
        name: &str,
        words: &[&str],
    ) -> Result<StagedProcess, Gap> {
        let failed = |error: io::Error| Gap::failed(format!("cannot start {name}: {error}"));
        let log = self.directory.join(format!("{name}.log"));
        let errors = File::create(&log).map_err(failed)?;
        let time_max = self.extent.time_max().saturating_add(CLIENT_MARGIN);
        let mut command = self.command(words, time_max);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let child = command.spawn().map_err(failed)?;
        Ok(StagedProcess { child, name: name.to_owned(), log })
    }

    /// Starts a server of all workloads.
    pub(super) fn server(&self, prefix: &[&str], listen: &str) -> Result<StagedProcess, Gap> {
        let words = ["workload", "interactive", "server", "--listen", listen];
        self.start("server", &[prefix, &[self.tacit()], &words].concat())
    }

    /// Starts a server of `tacit workload datagrams`.
    pub(super) fn datagram_server(
        &self,
        prefix: &[&str],
        listen: &str,
    ) -> Result<StagedProcess, Gap> {
        let words = ["workload", "datagrams", "server", "--listen", listen];
        self.start("server", &[prefix, &[self.tacit()], &words].concat())
    }

    /// Runs a client of `tacit workload` that measures all processes, and returns its report.
    pub(super) fn client(&self, prefix: &[&str], words: &[&str]) -> Result<Value, Gap> {
        let report = self.report(prefix, words)?;
        self.count(&report);
        Ok(report)
    }

    /// Runs a client of `tacit workload`, and returns its report.
    pub(super) fn report(&self, prefix: &[&str], words: &[&str]) -> Result<Value, Gap> {
        let own = [self.tacit(), "workload"];
        let words_of_all = [prefix, &own, words, &["--json", "-"]].concat();
        let mut command = self.command(&words_of_all, self.extent.time_max());
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Gap::failed(format!("cannot run tacit: {error}")))?;
        if !output.status.success() {
            let reason = last_lines(&output.stderr);
            return Err(Gap::failed(format!("tacit workload {}: {reason}", words.join(" "))));
        }
        let report = serde_json::from_slice(&output.stdout);
        report.map_err(|error| {
            Gap::failed(format!("cannot parse the report of `tacit workload`: {error}"))
        })
    }

    /// Counts a measurement, and whether other programs used the machine meanwhile.
    pub(super) fn count(&self, report: &Value) {
        self.measurements.set(self.measurements.get() + 1);
        let notes = report["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if notes.into_iter().any(|note| note.contains("disturbed")) {
            self.disturbed.set(self.disturbed.get() + 1);
        }
    }

    /// A note about measurements that other programs disturbed since the last call.
    pub(super) fn disturbance(&self) -> Option<String> {
        let [disturbed, all] = [self.disturbed.take(), self.measurements.take()];
        (disturbed > 0).then(|| {
            format!("other programs used the machine during {disturbed} of {all} measurements")
        })
    }

    /// Waits until a TCP server listens.
    pub(super) fn wait_for_listener(
        &self,
        address: &str,
        process: &mut StagedProcess,
    ) -> Result<(), Gap> {
        let parsed: SocketAddr = address
            .parse()
            .map_err(|error| Gap::failed(format!("{address} is not an address: {error}")))?;
        self.wait(&format!("no server listens at {address}"), process, || {
            TcpStream::connect_timeout(&parsed, Duration::from_secs(1)).is_ok()
        })
    }

    /// Waits until a condition holds, while the process runs.
    pub(super) fn wait(
        &self,
        failure: &str,
        process: &mut StagedProcess,
        is_true: impl Fn() -> bool,
    ) -> Result<(), Gap> {
        let end = Instant::now() + LISTEN_TIME_MAX;
        while !is_true() {
            process.check_running()?;
            if Instant::now() > end {
                return Err(Gap::failed(format!("{failure}: {}", process.log_end())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The directory is empty outside of this mount namespace. A failure leaves it behind.
        let _ = Command::new("umount").arg("-l").arg(&self.directory).status();
        let _ = fs::remove_dir(&self.directory);
    }
}

impl StagedProcess {
    /// The process id of `timeout`, whose descendants are the processes of the program.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// `NAME=PID`, as `--cpu-of` expects.
    pub(super) fn cpu_of(&self) -> String {
        format!("{}={}", self.name, self.id())
    }

    /// The process id of the program itself.
    pub(super) fn program_id(&self) -> Result<u32, Gap> {
        let family = descendants(self.id()).unwrap_or_default();
        let first = family.first().copied();
        first.ok_or_else(|| Gap::failed(format!("{} ended: {}", self.name, self.log_end())))
    }

    pub(super) fn check_running(&mut self) -> Result<(), Gap> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(Gap::failed(format!("{} ended: {}", self.name, self.log_end()))),
        }
    }

    /// Waits until the process has ended by itself. One that does not is ended.
    pub(super) fn finish(mut self) {
        self.wait_for_end();
    }

    fn wait_for_end(&mut self) {
        let end = Instant::now() + END_TIME_MAX;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The end of the log, for a reason.
    pub(super) fn log_end(&self) -> String {
        last_lines(&fs::read(&self.log).unwrap_or_default())
    }

    /// The whole log.
    pub(super) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.log.clone()
    }
}

impl Drop for StagedProcess {
    fn drop(&mut self) {
        // Errors are ignored: a process may have ended already.
        let family = descendants(self.id()).unwrap_or_default();
        let family: Vec<_> = family.into_iter().filter_map(open_process).collect();
        let _ = signal(self.id(), Signal::TERM);
        self.wait_for_end();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in &family {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        // An agent that is about to end still has its ports, and needs CPU time.
        for process in &family {
            let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&KILLED_TIME_MAX));
        }
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn last_lines(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("; ")
}

/// Describes the machine for the head of the tables.
pub(super) fn machine(kernel: String, cpus: usize) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    // x86 has `model name`, Linux on Z `processor 0: version = .., machine = ..`.
    let value = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor =
        value("model name").or_else(|| value("processor 0")).or_else(|| value("CPU part"));
    Machine {
        kernel,
        processor: processor.unwrap_or_else(|| "unknown processor".to_owned()),
        cpus,
        congestion: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
    }
}
