//! How much a workload may ask for, of either end.

use std::time::Duration;

/// Connections held at a time, by either end.
pub(super) const CONNECTIONS_MAX: usize = 10_000;
/// Connections that exchange at a time: each has a thread of the client.
pub(super) const THREADS_MAX: usize = 1000;
/// Requests and replies that one end holds at a time, of all connections together.
pub(super) const BUFFERS_BYTES_MAX: usize = 2 << 30;
/// Requests that are due in one measurement.
pub(super) const DUE_MAX: f64 = 1e9;
/// Connections opened one after the other.
pub(super) const OPENED_MAX: usize = 1_000_000;
/// Streams of one connection, one after the other.
pub(super) const STREAMS_MAX: usize = 100_000;
/// Requests a second.
pub(super) const RATE_MAX: f64 = 1e6;
/// The longest measurement.
pub(super) const TIME_MAX: Duration = Duration::from_secs(86_400);
/// A peer that moves no byte for this long has failed.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long other processes may finish their work before the clocks are read.
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(50);
