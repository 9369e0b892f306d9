//! Implements the load client, which opens connections, sends requests, and measures the time until
//! each reply. The load client sends the requests of `tacit workload client`. Unlike that command,
//! the load client calls a TLS library to encrypt its requests.
//!
//! Each connection has a thread with a blocking socket. The benchmark controls this load client
//! through standard input and output. For this purpose, the benchmark uses the protocol of `tacit
//! workload client --steered`.

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tacit_core::statistics::Histogram;
use tacit_core::workload::{BLOCK_BYTES, HEADER_BYTES, WorkloadRequest, repeated_bytes};

use crate::load::{Kind, Load, Steering};
use crate::wire::{Dial, Wire};

const LENGTH_BYTES: usize = size_of::<u64>();
/// Length of a stream before the measurement.
const STREAM_WARM_UP_BYTES: u64 = 1_000_000;
const FILLER: u8 = 7;

/// The number of operations, and the duration of each.
#[derive(Default)]
struct Results {
    count: u64,
    latency: Histogram,
}

/// Runs the load until its end.
pub(crate) fn run(load: &Load, dial: &Dial) -> Result<(), String> {
    let done = match load.kind {
        Kind::Exchange { bytes, warm_up, time } => exchange(load, dial, bytes, warm_up, time),
        Kind::Stream { bytes, times } => stream(load, dial, bytes, times),
        Kind::Connect { bytes, warm_up, count } => connect(load, dial, bytes, warm_up, count),
    };
    done.map_err(|error| format!("the load client failed: {error}"))
}

fn exchange(
    load: &Load,
    dial: &Dial,
    bytes: usize,
    warm_up: Duration,
    time: Duration,
) -> io::Result<()> {
    let open = |_| Exchange::open(load.address, dial, bytes);
    let mut connections = (0..load.threads).map(open).collect::<io::Result<Vec<_>>>()?;
    on_threads(&mut connections, |connection| connection.for_a_while(warm_up))?;
    ready(load)?;
    let start = Instant::now();
    let done = on_threads(&mut connections, |connection| connection.for_a_while(time))?;
    report(load, &done, "exchanges", done.count as f64, start.elapsed())
}

fn stream(load: &Load, dial: &Dial, bytes: u64, times: u64) -> io::Result<()> {
    let open = |_| dial(load.address);
    let mut connections = (0..load.threads).map(open).collect::<io::Result<Vec<_>>>()?;
    on_threads(&mut connections, |wire| send_stream(&mut **wire, STREAM_WARM_UP_BYTES))?;
    ready(load)?;
    let start = Instant::now();
    let done = on_threads(&mut connections, |wire| {
        let mut all = Results::default();
        for _ in 0..times {
            all.count += send_stream(&mut **wire, bytes)?.count;
        }
        Ok(all)
    })?;
    report(load, &done, "mb", done.count as f64 / 1e6, start.elapsed())
}

fn connect(load: &Load, dial: &Dial, bytes: usize, warm_up: usize, count: usize) -> io::Result<()> {
    let visits = |count: usize| {
        let next = AtomicUsize::new(0);
        on_threads(&mut vec![(); load.threads], |()| {
            let mut done = Results::default();
            while next.fetch_add(1, Ordering::Relaxed) < count {
                let start = Instant::now();
                Exchange::open(load.address, dial, bytes)?.once()?;
                done.add(start.elapsed());
            }
            Ok(done)
        })
    };
    visits(warm_up)?;
    ready(load)?;
    let start = Instant::now();
    let done = visits(count)?;
    report(load, &done, "connections", done.count as f64, start.elapsed())
}

/// A connection that exchanges requests and replies.
struct Exchange {
    wire: Box<dyn Wire>,
    request: Vec<u8>,
    reply: Vec<u8>,
    sent: u64,
    /// The header to send before the first request.
    header: Option<[u8; HEADER_BYTES]>,
}

impl Exchange {
    fn open(address: SocketAddr, dial: &Dial, bytes: usize) -> io::Result<Self> {
        let request =
            WorkloadRequest::Exchange { request_bytes: bytes as u64, reply_bytes: bytes as u64 };
        Ok(Self {
            wire: dial(address)?,
            request: vec![FILLER; bytes],
            reply: vec![0; bytes],
            sent: 0,
            header: Some(request.encode()),
        })
    }

    fn once(&mut self) -> io::Result<()> {
        self.sent += 1;
        let number = self.sent.to_le_bytes();
        let repeated = repeated_bytes(self.request.len(), self.reply.len());
        self.request[..repeated].copy_from_slice(&number[..repeated]);
        match self.header.take() {
            Some(header) => self.wire.write_all(&[&header, &self.request[..]].concat())?,
            None => self.wire.write_all(&self.request)?,
        }
        self.wire.read_exact(&mut self.reply)?;
        if self.reply[..repeated] != number[..repeated] {
            return Err(io::Error::other(
                "the load client received a reply that does not match its request",
            ));
        }
        Ok(())
    }

    fn for_a_while(&mut self, time: Duration) -> io::Result<Results> {
        let mut done = Results::default();
        let end = Instant::now() + time;
        let mut sent = Instant::now();
        while sent < end {
            self.once()?;
            let now = Instant::now();
            done.add(now - sent);
            sent = now;
        }
        Ok(done)
    }
}

/// Sends one stream to the server; returns its length.
fn send_stream(wire: &mut dyn Wire, bytes: u64) -> io::Result<Results> {
    wire.write_all(&WorkloadRequest::Out.encode())?;
    // A block with its length in front, so that one write sends both.
    let mut block = vec![FILLER; LENGTH_BYTES + BLOCK_BYTES];
    let mut left = bytes;
    loop {
        let part = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        block[..LENGTH_BYTES].copy_from_slice(&(part as u64).to_be_bytes());
        wire.write_all(&block[..LENGTH_BYTES + part])?;
        if part == 0 {
            break;
        }
        left -= part as u64;
    }
    let mut arrived = [0; LENGTH_BYTES];
    wire.read_exact(&mut arrived)?;
    if u64::from_be_bytes(arrived) != bytes {
        return Err(io::Error::other(
            "the load server received fewer bytes than the load client sent",
        ));
    }
    Ok(Results { count: bytes, ..Results::default() })
}

impl Results {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.latency.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Calls `work` for each worker on its own thread, and adds the results.
fn on_threads<W: Send>(
    workers: &mut [W],
    work: impl Fn(&mut W) -> io::Result<Results> + Sync,
) -> io::Result<Results> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(move || work(worker))).collect();
        let mut all = Results::default();
        for thread in threads {
            let own = thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
            all.count += own.count;
            all.latency.add(&own.latency);
        }
        Ok(all)
    })
}

fn ready(load: &Load) -> io::Result<()> {
    match load.steering {
        Steering::Absent => Ok(()),
        Steering::ByPipes => exchange_lines(&json!({ "ready": true, "pid": std::process::id() })),
    }
}

fn report(load: &Load, done: &Results, unit: &str, units: f64, took: Duration) -> io::Result<()> {
    let us = |per_mille| done.latency.per_mille(per_mille) as f64 / 1000.0;
    let mut figures = serde_json::Map::new();
    figures.insert(unit.to_owned(), json!(units));
    figures.insert("seconds".to_owned(), json!(took.as_secs_f64()));
    figures.insert("latency_p50_us".to_owned(), json!(us(500)));
    figures.insert("latency_p99_us".to_owned(), json!(us(990)));
    let report = json!({ "figures": figures });
    if load.steering == Steering::Absent {
        println!("{report}");
        return Ok(());
    }
    exchange_lines(&report)
}

/// Writes a line and reads one. End of file counts as a line.
fn exchange_lines(line: &Value) -> io::Result<()> {
    println!("{line}");
    io::stdin().lock().read_line(&mut String::new()).map(|_| ())
}
