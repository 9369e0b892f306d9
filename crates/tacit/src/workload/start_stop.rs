//! Implements the `start-stop` workload: opens thousands of connections (starts), keeps them open,
//! and closes them (stops). The report shows the rate and the CPU time of starts and of stops.
//!
//! With `--inbound`, the client opens connections to two addresses in turn: one address for
//! outbound connections, and one address for inbound connections. This imitates two queue managers
//! (IBM MQ), each of which connects to the other. A start ends when the first reply arrives. A stop
//! ends when the server has closed the connection too.

use std::time::Instant;

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::statistics::Histogram;

use super::arguments::{ClientArgs, count};
use super::clocks::{Clocks, CpuUsage};
use super::error::WorkloadError;
use super::limits::{CONNECTIONS_MAX, SETTLE_TIME, THREADS_MAX};
use super::open::{CONNECTIONS, close, distribute, merged, open, record};
use super::report::Report;
use super::socket::{Stream, allow_descriptors, resolve};
use super::watch::{Done, Watch, WatchedConnections};

/// Open thousands of connections, then close them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload start-stop client --connect 127.0.0.1:7000 --json clear.json
  tacit workload start-stop client --connect 127.0.0.1:7001 --inbound 127.0.0.1:7002 \\
    --cpu-of agent=1234 --beside clear.json")]
pub(super) struct StartStopArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Also open the same number of inbound connections through this address, alternating with
    /// the outbound connections
    #[arg(long, value_name = "HOST:PORT")]
    inbound: Option<String>,
    /// Number of connections through each address
    #[arg(long, value_name = "N", default_value = "4000", value_parser = count(CONNECTIONS_MAX))]
    connections: usize,
    /// Connections to start or stop at the same time
    #[arg(long, value_name = "N", default_value = "4", value_parser = count(THREADS_MAX))]
    at_once: usize,
}

/// The results.
#[derive(Debug)]
struct Results {
    starting: CpuUsage,
    start_s: f64,
    /// How long each connection took to start, for each direction.
    latency: Vec<Histogram>,
    stopping: CpuUsage,
    stop_s: f64,
    charts: Vec<Chart>,
}

/// The connections that one thread has opened.
#[derive(Default)]
struct Started {
    streams: Vec<Stream>,
    /// How long each connection took to start, for each direction.
    latency: Vec<Histogram>,
}

const WAYS: [&str; 2] = ["outbound", "inbound"];
/// Connections to open and close before the measurement, in order to fill caches.
const WARM_UP: usize = 100;

pub(super) fn run(args: &StartStopArgs) -> Result<(), WorkloadError> {
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let mut ways = vec![args.client.resolve_server()?];
    if let Some(inbound) = &args.inbound {
        ways.push(resolve(inbound)?);
    }
    let total = args.connections * ways.len();
    if total > CONNECTIONS_MAX {
        return Err(WorkloadError::Usage(format!(
            "the total of --connections for all addresses is {total}, but the limit is \
             {CONNECTIONS_MAX}: use a lower value of --connections"
        )));
    }
    allow_descriptors(total)?;
    let results = drive(&ways, args, &clocks)?;
    report(args, total, &results, &clocks).write(&args.client.output)
}

fn drive(
    ways: &[Vec<Address>],
    args: &StartStopArgs,
    clocks: &Clocks,
) -> Result<Results, WorkloadError> {
    let total = args.connections * ways.len();
    let way = |number: usize| &ways[number % ways.len()];
    distribute(WARM_UP.min(total), args.at_once, |_, number, _: &mut ()| {
        open(way(number)).and_then(close)
    })?;
    std::thread::sleep(SETTLE_TIME);
    args.client.output.steering().ready()?;

    let done = Done::new(args.at_once);
    let watch = Watch::start(
        CONNECTIONS,
        &done,
        WatchedConnections::default(),
        args.client.output.progress_lines(),
    );
    let before = clocks.read()?;
    let start = Instant::now();
    let open_one = |thread, number, part: &mut Started| {
        part.latency.resize_with(ways.len(), Histogram::default);
        let from = Instant::now();
        part.streams.push(open(way(number))?);
        if let Some(latency) = part.latency.get_mut(number % ways.len()) {
            record(latency, from);
        }
        done.count(thread, 1);
        Ok(())
    };
    let parts = distribute(total, args.at_once, open_one)?;
    let start_s = start.elapsed().as_secs_f64();
    // Other processes may still work for a phase; that work belongs to it.
    std::thread::sleep(SETTLE_TIME);
    let starting = clocks.since(&before)?;
    let charts = watch.finish(None);

    let by_way = |way| merged(parts.iter().filter_map(|part: &Started| part.latency.get(way)));
    let latency = (0..ways.len()).map(by_way).collect();
    let streams = std::sync::Mutex::new(parts.into_iter().flat_map(|part| part.streams));
    let before = clocks.read()?;
    let stop = Instant::now();
    distribute(total, args.at_once, |_, _, _: &mut ()| {
        // A thread panicked, so the measurement has failed.
        let stream = streams.lock().map_err(|_| WorkloadError::Panicked)?.next();
        stream.map_or(Ok(()), close)
    })?;
    let stop_s = stop.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE_TIME);
    let stopping = clocks.since(&before)?;
    Ok(Results { starting, start_s, latency, stopping, stop_s, charts })
}

fn report(args: &StartStopArgs, total: usize, results: &Results, clocks: &Clocks) -> Report {
    let ways: Vec<_> = WAYS.iter().take(results.latency.len()).copied().collect();
    let StartStopArgs { connections, at_once, .. } = args;
    let summary = format!(
        "{connections} connections per direction ({directions}): the client first opens all \
         connections, {at_once} at a time, and then closes all connections, also {at_once} at a \
         time",
        directions = ways.join(", ")
    );
    let mut report = Report::new("start-stop", summary);
    report.set("connections", *connections);
    report.set("ways", ways.clone());
    report.set("at_once", *at_once);
    let all = total as f64;
    report.figure("starts_per_s", "starts", "/s", all / results.start_s);
    report.figure("stops_per_s", "stops", "/s", all / results.stop_s);
    for (way, latency) in ways.iter().zip(&results.latency) {
        report.latency(&format!("start_{way}"), &format!("start {way}"), latency);
    }
    let names = clocks.names();
    report.cpu(&names, &results.starting, "start", all);
    report.cpu(&names, &results.stopping, "stop", all);
    report.note(
        "each thread starts the next connection only when its previous connection is open (closed \
         loop)",
    );
    report.note(
        "for comparison, IBM has published figures of MQ channels with AT-TLS. To start a channel, \
         the TCP/IP stack needs 30 us of CPU time in clear, and 210 to 690 us with TLS. To stop a \
         channel, the stack needs 45 us in clear, and 100 to 150 us with TLS. The number of \
         channels that MQ starts in a second is 20 to 25 % lower with TLS than in clear. This \
         workload only opens a connection and sends two bytes, but MQ does much more work for a \
         channel. So TLS lowers the rate of this workload more than the rate of MQ",
    );
    report.charts.extend(results.charts.iter().cloned());
    report
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::clocks::ClocksArgs;
    use super::super::open::tests::served;
    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: StartStopArgs,
    }

    #[test]
    fn both_directions_are_started_in_turns_and_stopped() {
        let words = ["", "--connect", "a", "--inbound", "b", "--connections", "30"];
        let args = Words::try_parse_from(words).unwrap().args;
        let ways = [vec![served()], vec![served()]];
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let results = drive(&ways, &args, &clocks).unwrap();
        let counts: Vec<_> = results.latency.iter().map(Histogram::count).collect();
        assert_eq!(counts, [30, 30]);
        let json = report(&args, 60, &results, &clocks).json();
        for key in [
            "starts_per_s",
            "stops_per_s",
            "start_outbound_p50_us",
            "start_inbound_p999_us",
            "cpu_us_per_start",
            "cpu_us_per_stop",
        ] {
            assert!(json["figures"][key].as_f64().unwrap() > 0.0, "{key}: {json}");
        }
        assert_eq!(json["settings"]["ways"][1], "inbound");
    }
}
