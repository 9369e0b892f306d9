//! Formats the result of `tacit project` as text and JSON.

use std::fmt::Write as _;

use serde::Serialize;
use tacit_core::meter::Component;
use tacit_core::projection::{
    Components, CpuLoad, CpuReading, EngineSplit, MeasuredCosts, PlaceCosts, Projection,
    ProjectionRequest, RateAtUtilisation, of_whole, rate_per_utilisation,
};

use crate::control::display::VERSION;

/// A projection with its assumptions.
#[derive(Debug)]
pub(super) struct Answer {
    interval_s: f64,
    cpus: u32,
    scale: f64,
    engines: Option<u32>,
    rules: Vec<String>,
    projected: Projection,
    assumptions: Vec<String>,
}

/// The use of general CPUs, before or after the change.
struct General {
    cpus: u32,
    /// CPU time of the agent on them, in percent of one CPU.
    percent: f64,
}

impl General {
    fn percent_each(&self) -> f64 {
        let reading = CpuReading { general: self.percent, eligible: 0.0, engine: 0.0 };
        reading.per_cpu(self.cpus)
    }
}

impl Answer {
    pub(super) fn new(
        costs: &MeasuredCosts,
        question: &ProjectionRequest,
        projected: Projection,
        mut assumptions: Vec<String>,
    ) -> Self {
        let mut assume = |text: &str| assumptions.push(text.to_owned());
        assume(
            "messages keep their measured size, and each process keeps its measured share of the \
             kernel's CPU time",
        );
        assume(
            "CPU time of the agent's own work (not for a rule) stays the same; CPU time that was \
             not measured (uncaptured) grows with the traffic",
        );
        if question.scale != 1.0 {
            assume(
                "a message costs the same CPU time at every rate. In fact the kernel wakes a busy \
                 process less often, so the result is too high for more traffic and too low for \
                 less traffic",
            );
        }
        if question.engines.is_some() {
            assume(
                "engines do handshakes and the work before them, and relay bytes for rules with \
                 relay = \"engine\", until the engines are fully used. Data workers do the rest \
                 (spill). With spill = false, connections wait for an engine instead. The \
                 projection ignores short bursts",
            );
        }
        Self {
            interval_s: costs.interval_s,
            cpus: costs.cpus,
            scale: question.scale,
            engines: question.engines,
            rules: costs.rules.iter().map(|rule| rule.name.clone()).collect(),
            projected,
            assumptions,
        }
    }

    fn general(&self) -> [General; 2] {
        let before = &self.projected.before;
        // The number of engines before the change: as many as the measured work on engines needs.
        let in_use = (1..self.cpus)
            .find(|&count| f64::from(count) * 100.0 >= before.total().engine)
            .unwrap_or(1);
        let engines_before = if before.total().engine > 0.0 { in_use } else { 0 };
        let side = |load: &CpuLoad, engines: u32| {
            let total = load.total();
            let cpus = self.cpus.saturating_sub(engines).max(1);
            General { cpus, percent: total.general + total.eligible }
        };
        [
            side(before, engines_before),
            side(&self.projected.after, self.engines.unwrap_or(engines_before)),
        ]
    }

    /// The factor by which the traffic per second of the agent's CPU time changes.
    fn work_per_cpu(&self) -> f64 {
        let Projection { before, after, .. } = &self.projected;
        rate_per_utilisation(
            RateAtUtilisation { rate: 1.0, utilisation: before.total().total() },
            RateAtUtilisation { rate: self.scale, utilisation: after.total().total() },
        )
    }

    /// The change in the CPU time of programs and agent together for the same traffic, in percent;
    /// `None` if the CPU time of programs is not known.
    fn of_whole_percent(&self) -> Option<f64> {
        let Projection { before, after, programs, .. } = &self.projected;
        let agent = before.total().total();
        let change = after.total().total() / self.scale / agent - 1.0;
        (*programs > 0.0).then(|| of_whole(change, agent / (agent + programs)) * 100.0)
    }

    /// The result as text, with fixed columns.
    pub(super) fn text(&self) -> String {
        let Projection { before, after, .. } = &self.projected;
        let mut out = format!(
            "Measured for {:.1} s on {} CPUs. All values are percent of one CPU.\n\n",
            self.interval_s, self.cpus
        );
        heading(&mut out, "COMPONENT");
        for component in Component::ALL {
            let cells = [before, after].map(|load| load.components.of(component));
            row(&mut out, component.word(), cells);
        }
        let uncaptured = [before, after]
            .map(|load| PlaceCosts { general: load.uncaptured, ..PlaceCosts::default() });
        row(&mut out, "uncaptured", uncaptured);
        row(&mut out, "all", [before, after].map(CpuLoad::total));
        out.push('\n');
        heading(&mut out, "RULE");
        for (name, (before, after)) in self.rules.iter().zip(before.rules.iter().zip(&after.rules))
        {
            row(&mut out, name, [*before, *after]);
        }
        out.push('\n');
        self.sums(&mut out);
        out.push_str("\nAssumed:\n");
        for assumption in &self.assumptions {
            let _ = writeln!(out, "  {assumption}");
        }
        out
    }

    fn sums(&self, out: &mut String) {
        let Projection { landed, engine_capacity, .. } = &self.projected;
        if let (Some(engines), Some(EngineSplit { on_engines, spilled })) = (self.engines, landed) {
            let all = on_engines + spilled;
            let _ = writeln!(
                out,
                "engines: {engines}, each with a capacity of {engine_capacity:.1}; eligible work \
                 {all:.1}, on engines {on_engines:.1}, spilled to data workers {spilled:.1}"
            );
            if *spilled > 0.0 && engines > 0 {
                let carried = on_engines / all;
                let _ = writeln!(
                    out,
                    "         with spill = false, engines would do {:.0} % of the eligible work",
                    carried * 100.0
                );
            }
        }
        let [before, after] = self.general();
        for (what, side) in [("before", &before), ("after", &after)] {
            let _ = writeln!(
                out,
                "general CPUs {what}: {}; the agent uses {:.2} % of each CPU",
                side.cpus,
                side.percent_each()
            );
        }
        if after.percent_each() > 100.0 {
            let _ = writeln!(
                out,
                "         more than 100 % is impossible: the agent would relay less traffic, or \
                 needs {:.0} general CPUs",
                (after.percent / 100.0).ceil()
            );
        }
        let _ = writeln!(out, "traffic per second of CPU time: x{:.3}", self.work_per_cpu());
        if let Some(percent) = self.of_whole_percent() {
            let _ = writeln!(
                out,
                "CPU time of programs and agent for the same traffic: {percent:+.1} %"
            );
        }
    }

    /// The result for `--json`.
    pub(super) fn display(&self) -> ProjectionDisplay<'_> {
        let Projection { before, after, landed, engine_capacity, programs } = &self.projected;
        let [general_before, general_after] = self.general();
        ProjectionDisplay {
            version: VERSION,
            interval_s: self.interval_s,
            cpus: self.cpus,
            scale: self.scale,
            before: self.side(before, &general_before),
            after: self.side(after, &general_after),
            engines: landed.map(|EngineSplit { on_engines, spilled }| ProjectedEngines {
                count: self.engines,
                capacity_percent: *engine_capacity,
                on_engines_percent: on_engines,
                spilled_percent: spilled,
            }),
            programs_percent: *programs,
            work_per_cpu: self.work_per_cpu(),
            of_whole_percent: self.of_whole_percent(),
            assumptions: &self.assumptions,
        }
    }

    fn side<'a>(&'a self, load: &'a CpuLoad, general: &General) -> SideDisplay<'a> {
        let cells = self.rules.iter().zip(&load.rules);
        let rules = cells.map(|(rule, percent)| RuleShare { rule, percent: *percent });
        SideDisplay {
            total: load.total(),
            components: &load.components,
            uncaptured: load.uncaptured,
            rules: rules.collect(),
            general_cpus: general.cpus,
            percent_of_each_general_cpu: general.percent_each(),
        }
    }
}

/// A projection. Percentages are of one CPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ProjectionDisplay<'a> {
    version: u32,
    interval_s: f64,
    cpus: u32,
    scale: f64,
    before: SideDisplay<'a>,
    after: SideDisplay<'a>,
    engines: Option<ProjectedEngines>,
    programs_percent: f64,
    work_per_cpu: f64,
    of_whole_percent: Option<f64>,
    assumptions: &'a [String],
}

/// The measured or the projected values.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct SideDisplay<'a> {
    total: PlaceCosts,
    components: &'a Components,
    uncaptured: f64,
    rules: Vec<RuleShare<'a>>,
    general_cpus: u32,
    percent_of_each_general_cpu: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct RuleShare<'a> {
    rule: &'a str,
    percent: PlaceCosts,
}

/// The capacity of engines, and the work that they would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ProjectedEngines {
    count: Option<u32>,
    capacity_percent: f64,
    on_engines_percent: f64,
    spilled_percent: f64,
}

/// Column headings: the name, three measured values, three projected values.
fn heading(out: &mut String, name: &str) {
    let places = format!("{:>9} {:>9} {:>9}", "general", "engine", "eligible");
    let _ = writeln!(out, "{:24} {:>29}   {:>29}", "", "measured", "projected");
    let _ = writeln!(out, "{name:24} {places}   {places}");
}

fn row(out: &mut String, name: &str, cells: [PlaceCosts; 2]) {
    let [before, after] = cells.map(|PlaceCosts { general, engine, eligible }| {
        format!("{general:9.2} {engine:9.2} {eligible:9.2}")
    });
    let _ = writeln!(out, "{name:24} {before}   {after}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use tacit_core::projection::{MeasuredRuleCosts, project};

    /// A bulk transfer: the agent uses 105.17 % eligible and 8.59 % other CPU time.
    fn costs() -> MeasuredCosts {
        let rule = |name: &str, component, cell| {
            let mut cpu_us = Components::default();
            cpu_us.set(component, cell);
            MeasuredRuleCosts {
                name: name.into(),
                is_rule: name == "bulk",
                connections: 1,
                handshakes: 1,
                messages: 2,
                sent_bytes: 1000,
                received_bytes: 1000,
                cpu_us,
            }
        };
        let own = PlaceCosts { general: 85_900.0, ..PlaceCosts::default() };
        let bulk = PlaceCosts { eligible: 1_051_700.0, ..PlaceCosts::default() };
        MeasuredCosts {
            interval_s: 1.0,
            cpus: 3,
            agent_us: 1_137_600.0,
            uncaptured_us: 0.0,
            programs_us: 1_137_600.0,
            rules: vec![
                rule("(agent itself)", Component::Control, own),
                rule("bulk", Component::Seal, bulk),
            ],
        }
    }

    fn answer(engines: Option<u32>, scale: f64) -> Answer {
        let question = ProjectionRequest { engines, scale, changes: BTreeMap::new() };
        let projected = project(&costs(), &question).unwrap();
        Answer::new(&costs(), &question, projected, vec!["a thing".into()])
    }

    #[test]
    fn text_has_measured_and_projected_values_sums_and_assumptions() {
        let text = answer(Some(1), 1.0).text();
        for cells in [
            ["seal", "0.00", "0.00", "105.17", "0.00", "100.00", "5.17"],
            ["all", "8.59", "0.00", "105.17", "8.59", "100.00", "5.17"],
            ["(agent itself)", "8.59", "0.00", "0.00", "8.59", "0.00", "0.00"],
        ] {
            let cells = cells.join(" ");
            let row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.lines().any(|line| row(line) == cells), "no {cells:?} in\n{text}");
        }
        for line in [
            "engines: 1, each with a capacity of 100.0; eligible work 105.2, on engines 100.0, \
             spilled to data workers 5.2",
            "         with spill = false, engines would do 95 % of the eligible work",
            "general CPUs before: 3; the agent uses 37.92 % of each CPU",
            "general CPUs after: 2; the agent uses 6.88 % of each CPU",
            "traffic per second of CPU time: x1.000",
            "CPU time of programs and agent for the same traffic: +0.0 %",
            "  a thing",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
        }
    }

    #[test]
    fn json_has_the_same_figures() {
        let value = json!(answer(Some(2), 1.0).display());
        let near = |value: &Value, wanted: f64| {
            let found = value.as_f64().unwrap();
            assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
        };
        near(&value["engines"]["on-engines-percent"], 105.17);
        near(&value["engines"]["spilled-percent"], 0.0);
        near(&value["after"]["total"]["engine"], 105.17);
        near(&value["after"]["components"]["seal"]["engine"], 105.17);
        near(&value["after"]["rules"][1]["percent"]["engine"], 105.17);
        near(&value["after"]["percent-of-each-general-cpu"], 8.59);
        near(&value["before"]["percent-of-each-general-cpu"], 113.76 / 3.0);
        near(&value["programs-percent"], 113.76);
        assert_eq!(value["assumptions"][0], "a thing");
    }

    #[test]
    fn a_load_beyond_all_cpus_is_reported() {
        let text = answer(None, 4.0).text();
        assert!(text.contains("more than 100 %"), "{text}");
        assert!(text.contains("needs 5 general CPUs"), "{text}");
        // The CPU time outside of rules does not grow with the traffic.
        assert!(text.contains("traffic per second of CPU time: x1.060"), "{text}");
        assert!(text.contains("same traffic: -2.8 %"), "{text}");
        assert!(!answer(None, 1.0).text().contains("more than 100 %"));
    }
}
