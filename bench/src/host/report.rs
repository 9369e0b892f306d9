//! Computes medians and ratios of the samples of `bench host`, and formats them as tables.

use std::fmt;

use tacit_core::statistics::median;

use super::sample::Task;
use super::world::Subject;

/// The samples of several subjects. The first two are equal; the others are compared with them.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) subjects: Vec<Subject>,
    pub(super) tasks: &'static [Task],
    /// In the order of the rounds.
    samples: Vec<(&'static str, Task, f64)>,
}

impl Table {
    pub(super) fn new(name: &'static str, subjects: Vec<Subject>, tasks: &'static [Task]) -> Self {
        Self { name, subjects, tasks, samples: Vec::new() }
    }

    /// Adds a sample in microseconds per operation.
    pub(super) fn add(&mut self, subject: Subject, task: Task, us: f64) {
        self.samples.push((subject.name, task, us));
    }

    /// The samples of a subject, one for each round.
    fn of(&self, subject: Subject, task: Task) -> Vec<f64> {
        let own = self.samples.iter().filter(|(name, of, _)| *name == subject.name && *of == task);
        own.map(|(_, _, us)| *us).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, ..] = self.subjects[..] else { return Ok(()) };
        writeln!(
            f,
            "{:10} {:>11}  {:17} {:>10} {:>7}",
            self.name, "unit", "installed", "us", "ratio"
        )?;
        for task in self.tasks.iter().copied() {
            let equal = self.of(first, task).into_iter().zip(self.of(second, task));
            let base: Vec<_> = equal.map(|(one, other)| f64::midpoint(one, other)).collect();
            for subject in self.subjects.iter().copied() {
                let all = self.of(subject, task);
                let ratios: Vec<_> = all.iter().zip(&base).map(|(us, base)| us / base).collect();
                writeln!(
                    f,
                    "{:10} {:>11}  {:17} {:>10.3} {:>7.3}",
                    task.name(),
                    task.unit(),
                    subject.name,
                    median(&all),
                    median(&ratios)
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_mean_of_the_equal_subjects_of_the_same_round() {
        let tasks = &Task::PROTECTED[..1];
        let mut table = Table::new("t", Subject::PROTECTED.to_vec(), tasks);
        for (subject, samples) in Subject::PROTECTED.iter().zip([
            [9.0, 18.0, 9.0],
            [11.0, 22.0, 11.0],
            [11.0, 26.0, 15.0],
        ]) {
            for us in samples {
                table.add(*subject, tasks[0], us);
            }
        }
        let text = table.to_string();
        let ratios: Vec<_> =
            text.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(ratios, ["0.900", "1.100", "1.300"], "{text}");
    }
}
