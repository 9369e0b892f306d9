//! Implements the `connect` workload: opens connections, sends one request on each connection, and
//! closes the connections after the replies.

use std::time::{Duration, Instant};

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::statistics::Histogram;
use tacit_core::workload::MESSAGE_BYTES_MAX;

use super::arguments::{ClientArgs, bytes, count, count_from, rate};
use super::clocks::{Clocks, CpuUsage};
use super::error::WorkloadError;
use super::limits::{BUFFERS_BYTES_MAX, OPENED_MAX, SETTLE_TIME, THREADS_MAX};
use super::open::{CONNECTIONS, distribute, merged, open_with, record};
use super::report::Report;
use super::schedule::Schedule;
use super::socket::allow_descriptors;
use super::watch::{Done, Watch, WatchedConnections};

/// Open connections, exchange one request on each, and close them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload connect client --connect 127.0.0.1:7000
  tacit workload connect client --connect 127.0.0.1:7000 --rate 200 --ledger-of near=agent.sock

The client and the server themselves use no TLS. The key `resumption` in the policy of the agents
between them decides whether handshakes are full or resumed; --ledger-of counts both types.")]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Total number of connections
    #[arg(long, value_name = "N", default_value = "3000", value_parser = count(OPENED_MAX))]
    connections: usize,
    /// Size of the request and of the reply
    #[arg(long, value_name = "BYTES", default_value = "1", value_parser = bytes(MESSAGE_BYTES_MAX))]
    bytes: u64,
    /// Connections to open and close before measuring [default: a twentieth of --connections]
    #[arg(long, value_name = "N", value_parser = count_from(0, OPENED_MAX))]
    warm_up: Option<usize>,
    /// Maximum number of connections open at the same time
    #[arg(long, value_name = "N", default_value = "4", value_parser = count(THREADS_MAX))]
    at_once: usize,
    /// Connections to open per second [default: open the next connection when a connection closes]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
}

/// The results of a client: latencies, CPU times and charts.
struct Results {
    latency: Histogram,
    used: CpuUsage,
    charts: Vec<Chart>,
}

pub(super) fn run(args: &ConnectArgs) -> Result<(), WorkloadError> {
    let buffers = args.bytes.saturating_mul(2 * args.at_once as u64);
    if buffers > BUFFERS_BYTES_MAX as u64 {
        return Err(WorkloadError::Usage(format!(
            "--bytes multiplied by --at-once needs {buffers} bytes of buffers, more than the limit \
             of {BUFFERS_BYTES_MAX}: lower one of the two options"
        )));
    }
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let addresses = args.client.resolve_server()?;
    allow_descriptors(args.at_once)?;
    let results = drive(&addresses, args, &clocks)?;
    report(args, &clocks, results).write(&args.client.output)
}

fn drive(
    addresses: &[Address],
    args: &ConnectArgs,
    clocks: &Clocks,
) -> Result<Results, WorkloadError> {
    let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
    // Warm-up fills the caches of certificates and of memory.
    let warm_up = args.warm_up.unwrap_or_else(|| args.connections.div_ceil(20));
    distribute(warm_up, args.at_once, |_, _, _: &mut ()| open_with(addresses, bytes).map(drop))?;
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
    let schedule = args.rate.map(|rate| Schedule::of_connection(rate, 1, 0));
    let parts =
        distribute(args.connections, args.at_once, |thread, number, results: &mut Histogram| {
            let due = schedule.map(|schedule| {
                let due = start + Duration::from_nanos(schedule.due_ns(number as u64));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                due
            });
            let from = due.unwrap_or_else(Instant::now);
            drop(open_with(addresses, bytes)?);
            record(results, from);
            done.count(thread, 1);
            Ok(())
        })?;
    if let Some(schedule) = schedule {
        // The interval after the last connection is part of the load. Without it, the reported
        // rate would be higher than the rate of the load.
        let end = start + Duration::from_nanos(schedule.due_ns(args.connections as u64));
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }
    let used = clocks.since(&before)?;
    Ok(Results { latency: merged(&parts), used, charts: watch.finish(None) })
}

fn report(args: &ConnectArgs, clocks: &Clocks, results: Results) -> Report {
    let Results { latency, used, charts } = results;
    let ConnectArgs { connections, at_once, bytes, rate, .. } = args;
    let pace = match rate {
        Some(rate) => format!("{rate} connections/s"),
        None => "closed loop".to_owned(),
    };
    let sizes = match bytes {
        1 => "requests and replies of 1 byte".to_owned(),
        _ => format!("requests and replies of {bytes} bytes"),
    };
    let summary = format!(
        "{connections} connections, at most {at_once} at a time, {sizes}, {pace}, {time:.2} s",
        time = used.seconds
    );
    let mut report = Report::new("connect", summary);
    report.set("connections", *connections);
    report.set("at_once", *at_once);
    report.set("bytes", *bytes);
    report.set("rate_per_s", *rate);
    report.set("closed_loop", rate.is_none());
    let opened = latency.count() as f64;
    report.figure("connections", "connections", "", opened);
    report.figure("connections_per_s", "rate", "/s", opened / used.seconds);
    report.figure("seconds", "time", "s", used.seconds);
    let from = if rate.is_some() {
        "latency, measured from the scheduled time of the connection"
    } else {
        "latency"
    };
    report.latency("latency", from, &latency);
    report.cpu(&clocks.names(), &used, "connection", opened);
    if rate.is_none() {
        report.note(
            "the client opens the next connection only after closing another one (closed loop). So \
             slow connections lower the load. For a fixed load, use --rate",
        );
    }
    if used.ledgers.is_empty() {
        report.note(
            "the client and the server use no TLS, so they cannot count handshakes: use \
             --ledger-of to report the full and resumed handshakes of the agents between them",
        );
    }
    report.charts.extend(charts);
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
        args: ConnectArgs,
    }

    #[test]
    fn the_requested_number_of_connections_is_made_with_any_message_size() {
        for bytes in ["1", "100", "70000"] {
            let words = ["", "--connect", "here", "--connections", "20", "--bytes", bytes];
            let args = Words::try_parse_from(words).unwrap().args;
            let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
            let results = drive(&[served()], &args, &clocks).unwrap();
            assert_eq!(results.latency.count(), 20, "{bytes}");
            let json = report(&args, &clocks, results).json();
            assert_eq!(json["settings"]["bytes"].to_string(), bytes);
            assert!(json["figures"]["seconds"].as_f64().unwrap() > 0.0);
        }
    }

    #[test]
    fn the_reported_rate_is_not_higher_than_the_requested_rate() {
        let words = ["", "--connect", "here", "--connections", "2", "--rate", "20"];
        let args = Words::try_parse_from(words).unwrap().args;
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let results = drive(&[served()], &args, &clocks).unwrap();
        assert!(results.used.seconds >= 0.1, "{:?}", results.used);
    }
}
