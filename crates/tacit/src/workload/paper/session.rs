//! Measures a program that uses one network path: the rate of the program, and the CPU time of all
//! processes of the path.
//!
//! The program prints a line when it is ready, waits for a line on its standard input, prints its
//! result as one line of JSON, and waits for another line. During the second wait, all processes of
//! the path still run, so that their CPU clocks can be read. `tacit workload client --steered`
//! prints and reads these lines itself. For other programs, a shell script does so.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout};
use std::time::Duration;

use serde_json::Value;
use tacit_sys::cpu;
use tacit_sys::process::descendants;

use super::cell::Gap;
use super::stage::{Stage, StagedProcess};

/// How long processes may still work for a transfer after its end.
const SETTLE: Duration = Duration::from_millis(100);

/// A program that waits for its commands.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) process: StagedProcess,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// The result of a session.
#[derive(Debug)]
pub(super) struct SessionResult {
    pub(super) report: Value,
    pub(super) cpu_s: f64,
}

impl Session {
    pub(super) fn start(stage: &Stage, name: &str, words: &[&str]) -> Result<Self, Gap> {
        let mut process = stage.start_with_pipes(name, words)?;
        let pipes = process.child.stdin.take().zip(process.child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| Gap::failed(format!("{name} has no pipes")))?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// Waits until the program is ready.
    pub(super) fn ready(&mut self) -> Result<(), Gap> {
        self.line().map(|_| ())
    }

    /// Lets the program work, and reads the CPU clocks of these processes, with their descendants,
    /// before and after.
    pub(super) fn measure(&mut self, others: &[u32]) -> Result<SessionResult, Gap> {
        let roots: Vec<u32> = others.iter().copied().chain([self.process.id()]).collect();
        let before = cpu_ns(&roots);
        self.write("go")?;
        let line = self.line()?;
        std::thread::sleep(SETTLE);
        let cpu_ns = cpu_ns(&roots).saturating_sub(before);
        let report = serde_json::from_str(&line).map_err(|error| {
            Gap::failed(format!("unexpected result `{}`: {error}", line.trim()))
        })?;
        Ok(SessionResult { report, cpu_s: cpu_ns as f64 / 1e9 })
    }

    /// Lets the program end.
    pub(super) fn end(mut self) {
        // A program that has ended already is ended.
        let _ = self.write("end");
        drop(self.input);
        self.process.finish();
    }

    /// Writes a line to the program.
    pub(super) fn write(&mut self, word: &str) -> Result<(), Gap> {
        let written = writeln!(self.input, "{word}").and_then(|()| self.input.flush());
        written.map_err(|_| self.ended())
    }

    fn line(&mut self) -> Result<String, Gap> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(bytes) if bytes > 0 => Ok(line),
            _ => Err(self.ended()),
        }
    }

    fn ended(&self) -> Gap {
        Gap::failed(format!("the measured program ended: {}", self.process.log_end()))
    }
}

/// The CPU time of processes and their descendants, including those that have ended.
fn cpu_ns(roots: &[u32]) -> u64 {
    let families = roots
        .iter()
        .flat_map(|root| descendants(*root).unwrap_or_default().into_iter().chain([*root]));
    // A process that ends meanwhile is counted by its parent.
    let of = |pid| cpu::process_ns(pid).unwrap_or(0) + cpu::waited_for_ns(pid).unwrap_or(0);
    families.map(of).sum()
}
