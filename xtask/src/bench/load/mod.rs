//! The load: what the two plain programs at the ends of the chain say to each other.
//!
//! ```text
//! client: connect, one byte that names the kind, then by kind:
//!   'x' SIZE   request of SIZE bytes, reply of the same bytes, again and again
//!   's' SIZE   SIZE bytes one way, then one byte back; again from the kind byte
//!   'c'        one byte back, then the client closes
//! ```
//! SIZE is 8 bytes, big-endian. Both ends are threads with blocking sockets, the same for every
//! peer. A reply must carry the number of its own request: a proxy that mixes up or loses bytes
//! fails the run instead of winning it. The bytes are not compared beyond that.

pub(crate) mod client;
pub(crate) mod server;

use std::time::Duration;

/// Bytes of one read or write where the message is longer, at both ends.
const IO_BYTES_MAX: usize = 256 * 1024;

/// A peer that moves no byte for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

const EXCHANGE: u8 = b'x';
const STREAM: u8 = b's';
const CONNECT: u8 = b'c';

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
}

/// What a connection does, and how much of it makes a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// Requests and replies of `bytes` each, one after the other, for [`EXCHANGE_TIME`].
    Exchange { bytes: usize },
    /// `bytes` from client to server, counted in MB.
    Stream { bytes: u64 },
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
}

/// How long one sample of requests and replies lasts.
const EXCHANGE_TIME: Duration = Duration::from_millis(1500);

/// Every row, in the order of the report.
pub(crate) const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "2k",
        title: "2 KB request and reply, 10 connections",
        connections: 10,
        kind: Kind::Exchange { bytes: 2 * 1024 },
    },
    Workload {
        name: "64k",
        title: "64 KB request and reply, 10 connections",
        connections: 10,
        kind: Kind::Exchange { bytes: 64 * 1024 },
    },
    Workload {
        name: "1m",
        title: "1 MB request and reply, 1 connection",
        connections: 1,
        kind: Kind::Exchange { bytes: 1024 * 1024 },
    },
    Workload {
        name: "bulk",
        title: "1 GB one way, 1 connection",
        connections: 1,
        kind: Kind::Stream { bytes: 1_000_000_000 },
    },
    Workload {
        name: "connect",
        title: "full mutual connect, 4 at a time: connect, 1 byte each way, close",
        connections: 4,
        kind: Kind::Connect { count: 3000 },
    },
];

/// What programs inside a run do.
pub(crate) static RUN_WORKLOADS: [Workload; 2] = [
    Workload {
        name: "visit",
        title: "connect, 100 bytes each way, close; 4 at a time",
        connections: 4,
        kind: Kind::Visit { count: 2000, bytes: 100 },
    },
    Workload {
        name: "pour",
        title: "1 GB one way, 1 connection",
        connections: 1,
        kind: Kind::Stream { bytes: 1_000_000_000 },
    },
];

/// Finds a row by its name.
pub(crate) fn workload(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|workload| workload.name == name)
}

/// Finds what programs inside a run do, by its name.
pub(crate) fn run_workload(name: &str) -> Option<&'static Workload> {
    RUN_WORKLOADS.iter().find(|workload| workload.name == name)
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
        server::spawn(listener).unwrap();
        address
    }

    fn run(kind: Kind, connections: usize, amount: Amount) -> u64 {
        let address = served();
        let mut workers: Vec<_> =
            (0..connections).map(|_| Worker::open(kind, address).unwrap()).collect();
        work(&mut workers, amount).unwrap()
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
        let kind = Kind::Stream { bytes: 0 };
        assert_eq!(run(kind, 1, Amount::Count(3_000_001)), 3_000_001);
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
    fn a_reply_to_another_request_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let liar = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 9 + 16];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&[0xff; 16]).unwrap();
        });
        let mut workers = [Worker::open(Kind::Exchange { bytes: 16 }, address).unwrap()];
        let error = work(&mut workers, Amount::Time(Duration::from_secs(5))).unwrap_err();
        assert!(error.to_string().contains("another request"), "{error}");
        liar.join().unwrap();
    }
}
