//! Measures ways to process packets (the *candidates*) in rounds, and prints the medians.
//!
//! Each round measures every candidate with every load, such as a TCP stream. Each round begins
//! with a different candidate than the previous round. The CPU time is the sum of the client, the
//! server, and all processes between them.

use std::net::IpAddr;
use std::time::Duration;

use tacit_sys::cpu::process_ns;

use super::load::Load;

/// The one whose values are divided by those of the others.
const SUBJECT: &str = "tacit";

/// A way for packets.
struct Candidate {
    name: String,
    server: IpAddr,
    /// The processes that move packets.
    processes: Vec<u32>,
    /// For each load the samples, one for each round.
    samples: [Vec<Sample>; Load::ALL.len()],
}

#[derive(Clone, Copy)]
struct Sample {
    /// Gbit/s, or requests in a second.
    rate: f64,
    /// CPU seconds for 10^9 bytes, or microseconds for a request.
    cpu: f64,
    /// The median of the times of requests, in microseconds.
    median_us: f64,
}

/// The name of a value, and how to read it.
type Column = (&'static str, fn(&Sample) -> f64);

/// Measures. The arguments are the number of rounds, the process of the server, and candidates as
/// `NAME=ADDRESS=PROCESS,PROCESS`.
pub(crate) fn measure(arguments: &[&str]) {
    let [rounds, server, candidates @ ..] = arguments else { panic!("too few arguments") };
    let rounds: usize = rounds.parse().unwrap();
    let server: u32 = server.parse().unwrap();
    let mut candidates: Vec<_> = candidates.iter().map(|text| Candidate::parse(text)).collect();
    let count = candidates.len();
    for round in 0..rounds {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap();
        let load = load.split(' ').next().unwrap_or_default();
        eprintln!("round {} of {rounds}, load of the machine {load}", round + 1);
        for at in 0..count {
            let candidate = &mut candidates[(round + at) % count];
            for (number, load) in Load::ALL.into_iter().enumerate() {
                let sample = candidate.sample(load, server);
                candidate.samples[number].push(sample);
            }
        }
    }
    for (number, load) in Load::ALL.into_iter().enumerate() {
        print_load(load, number, &candidates);
    }
}

impl Candidate {
    fn parse(text: &str) -> Self {
        let mut parts = text.split('=');
        let mut next = || parts.next().unwrap_or_default();
        let name = next().to_owned();
        let server = next();
        let processes = next().split(',').filter(|part| !part.is_empty());
        Self {
            name,
            server: server.parse().unwrap(),
            processes: processes.map(|process| process.parse().unwrap()).collect(),
            samples: Default::default(),
        }
    }

    fn sample(&self, load: Load, server: u32) -> Sample {
        let programs = [server, std::process::id()];
        let cpu = || -> Duration {
            let all = self.processes.iter().chain(&programs);
            Duration::from_nanos(all.map(|process| process_ns(*process).unwrap()).sum())
        };
        let before = cpu();
        let work = load.run(self.server);
        let used = (cpu() - before).as_secs_f64();
        let units = work.units as f64;
        let rate = units / work.time.as_secs_f64();
        let median_us = work.median.unwrap_or_default().as_secs_f64() * 1e6;
        if load.has_requests() {
            Sample { rate, cpu: used / units * 1e6, median_us }
        } else {
            Sample { rate: rate * 8.0 / 1e9, cpu: used / units * 1e9, median_us }
        }
    }

    fn median(&self, load: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        median(self.samples[load].iter().map(value).collect())
    }

    /// The median over the rounds of the value of another candidate divided by that of this one.
    fn ratio(&self, other: &Self, load: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        let pairs = other.samples[load].iter().zip(&self.samples[load]);
        median(pairs.map(|(other, own)| value(other) / value(own)).collect())
    }
}

/// Prints a table: the medians of each candidate, and those of the subject divided by them.
fn print_load(load: Load, number: usize, candidates: &[Candidate]) {
    let columns: &[Column] = match load.has_requests() {
        true => &[
            ("requests/s", |sample| sample.rate),
            ("CPU, us/request", |sample| sample.cpu),
            ("median, us", |sample| sample.median_us),
        ],
        false => &[("Gbit/s", |sample| sample.rate), ("CPU, s/GB", |sample| sample.cpu)],
    };
    let row = |first: &str, cells: Vec<String>| println!("| {first} | {} |", cells.join(" | "));
    println!();
    let names = columns.iter().map(|(name, _)| (*name).to_owned());
    let ratios = columns.iter().map(|(name, _)| format!("{SUBJECT}: {name}"));
    row(&load.name(), names.chain(ratios).collect());
    println!("{}|", "|---".repeat(1 + 2 * columns.len()));
    let subject = candidates.iter().find(|candidate| candidate.name == SUBJECT).unwrap();
    for candidate in candidates {
        let own = columns.iter().map(|(_, value)| {
            let median = candidate.median(number, value);
            if median < 100.0 { format!("{median:.2}") } else { format!("{median:.0}") }
        });
        let ratios = columns
            .iter()
            .map(|(_, value)| format!("{:.2}", candidate.ratio(subject, number, value)));
        row(&candidate.name, own.chain(ratios).collect());
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
