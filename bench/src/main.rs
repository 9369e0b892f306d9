//! `cargo xtask bench`: what a proxy costs, tacit's beside its peers'.
//!
//! ```text
//! bench         builds release, enters a network namespace of its own if it may, becomes:
//! bench-driver  load client -> client proxy == mutual TLS 1.3 ==> server proxy -> load server
//!               for each round, each workload, each peer: one sample
//! bench-client, bench-server   the two programs at the ends, processes of their own
//! bench-hold, bench-knock, bench-room   idle connections, a trial, a network for some peers
//! ```
//! Everybody runs from beginning to end, and one at a time is loaded. A sample is the CPU time of
//! the four processes, the rate and the latency; `docs/benchmarks.md` says how to read them. There
//! are proxies, programs with TLS in them (`bench/inprocess`), and programs under two `tacit run`s
//! (`peers`); afterwards programs under `tacit run`, beside other ways to give a program a network
//! (`runs`).
//!
//! Not done: traffic between hosts. It reports and passes no judgement: slower is not a failure,
//! but a peer that loses bytes is. One that cannot be started is left out, and told.

mod certs;
mod load;
mod measure;
mod memory;
mod network;
mod options;
mod peers;
mod place;
mod process;
mod progress;
mod projection;
mod report;
mod room;
mod runs;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use serde_json::Value;

use crate::load::terms::Terms;
use crate::measure::{LoadServer, Sample};
use crate::network::Network;
use crate::options::Options;
use crate::peers::{Running, Setting};
use crate::place::Place;
use crate::progress::Progress;
use crate::report::{Report, Seen};
use crate::room::Room;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["projection", rest @ ..] => projection::run(rest),
        [verb, rest @ ..] if verb.starts_with("bench-") => run(verb, rest),
        rest => run("bench", rest),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The folder with the workspace's `Cargo.toml`. cargo says where this run's sources are; what was
/// true at compile time may be another checkout that shares the target folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// Runs `verb`, which begins with `bench`.
fn run(verb: &str, words: &[&str]) -> Result<(), String> {
    match (verb, words) {
        ("bench", ["--help" | "-h"]) => {
            println!("{}", options::USAGE);
            Ok(())
        }
        ("bench", words) => launch(&Options::parse(words)?, words),
        ("bench-driver", words) => drive(&Options::parse(words)?),
        ("bench-server", [at]) => load::server::main(address(at)?, load::server::plain()),
        ("bench-client", [at, workload, rest @ ..]) => {
            let workload = load::workload(workload).or_else(|| load::run_workload(workload));
            let workload = workload.ok_or("no such workload")?;
            load::client::main(address(at)?, workload, rest == ["quick"], &load::client::plain())
        }
        ("bench-knock", [at, count]) => {
            let count = count.parse().map_err(|error| format!("{count}: {error}"))?;
            load::client::knocks(address(at)?, count, &load::client::plain())
        }
        ("bench-hold", [at, counts @ ..]) => {
            let counts: Result<Vec<_>, _> = counts.iter().map(|count| count.parse()).collect();
            let counts = counts.map_err(|error| format!("{error}"))?;
            load::client::hold_all(address(at)?, &counts, &load::client::plain())
        }
        ("bench-room", [congestion]) => room::hold(congestion),
        _ => Err(format!("no such verb: {verb}\n{}", options::USAGE)),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|error| format!("{text}: {error}"))
}

/// Builds what is measured, then becomes the driver: that one is optimised, and in a namespace.
fn launch(options: &Options, words: &[&str]) -> Result<(), String> {
    let target = target_dir()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    build(root, &["--package", "bench", "--package", "tacit"], &target)?;
    if options.peers.iter().any(|peer| peer.name.starts_with("inproc")) {
        build(&root.join("inprocess"), &[], &target)?;
    }
    let driver = target.join("release/bench");
    let mut command = network::private(&driver);
    Err(format!("{}: {}", driver.display(), command.args(words).exec()))
}

fn build(dir: &Path, words: &[&str], target: &Path) -> Result<(), String> {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--locked", "--release", "--bins"]).args(words);
    build.arg("--target-dir").arg(target).current_dir(dir);
    let status = build.status().map_err(|error| format!("cargo build: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo build --release: {status}")) }
}

fn drive(options: &Options) -> Result<(), String> {
    let begin = Instant::now();
    let target = target_dir()?;
    let bench = target.join("bench");
    let _alone = lock(&bench)?;
    let dir = fresh_dir(&bench)?;
    let network = Network::set_up(options.private_network, options.congestion.as_deref())?;
    eprintln!("{}", network.describe());
    // Thousands of connections are held at a time.
    tacit_sys::process::raise_descriptor_limit().map_err(|error| format!("setrlimit: {error}"))?;
    let place = network.private.then(|| Place::make(&target)).transpose()?;

    let mut report = Report::new(options, &network);
    let peers = match options.proxies {
        true => Some(peers_in_turn(options, &network, dir, &target, place.as_ref(), &mut report)?),
        false => None,
    };
    let runs = match (&place, options.runs) {
        (Some(place), true) => {
            let (text, json) = runs::measure(options, &network, place)?;
            report.add_columns("Programs under tacit run", text);
            Some(json)
        }
        (None, true) => {
            let why = "not measured: nobody may make a network namespace here\n";
            report.add_columns("Programs under tacit run", why.to_owned());
            None
        }
        (_, false) => None,
    };
    print!("{}", report.text());
    let all = serde_json::json!({ "peers": peers, "runs": runs });
    let json = options.json.clone().unwrap_or_else(|| bench.join("result.json"));
    let page = bench.join("report.html");
    write(&json, &format!("{all:#}\n"))?;
    write(&page, &report.html())?;
    write(&bench.join("BENCHMARKS.md"), &report.markdown())?;
    if options.write {
        write(&root().join("BENCHMARKS.md"), &report.markdown())?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("\nevery sample: {}", json.display());
    println!("with charts:  {}   ({seconds:.0} s in all)", page.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Measures the peers, and adds them to the report; returns the same with every sample.
fn peers_in_turn(
    options: &Options,
    network: &Network,
    dir: PathBuf,
    target: &Path,
    place: Option<&Place>,
    report: &mut Report,
) -> Result<Value, String> {
    let mut progress = Progress::start(options.samples());
    certs::make(&dir)?;
    let server = LoadServer::start(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), &dir)?;
    let room = network.private.then(|| Room::open(network)).transpose();
    let room = room.inspect_err(|error| progress.say(&format!("no room: {error}")));
    let room = room.ok().flatten();
    let setting = Setting {
        application: server.address,
        dir,
        target: target.to_owned(),
        congestion: network.congestion.clone(),
        place,
        room: room.as_ref(),
    };
    let (running, mut absent) = start_all(options, &setting, &progress);
    let samples = measure_all(options, &running, &server, &setting, &mut progress)?;
    let idle = memory::measure(&running, &setting, &progress, &mut absent);
    drop(progress);
    let seen = Seen { running: &running, absent: &absent, samples: &samples, idle: &idle };
    Ok(report.add_peers(options, &seen))
}

/// Starts everybody on all terms that are asked for. Who cannot be started is left out, and the
/// reason told.
fn start_all(
    options: &Options,
    setting: &Setting<'_>,
    progress: &Progress,
) -> (Vec<Running>, Vec<String>) {
    let (mut running, mut absent) = (Vec::new(), Vec::new());
    for terms in Terms::ALL {
        if options.workloads.iter().all(|workload| workload.terms != terms) {
            continue;
        }
        for peer in options.peers.iter().filter(|peer| peer.takes(terms)) {
            progress.say(&format!("starting {}, {}", peer.name, terms.name()));
            match peer.start(terms, setting) {
                Ok(started) => running.push(started),
                Err(error) => absent.push(format!("{} ({error})", terms.name())),
            }
        }
    }
    (running, absent)
}

/// Takes the peers in turn inside each round, another one first each time: what changes on the
/// machine meanwhile then meets them all alike.
fn measure_all(
    options: &Options,
    running: &[Running],
    server: &LoadServer,
    setting: &Setting<'_>,
    progress: &mut Progress,
) -> Result<Vec<Sample>, String> {
    let mut samples = Vec::with_capacity(options.samples());
    for round in 0..options.rounds {
        for workload in &options.workloads {
            let takers: Vec<_> =
                running.iter().filter(|peer| peer.terms == workload.terms).collect();
            for turn in 0..takers.len() {
                let peer = takers[(turn + round) % takers.len()];
                let [now, all] = [round + 1, options.rounds];
                progress.step(&format!("round {now}/{all} {} {}", workload.name, peer.peer.name));
                let quick = options.quick;
                samples.push(measure::sample(peer, server, workload, setting, quick)?);
            }
        }
    }
    Ok(samples)
}

/// The build directory that this program is in.
fn target_dir() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let target = here.ancestors().nth(2).filter(|_| here.file_name() == Some(OsStr::new("bench")));
    target.map(Path::to_path_buf).ok_or_else(|| format!("{} has moved", here.display()))
}

/// Two benchmarks at a time would measure each other.
fn lock(bench: &Path) -> Result<File, String> {
    let path = bench.join("lock");
    let locked = fs::create_dir_all(bench).and_then(|()| File::create(&path)).map(|file| {
        let held = file.try_lock();
        (file, held)
    });
    match locked {
        Ok((file, Ok(()))) => Ok(file),
        Ok((_, Err(error))) => Err(format!("another benchmark runs here: {error}")),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Certificates, configurations and logs of this run; they stay for a look until the next.
fn fresh_dir(bench: &Path) -> Result<PathBuf, String> {
    let dir = bench.join("run");
    let fresh = || {
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir)
    };
    fresh().map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}
