//! `tacit workload`: generates network load and measures its throughput, latency and CPU time.
//!
//! ```text
//! client ── plain stream ──> (nothing | an agent | `tacit run` | any other proxy) ──> server
//!    │
//!    ├ clocks.rs          CPU time of the client and of the processes given with --cpu-of
//!    ├ ledgers.rs         CPU time and counters of the agents given with --ledger-of
//!    ├ watch.rs           progress, and the TCP state of sockets (tcp.rs, agent_sockets.rs)
//!    └ report/            figures, tables and charts as text, JSON and HTML
//!
//! socket.rs              TCP and UNIX stream sockets
//! datagrams.rs           workload datagrams (requests by UDP), with a server of its own
//! server.rs              server of all other workloads; protocol: `tacit_core::workload`
//! exchange.rs            workloads interactive, request-reply; schedule.rs: when requests are due
//! stream.rs              workload stream
//! open.rs                opens connections for the workloads connect, ramp and start-stop
//! steering.rs            lets another program start and stop the measurement
//! paper/                 repeats the measurements of published papers with these workloads
//! ```
//!
//! Client and server do not use TLS. So the same command can measure a direct connection, and a
//! connection through an agent or another proxy. The difference between the two results is the cost
//! of the proxy. `--beside` prints the figures of an earlier report next to the new figures.

mod agent_sockets;
mod arguments;
mod clocks;
mod connect;
mod datagrams;
mod error;
mod exchange;
mod ledgers;
mod limits;
mod open;
mod paper;
mod ramp;
mod report;
mod samples;
mod schedule;
mod server;
mod socket;
mod start_stop;
mod steering;
mod stream;
mod tcp;
mod threads;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::error::WorkloadError;
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, fail};

/// Generate network load, and measure throughput, latency and CPU time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload interactive server --listen 127.0.0.1:7000
  tacit workload interactive client --connect 127.0.0.1:7000 --seconds 10s
  tacit workload request-reply client --connect 127.0.0.1:7000 --rate 2000 --html report.html
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234 --json ramp.json
  tacit workload paper zvm --html zvm.html

Exit status: 0 the measurement succeeded, 1 it failed, 64 the command line is invalid.")]
pub struct WorkloadArgs {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Exchange short messages on several connections
    Interactive(RoleArgs<exchange::InteractiveArgs>),
    /// Exchange requests and replies of given sizes
    RequestReply(RoleArgs<exchange::RequestReplyArgs>),
    /// Exchange datagrams by UDP
    Datagrams(datagrams::DatagramArgs),
    /// Send or receive long streams
    Stream(RoleArgs<stream::StreamArgs>),
    /// Open connections, exchange one request on each, and close them
    Connect(RoleArgs<connect::ConnectArgs>),
    /// Open connections, keep them open, and measure the CPU time of each new connection
    Ramp(RoleArgs<ramp::RampArgs>),
    /// Open thousands of connections, then close them
    StartStop(RoleArgs<start_stop::StartStopArgs>),
    /// Repeat the measurements of published papers, and print their tables
    Paper(paper::PaperArgs),
}

#[derive(Debug, Args)]
struct RoleArgs<C: Args> {
    #[command(subcommand)]
    role: Role<C>,
}

#[derive(Debug, Subcommand)]
enum Role<C: Args> {
    /// Connect to the server, generate the load, and report
    Client(C),
    /// Answer the clients of all workloads until terminated
    Server(server::ServerArgs),
}

/// Runs the command.
#[must_use]
pub fn run(args: &WorkloadArgs) -> ExitCode {
    let result = match &args.mode {
        Mode::Interactive(args) => args.run(exchange::interactive),
        Mode::RequestReply(args) => args.run(exchange::request_reply),
        Mode::Datagrams(args) => datagrams::run(args),
        Mode::Stream(args) => args.run(stream::run),
        Mode::Connect(args) => args.run(connect::run),
        Mode::Ramp(args) => args.run(ramp::run),
        Mode::StartStop(args) => args.run(start_stop::run),
        Mode::Paper(args) => paper::run(args),
    };
    match result {
        Ok(()) => EXIT_OK.into(),
        Err(error @ WorkloadError::Usage(_)) => fail(error.id(), error, EXIT_USAGE),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
    }
}

impl<C: Args> RoleArgs<C> {
    fn run(
        &self,
        client: impl FnOnce(&C) -> Result<(), WorkloadError>,
    ) -> Result<(), WorkloadError> {
        match &self.role {
            Role::Client(args) => client(args),
            Role::Server(args) => server::run(args),
        }
    }
}
