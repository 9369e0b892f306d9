//! `sockets`: what a lock around the connection table would cost.
//!
//! z/TPF's messages make ten calls on a socket each, which once shared one lock. Here each thread
//! makes the same ten, on connections of its own, in the agent's own table (which has no lock),
//! with a lock put around it:
//!
//! ```text
//!  call                      in the table                             global   rw
//!  1 aor                     found                                    lock     write
//!  2 ioctl                   marked open                              lock     write
//!  3 getsockopt              whether it is open, its rekeys           lock     read
//!  4 getpeername             its client                               lock     read
//!  5 getsockname             its own address                          lock     read
//!  6 read                    a message taken from a real socket       lock     write
//!  7 message count, in       its bytes                                lock     write
//!  8 send                    a packet built, then queued on a socket  --send   --send
//!  9 message count, out      its bytes                                lock     write
//! 10 aor                     found                                    lock     write
//! ```
//! `writers` is z/TPF's phase 1: the global lock, taken from calls 3, 4 and 5 and from displays.
//! The lock spins, as z/TPF's does, and gives its CPU away now and then: on a machine with fewer
//! CPUs than threads the holder may not be running. Displays read the whole table, under the lock.
//! One transaction in a thousand closes its connection and opens another. The messages come over
//! UNIX sockets from the thread itself; there is no network, and no wait but for the lock.

mod lock;

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::policy::parse;
use tacit_core::statistics::Histogram;
use tokio::sync::Semaphore;

use self::lock::{Lock, LockKind, Waits, locked};
use super::clocks::{Clocks, Used};
use super::report::{Chart, OutputArgs, Report};
use super::watch::{Done, Ends, Unit, Watch};
use super::{CONNECTIONS_MAX, WorkloadError, at_once, bytes, count};
use crate::agent::{Materials, build_rules};
use crate::live::Live;
use crate::session::{AcceptedSide, Connection, Opening, Record, Table};

/// Locks around the agent's connection table; no network
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload sockets --lock global --displays --json global.json
  tacit workload sockets --lock none --displays --beside global.json
  tacit workload sockets --lock global --send unlocked")]
pub(super) struct SocketsArgs {
    /// What is put around the table
    #[arg(long, value_enum, default_value_t = LockKind::Global)]
    lock: LockKind,
    /// When a send holds the lock [default: throughout]
    #[arg(long, value_enum)]
    send: Option<Send>,
    /// Read the whole table every 10 ms, as a display would
    #[arg(long)]
    displays: bool,
    /// Threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = count(SOCKET_THREADS_MAX))]
    threads: Option<usize>,
    /// Connections in the table
    #[arg(long, value_name = "N", default_value = "4096", value_parser = count(TABLE_MAX))]
    connections: usize,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = bytes(16 * 1024))]
    bytes: u64,
    /// How long it is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = super::time)]
    seconds: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

/// When a send holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Send {
    /// From its first byte to its last
    Throughout,
    /// While the packet that was built is queued
    Queueing,
    /// Never
    Unlocked,
}

const SOCKET_THREADS_MAX: usize = 256;
/// Two descriptors each.
const TABLE_MAX: usize = CONNECTIONS_MAX / 2;
const DISPLAY_INTERVAL: Duration = Duration::from_millis(10);
/// Transactions after which a connection is replaced.
const REPLACED_EVERY: u64 = 1000;
/// What a packet has before its payload.
const HEADER_BYTES: usize = 40;

pub(super) fn run(args: &SocketsArgs) -> Result<(), WorkloadError> {
    if args.lock == LockKind::None && args.send.is_some_and(|send| send != Send::Unlocked) {
        let text = "--send says how long the lock is held, and --lock none has none: leave it out";
        return Err(WorkloadError::Usage(text.to_owned()));
    }
    let clocks = Clocks::of(&args.output.clocks)?;
    let bench = Bench::new(args)?;
    let (seen, used, charts) = bench.measure(&clocks)?;
    bench.report(&seen, &used, &clocks, charts).write(&args.output)
}

/// The table with what is needed to fill it.
struct Bench<'a> {
    args: &'a SocketsArgs,
    lock: Lock,
    table: Arc<Table>,
    live: Live,
    places: Arc<Semaphore>,
}

/// One connection of the table, with a socket to both of its ends.
struct Socket {
    connection: Connection,
    id: u64,
    ours: UnixStream,
    theirs: UnixStream,
}

/// What was seen by a thread.
#[derive(Debug, Default)]
struct Seen {
    transactions: u64,
    latency: Histogram,
    waits: Waits,
    display: Histogram,
}

impl<'a> Bench<'a> {
    fn new(args: &'a SocketsArgs) -> Result<Self, WorkloadError> {
        super::allow_descriptors(args.connections * 2)?;
        const POLICY: &str = "version = 1\n[[rule]]\nname = \"sockets\"\n\
            listen = \"127.0.0.1:1\"\nconnect = \"127.0.0.1:2\"\npermit = true\n";
        let wrong = |text: &dyn std::fmt::Display| WorkloadError::Table(text.to_string());
        let policy = parse(POLICY).policy.ok_or_else(|| wrong(&"its policy is refused"))?;
        let rules = build_rules(&policy, &Materials::default(), None, None);
        let rules = rules.map_err(|(_, error)| wrong(&error))?;
        Ok(Self {
            args,
            lock: Lock::of(args.lock),
            table: Arc::default(),
            live: Live::new(1, policy, rules),
            places: Arc::new(Semaphore::new(args.connections)),
        })
    }

    fn threads(&self) -> usize {
        self.args.threads.unwrap_or_else(super::cpus).min(self.args.connections)
    }

    /// When a send holds the lock.
    fn send(&self) -> Send {
        match self.args.lock {
            LockKind::None => Send::Unlocked,
            _ => self.args.send.unwrap_or(Send::Throughout),
        }
    }

    /// Puts a connection into the table.
    fn open(&self) -> Result<Socket, WorkloadError> {
        let wrong = |text: &dyn std::fmt::Display| WorkloadError::Table(text.to_string());
        let (ours, theirs) = UnixStream::pair().map_err(|error| wrong(&error))?;
        let copy = ours.try_clone().map_err(|error| wrong(&error))?;
        drop(copy);
        let address = |port| Address::Inet(([127, 0, 0, 1], port).into());
        let flow = Flow {
            direction: Direction::Inbound,
            protocol: Protocol::Tcp,
            listen: Some(address(1)),
            local: address(1),
            remote: address(40_000),
            remote_names: Vec::new(),
            program: None,
            user: None,
            at_unix_s: 0,
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|error| wrong(&error))?;
        let rule = self.live.lookup(&flow).ok_or_else(|| wrong(&"its policy denies"))?;
        let opening = Opening {
            rule: Arc::clone(rule),
            protocol: flow.protocol,
            local: flow.local,
            remote: flow.remote,
            proxied: None,
            run: None,
            parent: None,
        };
        let connection = Connection::open(&self.table, opening, AcceptedSide::Clear, place);
        let id = connection.record().id;
        Ok(Socket { connection, id, ours, theirs })
    }

    fn measure(&self, clocks: &Clocks) -> Result<(Seen, Used, Vec<Chart>), WorkloadError> {
        let threads = self.threads();
        let mut shares: Vec<Vec<Socket>> = (0..threads).map(|_| Vec::new()).collect();
        for number in 0..self.args.connections {
            let socket = self.open()?;
            if let Some(share) = shares.get_mut(number % threads) {
                share.push(socket);
            }
        }
        let done = Done::new(threads);
        let unit = Unit { plural: "transactions", of: 1.0 };
        let watch = Watch::start(unit, &done, Ends::default(), self.args.output.progress);
        let (failed, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let before = clocks.read()?;
        let end = Instant::now() + self.args.seconds;
        let (display, seen) = thread::scope(|scope| {
            let shows = self.args.displays.then(|| scope.spawn(|| self.display(&ended)));
            let seen = at_once(&mut shares, &failed, |number, share| {
                self.transact(share, end, &failed, |more| done.count(number, more))
            });
            ended.store(true, Ordering::Relaxed);
            let display = shows.map_or_else(|| Ok(Histogram::default()), |shows| shows.join());
            (display.map_err(|_| WorkloadError::Panicked), seen)
        });
        let used = clocks.since(&before)?;
        let mut all = Seen { display: display?, ..Seen::default() };
        for one in seen? {
            all.transactions += one.transactions;
            all.latency.add(&one.latency);
            all.waits.count += one.waits.count;
            all.waits.ns += one.waits.ns;
        }
        if all.transactions == 0 {
            return Err(WorkloadError::Nothing);
        }
        Ok((all, used, watch.finish(None)))
    }

    /// Transactions of one thread, connection after connection.
    fn transact(
        &self,
        share: &mut [Socket],
        end: Instant,
        failed: &AtomicBool,
        count: impl Fn(u64),
    ) -> Result<Seen, WorkloadError> {
        let broken = |error| WorkloadError::Broken("a socket of the table", error);
        let mut seen = Seen::default();
        let length = usize::try_from(self.args.bytes).unwrap_or(HEADER_BYTES);
        let mut message = vec![7; length];
        let mut packet = vec![0; HEADER_BYTES + length];
        let mut start = Instant::now();
        let mut at = 0;
        // A thread that was kept from its CPU until time was up does one all the same.
        while (start < end || seen.transactions == 0) && !failed.load(Ordering::Relaxed) {
            at = (at + 1) % share.len();
            let Some(socket) = share.get_mut(at) else { break };
            // A message arrives.
            socket.theirs.write_all(&message).map_err(broken)?;
            self.ten_calls(socket, &mut message, &mut packet, &mut seen.waits).map_err(broken)?;
            socket.theirs.read_exact(&mut packet).map_err(broken)?;
            seen.transactions += 1;
            if seen.transactions.is_multiple_of(REPLACED_EVERY) {
                self.replace(socket, &mut seen.waits)?;
            }
            let now = Instant::now();
            seen.latency.record(u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX));
            count(1);
            start = now;
        }
        Ok(seen)
    }

    /// What a program does for one message.
    fn ten_calls(
        &self,
        socket: &mut Socket,
        message: &mut [u8],
        packet: &mut [u8],
        waits: &mut Waits,
    ) -> std::io::Result<()> {
        let Self { lock, table, .. } = self;
        let Socket { connection, id, ours, .. } = socket;
        // 1 to 5: aor, ioctl, and what only reads.
        locked(lock.exclusive(waits), || table.find(*id));
        locked(lock.exclusive(waits), || table.find(*id).map(|_| connection.mark_open()));
        let looked = |look: &dyn Fn(&Record), waits: &mut Waits| {
            locked(lock.shared(waits), || table.find(*id).inspect(|record| look(record)));
        };
        looked(&|record| _ = black_box((record.is_open(), record.rekeys())), waits);
        looked(&|record| _ = black_box(record.client().clone()), waits);
        looked(&|record| _ = black_box(record.local.clone()), waits);
        // 6 and 7: read, and its count.
        locked(lock.exclusive(waits), || ours.read_exact(message))?;
        locked(lock.exclusive(waits), || connection.count_received(message.len()));
        // 8 and 9: send, and its count.
        match self.send() {
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

    /// Closes a connection and puts another in its place.
    fn replace(&self, socket: &mut Socket, waits: &mut Waits) -> Result<(), WorkloadError> {
        self.places.add_permits(1);
        let fresh = self.open()?;
        locked(self.lock.exclusive(waits), || *socket = fresh);
        self.places.forget_permits(1);
        Ok(())
    }

    /// Reads the whole table now and then; returns how long each time took, waits included.
    fn display(&self, ended: &AtomicBool) -> Histogram {
        let (mut taken, mut waits) = (Histogram::default(), Waits::default());
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

    fn report(&self, seen: &Seen, used: &Used, clocks: &Clocks, charts: Vec<Chart>) -> Report {
        let name = |kind: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
            kind().map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let lock = name(&|| self.args.lock.to_possible_value());
        let send = name(&|| self.send().to_possible_value());
        let (threads, connections) = (self.threads(), self.args.connections);
        let displays = if self.args.displays { "on" } else { "off" };
        let mut report = Report::new(
            "sockets",
            format!(
                "lock {lock}, sends {send}, displays {displays}, {threads} threads, {connections} \
                 connections, {:.1} s",
                used.seconds
            ),
        );
        report.set("lock", lock);
        report.set("send", send);
        report.set("displays", self.args.displays);
        report.set("threads", threads);
        report.set("connections", connections);
        report.set("bytes", self.args.bytes);
        let all = seen.transactions as f64;
        report.figure("transactions_per_s", "transactions", "/s", all / used.seconds);
        // Throughput by utilisation is how z/TPF states its gain.
        let cpu_s = used.sum_ns() as f64 / 1e9;
        report.figure("transactions_per_cpu_s", "in a second of CPU", "", all / cpu_s);
        let waited = seen.waits.ns as f64;
        let thread_ns = threads as f64 * used.seconds * 1e9;
        report.figure("spin_percent", "time spent on waits", "%", 100.0 * waited / thread_ns);
        let each = waited / 1000.0 / all;
        report.figure("spin_us_per_transaction", "wait in a transaction", "us", each);
        let share = seen.waits.count as f64 / all;
        report.figure("waits_per_transaction", "waits in a transaction", "", share);
        report.latency("latency", "transaction", &seen.latency);
        if self.args.displays {
            report.latency("display", "display", &seen.display);
        }
        report.cpu(&clocks.names(), used, "transaction", all);
        report.note(format!(
            "z/TPF gained 28 and 40 % on 8 and 16 CPUs by taking this lock from calls that only \
             read; this machine has {}, and claims nothing beyond what is printed here",
            super::cpus()
        ));
        report.charts.extend(charts);
        report
    }
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

    use super::super::clocks::ClocksArgs;
    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: SocketsArgs,
    }

    fn measured(words: &[&str]) -> (Seen, serde_json::Value) {
        let words =
            ["", "--connections", "20", "--threads", "3", "--seconds", "100ms"].iter().chain(words);
        let args = Words::try_parse_from(words).unwrap().args;
        let bench = Bench::new(&args).unwrap();
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let (seen, used, charts) = bench.measure(&clocks).unwrap();
        assert!(bench.table.is_empty(), "connections leave with their threads");
        let json = bench.report(&seen, &used, &clocks, charts).json();
        (seen, json)
    }

    #[test]
    fn every_lock_and_every_send_does_the_same_work() {
        for lock in ["global", "rw", "writers"] {
            for send in ["throughout", "queueing", "unlocked"] {
                let (seen, json) = measured(&["--lock", lock, "--send", send]);
                assert!(seen.transactions > REPLACED_EVERY / 100, "{lock} {send}: {seen:?}");
                assert_eq!(seen.latency.count(), seen.transactions);
                assert_eq!(seen.display.count(), 0);
                assert_eq!(json["settings"]["send"], send);
            }
        }
    }

    #[test]
    fn without_a_lock_nobody_waits_and_displays_are_timed() {
        let (seen, json) = measured(&["--lock", "none", "--displays"]);
        assert_eq!([seen.waits.count, seen.waits.ns], [0; 2]);
        assert!(seen.display.count() > 0);
        for key in ["transactions_per_s", "spin_percent", "display_p99_us", "latency_p999_us"] {
            assert!(json["figures"][key].is_number(), "{key}");
        }
        assert!(json["notes"].to_string().contains("8 and 16 CPUs"));
    }

    #[test]
    fn a_send_without_a_lock_cannot_hold_one() {
        let words = ["", "--lock", "none", "--send", "queueing"];
        let error = run(&Words::try_parse_from(words).unwrap().args).unwrap_err();
        assert!(matches!(error, WorkloadError::Usage(_)), "{error}");
    }
}
