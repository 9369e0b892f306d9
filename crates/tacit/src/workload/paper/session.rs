//! Measures a program, together with the processes that relay its bytes. The results are the rate
//! of the program, and the CPU time of all these processes.
//!
//! The program prints a line when it is ready, and waits for a line on its standard input. After
//! this line, the program does its work, and prints its result as one line of JSON. It then waits
//! for another line. During the second wait, all processes still run, so that their CPU clocks can
//! be read. `tacit workload client --steered` prints and reads these lines itself. For other
//! programs, a shell script prints and reads the lines.
//!
//! If a program prints no line in time, this module ends the program and all its descendants. The
//! program also runs under the command `timeout`, but `timeout` ends only its own process group.
//! Other descendants, such as the processes of pasta, would keep the output pipe of the program
//! open.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    /// How long the program may take for a line.
    line_time_max: Duration,
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
        let (input, output) = pipes
            .ok_or_else(|| Gap::failed(format!("{name} has no pipes for input and output")))?;
        let line_time_max = stage.extent.time_max();
        Ok(Self { process, input, output: BufReader::new(output), line_time_max })
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
            Gap::failed(format!(
                "the output of the measured program is not JSON: `{}`: {error}",
                line.trim()
            ))
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
        match read_line(&mut self.output, Instant::now() + self.line_time_max) {
            Ok(Some(line)) => Ok(line),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let seconds = self.line_time_max.as_secs();
                let name = self.process.name();
                Err(Gap::failed(format!("{name} printed no line within {seconds} seconds")))
            }
            _ => Err(self.ended()),
        }
    }

    fn ended(&self) -> Gap {
        let output = self.process.log_end();
        Gap::failed(format!("the measured program ended before the measurement ended: {output}"))
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

/// Reads a line; `None`: the output has ended.
fn read_line<R: Read + AsFd>(
    output: &mut BufReader<R>,
    end: Instant,
) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if output.buffer().is_empty() {
            wait_for_data(output.get_ref(), end)?;
        }
        let found = output.fill_buf()?;
        if found.is_empty() {
            return Ok(None);
        }
        let bytes = found.iter().position(|byte| *byte == b'\n').map_or(found.len(), |at| at + 1);
        line.extend_from_slice(&found[..bytes]);
        output.consume(bytes);
    }
    String::from_utf8(line).map(Some).map_err(io::Error::other)
}

fn wait_for_data(output: &impl AsFd, end: Instant) -> io::Result<()> {
    let left = end.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&left))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_come_in_time_is_an_error_while_the_pipe_is_open() {
        let (output, mut input) = io::pipe().unwrap();
        let mut output = BufReader::new(output);
        let soon = || Instant::now() + Duration::from_millis(20);
        input.write_all(b"first\nsecond\npart").unwrap();
        assert_eq!(read_line(&mut output, soon()).unwrap().as_deref(), Some("first\n"));
        assert_eq!(read_line(&mut output, soon()).unwrap().as_deref(), Some("second\n"));
        let error = read_line(&mut output, soon()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(input);
        assert_eq!(read_line(&mut output, soon()).unwrap(), None);
    }
}
