//! Checks how accurate the forecasts of `tacit project` are for IPsec on an engine (a thread on a
//! reserved CPU). A forecast estimates the CPU time that one engine needs for the packets. To check
//! a forecast, this module measures this CPU time.
//!
//! A forecast has two inputs: a measurement without an engine, and a packet factor. The packet
//! factor is the CPU time with an engine, divided by the CPU time without an engine.
//! `calibration.rs` measures the packet factors first, with other loads (kinds of traffic). So the
//! measurement that checks a forecast is not an input of the forecast.
//!
//! ```text
//! other loads ──> without and with an engine ──> packet factors
//! seed ──> three loads ──┬─ without engine ──> tacit project ──> forecast ──┐
//!                        └─ with one engine ──> ledger ──────────> measured ┴─> difference
//! ```
//!
//! Each seed generates three random loads. A load consists of requests or of streams. All CPU times
//! are per exchange (a request and its reply) or per MB of a stream. CPU times per second could not
//! be compared, because streams have another rate with an engine. Requests have the same rate with
//! an engine, because they are sent at scheduled times.
//!
//! In all measurements of `forecast.rs` and `calibration.rs`, engines do not poll. Polling uses CPU
//! time even without packets, and a forecast does not contain this CPU time.

use std::ops::RangeInclusive;

use super::calibration::{Calibration, take_both};
use super::cell::{CellSamples, Measurement, PaperCell};
use super::drawn::Load;
use super::ipsec;
use super::joint::{FORECAST, Joint, PACKETS, subject};
use super::sheet::{PaperSheet, PaperTable};
use super::stage::Stage;

/// The largest difference of a forecast that is within its limit, in percent.
const DIFFERENCE_MAX: f64 = 10.0;
/// More seeds would take hours.
const SEEDS_MAX: u64 = 1_000;

/// Seeds, from the first to the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seeds(RangeInclusive<u64>);

/// Parses `1-20`, or one number.
pub(super) fn seeds(text: &str) -> Result<Seeds, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ends = first.parse().ok().zip(last.parse().ok());
    let valid = ends.filter(|(first, last): &(u64, u64)| first <= last && last - first < SEEDS_MAX);
    let seeds = valid.map(|(first, last)| Seeds(first..=last));
    seeds.ok_or_else(|| format!("expected a range of at most {SEEDS_MAX} seeds, such as 1-20"))
}

/// The forecast and the measurement of one load.
#[derive(Clone, Debug, PartialEq)]
struct Comparison {
    seed: u64,
    load: Load,
    /// CPU time of packets, in microseconds for an exchange or a MB.
    forecast: Measurement,
    measured: Measurement,
    /// The difference between the lowest and the highest measurement, in percent of the median.
    spread: Measurement,
}

impl Comparison {
    fn of(seed: u64, load: Load, samples: &CellSamples) -> Self {
        let [before, after] = [Joint::Secured, Joint::Unpolled].map(|joint| subject(joint, load));
        let forecast = samples.median(&before, FORECAST);
        let measured = samples.median(&after, PACKETS);
        let spread = samples.spread(&after, PACKETS);
        Self { seed, load, forecast, measured, spread }
    }

    /// The difference of the measurement to the forecast, in percent of the measurement.
    fn difference(&self) -> Measurement {
        let measured = self.measured.clone()?;
        Ok((self.forecast.clone()? - measured) / measured * 100.0)
    }

    fn is_within(&self) -> bool {
        self.difference().is_ok_and(|difference| difference.abs() <= DIFFERENCE_MAX)
    }
}

/// Measures the loads for the packet factors, and then the loads of all seeds.
pub(super) fn measure(stage: &Stage, seeds: &Seeds) -> PaperSheet {
    let peer = ipsec::peer(stage);
    let mut samples = CellSamples::default();
    let loads: Vec<(u64, Load)> =
        seeds.0.clone().flat_map(|seed| Load::forecast(seed).map(|load| (seed, load))).collect();
    let calibration = Calibration::measure(stage, &peer, &loads);
    for round in 1..=stage.extent.rounds {
        for (at, (seed, load)) in loads.iter().enumerate() {
            let number = at + 1;
            let count = loads.len();
            let step = format!("random load {number} of {count}, seed {seed}");
            let factor = calibration.factor(*load);
            take_both(stage, &peer, &mut samples, *load, &factor, &step, round);
        }
    }
    let compared = loads.into_iter().map(|(seed, load)| Comparison::of(seed, load, &samples));
    sheet(&compared.collect::<Vec<_>>(), calibration.table())
}

fn sheet(all: &[Comparison], calibration: PaperTable) -> PaperSheet {
    let mut sheet = PaperSheet {
        key: "ipsec",
        title: "IPsec on an engine: forecasts for random loads",
        method: format!(
            "The tables compare forecasts of `tacit project` with measured values. Each value is \
             the CPU time that the client's agent uses for packets, per exchange or per MB. An \
             engine is a thread on a reserved CPU. A forecast has two inputs: a measurement \
             without an engine, and a packet factor. The packet factor is the CPU time with an \
             engine, divided by the CPU time without an engine. The packet factors were measured \
             first, with other loads. Each seed generates three random loads, and each load has \
             one forecast. A seed is within the limit if all three forecasts differ from the \
             measured values by at most {DIFFERENCE_MAX} %"
        ),
        tables: vec![loads_table(all), seeds_table(all), calibration],
        ..PaperSheet::default()
    };
    sheet.note(summary(all));
    sheet
}

fn loads_table(all: &[Comparison]) -> PaperTable {
    let columns =
        ["seed", "load", "forecast, us", "measured, us", "difference, %", "within", "spread, %"];
    let title = "CPU time that one engine uses for packets, per exchange or per MB: forecasts \
                 and measured values";
    let mut table = PaperTable::new("forecasts", title, &columns);
    for one in all {
        let within = match one.difference() {
            Ok(_) => PaperCell::name(if one.is_within() { "yes" } else { "no" }),
            Err(gap) => PaperCell::Empty(gap),
        };
        table.rows.push(vec![
            PaperCell::name(one.seed.to_string()),
            PaperCell::name(one.load.name()),
            one.forecast.clone().into(),
            one.measured.clone().into(),
            one.difference().into(),
            within,
            one.spread.clone().into(),
        ]);
    }
    table
}

/// The number of seeds, and of those all of whose loads are within the limit.
fn seeds_within(all: &[Comparison]) -> [usize; 2] {
    let mut of_seeds: Vec<&[Comparison]> = all.chunk_by(|a, b| a.seed == b.seed).collect();
    let seeds = of_seeds.len();
    of_seeds.retain(|loads| loads.iter().all(Comparison::is_within));
    [seeds, of_seeds.len()]
}

/// The number of loads, and of those within the limit.
fn loads_within(all: &[Comparison]) -> [usize; 2] {
    [all.len(), all.iter().filter(|one| one.is_within()).count()]
}

fn seeds_table(all: &[Comparison]) -> PaperTable {
    let columns = ["", "number", "within"];
    let title = format!("Forecasts that differ from the measurement by at most {DIFFERENCE_MAX} %");
    let mut table = PaperTable::new("within", title, &columns);
    for (name, numbers) in [("seeds", seeds_within(all)), ("loads", loads_within(all))] {
        let numbers = numbers.map(|number| PaperCell::Measured(number as f64));
        table.rows.push([PaperCell::name(name)].into_iter().chain(numbers).collect());
    }
    table
}

fn summary(all: &[Comparison]) -> String {
    let [seeds, within] = seeds_within(all);
    let [loads, loads_within] = loads_within(all);
    format!(
        "{loads_within} of {loads} forecasts differ from the measured value by at most \
         {DIFFERENCE_MAX} %. Each seed has three forecasts. For {within} of {seeds} seeds, all \
         three forecasts are within this limit"
    )
}

#[cfg(test)]
mod tests {
    use super::super::cell::Gap;
    use super::*;

    #[test]
    fn a_forecast_is_compared_with_the_median_of_the_later_measurements() {
        let [load, ..] = Load::forecast(1);
        let mut samples = CellSamples::default();
        let mut add = |joint, key: &str, value: f64| {
            samples.add(&subject(joint, load), Ok(vec![(key.to_owned(), value)]));
        };
        for (forecast, measured) in [(30.0, 33.0), (29.0, 22.0), (40.0, 35.2)] {
            add(Joint::Secured, FORECAST, forecast);
            // What was measured without an engine does not count.
            add(Joint::Secured, PACKETS, 1.0);
            add(Joint::Unpolled, PACKETS, measured);
        }
        let one = Comparison::of(1, load, &samples);
        assert_eq!((one.forecast.clone(), one.measured.clone()), (Ok(30.0), Ok(33.0)));
        let difference = one.difference().unwrap();
        assert!((difference + 100.0 / 11.0).abs() < 1e-9 && one.is_within(), "{difference}");
        assert!((one.spread.clone().unwrap() - 40.0).abs() < 1e-9, "{one:?}");
        let far = Comparison { forecast: Ok(36.4), ..one };
        assert!(!far.is_within(), "{far:?}");
    }

    #[test]
    fn a_seed_is_within_the_limit_if_all_its_loads_are() {
        let one = |seed, forecast: Measurement| {
            let [load, ..] = Load::forecast(seed);
            Comparison { seed, load, forecast, measured: Ok(100.0), spread: Ok(0.0) }
        };
        let all = [
            one(1, Ok(90.0)),
            one(1, Ok(110.0)),
            one(2, Ok(100.0)),
            one(2, Ok(89.9)),
            one(3, Err(Gap::failed("no tunnel"))),
        ];
        assert_eq!(
            summary(&all),
            "3 of 5 forecasts differ from the measured value by at most 10 %. Each seed has three \
             forecasts. For 1 of 3 seeds, all three forecasts are within this limit"
        );
        let sheet = sheet(&all, PaperTable::new("calibration", "", &[]));
        let [seeds, loads] = [0, 1].map(|row: usize| sheet.tables[1].rows[row][1..].to_vec());
        assert_eq!(seeds, [3.0, 1.0].map(PaperCell::Measured));
        assert_eq!(loads, [5.0, 3.0].map(PaperCell::Measured));
        let within: Vec<_> = sheet.tables[0].rows.iter().map(|row| row[5].clone()).collect();
        let [yes, no] = ["yes", "no"].map(PaperCell::name);
        assert_eq!(within[..4], [yes.clone(), yes.clone(), yes, no]);
        assert_eq!(within[4], PaperCell::Empty(Gap::failed("no tunnel")));
    }

    #[test]
    fn seeds_are_a_range_with_a_limit() {
        assert_eq!(seeds("1-20"), Ok(Seeds(1..=20)));
        assert_eq!(seeds("7"), Ok(Seeds(7..=7)));
        for text in ["", "20-1", "1-", "-3", "1-1001", "x", "1-2-3"] {
            assert!(seeds(text).is_err(), "{text}");
        }
    }
}
