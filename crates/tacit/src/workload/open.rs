//! Opens connections on several threads, for the workloads `connect`, `ramp` and `start-stop`.
//!
//! A connection counts as open when the reply to its first request has arrived. At this time, all
//! proxies between client and server have finished their handshakes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tacit_core::flow::Address;
use tacit_core::statistics::Histogram;
use tacit_core::workload::{HEADER_BYTES, WorkloadRequest, repeated_bytes};

use super::error::WorkloadError;
use super::socket::{Stream, dial};
use super::threads::run_on_threads;
use super::watch::Unit;

/// The unit of the progress line.
pub(super) const CONNECTIONS: Unit = Unit { plural: "connections", of: 1.0 };

/// Default size of the first request and of its reply.
pub(super) const PROBE_BYTES: usize = 1;

/// Pause between two attempts to connect to the server.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Opens a connection, and exchanges a request and a reply of one byte on it.
pub(super) fn open(addresses: &[Address]) -> Result<Stream, WorkloadError> {
    open_with(addresses, PROBE_BYTES)
}

/// Opens a connection, and exchanges a request and a reply of `bytes` bytes on it.
pub(super) fn open_with(addresses: &[Address], bytes: usize) -> Result<Stream, WorkloadError> {
    const PROBE: u8 = 0x55;
    let broken = |error| WorkloadError::Broken("opening a connection", error);
    let mut stream = dial(addresses)?;
    let request =
        WorkloadRequest::Exchange { request_bytes: bytes as u64, reply_bytes: bytes as u64 };
    let mut first = request.encode().to_vec();
    first.resize(HEADER_BYTES + bytes, PROBE);
    stream.write_all(&first).map_err(broken)?;
    let mut reply = vec![0; bytes];
    stream.read_exact(&mut reply).map_err(broken)?;
    let repeated = repeated_bytes(bytes, bytes);
    if reply[..repeated].iter().any(|byte| *byte != PROBE) {
        return Err(WorkloadError::Mixed(
            "the first reply does not repeat the first bytes of the request",
        ));
    }
    Ok(stream)
}

/// Opens and closes a connection, and repeats this until it succeeds or `wait` is over.
pub(super) fn wait_for_server(addresses: &[Address], wait: Duration) -> Result<(), WorkloadError> {
    let start = Instant::now();
    loop {
        match open(addresses) {
            Ok(stream) => return close(stream),
            Err(error) if start.elapsed() >= wait => return Err(error),
            Err(_) => std::thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Shuts a connection down, and waits until the server closes it as well.
pub(super) fn close(mut stream: Stream) -> Result<(), WorkloadError> {
    let ended = stream.shutdown(Shutdown::Write).and_then(|()| stream.read(&mut [0]));
    match ended {
        // A reset closes the connection as well, and no byte was in transit.
        Ok(0) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
        Ok(_) => {
            Err(WorkloadError::Mixed("the server sent data instead of closing the connection"))
        }
        Err(error) => Err(WorkloadError::Broken("closing a connection", error)),
    }
}

/// Distributes the numbers from 0 to `total` - 1 to `at_once` threads, each of which calls `work`
/// for its numbers. Returns the state of each thread.
pub(super) fn distribute<T: Send + Default>(
    total: usize,
    threads: usize,
    work: impl Fn(usize, usize, &mut T) -> Result<(), WorkloadError> + Sync,
) -> Result<Vec<T>, WorkloadError> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let mut workers = vec![(); threads.min(total)];
    run_on_threads(&mut workers, &failed, |thread, ()| {
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

/// Records the time since `from`.
pub(super) fn record(seen: &mut Histogram, from: Instant) {
    seen.record(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
}

/// Merges the histograms of all threads.
pub(super) fn merged<'a>(parts: impl IntoIterator<Item = &'a Histogram>) -> Histogram {
    let mut all = Histogram::default();
    parts.into_iter().for_each(|part| all.add(part));
    all
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
        let parts = distribute(100, 7, |_, number, gathered: &mut usize| {
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
        let error = distribute(1_000_000, 3, |_, number, _: &mut ()| {
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
    fn a_refused_connection_is_reported_with_its_address() {
        let address: Address = "127.0.0.1:1".parse().unwrap();
        let error = open(&[address]).unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1") && error.contains("workload MODE server"), "{error}");
    }
}
