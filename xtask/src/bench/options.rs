//! The command line of the benchmark.

use std::path::PathBuf;

use super::load::{self, WORKLOADS, Workload};
use super::peers::{self, PEERS, Peer};

pub(crate) const USAGE: &str = "\
usage: cargo xtask bench [OPTIONS]
  --workloads LIST   of 2k,64k,1m,bulk,connect; all if not given
  --peers LIST       of direct,stunnel,haproxy,envoy,tacit; all if not given
  --only PART        proxies or runs; both if not given
  --rounds N         samples of each pair of them; 5 if not given
  --json FILE        every sample and the summary; bench/result.json in target/ if not given
  --congestion NAME  of TCP, for all alike: if not given cubic or, where that is not allowed, reno;
                     `host` for what the host has set";

/// Rounds below which a median says little.
pub(crate) const ROUNDS_DEFAULT: usize = 5;

/// A run of more than a day is a slip of the finger.
const ROUNDS_MAX: usize = 1000;

/// What to measure.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) peers: Vec<&'static Peer>,
    pub(crate) rounds: usize,
    pub(crate) json: Option<PathBuf>,
    pub(crate) congestion: Option<String>,
    /// Proxies between two programs.
    pub(crate) proxies: bool,
    /// Programs under `tacit run`.
    pub(crate) runs: bool,
    /// Set by the launcher: the driver is in a network namespace that it may configure.
    pub(crate) private_network: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            workloads: WORKLOADS.iter().collect(),
            peers: PEERS.iter().collect(),
            rounds: ROUNDS_DEFAULT,
            json: None,
            congestion: None,
            proxies: true,
            runs: true,
            private_network: false,
        };
        let mut rest = words.iter().copied();
        while let Some(word) = rest.next() {
            if word == "--private-network" {
                options.private_network = true;
                continue;
            }
            let value = rest.next().ok_or_else(|| format!("{word}: a value is missing\n{USAGE}"));
            match word {
                "--workloads" => options.workloads = list(word, value?, load::workload)?,
                "--peers" => options.peers = list(word, value?, peers::peer)?,
                "--rounds" => options.rounds = rounds(value?)?,
                "--only" => {
                    let only = value?;
                    [options.proxies, options.runs] = [only == "proxies", only == "runs"];
                    if !options.proxies && !options.runs {
                        return Err(format!("--only: no part `{only}` here\n{USAGE}"));
                    }
                }
                "--json" => options.json = Some(PathBuf::from(value?)),
                "--congestion" => options.congestion = Some(value?.to_owned()),
                _ => return Err(format!("unknown option {word}\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// Samples in all.
    pub(crate) fn samples(&self) -> usize {
        self.rounds * self.workloads.len() * self.peers.len()
    }
}

fn rounds(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(rounds @ 1..=ROUNDS_MAX) => Ok(rounds),
        _ => Err(format!("--rounds: {value} is not a number from 1 to {ROUNDS_MAX}")),
    }
}

fn list<T>(option: &str, value: &str, find: fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    value
        .split(',')
        .map(|name| find(name).ok_or_else(|| format!("{option}: no `{name}` here\n{USAGE}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_five_times_unless_said_otherwise() {
        assert_eq!(Options::parse(&[]).unwrap().samples(), 5 * 5 * 5);
        let words = ["--peers", "direct,tacit", "--workloads", "1m", "--rounds", "3"];
        let options = Options::parse(&words).unwrap();
        assert_eq!(options.samples(), 6);
        assert_eq!(options.peers[1].name, "tacit");
        assert_eq!(options.workloads[0].name, "1m");
    }

    #[test]
    fn mistakes_are_named() {
        for (words, named) in [
            (&["--peers", "direct,nginx"][..], "`nginx`"),
            (&["--workloads", ""], "``"),
            (&["--rounds", "0"], "0 is not"),
            (&["--only", "walks"], "`walks`"),
            (&["--rounds"], "value is missing"),
            (&["--round", "3"], "unknown option --round"),
        ] {
            let error = Options::parse(words).unwrap_err();
            assert!(error.contains(named), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_usage_names_every_workload_and_peer() {
        let workloads: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        let peers: Vec<_> = PEERS.iter().map(|peer| peer.name).collect();
        assert!(USAGE.contains(&workloads.join(",")));
        assert!(USAGE.contains(&peers.join(",")));
    }
}
