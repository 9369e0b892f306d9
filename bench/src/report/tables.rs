//! Builds the tables of the report.

use tacit_core::page::{Bar, Bars, DataTable, TableCell};
use tacit_core::statistics::{Mean, median};

use super::summary::{Row, Summary, ratio, ratio_of_minima};
use crate::measure::Sample;
use crate::memory::{IdleMemory, PerSide};
use crate::peers::{METERED, PLACED, SUBJECT, UNMETERED};
use crate::workload::{Goal, Workload};

/// Comparison with OpenSSL in the programs: workload, and the ratio that is the goal.
const INSIDE: [(&str, f64); 3] = [("connect", 0.5), ("1m", 1.0), ("2k", 2.2)];

/// Round trips with ChaCha20: workload, and how much longer they took on z/OS with AT-TLS than with
/// TLS in the program, in percent.
const PAPER: [(&str, f64); 5] = [
    ("2k-chacha20", 1.24),
    ("16k-chacha20", 7.48),
    ("32k-chacha20", 11.64),
    ("64k-chacha20", 16.32),
    ("1m-chacha20", 37.87),
];

/// The goal for the 1 MB round trip: at most this much longer, in percent.
const PAPER_GOAL: f64 = 5.0;

/// The workload of [`fairness`], and its aims.
const FAIRNESS: &str = "beside";
const FAIRNESS_RATE_MIN: f64 = 15_000.0;
const FAIRNESS_P50_US_MAX: f64 = 400.0;
const FAIRNESS_P99_RATIO_MAX: f64 = 2.0;
/// The aims in words.
pub(super) const FAIRNESS_AIMS: &str = "\
tacit should have a median of at most 400 us and at least 15,000 exchanges per second. Its 99th \
percentile should be at most twice that of `direct`, the connections without TLS.";

/// Further configurations of tacit in the table of goals.
const FORMS: [&str; 4] = [PLACED, "tacit-fixed", "tacit-fixed-no-cache", "tacit-one-cpu"];

/// The workloads with a goal, and whether tacit reaches it.
pub(super) fn headline(summary: &Summary, workloads: &[&'static Workload]) -> Option<DataTable> {
    let columns = [
        "workload",
        "best peer",
        "its CPU us",
        "tacit CPU us",
        "ratio",
        "of minima",
        "target",
        "stretch",
        "reached",
    ];
    let rows = with_goals(workloads).map(|WorkloadGoal { workload, goal }| {
        let best = summary.best(workload.name);
        let tacit = summary.row(workload.name, SUBJECT);
        let found = ratio(tacit, best);
        vec![
            text(workload.name),
            text(best.map_or("-", |best| best.peer.name)),
            number(best.and_then(Row::cpu_us)),
            number(tacit.and_then(Row::cpu_us)),
            share(found),
            share(ratio_of_minima(tacit, best)),
            share(Some(goal.target)),
            share(Some(goal.stretch)),
            text(reached(found, goal)),
        ]
    });
    filled(table(
        "CPU time compared with the best peer in its default configuration",
        &columns,
        rows.collect(),
    ))
}

fn reached(found: Option<f64>, goal: Goal) -> &'static str {
    match found {
        None => "not measured",
        Some(found) if found <= goal.stretch => "yes, and the stretch goal too",
        Some(found) if found <= goal.target => "yes",
        Some(_) => "no",
    }
}

/// The other configurations of tacit, and the best peer with the same network as [`PLACED`].
pub(super) fn beside(summary: &Summary, workloads: &[&'static Workload]) -> Option<DataTable> {
    let mut columns = vec!["workload"];
    columns.extend(FORMS);
    columns.extend([
        "best given peer",
        "its ratio",
        "CPU time of tacit-run, divided by the CPU time of the best peer whose name ends in \
         `-given`",
        "CPU time of tacit-split, divided by the CPU time of the best peer whose name ends in \
         `-given`",
    ]);
    let rows = with_goals(workloads).map(|WorkloadGoal { workload, .. }| {
        let best = summary.best(workload.name);
        let given = summary.best_given(workload.name);
        let both = |row: Option<&Row>, to: Option<&Row>| {
            let minima =
                ratio_of_minima(row, to).map_or_else(String::new, |m| format!(" ({m:.2})"));
            let found =
                ratio(row, to).map_or_else(|| "-".to_owned(), |found| format!("{found:.2}"));
            TableCell::Text(found + &minima)
        };
        let mut row = vec![text(workload.name)];
        row.extend(FORMS.map(|form| both(summary.row(workload.name, form), best)));
        row.push(text(given.map_or("-", |given| given.peer.name)));
        row.push(both(given, best));
        row.push(both(summary.row(workload.name, SUBJECT), given));
        row.push(both(summary.row(workload.name, PLACED), given));
        row
    });
    let title = "CPU time of other configurations, divided by the CPU time of the best peer in its \
                 default configuration. In the last two columns, the divisor is the CPU time of \
                 the best `-given` peer, which uses large TCP segments and one CPU for each side. \
                 Ratios of minima are in parentheses";
    filled(table(title, &columns, rows.collect()))
}

/// A workload with a goal.
struct WorkloadGoal {
    workload: &'static Workload,
    goal: Goal,
}

fn with_goals<'a>(workloads: &'a [&'static Workload]) -> impl Iterator<Item = WorkloadGoal> + 'a {
    let aimed =
        |workload: &&'static Workload| Some(WorkloadGoal { workload, goal: workload.goal? });
    workloads.iter().filter_map(aimed)
}

/// All peers in one workload; `x` is each row divided by the best peer in its default
/// configuration.
pub(super) fn workload(summary: &Summary, workload: &Workload) -> DataTable {
    let unit = workload.kind.unit();
    let cpu = format!("us/{unit}");
    let rate = format!("{unit}/s");
    let columns = [
        "", &cpu, "minimum", "client", "proxy", "proxy", "server", &rate, "p50 us", "p99 us",
        "x CPU", "x min", "x rate", "dropped",
    ];
    let best = summary.best(workload.name);
    let rows = summary.of(workload.name).map(|row| {
        let figures = row.figures;
        let cpu = figures.map_or_else(|| text("not measured"), |f| number(Some(f.cpu_us)));
        let mut cells = vec![text(row.peer.name), cpu, number(Some(row.least_us()))];
        for part in 0..4 {
            let shown = figures.map(|figures| figures.parts_us[part]);
            cells.push(number(shown.filter(|us| *us > 0.0)));
        }
        cells.push(number(figures.map(|figures| figures.rate)));
        let has_latency = workload.kind.unit() == "op";
        let latency = figures.map(|figures| figures.latency).filter(|_| has_latency);
        cells.push(number(latency.map(|latency| latency.p50_us)));
        cells.push(number(latency.map(|latency| latency.p99_us)));
        let rate = figures.zip(best.and_then(|best| best.figures)).map(|(a, b)| a.rate / b.rate);
        cells.push(share(ratio(Some(row), best)));
        cells.push(share(ratio_of_minima(Some(row), best)));
        cells.push(share(rate));
        cells.push(TableCell::Text(format!("{} of {}", row.dropped, row.samples)));
        cells
    });
    let title = format!("{}: {}", workload.name, workload.title);
    table(&title, &columns, rows.collect())
}

/// Short messages beside streams: the latency of each peer, compared with the connections without
/// TLS in the same run.
pub(super) fn fairness(summary: &Summary) -> Option<DataTable> {
    let columns = ["", "op/s", "p50 us", "p99 us", "p99 / p99 of direct", "aims reached"];
    let latency = |row: &Row| Some(row.figures?.latency);
    let direct = summary.row(FAIRNESS, "direct").and_then(latency);
    let rows = summary.of(FAIRNESS).map(|row| {
        let found = latency(row);
        let p99_ratio = found.zip(direct).map(|(found, direct)| found.p99_us / direct.p99_us);
        let rate = row.figures.map(|figures| figures.rate);
        let p50_us = found.map(|found| found.p50_us);
        let reached = match (rate, p50_us, p99_ratio) {
            _ if !row.peer.is_tacit() => "-",
            (Some(rate), Some(p50_us), Some(p99)) => {
                let is_reached = rate >= FAIRNESS_RATE_MIN
                    && p50_us <= FAIRNESS_P50_US_MAX
                    && p99 <= FAIRNESS_P99_RATIO_MAX;
                if is_reached { "yes" } else { "no" }
            }
            _ => "not measured",
        };
        vec![
            text(row.peer.name),
            number(rate),
            number(p50_us),
            number(found.map(|found| found.p99_us)),
            share(p99_ratio),
            text(reached),
        ]
    });
    let title = "100 byte request and reply on 10 connections, while 5 other connections transfer \
                 streams of data";
    filled(table(title, &columns, rows.collect()))
}

/// The same as a bar chart.
pub(super) fn bars(summary: &Summary, workload: &Workload) -> Bars {
    let bars = summary.of(workload.name).map(|row| Bar {
        name: row.peer.name.to_owned(),
        value: row.cpu_us().unwrap_or_else(|| row.least_us()),
        colour: usize::from(row.peer.is_tacit()),
    });
    let unit = format!("CPU us/{}", workload.kind.unit());
    let title = format!("{}: {}", workload.name, workload.title);
    Bars { title, unit, bars: bars.collect() }
}

/// The cost of accounting, from pairs of samples with and without it.
pub(super) fn accounting(samples: &[Sample], workloads: &[&'static Workload]) -> Option<DataTable> {
    let columns = ["workload", "pairs", "without us", "more %", "from %", "to %"];
    let rows = workloads.iter().filter_map(|workload| {
        let of = |peer: &str| -> Vec<f64> {
            let of_both = |it: &&Sample| it.peer == peer && it.workload.name == workload.name;
            samples.iter().filter(of_both).map(Sample::cpu_us).collect()
        };
        let with = of(METERED);
        let without = of(UNMETERED);
        let more: Vec<f64> = with
            .iter()
            .zip(&without)
            .map(|(with, without)| (with / without - 1.0) * 100.0)
            .collect();
        let mean = Mean::of(&more)?;
        Some(vec![
            text(workload.name),
            text(&more.len().to_string()),
            number(Some(median(&without))),
            number(Some(mean.value)),
            number(Some(mean.value - mean.margin)),
            number(Some(mean.value + mean.margin)),
        ])
    });
    filled(table(
        "CPU time with accounting, divided by the CPU time without accounting",
        &columns,
        rows.collect(),
    ))
}

/// tacit compared with OpenSSL in the programs.
pub(super) fn inside(summary: &Summary) -> Option<DataTable> {
    let columns = ["workload", "OpenSSL us", "tacit us", "ratio", "of minima", "aim", "reached"];
    let rows = INSIDE.into_iter().filter_map(|(workload, aim)| {
        let openssl = summary.row(workload, "inproc-openssl")?;
        let tacit = summary.row(workload, SUBJECT);
        let found = ratio(tacit, Some(openssl));
        Some(vec![
            text(workload),
            number(openssl.cpu_us()),
            number(tacit.and_then(Row::cpu_us)),
            share(found),
            share(ratio_of_minima(tacit, Some(openssl))),
            share(Some(aim)),
            text(found.map_or("not measured", |found| if found <= aim { "yes" } else { "no" })),
        ])
    });
    filled(table(
        "CPU time compared with programs that use OpenSSL themselves",
        &columns,
        rows.collect(),
    ))
}

/// Round trips with ChaCha20 compared with OpenSSL in the programs, and the figures for z/OS.
pub(super) fn paper(summary: &Summary) -> Option<DataTable> {
    let columns = [
        "round trip",
        "OpenSSL us",
        "tacit us",
        "longer %",
        "CPU more %",
        "of minima %",
        "on z/OS longer %",
        "aim %",
    ];
    let rows = PAPER.into_iter().filter_map(|(workload, before)| {
        let openssl = summary.row(workload, "inproc-openssl")?;
        let tacit = [SUBJECT, PLACED, "tacit-fixed"]
            .into_iter()
            .find_map(|form| summary.row(workload, form));
        let took = |row: Option<&Row>| Some(1e6 / row?.figures?.rate);
        let before_us = took(Some(openssl));
        let after_us = took(tacit);
        let more = |ratio: f64| (ratio - 1.0) * 100.0;
        let aim = (workload == "1m-chacha20").then_some(PAPER_GOAL);
        Some(vec![
            text(workload),
            number(before_us),
            number(after_us),
            number(after_us.zip(before_us).map(|(after, before)| more(after / before))),
            number(ratio(tacit, Some(openssl)).map(more)),
            number(ratio_of_minima(tacit, Some(openssl)).map(more)),
            number(Some(before)),
            number(aim),
        ])
    });
    let title = "Round trips with ChaCha20-Poly1305 on one connection, compared with programs that \
                 use OpenSSL";
    filled(table(title, &columns, rows.collect()))
}

/// The memory of an idle connection.
pub(super) fn memory(idle: &[IdleMemory], kernel_bytes: u64) -> Option<DataTable> {
    let columns = ["", "client proxy KB", "server proxy KB", "both KB", "kernel KB", "goal KB"];
    let kb = |bytes: f64| TableCell::Number(bytes / 1024.0);
    let rows = idle.iter().map(|idle| {
        let PerSide { client, server } = idle.bytes;
        let goal = idle.peer.starts_with("tacit").then_some(4.0);
        let kernel = kb(kernel_bytes as f64);
        vec![text(idle.peer), kb(client), kb(server), kb(client + server), kernel, number(goal)]
    });
    filled(table(
        "Memory that an idle connection uses in the two proxies",
        &columns,
        rows.collect(),
    ))
}

fn filled(table: DataTable) -> Option<DataTable> {
    (!table.rows.is_empty()).then_some(table)
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<TableCell>>) -> DataTable {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    DataTable { title: title.to_owned(), columns, rows }
}

fn text(text: &str) -> TableCell {
    TableCell::Text(text.to_owned())
}

fn number(value: Option<f64>) -> TableCell {
    value.map_or_else(|| text("-"), TableCell::Number)
}

/// A ratio with two decimal places.
fn share(value: Option<f64>) -> TableCell {
    TableCell::Text(value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}")))
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::{sample, summary};
    use super::*;
    use crate::workload::WORKLOADS;

    #[test]
    fn a_goal_is_reached_by_the_median_and_only_where_it_is_measured() {
        let goal = Goal { target: 0.8, stretch: 0.75 };
        for (found, expected) in [
            (Some(0.75), "yes, and the stretch goal too"),
            (Some(0.8), "yes"),
            (Some(0.81), "no"),
            (None, "not measured"),
        ] {
            assert_eq!(reached(found, goal), expected);
        }
        let measured = summary(&[sample("envoy", 50), sample(SUBJECT, 35)]);
        let text = headline(&measured, &[&WORKLOADS[0]]).unwrap().text();
        assert!(text.contains("envoy") && text.contains("0.70") && text.contains("yes"), "{text}");
        let disturbed = summary(&[sample("envoy", 50), sample(SUBJECT, 90)]);
        let text = headline(&disturbed, &[&WORKLOADS[0]]).unwrap().text();
        assert!(text.contains("not measured") && text.contains("1.80"), "{text}");
    }

    #[test]
    fn short_messages_beside_streams_are_compared_with_direct_connections_of_the_same_run() {
        let beside = crate::workload::workload(FAIRNESS).unwrap();
        let of = |peer, rate: f64, p50_us: f64, p99_us: f64| {
            let latency = crate::measure::Latency { p50_us, p99_us };
            Sample { workload: beside, units: rate, latency, ..sample(peer, 50) }
        };
        let samples = [
            of("direct", 60_000.0, 90.0, 500.0),
            of("envoy", 400.0, 14_000.0, 30_000.0),
            of("tacit-fixed", 16_000.0, 300.0, 1_001.0),
            of(SUBJECT, 15_000.0, 400.0, 1_000.0),
        ];
        let peers = samples.each_ref().map(|sample| crate::peers::peer(sample.peer).unwrap());
        let table = fairness(&Summary::new(&peers, &[beside], &samples)).unwrap();
        let reached = table.rows.iter().map(|row| row.last().cloned().unwrap());
        let reached: Vec<_> = reached.collect();
        assert_eq!(reached, ["-", "-", "no", "yes"].map(text), "{}", table.text());
        assert!(table.text().contains("60.00"), "p99 of envoy: {}", table.text());
        assert!(fairness(&summary(&[sample("envoy", 50)])).is_none(), "not measured");
    }

    #[test]
    fn every_cell_says_how_many_samples_were_dropped() {
        let found = summary(&[sample("envoy", 50), sample("envoy", 60), sample("envoy", 90)]);
        let text = workload(&found, &WORKLOADS[0]).text();
        assert!(text.contains("1 of 3"), "{text}");
    }

    #[test]
    fn what_stands_beside_other_systems_names_workloads_that_exist() {
        let known = |name: &str| WORKLOADS.iter().any(|workload| workload.name == name);
        assert!(known(FAIRNESS) && INSIDE.iter().all(|(name, _)| known(name)));
        assert!(PAPER.iter().all(|(name, _)| known(name)));
    }
}
