//! Checks whether IPsec on an engine meets the aims of this project. An engine is a thread on a
//! reserved CPU. This module compares the aims with measurements.
//!
//! The CPU times include only work on the general CPU, on which the programs run. They include work
//! that the engine moves to the general CPU, but not work on the engine's reserved CPU. Each CPU
//! time is compared with a measurement without IPsec, in which the programs use the same general
//! CPU.

use super::cell::{CellSamples, Measurement, PaperCell};
use super::drawn::Load;
use super::joint::{CPU, Joint, P50, subject};
use super::sheet::PaperTable;

/// A figure, and the largest values that meet the aim.
struct Aim {
    name: &'static str,
    unit: &'static str,
    must: f64,
    stretch: f64,
    measured: Measurement,
}

impl Aim {
    /// Which of the two aims is met.
    fn met(&self) -> PaperCell {
        match &self.measured {
            Err(gap) => PaperCell::Empty(gap.clone()),
            Ok(value) if *value <= self.stretch => PaperCell::name("stretch"),
            Ok(value) if *value <= self.must => PaperCell::name("must"),
            Ok(_) => PaperCell::name("no"),
        }
    }
}

/// The table of aims.
pub(super) fn table(samples: &CellSamples) -> PaperTable {
    let columns = ["figure", "unit", "must", "stretch"];
    let columns = [&columns[..], &["measured", "met"][..]].concat();
    let title = "Targets (upper limits) for IPsec on an engine. The rows about CPU time compare \
                 IPsec with the same traffic in clear";
    let mut table = PaperTable::new("aims", title, &columns);
    for aim in aims(samples) {
        let met = aim.met();
        let Aim { name, unit, must, stretch, measured } = aim;
        let number = |value: f64| PaperCell::name(format!("{value}"));
        table.rows.push(vec![
            PaperCell::name(name),
            PaperCell::name(unit),
            number(must),
            number(stretch),
            measured.into(),
            met,
        ]);
    }
    table
}

fn aims(samples: &CellSamples) -> [Aim; 7] {
    let [_, inbound, outbound] = Load::PUBLISHED;
    let change = |load, joint| {
        samples.change(CPU, &subject(Joint::ClearPinned, load), &subject(joint, load))
    };
    let paced = [Joint::Spilling, Joint::ClearPinned].map(|joint| subject(joint, Load::PACED));
    let single = [Joint::Polling, Joint::Waiting].map(|joint| subject(joint, Load::SINGLE));
    let aim = |name, unit, [must, stretch]: [f64; 2], measured| Aim {
        name,
        unit,
        must,
        stretch,
        measured,
    };
    [
        aim(
            "How IPsec changes the CPU time per GB of inbound data (a published paper reports \
             +13 %)",
            "%",
            IN,
            change(inbound, Joint::Spilling),
        ),
        aim(
            "How IPsec changes the CPU time per GB of inbound data, if the engine moves no work \
             to other CPUs",
            "%",
            IN,
            change(inbound, Joint::Contained),
        ),
        aim(
            "How IPsec changes the CPU time per GB of outbound data (a published paper reports \
             +45 %)",
            "%",
            OUT,
            change(outbound, Joint::Spilling),
        ),
        aim(
            "How IPsec changes the CPU time per GB of outbound data, if the engine moves no work \
             to other CPUs",
            "%",
            OUT,
            change(outbound, Joint::Contained),
        ),
        aim(
            "p50 latency at 20,000 requests/s",
            "us",
            [250.0, 150.0],
            samples.median(&paced[0], P50),
        ),
        aim(
            "CPU time per request with IPsec, divided by CPU time per request in clear, at 20,000 \
             requests/s (a published paper reports 1.61)",
            "ratio",
            [2.1, 1.6],
            samples.ratio(CPU, &paced[0], &paced[1]),
        ),
        aim(
            "p50 latency of one session with a polling engine, divided by its p50 latency with a \
             sleeping engine",
            "ratio",
            [0.8, 0.65],
            samples.ratio(P50, &single[0], &single[1]),
        ),
    ]
}

/// The aims for bulk in and out: must and stretch.
const IN: [f64; 2] = [5.0, 0.0];
const OUT: [f64; 2] = [0.0, -5.0];

#[cfg(test)]
mod tests {
    use super::super::cell::Gap;
    use super::*;

    /// Samples of all loads; an engine uses `engine` times the CPU time of clear.
    fn samples(engine: f64, p50_us: f64) -> CellSamples {
        let mut samples = CellSamples::default();
        let mut add = |joint, load, cpu: f64, p50: f64| {
            let figures = vec![(CPU.to_owned(), cpu), (P50.to_owned(), p50)];
            samples.add(&subject(joint, load), Ok(figures));
        };
        for load in Load::PUBLISHED.into_iter().chain([Load::PACED]) {
            add(Joint::ClearPinned, load, 100.0, 50.0);
            add(Joint::Spilling, load, 100.0 * engine, p50_us);
            add(Joint::Contained, load, 97.0, p50_us);
        }
        add(Joint::Waiting, Load::SINGLE, 1.0, 100.0);
        add(Joint::Polling, Load::SINGLE, 1.0, 70.0);
        samples
    }

    fn column(table: &PaperTable, at: usize) -> Vec<PaperCell> {
        table.rows.iter().map(|row| row[at].clone()).collect()
    }

    #[test]
    fn each_aim_compares_an_engine_with_clear_on_one_cpu() {
        let table = table(&samples(1.75, 200.0));
        let measured = [75.0, -3.0, 75.0, -3.0, 200.0, 1.75, 0.7];
        for (cell, wanted) in column(&table, 4).into_iter().zip(measured) {
            let PaperCell::Measured(value) = cell else { panic!("{cell:?}") };
            assert!((value - wanted).abs() < 1e-9, "{value} {wanted}");
        }
        let met = ["no", "stretch", "no", "must", "must", "must", "must"].map(PaperCell::name);
        assert_eq!(column(&table, 5), met);
        let table = super::table(&samples(0.75, 150.0));
        let met = ["stretch", "stretch", "stretch", "must", "stretch", "stretch", "must"];
        let met = met.map(PaperCell::name);
        assert_eq!(column(&table, 5), met);
    }

    #[test]
    fn an_aim_that_was_not_measured_is_neither_met_nor_missed() {
        let mut samples = samples(1.0, 100.0);
        let gap = Gap::skipped("an engine needs a second CPU");
        samples.add(&subject(Joint::Polling, Load::SINGLE), Err(gap.clone()));
        let table = table(&samples);
        assert_eq!(table.rows[6][4..], [PaperCell::Empty(gap.clone()), PaperCell::Empty(gap)]);
    }
}
