//! Measures the cost of connections and of a large transfer, for a program in a network namespace.

use std::fmt::{self, Display, Formatter};
use std::io::{PipeReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tacit_core::statistics::median;

use super::setup::{FAR, PolicyFile, SERVER, policies};
use crate::load::{Lines, LoadServer};
use crate::network::Network;
use crate::options::Options;
use crate::process::Process;
use crate::progress::Progress;
use crate::run_directory::RunDirectory;
use crate::workload::{Length, RUN_WORKLOADS, Workload};

/// How the program is connected to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Direct,
    Relay,
    Tls,
    Pasta,
    Slirp,
}

const CARRIERS: [Carrier; 5] =
    [Carrier::Direct, Carrier::Relay, Carrier::Tls, Carrier::Pasta, Carrier::Slirp];

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relay => "tacit relay",
            Self::Tls => "tacit tls",
            Self::Pasta => "pasta",
            Self::Slirp => "slirp4netns",
        }
    }
}

/// The measurements of one sample.
#[derive(Debug)]
struct Sample {
    carrier: Carrier,
    workload: &'static Workload,
    units: f64,
    seconds: f64,
    cpu_ns: u64,
}

impl Sample {
    fn cpu_us(&self) -> f64 {
        self.cpu_ns as f64 / 1000.0 / self.units
    }
}

/// All samples.
#[derive(Debug)]
pub(super) struct Report(Vec<Sample>);

/// Measures the carriers in turns. Each round begins with a different one.
pub(super) fn measure(
    options: &Options,
    network: &Network,
    directory: &RunDirectory,
) -> Result<Report, String> {
    let server = LoadServer::start(
        directory.dir.join("load"),
        SocketAddr::new(SERVER.into(), 0),
        &directory.dir,
    )?;
    for PolicyFile { name, text } in policies(server.address, &network.congestion) {
        directory.write(name, &text)?;
    }
    let mut agent = Command::new(directory.dir.join("tacit"));
    agent.args(["agent", "--control", "far.sock", "--policy", "far.toml"]);
    let mut far = Process::start("runs-far".to_owned(), &agent, &directory.dir)?;
    // Each sample waits for a connection, so the supervisor has started the agent by then.
    std::thread::sleep(Duration::from_millis(500));
    far.check_running()?;
    far.count_descendants()?;

    let mut samples = Vec::new();
    let mut progress = Progress::start(options.rounds * RUN_WORKLOADS.len() * CARRIERS.len());
    for round in 0..options.rounds {
        for workload in &RUN_WORKLOADS {
            for turn in 0..CARRIERS.len() {
                let carrier = CARRIERS[(turn + round) % CARRIERS.len()];
                let now = round + 1;
                let all = options.rounds;
                let name = carrier.name();
                progress.step(&format!("round {now}/{all} {} {name}", workload.name));
                let sample = take(directory, &server, &far, carrier, workload);
                let blame = |error| format!("{name}, {}: {error}", workload.name);
                samples.push(sample.map_err(blame)?);
            }
        }
    }
    Ok(Report(samples))
}

fn take(
    directory: &RunDirectory,
    server: &LoadServer,
    far: &Process,
    carrier: Carrier,
    workload: &'static Workload,
) -> Result<Sample, String> {
    let address = if carrier == Carrier::Tls { FAR } else { server.address };
    let entry = address.to_string();
    let load = directory.dir.join("load");
    let program = load.to_string_lossy();
    let words = workload.words(Length::Whole);
    let mut client = vec![&*program, "workload"];
    client.extend(words.iter().map(String::as_str));
    // A new network may need some time until it relays the first byte.
    client.extend(["--connect", &entry, "--wait", "20s"]);
    let mut command = match carrier {
        Carrier::Direct => directory.ordinary(&program, &client[1..]),
        Carrier::Relay => tacit(directory, "relay.toml", &client),
        Carrier::Tls => tacit(directory, "tls.toml", &client),
        Carrier::Pasta => directory
            .ordinary("pasta", &[&["-q", "-f", "--config-net", "--"][..], &client].concat()),
        Carrier::Slirp => directory.ordinary("unshare", &[&WAITING[..], &client].concat()),
    };
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = pipes.spawn().map_err(|error| format!("cannot start the program: {error}"))?;
    let mut process = Process::adopt(carrier.name(), child);
    let mut lines = Lines::of(&mut process)?;
    let mut steering =
        process.child().stdin.take().ok_or("the program has no pipe for its standard input")?;
    let mut say = |word: &str| {
        writeln!(steering, "{word}")
            .map_err(|error| format!("the measured program has ended: {error}"))
    };
    let mut slirp = None;
    if carrier == Carrier::Slirp {
        lines.next()?;
        let mut attached = attach(directory, process.child().id())?;
        attached.wait_ready()?;
        slirp = Some(attached);
        say("go")?;
    }

    lines.next()?;
    process.count_descendants()?;
    let clocks = || -> Result<u64, String> {
        let slirp = slirp.as_ref().map_or(Ok(0), |slirp| slirp.process.cpu_ns())?;
        Ok(process.cpu_ns()? + slirp + server.process.cpu_ns()? + far.cpu_ns()?)
    };
    let before = clocks()?;
    say("go")?;
    let result = lines.next()?;
    let cpu_ns = clocks()?.saturating_sub(before);
    say("end")?;
    // The end of the program should end the carrier; otherwise dropping it does.
    let _ = process.child().wait();
    let figures = &result["figures"];
    let number = |key: &str| {
        figures[key]
            .as_f64()
            .ok_or_else(|| format!("unexpected report of the load client: {result}"))
    };
    let units = number(workload.kind.figure())?;
    Ok(Sample { carrier, workload, units, seconds: number("seconds")?, cpu_ns })
}

fn tacit(directory: &RunDirectory, policy: &str, client: &[&str]) -> Command {
    directory.ordinary("./tacit", &[&["run", "--policy", policy, "--"][..], client].concat())
}

/// The command of a program that waits in its own namespace until the network is ready.
pub(super) const WAITING: [&str; 8] = [
    "--user",
    "--map-root-user",
    "--net",
    "--",
    "sh",
    "-c",
    "echo '{}'; read go; exec \"$@\"",
    "sh",
];

/// slirp4netns, attached to a namespace.
#[derive(Debug)]
pub(super) struct Slirp {
    pub(super) process: Process,
    ready: PipeReader,
}

/// Attaches slirp4netns to the namespace of a process.
pub(super) fn attach(directory: &RunDirectory, pid: u32) -> Result<Slirp, String> {
    let start = || {
        let (ready, write_end) = std::io::pipe()?;
        let words = ["--configure", "--mtu=65520", "--ready-fd=0", &pid.to_string(), "tap0"];
        let mut command = directory.ordinary("slirp4netns", &words);
        let child = command.stdin(write_end).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Slirp { process: Process::adopt("slirp4netns", child), ready })
    };
    start().map_err(|error: std::io::Error| format!("cannot start slirp4netns: {error}"))
}

impl Slirp {
    pub(super) fn wait_ready(&mut self) -> Result<(), String> {
        let read = self.ready.read_exact(&mut [0]);
        read.map_err(|_| {
            "slirp4netns ended before the network was ready: check the permissions of /dev/net/tun"
                .to_owned()
        })
    }
}

impl Report {
    pub(super) fn json(&self) -> Value {
        let sample = |sample: &Sample| {
            json!({
                "carrier": sample.carrier.name(),
                "workload": sample.workload.name,
                "units": sample.units,
                "seconds": sample.seconds,
                "cpu_ns": sample.cpu_ns,
            })
        };
        self.0.iter().map(sample).collect()
    }

    fn sorted(&self, carrier: Carrier, workload: &Workload, of: fn(&Sample) -> f64) -> Vec<f64> {
        let own =
            |sample: &&Sample| sample.carrier == carrier && sample.workload.name == workload.name;
        let mut values: Vec<f64> = self.0.iter().filter(own).map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// Formats a value with at least three digits and at most one decimal digit.
fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nPrograms under tacit run: CPU time of all processes in microseconds, median and \
             minimum.\nThe first column `x` is the median divided by the median of pasta. The \
             second column `x` is the median divided by the median of slirp4netns."
        )?;
        for workload in &RUN_WORKLOADS {
            let unit = workload.kind.unit();
            writeln!(f, "\n{}: {}", workload.name, workload.title)?;
            let cpu = format!("us/{unit}");
            let rate = format!("{unit}/s");
            writeln!(f, "{:14} {cpu:>10} {:>8} {rate:>10} {:>8} {:>8}", "", "minimum", "x", "x")?;
            let cpu = |carrier| median(&self.sorted(carrier, workload, Sample::cpu_us));
            for carrier in CARRIERS {
                let least = self.sorted(carrier, workload, Sample::cpu_us)[0];
                let own = cpu(carrier);
                let rates = self.sorted(carrier, workload, |one| one.units / one.seconds);
                let rate = median(&rates);
                write!(f, "{:<14} {:>10}", carrier.name(), figure(own))?;
                write!(f, " {:>8} {rate:>10.0}", figure(least))?;
                let pasta = own / cpu(Carrier::Pasta);
                let slirp = own / cpu(Carrier::Slirp);
                writeln!(f, " {pasta:>8.2} {slirp:>8.2}")?;
            }
        }
        Ok(())
    }
}
