//! `cargo xtask bench`: what a proxy costs, tacit's beside its peers'.
//!
//! ```text
//! bench         builds release, enters a network namespace of its own if it may, becomes:
//! bench-driver  load client -> client proxy == mutual TLS 1.3 ==> server proxy -> load server
//!               for each round, each workload, each peer: one sample
//! bench-client, bench-server   the two programs at the ends, processes of their own
//! ```
//! The proxies of all peers run from beginning to end, and one at a time is loaded. A sample is
//! the CPU time of the four processes and the rate; `docs/benchmarks.md` says how to read them.
//! After the proxies come programs under `tacit run`, beside other ways to give a program a
//! network (`runs`).
//!
//! Not done: latency, memory, pinning to CPUs, traffic between hosts. It reports and passes no
//! judgement: slower is not a failure, but a peer that does not run or loses bytes is.

mod certs;
mod load;
mod measure;
mod network;
mod options;
mod peers;
mod process;
mod progress;
mod report;
mod runs;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use self::measure::{LoadServer, Sample};
use self::network::Network;
use self::options::Options;
use self::peers::{Running, Setting};
use self::progress::Progress;

/// Runs `verb`, which begins with `bench`.
pub(crate) fn run(verb: &str, words: &[&str]) -> Result<(), String> {
    match (verb, words) {
        ("bench", ["--help" | "-h"]) => {
            println!("{}", options::USAGE);
            Ok(())
        }
        ("bench", words) => launch(&Options::parse(words)?, words),
        ("bench-driver", words) => drive(&Options::parse(words)?),
        ("bench-server", [address]) => {
            load::server::main(address.parse().map_err(|error| format!("{address}: {error}"))?)
        }
        ("bench-client", [address, workload]) => {
            let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
            let workload = load::workload(workload).or_else(|| load::run_workload(workload));
            let workload = workload.ok_or("no such workload")?;
            load::client::main(address, workload)
        }
        _ => Err(format!("no such verb: {verb}\n{}", options::USAGE)),
    }
}

/// Builds what is measured, then becomes the driver: that one is optimised, and in a namespace.
fn launch(options: &Options, words: &[&str]) -> Result<(), String> {
    let target = target_dir()?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--release", "--bins", "--package", "xtask"]);
    if options.runs || options.peers.iter().any(|peer| peer.name == peers::SUBJECT) {
        build.args(["--package", "tacit"]);
    }
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    let status = build.status().map_err(|error| format!("cargo build: {error}"))?;
    if !status.success() {
        return Err(format!("cargo build --release: {status}"));
    }
    let driver = target.join("release/xtask");
    let mut command = network::private(&driver);
    Err(format!("{}: {}", driver.display(), command.args(words).exec()))
}

fn drive(options: &Options) -> Result<(), String> {
    let begin = Instant::now();
    let target = target_dir()?;
    let bench = target.join("bench");
    let _alone = lock(&bench)?;
    let dir = fresh_dir(&bench)?;
    let network = Network::set_up(options.private_network, options.congestion.as_deref())?;
    eprintln!("{}", network.describe());

    let proxies = options.proxies.then(|| proxies(options, &network, dir, &target)).transpose()?;
    let runs = options.runs.then(|| runs::measure(options, &network, &target)).transpose()?;
    let json = options.json.clone().unwrap_or_else(|| bench.join("result.json"));
    let all = serde_json::json!({ "proxies": proxies, "runs": runs });
    fs::write(&json, format!("{all:#}\n"))
        .map_err(|error| format!("writing {}: {error}", json.display()))?;
    println!("every sample: {}   ({:.0} s in all)", json.display(), begin.elapsed().as_secs_f64());
    Ok(())
}

/// Measures the proxies, prints the report and returns the same with every sample.
fn proxies(
    options: &Options,
    network: &Network,
    dir: PathBuf,
    target: &Path,
) -> Result<Value, String> {
    let mut progress = Progress::start(options.samples());
    certs::make(&dir)?;
    let server = LoadServer::start(Ipv4Addr::LOCALHOST.into(), &dir)?;
    let setting = Setting {
        application: server.address,
        dir,
        target: target.to_owned(),
        congestion: network.congestion.clone(),
    };
    let mut running = Vec::with_capacity(options.peers.len());
    for peer in &options.peers {
        progress.say(&format!("starting {}", peer.name));
        running.push(peer.start(&setting)?);
    }
    let samples = measure_all(options, &running, &server, &mut progress)?;
    drop(progress);

    let report = report::Report::new(&running, &samples, network);
    print!("{report}");
    Ok(report.json())
}

/// Takes the peers in turn inside each round, another one first each time: what changes on the
/// machine meanwhile then meets them all alike.
fn measure_all(
    options: &Options,
    running: &[Running],
    server: &LoadServer,
    progress: &mut Progress,
) -> Result<Vec<Sample>, String> {
    let mut samples = Vec::with_capacity(options.samples());
    for round in 0..options.rounds {
        for workload in &options.workloads {
            for turn in 0..running.len() {
                let peer = &running[(turn + round) % running.len()];
                let [now, all] = [round + 1, options.rounds];
                progress.step(&format!("round {now}/{all} {} {}", workload.name, peer.peer.name));
                samples.push(measure::sample(peer, server, workload)?);
            }
        }
    }
    Ok(samples)
}

/// The build directory that this program is in.
fn target_dir() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|error| format!("where am I: {error}"))?;
    let target = here.ancestors().nth(2).filter(|_| here.file_name() == Some(OsStr::new("xtask")));
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
