//! Implements the workloads `interactive` and `request-reply`, which exchange requests and replies.
//!
//! Each connection has a thread. Without `--rate`, a thread sends its next request when the reply
//! to its previous request has arrived. With `--rate`, a thread sends requests at scheduled times.
//! The latency of a request starts at its scheduled time, so that the delays of a slow server are
//! measured.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::statistics::Histogram;
use tacit_core::workload::{MESSAGE_BYTES_MAX, WorkloadRequest, repeated_bytes};

use super::arguments::{ClientArgs, bytes, count, rate, time};
use super::clocks::{Clocks, CpuUsage};
use super::error::WorkloadError;
use super::limits::{BUFFERS_BYTES_MAX, DUE_MAX, THREADS_MAX};
use super::report::{OutputArgs, Report, with_noun};
use super::schedule::Schedule;
use super::socket::{Stream, allow_descriptors, dial};
use super::threads::run_on_threads;
use super::watch::{Done, Unit, Watch, WatchedConnections};

/// Exchange short messages on several connections
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload interactive client --connect 127.0.0.1:7000
  tacit workload interactive client --connect 127.0.0.1:7000 --rate 5000 --cpu-of agent=1234")]
pub(super) struct InteractiveArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Number of connections
    #[arg(long, value_name = "N", default_value = "10", value_parser = count(THREADS_MAX))]
    connections: usize,
    /// Size of each request and of each reply
    #[arg(long, value_name = "BYTES", default_value = "100",
          value_parser = bytes(MESSAGE_BYTES_MAX))]
    bytes: u64,
    #[command(flatten)]
    pace: PaceArgs,
}

/// Exchange requests and replies of given sizes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload request-reply client --connect 127.0.0.1:7000 --request 500 --reply 32767
  tacit workload request-reply client --connect 127.0.0.1:7000 --request 1MiB --reply 1MiB \\
    --connections 1 --html megabyte.html")]
pub(super) struct RequestReplyArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Number of connections
    #[arg(long, value_name = "N", default_value = "10", value_parser = count(THREADS_MAX))]
    connections: usize,
    /// Size of each request
    #[arg(long, value_name = "BYTES", default_value = "2KiB",
          value_parser = bytes(MESSAGE_BYTES_MAX))]
    request: u64,
    /// Size of each reply
    #[arg(long, value_name = "BYTES", default_value = "2KiB",
          value_parser = bytes(MESSAGE_BYTES_MAX))]
    reply: u64,
    #[command(flatten)]
    pace: PaceArgs,
}

/// The rate and the duration of a measurement.
#[derive(Clone, Debug, Args)]
struct PaceArgs {
    /// Requests per second of all connections together [default: send the next request when the
    /// reply arrives]
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    seconds: Duration,
    /// Duration of the load before the measurement starts
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    warm_up: Duration,
}

/// The load of a measurement.
#[derive(Debug)]
struct Load {
    connections: usize,
    request_bytes: usize,
    reply_bytes: usize,
    pace: PaceArgs,
}

pub(super) fn interactive(args: &InteractiveArgs) -> Result<(), WorkloadError> {
    let InteractiveArgs { client, connections, bytes, pace } = args;
    measure("interactive", client, &Load::of(*connections, Sizes::equal(*bytes), pace))
}

pub(super) fn request_reply(args: &RequestReplyArgs) -> Result<(), WorkloadError> {
    let RequestReplyArgs { client, connections, request, reply, pace } = args;
    let sizes = Sizes { request_bytes: *request, reply_bytes: *reply };
    measure("request-reply", client, &Load::of(*connections, sizes, pace))
}

/// The sizes of messages.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    request_bytes: u64,
    reply_bytes: u64,
}

impl Sizes {
    fn equal(bytes: u64) -> Self {
        Self { request_bytes: bytes, reply_bytes: bytes }
    }
}

impl Load {
    fn of(connections: usize, sizes: Sizes, pace: &PaceArgs) -> Self {
        // The options limit both to far less.
        let in_memory = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            connections,
            request_bytes: in_memory(sizes.request_bytes),
            reply_bytes: in_memory(sizes.reply_bytes),
            pace: pace.clone(),
        }
    }

    /// Checks the limits that depend on several options.
    fn check(&self) -> Result<(), WorkloadError> {
        let bytes = self.connections * (self.request_bytes + self.reply_bytes);
        if bytes > BUFFERS_BYTES_MAX {
            return Err(WorkloadError::Usage(format!(
                "requests and replies of all connections need {bytes} bytes of memory, more than \
                 the limit of {BUFFERS_BYTES_MAX}: use fewer connections or smaller messages"
            )));
        }
        let due = self.pace.rate.unwrap_or(0.0) * self.pace.seconds.as_secs_f64();
        if due > DUE_MAX {
            return Err(WorkloadError::Usage(format!(
                "--rate multiplied by --seconds gives {due} requests, which exceeds the limit of \
                 {DUE_MAX}: lower one of the two options"
            )));
        }
        Ok(())
    }

    fn request(&self) -> WorkloadRequest {
        WorkloadRequest::Exchange {
            request_bytes: self.request_bytes as u64,
            reply_bytes: self.reply_bytes as u64,
        }
    }
}

fn measure(mode: &'static str, client: &ClientArgs, load: &Load) -> Result<(), WorkloadError> {
    load.check()?;
    let addresses = client.resolve_server()?;
    let clocks = Clocks::of(&client.output.clocks)?;
    let measured = drive(&addresses, load, &clocks, &client.output)?;
    report(mode, load, &clocks, &measured)?.write(&client.output)
}

/// The results of a measurement.
struct Measured {
    results: Results,
    used: CpuUsage,
    charts: Vec<Chart>,
    /// Keeps the connections open until the report is written.
    _connections: Vec<Connection>,
}

/// The counts and latencies of one or several connections.
#[derive(Debug, Default)]
struct Results {
    done: u64,
    /// Scheduled requests that were not sent before the end.
    unsent: u64,
    /// The time between the scheduled time of a request and its reply. Without `--rate`, the time
    /// at which the request is sent counts as its scheduled time.
    latency: Histogram,
    /// The time between sending a request and receiving its reply.
    service: Histogram,
}

impl Results {
    fn add(&mut self, other: &Self) {
        self.done += other.done;
        self.unsent += other.unsent;
        self.latency.add(&other.latency);
        self.service.add(&other.service);
    }
}

fn drive(
    addresses: &[Address],
    load: &Load,
    clocks: &Clocks,
    output: &OutputArgs,
) -> Result<Measured, WorkloadError> {
    allow_descriptors(load.connections)?;
    let mut connections = (0..load.connections)
        .map(|_| Connection::open(addresses, load))
        .collect::<Result<Vec<_>, _>>()?;
    // Warm-up opens TCP windows, faults in buffers and lets the scheduler distribute the threads.
    let failed = AtomicBool::new(false);
    let warm_up = Pace { start: Instant::now(), length: load.pace.warm_up };
    run_on_threads(&mut connections, &failed, |_, connection| {
        connection.closed_loop(&warm_up, &failed, || ())
    })?;
    output.steering().ready()?;

    let done = Done::new(load.connections);
    let own = connections.first().and_then(|first| first.stream.try_clone().ok());
    let watched = WatchedConnections { own, agents: output.watched() };
    let watch = Watch::start(
        Unit { plural: "exchanges", of: 1.0 },
        &done,
        watched,
        output.progress_lines(),
    );
    let before = clocks.read()?;
    // All threads must have started when the first requests are due.
    let start = Instant::now() + THREAD_START_TIME * u32::try_from(load.connections).unwrap_or(0);
    let results = run_on_threads(&mut connections, &failed, |number, connection| {
        let schedule =
            load.pace.rate.map(|rate| Schedule::of_connection(rate, load.connections, number));
        let pace = Pace { start, length: load.pace.seconds };
        let count = || done.count(number, 1);
        match schedule {
            Some(schedule) => connection.scheduled(&pace, schedule, &failed, count),
            None => connection.closed_loop(&pace, &failed, count),
        }
    })?;
    if load.pace.rate.is_some() {
        // The interval after the last request is part of the load. Without it, the reported rate
        // would be higher than the rate of the load.
        thread::sleep((start + load.pace.seconds).saturating_duration_since(Instant::now()));
    }
    let used = clocks.since(&before)?;
    let mut all = Results::default();
    results.iter().for_each(|one| all.add(one));
    Ok(Measured { results: all, used, charts: watch.finish(None), _connections: connections })
}

/// An upper estimate of the time that starting a thread takes.
const THREAD_START_TIME: Duration = Duration::from_micros(100);

/// When a connection starts and for how long it sends.
struct Pace {
    start: Instant,
    length: Duration,
}

/// One connection.
struct Connection {
    stream: Stream,
    request: Vec<u8>,
    reply: Vec<u8>,
    sent: u64,
}

impl Connection {
    fn open(addresses: &[Address], load: &Load) -> Result<Self, WorkloadError> {
        let mut stream = dial(addresses)?;
        stream.write_all(&load.request().encode()).map_err(broken)?;
        let request = vec![7; load.request_bytes];
        let reply = vec![7; load.reply_bytes];
        Ok(Self { stream, request, reply, sent: 0 })
    }

    fn exchange(&mut self) -> Result<(), WorkloadError> {
        self.sent += 1;
        let number = self.sent.to_le_bytes();
        let repeated = repeated_bytes(self.request.len(), self.reply.len());
        self.request[..repeated].copy_from_slice(&number[..repeated]);
        self.stream.write_all(&self.request).map_err(broken)?;
        self.stream.read_exact(&mut self.reply).map_err(broken)?;
        if self.reply[..repeated] != number[..repeated] {
            return Err(WorkloadError::Mixed("a reply contains the number of another request"));
        }
        Ok(())
    }

    /// Sends the next request when the reply to the last one arrives.
    fn closed_loop(
        &mut self,
        pace: &Pace,
        failed: &AtomicBool,
        count: impl Fn(),
    ) -> Result<Results, WorkloadError> {
        let mut results = Results::default();
        let end = pace.start + pace.length;
        let mut sent = Instant::now();
        while sent < end && !failed.load(Ordering::Relaxed) {
            self.exchange()?;
            let now = Instant::now();
            results.latency.record(ns(now - sent));
            results.done += 1;
            count();
            sent = now;
        }
        Ok(results)
    }

    /// Sends each request at its scheduled time, or immediately if that time has passed.
    fn scheduled(
        &mut self,
        pace: &Pace,
        schedule: Schedule,
        failed: &AtomicBool,
        count: impl Fn(),
    ) -> Result<Results, WorkloadError> {
        let mut results = Results::default();
        let end = ns(pace.length);
        for due in schedule.due_before(0, end) {
            let due_at = pace.start + Duration::from_nanos(due);
            let now = Instant::now();
            if ns(now.saturating_duration_since(pace.start)) >= end {
                break;
            }
            if failed.load(Ordering::Relaxed) {
                return Ok(results);
            }
            thread::sleep(due_at.saturating_duration_since(now));
            let sent = Instant::now();
            self.exchange()?;
            let answered = Instant::now();
            results.latency.record(ns(answered.saturating_duration_since(due_at)));
            results.service.record(ns(answered - sent));
            results.done += 1;
            count();
        }
        let stopped = ns(pace.start.elapsed());
        for due in schedule.due_before(results.done, end) {
            results.latency.record(stopped.saturating_sub(due));
            results.unsent += 1;
        }
        Ok(results)
    }
}

fn broken(error: std::io::Error) -> WorkloadError {
    WorkloadError::Broken("an exchange", error)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn report(
    mode: &'static str,
    load: &Load,
    clocks: &Clocks,
    measured: &Measured,
) -> Result<Report, WorkloadError> {
    let Measured { results, used, charts, .. } = measured;
    if results.done == 0 {
        return Err(WorkloadError::Nothing);
    }
    let Load { connections, request_bytes, reply_bytes, pace } = load;
    let sizes = if request_bytes == reply_bytes {
        format!("requests and replies of {request_bytes} bytes")
    } else {
        format!("requests of {request_bytes} bytes, replies of {reply_bytes} bytes")
    };
    let how = match pace.rate {
        Some(rate) => format!("{rate} requests/s"),
        None => "closed loop".to_owned(),
    };
    let lines = with_noun(*connections, "connection");
    let summary = format!("{lines}, {sizes}, {how}, {:.1} s", used.seconds);
    let mut report = Report::new(mode, summary);
    report.set("connections", *connections);
    report.set("request_bytes", *request_bytes);
    report.set("reply_bytes", *reply_bytes);
    report.set("rate_per_s", pace.rate);
    report.set("closed_loop", pace.rate.is_none());
    report.set("seconds", pace.seconds.as_secs_f64());
    let done = results.done as f64;
    report.figure("exchanges", "exchanges", "", done);
    report.figure("exchanges_per_s", "rate", "/s", done / used.seconds);
    report.figure("seconds", "time", "s", used.seconds);
    let bytes = done * (request_bytes + reply_bytes) as f64;
    report.figure("mb_per_s", "data rate (requests+replies)", "MB/s", bytes / 1e6 / used.seconds);
    if pace.rate.is_some() {
        report.latency(
            "latency",
            "latency, measured from the scheduled time of the request",
            &results.latency,
        );
        report.latency(
            "service",
            "latency, measured from the sending of the request",
            &results.service,
        );
        report.figure("unsent", "requests scheduled but not sent", "", results.unsent as f64);
        if results.unsent > 0 {
            report.note(
                "the client could not send requests at the requested rate. For each request that \
                 it did not send, the latency is the time from the scheduled time to the end of \
                 the measurement",
            );
        }
    } else {
        report.latency("latency", "latency", &results.latency);
        report.note(
            "the client sends the next request only after a reply (closed loop). So a slow server \
             receives fewer requests, and the reported latencies are lower than with a fixed load. \
             For a fixed load, use --rate",
        );
    }
    report.cpu(&clocks.names(), used, "exchange", done);
    report.charts.extend(charts.iter().cloned());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::super::clocks::ClocksArgs;
    use super::super::server;
    use super::*;

    fn load(request: u64, reply: u64, rate: Option<f64>) -> Load {
        let seconds = Duration::from_millis(200);
        let warm_up = Duration::from_millis(10);
        let sizes = Sizes { request_bytes: request, reply_bytes: reply };
        Load::of(3, sizes, &PaceArgs { rate, seconds, warm_up })
    }

    fn measured(load: &Load) -> Measured {
        let listening = server::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        server::spawn(&listening, 1).unwrap();
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        drive(&[listening.address], load, &clocks, &OutputArgs::default()).unwrap()
    }

    fn driven(load: &Load) -> Results {
        measured(load).results
    }

    #[test]
    fn a_closed_loop_counts_every_exchange_once() {
        for (request, reply) in [(1, 1), (500, 32_767), (1_000_000, 9)] {
            let results = driven(&load(request, reply, None));
            assert!(results.done >= 3, "{request} {reply}: {results:?}");
            assert_eq!(results.latency.count(), results.done);
            assert_eq!(results.unsent, 0);
        }
    }

    #[test]
    fn every_request_that_is_due_is_counted_sent_or_not() {
        for rate in [500.0, 1e6] {
            let results = driven(&load(100, 100, Some(rate)));
            // The interval between requests is rounded to nanoseconds.
            let due = rate * 0.2;
            let counted = results.latency.count() as f64;
            assert!((counted - due).abs() <= due * 1e-3 + 3.0, "{counted} of {due}");
            assert_eq!(results.done + results.unsent, results.latency.count());
            assert_eq!(results.service.count(), results.done);
        }
    }

    #[test]
    fn a_fixed_load_is_measured_until_its_planned_end() {
        let load = load(100, 100, Some(5.0));
        let measured = measured(&load);
        assert_eq!(measured.results.latency.count(), 1);
        assert!(measured.used.seconds >= load.pace.seconds.as_secs_f64(), "{:?}", measured.used);
    }

    #[test]
    fn a_reply_to_another_request_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let liar = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; tacit_core::workload::HEADER_BYTES + 16]).unwrap();
            stream.write_all(&[0xff; 16]).unwrap();
        });
        let mut load = load(16, 16, None);
        load.connections = 1;
        let error = drive(
            &[address],
            &load,
            &Clocks::of(&ClocksArgs::default()).unwrap(),
            &OutputArgs::default(),
        )
        .err()
        .unwrap();
        assert!(error.to_string().contains("does not match the request"), "{error}");
        liar.join().unwrap();
    }
}
