//! Defines the command line of `bench sockets`. This benchmark measures how much slower the agent
//! would be if a lock protected its connection table.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use tacit_core::policy::parse_duration;

use super::lock::LockKind;

/// Measure the cost of a lock around the agent's connection table, without a network
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench sockets",
    after_help = "\
Examples:
  cargo xtask bench sockets --lock global --displays
  cargo xtask bench sockets --lock none --displays --json
  cargo xtask bench sockets --lock global --send unlocked"
)]
pub(super) struct SocketsArgs {
    /// The lock around the table
    #[arg(long, value_enum, default_value_t = LockKind::Global)]
    pub(super) lock: LockKind,
    /// During which part of a send the lock is held [default: throughout]
    #[arg(long, value_enum)]
    pub(super) send: Option<Send>,
    /// Read the whole table every 10 ms, as a display does
    #[arg(long)]
    pub(super) displays: bool,
    /// Number of threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = number(THREADS_MAX))]
    pub(super) threads: Option<usize>,
    /// Number of connections in the table
    #[arg(long, value_name = "N", default_value = "4096", value_parser = number(TABLE_MAX))]
    pub(super) connections: usize,
    /// Size of each message
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = number(BYTES_MAX))]
    pub(super) bytes: usize,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(super) seconds: Duration,
    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// During which part of a send the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Send {
    /// During the whole call
    Throughout,
    /// Only while the packet is queued, not while it is built
    Queueing,
    /// Not at all
    Unlocked,
}

const THREADS_MAX: usize = 256;
/// Each connection needs two descriptors.
const TABLE_MAX: usize = 5000;
const BYTES_MAX: usize = 16 * 1024;

fn number(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from 1 to {max}")),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "expected a duration such as 10s or 500ms".to_owned())
}

impl SocketsArgs {
    /// During which part of a send the lock is held.
    pub(super) fn send(&self) -> Result<Send, String> {
        match (self.lock, self.send) {
            (LockKind::None, None | Some(Send::Unlocked)) => Ok(Send::Unlocked),
            (LockKind::None, Some(_)) => {
                Err("--send has no effect with --lock none, because there is no lock: omit --send"
                    .to_owned())
            }
            (_, send) => Ok(send.unwrap_or(Send::Throughout)),
        }
    }
}
