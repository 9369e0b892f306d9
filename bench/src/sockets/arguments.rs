//! The command line.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use tacit_core::policy::parse_duration;

use super::lock::LockKind;

/// Locks around the agent's connection table; no network
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
    /// What is put around the table
    #[arg(long, value_enum, default_value_t = LockKind::Global)]
    pub(super) lock: LockKind,
    /// When a send holds the lock [default: throughout]
    #[arg(long, value_enum)]
    pub(super) send: Option<Send>,
    /// Read the whole table every 10 ms, as a display would
    #[arg(long)]
    pub(super) displays: bool,
    /// Threads [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = number(THREADS_MAX))]
    pub(super) threads: Option<usize>,
    /// Connections in the table
    #[arg(long, value_name = "N", default_value = "4096", value_parser = number(TABLE_MAX))]
    pub(super) connections: usize,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = number(BYTES_MAX))]
    pub(super) bytes: usize,
    /// How long it is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(super) seconds: Duration,
    /// Print the figures as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// When a send holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Send {
    /// From its first byte to its last
    Throughout,
    /// While the packet that was built is queued
    Queueing,
    /// Never
    Unlocked,
}

const THREADS_MAX: usize = 256;
/// Two descriptors each.
const TABLE_MAX: usize = 5000;
const BYTES_MAX: usize = 16 * 1024;

fn number(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("write a number from 1 to {max}")),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "write a time, such as 10s or 500ms".to_owned())
}

impl SocketsArgs {
    /// When a send holds the lock.
    pub(super) fn send(&self) -> Result<Send, String> {
        match (self.lock, self.send) {
            (LockKind::None, None | Some(Send::Unlocked)) => Ok(Send::Unlocked),
            (LockKind::None, Some(_)) => {
                Err("--send sets how long the lock is held, and --lock none has no lock: omit it"
                    .to_owned())
            }
            (_, send) => Ok(send.unwrap_or(Send::Throughout)),
        }
    }
}
