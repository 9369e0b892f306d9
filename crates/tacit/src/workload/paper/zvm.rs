//! Repeats the measurement of a paper about the SSL server (TLS proxy) of z/VM, a mainframe
//! hypervisor (see `docs/papers.md`). The paper measures how the CPU time of a new connection
//! depends on the number of open connections. The paper measures servers that verify client
//! certificates, and servers that request none.
//!
//! The paper's client opened 600 Telnet connections, in five steps of 120 connections. The paper
//! gives one CPU time for each step. For the paper's column "7.2", the server requests and verifies
//! a client certificate. For the columns "7.1" and "7.2+CCC_NONE", the server requests none.
//!
//! This measurement uses an agent as the server, with `client-cert = "preferred"` for "7.2", and
//! with `client-cert = "none"` for the other columns. The client presents a certificate on request.

use serde_json::Value;
use tacit_core::page::{Chart, Series, SeriesMark};
use tacit_core::statistics::Point;

use super::agents::{self, ANYWHERE, Protection, Route};
use super::cell::{CellSamples, Gap, PaperCell};
use super::sheet::{PaperChart, PaperSheet, PaperTable};
use super::stage::Stage;

/// A published row: open connections, and milliseconds of 7.1, 7.2, their difference, and
/// 7.2+CCC_NONE.
type PublishedRow = (&'static str, [f64; 4]);

const PUBLISHED: [PublishedRow; 5] = [
    ("0-120", [7.16, 31.34, 24.18, 7.14]),
    ("121-240", [9.40, 32.53, 23.13, 9.0]),
    ("241-360", [12.66, 37.49, 24.83, 12.4]),
    ("361-480", [15.91, 38.70, 22.79, 15.5]),
    ("481-600", [20.90, 45.66, 24.76, 20.6]),
];

const STEP: usize = 120;
const CONNECTIONS: usize = 600;

/// The routes: as the columns 7.1, 7.2 and 7.2+CCC_NONE of the paper, and one whose agent verifies
/// each chain again.
const NONE: &str = "none";
const CHECKED: &str = "preferred";
const NONE_AGAIN: &str = "none-again";
const UNCACHED: &str = "preferred-uncached";

const SUITE: &str = "TLS_AES_128_GCM_SHA256";

pub(super) fn measure(stage: &Stage) -> PaperSheet {
    let mut samples = CellSamples::default();
    stage.progress("zvm: measuring the CPU time of new connections while up to 600 are open");
    ramps(stage, &mut samples, &[(NONE, "none"), (CHECKED, "preferred"), (NONE_AGAIN, "none")], "");
    stage.progress(
        "zvm: measuring the CPU time of new connections while up to 600 are open, without the \
         cache of verified chains",
    );
    ramps(stage, &mut samples, &[(UNCACHED, "preferred")], "chain-cache = false");
    sheet(&samples)
}

/// Measures ramps over routes with these values of `client-cert`.
fn ramps(
    stage: &Stage,
    samples: &mut CellSamples,
    wanted: &[(&'static str, &'static str)],
    settings: &str,
) {
    let routes: Vec<_> = (1..)
        .zip(wanted)
        .map(|(number, (name, client_cert))| Route {
            name,
            number,
            protection: Protection::Tls { version: "1.3", suite: SUITE, client_cert },
        })
        .collect();
    let report = report(stage, &routes, settings);
    for (at, route) in routes.iter().enumerate() {
        let figures = report.as_ref().map_err(Clone::clone);
        let figures = figures.and_then(|report| figures_of(report, route, at));
        samples.add(route.name, figures);
    }
}

fn report(stage: &Stage, routes: &[Route], settings: &str) -> Result<Value, Gap> {
    let pair = agents::start(stage, routes, settings, ANYWHERE)?;
    let [connections, step] = [CONNECTIONS, STEP].map(|count| count.to_string());
    let ramps = stage.extent.rounds.to_string();
    let [first, others @ ..] = routes else { return Err(Gap::failed("no route")) };
    let mut words: Vec<String> = ["ramp", "client", "--connections", &connections, "--step", &step]
        .into_iter()
        .chain(["--ramps", &ramps, "--pause", "500ms", "--connect", &first.entry()])
        .chain(["--label", first.name, "--cpu-of", &pair.far.cpu_of()])
        .map(str::to_owned)
        .collect();
    for other in others {
        words.extend(["--also".to_owned(), format!("{}={}", other.name, other.entry())]);
    }
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    // Only the far agent is measured, so the report cannot state whether other programs disturbed.
    stage.report(&[], &words)
}

/// The CPU time of the far agent for a new connection in each step.
fn figures_of(report: &Value, route: &Route, at: usize) -> Result<Vec<(String, f64)>, Gap> {
    let tables = report["tables"].as_array().into_iter().flatten();
    let starts = |table: &&Value, title: &str| {
        table["title"].as_str().is_some_and(|found| found.starts_with(title))
    };
    // With one route only the table of the median has the steps.
    let by_route = "CPU time of a new connection to each address of --connect and --also";
    let of_one = "CPU time of a new connection (median";
    let mut tables: Vec<_> = tables.collect();
    tables.sort_by_key(|table| !starts(table, by_route));
    let table = tables
        .into_iter()
        .find(|table| starts(table, by_route) || (at == 0 && starts(table, of_one)))
        .ok_or_else(|| Gap::failed("the report of the workload `ramp` has no steps"))?;
    let rows = table["rows"].as_array().into_iter().flatten();
    let columns = [format!("{} us", route.name), "far us".to_owned()];
    let figures = rows.zip(PUBLISHED).map(|(row, (step, _))| {
        let value = columns.iter().find_map(|column| row[column].as_f64());
        let lack = || {
            Gap::failed("the report of the workload `ramp` has no CPU time for one of the steps")
        };
        let value = value.ok_or_else(lack)?;
        Ok((step.to_owned(), value))
    });
    figures.collect()
}

fn sheet(samples: &CellSamples) -> PaperSheet {
    let columns = [
        "open connections",
        "7.1, ms",
        "tacit: CPU time with client-cert none, us",
        "7.2, ms",
        "tacit: CPU time with client-cert preferred, us",
        "tacit: CPU time with client-cert preferred, without the chain cache, us",
        "delta (7.2 - 7.1), ms",
        "tacit: CPU time added by client certificates, us",
        "tacit: CPU time added by client certificates, without the chain cache, us",
        "7.2+CCC_NONE, ms",
        "tacit: CPU time with client-cert none, second measurement, us",
    ];
    let title = "CPU time of the TLS server for a new connection";
    let mut table = PaperTable::new("connection-cpu", title, &columns);
    for (step, [old, new, delta, none]) in PUBLISHED {
        let difference = |with: &str| {
            let pair = samples
                .median(with, step)
                .and_then(|with| samples.median(NONE, step).map(|without| with - without));
            PaperCell::from(pair)
        };
        table.rows.push(vec![
            PaperCell::name(step),
            PaperCell::Published(old),
            samples.cell(NONE, step),
            PaperCell::Published(new),
            samples.cell(CHECKED, step),
            samples.cell(UNCACHED, step),
            PaperCell::Published(delta),
            difference(CHECKED),
            difference(UNCACHED),
            PaperCell::Published(none),
            samples.cell(NONE_AGAIN, step),
        ]);
    }
    let mut sheet = PaperSheet {
        key: "zvm",
        title: "verification of client certificates by the z/VM SSL server",
        method:
            "The client opens 600 connections, one after another. The CPU time is measured for \
                 every 120 connections. The published times are from z/VM 7.1 and 7.2, with \
                 ECDHE-RSA and AES-128. The measured times are from the agent that accepts TLS, \
                 with client-cert set to none or preferred. The measured handshakes are full TLS \
                 1.3 handshakes"
                .to_owned(),
        tables: vec![table],
        charts: charts(samples),
        notes: Vec::new(),
    };
    sheet.note(
        "the published times rise with the number of open connections; the measured times \
         should not rise, because the agent does not search a list of connections",
    );
    sheet.note(
        "the delta is the CPU time to request and verify a client certificate. The agent verifies \
         the signature of each handshake. With the cache of verified chains (the default), the \
         agent verifies each certificate chain only once",
    );
    sheet
}

fn charts(samples: &CellSamples) -> Vec<PaperChart> {
    let middle = |at: usize| (at * STEP + STEP / 2) as f64;
    let lines = |title: &str, unit: &str, series: Vec<(&str, Vec<Option<f64>>)>| {
        let series = series.into_iter().map(|(name, values)| {
            let points = values.into_iter().enumerate();
            let points = points.filter_map(|(at, value)| Some(Point { x: middle(at), y: value? }));
            Series::new(name, SeriesMark::Line, points.collect())
        });
        PaperChart::Lines(Chart {
            title: title.to_owned(),
            x: "open connections".to_owned(),
            y: unit.to_owned(),
            series: series.collect(),
        })
    };
    let published = |at: usize| PUBLISHED.iter().map(|(_, row)| row.get(at).copied()).collect();
    let measured = |name: &str| {
        PUBLISHED.iter().map(|(step, _)| samples.median(name, step).ok()).collect::<Vec<_>>()
    };
    let names = [NONE, CHECKED, UNCACHED];
    vec![
        lines(
            "published: CPU time of a new connection",
            "ms",
            vec![("7.1", published(0)), ("7.2", published(1)), ("7.2+CCC_NONE", published(3))],
        ),
        lines(
            "measured: CPU time of a new connection",
            "us",
            names.into_iter().map(|name| (name, measured(name))).collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route(name: &'static str) -> Route {
        Route { name, number: 1, protection: Protection::Permit }
    }

    #[test]
    fn steps_are_read_by_route_and_without_one() {
        let row = |none: f64, checked: f64| json!({ "none us": none, "preferred us": checked });
        let rows: Vec<_> = (1..=5).map(|at| row(f64::from(at), f64::from(10 * at))).collect();
        let title = "CPU time of a new connection to each address of --connect and --also (median \
                     of all ramps; a ramp opens all connections once)";
        let report = json!({ "tables": [{ "title": title, "rows": rows }] });
        let figures = figures_of(&report, &route(CHECKED), 1).unwrap();
        assert_eq!(figures[4], ("481-600".to_owned(), 50.0));
        let rows: Vec<_> = (1..=5).map(|at| json!({ "client us": 1, "far us": at })).collect();
        let title = "CPU time of a new connection (median of all ramps; a ramp opens all \
                     connections once)";
        let report = json!({ "tables": [{ "title": title, "rows": rows }] });
        assert_eq!(figures_of(&report, &route(UNCACHED), 0).unwrap()[2].1, 3.0);
        assert!(figures_of(&json!({}), &route(NONE), 0).is_err());
    }

    #[test]
    fn the_table_has_the_published_rows_and_the_difference_of_measured_ones() {
        let mut samples = CellSamples::default();
        let figures = |us| Ok(PUBLISHED.iter().map(|(step, _)| ((*step).to_owned(), us)).collect());
        samples.add(NONE, figures(200.0));
        samples.add(CHECKED, figures(260.0));
        samples.add(UNCACHED, Err(Gap::failed("it ended")));
        samples.add(NONE_AGAIN, figures(201.0));
        let sheet = sheet(&samples);
        let row = &sheet.tables[0].rows[0];
        assert_eq!(row[1], PaperCell::Published(7.16));
        assert_eq!(row[7], PaperCell::Measured(60.0));
        assert!(matches!(row[8], PaperCell::Empty(_)));
        assert!(PUBLISHED.iter().all(|(_, [old, new, delta, _])| (new - old - delta).abs() < 0.01));
    }
}
