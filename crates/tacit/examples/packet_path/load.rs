//! Runs the load of the example `packet_path`. It has a server, a client that sends a stream, and
//! clients that exchange requests and replies.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

const PORT: u16 = 9301;
const STREAM: u8 = 1;
const SESSION: u8 = 2;
const REQUEST_BYTES: usize = 100;
const WRITE_BYTES: usize = 256 * 1024;
/// How long each measurement takes.
const DURATION: Duration = Duration::from_secs(2);

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
    connection.read_exact(&mut buffer[..1]).unwrap();
    if buffer[0] == STREAM {
        while connection.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
        return;
    }
    let request = &mut buffer[..REQUEST_BYTES];
    while connection.read_exact(request).is_ok() && connection.write_all(request).is_ok() {}
}

/// Sends one stream; prints bytes, seconds and CPU seconds.
pub(crate) fn stream(address: &str) {
    let mut connection = connect(address, STREAM);
    let data = vec![7; WRITE_BYTES];
    let start = Instant::now();
    let mut bytes = 0;
    while start.elapsed() < DURATION {
        connection.write_all(&data).unwrap();
        bytes += data.len();
    }
    println!("{bytes} {:.3} {:.3}", start.elapsed().as_secs_f64(), cpu_s());
}

/// Sends requests in several sessions; prints transactions, seconds, CPU seconds, and the median of
/// the times in microseconds.
pub(crate) fn requests(address: &str, sessions: usize) {
    let start = Instant::now();
    let threads: Vec<_> = (0..sessions)
        .map(|_| {
            let connection = connect(address, SESSION);
            std::thread::spawn(move || run_session(connection))
        })
        .collect();
    let mut times: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    times.sort_unstable();
    let median = times[times.len() / 2].as_micros();
    println!("{} {:.3} {:.3} {median}", times.len(), start.elapsed().as_secs_f64(), cpu_s());
}

fn run_session(mut connection: TcpStream) -> Vec<Duration> {
    let mut buffer = [1; REQUEST_BYTES];
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < DURATION {
        let sent = Instant::now();
        connection.write_all(&buffer).unwrap();
        connection.read_exact(&mut buffer).unwrap();
        times.push(sent.elapsed());
    }
    times
}

fn connect(address: &str, kind: u8) -> TcpStream {
    let mut connection = TcpStream::connect((address, PORT)).unwrap();
    connection.set_nodelay(true).unwrap();
    connection.write_all(&[kind]).unwrap();
    connection
}

/// The CPU time of this process.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap().as_secs_f64()
}
