//! `bench host TACIT`: measures the cost of `tacit agent --host`, which applies one policy to all
//! programs of a host.
//!
//! ```text
//!   host 192.0.2.1                  second machine 192.0.2.2
//!   program ──────────── veth ───────────── server            table "Unmatched"
//!   program ── agent ══ TLS 1.3 ══ agent ── load server       table "Protected"
//! ```
//! The agent *captures* the traffic: the kernel sends packets of the host's programs to the agent.
//! The report has these tables:
//! * *Unmatched*: CPU time for traffic that no rule matches. The row `conntrack` shows the CPU time
//!   with connection tracking and without tacit.
//! * *Protected*: CPU time for captured traffic. The table compares this time with the CPU time of
//!   a forwarding rule. With a forwarding rule, the program itself connects to an address of the
//!   agent.
//! * *Installing*: the time and the memory that the agent needs to install a policy.
//!
//! Two measurements of the same setting differ. To show this difference, the tables *Unmatched* and
//! *Protected* contain one row twice. In all tables, the CPU time of a process includes the
//! kernel's work for packets from this process.
//!
//! ```text
//! world.rs      both namespaces, the servers, and the installed policies
//! addresses.rs  the addresses of the servers
//! policies.rs   the policies
//! sample.rs     takes one sample of one workload
//! datagrams.rs  the UDP client and its server
//! install.rs    installs policies of several sizes
//! report.rs     medians and ratios
//! ```
//!
//! The benchmark needs root. Both the host and the second machine are network namespaces. So the
//! benchmark does not change the real machine.

mod addresses;
mod datagrams;
mod install;
mod policies;
mod report;
mod sample;
mod world;

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use self::report::Table;
use self::sample::Task;
use self::world::{Subject, World};
use crate::network::{self, Namespace, Network};
use crate::progress::Progress;
use crate::workspace::{fresh_dir, lock, own_program, target_dir};

const USAGE: &str = "\
usage: cargo xtask bench host TACIT [--rounds N]
  TACIT       a tacit program, built for release
  --rounds N  number of rounds [default: 9]";

const ROUNDS_DEFAULT: usize = 9;
const ROUNDS_MAX: usize = 1000;

/// The command line.
struct Options {
    tacit: PathBuf,
    rounds: usize,
    namespace: Namespace,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let (namespace, words) = match words {
            ["--private-network", rest @ ..] => (Namespace::Own, rest),
            rest => (Namespace::Host, rest),
        };
        let (tacit, rounds) = match words {
            [tacit] => (tacit, ROUNDS_DEFAULT),
            [tacit, "--rounds", rounds] | ["--rounds", rounds, tacit] => {
                let rounds = rounds.parse().ok().filter(|rounds| (1..=ROUNDS_MAX).contains(rounds));
                (tacit, rounds.ok_or(USAGE)?)
            }
            _ => return Err(USAGE.to_owned()),
        };
        let tacit = PathBuf::from(tacit);
        let tacit = tacit.canonicalize().map_err(|error| {
            format!(
                "cannot find {}: {error}: first build the program with `cargo build --release`",
                tacit.display()
            )
        })?;
        Ok(Self { tacit, rounds, namespace })
    }
}

/// Runs the command: executes [`drive`] in its own network namespace.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    Options::parse(words)?;
    let own = own_program()?;
    let mut command = network::private(&own, "host-driver");
    Err(format!("cannot run {}: {}", own.display(), command.args(words).exec()))
}

/// Serves the datagrams of a benchmark, in the far namespace.
pub(crate) fn echo(address: &str) -> Result<(), String> {
    let address: SocketAddr = address.parse().map_err(|_| format!("no address: {address}"))?;
    datagrams::serve(address)
}

/// Measures everything and prints the report.
pub(crate) fn drive(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    let network = Network::set_up(options.namespace, None)?;
    if !network.is_own() {
        return Err("cannot make a network namespace: run the benchmark as root".to_owned());
    }
    let bench = target_dir()?.join("bench");
    let _alone = lock(&bench)?;
    let world = World::set_up(&options.tacit, fresh_dir(&bench)?)?;
    let mut tables = [
        Table::new("unmatched", Subject::unmatched(), &Task::UNMATCHED),
        Table::new("protected", Subject::PROTECTED.to_vec(), &Task::PROTECTED),
    ];
    let steps: usize = tables.iter().map(|table| table.subjects.len()).sum();
    let mut progress = Progress::start(options.rounds * (steps + install::RULES.len()));
    let mut installed = install::Installed::default();
    for round in 0..options.rounds {
        let now = format!("round {}/{}", round + 1, options.rounds);
        for table in &mut tables {
            measure_round(&world, table, round, &now, &mut progress)?;
        }
        for rules in install::RULES {
            progress.step(&format!("{now} installing a policy with {rules} rules"));
            installed.add(rules, install::sample(&world, rules)?);
        }
    }
    drop(progress);
    println!("tacit: {}\n{}", options.tacit.display(), network.describe());
    println!("medians of {} rounds", options.rounds);
    for table in tables {
        println!("\n{table}");
    }
    println!("\n{installed}");
    Ok(())
}

/// Takes a sample of each workload with each subject, which begin with another one in each round.
fn measure_round(
    world: &World,
    table: &mut Table,
    round: usize,
    now: &str,
    progress: &mut Progress,
) -> Result<(), String> {
    let count = table.subjects.len();
    for turn in 0..count {
        let subject = table.subjects[(turn + round) % count];
        progress.step(&format!("{now} {}: {}", table.name, subject.name));
        let installed = world.install(subject)?;
        for task in table.tasks.iter().copied() {
            table.add(subject, task, sample::sample(world, subject, installed.as_ref(), task)?);
        }
        world.remove(subject, installed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_has_a_program_and_a_number_of_rounds() {
        assert_eq!(Options::parse(&["/bin/sh"]).unwrap().rounds, ROUNDS_DEFAULT);
        assert_eq!(Options::parse(&["--rounds", "3", "/bin/sh"]).unwrap().rounds, 3);
        for wrong in [&[][..], &["/bin/sh", "--rounds", "0"], &["/bin/sh", "x"], &["/nowhere"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
