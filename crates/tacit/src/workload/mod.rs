//! `tacit workload`: the papers' drivers as one tool.
//!
//! ```text
//! client ── plain stream ──> (nothing | an agent | `tacit run` | any other proxy) ──> server
//!    │
//!    ├ clocks.rs      CPU time of the client and of every process named with --cpu-of
//!    ├ ledgers.rs     what agents named with --ledger-of spent theirs on
//!    ├ watch.rs       progress, and what kernels say of connections while they run: tcp.rs, and
//!    │                legs.rs for those of agents
//!    └ report/        figures, tables and charts: text, JSON, HTML
//!
//! socket.rs                streams of TCP and UNIX
//! protocol.rs, server.rs   what the ends say to each other; one server serves every mode
//! exchange.rs              interactive, request-reply       schedule.rs: when requests are due
//! stream.rs                stream
//! open.rs                  opening connections, many at a time: connect, ramp, start-stop
//! sockets.rs               locks around the agent's connection table; no network
//! ```
//!
//! Both ends are plain programs that know nothing of TLS or policy, so the same command measures
//! a network as it is, and with anything put between.
//!
//! Limits: every count, size and time below. Latencies count from the instant at which a request
//! was due where `--rate` says so. Not here: a verdict; two reports are set beside each other
//! with `--beside`.

mod clocks;
mod exchange;
mod ledgers;
mod legs;
mod open;
mod protocol;
mod ramp;
mod report;
mod samples;
mod schedule;
mod server;
mod socket;
mod sockets;
mod start_stop;
mod stream;
mod tcp;
mod watch;

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use tacit_core::flow::Address;
use tacit_core::policy::{parse_duration, parse_size};

use self::report::OutputArgs;
use self::socket::{Stream, dial, resolve};
use crate::control::client::ClientError;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail};

/// Connections held at a time, by either end.
const CONNECTIONS_MAX: usize = 10_000;
/// Connections that exchange at a time: each has a thread of the client.
const THREADS_MAX: usize = 1000;
/// Requests and replies that one end holds at a time, of all connections together.
const BUFFERS_BYTES_MAX: usize = 2 << 30;
/// Requests that are due in one measurement.
const DUE_MAX: f64 = 1e9;
/// Connections opened one after the other.
const OPENED_MAX: usize = 1_000_000;
/// Requests a second.
const RATE_MAX: f64 = 1e6;
/// The longest measurement.
const TIME_MAX: Duration = Duration::from_secs(86_400);
/// A peer that moves no byte for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long others may tidy up before the clocks are read.
const SETTLE_TIME: Duration = Duration::from_millis(50);

/// Load a network as programs would, and say what that cost
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload interactive server --listen 127.0.0.1:7000
  tacit workload interactive client --connect 127.0.0.1:7000 --seconds 10s
  tacit workload request-reply client --connect 127.0.0.1:7000 --rate 2000 --html report.html
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234 --json ramp.json
  tacit workload sockets --lock global --displays

Exit status: 0 it was measured, 1 it was not, 64 the command line is wrong.")]
pub struct WorkloadArgs {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Short messages to and fro on several connections
    Interactive(Ends<exchange::InteractiveArgs>),
    /// Requests and replies of chosen sizes
    RequestReply(Ends<exchange::RequestReplyArgs>),
    /// Long one-way transfers, in or out
    Stream(Ends<stream::StreamArgs>),
    /// Connections that are opened, used once and closed
    Connect(Ends<open::ConnectArgs>),
    /// Connections that are opened and held: what the next one costs
    Ramp(Ends<ramp::RampArgs>),
    /// Thousands of connections started, then stopped
    StartStop(Ends<start_stop::StartStopArgs>),
    /// Locks around the agent's connection table; no network
    Sockets(sockets::SocketsArgs),
}

#[derive(Debug, Args)]
struct Ends<C: Args> {
    #[command(subcommand)]
    end: End<C>,
}

#[derive(Debug, Subcommand)]
enum End<C: Args> {
    /// The near end: loads, measures and reports
    Client(C),
    /// The far end: answers clients of every mode until it is ended
    Server(server::ServerArgs),
}

/// What every client is told.
#[derive(Clone, Debug, Args)]
struct ClientArgs {
    /// The far end, or what stands before it
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    connect: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Why a workload could not be measured.
#[derive(Debug)]
enum WorkloadError {
    /// The command line asks for something that is not there.
    Usage(String),
    /// A name or address that leads nowhere.
    Resolve(String, io::Error),
    /// Nobody answered.
    Connect(Address, io::Error),
    /// A connection that was open broke.
    Broken(&'static str, io::Error),
    /// Bytes came back that do not belong.
    Mixed(&'static str),
    /// The server's address.
    Listen(Address, io::Error),
    /// The server's threads are gone.
    ServerEnded,
    /// A process that was named with `--cpu-of`.
    Process(String, u32, io::Error),
    /// An agent that was named with `--ledger-of`.
    Ledger(String, ClientError),
    /// A run that was named there, and is not.
    NoRun(String),
    /// The kernel gave no more descriptors.
    Descriptors(io::Error),
    /// There are too few.
    TooFewDescriptors { wanted: usize, limit: u64 },
    /// The kernel gave no thread.
    Thread(io::Error),
    /// A thread of ours panicked.
    Panicked,
    /// The connection table could not be filled.
    Table(String),
    /// A report could not be written.
    Write(PathBuf, io::Error),
    /// An earlier report could not be read.
    Beside(PathBuf, io::Error),
    /// Time was up before anything was done.
    Nothing,
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Resolve(name, error) => {
                write!(f, "{name}: {error}: give a name or an address and a port, or unix:PATH")
            }
            Self::Connect(address, error) => write!(
                f,
                "{address}: {error}: is the server (or the agent before it) there? Start one with \
                 `tacit workload MODE server --listen ADDRESS`"
            ),
            Self::Broken(what, error) => write!(
                f,
                "{what} broke: {error}: see the log of what stands between, and whether the far \
                 end is a `tacit workload` server"
            ),
            Self::Mixed(what) => write!(
                f,
                "{what} does not belong to what was asked: what stands between mixes up or loses \
                 bytes, or the far end is no `tacit workload` server"
            ),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::ServerEnded => f.write_str("the server's threads have ended"),
            Self::Process(name, pid, error) => {
                write!(f, "--cpu-of {name}={pid}: {error}: is it running?")
            }
            Self::Ledger(agent, error) => write!(f, "--ledger-of {agent}: {error}"),
            Self::NoRun(agent) => write!(
                f,
                "--ledger-of {agent}: no such process has launched a `tacit run --policy` here: \
                 name its agent's control socket"
            ),
            Self::Descriptors(error) => write!(f, "the limit of open files: {error}"),
            Self::TooFewDescriptors { wanted, limit } => write!(
                f,
                "{wanted} connections need as many open files, and the limit is {limit}: raise it \
                 (ulimit -Hn), or ask for fewer connections"
            ),
            Self::Thread(error) => write!(f, "a thread could not be started: {error}"),
            Self::Panicked => f.write_str("a thread ended by a fault of its own, told above"),
            Self::Table(text) => write!(f, "the connection table: {text}"),
            Self::Write(path, error) => write!(f, "writing {}: {error}", path.display()),
            Self::Beside(path, error) => write!(
                f,
                "--beside {}: {error}: give a file that --json of this verb wrote",
                path.display()
            ),
            Self::Nothing => f.write_str("nothing was done before time was up: allow more time"),
        }
    }
}

/// Runs the verb.
#[must_use]
pub fn run(args: &WorkloadArgs) -> ExitCode {
    let result = match &args.mode {
        Mode::Interactive(ends) => ends.run(exchange::interactive),
        Mode::RequestReply(ends) => ends.run(exchange::request_reply),
        Mode::Stream(ends) => ends.run(stream::run),
        Mode::Connect(ends) => ends.run(open::run),
        Mode::Ramp(ends) => ends.run(ramp::run),
        Mode::StartStop(ends) => ends.run(start_stop::run),
        Mode::Sockets(args) => sockets::run(args),
    };
    match result {
        Ok(()) => EXIT_OK.into(),
        Err(error @ WorkloadError::Usage(_)) => fail(error, EXIT_USAGE),
        Err(error) => fail(error, EXIT_FAILURE),
    }
}

impl<C: Args> Ends<C> {
    fn run(
        &self,
        client: impl FnOnce(&C) -> Result<(), WorkloadError>,
    ) -> Result<(), WorkloadError> {
        match &self.end {
            End::Client(args) => client(args),
            End::Server(args) => server::run(args),
        }
    }
}

/// Makes room for so many connections.
fn allow_descriptors(connections: usize) -> Result<(), WorkloadError> {
    /// For everything else that is open.
    const SPARE: u64 = 64;
    let limit = tacit_sys::process::raise_descriptor_limit().map_err(WorkloadError::Descriptors)?;
    match connections as u64 + SPARE > limit {
        true => Err(WorkloadError::TooFewDescriptors { wanted: connections, limit }),
        false => Ok(()),
    }
}

/// A number with its noun.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// CPUs that this process may use.
fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A thread of the client needs little: its buffers are on the heap.
const STACK_BYTES: usize = 128 * 1024;

/// Lets every worker do its work, each on a thread, and returns what each of them made. When one
/// fails, `failed` tells the others to stop.
fn at_once<W: Send, T: Send>(
    workers: &mut [W],
    failed: &AtomicBool,
    work: impl Fn(usize, &mut W) -> Result<T, WorkloadError> + Sync,
) -> Result<Vec<T>, WorkloadError> {
    let work = |number, worker: &mut W| {
        let made = work(number, worker);
        failed.fetch_or(made.is_err(), Ordering::Relaxed);
        made
    };
    thread::scope(|scope| {
        let start = |(number, worker)| {
            let work = &work;
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, move || {
                // The kernel lets a sleeper oversleep by 50 us otherwise, which would count as
                // latency where a rate is kept; where it refuses, it does.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
                work(number, worker)
            });
            failed.fetch_or(thread.is_err(), Ordering::Relaxed);
            thread.map_err(WorkloadError::Thread)
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let made = threads.into_iter().map(|thread| match thread?.join() {
            Ok(made) => made,
            Err(_) => Err(WorkloadError::Panicked),
        });
        // All of them are joined, whatever the first one says.
        made.collect::<Vec<_>>().into_iter().collect()
    })
}

fn count(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(count) if (1..=max).contains(&count) => Ok(count),
        _ => Err(format!("write a number from 1 to {max}")),
    }
}

fn bytes(max: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match text.parse().ok().or_else(|| parse_size(text)) {
        Some(bytes) if (1..=max).contains(&bytes) => Ok(bytes),
        _ => Err(format!("write bytes from 1 to {max}, or such as 64KiB")),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero() && *time <= TIME_MAX);
    time.ok_or_else(|| "write a time up to a day, such as 10s or 500ms".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(rate),
        _ => Err(format!("write requests a second, above 0 and up to {RATE_MAX}")),
    }
}
