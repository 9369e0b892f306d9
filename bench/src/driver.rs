//! Runs the main benchmark. The benchmark compares *peers*: tacit, other proxies, and programs that
//! call a TLS library themselves. This module builds tacit and the benchmark's own programs, starts
//! each peer, and takes samples.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::load::LoadServer;
use crate::measure::{self, Sample};
use crate::network::{self, Network};
use crate::options::Options;
use crate::peer_network::PeerNetwork;
use crate::peers::{self, Running, Setting};
use crate::progress::Progress;
use crate::report::{PeerResults, Report};
use crate::run_directory::RunDirectory;
use crate::tls_settings::TlsSettings;
use crate::workspace::{build, fresh_dir, lock, root, target_dir};
use crate::{certs, links, memory, runs, sections};

/// Builds the programs, then executes the driver: an optimised build, in its own namespace.
pub(crate) fn launch(options: &Options, words: &[&str]) -> Result<(), String> {
    let target = target_dir()?;
    let sources = root();
    build(&sources, &["--package", "bench", "--package", "tacit"], &target)?;
    if options.peers.iter().any(|peer| peer.name.starts_with("inproc")) {
        build(&sources.join("bench/inprocess"), &[], &target)?;
    }
    let driver = target.join("release/bench");
    let mut command = network::private(&driver, "driver");
    Err(format!("cannot run {}: {}", driver.display(), command.args(words).exec()))
}

pub(crate) fn drive(options: &Options) -> Result<(), String> {
    let begin = Instant::now();
    let target = target_dir()?;
    let bench = target.join("bench");
    let _alone = lock(&bench)?;
    let dir = fresh_dir(&bench)?;
    let network = Network::set_up(options.namespace, options.congestion.as_deref())?;
    eprintln!("{}", network.describe());
    // The memory measurement opens thousands of connections.
    tacit_sys::process::raise_descriptor_limit()
        .map_err(|error| format!("cannot raise the limit of open files: {error}"))?;
    let tacit = target.join("release/tacit");
    let directory =
        network.is_own().then(|| RunDirectory::make("bench", &tacit, &tacit)).transpose()?;

    let mut report = Report::new(options, &network);
    let peers = match options.proxies {
        true => {
            Some(peers_in_turn(options, &network, dir, &target, directory.as_ref(), &mut report)?)
        }
        false => None,
    };
    let runs = match &directory {
        _ if !options.runs => None,
        Some(directory) => {
            let measured = runs::measure(options, &network, directory)?;
            report.add_columns("Programs under tacit run", measured.text);
            Some(measured.json)
        }
        None => {
            let why = "not measured: this machine does not allow network namespaces; `tacit \
                       doctor` reports the cause\n";
            report.add_columns("Programs under tacit run", why.to_owned());
            None
        }
    };
    let links = match options.links {
        true => {
            let links::Measured { text, json } = links::measure(options, &tacit, &bench)?;
            report.add_columns(links::TITLE, text);
            Some(json)
        }
        false => None,
    };
    print!("{}", report.text());
    let all = serde_json::json!({ "peers": peers, "runs": runs, "links": links });
    let json = options.json.clone().unwrap_or_else(|| bench.join("result.json"));
    let page = bench.join("report.html");
    write(&json, &format!("{all:#}\n"))?;
    write(&page, &report.html())?;
    write(&bench.join("BENCHMARKS.md"), &report.markdown())?;
    if options.write {
        sections::write_report(&report.markdown())?;
    }
    if let Some(title) = &options.section {
        sections::write_section(title, &report.section())?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("\nall samples:     {}", json.display());
    println!("page with charts: {}   (total time {seconds:.0} s)", page.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Measures the peers and adds them to the report; returns the results with all samples.
fn peers_in_turn(
    options: &Options,
    network: &Network,
    dir: PathBuf,
    target: &Path,
    directory: Option<&RunDirectory>,
    report: &mut Report,
) -> Result<Value, String> {
    let mut progress = Progress::start(options.samples());
    certs::make(&dir)?;
    let tacit = target.join("release/tacit");
    let any_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let server = LoadServer::start(&tacit, any_port, &dir)?;
    let mut peer_network = None;
    if network.is_own() {
        match PeerNetwork::open(network) {
            Ok(opened) => peer_network = Some(opened),
            Err(error) => {
                progress.say(&format!("skipped the peers that need large TCP segments: {error}"))
            }
        }
    }
    let setting = Setting {
        application: server.address,
        dir,
        target: target.to_owned(),
        load: tacit.clone(),
        tacit,
        congestion: network.congestion.clone(),
        directory,
        peer_network: peer_network.as_ref(),
        without: None,
    };
    let mut started = start_all(options, &setting, &progress);
    let running = &started.running;
    let samples = measure_all(options, running, &server, &setting, &mut progress)?;
    let idle = memory::measure(running, &setting, &progress, &mut started.absent);
    drop(progress);
    let seen = PeerResults { running, absent: &started.absent, samples: &samples, idle: &idle };
    Ok(report.add_peers(options, &seen))
}

/// The started peers, and those that could not be started, with the reason.
struct StartedPeers {
    running: Vec<Running>,
    absent: Vec<String>,
}

/// Starts all peers with all TLS settings that the options select. A peer that cannot be started is
/// left out, and the report says why.
fn start_all(options: &Options, setting: &Setting<'_>, progress: &Progress) -> StartedPeers {
    let mut running = Vec::new();
    let mut absent = Vec::new();
    for settings in TlsSettings::ALL {
        if options.workloads.iter().all(|workload| workload.settings != settings) {
            continue;
        }
        for peer in options.peers.iter().filter(|peer| peer.takes(settings)) {
            progress.say(&format!("starting {}, {}", peer.name, settings.name()));
            match peers::start(peer, settings, setting) {
                Ok(started) => running.push(started),
                Err(error) => absent.push(format!("{} ({error})", settings.name())),
            }
        }
    }
    StartedPeers { running, absent }
}

/// Measures the peers in turns. Each round starts with a different peer, so that changes on the
/// machine during the measurement affect all peers alike.
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
            let is_taker = |peer: &&Running| {
                peer.settings == workload.settings && peer.peer.supports(workload)
            };
            let takers: Vec<_> = running.iter().filter(is_taker).collect();
            for turn in 0..takers.len() {
                let peer = takers[(turn + round) % takers.len()];
                let now = round + 1;
                let all = options.rounds;
                progress.step(&format!("round {now}/{all} {} {}", workload.name, peer.peer.name));
                let length = options.length;
                samples.push(measure::sample(peer, server, workload, setting, length)?);
            }
        }
    }
    Ok(samples)
}
