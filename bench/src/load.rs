//! The programs at the two ends: `tacit workload`, or a program of its own that speaks the same.
//!
//! ```text
//! bench                    a client (crates/tacit/src/workload/steering.rs)
//!                          connects, warms up
//!      <- {"ready":true,"pid":P}
//! reads clocks
//!  a line ->
//!                          measures
//!      <- its report, a line of JSON
//! reads clocks
//!  end of input ->
//!                          closes its connections, ends
//! ```

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tacit_core::workload::{HEADER_BYTES, WorkloadRequest};
use tacit_sys::cpu;

use crate::process::{Process, guarded};

/// How long proxies may tidy up after connections before somebody else is measured.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// A server that does not answer a probe for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The words of a server that listens there.
pub(crate) fn server_words(address: SocketAddr) -> Vec<String> {
    let address = address.to_string();
    let words = ["workload", "interactive", "server", "--json", "--listen", &address];
    words.map(str::to_owned).to_vec()
}

/// The words of a client that opens and closes so many connections, one after the other.
pub(crate) fn knock_words(count: usize) -> Vec<String> {
    let count = count.to_string();
    let words = ["connect", "client", "--connections", &count, "--at-once", "1", "--warm-up", "0"];
    words.map(str::to_owned).to_vec()
}

/// One whole connection: a byte each way, in clear.
pub(crate) fn knock(address: SocketAddr) -> Result<(), String> {
    let once = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let mut first =
            WorkloadRequest::Exchange { request_bytes: 1, reply_bytes: 1 }.encode().to_vec();
        first.resize(HEADER_BYTES + 1, 0);
        stream.write_all(&first)?;
        stream.read_exact(&mut [0])
    };
    once().map_err(|error| format!("{address}: {error}"))
}

/// CPU time of a load program, and of all other processes that were started with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuNs {
    /// The load program itself.
    pub(crate) own: u64,
    /// What it runs under, if anything.
    pub(crate) around: u64,
}

/// A load server.
#[derive(Debug)]
pub(crate) struct LoadServer {
    pub(crate) address: SocketAddr,
    /// What was started: the load server, or what it runs under.
    pub(crate) process: Process,
    /// The load server itself.
    pid: u32,
}

impl LoadServer {
    /// Starts a plain one of this tacit.
    pub(crate) fn start(
        tacit: impl AsRef<OsStr>,
        address: SocketAddr,
        dir: &Path,
    ) -> Result<Self, String> {
        let mut command = Command::new(tacit);
        command.args(server_words(address));
        Self::adopt(&command, dir)
    }

    /// Starts what this command is: in the end a load server, whatever stands before.
    pub(crate) fn adopt(command: &Command, dir: &Path) -> Result<Self, String> {
        let mut process = with_pipes(command, dir, "load server")?;
        let line = Lines::of(&mut process)?.next()?;
        let address = line["listening"]
            .as_str()
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| format!("the load server printed {line}"))?;
        Ok(Self { address, pid: number_of_process(&line)?, process })
    }

    /// CPU time so far.
    pub(crate) fn cpu_ns(&self) -> Result<CpuNs, String> {
        apart(&self.process, self.pid)
    }

    /// Resident memory of what is around the load server.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        self.process.resident_bytes(Some(self.pid))
    }
}

/// A load client that has connected, warmed up and waits.
#[derive(Debug)]
pub(crate) struct LoadClient {
    process: Process,
    lines: Lines,
    steering: Option<std::process::ChildStdin>,
    pid: u32,
}

impl LoadClient {
    /// Starts one, and returns when it has reported that it is ready. Every process that it has
    /// started by then counts as what it runs under.
    pub(crate) fn start(command: Command) -> Result<Self, String> {
        let mut process = adopt_with_pipes(command, "load client")?;
        let mut lines = Lines::of(&mut process)?;
        let steering = process.child().stdin.take();
        let pid = number_of_process(&lines.next()?)?;
        process.count_descendants()?;
        Ok(Self { process, lines, steering, pid })
    }

    /// Sends it a line, and returns the one that it answers.
    pub(crate) fn go(&mut self) -> Result<Value, String> {
        self.begin()?;
        self.lines.next()
    }

    /// Sends it a line.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        let steering = self.steering.as_mut().ok_or("no pipe to the load client")?;
        writeln!(steering, "go").map_err(|error| format!("load client: {error}"))
    }

    /// CPU time so far.
    pub(crate) fn cpu_ns(&self) -> Result<CpuNs, String> {
        apart(&self.process, self.pid)
    }

    /// Resident memory of what is around it.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        self.process.resident_bytes(Some(self.pid))
    }

    /// Lets it end, and everything that ends with it.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.steering.take());
        // A report that nothing reads must not hold it up.
        drop(self.lines);
        self.process.child().wait().map_err(|error| format!("load client: {error}"))?;
        thread::sleep(SETTLE_TIME);
        Ok(())
    }
}

/// The CPU time of `pid`, and of all other processes.
fn apart(process: &Process, pid: u32) -> Result<CpuNs, String> {
    let own = cpu::process_ns(pid).map_err(|error| format!("a load program has ended: {error}"))?;
    Ok(CpuNs { own, around: process.cpu_ns()?.saturating_sub(own) })
}

/// Starts a command that ends with the benchmark, with pipes.
fn with_pipes(command: &Command, dir: &Path, name: &str) -> Result<Process, String> {
    let mut command = guarded(command);
    command.current_dir(dir);
    adopt_with_pipes(command, name)
}

fn adopt_with_pipes(mut command: Command, name: &str) -> Result<Process, String> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = pipes.spawn().map_err(|error| format!("cannot start the {name}: {error}"))?;
    Ok(Process::adopt(name, child))
}

/// Which process wrote a line.
fn number_of_process(line: &Value) -> Result<u32, String> {
    let pid = line["pid"].as_u64().and_then(|pid| pid.try_into().ok());
    pid.ok_or_else(|| format!("a load program printed {line}"))
}

/// The JSON lines that a load program prints.
#[derive(Debug)]
pub(crate) struct Lines {
    stdout: BufReader<std::process::ChildStdout>,
    stderr: std::process::ChildStderr,
}

impl Lines {
    pub(crate) fn of(process: &mut Process) -> Result<Self, String> {
        let child = process.child();
        match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => Ok(Self { stdout: BufReader::new(stdout), stderr }),
            _ => Err("no pipe from the load program".to_owned()),
        }
    }

    /// The load programs limit every wait of theirs, so this one ends too.
    pub(crate) fn next(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        if let (Ok(1..), Ok(value)) = (read, serde_json::from_str(&line)) {
            return Ok(value);
        }
        let mut text = String::new();
        // Whatever could be read is what there is to say.
        let _ = self.stderr.read_to_string(&mut text);
        Err(format!("{line}{text}"))
    }
}
