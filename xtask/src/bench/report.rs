//! What the samples say: plain tables, and the same with every sample as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;

use serde_json::{Value, json};
use tacit_core::statistics::median;

use super::load::{WORKLOADS, Workload};
use super::measure::{PARTS, Sample};
use super::network::Network;
use super::peers::{Running, SUBJECT};

/// The report of a whole run.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    running: &'a [Running],
    samples: &'a [Sample],
    network: &'a Network,
    rows: Vec<Row>,
}

/// One peer under one workload.
#[derive(Debug)]
struct Row {
    peer: &'static str,
    workload: &'static str,
    samples: usize,
    disturbed: usize,
    cpu_us_median: f64,
    cpu_us_min: f64,
    /// Medians of each process.
    parts_us: [f64; 4],
    rate_median: f64,
}

impl<'a> Report<'a> {
    /// Sums up `samples`, peers in the order of `running`.
    pub(crate) fn new(running: &'a [Running], samples: &'a [Sample], network: &'a Network) -> Self {
        let mut rows = Vec::new();
        for workload in &WORKLOADS {
            for peer in running {
                let own = |sample: &&Sample| {
                    sample.peer == peer.peer.name && sample.workload.name == workload.name
                };
                rows.extend(Row::new(&samples.iter().filter(own).collect::<Vec<_>>()));
            }
        }
        Self { running, samples, network, rows }
    }

    /// Everything, for programs.
    pub(crate) fn json(&self) -> Value {
        let peers = self.running.iter().map(|running| {
            json!({
                "peer": running.peer.name,
                "version": running.version,
                "negotiated": running.negotiated,
            })
        });
        let samples = self.samples.iter().map(|sample| {
            json!({
                "peer": sample.peer,
                "workload": sample.workload.name,
                "units": sample.units,
                "seconds": sample.seconds,
                "cpu_ns": named(&sample.cpu_ns),
                "machine_ns": sample.machine_ns,
                "disturbed": sample.disturbed(),
            })
        });
        json!({
            "kernel": kernel(),
            "cpus": cpus(),
            "network": {
                "private": self.network.private,
                "congestion": self.network.congestion,
            },
            "peers": peers.collect::<Vec<_>>(),
            "summary": self.rows.iter().map(|row| self.row_json(row)).collect::<Vec<_>>(),
            "samples": samples.collect::<Vec<_>>(),
        })
    }

    fn row_json(&self, row: &Row) -> Value {
        let ratios = self.ratios(row).map(|ratios| {
            json!({ "cpu_median": ratios.cpu, "cpu_min": ratios.cpu_min, "rate": ratios.rate })
        });
        json!({
            "peer": row.peer,
            "workload": row.workload,
            "samples": row.samples,
            "disturbed": row.disturbed,
            "cpu_us_median": row.cpu_us_median,
            "cpu_us_min": row.cpu_us_min,
            "cpu_us_parts": named(&row.parts_us),
            "rate_median": row.rate_median,
            "subject_ratio": ratios,
        })
    }

    fn row(&self, workload: &str, peer: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.workload == workload && row.peer == peer)
    }

    /// What tacit needs and does, divided by what `row` does.
    fn ratios(&self, row: &Row) -> Option<Ratios> {
        let subject = self.row(row.workload, SUBJECT)?;
        Some(Ratios {
            cpu: subject.cpu_us_median / row.cpu_us_median,
            cpu_min: subject.cpu_us_min / row.cpu_us_min,
            rate: subject.rate_median / row.rate_median,
        })
    }

    fn write_head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; Linux {}, {} CPUs", self.network.describe(), kernel(), cpus())?;
        for running in self.running {
            let Running { peer, version, negotiated, .. } = running;
            writeln!(f, "{:<8} {negotiated}; {version}", peer.name)?;
        }
        Ok(())
    }

    fn write_workload(&self, f: &mut Formatter<'_>, workload: &Workload) -> fmt::Result {
        let unit = workload.kind.unit();
        writeln!(f, "\n{}: {}", workload.name, workload.title)?;
        write!(f, "{:8} {:>10} {:>8}", "", format!("us/{unit}"), "minimum")?;
        for part in ["client", "proxy", "proxy", "server"] {
            write!(f, " {part:>7}")?;
        }
        let rate = format!("{unit}/s");
        writeln!(f, " {rate:>10} {:>9} {:>7} {:>6}", "x CPU", "x min", "x rate")?;
        for row in self.rows.iter().filter(|row| row.workload == workload.name) {
            let [cpu, min] = [row.cpu_us_median, row.cpu_us_min].map(figure);
            write!(f, "{:<8} {cpu:>10} {min:>8}", row.peer)?;
            for part in row.parts_us {
                write!(f, " {:>7}", figure(part))?;
            }
            write!(f, " {:>10.0}", row.rate_median)?;
            match self.ratios(row).filter(|_| row.peer != SUBJECT) {
                Some(Ratios { cpu, cpu_min, rate }) => {
                    write!(f, " {cpu:>9.2} {cpu_min:>7.2} {rate:>6.2}")?;
                }
                None => write!(f, " {:>9} {:>7} {:>6}", "-", "-", "-")?,
            }
            match row.disturbed {
                0 => writeln!(f)?,
                disturbed => writeln!(f, "   disturbed: {disturbed} of {}", row.samples)?,
            }
        }
        Ok(())
    }

    fn write_summary(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let others = || self.running.iter().map(|running| running.peer.name);
        if others().all(|peer| peer != SUBJECT) {
            return Ok(());
        }
        writeln!(
            f,
            "\n{SUBJECT} divided by the others: CPU (below 1: cheaper), rate (above 1: faster)"
        )?;
        write!(f, "{:8}", "")?;
        for peer in others().filter(|&peer| peer != SUBJECT) {
            write!(f, " {peer:>14}")?;
        }
        writeln!(f)?;
        let mut ahead: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        let measured = |workload: &&Workload| self.row(workload.name, SUBJECT).is_some();
        for workload in WORKLOADS.iter().filter(measured) {
            write!(f, "{:<8}", workload.name)?;
            for peer in others().filter(|&peer| peer != SUBJECT) {
                let ratios = self.row(workload.name, peer).and_then(|row| self.ratios(row));
                let Some(Ratios { cpu, rate, .. }) = ratios else { continue };
                write!(f, " {:>14}", format!("{cpu:.2}  {rate:.2}x"))?;
                let [won, all] = ahead.entry(peer).or_default();
                *won += usize::from(cpu < 1.0);
                *all += 1;
            }
            writeln!(f)?;
        }
        for (peer, [won, all]) in ahead.iter().filter(|(peer, _)| **peer != "direct") {
            writeln!(f, "{SUBJECT} needs less CPU than {peer} in {won} of {all} workloads")?;
        }
        Ok(())
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        writeln!(
            f,
            "\nCPU time of all processes in microseconds, median and minimum of the samples;\n\
             the share of each process and the rate are medians. x: {SUBJECT} divided by that row."
        )?;
        let measured = |workload: &&Workload| self.rows.iter().any(|r| r.workload == workload.name);
        for workload in WORKLOADS.iter().filter(measured) {
            self.write_workload(f, workload)?;
        }
        self.write_summary(f)?;
        if self.rows.iter().any(|row| row.disturbed > 0) {
            writeln!(
                f,
                "disturbed: something else used the machine during so many samples; compare \
                 minima, or repeat on a quiet machine"
            )?;
        }
        Ok(())
    }
}

struct Ratios {
    cpu: f64,
    cpu_min: f64,
    rate: f64,
}

impl Row {
    /// None without a sample.
    fn new(samples: &[&Sample]) -> Option<Self> {
        let first = samples.first()?;
        let of = |value: &dyn Fn(&Sample) -> f64| -> Vec<f64> {
            samples.iter().map(|sample| value(sample)).collect()
        };
        let middle = |value: &dyn Fn(&Sample) -> f64| median(&of(value));
        Some(Self {
            peer: first.peer,
            workload: first.workload.name,
            samples: samples.len(),
            disturbed: samples.iter().filter(|sample| sample.disturbed()).count(),
            cpu_us_median: middle(&Sample::cpu_us),
            cpu_us_min: of(&Sample::cpu_us).into_iter().fold(f64::INFINITY, f64::min),
            parts_us: std::array::from_fn(|part| middle(&|sample| sample.parts_us()[part])),
            rate_median: middle(&Sample::rate),
        })
    }
}

/// Three digits or more, and not more than are known.
pub(super) fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn named<T: Copy + Into<Value>>(parts: &[T; 4]) -> Value {
    PARTS.iter().zip(parts).map(|(name, part)| ((*name).to_owned(), (*part).into())).collect()
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::peers;

    fn sample(peer: &'static str, cpu_us: u64, seconds: f64) -> Sample {
        Sample {
            peer,
            workload: &WORKLOADS[0],
            units: 1000.0,
            seconds,
            cpu_ns: [cpu_us * 1_000_000, 0, 0, 0],
            machine_ns: if cpu_us == 90 { 1_000_000_000 } else { 0 },
        }
    }

    fn running(name: &str) -> Running {
        Running {
            peer: peers::peer(name).unwrap(),
            version: "1.2".to_owned(),
            negotiated: "TLSv1.3".to_owned(),
            entry: "127.0.0.1:1".parse().unwrap(),
            proxies: None,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_of_minima() {
        let network = Network { private: true, congestion: "cubic".to_owned() };
        let running = [running("envoy"), running("tacit")];
        let samples = [
            sample("envoy", 50, 1.0),
            sample("envoy", 60, 2.0),
            sample("envoy", 90, 4.0),
            sample("tacit", 30, 1.0),
            sample("tacit", 25, 1.0),
        ];
        let report = Report::new(&running, &samples, &network);
        let json = report.json();
        let envoy = &json["summary"][0];
        assert_eq!(envoy["cpu_us_median"], 60.0);
        assert_eq!(envoy["cpu_us_min"], 50.0);
        assert_eq!(envoy["disturbed"], 1);
        assert_eq!(envoy["subject_ratio"]["cpu_median"], 27.5 / 60.0);
        assert_eq!(envoy["subject_ratio"]["cpu_min"], 0.5);
        assert_eq!(envoy["subject_ratio"]["rate"], 2.0);
        assert_eq!(json["samples"].as_array().unwrap().len(), 5);
        let text = report.to_string();
        assert!(text.contains("disturbed: 1 of 3"), "{text}");
        assert!(text.contains("less CPU than envoy in 1 of 1"), "{text}");
        assert!(text.contains("0.46  2.00x"), "{text}");
    }

    #[test]
    fn without_tacit_there_are_figures_but_no_ratios() {
        let network = Network { private: false, congestion: "bbr".to_owned() };
        let running = [running("envoy")];
        let samples = [sample("envoy", 50, 1.0)];
        let report = Report::new(&running, &samples, &network);
        assert_eq!(report.json()["summary"][0]["subject_ratio"], Value::Null);
        let text = report.to_string();
        assert!(text.contains("50.0"), "{text}");
        assert!(text.contains("bbr"), "{text}");
        assert!(!text.contains("divided by the others"), "{text}");
    }
}
