//! One sample: one load client against one peer, with the clocks read around it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tacit_sys::cpu;

use super::load::{Kind, Workload};
use super::peers::Running;
use super::process::{Process, guarded};

/// Names of the four processes, in the order of the bytes.
pub(crate) const PARTS: [&str; 4] = ["client app", "client proxy", "server proxy", "server app"];

/// How long proxies may tidy up after connections before somebody else is measured.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// What was seen once.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) peer: &'static str,
    pub(crate) workload: &'static Workload,
    /// Operations, connects or MB.
    pub(crate) units: f64,
    pub(crate) seconds: f64,
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

    /// Whether something else used the machine: more than an eighth of what the four did, and
    /// more than three steps of the clock.
    pub(crate) fn disturbed(&self) -> bool {
        let own: u64 = self.cpu_ns.iter().sum();
        self.machine_ns.saturating_sub(own) > (own / 8).max(3 * cpu::MACHINE_STEP_NS)
    }
}

/// The load server, one for all peers.
#[derive(Debug)]
pub(crate) struct LoadServer {
    pub(crate) address: SocketAddr,
    pub(super) process: Process,
}

impl LoadServer {
    pub(crate) fn start(address: IpAddr, dir: &Path) -> Result<Self, String> {
        let mut process = this_program(&["bench-server", &address.to_string()], dir)?;
        let line = Lines::of(&mut process)?.next()?;
        let address = line["listening"].as_str().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| format!("the load server says {line}"))?;
        Ok(Self { address, process })
    }
}

/// Takes one sample.
pub(crate) fn sample(
    peer: &Running,
    server: &LoadServer,
    workload: &'static Workload,
) -> Result<Sample, String> {
    take(peer, server, workload).map_err(|error| {
        let logs = peer.proxies.iter().flatten().map(Process::log_tail);
        let logs: Vec<_> = logs.collect();
        format!("{}, {}: {error}\n{}", peer.peer.name, workload.name, logs.join("\n"))
    })
}

fn take(
    peer: &Running,
    server: &LoadServer,
    workload: &'static Workload,
) -> Result<Sample, String> {
    let entry = peer.entry.to_string();
    let mut client = this_program(&["bench-client", &entry, workload.name], Path::new("."))?;
    let mut lines = Lines::of(&mut client)?;
    let mut steering = client.child().stdin.take().ok_or("no pipe to the load client")?;

    lines.next()?;
    let clocks = || -> Result<[u64; 4], String> {
        let proxies = match &peer.proxies {
            Some([client, server]) => [client.cpu_ns()?, server.cpu_ns()?],
            None => [0, 0],
        };
        Ok([client.cpu_ns()?, proxies[0], proxies[1], server.process.cpu_ns()?])
    };
    let machine_before = machine_ns()?;
    let before = clocks()?;
    writeln!(steering, "go").map_err(|error| format!("load client: {error}"))?;
    let result = lines.next()?;
    let after = clocks()?;
    let machine_ns = machine_ns()?.saturating_sub(machine_before);

    drop(steering);
    client.child().wait().map_err(|error| format!("load client: {error}"))?;
    thread::sleep(SETTLE_TIME);
    let number = |key: &str| result[key].as_f64().ok_or_else(|| format!("load client: {result}"));
    let scale = if matches!(workload.kind, Kind::Stream { .. }) { 1e-6 } else { 1.0 };
    let cpu_ns = std::array::from_fn(|part| after[part].saturating_sub(before[part]));
    if peer.proxies.is_some() {
        plausible(&cpu_ns)?;
    }
    Ok(Sample {
        peer: peer.peer.name,
        workload,
        units: number("done")? * scale,
        seconds: number("seconds")?,
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

/// Starts this very program under another verb, with pipes.
fn this_program(words: &[&str], dir: &Path) -> Result<Process, String> {
    let start = || {
        guarded(Command::new(std::env::current_exe()?).args(words))
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let child = start().map_err(|error| format!("cannot start {}: {error}", words[0]))?;
    Ok(Process::adopt(words[0], child))
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
    use crate::bench::load::WORKLOADS;

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
            cpu_ns: [100_000_000, 200_000_000, 300_000_000, 400_000_000],
            machine_ns: 1_100_000_000,
        };
        assert_eq!(sample.cpu_us(), 1000.0);
        assert_eq!(sample.parts_us()[1], 200.0);
        assert_eq!(sample.rate(), 2000.0);
        assert!(!sample.disturbed());
        sample.machine_ns = 1_130_000_000;
        assert!(sample.disturbed());
    }
}
