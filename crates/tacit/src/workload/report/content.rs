//! Defines the content and the JSON form of a workload's report. Also compares a report with an
//! earlier report.

use std::path::Path;

use serde_json::{Map, Value, json};
use tacit_core::page::{Chart, DataTable, Series, SeriesMark, TableCell};
use tacit_core::statistics::{Histogram, Point};

use super::super::clocks::CpuUsage;
use super::super::error::WorkloadError;
use super::super::{ledgers, threads};

/// The largest earlier report that is read.
const BESIDE_BYTES_MAX: u64 = 16 << 20;

/// One number of a report.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::workload) struct Figure {
    /// The key in JSON; ends with the unit.
    pub(in crate::workload) key: String,
    /// The title in text and HTML.
    pub(in crate::workload) title: String,
    pub(in crate::workload) unit: &'static str,
    pub(in crate::workload) value: f64,
}

/// The results of a workload.
#[derive(Debug, Default)]
pub(in crate::workload) struct Report {
    pub(in crate::workload) mode: &'static str,
    /// One line that describes the workload.
    pub(in crate::workload) summary: String,
    pub(in crate::workload) settings: Map<String, Value>,
    pub(in crate::workload) figures: Vec<Figure>,
    pub(in crate::workload) tables: Vec<DataTable>,
    pub(in crate::workload) charts: Vec<Chart>,
    pub(in crate::workload) notes: Vec<String>,
    pub(super) label: Option<String>,
    pub(super) beside: Option<Beside>,
}

/// An earlier report.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) label: String,
    figures: Map<String, Value>,
}

impl Report {
    pub(in crate::workload) fn new(mode: &'static str, summary: String) -> Self {
        Self { mode, summary, ..Self::default() }
    }

    /// Records an option of the workload.
    pub(in crate::workload) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.settings.insert(key.to_owned(), value.into());
    }

    pub(in crate::workload) fn figure(
        &mut self,
        key: impl Into<String>,
        title: impl Into<String>,
        unit: &'static str,
        value: f64,
    ) {
        self.figures.push(Figure { key: key.into(), title: title.into(), unit, value });
    }

    pub(in crate::workload) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds percentiles of a histogram of nanoseconds. The keys begin with `key`. The chart ends at
    /// the 99th percentile: a few outliers above would flatten the rest.
    pub(in crate::workload) fn latency(&mut self, key: &str, title: &str, values: &Histogram) {
        let us = |ns: u64| ns as f64 / 1000.0;
        for (name, word, value) in [
            ("p50", "p50", us(values.per_mille(500))),
            ("p99", "p99", us(values.per_mille(990))),
            ("p999", "p99.9", us(values.per_mille(999))),
            ("max", "max", us(values.max())),
        ] {
            self.figure(format!("{key}_{name}_us"), format!("{title} {word}"), "us", value);
        }
        let point = |at| Point { x: at as f64 / 10.0, y: us(values.per_mille(at)) };
        let series = Series::new(title, SeriesMark::Line, (1..=990).map(point).collect());
        let is_latency = |chart: &&mut Chart| chart.x == LATENCY_AXIS;
        match self.charts.iter_mut().find(is_latency) {
            Some(chart) => chart.series.push(series),
            None => self.charts.push(Chart {
                title: "latency by percentile".to_owned(),
                x: LATENCY_AXIS.to_owned(),
                y: "us".to_owned(),
                series: vec![series],
            }),
        }
    }

    /// Adds the CPU time of each component, per unit of work and as a share of one CPU.
    pub(in crate::workload) fn cpu(
        &mut self,
        names: &[String],
        used: &CpuUsage,
        unit: &str,
        units: f64,
    ) {
        let us = |ns: u64| ns as f64 / 1000.0;
        let share = |ns: u64| ns as f64 / 1e7 / used.seconds;
        let sum = used.sum_ns();
        let key = format!("cpu_us_per_{}", unit.to_ascii_lowercase());
        self.figure(key, format!("CPU time per {unit}"), "us", us(sum) / units);
        let columns = ["component", "CPU us", &format!("us/{unit}"), "% of one CPU"];
        let parts = names.iter().map(String::as_str).zip(used.components_ns.iter().copied());
        let rows = parts.chain([("all", sum)]).map(|(name, ns)| {
            vec![
                TableCell::Text(name.to_owned()),
                TableCell::Number(us(ns)),
                TableCell::Number(us(ns) / units),
                TableCell::Number(share(ns)),
            ]
        });
        self.tables.push(DataTable {
            title: format!("CPU time by component, per {unit}"),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        });
        self.tables.extend(ledgers::tables(&used.ledgers, unit, units));
        if used.is_disturbed() {
            self.note(format!(
                "per {unit}: the whole machine used {machine:.0} ms of CPU time, but the measured \
                 processes used only {measured:.0} ms. Either other programs disturbed the \
                 measurement, or --cpu-of does not select all processes that handle the traffic",
                machine = used.machine_ns as f64 / 1e6,
                measured = sum as f64 / 1e6
            ));
        }
    }

    /// The whole report as JSON.
    pub(in crate::workload) fn json(&self) -> Value {
        let figures: Map<String, Value> =
            self.figures.iter().map(|one| (one.key.clone(), rounded(one.value))).collect();
        let beside = self.beside.as_ref().map(|beside| {
            let ratios = self
                .figures
                .iter()
                .filter_map(|figure| Some((figure.key.clone(), rounded(beside.ratio(figure)?))));
            json!({ "label": beside.label, "ratios": ratios.collect::<Map<_, _>>() })
        });
        json!({
            "version": 1,
            "mode": self.mode,
            "summary": self.summary,
            "label": self.label,
            "kernel": kernel(),
            "cpus": threads::cpus(),
            "settings": self.settings,
            "figures": figures,
            "tables": self.tables.iter().map(table).collect::<Vec<_>>(),
            "charts": self.charts.iter().map(chart).collect::<Vec<_>>(),
            "notes": self.notes,
            "beside": beside,
        })
    }
}

impl Beside {
    pub(super) fn read(path: &Path) -> Result<Self, WorkloadError> {
        let wrong = |error| WorkloadError::Beside(path.to_owned(), error);
        let length = std::fs::metadata(path).map_err(wrong)?.len();
        if length > BESIDE_BYTES_MAX {
            return Err(wrong(std::io::ErrorKind::FileTooLarge.into()));
        }
        let text = std::fs::read(path).map_err(wrong)?;
        let value: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.into()))?;
        let figures = value["figures"]
            .as_object()
            .cloned()
            .ok_or_else(|| wrong(std::io::ErrorKind::InvalidData.into()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let label = value["label"].as_str().map_or(name, str::to_owned);
        Ok(Self { label, figures })
    }

    /// The value of the same figure in the earlier report.
    pub(super) fn value(&self, figure: &Figure) -> Option<f64> {
        self.figures.get(&figure.key)?.as_f64()
    }

    /// The figure divided by the earlier one; `None` for percentages, which are compared by their
    /// difference.
    pub(super) fn ratio(&self, figure: &Figure) -> Option<f64> {
        let value = self.value(figure).filter(|value| *value != 0.0 && figure.unit != "%")?;
        Some(figure.value / value)
    }
}

fn table(table: &DataTable) -> Value {
    let rows = table.rows.iter().map(|row| {
        let cells = table.columns.iter().cloned().zip(row.iter().map(|cell| match cell {
            TableCell::Text(text) => json!(text),
            TableCell::Number(value) => rounded(*value),
        }));
        cells.collect::<Map<_, _>>()
    });
    json!({ "title": table.title, "rows": rows.collect::<Vec<_>>() })
}

fn chart(chart: &Chart) -> Value {
    let series = chart.series.iter().map(|series| {
        let points = series.points.iter().map(|at| json!([rounded(at.x), rounded(at.y)]));
        json!({ "name": series.name, "points": points.collect::<Vec<_>>() })
    });
    json!({
        "title": chart.title,
        "x": chart.x,
        "y": chart.y,
        "series": series.collect::<Vec<_>>(),
    })
}

const LATENCY_AXIS: &str = "percentile";

/// Rounds to six digits: the measurement is not more precise.
fn rounded(value: f64) -> Value {
    json!(format!("{value:.5e}").parse::<f64>().ok().filter(|value| value.is_finite()))
}

pub(in crate::workload) fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Formats a count with its noun in singular or plural.
pub(in crate::workload) fn with_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(in crate::workload) mod tests {
    use super::*;

    pub(crate) fn report() -> Report {
        let mut report = Report::new("interactive", "10 connections, 100 bytes & more".to_owned());
        report.set("connections", 10);
        report.figure("exchanges_per_s", "exchanges", "/s", 12_345.678_9);
        let mut latency = Histogram::default();
        (1..=1000).for_each(|us| latency.record(us * 1000));
        report.latency("latency", "latency", &latency);
        let used = CpuUsage {
            seconds: 2.0,
            components_ns: vec![1_000_000_000, 500_000_000],
            ..CpuUsage::default()
        };
        report.cpu(&["client".to_owned(), "<agent>".to_owned()], &used, "exchange", 1000.0);
        report.note("closed loop");
        report
    }

    #[test]
    fn json_has_all_keys_and_figures() {
        let json = report().json();
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "beside", "charts", "cpus", "figures", "kernel", "label", "mode", "notes",
                "settings", "summary", "tables", "version"
            ]
        );
        assert_eq!(json["version"], 1);
        assert_eq!(json["figures"]["exchanges_per_s"], 12_345.7);
        assert_eq!(json["figures"]["cpu_us_per_exchange"], 1500.0);
        let p99 = json["figures"]["latency_p99_us"].as_f64().unwrap();
        assert!((990.0..=998.0).contains(&p99), "{p99}");
        assert_eq!(json["figures"]["latency_max_us"], 1000.0);
        let rows = &json["tables"][0]["rows"];
        assert_eq!(rows[1]["component"], "<agent>");
        assert_eq!(rows[1]["% of one CPU"], 25.0);
        assert_eq!(rows[2]["us/exchange"], 1500.0);
        assert_eq!(json["charts"][0]["x"], LATENCY_AXIS);
    }

    #[test]
    fn figures_are_compared_with_an_earlier_report_by_key() {
        let mut now = report();
        let mut figures = Map::new();
        figures.insert("exchanges_per_s".to_owned(), json!(24_691.357_8));
        figures.insert("latency_p50_us".to_owned(), json!(0));
        now.beside = Some(Beside { label: "clear".to_owned(), figures });
        let json = now.json();
        assert_eq!(json["beside"]["ratios"], json!({ "exchanges_per_s": 0.5 }));
        let text = super::super::text::text(&now);
        assert!(text.contains("clear") && text.contains("0.50"), "{text}");
    }

    #[test]
    fn infinite_values_are_null() {
        assert_eq!(rounded(f64::INFINITY), Value::Null);
        assert_eq!(rounded(1.234_567_89), json!(1.234_57));
    }
}
