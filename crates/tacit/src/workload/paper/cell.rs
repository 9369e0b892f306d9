//! Defines the cells of the tables that `tacit workload paper` prints, and collects the samples of
//! each cell.
//!
//! If a cell has no measured value, the cell contains the reason. There are three kinds of reasons:
//! tacit does not have the function, a program or an input is missing, or the measurement failed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tacit_core::page::{TableCell, number};
use tacit_core::statistics::median;

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PaperCell {
    /// A name.
    Name(String),
    /// A number of the paper.
    Published(f64),
    /// Text of the paper, such as "~3".
    Quoted(&'static str),
    /// A number that was measured now.
    Measured(f64),
    /// Nothing was measured.
    Empty(Gap),
}

/// The reason why a cell is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) state: GapState,
    pub(super) reason: String,
}

/// The kind of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GapState {
    /// tacit does not have this part.
    Absent,
    /// A program or an input is missing on this machine.
    Skipped,
    /// The measurement failed.
    Failed,
}

/// A figure, or the reason why there is none.
pub(super) type Measurement = Result<f64, Gap>;

impl Gap {
    pub(super) fn absent(reason: impl Into<String>) -> Self {
        Self { state: GapState::Absent, reason: reason.into() }
    }

    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        Self { state: GapState::Skipped, reason: reason.into() }
    }

    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self { state: GapState::Failed, reason: reason.into() }
    }
}

impl GapState {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

impl From<Measurement> for PaperCell {
    fn from(measured: Measurement) -> Self {
        measured.map_or_else(Self::Empty, Self::Measured)
    }
}

impl PaperCell {
    pub(super) fn name(text: impl Into<String>) -> Self {
        Self::Name(text.into())
    }

    /// The cell in a table of text; `gaps` collects the reasons of empty cells, which follow the
    /// table.
    pub(super) fn shown(&self, gaps: &mut Vec<Gap>) -> TableCell {
        match self {
            Self::Name(text) => TableCell::Text(text.clone()),
            Self::Quoted(text) => TableCell::Text((*text).to_owned()),
            Self::Published(value) => TableCell::Text(exact(*value)),
            Self::Measured(value) => TableCell::Number(*value),
            Self::Empty(gap) => {
                let at = gaps.iter().position(|other| other == gap).unwrap_or_else(|| {
                    gaps.push(gap.clone());
                    gaps.len() - 1
                });
                TableCell::Text(format!("[{}]", at + 1))
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        match self {
            Self::Name(text) => json!({ "name": text }),
            Self::Quoted(text) => json!({ "published": text }),
            Self::Published(value) => json!({ "published": value }),
            Self::Measured(value) => json!({ "measured": value }),
            Self::Empty(gap) => json!({ "empty": gap.state.word(), "reason": gap.reason }),
        }
    }
}

/// A published number with its own digits, which say how precise it is.
fn exact(value: f64) -> String {
    if value.abs() >= 1000.0 { number(value) } else { format!("{value}") }
}

/// The samples of all cells, by subject (what is measured) and figure.
#[derive(Debug, Default)]
pub(super) struct CellSamples {
    values: BTreeMap<(String, String), Vec<f64>>,
    gaps: BTreeMap<String, Gap>,
}

impl CellSamples {
    /// Adds the figures of one measurement. A subject that was not measured once is given up.
    pub(super) fn add(&mut self, subject: &str, measured: Result<Vec<(String, f64)>, Gap>) {
        match measured {
            Ok(figures) => {
                for (figure, value) in figures {
                    self.values.entry((subject.to_owned(), figure)).or_default().push(value);
                }
            }
            Err(gap) => {
                self.gaps.insert(subject.to_owned(), gap);
            }
        }
    }

    /// Whether a subject was given up.
    pub(super) fn is_given_up(&self, subject: &str) -> bool {
        self.gaps.contains_key(subject)
    }

    /// The samples of a figure; at least one.
    fn values(&self, subject: &str, figure: &str) -> Result<&[f64], Gap> {
        if let Some(gap) = self.gaps.get(subject) {
            return Err(gap.clone());
        }
        let key = (subject.to_owned(), figure.to_owned());
        match self.values.get(&key) {
            Some(values) if !values.is_empty() => Ok(values),
            _ => Err(Gap::failed(format!("{subject}: the report has no value for `{figure}`"))),
        }
    }

    /// The median of the samples of a figure.
    pub(super) fn median(&self, subject: &str, figure: &str) -> Measurement {
        self.values(subject, figure).map(median)
    }

    /// The difference between the lowest and the highest sample, in percent of the median.
    pub(super) fn spread(&self, subject: &str, figure: &str) -> Measurement {
        let values = self.values(subject, figure)?;
        let [low, high] = [f64::min, f64::max]
            .map(|extreme| values.iter().copied().reduce(extreme).unwrap_or_default());
        Ok((high - low) / median(values) * 100.0)
    }

    pub(super) fn cell(&self, subject: &str, figure: &str) -> PaperCell {
        self.median(subject, figure).into()
    }

    /// The ratio of a figure of two subjects.
    pub(super) fn ratio(&self, figure: &str, of: &str, to: &str) -> Measurement {
        Ok(self.median(of, figure)? / self.median(to, figure)?)
    }

    /// The change of a figure from one subject to another, in percent.
    pub(super) fn change(&self, figure: &str, from: &str, to: &str) -> Measurement {
        self.ratio(figure, to, from).map(|ratio| (ratio - 1.0) * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: f64) -> Result<Vec<(String, f64)>, Gap> {
        Ok(vec![("rate".to_owned(), value)])
    }

    #[test]
    fn a_cell_is_the_median_of_its_samples_or_the_reason_for_none() {
        let mut samples = CellSamples::default();
        for value in [3.0, 1.0, 2.0] {
            samples.add("relay", one(value));
            samples.add("veth", one(2.0 * value));
        }
        samples.add("pasta", one(9.0));
        samples.add("pasta", Err(Gap::skipped("pasta is not installed")));
        assert_eq!(samples.cell("relay", "rate"), PaperCell::Measured(2.0));
        assert_eq!(samples.ratio("rate", "veth", "relay"), Ok(2.0));
        assert_eq!(samples.change("rate", "veth", "relay"), Ok(-50.0));
        assert!(samples.is_given_up("pasta") && !samples.is_given_up("relay"));
        assert_eq!(samples.median("pasta", "rate"), Err(Gap::skipped("pasta is not installed")));
        let missing = samples.median("relay", "cpu").unwrap_err();
        assert_eq!(missing.state, GapState::Failed);
    }

    #[test]
    fn empty_cells_refer_to_their_reason_and_equal_reasons_are_listed_once() {
        let mut gaps = Vec::new();
        let cell = |reason| PaperCell::Empty(Gap::absent(reason));
        let shown = [cell("no links"), cell("no queues"), cell("no links")]
            .map(|cell| cell.shown(&mut gaps).shown());
        assert_eq!(shown, ["[1]", "[2]", "[1]"]);
        assert_eq!(gaps.len(), 2);
        assert_eq!(cell("no links").json(), json!({ "empty": "absent", "reason": "no links" }));
    }

    #[test]
    fn published_numbers_keep_their_digits() {
        let shown = |value| PaperCell::Published(value).shown(&mut Vec::new()).shown();
        assert_eq!([7.16, 35_674.0, 105.17, 9.0].map(shown), ["7.16", "35,674", "105.17", "9"]);
        assert_eq!(PaperCell::Measured(7.161).shown(&mut Vec::new()).shown(), "7.16");
    }
}
