//! Runs transactions on a table of connections, in several threads. A transaction is a sequence of
//! ten socket calls that process one message. The benchmark uses the agent's code for the table,
//! and can add a lock around the table. The agent has no such lock.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use tacit::live::{self, BuildContext, Credentials, Live};
use tacit::net::Security;
use tacit::session::{Connection, ConnectionRecord, ConnectionTable, Opening};
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::parse;
use tacit_core::statistics::Histogram;
use tacit_sys::{cpu, process};
use tokio::sync::Semaphore;

use super::arguments::{Send, SocketsArgs};
use super::lock::{Lock, WaitCounts, locked};

const DISPLAY_INTERVAL: Duration = Duration::from_millis(10);
/// Number of transactions after which a connection is replaced.
const REPLACED_EVERY: u64 = 1000;
/// Size of a packet's header.
const HEADER_BYTES: usize = 40;
/// Descriptors for everything else.
const DESCRIPTORS_SPARE: u64 = 64;
const PANICKED: &str = "a thread panicked: see the message above";

/// The table, and what is needed to add connections.
pub(super) struct TransactionBench<'a> {
    args: &'a SocketsArgs,
    send: Send,
    lock: Lock,
    table: Arc<ConnectionTable>,
    live: Live,
    places: Arc<Semaphore>,
}

/// A connection in the table, with sockets to both of its peers.
struct Socket {
    connection: Connection,
    id: u64,
    ours: UnixStream,
    theirs: UnixStream,
}

/// The measurements of one thread.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) transactions: u64,
    pub(super) latency: Histogram,
    pub(super) waits: WaitCounts,
    pub(super) display: Histogram,
}

/// The measurements of all threads.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) results: Results,
    pub(super) threads: usize,
    pub(super) seconds: f64,
    /// CPU time of this process.
    pub(super) cpu_ns: u64,
}

impl<'a> TransactionBench<'a> {
    pub(super) fn new(args: &'a SocketsArgs) -> Result<Self, String> {
        let limit = process::raise_descriptor_limit().map_err(|error| wrong(&error))?;
        if 2 * args.connections as u64 + DESCRIPTORS_SPARE > limit {
            return Err(format!(
                "{} connections need twice as many open files, but the limit is {limit}: raise the \
                 limit (ulimit -Hn), or use fewer connections",
                args.connections
            ));
        }
        const POLICY: &str = "version = 1\n[[rule]]\nname = \"sockets\"\n\
            listen = \"127.0.0.1:1\"\nconnect = \"127.0.0.1:2\"\npermit = true\n";
        let policy =
            parse(POLICY).policy.ok_or_else(|| wrong(&"the policy of the benchmark is invalid"))?;
        let context = BuildContext { credentials: &Credentials::default(), chains: None };
        let live = live::build(policy, context).map_err(|refused| wrong(&refused))?;
        Ok(Self {
            args,
            send: args.send()?,
            lock: Lock::of(args.lock),
            table: Arc::default(),
            live,
            places: Arc::new(Semaphore::new(args.connections)),
        })
    }

    fn threads(&self) -> usize {
        self.args.threads.unwrap_or_else(cpus).min(self.args.connections)
    }

    /// Adds a connection to the table.
    fn open(&self) -> Result<Socket, String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| wrong(&error))?;
        let address = |port| Address::Inet(([127, 0, 0, 1], port).into());
        let flow = Flow {
            direction: Direction::Inbound,
            protocol: Protocol::Tcp,
            listen: Some(address(1)),
            local: address(1),
            remote: address(40_000),
            remote_names: Vec::new(),
            alias: None,
            is_shared: false,
            program: None,
            user: None,
            group: None,
            cgroup: None,
            run: None,
            to_own_host: false,
            at_unix_s: 0,
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|error| wrong(&error))?;
        let rule = self
            .live
            .lookup(&flow)
            .ok_or_else(|| wrong(&"the policy of the benchmark denies the connection"))?;
        let opening = Opening {
            rule: Arc::clone(rule),
            protocol: flow.protocol,
            local: flow.local,
            remote: flow.remote,
            proxied: None,
            scope: None,
            parent: None,
        };
        let connection = Connection::open(&self.table, opening, Security::Clear, place, None);
        let id = connection.record().id;
        Ok(Socket { connection, id, ours, theirs })
    }

    /// Runs transactions on all threads for the given time.
    pub(super) fn measure(&self) -> Result<Measured, String> {
        let threads = self.threads();
        let mut shares: Vec<Vec<Socket>> = (0..threads).map(|_| Vec::new()).collect();
        for number in 0..self.args.connections {
            let socket = self.open()?;
            if let Some(share) = shares.get_mut(number % threads) {
                share.push(socket);
            }
        }
        let ended = AtomicBool::new(false);
        let cpu_before = cpu::own_process_ns();
        let start = Instant::now();
        let end = start + self.args.seconds;
        let mut all = Results::default();
        thread::scope(|scope| -> Result<(), String> {
            let display = self.args.displays.then(|| scope.spawn(|| self.display(&ended)));
            let work = |share: Vec<Socket>| scope.spawn(move || self.transact(share, end));
            let threads: Vec<_> = shares.into_iter().map(work).collect();
            let results: Vec<_> = threads.into_iter().map(joined).collect();
            ended.store(true, Ordering::Relaxed);
            if let Some(display) = display {
                all.display = display.join().map_err(|_| PANICKED.to_owned())?;
            }
            for one in results {
                let one = one?;
                all.transactions += one.transactions;
                all.latency.add(&one.latency);
                all.waits.count += one.waits.count;
                all.waits.ns += one.waits.ns;
            }
            Ok(())
        })?;
        Ok(Measured {
            results: all,
            threads,
            seconds: start.elapsed().as_secs_f64(),
            cpu_ns: cpu::own_process_ns().saturating_sub(cpu_before),
        })
    }

    /// Runs the transactions of one thread on its connections in turns.
    fn transact(&self, mut share: Vec<Socket>, end: Instant) -> Result<Results, String> {
        let broken = |error: io::Error| format!("a socket of a test connection failed: {error}");
        let mut results = Results::default();
        let mut message = vec![7; self.args.bytes];
        let mut packet = vec![0; HEADER_BYTES + self.args.bytes];
        let mut start = Instant::now();
        let mut at = 0;
        // A thread that got no CPU in time still does one transaction.
        while start < end || results.transactions == 0 {
            at = (at + 1) % share.len();
            let Some(socket) = share.get_mut(at) else { break };
            // A message arrives.
            socket.theirs.write_all(&message).map_err(broken)?;
            self.ten_calls(socket, &mut message, &mut packet, &mut results.waits)
                .map_err(broken)?;
            socket.theirs.read_exact(&mut packet).map_err(broken)?;
            results.transactions += 1;
            if results.transactions.is_multiple_of(REPLACED_EVERY) {
                self.replace(socket, &mut results.waits)?;
            }
            let now = Instant::now();
            results.latency.record(u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX));
            start = now;
        }
        Ok(results)
    }

    /// The ten calls of a program for one message.
    fn ten_calls(
        &self,
        socket: &mut Socket,
        message: &mut [u8],
        packet: &mut [u8],
        waits: &mut WaitCounts,
    ) -> io::Result<()> {
        let Self { lock, table, .. } = self;
        let Socket { connection, id, ours, .. } = socket;
        // 1 to 5: aor, ioctl, and the calls that only read.
        locked(lock.exclusive(waits), || table.find(*id));
        locked(lock.exclusive(waits), || table.find(*id).map(|_| connection.mark_open()));
        let looked = |look: &dyn Fn(&ConnectionRecord), waits: &mut WaitCounts| {
            locked(lock.shared(waits), || table.find(*id).inspect(|record| look(record)));
        };
        looked(&|record| _ = black_box((record.is_open(), record.rekeys())), waits);
        looked(&|record| _ = black_box(record.client().clone()), waits);
        looked(&|record| _ = black_box(record.local.clone()), waits);
        // 6 and 7: read, and its count.
        locked(lock.exclusive(waits), || ours.read_exact(message))?;
        locked(lock.exclusive(waits), || connection.count_received(message.len()));
        // 8 and 9: send, and its count.
        match self.send {
            Send::Throughout => locked(lock.exclusive(waits), || {
                build(packet, message);
                ours.write_all(packet)
            })?,
            Send::Queueing => {
                build(packet, message);
                locked(lock.exclusive(waits), || ours.write_all(packet))?;
            }
            Send::Unlocked => {
                build(packet, message);
                ours.write_all(packet)?;
            }
        }
        locked(lock.exclusive(waits), || connection.count_sent(packet.len()));
        // 10: aor, for the next message.
        locked(lock.exclusive(waits), || table.find(*id));
        Ok(())
    }

    /// Closes a connection and opens another.
    fn replace(&self, socket: &mut Socket, waits: &mut WaitCounts) -> Result<(), String> {
        self.places.add_permits(1);
        let fresh = self.open()?;
        locked(self.lock.exclusive(waits), || *socket = fresh);
        self.places.forget_permits(1);
        Ok(())
    }

    /// Reads the whole table repeatedly; returns how long each pass took, with waits for the lock.
    fn display(&self, ended: &AtomicBool) -> Histogram {
        let mut taken = Histogram::default();
        let mut waits = WaitCounts::default();
        while !ended.load(Ordering::Relaxed) {
            let start = Instant::now();
            locked(self.lock.shared(&mut waits), || {
                for record in self.table.snapshot() {
                    black_box((record.client(), &record.local, record.sent_bytes()));
                }
            });
            taken.record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            thread::sleep(DISPLAY_INTERVAL);
        }
        taken
    }
}

fn wrong(text: &dyn std::fmt::Display) -> String {
    format!("cannot prepare the connection table: {text}")
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, String>>) -> Result<T, String> {
    thread.join().map_err(|_| PANICKED.to_owned())?
}

/// The number of CPUs that this process may use.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Builds a packet: a header with a checksum, and the message.
fn build(packet: &mut [u8], message: &[u8]) {
    let sum = message.iter().fold(0_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    let (header, payload) = packet.split_at_mut(HEADER_BYTES);
    header.fill(0);
    header[..8].copy_from_slice(&sum.to_be_bytes());
    payload.copy_from_slice(message);
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::lock::LockKind;
    use super::*;

    fn measured(words: &[&str]) -> Measured {
        let words =
            ["", "--connections", "20", "--threads", "3", "--seconds", "100ms"].iter().chain(words);
        let args = SocketsArgs::try_parse_from(words).unwrap();
        let bench = TransactionBench::new(&args).unwrap();
        let measured = bench.measure().unwrap();
        assert!(bench.table.is_empty(), "connections leave with their threads");
        measured
    }

    #[test]
    fn all_locks_and_sends_do_the_same_work() {
        for lock in ["global", "rw", "writers"] {
            for send in ["throughout", "queueing", "unlocked"] {
                let results = measured(&["--lock", lock, "--send", send]).results;
                assert!(results.transactions > REPLACED_EVERY / 100, "{lock} {send}: {results:?}");
                assert_eq!(results.latency.count(), results.transactions);
                assert_eq!(results.display.count(), 0);
            }
        }
    }

    #[test]
    fn without_a_lock_no_thread_waits_and_displays_are_timed() {
        let results = measured(&["--lock", "none", "--displays"]).results;
        assert_eq!(results.waits.count, 0);
        assert_eq!(results.waits.ns, 0);
        assert!(results.display.count() > 0);
    }

    #[test]
    fn a_send_without_a_lock_cannot_hold_one() {
        let words = ["", "--lock", "none", "--send", "queueing"];
        let args = SocketsArgs::try_parse_from(words).unwrap();
        assert_eq!(args.lock, LockKind::None);
        assert!(
            TransactionBench::new(&args)
                .is_err_and(|error| error.contains("has no effect with --lock none"))
        );
    }
}
