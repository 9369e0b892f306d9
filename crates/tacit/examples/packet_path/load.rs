//! Starts a server and its clients, which generate the network load of the example `packet_path`.
//! There are three kinds of load: a stream without pauses, transfers of 20 MB in either direction,
//! and requests with replies.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 9301;
const REQUEST_BYTES: usize = 100;
const WRITE_BYTES: usize = 256 * 1024;
const TRANSFER_BYTES: usize = 20_000_000;
/// How long each load takes.
const DURATION: Duration = Duration::from_secs(2);

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// One connection sends all the time.
    Stream,
    /// Connections send 20 MB and wait for a byte, again and again.
    Out(usize),
    /// Connections send a byte and receive 20 MB, again and again.
    In(usize),
    /// Connections send 100 bytes and wait for as many, again and again.
    Requests(usize),
}

/// What a load has transferred.
#[derive(Debug)]
pub(crate) struct Work {
    /// Bytes, or requests.
    pub(crate) units: usize,
    pub(crate) time: Duration,
    /// The median of the times of requests.
    pub(crate) median: Option<Duration>,
}

/// Serves until the process is killed.
pub(crate) fn serve() {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
    println!("ready");
    for connection in listener.incoming() {
        let connection = connection.unwrap();
        std::thread::spawn(move || serve_connection(connection));
    }
}

fn serve_connection(mut connection: TcpStream) {
    connection.set_nodelay(true).unwrap();
    let mut buffer = vec![0; WRITE_BYTES];
    if connection.read_exact(&mut buffer[..1]).is_err() {
        return;
    }
    match buffer[0] {
        STREAM => while connection.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {},
        OUT => {
            while receive(&mut connection, &mut buffer, TRANSFER_BYTES)
                && connection.write_all(&[1]).is_ok()
            {}
        }
        IN => {
            while connection.read_exact(&mut buffer[..1]).is_ok()
                && send(&mut connection, &buffer, TRANSFER_BYTES)
            {}
        }
        _ => {
            let request = &mut buffer[..REQUEST_BYTES];
            while connection.read_exact(request).is_ok() && connection.write_all(request).is_ok() {}
        }
    }
}

impl Load {
    pub(crate) const ALL: [Self; 5] =
        [Self::Stream, Self::Out(5), Self::In(5), Self::Requests(1), Self::Requests(10)];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Stream => "1 stream".to_owned(),
            Self::Out(count) => format!("{count} x 20 MB out"),
            Self::In(count) => format!("{count} x 20 MB in"),
            Self::Requests(count) => format!("{count} x 100 B"),
        }
    }

    pub(crate) fn has_requests(self) -> bool {
        matches!(self, Self::Requests(_))
    }

    /// Loads a server.
    pub(crate) fn run(self, server: IpAddr) -> Work {
        let start = Instant::now();
        let (kind, connections) = match self {
            Self::Stream => (STREAM, 1),
            Self::Out(count) => (OUT, count),
            Self::In(count) => (IN, count),
            Self::Requests(count) => (REQUESTS, count),
        };
        let threads: Vec<JoinHandle<Vec<(usize, Duration)>>> = (0..connections)
            .map(|_| {
                let connection = connect(server, kind);
                std::thread::spawn(move || exchange_messages(connection, kind))
            })
            .collect();
        let turns = threads.into_iter().flat_map(|thread| thread.join().unwrap());
        let (units, mut times): (Vec<usize>, Vec<Duration>) = turns.unzip();
        times.sort_unstable();
        let median = self.has_requests().then(|| times[times.len() / 2]);
        Work { units: units.iter().sum(), time: start.elapsed(), median }
    }
}

/// Transfers until the time is over. Returns the units and the time of each turn.
fn exchange_messages(mut connection: TcpStream, kind: u8) -> Vec<(usize, Duration)> {
    let mut buffer = vec![1; WRITE_BYTES];
    let mut turns = Vec::new();
    let start = Instant::now();
    while start.elapsed() < DURATION {
        let begun = Instant::now();
        let units = match kind {
            STREAM => {
                connection.write_all(&buffer).unwrap();
                buffer.len()
            }
            OUT => {
                assert!(send(&mut connection, &buffer, TRANSFER_BYTES));
                connection.read_exact(&mut [0]).unwrap();
                TRANSFER_BYTES
            }
            IN => {
                connection.write_all(&[1]).unwrap();
                assert!(receive(&mut connection, &mut buffer, TRANSFER_BYTES));
                TRANSFER_BYTES
            }
            _ => {
                connection.write_all(&buffer[..REQUEST_BYTES]).unwrap();
                connection.read_exact(&mut buffer[..REQUEST_BYTES]).unwrap();
                1
            }
        };
        turns.push((units, begun.elapsed()));
    }
    turns
}

fn send(connection: &mut TcpStream, buffer: &[u8], mut bytes: usize) -> bool {
    while bytes > 0 {
        let part = &buffer[..bytes.min(buffer.len())];
        if connection.write_all(part).is_err() {
            return false;
        }
        bytes -= part.len();
    }
    true
}

fn receive(connection: &mut TcpStream, buffer: &mut [u8], mut bytes: usize) -> bool {
    while bytes > 0 {
        let room = bytes.min(buffer.len());
        match connection.read(&mut buffer[..room]) {
            Ok(0) | Err(_) => return false,
            Ok(received) => bytes -= received,
        }
    }
    true
}

fn connect(server: IpAddr, kind: u8) -> TcpStream {
    let mut connection = TcpStream::connect((server, PORT)).unwrap();
    connection.set_nodelay(true).unwrap();
    connection.write_all(&[kind]).unwrap();
    connection
}

/// The first byte of a connection.
const STREAM: u8 = 1;
const OUT: u8 = 2;
const IN: u8 = 3;
const REQUESTS: u8 = 4;
