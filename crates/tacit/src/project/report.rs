//! Formats the result of `tacit project` as text and JSON.

use std::fmt::Write as _;

use serde::Serialize;
use tacit_core::meter::Component;
use tacit_core::projection::{
    Components, CostsOwner, CpuLoad, CpuReading, EngineSplit, MeasuredCosts, PlaceCosts,
    Projection, ProjectionRequest, RateAtUtilisation, engines_needed, of_whole,
    rate_per_utilisation,
};

use crate::control::display::VERSION;

/// A projection with its assumptions.
#[derive(Debug)]
pub(super) struct Answer {
    interval_s: f64,
    cpus: u32,
    scale: f64,
    engines: Option<u32>,
    target: EngineTarget,
    rules: Vec<String>,
    projected: Projection,
    assumptions: Vec<String>,
}

/// How engines are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct EngineTarget {
    /// How busy an engine may be, in percent.
    pub(super) percent: f64,
    /// Which CPUs the engines are.
    pub(super) cpus: EngineCpus,
}

/// Which CPUs engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineCpus {
    /// General CPUs of the machine become engines.
    OfMachine,
    /// The engines are further CPUs.
    Added,
}

/// The eligible work, and what engines would change.
struct Relief {
    /// Eligible work, on engines or not, in percent of one CPU.
    eligible: f64,
    /// The part of it in the CPU time of the agent, in percent.
    share: f64,
    /// The number of engines for it at the target.
    needed: u32,
    /// The CPU time that leaves general CPUs, in percent of one CPU.
    relief: f64,
    /// The same for each general CPU; `None` if their number changes.
    of_each: Option<f64>,
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
        target: EngineTarget,
        mut assumptions: Vec<String>,
    ) -> Self {
        let mut assume = |text: &str| assumptions.push(text.to_owned());
        assume(
            "the projection assumes that messages keep their measured size, and that each process \
             keeps its measured share of the kernel's CPU time",
        );
        assume(
            "the projection does not change the CPU time of the agent's own work or of removed \
             rules. The row `uncaptured` is CPU time that the agent cannot assign to any work. The \
             projection changes this row by the same factor as the sum of the other rows",
        );
        if question.scale != 1.0 {
            assume(
                "the projection assumes that a message needs the same CPU time at every rate. In \
                 fact a message needs less CPU time at a higher rate, because the kernel wakes a \
                 busy process less often. So the result is too high for more traffic, and too low \
                 for less traffic",
            );
        }
        let has_packets = costs
            .rules
            .iter()
            .any(|rule| rule.owner == CostsOwner::Packets && rule.cpu_us.total().eligible > 0.0);
        if question.engines.is_some_and(|engines| engines > 0) && has_packets {
            assume(&format!(
                "on engines, packets of IPsec tunnels need {factor} times the measured CPU time \
                 (--packet-factor), because engines process packets in batches of another size",
                factor = question.packet_factor
            ));
        }
        if question.engines.is_some() {
            assume(
                "engines do handshakes (and the work before a handshake). They also relay bytes \
                 for rules with relay = \"engine\", and process the packets of tunnels. When all \
                 engines are saturated, other threads do this work (spill). With spill = false, \
                 connections wait for an engine instead. The projection ignores short bursts",
            );
        }
        Self {
            interval_s: costs.interval_s,
            cpus: costs.cpus,
            scale: question.scale,
            engines: question.engines,
            target,
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
            let taken = if self.target.cpus == EngineCpus::Added { 0 } else { engines };
            let cpus = self.cpus.saturating_sub(taken).max(1);
            General { cpus, percent: total.general + total.eligible }
        };
        [
            side(before, engines_before),
            side(&self.projected.after, self.engines.unwrap_or(engines_before)),
        ]
    }

    fn relief(&self) -> Relief {
        let after = self.projected.after.total();
        let eligible = after.eligible + after.engine;
        let [general_before, general_after] = self.general();
        let is_equal = general_before.cpus == general_after.cpus;
        Relief {
            eligible,
            share: 100.0 * eligible / after.total(),
            needed: engines_needed(eligible, self.target.percent),
            relief: general_before.percent - general_after.percent,
            of_each: is_equal.then(|| general_before.percent_each() - general_after.percent_each()),
        }
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
            "Measured for {seconds:.1} s on {cpus} CPUs. All values are percent of one CPU.\n\n",
            seconds = self.interval_s,
            cpus = self.cpus
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
        let Relief { eligible, share, needed, relief, of_each } = self.relief();
        let _ = writeln!(
            out,
            "work that engines can take over: {eligible:.2} % of one CPU, or {share:.0} % of the \
             agent's CPU time; engines needed for this work: {needed}, each at most {target:.0} % \
             busy",
            target = self.target.percent
        );
        if let (Some(engines), Some(EngineSplit { on_engines, spilled })) = (self.engines, landed) {
            let all = on_engines + spilled;
            let _ = writeln!(
                out,
                "engines: {engines}, each with a capacity of {engine_capacity:.1} % of one CPU. \
                 The work that engines can take over needs {all:.1} % of one CPU: \
                 {on_engines:.1} % on engines, and {spilled:.1} % on other CPUs"
            );
            if *spilled > 0.0 && engines > 0 {
                let on_engines_part = on_engines / all;
                let _ = writeln!(
                    out,
                    "         with spill = false, engines would do {percent:.0} % of the work that \
                     engines can take over",
                    percent = on_engines_part * 100.0
                );
            }
        }
        let [before, after] = self.general();
        for (when, side) in [("measured", &before), ("projected", &after)] {
            let _ = writeln!(
                out,
                "general CPUs (CPUs without an engine), {when}: {cpus}; on average, the agent uses \
                 {percent:.2} % of each general CPU",
                cpus = side.cpus,
                percent = side.percent_each()
            );
        }
        if self.engines.is_some() {
            let of_each = of_each.map_or_else(String::new, |of_each| {
                format!("; saved on each CPU without an engine: {of_each:.2} percentage points")
            });
            let _ = writeln!(
                out,
                "CPU time saved on CPUs without an engine: {relief:.2} % of one CPU{of_each}"
            );
        }
        if after.percent_each() > 100.0 {
            let _ = writeln!(
                out,
                "         the CPUs without an engine cannot relay all of this traffic: the agent \
                 would need {cpus:.0} of these CPUs",
                cpus = (after.percent / 100.0).ceil()
            );
        }
        let factor = self.work_per_cpu();
        let _ =
            writeln!(out, "traffic per second of CPU time: {factor:.3} times the measured value");
        if let Some(percent) = self.of_whole_percent() {
            let _ = writeln!(
                out,
                "for the same traffic, the CPU time of programs and agent together changes by \
                 {percent:+.1} %"
            );
        }
    }

    /// The result for `--json`.
    pub(super) fn display(&self) -> ProjectionDisplay<'_> {
        let Projection { before, after, landed, engine_capacity, programs } = &self.projected;
        let [general_before, general_after] = self.general();
        let Relief { eligible, share, needed, relief, of_each } = self.relief();
        ProjectionDisplay {
            eligible_percent: eligible,
            eligible_share_percent: share,
            target_percent: self.target.percent,
            engines_needed: needed,
            relief_percent: relief,
            relief_points_of_each_cpu: of_each,
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
    eligible_percent: f64,
    eligible_share_percent: f64,
    target_percent: f64,
    engines_needed: u32,
    relief_percent: f64,
    relief_points_of_each_cpu: Option<f64>,
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

    const OF_MACHINE: EngineTarget = EngineTarget { percent: 80.0, cpus: EngineCpus::OfMachine };

    /// A bulk transfer: the agent uses 105.17 % eligible and 8.59 % other CPU time.
    fn costs() -> MeasuredCosts {
        let rule = |name: &str, component, cell| {
            let mut cpu_us = Components::default();
            cpu_us.set(component, cell);
            MeasuredRuleCosts {
                name: name.into(),
                owner: match name {
                    "bulk" => CostsOwner::Rule,
                    "(packets of tunnels)" => CostsOwner::Packets,
                    _ => CostsOwner::Agent,
                },
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
        let changes = BTreeMap::new();
        let question = ProjectionRequest { engines, scale, packet_factor: 1.0, changes };
        let projected = project(&costs(), &question).unwrap();
        Answer::new(&costs(), &question, projected, OF_MACHINE, vec!["a thing".into()])
    }

    /// The published example: bulk data through IPsec on two general CPUs, in percent of one CPU.
    fn published(packets: PlaceCosts, general: f64) -> MeasuredCosts {
        let mut costs = costs();
        let cells = |component, cell: PlaceCosts| {
            let mut cpu_us = Components::default();
            cpu_us.set(component, cell.times(1e4));
            cpu_us
        };
        let own = PlaceCosts { general, ..PlaceCosts::default() };
        costs.cpus = 2;
        costs.agent_us = (packets.total() + general) * 1e4;
        costs.rules[0].cpu_us = cells(Component::Control, own);
        costs.rules[1].owner = CostsOwner::Packets;
        costs.rules[1].cpu_us = cells(Component::Seal, packets);
        costs
    }

    fn added(costs: &MeasuredCosts, engines: Option<u32>) -> Answer {
        let changes = BTreeMap::new();
        let question = ProjectionRequest { engines, scale: 1.0, packet_factor: 1.0, changes };
        let projected = project(costs, &question).unwrap();
        let target = EngineTarget { percent: 100.0, cpus: EngineCpus::Added };
        Answer::new(costs, &question, projected, target, Vec::new())
    }

    #[test]
    fn the_published_example_is_reproduced() {
        let eligible = PlaceCosts { eligible: 105.17, ..PlaceCosts::default() };
        let text = added(&published(eligible, 8.59), Some(1)).text();
        for line in [
            "work that engines can take over: 105.17 % of one CPU, or 92 % of the agent's CPU \
             time; engines needed for this work: 2, each at most 100 % busy",
            "general CPUs (CPUs without an engine), measured: 2; on average, the agent uses 56.88 \
             % of each general CPU",
            "engines: 1, each with a capacity of 100.0 % of one CPU. The work that engines can \
             take over needs 105.2 % of one CPU: 100.0 % on engines, and 5.2 % on other CPUs",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line:?} in\n{text}");
        }
        let value = |answer: Answer, side: &str| {
            let value = json!(answer.display());
            value[side]["percent-of-each-general-cpu"].as_f64().unwrap()
        };
        let near = |found: f64, wanted: f64| {
            assert!((found - wanted).abs() < 0.006, "{found} is not {wanted}");
        };
        let without = value(added(&published(eligible, 0.0), Some(1)), "before");
        near(without, 52.59);
        // With the processor, the paper measured 95.13 % on it, and 7.78 % spilled.
        let one = PlaceCosts { engine: 95.13, eligible: 7.78, general: 0.0 };
        let with = value(added(&published(one, 0.0), None), "before");
        near(with, 3.89);
        near(without - with, 48.70);
        let two = json!(added(&published(eligible, 8.59), Some(2)).display());
        near(two["relief-percent"].as_f64().unwrap(), 105.17);
        near(two["relief-points-of-each-cpu"].as_f64().unwrap(), 52.59);
        near(two["engines"]["spilled-percent"].as_f64().unwrap(), 0.0);
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
            "engines: 1, each with a capacity of 100.0 % of one CPU. The work that engines can \
             take over needs 105.2 % of one CPU: 100.0 % on engines, and 5.2 % on other CPUs",
            "         with spill = false, engines would do 95 % of the work that engines can take \
             over",
            "general CPUs (CPUs without an engine), measured: 3; on average, the agent uses 37.92 \
             % of each general CPU",
            "general CPUs (CPUs without an engine), projected: 2; on average, the agent uses 6.88 \
             % of each general CPU",
            "traffic per second of CPU time: 1.000 times the measured value",
            "for the same traffic, the CPU time of programs and agent together changes by +0.0 %",
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
        assert!(text.contains("cannot relay all of this traffic"), "{text}");
        assert!(text.contains("need 5 of these CPUs"), "{text}");
        // The CPU time outside of rules does not grow with the traffic.
        assert!(text.contains("traffic per second of CPU time: 1.060 times"), "{text}");
        assert!(text.contains("together changes by -2.8 %"), "{text}");
        assert!(!answer(None, 1.0).text().contains("cannot relay all"));
    }
}
