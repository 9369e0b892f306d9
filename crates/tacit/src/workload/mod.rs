//! `tacit workload`: the papers' drivers as one tool.
//!
//! ```text
//! client ── plain stream ──> (nothing | an agent | `tacit run` | any other proxy) ──> server
//!    │
//!    ├ clocks.rs      CPU time of the client and of every process named with --cpu-of
//!    ├ ledgers.rs     what agents named with --ledger-of spent theirs on
//!    ├ watch.rs       progress, and what kernels report of connections while they run: tcp.rs,
//!    │                and `legs.rs` for those of agents
//!    └ report/        figures, tables and charts: text, JSON, HTML
//!
//! socket.rs                streams of TCP and UNIX
//! server.rs                one server serves every mode; `tacit_core::workload` is the protocol
//! exchange.rs              interactive, request-reply       schedule.rs: when requests are due
//! stream.rs                stream
//! open.rs                  opening connections, many at a time: for connect, ramp, start-stop
//! steering.rs              another program that measures with a client, at the same instants
//! ```
//!
//! Both ends are plain programs that know nothing of TLS or policy, so the same command measures
//! a network as it is, and with anything put between.
//!
//! Limits: limits.rs. Latencies count from the instant at which a request was due where `--rate`
//! says so. Not here: a verdict; two reports are set beside each other with `--beside`.

mod arguments;
mod clocks;
mod connect;
mod error;
mod exchange;
mod ledgers;
mod legs;
mod limits;
mod open;
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

/// Load a network as programs do, and measure what that costs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload interactive server --listen 127.0.0.1:7000
  tacit workload interactive client --connect 127.0.0.1:7000 --seconds 10s
  tacit workload request-reply client --connect 127.0.0.1:7000 --rate 2000 --html report.html
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234 --json ramp.json

Exit status: 0 measured, 1 not measured, 64 the command line is wrong.")]
pub struct WorkloadArgs {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Short messages in both directions on several connections
    Interactive(Ends<exchange::InteractiveArgs>),
    /// Requests and replies of chosen sizes
    RequestReply(Ends<exchange::RequestReplyArgs>),
    /// Long one-way transfers, in or out
    Stream(Ends<stream::StreamArgs>),
    /// Connections that are opened, used once and closed
    Connect(Ends<connect::ConnectArgs>),
    /// Connections that are opened and held: the cost of each next connection
    Ramp(Ends<ramp::RampArgs>),
    /// Thousands of connections started, then stopped
    StartStop(Ends<start_stop::StartStopArgs>),
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

/// Runs the verb.
#[must_use]
pub fn run(args: &WorkloadArgs) -> ExitCode {
    let result = match &args.mode {
        Mode::Interactive(ends) => ends.run(exchange::interactive),
        Mode::RequestReply(ends) => ends.run(exchange::request_reply),
        Mode::Stream(ends) => ends.run(stream::run),
        Mode::Connect(ends) => ends.run(connect::run),
        Mode::Ramp(ends) => ends.run(ramp::run),
        Mode::StartStop(ends) => ends.run(start_stop::run),
    };
    match result {
        Ok(()) => EXIT_OK.into(),
        Err(error @ WorkloadError::Usage(_)) => fail(error.id(), error, EXIT_USAGE),
        Err(error) => fail(error.id(), error, EXIT_FAILURE),
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
