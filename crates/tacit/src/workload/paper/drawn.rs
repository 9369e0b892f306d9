//! Defines the loads of the IPsec paper, and draws other loads from a seed, for forecasts.

use super::stage::Stage;

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) kind: LoadKind,
    connections: u64,
    bytes: u64,
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

/// How many streams each connection transfers, one after the other: one takes too little time.
const STREAMS: u64 = 10;

impl Load {
    /// The loads of the paper.
    pub(super) const PUBLISHED: [Self; 3] = [
        Self { kind: LoadKind::Interactive, connections: 10, bytes: 100 },
        Self { kind: LoadKind::In, connections: 5, bytes: 20_000_000 },
        Self { kind: LoadKind::Out, connections: 5, bytes: 20_000_000 },
    ];

    /// Loads of the same kinds with other numbers. The same seed gives the same loads.
    pub(super) fn drawn(seed: u64) -> [Self; 3] {
        let mut state = seed;
        let mut draw = |from: u64, to: u64| from + split_mix(&mut state) % (to - from + 1);
        [LoadKind::Interactive, LoadKind::In, LoadKind::Out].map(|kind| match kind {
            LoadKind::Interactive => Self { kind, connections: draw(1, 20), bytes: draw(50, 2000) },
            _ => Self { kind, connections: draw(1, 8), bytes: 1_000_000 * draw(5, 50) },
        })
    }

    pub(super) fn name(self) -> String {
        let Self { kind, connections, bytes } = self;
        let megabytes = bytes / 1_000_000;
        match kind {
            LoadKind::Interactive => format!("{connections} x {bytes} bytes"),
            LoadKind::In => format!("{connections} x {megabytes} MB in"),
            LoadKind::Out => format!("{connections} x {megabytes} MB out"),
        }
    }

    /// The client's words.
    pub(super) fn words(self, stage: &Stage, server: &str, port: u16) -> Vec<String> {
        let Self { kind, connections, bytes } = self;
        let times = (STREAMS / stage.extent.divisor).max(1);
        let millis = stage.extent.time.as_millis();
        let what = match kind {
            LoadKind::Interactive => format!("interactive client --seconds {millis}ms"),
            LoadKind::In => format!("stream client in --times {times}"),
            LoadKind::Out => format!("stream client out --times {times}"),
        };
        let text = format!(
            "{} workload {what} --connections {connections} --bytes {bytes} --connect \
             {server}:{port} --wait 20s --steered",
            stage.tacit()
        );
        text.split(' ').map(str::to_owned).collect()
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
            for Load { kind, connections, bytes } in loads {
                let (connections_max, range) = match kind {
                    LoadKind::Interactive => (20, 50..=2000),
                    _ => (8, 5_000_000..=50_000_000),
                };
                assert!((1..=connections_max).contains(&connections) && range.contains(&bytes));
            }
        }
        assert_ne!(Load::drawn(1), Load::drawn(2));
    }
}
