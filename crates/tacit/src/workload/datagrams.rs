//! Implements the workload `datagrams`, which exchanges requests and replies by UDP.
//!
//! Each socket has its own thread. The thread sends a request, and waits for the reply before it
//! sends the next request. If no reply arrives within [`LOSS_TIME`], the thread sends the request
//! again. Enterprise Extender (a mainframe protocol over UDP) also repeats a request if no reply
//! arrives. A reply contains the number of its request, so a late reply to an earlier request is
//! ignored.
//!
//! The server returns each datagram to its sender.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tacit_core::flow::Address;
use tacit_core::statistics::Histogram;

use super::arguments::{bytes, count, time};
use super::clocks::{Clocks, CpuUsage};
use super::error::WorkloadError;
use super::limits::{SILENCE_MAX, THREADS_MAX};
use super::report::{OutputArgs, Report, with_noun};
use super::socket::resolve;
use super::threads::{cpus, run_on_threads};
use super::watch::{Done, Unit, Watch, WatchedConnections};
use crate::exit;

/// Exchange datagrams by UDP
#[derive(Debug, Args)]
pub(super) struct DatagramArgs {
    #[command(subcommand)]
    role: DatagramRole,
}

#[derive(Debug, Subcommand)]
enum DatagramRole {
    /// Send requests, wait for the replies, and report
    Client(DatagramClientArgs),
    /// Return each datagram to its sender until terminated
    Server(DatagramServerArgs),
}

/// Send requests, wait for the replies, and report
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload datagrams client --connect 127.0.0.1:7000 --bytes 100 --seconds 10s")]
struct DatagramClientArgs {
    /// The address of the server
    #[arg(long, value_name = "HOST:PORT")]
    connect: String,
    /// Number of sockets; each sends one request at a time
    #[arg(long, value_name = "N", default_value = "10", value_parser = count(THREADS_MAX))]
    connections: usize,
    /// Size of each request and of each reply: at least 8 bytes
    #[arg(long, value_name = "BYTES", default_value = "100",
          value_parser = bytes(DATAGRAM_BYTES_MAX))]
    bytes: u64,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    seconds: Duration,
    /// Retry the first request for this long, also if the server's host refuses it. Without this
    /// option: retry for 30s, and exit at once if the server's host refuses the request
    #[arg(long, value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Return each datagram to its sender until terminated
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload datagrams server --listen 127.0.0.1:7000")]
struct DatagramServerArgs {
    /// The address to listen at; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// The maximum length of a datagram. Networks usually transmit this length without fragmentation.
const DATAGRAM_BYTES_MAX: u64 = 1_200;
/// The length of the number at the beginning of a datagram.
const NUMBER_BYTES: usize = size_of::<u64>();
/// How long a reply may take before the request is sent again.
const LOSS_TIME: Duration = Duration::from_millis(200);
/// How long the client exchanges datagrams before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) fn run(args: &DatagramArgs) -> Result<(), WorkloadError> {
    match &args.role {
        DatagramRole::Client(args) => client(args),
        DatagramRole::Server(args) => server(args),
    }
}

fn server(args: &DatagramServerArgs) -> Result<(), WorkloadError> {
    let failed = |error| WorkloadError::Listen(args.listen.into(), error);
    let socket = UdpSocket::bind(args.listen).map_err(failed)?;
    let address = socket.local_addr().map_err(failed)?;
    let pid = std::process::id();
    let line = format!("listening on {address}, process {pid}\n");
    exit::print(line, exit::EXIT_OK);
    for thread in serve(&socket, cpus()).map_err(WorkloadError::Thread)? {
        // A thread ends only by a panic, which has printed its message.
        let _ = thread.join();
    }
    Err(WorkloadError::ServerEnded)
}

/// Starts threads that return datagrams until the process ends.
fn serve(socket: &UdpSocket, threads: usize) -> io::Result<Vec<thread::JoinHandle<()>>> {
    let start = |number| {
        let socket = socket.try_clone()?;
        thread::Builder::new().name(format!("server-{number}")).spawn(move || {
            let mut datagram = vec![0; usize::from(u16::MAX)];
            loop {
                // An ICMP error of an earlier reply is reported here; the client sends again.
                if let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
                    let _ = socket.send_to(&datagram[..bytes], from);
                }
            }
        })
    };
    (0..threads).map(start).collect()
}

/// The counts and latencies of one or several sockets.
#[derive(Debug, Default)]
struct Results {
    done: u64,
    lost: u64,
    latency: Histogram,
}

/// A socket of the client, and the request that the client sends on this socket.
struct DatagramPeer {
    socket: UdpSocket,
    to: SocketAddr,
    on_refusal: OnRefusal,
    request: Vec<u8>,
    reply: Vec<u8>,
    number: u64,
}

/// What a client does if no server listens at the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnRefusal {
    End,
    Retry,
}

impl DatagramPeer {
    fn connect(addresses: &[Address], bytes: usize) -> Result<Self, WorkloadError> {
        let inet = addresses.iter().find_map(|address| match address {
            Address::Inet(address) => Some(*address),
            _ => None,
        });
        let Some(to) = inet else {
            return Err(WorkloadError::Usage("--connect needs an IP address or a name".into()));
        };
        let own: SocketAddr =
            if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
        let open = || {
            let socket = UdpSocket::bind(own)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(LOSS_TIME))?;
            Ok(socket)
        };
        let socket = open().map_err(|error| WorkloadError::Connect(to.into(), error))?;
        let request = vec![7; bytes];
        let reply = vec![0; bytes];
        Ok(Self { socket, to, on_refusal: OnRefusal::Retry, request, reply, number: 0 })
    }

    /// Sends the first request again and again, until its reply arrives. If `wait` is `None`, an
    /// ICMP error "connection refused" ends the client. If `wait` is set, the client ignores the
    /// error.
    fn begin(&mut self, wait: Option<Duration>) -> Result<(), WorkloadError> {
        if wait.is_none() {
            self.on_refusal = OnRefusal::End;
        }
        self.exchange(wait.unwrap_or(SILENCE_MAX))?;
        self.on_refusal = OnRefusal::Retry;
        Ok(())
    }

    /// Sends a request again and again, until its reply arrives. Returns how many attempts had no
    /// reply.
    fn exchange(&mut self, patience: Duration) -> Result<u64, WorkloadError> {
        let broken = |error| WorkloadError::Broken("an exchange", error);
        self.number += 1;
        self.request[..NUMBER_BYTES].copy_from_slice(&self.number.to_le_bytes());
        let start = Instant::now();
        let mut lost = 0;
        loop {
            let sent = self.socket.send(&self.request).and_then(|_| self.await_reply());
            match sent {
                Ok(true) => return Ok(lost),
                // The server does not listen yet, or an earlier datagram was refused.
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    if self.on_refusal == OnRefusal::End {
                        return Err(WorkloadError::Connect(self.to.into(), error));
                    }
                    thread::sleep(LOSS_TIME / 10);
                }
                Err(error) => return Err(broken(error)),
            }
            lost += 1;
            if start.elapsed() > patience {
                return Err(broken(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Waits for the reply to the last request. Returns whether it has arrived in time.
    fn await_reply(&mut self) -> io::Result<bool> {
        loop {
            match self.socket.recv(&mut self.reply) {
                Ok(bytes) if self.reply[..bytes] == self.request => return Ok(true),
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn exchange_for(
        &mut self,
        time: Duration,
        failed: &AtomicBool,
        count: impl Fn(),
    ) -> Result<Results, WorkloadError> {
        let mut results = Results::default();
        let start = Instant::now();
        let mut sent = start;
        while sent.duration_since(start) < time && !failed.load(Ordering::Relaxed) {
            results.lost += self.exchange(SILENCE_MAX)?;
            let now = Instant::now();
            let ns = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
            results.latency.record(ns);
            results.done += 1;
            count();
            sent = now;
        }
        Ok(results)
    }
}

fn client(args: &DatagramClientArgs) -> Result<(), WorkloadError> {
    let bytes = usize::try_from(args.bytes).unwrap_or(usize::MAX);
    if bytes < NUMBER_BYTES {
        return Err(WorkloadError::Usage(format!(
            "--bytes is {bytes}, but each datagram contains a request number of {NUMBER_BYTES} \
             bytes: use a larger value"
        )));
    }
    let clocks = Clocks::of(&args.output.clocks)?;
    let addresses = resolve(&args.connect)?;
    let connect = |_| DatagramPeer::connect(&addresses, bytes);
    let mut peers = (0..args.connections).map(connect).collect::<Result<Vec<_>, _>>()?;
    let failed = AtomicBool::new(false);
    run_on_threads(&mut peers, &failed, |_, peer| {
        peer.begin(args.wait)?;
        peer.exchange_for(WARM_UP, &failed, || ()).map(drop)
    })?;
    args.output.steering().ready()?;
    let done = Done::new(args.connections);
    let watch = Watch::start(
        Unit { plural: "exchanges", of: 1.0 },
        &done,
        WatchedConnections::default(),
        args.output.progress_lines(),
    );
    let before = clocks.read()?;
    let parts = run_on_threads(&mut peers, &failed, |number, peer| {
        peer.exchange_for(args.seconds, &failed, || done.count(number, 1))
    })?;
    let used = clocks.since(&before)?;
    let mut results = Results::default();
    for part in &parts {
        results.done += part.done;
        results.lost += part.lost;
        results.latency.add(&part.latency);
    }
    let mut report = report(args, &clocks, &results, &used)?;
    report.charts.extend(watch.finish(None));
    report.write(&args.output)
}

fn report(
    args: &DatagramClientArgs,
    clocks: &Clocks,
    results: &Results,
    used: &CpuUsage,
) -> Result<Report, WorkloadError> {
    if results.done == 0 {
        return Err(WorkloadError::Nothing);
    }
    let DatagramClientArgs { connections, bytes, seconds, .. } = args;
    let sockets = with_noun(*connections, "socket");
    let time = used.seconds;
    let summary = format!("{sockets}, requests and replies of {bytes} bytes over UDP, {time:.1} s");
    let mut report = Report::new("datagrams", summary);
    report.set("connections", *connections);
    report.set("bytes", *bytes);
    report.set("seconds", seconds.as_secs_f64());
    let done = results.done as f64;
    report.figure("exchanges", "exchanges", "", done);
    report.figure("exchanges_per_s", "rate", "/s", done / used.seconds);
    report.figure("seconds", "time", "s", used.seconds);
    report.figure("lost", "sent again", "", results.lost as f64);
    report.latency("latency", "latency", &results.latency);
    report.cpu(&clocks.names(), used, "exchange", done);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(server: &UdpSocket) -> DatagramPeer {
        DatagramPeer::connect(&[server.local_addr().unwrap().into()], 100).unwrap()
    }

    #[test]
    fn every_request_gets_its_reply() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        serve(&server, 2).unwrap();
        let mut peer = peer(&server);
        let results = peer.exchange_for(Duration::from_millis(50), &AtomicBool::new(false), || ());
        let Results { done, latency, .. } = results.unwrap();
        assert!(done > 0 && latency.count() == done && peer.number == done);
    }

    #[test]
    fn a_lost_request_is_sent_again_and_a_late_reply_is_ignored() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut peer = peer(&server);
        let serving = thread::spawn(move || {
            let mut datagram = [0; 100];
            // The first request is lost.
            server.recv_from(&mut datagram).unwrap();
            let (_, from) = server.recv_from(&mut datagram).unwrap();
            assert_eq!(datagram[..NUMBER_BYTES], 1_u64.to_le_bytes());
            // Two replies to the first request: the second one is late.
            server.send_to(&datagram, from).unwrap();
            server.send_to(&datagram, from).unwrap();
            server.recv_from(&mut datagram).unwrap();
            assert_eq!(datagram[..NUMBER_BYTES], 2_u64.to_le_bytes());
            server.send_to(&datagram, from).unwrap();
        });
        assert_eq!(peer.exchange(SILENCE_MAX).unwrap(), 1);
        peer.exchange(SILENCE_MAX).unwrap();
        assert_eq!(peer.reply[..NUMBER_BYTES], 2_u64.to_le_bytes());
        serving.join().unwrap();
    }
}
