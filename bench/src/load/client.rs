//! The load client: the application at the near end. One process makes one sample.
//!
//! ```text
//! driver                         client
//!                                connect, warm up
//!        <- {"ready":true,"pid":P}
//! read clocks
//!        "go" ->
//!                                the sample
//!        <- {"done":N,"seconds":S,"p50_us":L,"p99_us":L}
//! read clocks
//!        end of input ->
//!                                close, exit
//! ```
//! The connections stay open until the clocks are read, except where closing is the work.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tacit_core::statistics::Histogram;

use super::{
    CONNECT, EXCHANGE, FREE, HOLD, IO_BYTES_MAX, Kind, SILENCE_MAX, STREAM, Wire, Workload,
};

/// How long one sample of requests and replies lasts, and that of a quick run.
const EXCHANGE_TIME: Duration = Duration::from_secs(1);
const EXCHANGE_TIME_QUICK: Duration = Duration::from_millis(400);

/// A stream's warm-up is this part of it.
const WARM_UP_PART: u64 = 20;

/// Connects of a quick run are fewer.
const CONNECTS_QUICK_PART: u64 = 3;

/// Makes a connection in clear, whatever carries it.
pub(crate) type Dial = dyn Fn(SocketAddr) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// Without TLS.
pub(crate) fn plain() -> Arc<Dial> {
    Arc::new(|address| Ok(Box::new(tcp(address)?)))
}

/// A TCP connection whose every wait ends.
pub(crate) fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// Runs one sample of `workload` against `address`, steered by the lines above.
pub(crate) fn main(
    address: SocketAddr,
    workload: &Workload,
    is_quick: bool,
    dial: &Arc<Dial>,
) -> Result<(), String> {
    let done = sample(address, workload, is_quick, dial);
    done.map_err(|error| format!("load client, {}: {error}", workload.name))
}

/// So many whole connections, one after the other.
pub(crate) fn knocks(address: SocketAddr, count: u32, dial: &Arc<Dial>) -> Result<(), String> {
    let knocked = (0..count).try_for_each(|_| knock(address, dial));
    knocked.map_err(|error| format!("load client: {error}"))
}

/// How much to do: for so long, or so much in all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Time(Duration),
    Count(u64),
}

/// What was done: connects, exchanges or bytes, and how long each exchange took, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) count: u64,
    latency: Histogram,
}

/// One thread's share: a connection, or the making of connections.
pub(crate) enum Worker {
    Exchange { wire: Box<dyn Wire>, request: Vec<u8>, reply: Vec<u8>, number: u64 },
    Stream { wire: Box<dyn Wire>, bytes: Vec<u8>, size: u64 },
    Connect { address: SocketAddr, dial: Arc<Dial> },
    Visit { address: SocketAddr, dial: Arc<Dial>, request: Vec<u8>, reply: Vec<u8>, number: u64 },
}

/// Lets every worker do its share of `amount`, each on a thread.
pub(crate) fn work(workers: &mut [Worker], amount: Amount) -> io::Result<Done> {
    let share = match amount {
        Amount::Time(_) => amount,
        Amount::Count(count) => Amount::Count(count.div_ceil(workers.len() as u64)),
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(move || worker.work(share))).collect();
        let mut done = Done::default();
        for thread in threads {
            let own = thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
            done.count += own.count;
            done.latency.add(&own.latency);
        }
        Ok(done)
    })
}

impl Worker {
    pub(crate) fn open(kind: Kind, address: SocketAddr, dial: &Arc<Dial>) -> io::Result<Self> {
        let buffers = |bytes| (vec![7; bytes], vec![0; bytes]);
        Ok(match kind {
            Kind::Exchange { bytes } => {
                let (request, reply) = buffers(bytes);
                let wire = dial_exchange(address, bytes, dial)?;
                Self::Exchange { wire, request, reply, number: 0 }
            }
            Kind::Stream { bytes: size, .. } => {
                Self::Stream { wire: dial(address)?, bytes: vec![7; IO_BYTES_MAX], size }
            }
            Kind::Connect { .. } => Self::Connect { address, dial: dial.clone() },
            Kind::Visit { bytes, .. } => {
                let (request, reply) = buffers(bytes);
                Self::Visit { address, dial: dial.clone(), request, reply, number: 0 }
            }
        })
    }

    fn work(&mut self, amount: Amount) -> io::Result<Done> {
        let start = Instant::now();
        let mut before = start;
        let mut done = Done::default();
        let mut rounds = 0;
        loop {
            let go_on = match amount {
                Amount::Time(time) => before.duration_since(start) < time,
                Amount::Count(count) => rounds < count,
            };
            if !go_on {
                return Ok(done);
            }
            done.count += self.once()?;
            rounds += 1;
            let now = Instant::now();
            let took = now.duration_since(before).as_nanos();
            done.latency.record(u64::try_from(took).unwrap_or(u64::MAX));
            before = now;
        }
    }

    /// Streams less while warming up: a part of what it will.
    fn shrink(&mut self, part: u64) {
        if let Self::Stream { size, .. } = self {
            *size /= part;
        }
    }

    fn grow(&mut self, part: u64) {
        if let Self::Stream { size, .. } = self {
            *size *= part;
        }
    }

    /// Once what it does; returns what that counts for.
    fn once(&mut self) -> io::Result<u64> {
        match self {
            Self::Exchange { wire, request, reply, number } => {
                *number += 1;
                exchange(&mut **wire, request, reply, *number)?;
            }
            Self::Stream { wire, bytes, size } => {
                pour(&mut **wire, bytes, *size)?;
                return Ok(*size);
            }
            Self::Connect { address, dial } => knock(*address, dial)?,
            Self::Visit { address, dial, request, reply, number } => {
                *number += 1;
                let mut wire = dial_exchange(*address, request.len(), dial)?;
                exchange(&mut *wire, request, reply, *number)?;
            }
        }
        Ok(1)
    }
}

/// One whole connection: connect, a byte each way, close.
pub(crate) fn knock(address: SocketAddr, dial: &Arc<Dial>) -> io::Result<()> {
    let mut wire = dial(address)?;
    wire.write_all(&[CONNECT])?;
    wire.read_exact(&mut [0])
}

/// A connection that the server keeps and does nothing with.
pub(crate) fn hold(address: SocketAddr, dial: &Arc<Dial>) -> io::Result<Box<dyn Wire>> {
    let mut wire = dial(address)?;
    wire.write_all(&[HOLD])?;
    wire.read_exact(&mut [0])?;
    Ok(wire)
}

/// Makes the server close all that it holds.
pub(crate) fn let_go(address: SocketAddr, dial: &Arc<Dial>) -> io::Result<()> {
    let mut wire = dial(address)?;
    wire.write_all(&[FREE])?;
    wire.read_exact(&mut [0])
}

/// Holds `counts` connections, one number after the other; each time it says so and waits.
pub(crate) fn hold_all(
    address: SocketAddr,
    counts: &[usize],
    dial: &Arc<Dial>,
) -> Result<(), String> {
    let holding = || -> io::Result<()> {
        reach(address, dial)?;
        let mut steering = io::stdin().lock();
        let mut held = Vec::new();
        for count in counts {
            for _ in 0..*count {
                held.push(hold(address, dial)?);
            }
            println!("{}", serde_json::json!({ "held": held.len(), "pid": std::process::id() }));
            steering.read_line(&mut String::new())?;
        }
        let_go(address, dial)
    };
    holding().map_err(|error| format!("load client: {error}"))
}

/// Waits until a byte goes there and back: a network that has just been made may take a while.
fn reach(address: SocketAddr, dial: &Arc<Dial>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match knock(address, dial) {
            Err(error) if start.elapsed() > SILENCE_MAX => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

fn sample(
    address: SocketAddr,
    workload: &Workload,
    is_quick: bool,
    dial: &Arc<Dial>,
) -> io::Result<()> {
    reach(address, dial)?;
    let (warm_up, amount) = amounts(workload, is_quick);
    let mut workers = (0..workload.connections)
        .map(|_| Worker::open(workload.kind, address, dial))
        .collect::<io::Result<Vec<_>>>()?;
    workers.iter_mut().for_each(|worker| worker.shrink(WARM_UP_PART));
    work(&mut workers, warm_up)?;
    workers.iter_mut().for_each(|worker| worker.grow(WARM_UP_PART));

    let mut steering = io::stdin().lock();
    println!("{}", serde_json::json!({ "ready": true, "pid": std::process::id() }));
    steering.read_line(&mut String::new())?;

    let start = Instant::now();
    let done = work(&mut workers, amount)?;
    let seconds = start.elapsed().as_secs_f64();

    let [p50, p99] = [500, 990].map(|at| done.latency.per_mille(at) as f64 / 1000.0);
    println!(
        "{}",
        serde_json::json!({ "done": done.count, "seconds": seconds, "p50_us": p50, "p99_us": p99 })
    );
    steering.read_line(&mut String::new())?;
    Ok(())
}

/// How much is done before the clocks are read, and between. Warm-up opens TCP windows, faults in
/// buffers and lets the scheduler place the processes.
fn amounts(workload: &Workload, is_quick: bool) -> (Amount, Amount) {
    match workload.kind {
        Kind::Exchange { .. } => {
            let time = if is_quick { EXCHANGE_TIME_QUICK } else { EXCHANGE_TIME };
            (Amount::Time(Duration::from_millis(200)), Amount::Time(time))
        }
        Kind::Stream { times, .. } => (Amount::Count(1), Amount::Count(times)),
        Kind::Connect { count } | Kind::Visit { count, .. } => {
            let count = if is_quick { count / CONNECTS_QUICK_PART } else { count };
            (Amount::Count(count / 20), Amount::Count(count))
        }
    }
}

/// A connection on which requests of `bytes` are answered.
fn dial_exchange(address: SocketAddr, bytes: usize, dial: &Arc<Dial>) -> io::Result<Box<dyn Wire>> {
    let mut wire = dial(address)?;
    let mut header = [EXCHANGE; 9];
    header[1..].copy_from_slice(&(bytes as u64).to_be_bytes());
    wire.write_all(&header)?;
    Ok(wire)
}

fn exchange(
    wire: &mut dyn Wire,
    request: &mut [u8],
    reply: &mut [u8],
    number: u64,
) -> io::Result<()> {
    let number = number.to_be_bytes();
    request[..number.len()].copy_from_slice(&number);
    wire.write_all(request)?;
    wire.read_exact(reply)?;
    if reply[..number.len()] != number {
        return Err(io::Error::other("the reply belongs to another request"));
    }
    Ok(())
}

fn pour(wire: &mut dyn Wire, bytes: &[u8], size: u64) -> io::Result<()> {
    let mut header = [STREAM; 9];
    header[1..].copy_from_slice(&size.to_be_bytes());
    wire.write_all(&header)?;
    let mut left = size;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(bytes.len()).min(bytes.len());
        wire.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    wire.read_exact(&mut [0])
}
