//! The load: what the two plain programs at the ends of the chain say to each other.
//!
//! ```text
//! client: connect, one byte that names the kind, then by kind:
//!   'x' SIZE   request of SIZE bytes, reply of the same bytes, again and again
//!   's' SIZE   SIZE bytes one way, then one byte back; again from the kind byte
//!   'c'        one byte back, then the client closes
//!   'h'        one byte back, then nothing until the server lets go
//!   'f'        the server lets go of all that is held; one byte back
//! ```
//! SIZE is 8 bytes, big-endian. Both ends are threads with blocking sockets, the same for every
//! peer. A reply must carry the number of its own request: a proxy that mixes up or loses bytes
//! fails the run instead of winning it. The bytes are not compared beyond that.
//!
//! The programs that do TLS themselves are these too: they are built in a package of their own
//! (`bench/inprocess`), which takes this folder in and brings its own [`Wire`].

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod terms;
mod workloads;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use self::terms::Terms;
pub(crate) use self::workloads::{RUN_WORKLOADS, WORKLOADS, run_workload, workload};

/// Bytes of one read or write where the message is longer, at both ends.
const IO_BYTES_MAX: usize = 256 * 1024;

/// A peer that moves no byte for so long has failed.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(20);

const EXCHANGE: u8 = b'x';
const STREAM: u8 = b's';
const CONNECT: u8 = b'c';
const HOLD: u8 = b'h';
const FREE: u8 = b'f';

/// A connection as the load sees it: bytes in clear. Dropping it closes it in order.
pub(crate) trait Wire: Read + Write + Send {}

impl Wire for TcpStream {}

/// One row of the comparison.
#[derive(Debug)]
pub(crate) struct Workload {
    /// What `--workloads` calls it.
    pub(crate) name: &'static str,
    /// What the report calls it.
    pub(crate) title: &'static str,
    /// Connections at a time, each with a thread of the client.
    pub(crate) connections: usize,
    /// What each of them does.
    pub(crate) kind: Kind,
    /// The TLS between them.
    pub(crate) terms: Terms,
    /// What tacit is to reach.
    pub(crate) goal: Option<Goal>,
}

/// CPU time as a share of the best peer's, as installed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) target: f64,
    pub(crate) stretch: f64,
}

/// What a connection does, and how much of it makes a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Requests and replies of `bytes` each, one after the other, for a while.
    Exchange { bytes: usize },
    /// So often: `bytes` from client to server. Counted in MB.
    Stream { bytes: u64, times: u64 },
    /// `count` times: connect, a byte each way, close.
    Connect { count: u64 },
    /// `count` times: connect, a request and a reply of `bytes` each, close.
    Visit { count: u64, bytes: usize },
}

impl Kind {
    /// The unit that CPU time is stated per.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Exchange { .. } => "op",
            Self::Stream { .. } => "MB",
            Self::Connect { .. } | Self::Visit { .. } => "connect",
        }
    }

    /// Units in what the load client counts.
    pub(crate) fn units(self, done: f64) -> f64 {
        if matches!(self, Self::Stream { .. }) { done * 1e-6 } else { done }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::Duration;

    use super::client::{Amount, Worker, work};
    use super::*;

    fn served() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        server::spawn(listener, server::plain()).unwrap();
        address
    }

    fn run(kind: Kind, connections: usize, amount: Amount) -> u64 {
        let address = served();
        let dial = client::plain();
        let mut workers: Vec<_> =
            (0..connections).map(|_| Worker::open(kind, address, &dial).unwrap()).collect();
        work(&mut workers, amount).unwrap().count
    }

    #[test]
    fn exchanges_are_answered_until_time_is_up() {
        for bytes in [8, 2048, 1_000_000] {
            let done = run(Kind::Exchange { bytes }, 3, Amount::Time(Duration::from_millis(50)));
            assert!(done >= 3, "{bytes}: {done}");
        }
    }

    #[test]
    fn a_stream_carries_exactly_its_bytes() {
        let kind = Kind::Stream { bytes: 1_000_001, times: 0 };
        assert_eq!(run(kind, 2, Amount::Count(6)), 6_000_006);
    }

    #[test]
    fn connects_are_shared_among_the_workers() {
        assert_eq!(run(Kind::Connect { count: 0 }, 4, Amount::Count(40)), 40);
    }

    #[test]
    fn visits_are_whole_connections() {
        assert_eq!(run(Kind::Visit { count: 0, bytes: 100 }, 4, Amount::Count(40)), 40);
    }

    #[test]
    fn what_is_held_stays_open_until_it_is_let_go() {
        let address = served();
        let dial = client::plain();
        let mut held: Vec<_> = (0..40).map(|_| client::hold(address, &dial).unwrap()).collect();
        held[0].write_all(b"x").unwrap();
        client::let_go(address, &dial).unwrap();
        for wire in &mut held {
            // An end, or a reset where there were bytes that nobody read.
            assert!(matches!(wire.read(&mut [0]), Ok(0) | Err(_)));
        }
    }

    #[test]
    fn a_reply_to_another_request_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let liar = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 9 + 16];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&[0xff; 16]).unwrap();
        });
        let kind = Kind::Exchange { bytes: 16 };
        let mut workers = [Worker::open(kind, address, &client::plain()).unwrap()];
        let error = work(&mut workers, Amount::Time(Duration::from_secs(5))).unwrap_err();
        assert!(error.to_string().contains("another request"), "{error}");
        liar.join().unwrap();
    }
}
