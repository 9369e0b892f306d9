//! `bench compare OLD NEW`: whether one tacit costs more than an older one.
//!
//! ```text
//! for each round, each workload: OLD, NEW and OLD again, another one first each time
//!   load client -> client agent == mutual TLS 1.3 ==> server agent -> load server
//!   tacit run [load client]     == mutual TLS 1.3 ==> tacit run [load server]
//! ```
//! What counts is the CPU time of the agents for an operation, their memory for an idle
//! connection, and the CPU time of starting a run. The load programs are NEW's in every sample.
//! OLD beside OLD, in the same rounds, shows how far two equal programs differ on this machine:
//! NEW is within the limit if it is no more above OLD than that difference and 2 percent.
//!
//! The agents of all three run from beginning to end, but for memory, which is measured with new
//! ones each time; one pair at a time is loaded. It ends after the round in which its time is over.
//!
//! ```text
//! options.rs    the command line
//! subjects.rs   the three, with their agents
//! task.rs       what is compared; sample.rs: one sample of it
//! report.rs     medians, ratios, the limit
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

/// Runs the verb: becomes [`drive`], in a network namespace of its own if it may.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    if matches!(words, ["--help" | "-h"]) {
        println!("{}", options::USAGE);
        return Ok(());
    }
    Options::parse(words)?;
    let own = own_program()?;
    let mut command = network::private(&own, "compare-driver");
    Err(format!("{}: {}", own.display(), command.args(words).exec()))
}

/// Measures, and prints what was seen.
pub(crate) fn drive(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    let start = Instant::now();
    let bench = target_dir()?.join("bench");
    let _alone = lock(&bench)?;
    let dir = fresh_dir(&bench)?;
    let network = Network::set_up(options.namespace, None)?;
    eprintln!("{}", network.describe());
    tacit_sys::process::raise_descriptor_limit().map_err(|error| format!("setrlimit: {error}"))?;
    let any_port = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let server = LoadServer::start(&options.new, any_port, &dir)?;

    let mut progress = Progress::start(options.rounds * options.tasks.len() * Role::ALL.len());
    let mut report = Report::new(&options, &network);
    let mut places = Vec::new();
    for role in Role::ALL {
        places.push(subjects::place(role, &options, &network)?);
    }
    let mut subjects = Vec::new();
    for (role, place) in Role::ALL.into_iter().zip(&places) {
        progress.say(&format!("starting {}", role.name()));
        let place = place.as_ref();
        subjects.push(Subject::start(role, &options, &network, place, &dir, &server)?);
    }
    orphan::collect().map_err(|error| format!("cannot collect orphans: {error}"))?;
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
                "ended after {} of {} rounds: another one would take longer than --minutes allows",
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

/// A sample, or a note why there is none.
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
