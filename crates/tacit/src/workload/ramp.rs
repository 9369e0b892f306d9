//! `ramp`: connections are opened and held, and the CPU time of each step is divided by what it
//! opened. Is the next one dearer because so many are there?
//!
//! Several ramps are run one after the other, and one line is laid through the steps of all of
//! them: how much it rises from nothing held to the end, and how sure that is. What is looked at
//! is the CPU time of the processes named with `--cpu-of`, or of the client where none is.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Args;
use tacit_core::statistics::{Histogram, Line, median};

use super::clocks::{Clocks, Used};
use super::open::{CONNECTIONS, merged, open, record, share};
use super::report::{Cell, Chart, Mark, Report, Series, Table};
use super::watch::{Done, Watch};
use super::{CONNECTIONS_MAX, ClientArgs, SETTLE_TIME, THREADS_MAX, WorkloadError, count, resolve};

/// Connections that are opened and held: what the next one costs
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload ramp client --connect 127.0.0.1:7000 --cpu-of agent=1234
  tacit workload ramp client --connect 127.0.0.1:7000 --connections 600 --step 120 \\
    --cpu-of agent=1234 --beside none.json")]
pub(super) struct RampArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Connections held at the end of a ramp
    #[arg(long, value_name = "N", default_value = "9000", value_parser = count(CONNECTIONS_MAX))]
    connections: usize,
    /// Connections of a step
    #[arg(long, value_name = "N", default_value = "500", value_parser = count(CONNECTIONS_MAX))]
    step: usize,
    /// Ramps
    #[arg(long, value_name = "N", default_value = "5", value_parser = count(RAMPS_MAX))]
    ramps: usize,
    /// How many are opened at a time
    #[arg(long, value_name = "N", default_value = "1", value_parser = count(THREADS_MAX))]
    at_once: usize,
    /// How long others may tidy up between two ramps
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    pause: Duration,
}

const RAMPS_MAX: usize = 100;
/// Ramps below which the interval says little.
const RAMPS_WANTED: usize = 5;
/// Connections opened and closed before the first ramp: caches fill only once.
const WARM_UP_MAX: usize = 200;

/// The steps of one ramp.
type Ramp = Vec<Step>;

/// What one step opened, and what that took.
#[derive(Debug)]
struct Step {
    held: usize,
    opened: usize,
    used: Used,
}

impl Step {
    /// How many were held in its middle.
    fn middle(&self) -> f64 {
        self.held as f64 + self.opened as f64 / 2.0
    }

    /// CPU time for each that it opened.
    fn us(&self, of: impl Fn(&Used) -> u64) -> f64 {
        of(&self.used) as f64 / 1000.0 / self.opened as f64
    }
}

pub(super) fn run(args: &RampArgs) -> Result<(), WorkloadError> {
    if args.step > args.connections {
        return Err(WorkloadError::Usage(format!(
            "--step {} is more than the {} connections of a ramp: take less",
            args.step, args.connections
        )));
    }
    let clocks = Clocks::of(&args.client.output.clocks)?;
    let addresses = resolve(&args.client.connect)?;
    super::allow_descriptors(args.connections)?;
    let (ramps, latency, charts) = drive(&addresses, args, &clocks)?;
    report(args, &ramps, &latency, &clocks, charts).write(&args.client.output)
}

fn drive(
    addresses: &[SocketAddr],
    args: &RampArgs,
    clocks: &Clocks,
) -> Result<(Vec<Ramp>, Histogram, Vec<Chart>), WorkloadError> {
    let warm_up = args.step.min(WARM_UP_MAX);
    share(warm_up, args.at_once, |_, _, _: &mut ()| open(addresses).map(drop))?;
    let done = Done::new(args.at_once);
    let watch = Watch::start(CONNECTIONS, &done, None, args.client.output.progress);
    let (mut ramps, mut latency) = (Vec::new(), Histogram::default());
    for _ in 0..args.ramps {
        std::thread::sleep(args.pause);
        let (mut steps, mut held) = (Vec::new(), Vec::with_capacity(args.connections));
        while held.len() < args.connections {
            let opened = args.step.min(args.connections - held.len());
            let before = clocks.read()?;
            let open_one = |thread, _, (streams, seen): &mut (Vec<TcpStream>, Histogram)| {
                let from = std::time::Instant::now();
                streams.push(open(addresses)?);
                record(seen, from);
                done.count(thread, 1);
                Ok(())
            };
            let parts = share(opened, args.at_once, open_one)?;
            // What others still do for these belongs to them.
            std::thread::sleep(SETTLE_TIME);
            steps.push(Step { held: held.len(), opened, used: clocks.since(&before)? });
            latency.add(&merged(parts.iter().map(|(_, seen)| seen)));
            held.extend(parts.into_iter().flat_map(|(streams, _)| streams));
        }
        ramps.push(steps);
    }
    Ok((ramps, latency, watch.finish()))
}

fn report(
    args: &RampArgs,
    ramps: &[Ramp],
    latency: &Histogram,
    clocks: &Clocks,
    charts: Vec<Chart>,
) -> Report {
    let RampArgs { connections, step, at_once, .. } = args;
    let summary = format!(
        "{} ramps to {connections} connections in steps of {step}, {at_once} at a time",
        ramps.len()
    );
    let mut report = Report::new("ramp", summary);
    report.set("connections", *connections);
    report.set("step", *step);
    report.set("ramps", ramps.len());
    report.set("at_once", *at_once);
    let names = clocks.names();
    let looked_at = match names.get(1..) {
        Some(named) if !named.is_empty() => named.join(" + "),
        _ => "client".to_owned(),
    };
    report.set("line_of", looked_at.clone());
    let mut used = Used::default();
    ramps.iter().flatten().for_each(|step| used.add(&step.used));
    line(&mut report, ramps, *connections, &looked_at);
    report.latency("latency", "open", latency);
    report.cpu(&names, &used, "connection", latency.count() as f64);
    report.tables.push(lines(ramps, &names, *connections));
    report.tables.push(steps(ramps, &names));
    if ramps.len() < RAMPS_WANTED {
        report.note(format!("fewer than {RAMPS_WANTED} ramps: the interval says little"));
    }
    if names.len() == 1 {
        report.note("no process was named with --cpu-of: this is the cost of the client alone");
    }
    report.charts.extend(charts);
    report
}

/// The points of all ramps.
fn points(ramps: &[Ramp], of: impl Fn(&Used) -> u64) -> Vec<(f64, f64)> {
    ramps.iter().flatten().map(|step| (step.middle(), step.us(&of))).collect()
}

fn line(report: &mut Report, ramps: &[Ramp], end: usize, looked_at: &str) {
    let end = end as f64;
    let all = points(ramps, Used::named_ns);
    let mut series = vec![Series::new(looked_at, Mark::Dots, all.clone())];
    if let Some(line) = Line::through(&all) {
        let last = line.intercept + line.slope * end;
        report.figure("line_at_0_us", "CPU of a connection with none held", "us", line.intercept);
        report.figure("line_at_end_us", "CPU of a connection at the end", "us", last);
        series.push(Series::new("line", Mark::Line, vec![(0.0, line.intercept), (end, last)]));
        if let Some(rise) = line.rise(end) {
            report.figure("rise_percent", "rise from none held to the end", "%", rise.percent);
            report.figure("rise_low_percent", "  95 % interval from", "%", rise.low);
            report.figure("rise_high_percent", "  to", "%", rise.high);
        }
    } else {
        report.note("too few steps to lay a line through: take more ramps or smaller steps");
    }
    report.charts.push(Chart {
        title: "CPU of a new connection by connections held".to_owned(),
        x: "connections held".to_owned(),
        y: "us".to_owned(),
        series,
    });
}

/// A line for each component.
fn lines(ramps: &[Ramp], names: &[String], end: usize) -> Table {
    let rows = names.iter().enumerate().filter_map(|(at, name)| {
        let of = |used: &Used| used.components_ns.get(at).copied().unwrap_or(0);
        let line = Line::through(&points(ramps, of))?;
        let rise = line.rise(end as f64);
        let rise = rise.map_or([f64::NAN; 3], |rise| [rise.percent, rise.low, rise.high]);
        let last = line.intercept + line.slope * end as f64;
        let numbers = [line.intercept, last].into_iter().chain(rise).map(Cell::Number);
        Some([Cell::Text(name.clone())].into_iter().chain(numbers).collect())
    });
    let columns = ["component", "us at none", "us at the end", "rise %", "from", "to"];
    Table {
        title: "A line for each component".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Medians of the ramps, step by step.
fn steps(ramps: &[Ramp], names: &[String]) -> Table {
    let count = ramps.first().map_or(0, Vec::len);
    let row = |at: usize| {
        let steps: Vec<&Step> = ramps.iter().filter_map(|ramp| ramp.get(at)).collect();
        let first = steps.first()?;
        let of = |component: usize| {
            let value = |step: &&Step| {
                step.us(|used| used.components_ns.get(component).copied().unwrap_or(0))
            };
            median(&steps.iter().map(value).collect::<Vec<_>>())
        };
        let held = format!("{}-{}", first.held, first.held + first.opened);
        let numbers = (0..names.len()).map(|component| Cell::Number(of(component)));
        Some([Cell::Text(held)].into_iter().chain(numbers).collect())
    };
    let mut columns = vec!["connections held".to_owned()];
    columns.extend(names.iter().map(|name| format!("{name} us")));
    Table {
        title: "CPU of a new connection, medians of the ramps".to_owned(),
        columns,
        rows: (0..count).filter_map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::clocks::ClocksArgs;
    use super::super::open::tests::served;
    use super::*;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        args: RampArgs,
    }

    fn args(words: &[&str]) -> RampArgs {
        let words = ["", "--connect", "here", "--pause", "10ms"].iter().chain(words);
        Words::try_parse_from(words).unwrap().args
    }

    fn step(held: usize, us: u64) -> Step {
        let components_ns = vec![1_000_000, us * 1000 * 100];
        let used = Used { seconds: 1.0, components_ns, ..Used::default() };
        Step { held, opened: 100, used }
    }

    #[test]
    fn steps_hold_what_was_opened_before_them() {
        let args = args(&["--connections", "50", "--step", "20", "--ramps", "2"]);
        let clocks = Clocks::of(&ClocksArgs::default()).unwrap();
        let (ramps, latency, _) = drive(&[served()], &args, &clocks).unwrap();
        assert_eq!(latency.count(), 100);
        for ramp in &ramps {
            let steps: Vec<_> = ramp.iter().map(|step| (step.held, step.opened)).collect();
            assert_eq!(steps, [(0, 20), (20, 20), (40, 10)]);
            assert!(ramp.iter().all(|step| step.used.named_ns() > 0));
        }
    }

    /// 100 us for the first, 10 us more for every 100 held: in the middle of the steps 105, 115...
    #[test]
    fn a_rising_cost_is_found_with_its_end_points() {
        let ramp = || (0..4_usize).map(|at| step(at * 100, 105 + 10 * at as u64)).collect();
        let ramps: Vec<Ramp> = vec![ramp(), ramp()];
        let clocks = Clocks::called(&["client", "agent"]);
        let args = args(&["--connections", "400", "--step", "100"]);
        let report = report(&args, &ramps, &Histogram::default(), &clocks, Vec::new());
        let figures = &report.json()["figures"];
        assert_eq!(figures["line_at_0_us"], 100.0);
        assert_eq!(figures["line_at_end_us"], 140.0);
        for key in ["rise_percent", "rise_low_percent", "rise_high_percent"] {
            assert_eq!(figures[key], 40.0, "{key}");
        }
        let table = &report.json()["tables"][2]["rows"];
        assert_eq!(table[3]["connections held"], "300-400");
        assert_eq!(table[3]["agent us"], 135.0);
        assert_eq!(table[3]["client us"], 10.0);
    }
}
