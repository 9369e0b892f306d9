//! Defines the loads (kinds of traffic) that a paper about IPsec describes. `ipsec.rs` measures
//! these loads. This module also generates random loads from a seed, for `forecast.rs`.

use super::stage::Stage;

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) kind: LoadKind,
    pub(super) connections: u64,
    bytes: u64,
    pace: LoadPace,
    pub(super) transport: LoadTransport,
    /// How many streams each connection transfers, one after the other.
    streams: u64,
}

/// The protocol of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadTransport {
    Tcp,
    Udp,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadPace {
    /// When the reply to the last one has arrived, or as fast as a stream goes.
    ClosedLoop,
    /// At scheduled times: this number in a second on all connections together.
    PerSecond(u64),
}

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadKind {
    /// Requests and replies of the same size.
    Interactive,
    /// Streams from the server.
    In,
    /// Streams to the server.
    Out,
}

/// The usual number of streams: one takes too little time.
const STREAMS: u64 = 10;
/// The bytes of all streams of a load in a forecast, as far as whole streams allow.
const FORECAST_BYTES: u64 = 1_000_000_000;
/// The requests in a second of each connection in a forecast: few enough for every machine.
const FORECAST_RATE: u64 = 500;

/// A message up to this length is a single packet, about: the path has the MTU of Ethernet.
const SINGLE_PACKET_BYTES: u64 = 1_400;

impl Load {
    /// The loads of the paper.
    pub(super) const PUBLISHED: [Self; 3] = [
        Self::closed(LoadKind::Interactive, 10, 100),
        Self::closed(LoadKind::In, 5, 20_000_000),
        Self::closed(LoadKind::Out, 5, 20_000_000),
    ];

    /// The sessions of the paper, with 20,000 requests in a second.
    pub(super) const PACED: Self =
        Self { pace: LoadPace::PerSecond(20_000), ..Self::closed(LoadKind::Interactive, 10, 100) };

    /// The sessions of the paper by UDP, as those of Enterprise Extender.
    pub(super) const EXTENDER: Self =
        Self { transport: LoadTransport::Udp, ..Self::closed(LoadKind::Interactive, 10, 100) };

    /// One session of the paper.
    pub(super) const SINGLE: Self = Self::closed(LoadKind::Interactive, 1, 100);

    const fn closed(kind: LoadKind, connections: u64, bytes: u64) -> Self {
        let transport = LoadTransport::Tcp;
        Self { kind, connections, bytes, pace: LoadPace::ClosedLoop, transport, streams: STREAMS }
    }

    /// The loads with which the cost of packets on an engine is compared with that without one.
    /// They cover the numbers of connections that seeds give. No seed gives one of these streams.
    pub(super) fn calibration() -> Vec<Self> {
        let interactive = |bytes| [2, 7, 13, 20].map(|count| (LoadKind::Interactive, count, bytes));
        let streams = |kind| [1, 2, 4, 8].map(|count| (kind, count, 60_000_000));
        let all = [interactive(700), interactive(1_700)].into_iter().flatten();
        let all = all.chain([streams(LoadKind::In), streams(LoadKind::Out)].into_iter().flatten());
        all.map(|(kind, count, bytes)| Self::closed(kind, count, bytes).for_forecast()).collect()
    }

    /// Loads of the same kinds with other numbers. The same seed gives the same loads.
    pub(super) fn drawn(seed: u64) -> [Self; 3] {
        let mut state = seed;
        let mut draw = |from: u64, to: u64| from + split_mix(&mut state) % (to - from + 1);
        [LoadKind::Interactive, LoadKind::In, LoadKind::Out].map(|kind| match kind {
            LoadKind::Interactive => Self::closed(kind, draw(1, 20), draw(50, 2000)),
            _ => Self::closed(kind, draw(1, 8), 1_000_000 * draw(5, 50)),
        })
    }

    /// The same loads for a forecast: requests come at scheduled times, as those of users do, so
    /// that an engine does not change their number. Each takes some seconds at most.
    pub(super) fn forecast(seed: u64) -> [Self; 3] {
        Self::drawn(seed).map(Self::for_forecast)
    }

    /// Whether packets of both loads have the same direction, and whether messages of both are
    /// single packets, or of both are not.
    pub(super) fn is_similar(self, other: Self) -> bool {
        let single = |load: Self| load.bytes <= SINGLE_PACKET_BYTES;
        self.kind == other.kind && single(self) == single(other)
    }

    fn for_forecast(self) -> Self {
        match self.kind {
            LoadKind::Interactive => {
                Self { pace: LoadPace::PerSecond(FORECAST_RATE * self.connections), ..self }
            }
            _ => {
                let once = self.connections * self.bytes;
                Self { streams: (FORECAST_BYTES / once.max(1)).max(1), ..self }
            }
        }
    }

    pub(super) fn name(self) -> String {
        let Self { kind, connections, bytes, pace, transport, .. } = self;
        let megabytes = bytes / 1_000_000;
        match kind {
            LoadKind::Interactive if transport == LoadTransport::Udp => {
                format!("{connections} x {bytes} bytes over UDP")
            }
            LoadKind::Interactive => match pace {
                LoadPace::ClosedLoop => format!("{connections} x {bytes} bytes"),
                LoadPace::PerSecond(rate) => format!("{connections} x {bytes} bytes, {rate}/s"),
            },
            LoadKind::In => format!("{connections} x {megabytes} MB in"),
            LoadKind::Out => format!("{connections} x {megabytes} MB out"),
        }
    }

    /// The client's words.
    pub(super) fn words(self, stage: &Stage, server: &str, port: u16) -> Vec<String> {
        let Self { kind, connections, bytes, pace, transport, streams } = self;
        let times = (streams / stage.extent.divisor).max(1);
        let millis = stage.extent.time.as_millis();
        let what = match (kind, pace) {
            (LoadKind::Interactive, _) if transport == LoadTransport::Udp => {
                format!("datagrams client --seconds {millis}ms")
            }
            (LoadKind::Interactive, LoadPace::ClosedLoop) => {
                format!("interactive client --seconds {millis}ms")
            }
            (LoadKind::Interactive, LoadPace::PerSecond(rate)) => {
                format!("interactive client --seconds {millis}ms --rate {rate}")
            }
            (LoadKind::In, _) => format!("stream client in --times {times}"),
            (LoadKind::Out, _) => format!("stream client out --times {times}"),
        };
        let text = format!(
            "{tacit} workload {what} --connections {connections} --bytes {bytes} --connect \
             {server}:{port} --wait 20s --steered",
            tacit = stage.tacit()
        );
        text.split(' ').map(str::to_owned).collect()
    }
}

#[cfg(test)]
impl Load {
    pub(super) fn with_connections(self, connections: u64) -> Self {
        Self { connections, ..self }
    }
}

/// The next number of SplitMix64 (Steele, Lea and Flood, 2014), which needs no good seed.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut state = 1_234_567;
        let numbers = [(); 3].map(|()| split_mix(&mut state));
        let wanted =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, wanted);
    }

    #[test]
    fn a_seed_always_gives_the_same_loads_within_limits() {
        for seed in 1..=20 {
            let loads = Load::drawn(seed);
            assert_eq!(loads, Load::drawn(seed));
            for Load { kind, connections, bytes, .. } in loads {
                let (connections_max, range) = match kind {
                    LoadKind::Interactive => (20, 50..=2000),
                    _ => (8, 5_000_000..=50_000_000),
                };
                assert!((1..=connections_max).contains(&connections) && range.contains(&bytes));
            }
        }
        assert_ne!(Load::drawn(1), Load::drawn(2));
    }

    #[test]
    fn a_forecast_has_the_same_loads_with_paced_requests() {
        for seed in 1..=20 {
            let [paced, others @ ..] = Load::forecast(seed);
            let [session, streams @ ..] = Load::drawn(seed);
            assert_eq!(paced.pace, LoadPace::PerSecond(500 * session.connections));
            assert_eq!(Load { pace: LoadPace::ClosedLoop, ..paced }, session);
            for (other, stream) in others.into_iter().zip(streams) {
                assert_eq!(Load { streams: STREAMS, ..other }, stream);
                let bytes = other.streams * other.connections * other.bytes;
                assert!((FORECAST_BYTES / 2..=FORECAST_BYTES).contains(&bytes), "{other:?}");
                assert!(!Load::calibration().contains(&other));
            }
        }
    }
}
