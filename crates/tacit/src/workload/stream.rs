//! Implements the `stream` workload: long transfers in one direction.
//!
//! Each connection has a thread. In the direction `out`, the client sends to the server. A transfer
//! to the server is complete when the server has confirmed the number of bytes. In the direction
//! `in`, the server sends to the client. A transfer to the client is complete when the client has
//! read the last block.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tacit_core::flow::Address;
use tacit_core::page::Chart;
use tacit_core::workload::{
    BLOCK_BYTES, STREAM_BYTES_MAX, STREAM_MS_MAX, Sampling, WorkloadRequest,
};

use super::arguments::{ClientArgs, bytes, count, time};
use super::clocks::{Clocks, CpuUsage};
use super::error::WorkloadError;
use super::limits::{STREAMS_MAX, THREADS_MAX};
use super::report::{Report, with_noun};
use super::samples::SAMPLES_MAX;
use super::socket::{Stream, allow_descriptors, dial};
use super::tcp::{SAMPLE_BYTES, Sample, Trace};
use super::threads::run_on_threads;
use super::watch::{Done, Unit, Watch, WatchedConnections};

/// Send or receive long streams
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload stream client out --connect 127.0.0.1:7000
  tacit workload stream client in --connect 127.0.0.1:7000 --connections 1 --bytes 1GiB
  tacit workload stream client out --connect 127.0.0.1:7000 --seconds 10s --html stream.html")]
pub(super) struct StreamArgs {
    /// The direction of the bytes, seen from the client
    direction: Direction,
    #[command(flatten)]
    client: ClientArgs,
    /// Number of connections; each transfers one stream at a time
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(THREADS_MAX))]
    connections: usize,
    /// Size of each stream
    #[arg(long, value_name = "BYTES", default_value = "20000000",
          value_parser = bytes(STREAM_BYTES_MAX))]
    bytes: u64,
    /// Number of streams on each connection, one after the other
    #[arg(long, value_name = "N", default_value = "1", value_parser = count(STREAMS_MAX))]
    times: usize,
    /// Transfer each stream for this long, instead of a fixed size
    #[arg(long, value_name = "TIME", conflicts_with = "bytes", value_parser = time)]
    seconds: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// The server sends to the client
    In,
    /// The client sends to the server
    Out,
}

/// The length of one stream.
#[derive(Clone, Copy, Debug)]
enum Amount {
    Bytes(u64),
    Time(Duration),
}

/// The length of a short stream before the measurement. This stream enlarges the TCP windows, and
/// makes the kernel allocate the memory of the buffers.
const WARM_UP: Amount = Amount::Bytes(1_000_000);

pub(super) fn run(args: &StreamArgs) -> Result<(), WorkloadError> {
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let addresses = args.client.resolve_server()?;
    let measured = drive(&addresses, args, &clocks)?;
    report(args, &clocks, &measured)?.write(&args.client.output)
}

/// The results of a measurement.
struct Measured {
    bytes: u64,
    used: CpuUsage,
    charts: Vec<Chart>,
    /// Keeps the connections open until the report is written.
    _connections: Vec<Connection>,
}

fn drive(
    addresses: &[Address],
    args: &StreamArgs,
    clocks: &Clocks,
) -> Result<Measured, WorkloadError> {
    allow_descriptors(args.connections)?;
    let mut connections = (0..args.connections)
        .map(|_| Connection::open(addresses))
        .collect::<Result<Vec<_>, WorkloadError>>()?;
    let failed = AtomicBool::new(false);
    let direction = args.direction;
    run_on_threads(&mut connections, &failed, |_, connection| {
        connection.stream(direction, WARM_UP, &failed, |_| ())
    })?;
    if let Some(first) = connections.first_mut() {
        first.samples = Some(Vec::new());
    }
    args.client.output.steering().ready()?;

    let done = Done::new(args.connections);
    // TCP state is sampled at the sender; for a stream in, the server sends the samples.
    let own = match direction {
        Direction::In => None,
        Direction::Out => connections.first().and_then(|first| first.stream.try_clone().ok()),
    };
    let watched = WatchedConnections { own, agents: args.client.output.watched() };
    let unit = Unit { plural: "MB", of: MB };
    let watch = Watch::start(unit, &done, watched, args.client.output.progress_lines());
    let amount = args.seconds.map_or(Amount::Bytes(args.bytes), Amount::Time);
    let before = clocks.read()?;
    let moved = run_on_threads(&mut connections, &failed, |number, connection| {
        let mut moved = 0;
        for _ in 0..args.times {
            moved +=
                connection.stream(direction, amount, &failed, |more| done.count(number, more))?;
        }
        Ok(moved)
    })?;
    let used = clocks.since(&before)?;
    let samples = connections.first_mut().and_then(|first| first.samples.take());
    let trace = Trace { of: "server".to_owned(), samples: samples.unwrap_or_default() };
    let charts = watch.finish(trace);
    Ok(Measured { bytes: moved.iter().sum(), used, charts, _connections: connections })
}

const MB: f64 = 1e6;
const LENGTH_BYTES: usize = size_of::<u64>();

/// One connection.
struct Connection {
    stream: Stream,
    /// A block with its length in front, so that one write sends both.
    block: Vec<u8>,
    /// Samples of the TCP state of the server's socket during the last stream, if the server sends
    /// samples.
    samples: Option<Vec<Sample>>,
}

impl Connection {
    fn open(addresses: &[Address]) -> Result<Self, WorkloadError> {
        let block = vec![7; LENGTH_BYTES + BLOCK_BYTES];
        Ok(Self { stream: dial(addresses)?, block, samples: None })
    }

    fn stream(
        &mut self,
        direction: Direction,
        amount: Amount,
        failed: &AtomicBool,
        count: impl Fn(u64),
    ) -> Result<u64, WorkloadError> {
        match direction {
            Direction::Out => self.send_stream(amount, failed, count),
            Direction::In => self.receive_stream(amount, failed, count),
        }
    }

    fn send_stream(
        &mut self,
        amount: Amount,
        failed: &AtomicBool,
        count: impl Fn(u64),
    ) -> Result<u64, WorkloadError> {
        self.stream.write_all(&WorkloadRequest::Out.encode()).map_err(broken)?;
        let start = Instant::now();
        let mut sent = 0;
        loop {
            let left = match amount {
                _ if failed.load(Ordering::Relaxed) => 0,
                Amount::Bytes(bytes) => bytes - sent,
                Amount::Time(time) if start.elapsed() < time => BLOCK_BYTES as u64,
                Amount::Time(_) => 0,
            };
            let part = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            self.block[..LENGTH_BYTES].copy_from_slice(&(part as u64).to_be_bytes());
            self.stream.write_all(&self.block[..LENGTH_BYTES + part]).map_err(broken)?;
            if part == 0 {
                break;
            }
            sent += part as u64;
            count(part as u64);
        }
        match self.number()? {
            arrived if arrived == sent => Ok(sent),
            _ => Err(WorkloadError::Mixed(
                "the server received a different number of bytes than the client sent",
            )),
        }
    }

    fn receive_stream(
        &mut self,
        amount: Amount,
        failed: &AtomicBool,
        count: impl Fn(u64),
    ) -> Result<u64, WorkloadError> {
        let sampling = if self.samples.is_some() { Sampling::On } else { Sampling::Off };
        let request = match amount {
            Amount::Bytes(bytes) => WorkloadRequest::In { bytes, sampling },
            Amount::Time(time) => {
                let ms = u64::try_from(time.as_millis()).unwrap_or(STREAM_MS_MAX);
                WorkloadRequest::InFor { ms: ms.min(STREAM_MS_MAX), sampling }
            }
        };
        self.stream.write_all(&request.encode()).map_err(broken)?;
        let mut received = 0;
        while !failed.load(Ordering::Relaxed) {
            let length = self.number()?;
            let part = usize::try_from(length)
                .ok()
                .and_then(|part| self.block.get_mut(..part))
                .ok_or(WorkloadError::Mixed("the server announced a block that is too long"))?;
            if part.is_empty() {
                break;
            }
            self.stream.read_exact(part).map_err(broken)?;
            received += length;
            count(length);
        }
        if !failed.load(Ordering::Relaxed) {
            self.take_samples()?;
        }
        match amount {
            Amount::Bytes(bytes) if bytes != received && !failed.load(Ordering::Relaxed) => {
                Err(WorkloadError::Mixed(
                    "the server sent a different number of bytes than the client requested",
                ))
            }
            _ => Ok(received),
        }
    }

    /// Reads the samples that the server sends after a stream.
    fn take_samples(&mut self) -> Result<(), WorkloadError> {
        if self.samples.is_none() {
            return Ok(());
        }
        let count = self.number()?;
        if count > SAMPLES_MAX as u64 {
            return Err(WorkloadError::Mixed(
                "the server announced too many samples of its TCP state",
            ));
        }
        let mut samples = Vec::new();
        for _ in 0..count {
            let mut sample = [0; SAMPLE_BYTES];
            self.stream.read_exact(&mut sample).map_err(broken)?;
            samples.push(Sample::decode(&sample));
        }
        self.samples = Some(samples);
        Ok(())
    }

    fn number(&mut self) -> Result<u64, WorkloadError> {
        let mut number = [0; LENGTH_BYTES];
        self.stream.read_exact(&mut number).map_err(broken)?;
        Ok(u64::from_be_bytes(number))
    }
}

fn broken(error: io::Error) -> WorkloadError {
    WorkloadError::Broken("a stream", error)
}

fn report(
    args: &StreamArgs,
    clocks: &Clocks,
    measured: &Measured,
) -> Result<Report, WorkloadError> {
    let Measured { bytes, used, charts, .. } = measured;
    if *bytes == 0 {
        return Err(WorkloadError::Nothing);
    }
    let direction = match args.direction {
        Direction::In => "in",
        Direction::Out => "out",
    };
    let each = match args.seconds {
        Some(time) => format!("for {} s", time.as_secs_f64()),
        None => format!("{} bytes per stream", args.bytes),
    };
    let streams = with_noun(args.connections, "stream");
    let repeated = match args.times {
        1 => String::new(),
        times => format!(", {times} times"),
    };
    let time = used.seconds;
    let summary = format!("{streams} {direction}, {each}{repeated}, {time:.2} s");
    let mut report = Report::new("stream", summary);
    report.set("direction", direction);
    report.set("connections", args.connections);
    report.set("times", args.times);
    report.set("bytes", args.seconds.is_none().then_some(args.bytes));
    report.set("seconds", args.seconds.map(|time| time.as_secs_f64()));
    let mb = *bytes as f64 / MB;
    report.figure("mb", "moved", "MB", mb);
    report.figure("mb_per_s", "rate", "MB/s", mb / used.seconds);
    report.figure("seconds", "time", "s", used.seconds);
    report.cpu(&clocks.names(), used, "MB", mb);
    report.charts.extend(charts.iter().cloned());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::clocks::ClocksArgs;
    use super::super::server;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: StreamArgs,
    }

    fn moved(words: &[&str]) -> u64 {
        let listening = server::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        server::spawn(&listening, 2).unwrap();
        let words = ["", "--connect", "here", "--connections", "2"].iter().chain(words);
        let args = Line::try_parse_from(words).unwrap().args;
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        drive(&[listening.address], &args, &clocks).unwrap().bytes
    }

    #[test]
    fn streams_move_exactly_their_bytes_in_both_directions() {
        for direction in ["in", "out"] {
            for bytes in [1, BLOCK_BYTES, 3_000_001] {
                let given = bytes.to_string();
                assert_eq!(moved(&[direction, "--bytes", &given]), 2 * bytes as u64, "{direction}");
            }
        }
    }

    #[test]
    fn streams_follow_each_other_on_the_same_connection() {
        for direction in ["in", "out"] {
            assert_eq!(moved(&[direction, "--bytes", "700001", "--times", "3"]), 2 * 3 * 700_001);
        }
    }

    #[test]
    fn streams_end_when_their_time_is_up() {
        for direction in ["in", "out"] {
            assert!(moved(&[direction, "--seconds", "50ms"]) > 0, "{direction}");
        }
    }

    #[test]
    fn a_stream_of_the_wrong_length_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let liar = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[0, 0, 0, 0, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let words = ["", "in", "--connect", "here", "--connections", "1"];
        let args = Line::try_parse_from(words).unwrap().args;
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let error = drive(&[address], &args, &clocks).err().unwrap();
        assert!(error.to_string().contains("a different number of bytes"), "{error}");
        liar.join().unwrap();
    }
}
