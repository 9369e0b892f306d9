//! Measures one sample of a benchmark. Reads the CPU clocks, lets the load client send traffic
//! through one of the compared proxies, and reads the CPU clocks again.

use std::time::Duration;

use tacit_sys::cpu;

use crate::load::{CpuNs, LoadClient, LoadServer};
use crate::peers::{Far, Running, Setting};
use crate::process::Process;
use crate::workload::{Length, Workload};

/// The names of the four processes, in the order that bytes pass them.
pub(crate) const PARTS: [&str; 4] = ["client app", "client proxy", "server proxy", "server app"];

/// A sample is disturbed if the machine used so much more CPU time than the four processes.
const FOREIGN_PERCENT_MAX: u64 = 12;
/// How long concurrent streams run before the workload starts.
const BESIDE_START_TIME: Duration = Duration::from_millis(1500);

/// The measurements of one sample.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) peer: &'static str,
    pub(crate) workload: &'static Workload,
    /// Operations, connections or MB.
    pub(crate) units: f64,
    pub(crate) seconds: f64,
    pub(crate) latency: Latency,
    /// CPU time of [`PARTS`].
    pub(crate) cpu_ns: [u64; 4],
    /// CPU time of the whole machine, in steps of 10 ms.
    pub(crate) machine_ns: u64,
}

/// The duration of operations in microseconds; NaN if it is not measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Sample {
    /// CPU time of each process per unit, in microseconds.
    pub(crate) fn parts_us(&self) -> [f64; 4] {
        self.cpu_ns.map(|ns| ns as f64 / 1000.0 / self.units)
    }

    /// CPU time of all processes per unit, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.parts_us().iter().sum()
    }

    /// Units per second.
    pub(crate) fn rate(&self) -> f64 {
        self.units / self.seconds
    }

    /// Whether other programs used the machine: by more than 12 percent of the four processes' CPU
    /// time, and by more than three clock steps. Such a sample is dropped.
    pub(crate) fn is_disturbed(&self) -> bool {
        let own: u64 = self.cpu_ns.iter().sum();
        let allowed = (own / 100 * FOREIGN_PERCENT_MAX).max(3 * cpu::MACHINE_STEP_NS);
        self.machine_ns.saturating_sub(own) > allowed
    }
}

/// Takes one sample.
pub(crate) fn sample(
    peer: &Running,
    shared: &LoadServer,
    workload: &'static Workload,
    setting: &Setting<'_>,
    length: Length,
) -> Result<Sample, String> {
    take(peer, shared, workload, setting, length).map_err(|error| {
        let logs: Vec<_> = peer.proxies.iter().flatten().map(Process::log_tail).collect();
        format!("{}, {}: {error}\n{}", peer.peer.name, workload.name, logs.join("\n"))
    })
}

fn take(
    peer: &Running,
    shared: &LoadServer,
    workload: &'static Workload,
    setting: &Setting<'_>,
    length: Length,
) -> Result<Sample, String> {
    let start =
        |words: &[String]| LoadClient::start(peer.client_command(setting, words, peer.entry));
    let beside = workload.words_beside().map(|words| stream_beside(start(&words)?)).transpose()?;
    let mut client = start(&workload.words(length))?;
    let clocks = |client: &LoadClient| -> Result<[u64; 4], String> {
        let mut near = client.cpu_ns()?;
        if let Some(beside) = &beside {
            let CpuNs { own, around } = beside.cpu_ns()?;
            near.own += own;
            near.around += around;
        }
        let far = match &peer.far {
            Far::Shared => shared.cpu_ns()?,
            Far::Own(server) | Far::Run(server) => server.cpu_ns()?,
        };
        Ok(match &peer.proxies {
            Some([client, server]) => [near.own, client.cpu_ns()?, server.cpu_ns()?, far.own],
            None if peer.client_is_run() => [near.own, near.around, far.around, far.own],
            None => [near.own, 0, 0, far.own],
        })
    };
    let machine_before = machine_ns()?;
    let before = clocks(&client)?;
    let result = client.go()?;
    let after = clocks(&client)?;
    let machine_ns = machine_ns()?.saturating_sub(machine_before);
    client.end()?;
    beside.map_or(Ok(()), LoadClient::end)?;

    let figures = &result["figures"];
    let number = |key: &str| {
        figures[key]
            .as_f64()
            .ok_or_else(|| format!("unexpected report of the load client: {result}"))
    };
    let us = |key: &str| figures[key].as_f64().unwrap_or(f64::NAN);
    let cpu_ns = std::array::from_fn(|part| after[part].saturating_sub(before[part]));
    if peer.proxies.is_some() || peer.client_is_run() {
        plausible(&cpu_ns)?;
    }
    Ok(Sample {
        peer: peer.peer.name,
        workload,
        units: number(workload.kind.figure())?,
        seconds: number("seconds")?,
        latency: Latency { p50_us: us("latency_p50_us"), p99_us: us("latency_p99_us") },
        cpu_ns,
        machine_ns,
    })
}

/// Starts streams, and returns when they have reached a steady rate.
fn stream_beside(mut client: LoadClient) -> Result<LoadClient, String> {
    client.begin()?;
    std::thread::sleep(BESIDE_START_TIME);
    Ok(client)
}

/// Checks the CPU times. A proxy handles and encrypts all bytes of its program, so one that uses
/// almost no CPU time works in a process that is not counted.
fn plausible(cpu_ns: &[u64; 4]) -> Result<(), String> {
    let [client_app, client_proxy, server_proxy, server_app] = cpu_ns;
    if *client_proxy < client_app / 4 || *server_proxy < server_app / 4 {
        return Err(format!(
            "the two proxies used almost no CPU time ({client_proxy} ns and {server_proxy} ns; the \
             client and the server used {client_app} ns and {server_app} ns), so the benchmark did \
             not count all processes of the proxies"
        ));
    }
    Ok(())
}

/// CPU time of the whole machine.
fn machine_ns() -> Result<u64, String> {
    cpu::machine_ns().map_err(|error| format!("cannot read /proc/stat: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WORKLOADS;

    #[test]
    fn a_proxy_that_works_in_an_uncounted_process_is_detected() {
        assert!(plausible(&[8_600, 18_600, 18_700, 9_500]).is_ok());
        assert!(plausible(&[8_600, 3, 18_700, 9_500]).is_err());
        assert!(plausible(&[8_600, 18_600, 0, 9_500]).is_err());
    }

    #[test]
    fn samples_are_per_unit_and_disturbed_ones_are_detected() {
        let mut sample = Sample {
            peer: "direct",
            workload: &WORKLOADS[0],
            units: 1000.0,
            seconds: 0.5,
            latency: Latency { p50_us: 1.0, p99_us: 2.0 },
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
