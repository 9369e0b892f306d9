//! Formats the CPU time of the agent as tables: by rule, component, program or connection.

use tacit_core::meter::Component;

use super::table::lay_out;
use super::width::TextWidth;
use crate::control::display::connections::ConnectionDisplay;
use crate::ledger::costs::{ByCpuPlace, Costs, Kind, RuleCosts, RunCosts, percent};

/// The meaning of the rows of `tacit show costs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// A rule; further rows are the agent itself, and the packets of IPsec tunnels.
    #[default]
    Rule,
    /// A component of the agent, such as handshake or receive.
    Component,
    /// A run: CPU time of its program, and of the agent on its behalf.
    Program,
    /// An open connection.
    Connection,
}

/// The ledger as text. [`connections`] renders the costs of connections.
#[must_use]
pub fn render(costs: &Costs, by: By, width: TextWidth) -> String {
    if costs.accounting.clock_reads == 0 && costs.accounting.stamps == 0 {
        return width.prose(
            "the ledger is empty: `accounting = false` is set in [agent] of the policy, or the \
             agent used no CPU time in this interval\n",
        );
    }
    let rows = match by {
        By::Rule | By::Connection => rules(costs),
        By::Component => components(costs),
        By::Program => runs(costs),
    };
    let optional = &OPTIONAL_COLUMNS;
    lay_out(&rows, width.without(optional)) + &width.prose(&sums(costs))
}

/// The columns that a small terminal does not have. The lines below the table have the sums of
/// the first three.
const OPTIONAL_COLUMNS: [&str; 7] =
    ["ELIGIBLE%", "ENGINE%", "GENERAL%", "US/CONN", "HANDSH", "SHARE%", "US/MSG"];

fn rules(costs: &Costs) -> Vec<Vec<String>> {
    let mut rows = vec![headings(&[
        "RULE",
        "CONN",
        "HANDSH",
        "MSGS",
        "MB",
        "CPU-MS",
        "SHARE%",
        "US/CONN",
        "US/MSG",
        "US/MB",
        "GENERAL%",
        "ENGINE%",
        "ELIGIBLE%",
    ])];
    for rule in &costs.rules {
        let of_one_cpu = |us: f64| figure(percent(us, costs.interval_s * 1e6));
        let places = rule.places_us();
        rows.push(vec![
            name(rule),
            rule.connections.to_string(),
            rule.handshakes.to_string(),
            (rule.messages_sent + rule.messages_received).to_string(),
            figure((rule.bytes_sent + rule.bytes_received) as f64 / 1e6),
            figure(rule.total_us() / 1000.0),
            figure(percent(rule.total_us(), costs.agent_cpu_us)),
            perhaps(rule.cpu_us_per_connection),
            perhaps(rule.cpu_us_per_message),
            perhaps(rule.cpu_us_per_mb),
            of_one_cpu(places.general),
            of_one_cpu(places.engine),
            of_one_cpu(places.eligible),
        ]);
    }
    rows
}

fn components(costs: &Costs) -> Vec<Vec<String>> {
    let headings_of = ["COMPONENT", "CPU-MS", "SHARE%", "GENERAL-MS", "ENGINE-MS", "ELIGIBLE-MS"];
    let mut rows = vec![headings(&headings_of)];
    for component in Component::ALL {
        let cells = costs.rules.iter().filter_map(|rule| rule.cpu_us.get(&component));
        let sum = cells.fold(ByCpuPlace::default(), |sum, cell| sum.zip(cell, |a, b| a + b));
        rows.push(vec![
            component.word().to_owned(),
            figure(sum.sum() / 1000.0),
            figure(percent(sum.sum(), costs.agent_cpu_us)),
            figure(sum.general / 1000.0),
            figure(sum.engine / 1000.0),
            figure(sum.eligible / 1000.0),
        ]);
    }
    rows.push(vec![
        "(uncaptured)".into(),
        figure(costs.uncaptured_cpu_us / 1000.0),
        figure(costs.uncaptured_percent),
        "-".into(),
        "-".into(),
        "-".into(),
    ]);
    rows
}

fn runs(costs: &Costs) -> Vec<Vec<String>> {
    let headings_of = [
        "RUN",
        "PROGRAM",
        "USER",
        "PROGRAM-MS",
        "AGENT-MS",
        "AGENT/PROGRAM%",
        "CONN",
        "MSGS",
        "MB",
    ];
    let mut rows = vec![headings(&headings_of)];
    for run in &costs.runs {
        let RunCosts { id, name, user, program_cpu_us: program, agent_cpu_us: agent, .. } = run;
        let share = program.filter(|us| *us > 0.0).map(|us| percent(*agent, us));
        rows.push(vec![
            id.to_string(),
            name.clone(),
            user.clone(),
            perhaps(program.map(|us| us / 1000.0)),
            figure(agent / 1000.0),
            perhaps(share),
            run.connections.to_string(),
            (run.messages_sent + run.messages_received).to_string(),
            figure((run.bytes_sent + run.bytes_received) as f64 / 1e6),
        ]);
    }
    rows
}

/// The open connections with the CPU time of each.
#[must_use]
pub fn connections(connections: &[ConnectionDisplay], width: TextWidth) -> String {
    let titles = ["ID", "RULE", "RUN", "PROGRAM", "AGE", "MSGS", "MB", "CPU-MS", "US/MSG"];
    let mut rows = vec![headings(&titles)];
    for connection in connections {
        let ConnectionDisplay { id, rule, run, age_s, cpu_us, .. } = connection;
        let messages = u64::from(connection.messages_in) + u64::from(connection.messages_out);
        let bytes = connection.bytes_in + connection.bytes_out;
        rows.push(vec![
            id.to_string(),
            rule.clone(),
            run.as_ref().map_or_else(|| "-".to_owned(), |run| run.name.clone()),
            connection.program().unwrap_or_else(|| "-".to_owned()),
            format!("{age_s}s"),
            messages.to_string(),
            figure(bytes as f64 / 1e6),
            figure(cpu_us / 1000.0),
            perhaps((messages > 0).then(|| cpu_us / messages as f64)),
        ]);
    }
    lay_out(&rows, width.without(&["AGE", "RUN"]))
}

/// The totals below the table.
fn sums(costs: &Costs) -> String {
    let Costs { interval_s, cpus, agent_cpu_us, accounting, percent_of_one_cpu: of_one, .. } =
        costs;
    format!(
        "agent: {} ms of CPU time in {} s on {cpus} CPUs\nCPU time in percent of one CPU: \
         general {} (work that engines cannot do), engine {} (work that engines did), eligible {} \
         (work that engines could have done, but that other CPUs did)\nuncaptured: {} ms ({} %) of \
         CPU time that is not assigned to a rule or to the agent itself\naccounting: measuring \
         the CPU time took {} % of the agent's CPU time ({} timestamps of {} ns each, {} clock \
         reads of {} ns each)\n",
        figure(agent_cpu_us / 1000.0),
        figure(*interval_s),
        figure(of_one.general),
        figure(of_one.engine),
        figure(of_one.eligible),
        figure(costs.uncaptured_cpu_us / 1000.0),
        figure(costs.uncaptured_percent),
        figure(accounting.percent),
        accounting.stamps,
        figure(accounting.stamp_ns),
        accounting.clock_reads,
        figure(accounting.clock_read_ns),
    )
}

/// The name of a row of the ledger.
pub(crate) fn name(rule: &RuleCosts) -> String {
    match (&rule.rule, rule.kind) {
        (Some(name), Kind::Packets) => format!("{name} (packets)"),
        (Some(name), _) => name.clone(),
        (None, Kind::Removed) => "(removed rules)".into(),
        (None, Kind::Packets) => "(packets of tunnels)".into(),
        (None, _) => "(agent itself)".into(),
    }
}

fn headings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Like [`figure`], or `-` for an unknown value.
pub(crate) fn perhaps(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), figure)
}

/// A number with three significant digits; digits before the point are never cut.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".into()
    } else if size < 9.995 {
        format!("{value:.2}")
    } else if size < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.004, 1.2345, 12.345, 99.96, 1234.5].map(figure);
        assert_eq!(shown, ["0", "0.00", "1.23", "12.3", "100", "1234"]);
    }
}
