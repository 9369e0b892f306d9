//! Defines the limits of `tacit workload`, for its client and its server.

use std::time::Duration;

/// Connections that are open at the same time.
pub(super) const CONNECTIONS_MAX: usize = 10_000;
/// Connections that exchange messages at the same time: each has a thread in the client.
pub(super) const THREADS_MAX: usize = 1000;
/// Bytes of requests and replies that client or server buffer for all connections together.
pub(super) const BUFFERS_BYTES_MAX: usize = 2 << 30;
/// Requests that are scheduled in one measurement.
pub(super) const DUE_MAX: f64 = 1e9;
/// The largest number of connections that one measurement opens one after the other.
pub(super) const OPENED_MAX: usize = 1_000_000;
/// The largest number of streams that one connection transfers one after the other.
pub(super) const STREAMS_MAX: usize = 100_000;
/// Requests per second.
pub(super) const RATE_MAX: f64 = 1e6;
/// The duration of a measurement.
pub(super) const TIME_MAX: Duration = Duration::from_secs(86_400);
/// A peer that sends and receives nothing for this long has failed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long to let other processes finish their work before their clocks are read.
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(50);
