//! The load client: the application at the near end. One process makes one sample.
//!
//! ```text
//! driver                         client
//!                                connect, warm up
//!        <- {"ready":true}
//! read clocks
//!        "go" ->
//!                                the sample
//!        <- {"done":N,"seconds":S}
//! read clocks
//!        end of input ->
//!                                close, exit
//! ```
//! The connections stay open until the clocks are read, except where closing is the work.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{CONNECT, EXCHANGE, EXCHANGE_TIME, IO_BYTES_MAX, Kind, SILENCE_MAX, STREAM, Workload};

/// Runs one sample of `workload` against `address`, steered by the lines above.
pub(crate) fn main(address: SocketAddr, workload: &Workload) -> Result<(), String> {
    sample(address, workload).map_err(|error| format!("load client, {}: {error}", workload.name))
}

/// How much to do: for so long, or so much in all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Time(Duration),
    Count(u64),
}

/// One thread's share: a connection, or the making of connections.
#[derive(Debug)]
pub(crate) enum Worker {
    Exchange { stream: TcpStream, request: Vec<u8>, reply: Vec<u8>, number: u64 },
    Stream { stream: TcpStream, bytes: Vec<u8> },
    Connect { address: SocketAddr },
    Visit { address: SocketAddr, request: Vec<u8>, reply: Vec<u8>, number: u64 },
}

/// Lets every worker do its share of `amount`, each on a thread; returns what was done in all.
pub(crate) fn work(workers: &mut [Worker], amount: Amount) -> io::Result<u64> {
    let share = match amount {
        Amount::Time(_) => amount,
        Amount::Count(count) => Amount::Count(count / workers.len() as u64),
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(move || worker.work(share))).collect();
        let mut done = 0;
        for thread in threads {
            done += thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
        }
        Ok(done)
    })
}

impl Worker {
    pub(crate) fn open(kind: Kind, address: SocketAddr) -> io::Result<Self> {
        Ok(match kind {
            Kind::Exchange { bytes } => {
                let stream = dial_exchange(address, bytes)?;
                Self::Exchange { stream, request: vec![7; bytes], reply: vec![0; bytes], number: 0 }
            }
            Kind::Stream { .. } => {
                Self::Stream { stream: dial(address)?, bytes: vec![7; IO_BYTES_MAX] }
            }
            Kind::Connect { .. } => Self::Connect { address },
            Kind::Visit { bytes, .. } => {
                Self::Visit { address, request: vec![7; bytes], reply: vec![0; bytes], number: 0 }
            }
        })
    }

    fn work(&mut self, amount: Amount) -> io::Result<u64> {
        let start = Instant::now();
        let go_on = |done| match amount {
            Amount::Time(time) => start.elapsed() < time,
            Amount::Count(count) => done < count,
        };
        let mut done = 0;
        match (self, amount) {
            (Self::Exchange { stream, request, reply, number }, _) => {
                while go_on(done) {
                    *number += 1;
                    exchange(stream, request, reply, *number)?;
                    done += 1;
                }
            }
            (Self::Stream { stream, bytes }, Amount::Count(size)) => {
                pour(stream, bytes, size)?;
                done = size;
            }
            (Self::Stream { .. }, Amount::Time(_)) => return Err(io::ErrorKind::Unsupported.into()),
            (Self::Connect { address }, _) => {
                while go_on(done) {
                    knock(*address)?;
                    done += 1;
                }
            }
            (Self::Visit { address, request, reply, number }, _) => {
                while go_on(done) {
                    *number += 1;
                    let mut stream = dial_exchange(*address, request.len())?;
                    exchange(&mut stream, request, reply, *number)?;
                    done += 1;
                }
            }
        }
        Ok(done)
    }
}

/// One whole connection: connect, a byte each way, close.
pub(crate) fn knock(address: SocketAddr) -> io::Result<()> {
    let mut stream = dial(address)?;
    stream.write_all(&[CONNECT])?;
    stream.read_exact(&mut [0])
}

/// Waits until a byte goes there and back: a network that has just been made may take a while.
fn reach(address: SocketAddr) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match knock(address) {
            Err(error) if start.elapsed() > SILENCE_MAX => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

fn sample(address: SocketAddr, workload: &Workload) -> io::Result<()> {
    reach(address)?;
    // Warm-up opens TCP windows, faults in buffers and lets the scheduler place the processes.
    let (warm_up, amount) = match workload.kind {
        Kind::Exchange { .. } => {
            (Amount::Time(Duration::from_millis(200)), Amount::Time(EXCHANGE_TIME))
        }
        Kind::Stream { bytes } => (Amount::Count(bytes / 20), Amount::Count(bytes)),
        Kind::Connect { count } | Kind::Visit { count, .. } => {
            (Amount::Count(count / 20), Amount::Count(count))
        }
    };
    let mut workers = (0..workload.connections)
        .map(|_| Worker::open(workload.kind, address))
        .collect::<io::Result<Vec<_>>>()?;
    work(&mut workers, warm_up)?;

    let mut steering = io::stdin().lock();
    println!("{}", serde_json::json!({ "ready": true }));
    steering.read_line(&mut String::new())?;

    let start = Instant::now();
    let done = work(&mut workers, amount)?;
    let seconds = start.elapsed().as_secs_f64();

    println!("{}", serde_json::json!({ "done": done, "seconds": seconds }));
    steering.read_line(&mut String::new())?;
    Ok(())
}

/// A connection on which requests of `bytes` are answered.
fn dial_exchange(address: SocketAddr, bytes: usize) -> io::Result<TcpStream> {
    let mut stream = dial(address)?;
    let mut header = [EXCHANGE; 9];
    header[1..].copy_from_slice(&(bytes as u64).to_be_bytes());
    stream.write_all(&header)?;
    Ok(stream)
}

fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

fn exchange(
    stream: &mut TcpStream,
    request: &mut [u8],
    reply: &mut [u8],
    number: u64,
) -> io::Result<()> {
    let number = number.to_be_bytes();
    request[..number.len()].copy_from_slice(&number);
    stream.write_all(request)?;
    stream.read_exact(reply)?;
    if reply[..number.len()] != number {
        return Err(io::Error::other("the reply belongs to another request"));
    }
    Ok(())
}

fn pour(stream: &mut TcpStream, bytes: &[u8], size: u64) -> io::Result<()> {
    let mut header = [STREAM; 9];
    header[1..].copy_from_slice(&size.to_be_bytes());
    stream.write_all(&header)?;
    let mut left = size;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(bytes.len()).min(bytes.len());
        stream.write_all(&bytes[..part])?;
        left -= part as u64;
    }
    stream.read_exact(&mut [0])
}
