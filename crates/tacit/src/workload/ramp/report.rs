//! Writes the report of the `ramp` workload. The report contains straight lines that are fitted to
//! the measured values. If the workload uses several addresses, the report also compares the
//! results of these addresses.

use tacit_core::page::{Chart, DataTable, Series, SeriesMark, TableCell};
use tacit_core::statistics::{FittedLine, Mean, Point, median};

use super::super::clocks::{Clocks, CpuUsage};
use super::super::ledgers;
use super::super::report::Report;
use super::arguments::RampArgs;
use super::steps::{Ramp, RouteResults, Step};

/// With fewer ramps, the confidence interval is not reliable.
const RAMPS_WANTED: usize = 5;

/// A quantity to report: the CPU time of one component, or of several together.
struct Quantity<'a> {
    name: String,
    ns: Box<dyn Fn(&CpuUsage) -> u64 + 'a>,
}

pub(super) fn report(
    args: &RampArgs,
    results: &[RouteResults],
    clocks: &Clocks,
    charts: Vec<Chart>,
) -> Report {
    let RampArgs { connections, step, at_once, ramps, .. } = args;
    let order =
        if results.len() > 1 { "; after each ramp, the client uses the next address" } else { "" };
    let summary = format!(
        "{ramps} ramps for each address: a ramp opens {connections} connections in steps of \
         {step}, at most {at_once} at a time{order}"
    );
    let mut report = Report::new("ramp", summary);
    report.set("connections", *connections);
    report.set("step", *step);
    report.set("ramps", *ramps);
    report.set("at_once", *at_once);
    report.set("ways", results.iter().map(|results| results.route.clone()).collect::<Vec<_>>());
    let names = clocks.names();
    let looked_at = match names.get(1..) {
        Some(named) if !named.is_empty() => named.join(" + "),
        _ => "client".to_owned(),
    };
    report.set("line_of", looked_at.clone());
    if let Some(first) = results.first() {
        one_route(&mut report, first, &names, *connections, &looked_at);
    }
    if let [first, others @ ..] = results
        && !others.is_empty()
    {
        for other in others {
            report.tables.push(lines(other, &names, *connections));
            let count = other.latency.count() as f64;
            let usage = ledgers::tables(&used(&other.ramps).ledgers, "connection", count);
            report.tables.extend(usage.into_iter().map(|table| titled(table, &other.route)));
        }
        beside(&mut report, first, others, &quantities(&names, &looked_at));
        report.tables.push(by_route(results));
        report.charts.push(chart_by_route(results));
    }
    if *ramps < RAMPS_WANTED {
        report.note(format!(
            "there are fewer than {RAMPS_WANTED} ramps, so the confidence intervals are not \
             reliable; use more ramps (--ramps)"
        ));
    }
    if names.len() == 1 {
        report.note(
            "without --cpu-of or --ledger-of, this report covers only the CPU time of the client",
        );
    }
    report.charts.extend(charts);
    report
}

fn one_route(
    report: &mut Report,
    results: &RouteResults,
    names: &[String],
    end: usize,
    looked_at: &str,
) {
    line(report, &results.ramps, end, looked_at);
    report.latency("latency", "open", &results.latency);
    let used = used(&results.ramps);
    report.cpu(names, &used, "connection", results.latency.count() as f64);
    report.tables.push(lines(results, names, end));
    report.tables.push(steps(&results.ramps, names));
}

fn titled(mut table: DataTable, route: &str) -> DataTable {
    table.title = format!("{}: {route}", table.title);
    table
}

fn used(ramps: &[Ramp]) -> CpuUsage {
    let mut used = CpuUsage::default();
    ramps.iter().flatten().for_each(|step| used.add(&step.used));
    used
}

fn component(at: usize) -> impl Fn(&CpuUsage) -> u64 {
    move |used| used.components_ns.get(at).copied().unwrap_or(0)
}

/// The sum of the measured components, and each of them.
fn quantities<'a>(names: &[String], looked_at: &str) -> Vec<Quantity<'a>> {
    let mut quantities =
        vec![Quantity { name: looked_at.to_owned(), ns: Box::new(CpuUsage::named_ns) }];
    if names.len() > 2 {
        let each = names.iter().enumerate().skip(1);
        quantities.extend(
            each.map(|(at, name)| Quantity { name: name.clone(), ns: Box::new(component(at)) }),
        );
    }
    quantities
}

/// The points of all ramps.
fn points(ramps: &[Ramp], of: impl Fn(&CpuUsage) -> u64) -> Vec<Point> {
    let point = |step: &Step| Point { x: step.middle(), y: step.us(&of) };
    ramps.iter().flatten().map(point).collect()
}

fn line(report: &mut Report, ramps: &[Ramp], end: usize, looked_at: &str) {
    let end = end as f64;
    let all = points(ramps, CpuUsage::named_ns);
    let mut series = vec![Series::new(looked_at, SeriesMark::Dots, all.clone())];
    if let Some(line) = FittedLine::through(&all) {
        let last = line.intercept + line.slope * end;
        report.figure(
            "line_at_0_us",
            "CPU time of a new connection while no other connection is open (linear fit)",
            "us",
            line.intercept,
        );
        report.figure(
            "line_at_end_us",
            "CPU time of a new connection while all other connections are open (linear fit)",
            "us",
            last,
        );
        let ends = vec![Point { x: 0.0, y: line.intercept }, Point { x: end, y: last }];
        series.push(Series::new("line", SeriesMark::Line, ends));
        if let Some(rise) = line.rise(end) {
            report.figure(
                "rise_percent",
                "increase of the CPU time from the first to the last connection",
                "%",
                rise.percent,
            );
            report.figure("rise_low_percent", "  95 % interval from", "%", rise.low);
            report.figure("rise_high_percent", "  to", "%", rise.high);
        }
    } else {
        report.note(
            "too few steps for a linear fit: use more ramps (--ramps) or smaller steps (--step)",
        );
    }
    report.charts.push(Chart {
        title: "CPU time of a new connection, by the number of open connections".to_owned(),
        x: "open connections".to_owned(),
        y: "us".to_owned(),
        series,
    });
}

/// The fitted line of each component.
fn lines(results: &RouteResults, names: &[String], end: usize) -> DataTable {
    let rows = names.iter().enumerate().filter_map(|(at, name)| {
        let line = FittedLine::through(&points(&results.ramps, component(at)))?;
        let rise =
            line.rise(end as f64).map_or([f64::NAN; 3], |rise| [rise.percent, rise.low, rise.high]);
        let last = line.intercept + line.slope * end as f64;
        let numbers = [line.intercept, last].into_iter().chain(rise).map(TableCell::Number);
        Some([TableCell::Text(name.clone())].into_iter().chain(numbers).collect())
    });
    let columns = [
        "component",
        "us, no open connections",
        "us, all connections open",
        "rise %",
        "from",
        "to",
    ];
    DataTable {
        title: format!(
            "CPU time of a new connection on route {route}, by component (linear fit)",
            route = results.route
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Medians of all ramps for each step.
fn steps(ramps: &[Ramp], names: &[String]) -> DataTable {
    let mut columns = vec!["open connections".to_owned()];
    columns.extend(names.iter().map(|name| format!("{name} us")));
    let row = |at: usize| {
        let of = |name: usize| TableCell::Number(step_us(ramps, at, component(name)));
        Some([held(ramps, at)?].into_iter().chain((0..names.len()).map(of)).collect())
    };
    DataTable {
        title: "CPU time of a new connection (median of all ramps; a ramp opens all connections \
                once)"
            .to_owned(),
        columns,
        rows: (0..step_count(ramps)).filter_map(row).collect(),
    }
}

fn step_count(ramps: &[Ramp]) -> usize {
    ramps.first().map_or(0, Vec::len)
}

/// The range of open connections during a step.
fn held(ramps: &[Ramp], at: usize) -> Option<TableCell> {
    let step = ramps.first()?.get(at)?;
    Some(TableCell::Text(format!("{}-{}", step.held, step.held + step.opened)))
}

/// The median of one step over all ramps.
fn step_us(ramps: &[Ramp], at: usize, of: impl Fn(&CpuUsage) -> u64) -> f64 {
    let steps = ramps.iter().filter_map(|ramp| ramp.get(at));
    median(&steps.map(|step| step.us(&of)).collect::<Vec<_>>())
}

/// The difference of each route to the first, from pairs of consecutive ramps.
fn beside(
    report: &mut Report,
    first: &RouteResults,
    others: &[RouteResults],
    quantities: &[Quantity<'_>],
) {
    let mut rows = Vec::new();
    for Quantity { name, ns } in quantities {
        let each = |results: &RouteResults| -> Vec<f64> {
            results.ramps.iter().map(|ramp| ramp_us(ramp, ns)).collect()
        };
        let own = each(first);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let row = |route: &str, us: f64, more: [f64; 3]| {
            let texts = [route, name].map(|text| TableCell::Text(text.to_owned()));
            texts.into_iter().chain([us].into_iter().chain(more).map(TableCell::Number)).collect()
        };
        rows.push(row(&first.route, mean(&own), [0.0; 3]));
        for other in others {
            let theirs = each(other);
            let pairs: Vec<_> = theirs.iter().zip(&own).map(|(one, other)| one - other).collect();
            let more = match Mean::of(&pairs) {
                Some(Mean { value, margin }) => [value, value - margin, value + margin],
                None => [mean(&pairs), f64::NAN, f64::NAN],
            };
            rows.push(row(&other.route, mean(&theirs), more));
        }
    }
    let columns =
        ["route", "component", "us", &format!("difference to {}", first.route), "from", "to"];
    report.tables.push(DataTable {
        title: "CPU time of a connection to each address (route) of --connect and --also, and the \
                difference from the first address (95 % confidence interval)"
            .to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    });
}

/// CPU time per connection in one whole ramp.
fn ramp_us(ramp: &Ramp, of: impl Fn(&CpuUsage) -> u64) -> f64 {
    let opened: usize = ramp.iter().map(|step| step.opened).sum();
    let ns: u64 = ramp.iter().map(|step| of(&step.used)).sum();
    ns as f64 / 1000.0 / opened as f64
}

/// A table with a column for each route: medians of all ramps for each step.
fn by_route(results: &[RouteResults]) -> DataTable {
    let count = results.first().map_or(0, |first| step_count(&first.ramps));
    let row = |at: usize| {
        let first = held(&results.first()?.ramps, at)?;
        let of = |results: &RouteResults| {
            TableCell::Number(step_us(&results.ramps, at, CpuUsage::named_ns))
        };
        Some([first].into_iter().chain(results.iter().map(of)).collect())
    };
    let mut columns = vec!["open connections".to_owned()];
    columns.extend(results.iter().map(|results| format!("{} us", results.route)));
    DataTable {
        title: "CPU time of a new connection to each address of --connect and --also (median of \
                all ramps; a ramp opens all connections once)"
            .to_owned(),
        columns,
        rows: (0..count).filter_map(row).collect(),
    }
}

fn chart_by_route(results: &[RouteResults]) -> Chart {
    let series = results.iter().map(|results| {
        let middle = |at: usize| results.ramps.first()?.get(at).map(Step::middle);
        let up = |at| step_us(&results.ramps, at, CpuUsage::named_ns);
        let point = |at| Some(Point { x: middle(at)?, y: up(at) });
        let points = (0..step_count(&results.ramps)).filter_map(point);
        Series::new(&results.route, SeriesMark::Line, points.collect())
    });
    Chart {
        title: "CPU time of a new connection to each address of --connect and --also".to_owned(),
        x: "open connections".to_owned(),
        y: "us".to_owned(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use tacit_core::statistics::Histogram;

    use super::super::arguments::tests::args;
    use super::*;

    fn step(held: usize, us: u64) -> Step {
        let components_ns = vec![1_000_000, us * 1000 * 100];
        let used = CpuUsage { seconds: 1.0, components_ns, ..CpuUsage::default() };
        Step { held, opened: 100, used }
    }

    /// 100 us for the first, 10 us more for every 100 held: in the middle of the steps 105, 115...
    fn results(route: &str, more: [u64; 2]) -> RouteResults {
        let ramp = |more| (0..4_usize).map(move |at| step(at * 100, more + 105 + 10 * at as u64));
        let ramps = more.into_iter().map(|more| ramp(more).collect()).collect();
        RouteResults { route: route.to_owned(), ramps, latency: Histogram::default() }
    }

    fn reported(results: &[RouteResults]) -> serde_json::Value {
        let args = args(&["--connections", "400", "--step", "100", "--ramps", "2"]);
        report(&args, results, &Clocks::called(&["client", "agent"]), Vec::new()).json()
    }

    fn table<'a>(report: &'a serde_json::Value, title: &str) -> &'a serde_json::Value {
        let tables = report["tables"].as_array().unwrap().iter();
        let mut found = tables.filter(|table| table["title"].as_str().unwrap().starts_with(title));
        &found.next().unwrap()["rows"]
    }

    #[test]
    fn a_rising_cost_is_fitted_with_its_end_points() {
        let report = reported(&[results("none", [0, 0])]);
        let figures = &report["figures"];
        assert_eq!(figures["line_at_0_us"], 100.0);
        assert_eq!(figures["line_at_end_us"], 140.0);
        for key in ["rise_percent", "rise_low_percent", "rise_high_percent"] {
            assert_eq!(figures[key], 40.0, "{key}");
        }
        let table = table(&report, "CPU time of a new connection (median");
        assert_eq!(table[3]["open connections"], "300-400");
        assert_eq!(table[3]["agent us"], 135.0);
        assert_eq!(table[3]["client us"], 10.0);
    }

    #[test]
    fn the_difference_of_routes_is_the_mean_of_pairs_with_its_interval() {
        let report = reported(&[results("none", [0, 4]), results("preferred", [20, 28])]);
        let rows = table(&report, "CPU time of a connection to each address (route) of");
        assert_eq!((&rows[0]["route"], &rows[0]["us"]), (&"none".into(), &122.0.into()));
        let other = &rows[1];
        assert_eq!((&other["route"], &other["component"]), (&"preferred".into(), &"agent".into()));
        assert_eq!((&other["us"], &other["difference to none"]), (&144.0.into(), &22.0.into()));
        // 20 and 24: two pairs that differ by 4 deviate by 2 from their mean.
        assert_eq!((&other["from"], &other["to"]), (&(-3.412).into(), &47.412.into()));
        let steps = table(&report, "CPU time of a new connection to each address of");
        assert_eq!(steps[0]["none us"], 107.0);
        assert_eq!(steps[3]["preferred us"], 159.0);
        assert_eq!(
            table(
                &report,
                "CPU time of a new connection on route preferred, by component (linear fit)"
            )[1]["us, no open connections"],
            124.0
        );
    }
}
