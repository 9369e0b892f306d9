//! Compares forecasts with later measurements, for random loads that are generated from seeds. A
//! measurement without an engine gives a forecast of the CPU time that one engine needs for the
//! packets. Then this CPU time is measured with one engine.
//!
//! ```text
//! seed ──> three loads ──┬─ without engine ──> tacit project ──> forecast ──┐
//!                        └─ with one engine ──> ledger ──────────> measured ┴─> difference
//! ```
//!
//! Requests are sent at scheduled times. A stream is sent as fast as possible, and its rate with an
//! engine differs from its rate without one. So the forecast is multiplied by the ratio of the two
//! rates, as `tacit project --scale` does. Engines do not poll here, because polling uses CPU time
//! even without packets, and a forecast does not contain this CPU time.

use std::ops::RangeInclusive;

use super::cell::{CellSamples, Measurement, PaperCell};
use super::drawn::Load;
use super::ipsec;
use super::joint::{ELIGIBLE, Joint, MEASURED_ENGINE, MEASURED_SPILL, RATE, subject};
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
    /// CPU time of packets, in percent of one CPU.
    forecast: Measurement,
    measured: Measurement,
}

impl Comparison {
    fn of(seed: u64, load: Load, samples: &CellSamples) -> Self {
        let [before, after] = [Joint::Secured, Joint::Unpolled].map(|joint| subject(joint, load));
        let forecast = samples
            .median(&before, ELIGIBLE)
            .and_then(|eligible| Ok(eligible * samples.ratio(RATE, &after, &before)?));
        let measured = samples
            .median(&after, MEASURED_ENGINE)
            .and_then(|engine| Ok(engine + samples.median(&after, MEASURED_SPILL)?));
        Self { seed, load, forecast, measured }
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

/// Measures the loads of all seeds.
pub(super) fn measure(stage: &Stage, seeds: &Seeds) -> PaperSheet {
    let mut samples = CellSamples::default();
    let peer = ipsec::peer(stage);
    let loads: Vec<(u64, Load)> =
        seeds.0.clone().flat_map(|seed| Load::forecast(seed).map(|load| (seed, load))).collect();
    for round in 1..=stage.extent.rounds {
        for (at, (seed, load)) in loads.iter().enumerate() {
            for joint in [Joint::Secured, Joint::Unpolled] {
                let subject = subject(joint, *load);
                if samples.is_given_up(&subject) {
                    continue;
                }
                let number = at + 1;
                let all = loads.len();
                stage.progress(&format!(
                    "ipsec: load {number} of {all}, seed {seed}: {subject}, round {round}"
                ));
                samples.add(&subject, ipsec::take(stage, &peer, *load, joint));
            }
        }
    }
    let compared = loads.into_iter().map(|(seed, load)| Comparison::of(seed, load, &samples));
    sheet(&compared.collect::<Vec<_>>())
}

fn sheet(all: &[Comparison]) -> PaperSheet {
    let mut sheet = PaperSheet {
        key: "ipsec",
        title: "zIIP-assisted IPsec: forecasts for random loads",
        method: format!(
            "CPU time that the client's agent uses for packets, in percent of one CPU. `tacit \
             project` makes the forecast from a measurement without an engine, for the rate of \
             the later measurement with one engine. Each seed selects three random loads. A seed \
             counts as within {DIFFERENCE_MAX} % only if the forecasts of all three loads differ \
             from the measured values by at most {DIFFERENCE_MAX} %"
        ),
        tables: vec![loads_table(all), seeds_table(all)],
        ..PaperSheet::default()
    };
    sheet.note(summary(all));
    sheet
}

fn loads_table(all: &[Comparison]) -> PaperTable {
    let columns = ["seed", "load", "forecast, %", "measured, %", "difference, %", "within"];
    let title = "Forecast and measured CPU time of packets on one engine";
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

fn seeds_table(all: &[Comparison]) -> PaperTable {
    let columns = ["", "number", "within"];
    let title = format!("Forecasts that differ from the measurement by at most {DIFFERENCE_MAX} %");
    let mut table = PaperTable::new("within", title, &columns);
    let loads = [all.len(), all.iter().filter(|one| one.is_within()).count()];
    for (name, numbers) in [("seeds", seeds_within(all)), ("loads", loads)] {
        let numbers = numbers.map(|number| PaperCell::Measured(number as f64));
        table.rows.push([PaperCell::name(name)].into_iter().chain(numbers).collect());
    }
    table
}

fn summary(all: &[Comparison]) -> String {
    let [seeds, within] = seeds_within(all);
    let loads = all.iter().filter(|one| one.is_within()).count();
    format!(
        "{within} of {seeds} seeds within {DIFFERENCE_MAX} %, and {loads} of {} loads",
        all.len()
    )
}

#[cfg(test)]
mod tests {
    use super::super::cell::Gap;
    use super::*;

    /// A measurement without engine, and one with an engine.
    fn samples(load: Load, before: [f64; 2], after: [f64; 3]) -> CellSamples {
        let mut samples = CellSamples::default();
        let mut add = |joint, keys: &[&str], values: &[f64]| {
            let figures = keys.iter().map(|key| (*key).to_owned()).zip(values.iter().copied());
            samples.add(&subject(joint, load), Ok(figures.collect()));
        };
        add(Joint::Secured, &[RATE, ELIGIBLE], &before);
        add(Joint::Unpolled, &[RATE, MEASURED_ENGINE, MEASURED_SPILL], &after);
        samples
    }

    #[test]
    fn a_forecast_follows_the_rate_of_the_later_measurement() {
        let [load, ..] = Load::forecast(1);
        let slower = samples(load, [1000.0, 60.0], [500.0, 25.0, 8.0]);
        let one = Comparison::of(1, load, &slower);
        assert_eq!((one.forecast.clone(), one.measured.clone()), (Ok(30.0), Ok(33.0)));
        let difference = one.difference().unwrap();
        assert!((difference + 100.0 / 11.0).abs() < 1e-9 && one.is_within(), "{difference}");
        let far = samples(load, [1000.0, 60.0], [1000.0, 50.0, 4.0]);
        let far = Comparison::of(1, load, &far);
        assert!((far.difference().unwrap() - 100.0 / 9.0).abs() < 1e-9 && !far.is_within());
    }

    #[test]
    fn a_seed_is_within_the_limit_if_all_its_loads_are() {
        let one = |seed, forecast: Measurement| {
            let [load, ..] = Load::forecast(seed);
            Comparison { seed, load, forecast, measured: Ok(100.0) }
        };
        let all = [
            one(1, Ok(90.0)),
            one(1, Ok(110.0)),
            one(2, Ok(100.0)),
            one(2, Ok(89.9)),
            one(3, Err(Gap::failed("no tunnel"))),
        ];
        assert_eq!(summary(&all), "1 of 3 seeds within 10 %, and 3 of 5 loads");
        let sheet = sheet(&all);
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
