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

mod arguments;
mod report;
mod steps;

use std::time::Duration;

use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::statistics::Histogram;

pub(super) use self::arguments::RampArgs;
use self::steps::{Ramp, Seen, Step};
use super::clocks::Clocks;
use super::error::WorkloadError;
use super::limits::SETTLE_TIME;
use super::open::{CONNECTIONS, merged, open, record, share};
use super::socket::{Stream, allow_descriptors, resolve};
use super::watch::{Done, Ends, Watch};

/// Connections opened and closed before the first ramp: caches fill only once.
const WARM_UP_MAX: usize = 200;

/// How long the ends of a ramp's connections are waited for, after the pause.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(20);

pub(super) fn run(args: &RampArgs) -> Result<(), WorkloadError> {
    if args.step > args.connections {
        return Err(WorkloadError::Usage(format!(
            "--step {} is more than the {} connections of a ramp: use a smaller step",
            args.step, args.connections
        )));
    }
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let first = &args.client;
    let name = first.output.label.as_ref().unwrap_or(&first.connect);
    let mut ways = vec![Route { name: name.clone(), addresses: first.reach()? }];
    for way in &args.also {
        ways.push(Route { name: way.name.clone(), addresses: resolve(&way.connect)? });
    }
    allow_descriptors(args.connections)?;
    let driven = drive(&ways, args, &clocks)?;
    report::report(args, &driven.seen, &clocks, driven.charts).write(&args.client.output)
}

/// A way with its addresses.
struct Route {
    name: String,
    addresses: Vec<Address>,
}

/// What came of all ramps.
struct Driven {
    /// By way.
    seen: Vec<Seen>,
    charts: Vec<Chart>,
}

fn drive(ways: &[Route], args: &RampArgs, clocks: &Clocks) -> Result<Driven, WorkloadError> {
    let warm_up = args.step.min(WARM_UP_MAX);
    for way in ways {
        share(warm_up, args.at_once, |_, _, _: &mut ()| open(&way.addresses).map(drop))?;
    }
    args.client.output.steering().ready()?;
    let done = Done::new(args.at_once);
    let watch =
        Watch::start(CONNECTIONS, &done, Ends::default(), args.client.output.progress_lines());
    let empty = |way: &Route| Seen {
        way: way.name.clone(),
        ramps: Vec::new(),
        latency: Histogram::default(),
    };
    let mut seen: Vec<_> = ways.iter().map(empty).collect();
    for _ in 0..args.ramps {
        for (way, seen) in ways.iter().zip(&mut seen) {
            std::thread::sleep(args.pause);
            // What the last ramp has left to be taken apart would count as this one's.
            clocks.wait_until_idle(IDLE_WAIT_MAX)?;
            seen.ramps.push(climb(&way.addresses, args, clocks, &done, &mut seen.latency)?);
        }
    }
    Ok(Driven { seen, charts: watch.finish(None) })
}

/// What one thread has opened.
#[derive(Default)]
struct Part {
    streams: Vec<Stream>,
    latency: Histogram,
}

/// One ramp.
fn climb(
    addresses: &[Address],
    args: &RampArgs,
    clocks: &Clocks,
    done: &Done,
    latency: &mut Histogram,
) -> Result<Ramp, WorkloadError> {
    let mut steps = Vec::new();
    let mut held = Vec::with_capacity(args.connections);
    while held.len() < args.connections {
        let opened = args.step.min(args.connections - held.len());
        let before = clocks.read()?;
        let open_one = |thread, _, part: &mut Part| {
            let from = std::time::Instant::now();
            part.streams.push(open(addresses)?);
            record(&mut part.latency, from);
            done.count(thread, 1);
            Ok(())
        };
        let parts = share(opened, args.at_once, open_one)?;
        // What others still do for these belongs to them.
        std::thread::sleep(SETTLE_TIME);
        steps.push(Step { held: held.len(), opened, used: clocks.since(&before)? });
        latency.add(&merged(parts.iter().map(|part| &part.latency)));
        held.extend(parts.into_iter().flat_map(|part| part.streams));
        args.client.output.steering().held(held.len())?;
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::super::clocks::ClocksArgs;
    use super::super::open::tests::served;
    use super::arguments::tests::args;
    use super::*;

    #[test]
    fn steps_hold_what_was_opened_before_them() {
        let args = args(&["--connections", "50", "--step", "20", "--ramps", "2"]);
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let ways =
            ["one", "other"].map(|name| Route { name: name.to_owned(), addresses: vec![served()] });
        let seen = drive(&ways, &args, &clocks).unwrap().seen;
        assert_eq!(seen.iter().map(|seen| seen.way.as_str()).collect::<Vec<_>>(), ["one", "other"]);
        assert!(seen.iter().all(|seen| seen.latency.count() == 100 && seen.ramps.len() == 2));
        for ramp in seen.iter().flat_map(|seen| &seen.ramps) {
            let steps: Vec<_> = ramp.iter().map(|step| (step.held, step.opened)).collect();
            assert_eq!(steps, [(0, 20), (20, 20), (40, 10)]);
            assert!(ramp.iter().all(|step| step.used.named_ns() > 0));
        }
    }
}
