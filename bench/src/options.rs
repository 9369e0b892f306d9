//! Parses the command line of the main benchmark, which compares tacit with other proxies and TLS
//! libraries.

use std::path::PathBuf;

use crate::network::Namespace;
use crate::peers::{self, PEERS, Peer};
use crate::workload::{Length, WORKLOADS, Workload, workload};

pub(crate) const USAGE: &str = "\
usage: cargo xtask bench [OPTIONS]
       cargo xtask bench compare OLD NEW [OPTIONS]
       cargo xtask bench projection [--rounds N] [--program FILE]
       cargo xtask bench sockets --help
  --workloads LIST   any of 2k,64k,1m,bulk,connect (these have goals), 500,2k-1,16k,32k,
                     beside,5x20m,resumed,
                     2k-aes256,1m-aes256,bulk-aes256,connect-aes256,
                     2k-tls12,1m-tls12,bulk-tls12,connect-tls12,
                     2k-chacha20,16k-chacha20,32k-chacha20,64k-chacha20,1m-chacha20,bulk-chacha20
                     [default: all]
  --peers LIST       any of direct,relays,inproc-openssl,inproc-rustls,stunnel,haproxy,nginx,
                     envoy,nginx-given,envoy-given,tacit-fixed,tacit-fixed-no-cache,tacit-given,
                     tacit-unmetered,tacit-run,tacit-split,tacit-one-cpu [default: all]
  --quick            take short samples, less than five minutes in total; measure only tacit and the
                     best peers, and only workloads with goals. This does not restrict
                     the lists of --workloads and --peers if these options follow --quick
  --only PART        measure only PART: `proxies` for the peers, `runs` for programs under tacit
                     run, `links` for links beside other networks for programs
  --rounds N         number of samples of each peer in each workload [default: 5]
  --write            also replace BENCHMARKS.md; a copy is always in target/bench/
  --section TITLE    also write the tables of these workloads to BENCHMARKS.md under this title,
                     after the report, which stays as it is
  --json FILE        write all samples and the summary [default: target/bench/result.json]
  --congestion NAME  TCP congestion control of all sockets [default: cubic, or reno if the host
                     does not allow cubic]; `host` uses the host's setting

BENCHMARKS.md describes the workloads and the peers.";

/// With fewer rounds a median is not meaningful.
pub(crate) const ROUNDS_DEFAULT: usize = 5;

/// The peers of `--quick`: the best ones, and tacit.
const QUICK: [&str; 8] = [
    "inproc-openssl",
    "nginx",
    "envoy",
    "envoy-given",
    "tacit-fixed",
    "tacit-fixed-no-cache",
    peers::SUBJECT,
    peers::PLACED,
];

/// More rounds would take longer than a day.
const ROUNDS_MAX: usize = 1000;

/// The options.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) workloads: Vec<&'static Workload>,
    pub(crate) peers: Vec<&'static Peer>,
    pub(crate) rounds: usize,
    pub(crate) length: Length,
    /// Whether to replace `BENCHMARKS.md`.
    pub(crate) write: bool,
    /// The title in `BENCHMARKS.md` under which the workloads are written.
    pub(crate) section: Option<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) congestion: Option<String>,
    /// Whether to measure the peers.
    pub(crate) proxies: bool,
    /// Whether to measure programs under `tacit run`.
    pub(crate) runs: bool,
    /// Whether to measure links.
    pub(crate) links: bool,
    /// The options as given, without those that apply only to this machine.
    pub(crate) line: String,
    /// Set by the launcher.
    pub(crate) namespace: Namespace,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            workloads: WORKLOADS.iter().collect(),
            peers: PEERS.iter().collect(),
            rounds: ROUNDS_DEFAULT,
            length: Length::Whole,
            write: false,
            section: None,
            json: None,
            congestion: None,
            proxies: true,
            runs: true,
            links: true,
            line: String::new(),
            namespace: Namespace::Host,
        };
        let mut rest = words.iter().copied();
        while let Some(word) = rest.next() {
            match word {
                "--private-network" => {
                    options.namespace = Namespace::Own;
                    continue;
                }
                "--quick" => {
                    options.line.push_str(" --quick");
                    options.restrict_to_quick();
                    continue;
                }
                "--write" => {
                    options.write = true;
                    continue;
                }
                _ => {}
            }
            let value = rest.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            if word != "--json" {
                let shown = value.as_deref().unwrap_or_default();
                let quote = if shown.contains(' ') { "'" } else { "" };
                options.line.push_str(&format!(" {word} {quote}{shown}{quote}"));
            }
            match word {
                "--workloads" => options.workloads = list(word, value?, workload)?,
                "--peers" => options.peers = list(word, value?, peers::peer)?,
                "--rounds" => options.rounds = rounds(value?)?,
                "--only" => {
                    let only = value?;
                    options.proxies = only == "proxies";
                    options.runs = only == "runs";
                    options.links = only == "links";
                    if !options.proxies && !options.runs && !options.links {
                        return Err(format!("--only: unknown part `{only}`\n{USAGE}"));
                    }
                }
                "--section" => options.section = Some(value?.to_owned()),
                "--json" => options.json = Some(PathBuf::from(value?)),
                "--congestion" => options.congestion = Some(value?.to_owned()),
                _ => return Err(format!("unknown option {word}\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// Restricts the options to workloads with goals and the most important peers.
    fn restrict_to_quick(&mut self) {
        self.length = Length::Quick;
        self.runs = false;
        self.links = false;
        self.workloads.retain(|workload| workload.goal.is_some());
        self.peers.retain(|peer| QUICK.contains(&peer.name));
    }

    /// The total number of samples.
    pub(crate) fn samples(&self) -> usize {
        let of =
            |workload: &&Workload| self.peers.iter().filter(|peer| peer.supports(workload)).count();
        self.rounds * self.workloads.iter().map(of).sum::<usize>()
    }
}

fn rounds(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(rounds @ 1..=ROUNDS_MAX) => Ok(rounds),
        _ => Err(format!("--rounds {value}: expected a number from 1 to {ROUNDS_MAX}")),
    }
}

fn list<T>(option: &str, value: &str, find: fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    value
        .split(',')
        .map(|name| find(name).ok_or_else(|| format!("{option}: unknown name `{name}`\n{USAGE}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_five_times_by_default() {
        let all = Options::parse(&[]).unwrap();
        assert_eq!((all.rounds, all.workloads.len()), (5, WORKLOADS.len()));
        assert!(all.samples() > 5 * 10 * PEERS.len());
        let words = ["--peers", "direct,tacit-run", "--workloads", "1m,1m-tls12", "--rounds", "3"];
        let options = Options::parse(&words).unwrap();
        assert_eq!(options.samples(), 3 * (2 + 1), "direct has no TLS");
        assert_eq!(options.peers[1].name, "tacit-run");
        assert_eq!(options.workloads[0].name, "1m");
    }

    #[test]
    fn a_section_is_part_of_the_command_that_reproduces_it() {
        let words = ["--workloads", "beside", "--section", "messages beside streams"];
        let options = Options::parse(&words).unwrap();
        assert_eq!(options.section.as_deref(), Some("messages beside streams"));
        assert_eq!(options.line, " --workloads beside --section 'messages beside streams'");
    }

    #[test]
    fn a_quick_run_has_as_many_rounds_as_a_full_one() {
        let quick = Options::parse(&["--quick"]).unwrap();
        assert_eq!(quick.samples(), 5 * 5 * QUICK.len());
        assert!(quick.length == Length::Quick && !quick.runs && !quick.links);
        let links = Options::parse(&["--quick", "--only", "links"]).unwrap();
        assert!(links.links && !links.proxies && !links.runs);
    }

    #[test]
    fn errors_name_the_invalid_option() {
        for (words, named) in [
            (&["--peers", "direct,apache"][..], "`apache`"),
            (&["--workloads", ""], "``"),
            (&["--rounds", "0"], "--rounds 0: expected a number"),
            (&["--only", "walks"], "`walks`"),
            (&["--rounds"], "needs a value"),
            (&["--round", "3"], "unknown option --round"),
        ] {
            let error = Options::parse(words).unwrap_err();
            assert!(error.contains(named), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_usage_names_every_workload_and_peer() {
        let named = |name: &str| {
            let mut words = USAGE.split(|c: char| !(c.is_alphanumeric() || c == '-'));
            words.any(|word| word == name)
        };
        assert!(WORKLOADS.iter().all(|workload| named(workload.name)));
        assert!(PEERS.iter().all(|peer| named(peer.name)));
    }
}
