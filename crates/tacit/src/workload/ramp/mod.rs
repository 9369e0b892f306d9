//! Implements the `ramp` workload. The workload measures whether a new connection needs more CPU
//! time when many connections are open.
//!
//! A ramp opens connections in steps and keeps them open. Each step gives one point: the CPU time
//! of the step, divided by the number of new connections. The report shows a linear fit of these
//! points, and its slope with a confidence interval. The options `--cpu-of` and `--ledger-of`
//! select the measured processes; the default is the client itself.
//!
//! With `--also`, the client runs ramps to several addresses in turn. For each address, the report
//! shows the CPU time of a connection, and the difference from the first address.

mod arguments;
mod report;
mod steps;

use std::time::Duration;

use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::statistics::Histogram;

pub(super) use self::arguments::RampArgs;
use self::steps::{Ramp, RouteResults, Step};
use super::clocks::Clocks;
use super::error::WorkloadError;
use super::limits::SETTLE_TIME;
use super::open::{CONNECTIONS, distribute, merged, open, record};
use super::socket::{Stream, allow_descriptors, resolve};
use super::watch::{Done, Watch, WatchedConnections};

/// Connections to open and close before the first ramp, in order to fill caches.
const WARM_UP_MAX: usize = 200;

/// How long to wait, after the pause, until the processes have closed the connections of the last
/// ramp.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(20);

pub(super) fn run(args: &RampArgs) -> Result<(), WorkloadError> {
    if args.step > args.connections {
        return Err(WorkloadError::Usage(format!(
            "--step {step} exceeds --connections {connections}: use a smaller step",
            step = args.step,
            connections = args.connections
        )));
    }
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let first = &args.client;
    let name = first.output.label.as_ref().unwrap_or(&first.connect);
    let mut routes = vec![Route { name: name.clone(), addresses: first.resolve_server()? }];
    for route in &args.also {
        routes.push(Route { name: route.name.clone(), addresses: resolve(&route.connect)? });
    }
    allow_descriptors(args.connections)?;
    let ramps = drive(&routes, args, &clocks)?;
    report::report(args, &ramps.results, &clocks, ramps.charts).write(&args.client.output)
}

/// A route with its resolved addresses.
struct Route {
    name: String,
    addresses: Vec<Address>,
}

/// The results of all ramps.
struct RampResults {
    /// For each route.
    results: Vec<RouteResults>,
    charts: Vec<Chart>,
}

fn drive(routes: &[Route], args: &RampArgs, clocks: &Clocks) -> Result<RampResults, WorkloadError> {
    let warm_up = args.step.min(WARM_UP_MAX);
    for route in routes {
        distribute(warm_up, args.at_once, |_, _, _: &mut ()| open(&route.addresses).map(drop))?;
    }
    args.client.output.steering().ready()?;
    let done = Done::new(args.at_once);
    let watch = Watch::start(
        CONNECTIONS,
        &done,
        WatchedConnections::default(),
        args.client.output.progress_lines(),
    );
    let empty = |route: &Route| RouteResults {
        route: route.name.clone(),
        ramps: Vec::new(),
        latency: Histogram::default(),
    };
    let mut results: Vec<_> = routes.iter().map(empty).collect();
    for _ in 0..args.ramps {
        for (route, results) in routes.iter().zip(&mut results) {
            std::thread::sleep(args.pause);
            // Otherwise the work of closing the last connections would count for this ramp.
            clocks.wait_until_idle(IDLE_WAIT_MAX)?;
            results.ramps.push(run_ramp(
                &route.addresses,
                args,
                clocks,
                &done,
                &mut results.latency,
            )?);
        }
    }
    Ok(RampResults { results, charts: watch.finish(None) })
}

/// What one thread opened.
#[derive(Default)]
struct Opened {
    streams: Vec<Stream>,
    latency: Histogram,
}

/// Runs one ramp.
fn run_ramp(
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
        let open_one = |thread, _, part: &mut Opened| {
            let from = std::time::Instant::now();
            part.streams.push(open(addresses)?);
            record(&mut part.latency, from);
            done.count(thread, 1);
            Ok(())
        };
        let parts = distribute(opened, args.at_once, open_one)?;
        // The other processes may still work for these connections; that work belongs to the step.
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
    fn steps_count_the_connections_opened_before_them() {
        let args = args(&["--connections", "50", "--step", "20", "--ramps", "2"]);
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let routes =
            ["one", "other"].map(|name| Route { name: name.to_owned(), addresses: vec![served()] });
        let results = drive(&routes, &args, &clocks).unwrap().results;
        assert_eq!(
            results.iter().map(|results| results.route.as_str()).collect::<Vec<_>>(),
            ["one", "other"]
        );
        assert!(
            results
                .iter()
                .all(|results| results.latency.count() == 100 && results.ramps.len() == 2)
        );
        for ramp in results.iter().flat_map(|results| &results.ramps) {
            let steps: Vec<_> = ramp.iter().map(|step| (step.held, step.opened)).collect();
            assert_eq!(steps, [(0, 20), (20, 20), (40, 10)]);
            assert!(ramp.iter().all(|step| step.used.named_ns() > 0));
        }
    }
}
