//! Measures the cost of starting and ending a program with `tacit run`, pasta and other commands.
//! The program does nothing.
//!
//! Wall time is from the start of the command to its end. CPU time includes all processes that the
//! command has started. The benchmark waits until these processes have ended.

use std::fmt::{self, Display, Formatter};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tacit_core::statistics::median;
use tacit_sys::process::descendants;
use tacit_sys::{cpu, orphan, process};

use super::setup::RULES;
use super::transfer;
use crate::options::Options;
use crate::progress::Progress;
use crate::run_directory::RunDirectory;

/// Consecutive starts of one kind.
const STARTS: usize = 20;

/// How `true` is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartMethod {
    Alone,
    Unshare,
    TacitOne,
    TacitMany,
    Pasta,
    Slirp,
}

const METHODS: [StartMethod; 6] = [
    StartMethod::Alone,
    StartMethod::Unshare,
    StartMethod::TacitOne,
    StartMethod::TacitMany,
    StartMethod::Pasta,
    StartMethod::Slirp,
];

impl StartMethod {
    fn name(self) -> String {
        match self {
            Self::Alone => "true".to_owned(),
            Self::Unshare => "unshare -Un true".to_owned(),
            Self::TacitOne => "tacit run true, 1 rule".to_owned(),
            Self::TacitMany => format!("tacit run true, {RULES} rules"),
            Self::Pasta => "pasta true".to_owned(),
            Self::Slirp => "slirp4netns, and `true` in its namespace".to_owned(),
        }
    }

    fn command(self, directory: &RunDirectory) -> Command {
        let tacit = |policy| directory.ordinary("./tacit", &["run", "--policy", policy, "true"]);
        match self {
            Self::Alone => directory.ordinary("true", &[]),
            Self::Unshare => directory.ordinary("unshare", &["-Un", "true"]),
            Self::TacitOne => tacit("one.toml"),
            Self::TacitMany => tacit("many.toml"),
            Self::Pasta => directory.ordinary("pasta", &["-q", "-f", "--config-net", "--", "true"]),
            Self::Slirp => {
                directory.ordinary("unshare", &[&transfer::WAITING[..], &["true"]].concat())
            }
        }
    }

    /// Starts the program once, and waits until it has ended.
    fn go(self, directory: &RunDirectory) -> Result<(), String> {
        let mut command = self.command(directory);
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", self.name());
        let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
        if self != Self::Slirp {
            let status = quiet.stdout(Stdio::null()).status().map_err(failed)?;
            let ended = format!("{} failed: {status}", self.name());
            return if status.success() { Ok(()) } else { Err(ended) };
        }
        let pipes = quiet.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().map_err(failed)?;
        let (Some(mut steering), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("the program has no pipe for its standard input".to_owned());
        };
        BufReader::new(output).read_line(&mut String::new()).map_err(failed)?;
        let mut slirp = transfer::attach(directory, child.id())?;
        slirp.wait_ready()?;
        writeln!(steering, "go").map_err(failed)?;
        child.wait().map_err(failed)?;
        Ok(())
    }
}

/// One start.
#[derive(Debug)]
struct Sample {
    method: StartMethod,
    wall_ms: f64,
    cpu_ms: f64,
}

/// All starts.
#[derive(Debug)]
pub(super) struct Report(Vec<Sample>);

/// Measures each kind of start in turns. Each round begins with a different kind.
pub(super) fn measure(options: &Options, directory: &RunDirectory) -> Result<Report, String> {
    orphan::collect()
        .map_err(|error| format!("cannot become the subreaper of orphaned processes: {error}"))?;
    let mut samples = Vec::new();
    let mut progress = Progress::start(options.rounds * METHODS.len());
    for round in 0..options.rounds {
        for turn in 0..METHODS.len() {
            let method = METHODS[(turn + round) % METHODS.len()];
            let now = round + 1;
            let all = options.rounds;
            progress.step(&format!("round {now}/{all} {}", method.name()));
            for _ in 0..STARTS {
                samples.push(take(method, directory)?);
            }
        }
    }
    Ok(Report(samples))
}

fn take(method: StartMethod, directory: &RunDirectory) -> Result<Sample, String> {
    let clock = || {
        cpu::children_ns()
            .map_err(|error| format!("cannot read the CPU time of child processes: {error}"))
    };
    let before = clock()?;
    let start = Instant::now();
    method.go(directory)?;
    let wall_ms = start.elapsed().as_secs_f64() * 1000.0;
    for pid in
        descendants(std::process::id()).map_err(|error| format!("cannot read /proc: {error}"))?
    {
        // A process that is not a child of this one is counted by its parent.
        let _ = process::wait(pid);
    }
    let cpu_ms = (clock()? - before) as f64 / 1e6;
    Ok(Sample { method, wall_ms, cpu_ms })
}

impl Report {
    pub(super) fn json(&self) -> Value {
        let sample = |one: &Sample| {
            json!({
                "way": one.method.name(),
                "wall_ms": one.wall_ms,
                "cpu_ms": one.cpu_ms,
            })
        };
        self.0.iter().map(sample).collect()
    }

    fn sorted(&self, method: StartMethod, of: fn(&Sample) -> f64) -> Vec<f64> {
        let own = self.0.iter().filter(|sample| sample.method == method);
        let mut values: Vec<f64> = own.map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nTime in milliseconds to start `true` and wait for its end, and CPU time of all \
             processes involved\n(each row includes the start of setpriv, which changes to an \
             ordinary user)"
        )?;
        writeln!(f, "{:28} {:>8} {:>8} {:>8}", "", "wall", "minimum", "CPU")?;
        for method in METHODS {
            let walls = self.sorted(method, |one| one.wall_ms);
            let wall = median(&walls);
            let least = walls[0];
            let cpu = median(&self.sorted(method, |one| one.cpu_ms));
            writeln!(f, "{:28} {wall:>8.2} {least:>8.2} {cpu:>8.2}", method.name())?;
        }
        Ok(())
    }
}
