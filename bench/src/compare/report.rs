//! Writes the report of `bench compare`, which compares an old and a new version of tacit. The
//! report contains the medians of both versions, and the ratios of these medians. The report states
//! whether the new version uses too much CPU time or memory.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tacit_core::statistics::median;

use super::options::Options;
use super::subjects::Role;
use super::task::Task;
use crate::network::Network;

/// NEW may exceed OLD by this ratio in addition to the difference between OLD and OLD again.
const ALLOWANCE: f64 = 0.02;

/// One measured value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) task: Task,
    pub(super) role: Role,
    pub(super) value: f64,
}

/// All samples.
#[derive(Debug)]
pub(super) struct Report {
    head: Vec<String>,
    notes: Vec<String>,
    samples: Vec<Sample>,
    /// Number of completed rounds.
    pub(super) rounds: usize,
}

/// The medians of one workload.
#[derive(Clone, Copy, Debug)]
struct Row {
    task: Task,
    old: f64,
    again: f64,
    new: f64,
}

impl Row {
    /// NEW divided by the mean of OLD and OLD again.
    fn ratio(self) -> f64 {
        self.new / f64::midpoint(self.old, self.again)
    }

    /// The difference between OLD and OLD again, relative to their mean.
    fn spread(self) -> f64 {
        let middle = f64::midpoint(self.old, self.again);
        (self.old - self.again).abs() / middle
    }

    fn limit(self) -> f64 {
        1.0 + self.spread() + ALLOWANCE
    }

    fn is_within(self) -> bool {
        self.ratio() <= self.limit()
    }
}

impl Report {
    pub(super) fn new(options: &Options, network: &Network) -> Self {
        let head = vec![
            match &options.old_without {
                Some(key) => format!("old: {} with {key} = false", options.old.display()),
                None => format!("old: {}", options.old.display()),
            },
            format!("new: {}; this program also generates the load", options.new.display()),
            network.describe(),
        ];
        Self { head, notes: Vec::new(), samples: Vec::new(), rounds: 0 }
    }

    pub(super) fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Records that a workload cannot be measured on this machine.
    pub(super) fn skip(&mut self, task: Task) {
        self.note(format!(
            "skipped {}: `tacit run` needs network namespaces, which this machine does not allow",
            task.name()
        ));
    }

    fn median_of(&self, task: Task, role: Role) -> Option<f64> {
        let own = self.samples.iter().filter(|one| one.task == task && one.role == role);
        let values: Vec<f64> = own.map(|one| one.value).collect();
        if values.is_empty() { None } else { Some(median(&values)) }
    }

    fn rows(&self) -> Vec<Row> {
        let row = |task| {
            Some(Row {
                task,
                old: self.median_of(task, Role::Old)?,
                again: self.median_of(task, Role::Again)?,
                new: self.median_of(task, Role::New)?,
            })
        };
        Task::ALL.into_iter().filter_map(row).collect()
    }

    fn text(&self, took: Duration) -> String {
        let mut out = format!("{}\n", self.head.join("\n"));
        out.push_str(&format!(
            "{} rounds in {:.0} s. Each value is the median CPU time (or memory) that the agents \
             use for one unit of the workload.\n\n",
            self.rounds,
            took.as_secs_f64()
        ));
        out.push_str(&format!(
            "{:10} {:>10} {:>10} {:>10}  {:16} {:>8} {:>10} {:>8}  {}\n",
            "workload",
            "old",
            "old again",
            "new",
            "unit",
            "new/old",
            "old/old %",
            "limit",
            "within"
        ));
        for row in self.rows() {
            out.push_str(&format!(
                "{:10} {:>10.2} {:>10.2} {:>10.2}  {:16} {:>8.3} {:>10.2} {:>8.3}  {}\n",
                row.task.name(),
                row.old,
                row.again,
                row.new,
                row.task.unit(),
                row.ratio(),
                100.0 * row.spread(),
                row.limit(),
                if row.is_within() { "yes" } else { "NO" }
            ));
        }
        for note in &self.notes {
            out.push_str(&format!("note: {note}\n"));
        }
        out
    }

    fn json(&self, took: Duration) -> Value {
        let row = |row: &Row| {
            json!({
                "workload": row.task.name(),
                "unit": row.task.unit(),
                "old": row.old,
                "old_again": row.again,
                "new": row.new,
                "ratio": row.ratio(),
                "old_old_spread": row.spread(),
                "limit": row.limit(),
                "within": row.is_within(),
            })
        };
        let sample = |sample: &Sample| {
            json!({
                "workload": sample.task.name(),
                "program": sample.role.name(),
                "value": sample.value,
            })
        };
        json!({
            "schema": 1,
            "head": self.head,
            "rounds": self.rounds,
            "seconds": took.as_secs_f64(),
            "rows": self.rows().iter().map(row).collect::<Vec<_>>(),
            "samples": self.samples.iter().map(sample).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// A section for BENCHMARKS.md; `line` is the command line.
    pub(super) fn markdown(&self, line: &str) -> String {
        let mut out = format!(
            "`cargo xtask bench compare {line}`: {} rounds. Each value is the median CPU time \
             that the agents use for one unit. The column `old again` is a second measurement of \
             the old program.\n\n\
             | workload | unit | old | old again | new | new/old | old/old % |\n\
             | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
            self.rounds
        );
        for row in self.rows() {
            out.push_str(&format!(
                "| {} | {} | {:.2} | {:.2} | {:.2} | {:.3} | {:.2} |\n",
                row.task.name(),
                row.task.unit(),
                row.old,
                row.again,
                row.new,
                row.ratio(),
                100.0 * row.spread(),
            ));
        }
        for note in &self.notes {
            out.push_str(&format!("\nNote: {note}.\n"));
        }
        out
    }

    /// Prints the table or the JSON, and writes the JSON to a file if requested.
    pub(super) fn write(&self, json: Option<&Path>, took: Duration) -> Result<(), String> {
        match json {
            Some(path) if path == Path::new("-") => {
                println!("{:#}", self.json(took));
                return Ok(());
            }
            Some(path) => std::fs::write(path, format!("{:#}\n", self.json(took)))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?,
            None => {}
        }
        print!("{}", self.text(took));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Namespace;

    fn report(new: [f64; 3]) -> Report {
        let network = Network { namespace: Namespace::Own, congestion: "cubic".to_owned() };
        let options = Options::parse(&["/bin/sh", "/bin/sh"]).unwrap();
        let mut report = Report::new(&options, &network);
        report.rounds = 3;
        let task = Task::Small;
        for (role, values) in
            [(Role::Old, [10.0, 9.0, 30.0]), (Role::Again, [10.2, 11.0, 10.2]), (Role::New, new)]
        {
            values.into_iter().for_each(|value| report.add(Sample { task, role, value }));
        }
        report.skip(Task::RunStart);
        report
    }

    #[test]
    fn new_may_exceed_old_by_the_difference_of_two_olds_and_two_percent() {
        // The medians of OLD are 10.0 and 10.2: 10.1, and 1.98 % apart.
        for (new, is_within) in [(10.1, true), (10.5, true), (10.51, false), (2.0, true)] {
            let rows = report([new, 1.0, 99.0]).rows();
            assert_eq!(rows.len(), 1);
            assert!((rows[0].spread() - 0.0198).abs() < 1e-4);
            assert_eq!(rows[0].is_within(), is_within, "{new}: {:?}", rows[0]);
        }
    }

    #[test]
    fn the_table_and_json_have_every_figure() {
        let report = report([10.1; 3]);
        let took = Duration::from_secs(60);
        let text = report.text(took);
        for part in ["3 rounds in 60 s", "1.000", "1.98", "1.040", "yes", "skipped run-start"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let json = report.json(took);
        assert_eq!(json["rows"][0]["workload"], "2k");
        assert_eq!(json["rows"][0]["within"], true);
        assert_eq!(json["samples"].as_array().unwrap().len(), 9);
    }
}
