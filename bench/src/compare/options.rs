//! Parses the command line of `bench compare`, which compares the costs of two versions of tacit.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::task::Task;
use crate::network::Namespace;

pub(super) const USAGE: &str = "\
usage: cargo xtask bench compare OLD NEW [OPTIONS]
  OLD, NEW           two tacit programs, built with `cargo build --release`
  --rounds N         number of rounds [default: 9]
  --minutes N        do not start a round that would end after N minutes [default: 12]
  --old-without KEY  set KEY = false in [agent] of OLD only, to measure the cost of KEY
  --section TITLE    also write the table to BENCHMARKS.md under this title
  --workloads LIST   any of connect,resumed,2k,bulk,memory,run-2k,run-start [default: all]
  --json FILE        write all samples and the summary; - prints them instead of the table";

const ROUNDS_DEFAULT: usize = 9;
const ROUNDS_MAX: usize = 1000;
const MINUTES_DEFAULT: u64 = 12;
/// One day.
const MINUTES_MAX: u64 = 1440;

/// The options.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) old: PathBuf,
    pub(super) new: PathBuf,
    pub(super) rounds: usize,
    pub(super) time_max: Duration,
    pub(super) tasks: Vec<Task>,
    pub(super) json: Option<PathBuf>,
    pub(super) old_without: Option<String>,
    pub(super) section: Option<String>,
    /// The command line as typed by the user.
    pub(super) line: String,
    /// Set by the launcher.
    pub(super) namespace: Namespace,
}

impl Options {
    pub(super) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut programs = Vec::new();
        let mut options = Self {
            old: PathBuf::new(),
            new: PathBuf::new(),
            rounds: ROUNDS_DEFAULT,
            time_max: Duration::from_secs(60 * MINUTES_DEFAULT),
            tasks: Task::ALL.to_vec(),
            json: None,
            old_without: None,
            section: None,
            line: as_typed(words),
            namespace: Namespace::Host,
        };
        let mut rest = words.iter().copied();
        while let Some(word) = rest.next() {
            if word == "--private-network" {
                options.namespace = Namespace::Own;
                continue;
            }
            if !word.starts_with("--") {
                programs.push(program(word)?);
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
            match word {
                "--rounds" => options.rounds = number(word, value, ROUNDS_MAX)?,
                "--minutes" => {
                    let minutes = number(word, value, MINUTES_MAX)?;
                    options.time_max = Duration::from_secs(60 * minutes);
                }
                "--workloads" => options.tasks = tasks(value)?,
                "--old-without" => options.old_without = Some(value.to_owned()),
                "--section" => options.section = Some(value.to_owned()),
                "--json" => options.json = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown option {word}\n{USAGE}")),
            }
        }
        let [old, new] = <[PathBuf; 2]>::try_from(programs)
            .map_err(|_| format!("expected two programs, OLD and NEW\n{USAGE}"))?;
        Ok(Self { old, new, ..options })
    }
}

/// The words as typed by the user, without those that the launcher adds.
fn as_typed(words: &[&str]) -> String {
    let typed = words.iter().filter(|word| **word != "--private-network");
    let quoted = |word: &&str| {
        if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() }
    };
    typed.map(quoted).collect::<Vec<_>>().join(" ")
}

fn program(word: &str) -> Result<PathBuf, String> {
    let path = Path::new(word);
    path.canonicalize().map_err(|error| {
        format!("cannot find {word}: {error}: first build the program with `cargo build --release`")
    })
}

fn number<T: FromStr + PartialOrd + Display + From<u8>>(
    option: &str,
    value: &str,
    max: T,
) -> Result<T, String> {
    match value.parse() {
        Ok(number) if number >= T::from(1) && number <= max => Ok(number),
        _ => Err(format!("{option} {value}: expected a number from 1 to {max}")),
    }
}

fn tasks(value: &str) -> Result<Vec<Task>, String> {
    let find = |name: &str| {
        let found = Task::ALL.into_iter().find(|task| task.name() == name);
        found.ok_or_else(|| format!("--workloads: unknown workload `{name}`\n{USAGE}"))
    };
    value.split(',').map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_are_compared_in_nine_rounds_unless_given_otherwise() {
        let options = Options::parse(&["/bin/sh", "/bin/sh"]).unwrap();
        assert_eq!(options.rounds, 9);
        assert_eq!(options.time_max, Duration::from_secs(720));
        assert_eq!(options.tasks, Task::ALL);
        let words = ["--rounds", "3", "/bin/sh", "--workloads", "2k,memory", "/bin/sh"];
        let options = Options::parse(&words).unwrap();
        assert_eq!(options.rounds, 3);
        assert_eq!(options.tasks, [Task::Small, Task::Memory]);
        let words = ["--private-network", "/bin/sh", "/bin/sh", "--section", "a part"];
        assert_eq!(Options::parse(&words).unwrap().line, "/bin/sh /bin/sh --section 'a part'");
    }

    #[test]
    fn errors_name_the_invalid_option() {
        for (words, named) in [
            (&["/bin/sh"][..], "expected two programs"),
            (&["/bin/sh", "/nowhere/tacit"], "/nowhere/tacit"),
            (&["/bin/sh", "/bin/sh", "--rounds", "0"], "--rounds 0: expected a number"),
            (&["/bin/sh", "/bin/sh", "--workloads", "3k"], "`3k`"),
            (&["/bin/sh", "/bin/sh", "--json"], "needs a value"),
            (&["/bin/sh", "/bin/sh", "--round", "3"], "unknown option --round"),
        ] {
            let error = Options::parse(words).unwrap_err();
            assert!(error.contains(named), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_usage_names_every_workload() {
        let mut list = USAGE.lines().find(|line| line.contains("--workloads")).unwrap();
        list = list.split("of ").nth(1).unwrap().split(' ').next().unwrap();
        let names: Vec<_> = Task::ALL.iter().map(|task| task.name()).collect();
        assert_eq!(list, names.join(","));
    }
}
