//! `ramp`: connections are opened and held, and the CPU time of each step is divided by what it
//! opened. Is the next one dearer because so many are there?
//!
//! Several ramps are run one after the other, and one line is laid through the steps of all of
//! them: how much it rises from nothing held to the end, and how sure that is. What is looked at
//! is the CPU time of the processes named with `--cpu-of` and `--ledger-of`, or of the client where
//! none is.
//!
//! Several ways take turns, ramp by ramp: whatever else changes on the machine meanwhile meets all
//! of them, and what one costs more than the first is known with an interval of its own.

mod report;

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::statistics::Histogram;

use super::clocks::{Clocks, Used};
use super::open::{CONNECTIONS, merged, open, record, share};
use super::report::Chart;
use super::watch::{Done, Ends, Watch};
use super::{
    CONNECTIONS_MAX, ClientArgs, SETTLE_TIME, Stream, THREADS_MAX, WorkloadError, count, resolve,
};

/// Connections that are opened and held: what the next one costs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234
  tacit workload ramp client --connections 600 --step 120 --ledger-of far=agent.sock \\
    --connect 127.0.0.1:7101 --label none --also preferred=127.0.0.1:7102")]
pub(super) struct RampArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Another way, whose ramps take turns with those of --connect; what it costs more is printed;
    /// may be repeated
    #[arg(long, value_name = "NAME=HOST:PORT")]
    also: Vec<Way>,
    /// Connections held at the end of a ramp
    #[arg(long, value_name = "N", default_value = "9000", value_parser = count(CONNECTIONS_MAX))]
    connections: usize,
    /// Connections of a step
    #[arg(long, value_name = "N", default_value = "500", value_parser = count(CONNECTIONS_MAX))]
    step: usize,
    /// Ramps
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(RAMPS_MAX))]
    ramps: usize,
    /// How many are opened at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = count(THREADS_MAX))]
    at_once: usize,
    /// How long others may tidy up between two ramps, and until they are idle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    pause: Duration,
}

const RAMPS_MAX: usize = 100;
/// Ramps below which the interval says little.
const RAMPS_WANTED: usize = 5;
/// Connections opened and closed before the first ramp: caches fill only once.
const WARM_UP_MAX: usize = 200;

/// How long the ends of a ramp's connections are waited for, after the pause.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(20);

/// A way by a name of the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    name: String,
    connect: String,
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, connect)) if !name.is_empty() && !connect.is_empty() => {
                Ok(Self { name: name.to_owned(), connect: connect.to_owned() })
            }
            _ => Err("write a name and where it leads: preferred=127.0.0.1:7102".to_owned()),
        }
    }
}

/// The steps of one ramp.
type Ramp = Vec<Step>;

/// What was seen on one way.
#[derive(Debug)]
struct Seen {
    way: String,
    ramps: Vec<Ramp>,
    latency: Histogram,
}

/// What one step opened, and what that took.
#[derive(Debug)]
struct Step {
    held: usize,
    opened: usize,
    used: Used,
}

impl Step {
    /// How many were held in its middle.
    fn middle(&self) -> f64 {
        self.held as f64 + self.opened as f64 / 2.0
    }

    /// CPU time for each that it opened.
    fn us(&self, of: impl Fn(&Used) -> u64) -> f64 {
        of(&self.used) as f64 / 1000.0 / self.opened as f64
    }
}

pub(super) fn run(args: &RampArgs) -> Result<(), WorkloadError> {
    if args.step > args.connections {
        return Err(WorkloadError::Usage(format!(
            "--step {} is more than the {} connections of a ramp: take less",
            args.step, args.connections
        )));
    }
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let first = &args.client;
    let name = first.output.label.as_ref().unwrap_or(&first.connect);
    let others = args.also.iter().map(|way| (&way.name, &way.connect));
    let ways = [(name, &first.connect)].into_iter().chain(others);
    let ways = ways.map(|(name, connect)| Ok((name.clone(), resolve(connect)?)));
    let ways: Vec<_> = ways.collect::<Result<_, WorkloadError>>()?;
    super::allow_descriptors(args.connections)?;
    let (seen, charts) = drive(&ways, args, &clocks)?;
    report::report(args, &seen, &clocks, charts).write(&args.client.output)
}

fn drive(
    ways: &[(String, Vec<Address>)],
    args: &RampArgs,
    clocks: &Clocks,
) -> Result<(Vec<Seen>, Vec<Chart>), WorkloadError> {
    let warm_up = args.step.min(WARM_UP_MAX);
    for (_, addresses) in ways {
        share(warm_up, args.at_once, |_, _, _: &mut ()| open(addresses).map(drop))?;
    }
    let done = Done::new(args.at_once);
    let watch = Watch::start(CONNECTIONS, &done, Ends::default(), args.client.output.progress);
    let empty = |(way, _): &(String, _)| Seen {
        way: way.clone(),
        ramps: Vec::new(),
        latency: Histogram::default(),
    };
    let mut seen: Vec<_> = ways.iter().map(empty).collect();
    for _ in 0..args.ramps {
        for ((_, addresses), seen) in ways.iter().zip(&mut seen) {
            std::thread::sleep(args.pause);
            // What the last ramp has left to be taken apart would count as this one's.
            clocks.wait_until_idle(IDLE_WAIT_MAX)?;
            seen.ramps.push(climb(addresses, args, clocks, &done, &mut seen.latency)?);
        }
    }
    Ok((seen, watch.finish(None)))
}

/// One ramp.
fn climb(
    addresses: &[Address],
    args: &RampArgs,
    clocks: &Clocks,
    done: &Done,
    latency: &mut Histogram,
) -> Result<Ramp, WorkloadError> {
    let (mut steps, mut held) = (Vec::new(), Vec::with_capacity(args.connections));
    while held.len() < args.connections {
        let opened = args.step.min(args.connections - held.len());
        let before = clocks.read()?;
        let open_one = |thread, _, (streams, seen): &mut (Vec<Stream>, Histogram)| {
            let from = std::time::Instant::now();
            streams.push(open(addresses)?);
            record(seen, from);
            done.count(thread, 1);
            Ok(())
        };
        let parts = share(opened, args.at_once, open_one)?;
        // What others still do for these belongs to them.
        std::thread::sleep(SETTLE_TIME);
        steps.push(Step { held: held.len(), opened, used: clocks.since(&before)? });
        latency.add(&merged(parts.iter().map(|(_, seen)| seen)));
        held.extend(parts.into_iter().flat_map(|(streams, _)| streams));
    }
    Ok(steps)
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::super::clocks::ClocksArgs;
    use super::super::open::tests::served;
    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: RampArgs,
    }

    pub(crate) fn args(words: &[&str]) -> RampArgs {
        let words = ["", "--connect", "here", "--pause", "10ms"].iter().chain(words);
        Words::try_parse_from(words).unwrap().args
    }

    #[test]
    fn steps_hold_what_was_opened_before_them() {
        let args = args(&["--connections", "50", "--step", "20", "--ramps", "2"]);
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let ways = ["one", "other"].map(|name| (name.to_owned(), vec![served()]));
        let (seen, _) = drive(&ways, &args, &clocks).unwrap();
        assert_eq!(seen.iter().map(|seen| seen.way.as_str()).collect::<Vec<_>>(), ["one", "other"]);
        assert!(seen.iter().all(|seen| seen.latency.count() == 100 && seen.ramps.len() == 2));
        for ramp in seen.iter().flat_map(|seen| &seen.ramps) {
            let steps: Vec<_> = ramp.iter().map(|step| (step.held, step.opened)).collect();
            assert_eq!(steps, [(0, 20), (20, 20), (40, 10)]);
            assert!(ramp.iter().all(|step| step.used.named_ns() > 0));
        }
    }

    #[test]
    fn ways_have_names() {
        let way = Way { name: "none".to_owned(), connect: "here:7101".to_owned() };
        assert_eq!("none=here:7101".parse(), Ok(way));
        for wrong in ["here:7101", "=here:7101", "none="] {
            assert!(wrong.parse::<Way>().is_err(), "{wrong}");
        }
    }
}
