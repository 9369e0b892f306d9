//! Formats `tacit show cpus` as JSON and as tables.

use serde::Serialize;

use super::sample::{CpuSample, Sample, WaitSource};
use crate::control::display::VERSION;
use crate::control::display::cpus::{CpuRun, CpuUsers};
use crate::control::render::Table;
use crate::control::render::table::{Column, list, optional, table};
use crate::control::render::width::TextWidth;
use crate::engine::{ThreadPurpose, ThreadState};

/// The CPUs of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpusDisplay {
    /// The version of this format.
    pub version: u32,
    /// How long the kernel's counters were observed.
    pub interval_s: f64,
    /// The source of the delay; `None`: the kernel does not count it.
    pub delay_source: Option<WaitSource>,
    /// Each CPU.
    pub cpus: Vec<CpuDisplay>,
    /// Instructions and suites.
    #[serde(flatten)]
    pub crypto: CryptoDisplay,
}

/// One CPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuDisplay {
    /// Its number.
    pub cpu: usize,
    /// Whether it is online.
    pub online: bool,
    /// Whether the agent may use it.
    pub allowed: bool,
    /// The engine that has it.
    pub engine: Option<String>,
    /// The data workers that are bound to it. The kernel chooses the CPUs of other workers.
    pub workers: Vec<String>,
    /// The runs whose programs use it.
    pub runs: Vec<RunOnCpu>,
    /// The part of the interval that it was busy, in percent.
    pub utilisation_percent: Option<f64>,
    /// The time that threads which were ready to run waited for it, in percent of the interval;
    /// over 100 if several waited.
    pub delay_percent: Option<f64>,
}

/// A run on a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunOnCpu {
    /// The number of the run.
    pub id: u64,
    /// The name of the run.
    pub name: String,
    /// Connections whose program was on this CPU when it sent last.
    pub connections: usize,
    /// Whether the policy placed the run on this CPU.
    pub placed: bool,
}

/// The cryptographic instructions and speeds of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CryptoDisplay {
    /// The instructions for AES and SHA that CPUs of this architecture can have.
    pub instructions: Vec<InstructionDisplay>,
    /// The speed of each suite.
    pub suites: Vec<SuiteDisplay>,
}

/// An instruction set extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InstructionDisplay {
    /// Its name in `/proc/cpuinfo`.
    pub name: String,
    /// The purpose of the instruction.
    pub purpose: String,
    /// Whether every CPU has it.
    pub present: bool,
    /// Whether the TLS library uses it.
    pub used: bool,
}

/// The speed of a suite on one CPU, in records of 16 KiB. A MB is 10^6 bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SuiteDisplay {
    /// Its IANA name.
    pub suite: String,
    /// Encrypting.
    pub seal_mb_per_s: f64,
    /// Decrypting.
    pub open_mb_per_s: f64,
}

impl CpusDisplay {
    /// The CPUs of a sample with their users.
    pub(super) fn new(users: &CpuUsers, sample: &Sample, crypto: CryptoDisplay) -> Self {
        let interval_s = sample.interval.as_secs_f64();
        let cpus = sample.cpus.iter().map(|cpu| CpuDisplay::new(cpu, users, interval_s));
        Self {
            version: VERSION,
            interval_s,
            delay_source: sample.wait_source,
            cpus: cpus.collect(),
            crypto,
        }
    }
}

impl CpuDisplay {
    fn new(sample: &CpuSample, users: &CpuUsers, interval_s: f64) -> Self {
        let cpu = sample.cpu;
        let bound = |kind| {
            let on_cpu = move |one: &&ThreadState| one.cpu == Some(cpu) && one.kind == kind;
            users.threads.iter().filter(on_cpu).map(|one| one.thread.clone())
        };
        let runs = users.runs.iter().filter(|run| run.cpu == cpu);
        let delay = sample.waited.map(|waited| waited.as_secs_f64() / interval_s);
        Self {
            cpu,
            online: sample.is_online,
            allowed: users.allowed.contains(&cpu),
            engine: bound(ThreadPurpose::Engine).next(),
            workers: bound(ThreadPurpose::Worker).collect(),
            runs: runs.map(RunOnCpu::of).collect(),
            utilisation_percent: sample.utilisation.map(percent),
            delay_percent: delay.filter(|_| sample.is_online).map(percent),
        }
    }
}

impl RunOnCpu {
    fn of(run: &CpuRun) -> Self {
        let CpuRun { cpu: _, id, name, connections, placed } = run.clone();
        Self { id, name, connections, placed }
    }
}

/// A fraction in percent, rounded to tenths: the kernel's counters are not more accurate.
fn percent(part: f64) -> f64 {
    (part * 1000.0).round() / 10.0
}

impl Table for CpusDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<CpuDisplay>; 8] = [
            ("CPU", |one| one.cpu.to_string()),
            ("ONLINE", |one| yes_or_no(one.online)),
            ("AGENT", |one| yes_or_no(one.allowed)),
            ("ENGINE", |one| optional(one.engine.as_ref())),
            ("WORKERS", |one| list(&one.workers)),
            ("RUNS", runs),
            ("BUSY%", |one| optional(one.utilisation_percent)),
            ("DELAY%", |one| optional(one.delay_percent)),
        ];
        let cpus = table(&self.cpus, &COLUMNS, width);
        let delay = match self.delay_source {
            Some(WaitSource::Cpus) => "",
            Some(WaitSource::Threads) => {
                "; DELAY% is the time in which threads of the agent waited for the CPU, in percent \
                 of the observed time"
            }
            None => "; this kernel does not measure how long threads wait for a CPU",
        };
        let interval = self.interval_s;
        let end = width.prose(&format!("(observed for {interval:.1} s{delay})\n\n"));
        format!("{cpus}{end}{}", self.crypto.text(width))
    }
}

impl Table for CryptoDisplay {
    fn text(&self, width: TextWidth) -> String {
        const INSTRUCTIONS: [Column<InstructionDisplay>; 4] = [
            ("INSTRUCTIONS", |one| one.name.clone()),
            ("FOR", |one| one.purpose.clone()),
            ("PRESENT", |one| yes_or_no(one.present)),
            ("USED", |one| yes_or_no(one.used)),
        ];
        const SUITES: [Column<SuiteDisplay>; 3] = [
            ("CIPHER-SUITE", |one| one.suite.clone()),
            ("ENCRYPT-MB/S", |one| one.seal_mb_per_s.to_string()),
            ("DECRYPT-MB/S", |one| one.open_mb_per_s.to_string()),
        ];
        let instructions = match self.instructions.as_slice() {
            [] => {
                "tacit cannot detect instructions for AES and SHA on this architecture\n".to_owned()
            }
            known => table(known, &INSTRUCTIONS, width),
        };
        format!("{instructions}\n{}", table(&self.suites, &SUITES, width))
    }
}

/// Runs with their connections.
fn runs(cpu: &CpuDisplay) -> String {
    let shown = cpu.runs.iter().map(|run| format!("{} ({})", run.name, run.connections));
    list(&shown.collect::<Vec<_>>())
}

#[expect(clippy::fn_params_excessive_bools, reason = "the function turns a bool into a word")]
fn yes_or_no(is_so: bool) -> String {
    if is_so { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn cpus_have_their_engine_and_the_runs_on_them() {
        let run = |cpu, id| CpuRun { cpu, id, name: "r".to_owned(), connections: 2, placed: false };
        let users = CpuUsers {
            version: VERSION,
            allowed: vec![0],
            threads: Vec::new(),
            runs: vec![run(0, 1), run(1, 2)],
        };
        let cpu = |cpu, is_online, waited| CpuSample {
            cpu,
            is_online,
            utilisation: is_online.then_some(0.25),
            waited,
        };
        let waited = Some(Duration::from_secs(3));
        let sample = Sample {
            interval: Duration::from_secs(2),
            cpus: vec![cpu(0, true, waited), cpu(1, false, waited)],
            wait_source: Some(WaitSource::Cpus),
        };
        let crypto = CryptoDisplay { instructions: Vec::new(), suites: Vec::new() };
        let shown = CpusDisplay::new(&users, &sample, crypto);
        let [first, second] = &shown.cpus[..] else { panic!("{shown:?}") };
        assert_eq!((first.utilisation_percent, first.delay_percent), (Some(25.0), Some(150.0)));
        assert_eq!((first.runs[0].id, second.runs[0].id), (1, 2));
        assert_eq!((second.allowed, second.delay_percent), (false, None));
        let text = shown.text(TextWidth::Whole);
        assert!(
            text.starts_with(
                "CPU  ONLINE  AGENT  ENGINE  WORKERS  RUNS   BUSY%  DELAY%\n\
             0    yes     yes    -       -        r (2)  25     150\n\
             1    no      no     -       -        r (2)  -      -\n\
             (observed for 2.0 s)\n"
            ),
            "{text}"
        );
    }
}
