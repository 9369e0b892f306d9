//! One sample: one load client against one peer, with the clocks read around it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tacit_sys::cpu;

use super::load::Workload;
use super::peers::{Far, Running, Setting};
use super::process::{Process, guarded};

/// Names of the four processes, in the order of the bytes.
pub(crate) const PARTS: [&str; 4] = ["client app", "client proxy", "server proxy", "server app"];

/// How long proxies may tidy up after connections before somebody else is measured.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// A machine that did so much more than the four processes was disturbed: 12 percent.
const FOREIGN_PERCENT_MAX: u64 = 12;

/// What was seen once.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) peer: &'static str,
    pub(crate) workload: &'static Workload,
    /// Operations, connects or MB.
    pub(crate) units: f64,
    pub(crate) seconds: f64,
    /// How long an operation took, the middle one and the 99th of 100, in microseconds.
    pub(crate) latency_us: [f64; 2],
    /// CPU time of [`PARTS`].
    pub(crate) cpu_ns: [u64; 4],
    /// CPU time of the whole machine meanwhile, in the kernel's steps of 10 ms.
    pub(crate) machine_ns: u64,
}

impl Sample {
    /// CPU time of each part for one unit of work, in microseconds.
    pub(crate) fn parts_us(&self) -> [f64; 4] {
        self.cpu_ns.map(|ns| ns as f64 / 1000.0 / self.units)
    }

    /// CPU time of all parts for one unit of work, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.parts_us().iter().sum()
    }

    /// Units of work in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.units / self.seconds
    }

    /// Whether something else used the machine: more than 12 percent of what the four did, and
    /// more than three steps of the clock. Such a sample is dropped.
    pub(crate) fn is_disturbed(&self) -> bool {
        let own: u64 = self.cpu_ns.iter().sum();
        let allowed = (own / 100 * FOREIGN_PERCENT_MAX).max(3 * cpu::MACHINE_STEP_NS);
        self.machine_ns.saturating_sub(own) > allowed
    }
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
    /// Starts a plain one.
    pub(crate) fn start(address: SocketAddr, dir: &Path) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
        let mut command = Command::new(own);
        command.args(["bench-server", &address.to_string()]);
        Self::adopt(&command, dir)
    }

    /// Starts what this command is: in the end a load server, whatever stands before.
    pub(crate) fn adopt(command: &Command, dir: &Path) -> Result<Self, String> {
        let mut process = with_pipes(command, dir, "load server")?;
        let line = Lines::of(&mut process)?.next()?;
        let address = line["listening"].as_str().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| format!("the load server says {line}"))?;
        Ok(Self { address, pid: number_of_process(&line)?, process })
    }

    /// CPU time of what is around the load server, and its own.
    pub(crate) fn cpu_ns(&self) -> Result<[u64; 2], String> {
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
    /// Starts one, and returns when it has said that it is ready.
    pub(crate) fn start(
        peer: &Running,
        setting: &Setting<'_>,
        verb: &str,
        words: &[&str],
    ) -> Result<Self, String> {
        let entry = peer.entry.to_string();
        let command = peer.client_command(setting, verb, &[&[entry.as_str()], words].concat());
        let mut process = adopt_with_pipes(command, "load client")?;
        let mut lines = Lines::of(&mut process)?;
        let steering = process.child().stdin.take();
        let pid = number_of_process(&lines.next()?)?;
        if peer.client_is_run() {
            process.count_descendants()?;
        }
        Ok(Self { process, lines, steering, pid })
    }

    /// Tells it to go on, and returns what it says then.
    pub(crate) fn go(&mut self) -> Result<Value, String> {
        let steering = self.steering.as_mut().ok_or("no pipe to the load client")?;
        writeln!(steering, "go").map_err(|error| format!("load client: {error}"))?;
        self.lines.next()
    }

    /// CPU time of what is around it, and its own.
    pub(crate) fn cpu_ns(&self) -> Result<[u64; 2], String> {
        apart(&self.process, self.pid)
    }

    /// Resident memory of what is around it.
    pub(crate) fn resident_bytes(&self) -> Result<u64, String> {
        self.process.resident_bytes(Some(self.pid))
    }

    /// Lets it end, and everything that ends with it.
    pub(crate) fn end(mut self) -> Result<(), String> {
        drop(self.steering.take());
        self.process.child().wait().map_err(|error| format!("load client: {error}"))?;
        thread::sleep(SETTLE_TIME);
        Ok(())
    }
}

/// The CPU time of all processes but `pid`, and of that one.
fn apart(process: &Process, pid: u32) -> Result<[u64; 2], String> {
    let own = cpu::process_ns(pid).map_err(|error| format!("a load program has ended: {error}"))?;
    Ok([process.cpu_ns()?.saturating_sub(own), own])
}

/// Takes one sample.
pub(crate) fn sample(
    peer: &Running,
    shared: &LoadServer,
    workload: &'static Workload,
    setting: &Setting<'_>,
    is_quick: bool,
) -> Result<Sample, String> {
    take(peer, shared, workload, setting, is_quick).map_err(|error| {
        let logs = peer.proxies.iter().flatten().map(Process::log_tail);
        let logs: Vec<_> = logs.collect();
        format!("{}, {}: {error}\n{}", peer.peer.name, workload.name, logs.join("\n"))
    })
}

fn take(
    peer: &Running,
    shared: &LoadServer,
    workload: &'static Workload,
    setting: &Setting<'_>,
    is_quick: bool,
) -> Result<Sample, String> {
    let words = [workload.name, if is_quick { "quick" } else { "whole" }];
    let mut client = LoadClient::start(peer, setting, "client", &words)?;
    let clocks = |client: &LoadClient| -> Result<[u64; 4], String> {
        let [around_client, own_client] = client.cpu_ns()?;
        let (around_server, own_server) = match &peer.far {
            Far::Shared => (0, shared.cpu_ns()?[1]),
            Far::Own(server) => (0, server.cpu_ns()?[1]),
            Far::Run(server) => {
                let [around, own] = server.cpu_ns()?;
                (around, own)
            }
        };
        let proxies = match &peer.proxies {
            Some([client, server]) => [client.cpu_ns()?, server.cpu_ns()?],
            None if peer.client_is_run() => [around_client, around_server],
            None => [0, 0],
        };
        Ok([own_client, proxies[0], proxies[1], own_server])
    };
    let machine_before = machine_ns()?;
    let before = clocks(&client)?;
    let result = client.go()?;
    let after = clocks(&client)?;
    let machine_ns = machine_ns()?.saturating_sub(machine_before);
    client.end()?;

    let number = |key: &str| result[key].as_f64().ok_or_else(|| format!("load client: {result}"));
    let cpu_ns = std::array::from_fn(|part| after[part].saturating_sub(before[part]));
    if peer.proxies.is_some() || peer.client_is_run() {
        plausible(&cpu_ns)?;
    }
    Ok(Sample {
        peer: peer.peer.name,
        workload,
        units: workload.kind.units(number("done")?),
        seconds: number("seconds")?,
        latency_us: [number("p50_us")?, number("p99_us")?],
        cpu_ns,
        machine_ns,
    })
}

/// A proxy receives and sends all that its program sends or receives, and encrypts it. One that
/// seems to need a fraction of that program's time works in a process that is not counted.
fn plausible(cpu_ns: &[u64; 4]) -> Result<(), String> {
    let [client_app, client_proxy, server_proxy, server_app] = cpu_ns;
    if *client_proxy < client_app / 4 || *server_proxy < server_app / 4 {
        return Err(format!(
            "a proxy used next to no CPU time ({client_proxy} ns and {server_proxy} ns, beside \
             {client_app} ns and {server_app} ns of the programs): not all its processes are \
             counted"
        ));
    }
    Ok(())
}

/// Starts a command that ends with the benchmark, with pipes.
pub(super) fn with_pipes(command: &Command, dir: &Path, name: &str) -> Result<Process, String> {
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
    pid.ok_or_else(|| format!("a load program says {line}"))
}

/// The JSON lines that a load program prints.
#[derive(Debug)]
pub(super) struct Lines {
    stdout: BufReader<std::process::ChildStdout>,
    stderr: std::process::ChildStderr,
}

impl Lines {
    pub(super) fn of(process: &mut Process) -> Result<Self, String> {
        let child = process.child();
        match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => Ok(Self { stdout: BufReader::new(stdout), stderr }),
            _ => Err("no pipe from the load program".to_owned()),
        }
    }

    /// The load programs limit every wait of theirs, so this one ends too.
    pub(super) fn next(&mut self) -> Result<Value, String> {
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

/// What the machine's clock says, or why it says nothing.
fn machine_ns() -> Result<u64, String> {
    cpu::machine_ns().map_err(|error| format!("/proc/stat: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::WORKLOADS;

    #[test]
    fn a_proxy_that_works_elsewhere_is_noticed() {
        assert!(plausible(&[8_600, 18_600, 18_700, 9_500]).is_ok());
        assert!(plausible(&[8_600, 3, 18_700, 9_500]).is_err());
        assert!(plausible(&[8_600, 18_600, 0, 9_500]).is_err());
    }

    #[test]
    fn a_sample_is_per_unit_and_knows_when_it_was_disturbed() {
        let mut sample = Sample {
            peer: "direct",
            workload: &WORKLOADS[0],
            units: 1000.0,
            seconds: 0.5,
            latency_us: [1.0, 2.0],
            cpu_ns: [100_000_000, 200_000_000, 300_000_000, 400_000_000],
            machine_ns: 1_120_000_000,
        };
        assert_eq!(sample.cpu_us(), 1000.0);
        assert_eq!(sample.parts_us()[1], 200.0);
        assert_eq!(sample.rate(), 2000.0);
        assert!(!sample.is_disturbed());
        sample.machine_ns = 1_120_000_001;
        assert!(sample.is_disturbed());
    }
}
