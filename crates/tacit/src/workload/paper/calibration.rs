//! Measures how an engine changes the CPU time of IPsec packets. An engine is a thread on a
//! reserved CPU. The result is the *packet factor*: the CPU time with an engine, divided by the CPU
//! time without an engine. `tacit project` forecasts CPU times with this factor.
//!
//! Two effects change the CPU time. An engine processes the packets of all streams of a host on one
//! CPU, so a batch contains fewer packets of the same stream. And the kernel wakes a busy engine
//! less often. How strong these effects are depends on the machine, the direction of the packets,
//! the number of connections, and the number of packets in a message.
//!
//! This module measures the packet factor for some numbers of connections. For other numbers, this
//! module interpolates between the two nearest measured numbers.

use super::cell::{CellSamples, Gap, Measurement, PaperCell};
use super::drawn::Load;
use super::ipsec;
use super::joint::{Joint, PACKETS, subject};
use super::sheet::PaperTable;
use super::stage::{Stage, StagedProcess};

/// The measured loads, in the order of their kinds and of their connections.
#[derive(Clone, Debug)]
pub(super) struct Calibration(Vec<CalibrationPoint>);

/// A measured load.
#[derive(Clone, Debug)]
struct CalibrationPoint {
    load: Load,
    /// CPU time of packets, in microseconds for an exchange or a MB.
    without_engine: Measurement,
    with_engine: Measurement,
}

impl CalibrationPoint {
    fn of(load: Load, samples: &CellSamples) -> Self {
        let [without_engine, with_engine] = [Joint::Secured, Joint::Unpolled]
            .map(|joint| samples.median(&subject(joint, load), PACKETS));
        Self { load, without_engine, with_engine }
    }

    fn factor(&self) -> Measurement {
        Ok(self.with_engine.clone()? / self.without_engine.clone()?)
    }
}

/// The rounds for each number of rounds of the other loads: more, because every forecast depends on
/// the factors.
const fn rounds(others: usize) -> usize {
    2 * others - 1
}

/// The two loads whose factors decide about that of another load; twice the same load if there is
/// only one, or if it has as many connections.
fn nearest(of: &[Load], load: Load) -> Option<[Load; 2]> {
    let similar = || of.iter().copied().filter(|one| one.is_similar(load));
    let below = similar().rfind(|one| one.connections <= load.connections);
    let above = similar().find(|one| one.connections >= load.connections);
    let first = below.or(above)?;
    Some([first, above.unwrap_or(first)])
}

/// Measures a load once without an engine and once with one. Progress names the step and
/// the round.
pub(super) fn take_both(
    stage: &Stage,
    peer: &Result<StagedProcess, Gap>,
    samples: &mut CellSamples,
    load: Load,
    packet_factor: &Measurement,
    step: &str,
    round: usize,
) {
    for joint in [Joint::Secured, Joint::Unpolled] {
        let subject = subject(joint, load);
        if samples.is_given_up(&subject) {
            continue;
        }
        stage.progress(&format!("ipsec: {step}: {subject}, round {round}"));
        let factor = packet_factor.clone();
        let taken = factor.and_then(|factor| ipsec::take(stage, peer, load, joint, factor));
        samples.add(&subject, taken);
    }
}

impl Calibration {
    /// Measures what the factors of these loads need.
    pub(super) fn measure(
        stage: &Stage,
        peer: &Result<StagedProcess, Gap>,
        forecast: &[(u64, Load)],
    ) -> Self {
        let mut loads = Load::calibration();
        let needed: Vec<_> =
            forecast.iter().filter_map(|(_, load)| nearest(&loads, *load)).flatten().collect();
        loads.retain(|load| needed.contains(load));
        let mut samples = CellSamples::default();
        for round in 1..=rounds(stage.extent.rounds) {
            for load in &loads {
                take_both(stage, peer, &mut samples, *load, &Ok(1.0), "packet factor", round);
            }
        }
        Self(loads.into_iter().map(|load| CalibrationPoint::of(load, &samples)).collect())
    }

    /// The packet factor of a load.
    pub(super) fn factor(&self, load: Load) -> Measurement {
        let loads: Vec<_> = self.0.iter().map(|point| point.load).collect();
        let missing =
            || Gap::absent("the effect of an engine on this kind of load was not measured");
        let ends = nearest(&loads, load).ok_or_else(missing)?;
        let factor = |of: Load| {
            let point = self.0.iter().find(|point| point.load == of);
            point.map_or_else(|| Err(missing()), CalibrationPoint::factor)
        };
        let [low, high] = [factor(ends[0])?, factor(ends[1])?];
        let [from, to] = ends.map(|end| end.connections);
        let part = match to - from {
            0 => 0.0,
            distance => (load.connections - from) as f64 / distance as f64,
        };
        Ok(low + (high - low) * part)
    }

    pub(super) fn table(&self) -> PaperTable {
        let columns = [
            "load",
            "CPU time of packets without an engine, us",
            "CPU time of packets with an engine, us",
            "packet factor",
        ];
        let title = "CPU time of IPsec packets for each exchange (a request and its reply), or \
                     for each MB of a stream. The packet factor is the time with an engine, \
                     divided by the time without an engine. The forecasts use the packet factors \
                     in this table";
        let mut table = PaperTable::new("packet-factors", title, &columns);
        for point in &self.0 {
            table.rows.push(vec![
                PaperCell::name(point.load.name()),
                point.without_engine.clone().into(),
                point.with_engine.clone().into(),
                point.factor().into(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::super::drawn::LoadKind;
    use super::*;

    #[test]
    fn a_factor_lies_between_those_of_the_nearest_loads_of_its_kind() {
        let points = Load::calibration().into_iter().map(|load| {
            let factor = 1.0 + load.connections as f64 / 100.0;
            let factor = if load.kind == LoadKind::Out { 2.0 * factor } else { factor };
            CalibrationPoint { load, without_engine: Ok(50.0), with_engine: Ok(50.0 * factor) }
        });
        let mut calibration = Calibration(points.collect());
        let [interactive, into, out] = Load::forecast(1);
        let factor = |calibration: &Calibration, load: Load, connections| {
            calibration.factor(load.with_connections(connections))
        };
        let near = |found: Measurement, wanted: f64| {
            let found = found.unwrap();
            assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
        };
        for (connections, wanted) in [(1, 1.02), (2, 1.02), (10, 1.1), (20, 1.2), (99, 1.2)] {
            near(factor(&calibration, interactive, connections), wanted);
        }
        near(factor(&calibration, into, 6), 1.06);
        near(factor(&calibration, out, 6), 2.12);
        calibration.0[0].with_engine = Err(Gap::skipped("no second CPU"));
        assert!(factor(&calibration, interactive, 3).is_err());
        near(factor(&calibration, interactive, 8), 1.08);
        // Longer messages have factors of their own.
        let [longer, ..] = Load::forecast(3);
        near(factor(&calibration, longer, 3), 1.03);
        assert!(Calibration(Vec::new()).factor(out).is_err());
        let counts = |load| nearest(&Load::calibration(), load).unwrap().map(|one| one.connections);
        assert_eq!([interactive, into, out].map(counts), [[2, 7], [4, 8], [2, 2]]);
        assert_eq!(counts(into.with_connections(4)), [4; 2]);
        assert_eq!([1, 2, 3].map(rounds), [1, 3, 5]);
        assert_eq!(calibration.table().rows.len(), 16);
    }
}
