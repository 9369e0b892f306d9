//! Defines the options that all workloads of `tacit workload client` share, and parses their
//! values.

use std::time::Duration;

use clap::Args;
use tacit_core::flow::Address;
use tacit_core::policy::{parse_duration, parse_size};

use super::error::WorkloadError;
use super::limits::{RATE_MAX, TIME_MAX};
use super::open;
use super::report::OutputArgs;
use super::socket::resolve;

/// The options of every client.
#[derive(Clone, Debug, Args)]
pub(super) struct ClientArgs {
    /// The address of the server, or of the proxy in front of the server
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    pub(super) connect: String,
    /// Retry the first connection for this long [default: fail at the first refusal]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(super) wait: Option<Duration>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl ClientArgs {
    /// Resolves `--connect`. With `--wait`, retries until the server accepts a connection.
    pub(super) fn resolve_server(&self) -> Result<Vec<Address>, WorkloadError> {
        let addresses = resolve(&self.connect)?;
        if let Some(wait) = self.wait {
            open::wait_for_server(&addresses, wait)?;
        }
        Ok(addresses)
    }
}

/// Parses a number from 1 to `max`.
pub(super) fn count(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    count_from(1, max)
}

/// Parses a number from `min` to `max`.
pub(super) fn count_from(min: usize, max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(count) if (min..=max).contains(&count) => Ok(count),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}

/// Parses a size from 1 byte to `max` bytes.
pub(super) fn bytes(max: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| match text.parse().ok().or_else(|| parse_size(text)) {
        Some(bytes) if (1..=max).contains(&bytes) => Ok(bytes),
        _ => Err(format!("expected a size from 1 to {max} bytes, such as 500 or 64KiB")),
    }
}

/// Parses a duration longer than zero.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero() && *time <= TIME_MAX);
    time.ok_or_else(|| "expected a duration of at most one day, such as 10s or 500ms".to_owned())
}

/// Parses a rate per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= RATE_MAX => Ok(rate),
        _ => Err(format!("expected a rate per second above 0 and at most {RATE_MAX}")),
    }
}
