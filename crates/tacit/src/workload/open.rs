//! Opening connections, several at a time: what `connect`, `ramp` and `start-stop` share, and
//! `connect` itself.
//!
//! A connection counts as open when a byte has gone to the server and come back: whatever stands
//! between has then done its handshake. The ends speak no TLS: whether a handshake is full or
//! resumed is decided by what stands between, and told by its ledger.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::statistics::Histogram;

use super::clocks::{Clocks, Used};
use super::protocol::Wish;
use super::report::{Chart, Report};
use super::schedule::Schedule;
use super::watch::{Done, Ends, Unit, Watch};
use super::{
    ClientArgs, OPENED_MAX, SETTLE_TIME, Stream, THREADS_MAX, WorkloadError, at_once, count, dial,
    rate, resolve,
};

/// Connections that are opened, used once and closed
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload connect client --connect 127.0.0.1:7000
  tacit workload connect client --connect 127.0.0.1:7000 --rate 200 --ledger-of near=agent.sock

Whether handshakes are full or resumed is decided by the policy of the agent between the ends
(`resumption` of its rules); --ledger-of counts both.")]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Connections in all
    #[arg(long, value_name = "N", default_value = "3000", value_parser = count(OPENED_MAX))]
    connections: usize,
    /// How many are opened at a time
    #[arg(long, value_name = "N", default_value = "4", value_parser = count(THREADS_MAX))]
    at_once: usize,
    /// Connections a second [default: a closed loop]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
}

/// What the progress line counts.
pub(super) const CONNECTIONS: Unit = Unit { plural: "connections", of: 1.0 };

pub(super) fn run(args: &ConnectArgs) -> Result<(), WorkloadError> {
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let addresses = resolve(&args.client.connect)?;
    super::allow_descriptors(args.at_once)?;
    let (latency, used, charts) = drive(&addresses, args, &clocks)?;
    report(args, &latency, &used, &clocks, charts).write(&args.client.output)
}

/// Opens one connection, and says a byte each way on it.
pub(super) fn open(addresses: &[Address]) -> Result<Stream, WorkloadError> {
    const KNOCK: u8 = 0x55;
    let broken = |error| WorkloadError::Broken("a new connection", error);
    let mut stream = dial(addresses)?;
    let mut first = Wish::Exchange { request_bytes: 1, reply_bytes: 1 }.encode().to_vec();
    first.push(KNOCK);
    stream.write_all(&first).map_err(broken)?;
    let mut reply = [0];
    stream.read_exact(&mut reply).map_err(broken)?;
    match reply {
        [KNOCK] => Ok(stream),
        _ => Err(WorkloadError::Mixed("the first byte")),
    }
}

/// Ends a connection and waits until the far end has done so too.
pub(super) fn close(mut stream: Stream) -> Result<(), WorkloadError> {
    let ended = stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0]));
    match ended {
        // A reset ends it as well: nothing was on its way.
        Ok(0) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        Ok(_) => Err(WorkloadError::Mixed("a byte at the end")),
        Err(error) => Err(WorkloadError::Broken("a connection that was ended", error)),
    }
}

/// Numbers from 0 up to `total`, handed out to `at_once` threads, each calling `work` for its own.
/// Returns what each thread gathered.
pub(super) fn share<T: Send + Default>(
    total: usize,
    threads: usize,
    work: impl Fn(usize, usize, &mut T) -> Result<(), WorkloadError> + Sync,
) -> Result<Vec<T>, WorkloadError> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut workers = vec![(); threads.min(total)];
    at_once(&mut workers, &failed, |thread, ()| {
        let mut gathered = T::default();
        while !failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= total {
                break;
            }
            work(thread, number, &mut gathered)?;
        }
        Ok(gathered)
    })
}

fn drive(
    addresses: &[Address],
    args: &ConnectArgs,
    clocks: &Clocks,
) -> Result<(Histogram, Used, Vec<Chart>), WorkloadError> {
    // Caches of certificates and of memory are filled first.
    share(args.connections.div_ceil(20), args.at_once, |_, _, _: &mut ()| {
        open(addresses).map(drop)
    })?;
    std::thread::sleep(SETTLE_TIME);
    let done = Done::new(args.at_once);
    let watch = Watch::start(CONNECTIONS, &done, Ends::default(), args.client.output.progress);
    let before = clocks.read()?;
    let start = Instant::now();
    let schedule = args.rate.map(|rate| Schedule::share(rate, 1, 0));
    let parts = share(args.connections, args.at_once, |thread, number, seen: &mut Histogram| {
        let due = schedule.map(|schedule| {
            let due = start + Duration::from_nanos(schedule.due_ns(number as u64));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due
        });
        let from = due.unwrap_or_else(Instant::now);
        drop(open(addresses)?);
        record(seen, from);
        done.count(thread, 1);
        Ok(())
    })?;
    let used = clocks.since(&before)?;
    Ok((merged(&parts), used, watch.finish(None)))
}

/// Counts the time since an instant.
pub(super) fn record(seen: &mut Histogram, from: Instant) {
    seen.record(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

/// What all threads have counted.
pub(super) fn merged<'a>(parts: impl IntoIterator<Item = &'a Histogram>) -> Histogram {
    let mut all = Histogram::default();
    parts.into_iter().for_each(|part| all.add(part));
    all
}

fn report(
    args: &ConnectArgs,
    latency: &Histogram,
    used: &Used,
    clocks: &Clocks,
    charts: Vec<Chart>,
) -> Report {
    let ConnectArgs { connections, at_once, rate, .. } = args;
    let how = match rate {
        Some(rate) => format!("{rate} a second"),
        None => "closed loop".to_owned(),
    };
    let summary = format!(
        "{connections} connections, at most {at_once} at a time, a byte each way, {how}, {:.2} s",
        used.seconds
    );
    let mut report = Report::new("connect", summary);
    report.set("connections", *connections);
    report.set("at_once", *at_once);
    report.set("rate_per_s", *rate);
    report.set("closed_loop", rate.is_none());
    let opened = latency.count() as f64;
    report.figure("connections", "connections", "", opened);
    report.figure("connections_per_s", "rate", "/s", opened / used.seconds);
    let from = if rate.is_some() { "open since due" } else { "open" };
    report.latency("latency", from, latency);
    report.cpu(&clocks.names(), used, "connection", opened);
    if rate.is_none() {
        report.note("closed loop: the next connection waits for one before it; see --rate");
    }
    if used.ledgers.is_empty() {
        report.note(
            "these ends speak no TLS: whether handshakes were full or resumed is decided by what \
             stands between; --ledger-of counts both",
        );
    }
    report.charts.extend(charts);
    report
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::super::server;
    use super::*;

    pub(crate) fn served() -> Address {
        let listening = server::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        server::spawn(&listening, 1).unwrap();
        listening.address
    }

    #[test]
    fn every_number_is_worked_on_once() {
        let seen = Mutex::new(Vec::new());
        let parts = share(100, 7, |_, number, gathered: &mut usize| {
            *gathered += 1;
            seen.lock().unwrap().push(number);
            Ok(())
        });
        assert_eq!(parts.unwrap().iter().sum::<usize>(), 100);
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn one_failure_stops_the_others() {
        let worked = AtomicUsize::new(0);
        let error = share(1_000_000, 3, |_, number, _: &mut ()| {
            worked.fetch_add(1, Ordering::Relaxed);
            if number == 5 { Err(WorkloadError::Nothing) } else { Ok(()) }
        });
        assert!(matches!(error, Err(WorkloadError::Nothing)));
        assert!(worked.into_inner() < 1_000_000);
    }

    #[test]
    fn an_open_connection_is_closed_from_both_ends() {
        let address = served();
        for _ in 0..3 {
            close(open(std::slice::from_ref(&address)).unwrap()).unwrap();
        }
    }

    #[test]
    fn nobody_there_is_told_with_the_address() {
        let address: Address = "127.0.0.1:1".parse().unwrap();
        let error = open(&[address]).unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("workload MODE server"), "{error}");
    }
}
