//! Starts and controls the load client and the load server. These are either processes of `tacit
//! workload`, or programs that call a TLS library themselves and use the protocol of `tacit
//! workload`.
//!
//! ```text
//! bench                    load client (see crates/tacit/src/workload/steering.rs)
//!                          connects, warms up
//!      <- {"ready":true,"pid":P}
//! reads clocks
//!  sends a line ->
//!                          measures
//!      <- its report, one line of JSON
//! reads clocks
//!  closes the standard input of the load client ->
//!                          closes its connections, exits
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

/// How long proxies may finish their work before the next measurement.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// A server that does not answer a probe within this time has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The arguments of a load server that listens at this address.
pub(crate) fn server_words(address: SocketAddr) -> Vec<String> {
    let address = address.to_string();
    let words = ["workload", "interactive", "server", "--json", "--listen", &address];
    words.map(str::to_owned).to_vec()
}

/// The arguments of a load client that opens and closes this many connections one after the other.
pub(crate) fn probe_words(count: usize) -> Vec<String> {
    let count = count.to_string();
    let words = ["connect", "client", "--connections", &count, "--at-once", "1", "--warm-up", "0"];
    words.map(str::to_owned).to_vec()
}

/// Opens a connection, exchanges one byte in each direction in clear, and closes it.
pub(crate) fn probe(address: SocketAddr) -> Result<(), String> {
    let once = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        let mut first =
            WorkloadRequest::Exchange { request_bytes: 1, reply_bytes: 1 }.encode().to_vec();
        first.resize(HEADER_BYTES + 1, 0);
        stream.write_all(&first)?;
        stream.read_exact(&mut [0])
    };
    once().map_err(|error| format!("cannot exchange a byte with {address}: {error}"))
}

/// CPU time of a load program, and of the other processes that were started with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuNs {
    /// The load program.
    pub(crate) own: u64,
    /// The processes around it, such as `tacit run`.
    pub(crate) around: u64,
}

/// A load server.
#[derive(Debug)]
pub(crate) struct LoadServer {
    pub(crate) address: SocketAddr,
    /// The started process: the load server or the program that runs it.
    pub(crate) process: Process,
    /// The process id of the load server.
    pid: u32,
}

impl LoadServer {
    /// Starts `tacit workload` as a load server.
    pub(crate) fn start(
        tacit: impl AsRef<OsStr>,
        address: SocketAddr,
        dir: &Path,
    ) -> Result<Self, String> {
        let mut command = Command::new(tacit);
        command.args(server_words(address));
        Self::adopt(&command, dir)
    }

    /// Starts a command that runs a load server.
    pub(crate) fn adopt(command: &Command, dir: &Path) -> Result<Self, String> {
        let mut process = with_pipes(command, dir, "load server")?;
        let line = Lines::of(&mut process)?.next()?;
        let address = line["listening"]
            .as_str()
            .and_then(|address| address.parse().ok())
            .ok_or_else(|| format!("unexpected output of the load server: {line}"))?;
        Ok(Self { address, pid: number_of_process(&line)?, process })
    }

    /// CPU time so far.
    pub(crate) fn cpu_ns(&self) -> Result<CpuNs, String> {
        apart(&self.process, self.pid)
    }

    /// Resident memory of the processes around the load server.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        self.process.resident_bytes(Some(self.pid))
    }
}

/// A load client that has connected, warmed up, and waits.
#[derive(Debug)]
pub(crate) struct LoadClient {
    process: Process,
    lines: Lines,
    steering: Option<std::process::ChildStdin>,
    pid: u32,
}

impl LoadClient {
    /// Starts a load client, and returns when it is ready. All other processes that it was started
    /// with by then count as the processes around it.
    pub(crate) fn start(command: Command) -> Result<Self, String> {
        let mut process = adopt_with_pipes(command, "load client")?;
        let mut lines = Lines::of(&mut process)?;
        let steering = process.child().stdin.take();
        let pid = number_of_process(&lines.next()?)?;
        process.count_descendants()?;
        Ok(Self { process, lines, steering, pid })
    }

    /// Sends a line, and returns the line of the answer.
    pub(crate) fn go(&mut self) -> Result<Value, String> {
        self.begin()?;
        self.lines.next()
    }

    /// Sends a line.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        let steering =
            self.steering.as_mut().ok_or("the load client has no pipe for its standard input")?;
        writeln!(steering, "go")
            .map_err(|error| format!("cannot write to the load client: {error}"))
    }

    /// CPU time so far.
    pub(crate) fn cpu_ns(&self) -> Result<CpuNs, String> {
        apart(&self.process, self.pid)
    }

    /// Resident memory of the processes around it.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        self.process.resident_bytes(Some(self.pid))
    }

    /// Lets the load client and its processes end.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.steering.take());
        // Closes the output first, so that the client cannot block on it.
        drop(self.lines);
        self.process
            .child()
            .wait()
            .map_err(|error| format!("cannot wait for the load client: {error}"))?;
        thread::sleep(SETTLE_TIME);
        Ok(())
    }
}

/// The CPU time of `pid`, and of the other processes.
fn apart(process: &Process, pid: u32) -> Result<CpuNs, String> {
    let own = cpu::process_ns(pid)
        .map_err(|error| format!("a load program ended unexpectedly: {error}"))?;
    Ok(CpuNs { own, around: process.cpu_ns()?.saturating_sub(own) })
}

/// Starts a command with pipes; it ends with the benchmark.
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

/// The process id in a line of a load program.
fn number_of_process(line: &Value) -> Result<u32, String> {
    let pid = line["pid"].as_u64().and_then(|pid| pid.try_into().ok());
    pid.ok_or_else(|| format!("unexpected output of a load program: {line}"))
}

/// The lines of JSON that a load program prints.
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
            _ => Err("the load program has no pipes for its output".to_owned()),
        }
    }

    /// Reads the next line. The load programs have timeouts, so this ends.
    pub(crate) fn next(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        if let (Ok(1..), Ok(value)) = (read, serde_json::from_str(&line)) {
            return Ok(value);
        }
        let mut text = String::new();
        // The error message is all output that could be read.
        let _ = self.stderr.read_to_string(&mut text);
        Err(format!("{line}{text}"))
    }
}
