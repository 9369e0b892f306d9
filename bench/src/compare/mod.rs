//! `bench compare OLD NEW`: measures whether a new version of tacit costs more than an old one.
//!
//! ```text
//! for each round and each workload: OLD, NEW and OLD again, in an order that changes each round
//!   load client -> client agent == mutual TLS 1.3 ==> server agent -> load server
//!   tacit run [load client]     == mutual TLS 1.3 ==> tacit run [load server]
//! ```
//! The report compares the CPU time of the agents per operation, and their memory per idle
//! connection. It also compares the CPU time of starting a program under `tacit run`. Two
//! measurements of the same version differ, so OLD is measured twice in each round. NEW passes if
//! its cost is within a limit. The limit is the cost of OLD, plus 2 percent, plus the difference
//! between the measurements of OLD.
//!
//! All agents run during the whole benchmark, but only one pair of agents at a time has load.
//!
//! ```text
//! options.rs    the command line
//! subjects.rs   the compared versions, each with its own agents
//! task.rs       the workloads
//! sample.rs     takes one sample of a workload
//! report.rs     medians, ratios, and the limit for NEW
//! ```

mod options;
mod report;
mod sample;
mod subjects;
mod task;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::time::Instant;

use tacit_sys::orphan;

use self::options::Options;
use self::report::{Report, Sample};
use self::subjects::{Role, Subject};
use self::task::Task;
use crate::load::LoadServer;
use crate::network::{self, Network};
use crate::progress::Progress;
use crate::sections;
use crate::workspace::{fresh_dir, lock, own_program, target_dir};

/// Runs the command: executes [`drive`] in its own network namespace, if the host allows it.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    if matches!(words, ["--help" | "-h"]) {
        println!("{}", options::USAGE);
        return Ok(());
    }
    Options::parse(words)?;
    let own = own_program()?;
    let mut command = network::private(&own, "compare-driver");
    Err(format!("cannot run {}: {}", own.display(), command.args(words).exec()))
}

/// Takes all samples and prints the report.
pub(crate) fn drive(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    let start = Instant::now();
    let bench = target_dir()?.join("bench");
    let _alone = lock(&bench)?;
    let dir = fresh_dir(&bench)?;
    let network = Network::set_up(options.namespace, None)?;
    eprintln!("{}", network.describe());
    tacit_sys::process::raise_descriptor_limit()
        .map_err(|error| format!("cannot raise the limit of open files: {error}"))?;
    let any_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let server = LoadServer::start(&options.new, any_port, &dir)?;

    let mut progress = Progress::start(options.rounds * options.tasks.len() * Role::ALL.len());
    let mut report = Report::new(&options, &network);
    let mut directories = Vec::new();
    for role in Role::ALL {
        directories.push(subjects::directory(role, &options, &network)?);
    }
    let mut subjects = Vec::new();
    for (role, directory) in Role::ALL.into_iter().zip(&directories) {
        progress.say(&format!("starting {}", role.name()));
        let directory = directory.as_ref();
        subjects.push(Subject::start(role, &options, &network, directory, &dir, &server)?);
    }
    orphan::collect()
        .map_err(|error| format!("cannot become the subreaper of orphaned processes: {error}"))?;
    for round in 0..options.rounds {
        let begun = Instant::now();
        for task in &options.tasks {
            for turn in 0..subjects.len() {
                let subject = &subjects[(turn + round) % subjects.len()];
                let name = subject.role.name();
                let now = round + 1;
                let all = options.rounds;
                progress.step(&format!("round {now}/{all} {} {name}", task.name()));
                take(&mut report, *task, subject, &server)?;
            }
        }
        report.rounds = round + 1;
        if start.elapsed() + begun.elapsed() > options.time_max && report.rounds < options.rounds {
            report.note(format!(
                "stopped after {} of {} rounds: the time limit of --minutes has passed",
                report.rounds, options.rounds
            ));
            break;
        }
    }
    drop(progress);
    if let Some(title) = &options.section {
        sections::write_section(title, &report.markdown(&options.line))?;
    }
    report.write(options.json.as_deref(), start.elapsed())
}

/// Takes a sample, or adds a note why it cannot be taken.
fn take(
    report: &mut Report,
    task: Task,
    subject: &Subject<'_>,
    server: &LoadServer,
) -> Result<(), String> {
    match sample::sample(task, subject, server)? {
        Some(value) => report.add(Sample { task, role: subject.role, value }),
        None => report.skip(task),
    }
    Ok(())
}
