//! Computes medians and minima of the samples. Discarded samples are not counted.

use serde_json::{Value, json};
use tacit_core::statistics::median;

use crate::measure::{Latency, PARTS, Sample};
use crate::peers::{Peer, peer};
use crate::workload::Workload;

/// A cell is not measured if more than one in this many samples was dropped.
const DROPPED_ONE_IN: usize = 3;

/// The results of one peer in one workload.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) peer: &'static Peer,
    pub(crate) workload: &'static Workload,
    pub(crate) samples: usize,
    pub(crate) dropped: usize,
    /// The smallest CPU time of all samples, including dropped ones: other programs on the machine
    /// can only increase the CPU time of a sample.
    least_us: f64,
    /// `None` if too many samples were dropped.
    pub(crate) figures: Option<Figures>,
}

/// The figures of the remaining samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) cpu_us: f64,
    pub(crate) cpu_us_min: f64,
    /// Median CPU time of each process.
    pub(crate) parts_us: [f64; 4],
    pub(crate) rate: f64,
    /// Medians.
    pub(crate) latency: Latency,
}

/// All results, in the order of workloads and peers.
#[derive(Debug)]
pub(crate) struct Summary(Vec<Row>);

impl Row {
    /// `None` without samples.
    fn new(samples: &[&Sample]) -> Option<Self> {
        let first = samples.first()?;
        let kept: Vec<_> = samples.iter().filter(|sample| !sample.is_disturbed()).collect();
        let dropped = samples.len() - kept.len();
        let least = samples.iter().map(|sample| sample.cpu_us()).fold(f64::INFINITY, f64::min);
        let of = |value: &dyn Fn(&Sample) -> f64| -> Vec<f64> {
            kept.iter().map(|sample| value(sample)).collect()
        };
        let middle = |value: &dyn Fn(&Sample) -> f64| median(&of(value));
        let figures = (dropped * DROPPED_ONE_IN <= samples.len()).then(|| Figures {
            cpu_us: middle(&Sample::cpu_us),
            cpu_us_min: of(&Sample::cpu_us).into_iter().fold(f64::INFINITY, f64::min),
            parts_us: std::array::from_fn(|part| middle(&|sample| sample.parts_us()[part])),
            rate: middle(&Sample::rate),
            latency: Latency {
                p50_us: middle(&|sample| sample.latency.p50_us),
                p99_us: middle(&|sample| sample.latency.p99_us),
            },
        });
        Some(Self {
            peer: peer(first.peer)?,
            workload: first.workload,
            samples: samples.len(),
            dropped,
            least_us: least,
            figures,
        })
    }

    /// The smallest CPU time: of the remaining samples, or of all if the cell is not measured.
    pub(crate) fn least_us(&self) -> f64 {
        self.figures.map_or(self.least_us, |figures| figures.cpu_us_min)
    }

    pub(crate) fn cpu_us(&self) -> Option<f64> {
        self.figures.map(|figures| figures.cpu_us)
    }

    fn json(&self) -> Value {
        let figures = self.figures.map(|figures| {
            let parts = PARTS.iter().zip(figures.parts_us);
            let parts: serde_json::Map<_, _> =
                parts.map(|(name, us)| ((*name).to_owned(), us.into())).collect();
            json!({
                "cpu_us_median": figures.cpu_us,
                "cpu_us_min": figures.cpu_us_min,
                "cpu_us_parts": parts,
                "rate_median": figures.rate,
                "p50_us": figures.latency.p50_us,
                "p99_us": figures.latency.p99_us,
            })
        });
        json!({
            "peer": self.peer.name,
            "workload": self.workload.name,
            "samples": self.samples,
            "dropped": self.dropped,
            "least_us": self.least_us,
            "figures": figures,
        })
    }
}

impl Summary {
    /// Summarises `samples`.
    pub(crate) fn new(
        peers: &[&'static Peer],
        workloads: &[&'static Workload],
        samples: &[Sample],
    ) -> Self {
        let mut rows = Vec::new();
        for workload in workloads {
            for peer in peers {
                let own = |sample: &&Sample| {
                    sample.peer == peer.name && sample.workload.name == workload.name
                };
                rows.extend(Row::new(&samples.iter().filter(own).collect::<Vec<_>>()));
            }
        }
        Self(rows)
    }

    pub(crate) fn json(&self) -> Value {
        self.0.iter().map(Row::json).collect()
    }

    pub(crate) fn of<'a>(&'a self, workload: &str) -> impl Iterator<Item = &'a Row> + use<'a> {
        let workload = workload.to_owned();
        self.0.iter().filter(move |row| row.workload.name == workload)
    }

    pub(crate) fn row(&self, workload: &str, peer: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.workload.name == workload && row.peer.name == peer)
    }

    /// The peer as installed, other than tacit, with the smallest CPU time. A peer that is not
    /// measured counts with its minimum, so that a worse one does not count as the best.
    pub(crate) fn best(&self, workload: &str) -> Option<&Row> {
        self.least(workload, |row| row.peer.is_rival())
    }

    /// The best peer among those with large segments and pinned CPUs.
    pub(crate) fn best_given(&self, workload: &str) -> Option<&Row> {
        self.least(workload, |row| row.peer.is_given())
    }

    fn least(&self, workload: &str, is: fn(&Row) -> bool) -> Option<&Row> {
        let us = |row: &Row| row.cpu_us().unwrap_or_else(|| row.least_us());
        self.of(workload).filter(|row| is(row)).min_by(|a, b| us(a).total_cmp(&us(b)))
    }
}

/// The ratio of the medians; `None` if one of the two is not measured.
pub(crate) fn ratio(row: Option<&Row>, to: Option<&Row>) -> Option<f64> {
    Some(row?.cpu_us()? / to?.cpu_us()?)
}

/// The ratio of the minima.
pub(crate) fn ratio_of_minima(row: Option<&Row>, to: Option<&Row>) -> Option<f64> {
    Some(row?.least_us() / to?.least_us())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workload::WORKLOADS;

    /// A sample of the first workload; one with 90 us is a disturbed one.
    pub(crate) fn sample(peer: &'static str, cpu_us: u64) -> Sample {
        Sample {
            peer,
            workload: &WORKLOADS[0],
            units: 1000.0,
            seconds: 1.0,
            latency: Latency { p50_us: 100.0, p99_us: 200.0 },
            cpu_ns: [cpu_us * 1_000_000, 0, 0, 0],
            machine_ns: if cpu_us == 90 { 1_000_000_000 } else { 0 },
        }
    }

    pub(crate) fn summary(samples: &[Sample]) -> Summary {
        let names = ["nginx", "envoy", "envoy-given", "tacit-fixed", "tacit-run"];
        let peers: Vec<_> = names.into_iter().filter_map(peer).collect();
        Summary::new(&peers, &[&WORKLOADS[0]], samples)
    }

    #[test]
    fn disturbed_samples_are_dropped_and_a_cell_with_many_is_not_measured() {
        let found = summary(&[
            sample("envoy", 50),
            sample("envoy", 60),
            sample("envoy", 90),
            sample("tacit-run", 30),
            sample("tacit-run", 90),
        ]);
        let envoy = found.row("2k", "envoy").unwrap();
        assert_eq!((envoy.samples, envoy.dropped, envoy.cpu_us()), (3, 1, Some(55.0)));
        assert_eq!(envoy.least_us(), 50.0);
        let tacit = found.row("2k", "tacit-run").unwrap();
        assert_eq!((tacit.dropped, tacit.cpu_us()), (1, None));
        assert_eq!(ratio(Some(tacit), Some(envoy)), None);
        assert_eq!(ratio_of_minima(Some(tacit), Some(envoy)), Some(0.6));
    }

    #[test]
    fn the_best_peer_has_the_smallest_cpu_time_even_if_not_measured() {
        let found = summary(&[
            sample("nginx", 60),
            sample("envoy", 40),
            sample("envoy", 90),
            sample("envoy-given", 30),
            sample("tacit-fixed", 20),
        ]);
        assert_eq!(found.best("2k").unwrap().peer.name, "envoy");
        assert_eq!(ratio(found.row("2k", "tacit-fixed"), found.best("2k")), None);
        assert_eq!(found.best_given("2k").unwrap().peer.name, "envoy-given");
        assert!(found.best("bulk").is_none());
    }
}
