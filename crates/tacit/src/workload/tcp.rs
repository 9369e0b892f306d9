//! Takes samples of the state that the kernel keeps for each TCP connection: congestion window,
//! smoothed round-trip time and its deviation, and queued bytes. Published measurements of AT-TLS
//! (TLS on z/OS, a mainframe operating system) contain the same quantities.
//!
//! Samples are taken at the client. If the workload is a stream from the server, the samples are
//! taken at the server instead. With the options `--ledger-of` and `--html`, samples are also taken
//! at the agent's TLS socket.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use tacit_core::page::{Chart, Series, SeriesMark};
use tacit_core::statistics::Point;
use tacit_sys::socket;

use crate::control::display::connections::TcpState;

/// Size of an encoded sample.
pub(super) const SAMPLE_BYTES: usize = 6 * NUMBER_BYTES;
const NUMBER_BYTES: usize = size_of::<u64>();

/// The TCP state of one connection at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    at_us: u64,
    window_bytes: u64,
    rtt_us: u64,
    rtt_deviation_us: u64,
    unacknowledged_bytes: u64,
    unsent_bytes: u64,
}

/// The samples of one connection.
#[derive(Debug)]
pub(super) struct Trace {
    /// The process that has the socket, for the legend of charts.
    pub(super) of: String,
    pub(super) samples: Vec<Sample>,
}

impl Sample {
    /// Samples a socket of this process; `None` if it is not a TCP socket.
    pub(super) fn of(socket: BorrowedFd<'_>, start: Instant) -> Option<Self> {
        let info = socket::tcp_info(socket).ok()?;
        let segments = u64::from(info.congestion_window_segments);
        Some(Self {
            at_us: micros(start),
            window_bytes: segments * u64::from(info.segment_bytes_max),
            rtt_us: info.rtt_us.into(),
            rtt_deviation_us: info.rtt_deviation_us.into(),
            unacknowledged_bytes: socket::unacknowledged_bytes(socket).ok()? as u64,
            unsent_bytes: info.unsent_bytes.into(),
        })
    }

    /// Converts the state that an agent reports, as in `tacit show connections`.
    pub(super) fn of_agent_socket(socket: &TcpState, start: Instant) -> Option<Self> {
        Some(Self {
            at_us: micros(start),
            window_bytes: u64::from(socket.cwnd_segments) * u64::from(socket.mss_bytes),
            rtt_us: socket.rtt_us.into(),
            rtt_deviation_us: socket.rtt_deviation_us.into(),
            unacknowledged_bytes: socket.unacknowledged_bytes? as u64,
            unsent_bytes: socket.unsent_bytes.into(),
        })
    }

    /// Encodes the sample for the server's reply.
    pub(super) fn encode(&self) -> [u8; SAMPLE_BYTES] {
        let Self { at_us, window_bytes, rtt_us, .. } = *self;
        let Self { rtt_deviation_us, unacknowledged_bytes, unsent_bytes, .. } = *self;
        let numbers =
            [at_us, window_bytes, rtt_us, rtt_deviation_us, unacknowledged_bytes, unsent_bytes];
        let mut bytes = [0; SAMPLE_BYTES];
        for (place, number) in bytes.chunks_exact_mut(NUMBER_BYTES).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// Decodes a sample of the server.
    pub(super) fn decode(bytes: &[u8; SAMPLE_BYTES]) -> Self {
        let mut numbers = bytes
            .chunks_exact(NUMBER_BYTES)
            .map(|number| number.try_into().map_or(0, u64::from_be_bytes));
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            at_us: next(),
            window_bytes: next(),
            rtt_us: next(),
            rtt_deviation_us: next(),
            unacknowledged_bytes: next(),
            unsent_bytes: next(),
        }
    }
}

fn micros(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The charts: each quantity with a line for each connection.
pub(super) fn charts(traces: &[Trace]) -> Vec<Chart> {
    let chart = |title: &str, y: &str, value: fn(&Sample) -> f64| Chart {
        title: title.to_owned(),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        series: traces.iter().map(|trace| trace.series(value)).collect(),
    };
    vec![
        chart("congestion window", "KB", |one| one.window_bytes as f64 / 1000.0),
        chart("smoothed round-trip time", "us", |one| one.rtt_us as f64),
        chart("deviation of the round-trip time", "us", |one| one.rtt_deviation_us as f64),
        chart("bytes sent or queued, but not acknowledged", "KB", |one| {
            one.unacknowledged_bytes as f64 / 1000.0
        }),
        chart("bytes queued, but not sent", "KB", |one| one.unsent_bytes as f64 / 1000.0),
    ]
}

impl Trace {
    fn series(&self, value: fn(&Sample) -> f64) -> Series {
        let point = |one: &Sample| Point { x: one.at_us as f64 / 1e6, y: value(one) };
        Series::new(&self.of, SeriesMark::Line, self.samples.iter().map(point).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn encoded_samples_are_decoded_unchanged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sample = Sample::of(stream.as_fd(), Instant::now()).unwrap();
        assert!(sample.window_bytes > 0);
        assert_eq!(Sample::decode(&sample.encode()), sample);
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(Sample::of(unix.as_fd(), Instant::now()), None);
    }

    #[test]
    fn each_connection_is_a_series_of_every_chart() {
        let socket = TcpState {
            cwnd_segments: 10,
            mss_bytes: 1000,
            rtt_us: 30,
            rtt_deviation_us: 4,
            unacknowledged_bytes: Some(5000),
            unsent_bytes: 2000,
            ..TcpState::default()
        };
        let sample = Sample::of_agent_socket(&socket, Instant::now()).unwrap();
        let traces =
            ["near", "far"].map(|of| Trace { of: of.to_owned(), samples: vec![sample, sample] });
        let charts = charts(&traces);
        let values: Vec<_> = charts.iter().map(|chart| chart.series[1].points[1].y).collect();
        assert_eq!(values, [10.0, 30.0, 4.0, 5.0, 2.0]);
        assert_eq!(Sample::of_agent_socket(&TcpState::default(), Instant::now()), None);
    }
}
