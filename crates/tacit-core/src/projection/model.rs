//! Estimates the CPU time that the agent will use after a change of the policy, the traffic or the
//! number of engines. An engine is a thread on a reserved CPU.
//!
//! The estimate starts from measurements: the agent measures the CPU time of each rule, of its own
//! work, and of the packets of tunnels. *Eligible* work is work that an engine could do. The
//! estimate has five steps:
//!
//! 1. Adapt the CPU time of each rule to its new settings. For example, a change to `permit`
//!    removes the CPU time of handshakes and encryption.
//! 2. If there will be engines, they will process the packets of tunnels. Engines process packets
//!    in batches of another size, so the CPU time for a packet is different. Multiply the CPU time
//!    that was measured without engines by [`ProjectionRequest::packet_factor`].
//! 3. Scale the CPU time of rules and packets with the traffic. The CPU time of the agent's own
//!    work does not change.
//! 4. If the number of engines is given, divide all eligible work between engines and other CPUs
//!    ([`land`]).
//! 5. Some CPU time of the agent was not assigned to rules, own work or packets. Scale this CPU
//!    time by the factor by which the assigned CPU time has changed.

use std::collections::BTreeMap;
use std::fmt;

use super::arithmetic::{EngineSplit, land};
use super::costs::{Components, CostsOwner, MeasuredCosts, MeasuredRuleCosts, PlaceCosts};
use crate::meter::Component;

/// The work that an engine does for a connection in addition to its handshake: accepting, looking
/// up and dialling. The ledger counts only the handshake as eligible.
const ON_THE_WAY: [Component; 2] = [Component::Accept, Component::Policy];

/// A requested projection.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectionRequest {
    /// The number of CPUs reserved for engines; `None`: eligible work stays where it was measured.
    pub engines: Option<u32>,
    /// The factor by which the traffic changes.
    pub scale: f64,
    /// The CPU time of IPsec packets with engines, divided by their CPU time without engines.
    pub packet_factor: f64,
    /// The changes of each rule, in order.
    pub changes: BTreeMap<String, Vec<RuleChange>>,
}

/// A change of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleChange {
    /// Another suite, with factors for the cost of records.
    Suite {
        /// The factor for sealing.
        seal: f64,
        /// The factor for opening.
        open: f64,
    },
    /// Its traffic is sent in clear.
    Permit,
    /// Its traffic is sent with TLS.
    Tls(UnitCosts),
    /// Engines relay its connections, in addition to the handshakes.
    Engine,
}

/// The unit costs of TLS.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitCosts {
    /// A handshake, in microseconds.
    pub handshake_us: f64,
    /// Sealing a megabyte, in microseconds.
    pub seal_us_per_mb: f64,
    /// Opening a megabyte, in microseconds.
    pub open_us_per_mb: f64,
}

/// The CPU time of an interval, in per cent of one CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuLoad {
    /// The CPU time by component.
    pub components: Components,
    /// The CPU time by rule, in the order of the ledger.
    pub rules: Vec<PlaceCosts>,
    /// The CPU time that is in no cell.
    pub uncaptured: f64,
}

/// The loads before and after the change.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The measured load.
    pub before: CpuLoad,
    /// The projected load.
    pub after: CpuLoad,
    /// The distribution of eligible work, if the request has engines; in per cent of one CPU.
    pub landed: Option<EngineSplit>,
    /// The capacity of one engine for metered work, in per cent of one CPU.
    pub engine_capacity: f64,
    /// The programs of runs, which do not change; in per cent of one CPU.
    pub programs: f64,
}

/// The reason why a projection is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectionError {
    /// Nothing was measured in the interval.
    Nothing,
    /// No CPU time is in a cell, because accounting was off.
    NoCells,
    /// No such rule was measured; with the names of the measured rules.
    NoSuchRule(String, Vec<String>),
    /// The rule did not use TLS, so its TLS cannot be changed or removed.
    NoTls(String),
    /// The rule uses TLS already.
    IsTls(String),
}

impl fmt::Display for ProjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str(
                "the agent used no CPU time in the interval: measure while there is traffic",
            ),
            Self::NoCells => f.write_str(
                "the agent did not record CPU time in the interval: remove `accounting = false` \
                 from the policy, restart the agent, and measure again",
            ),
            Self::NoSuchRule(name, known) => {
                write!(
                    f,
                    "the measurement has no rule `{name}`; the measured rules are {rules}",
                    rules = known.join(", ")
                )
            }
            Self::NoTls(name) => {
                write!(
                    f,
                    "the projection cannot change or remove the TLS of rule `{name}`: the rule \
                     used no TLS during the measurement"
                )
            }
            Self::IsTls(name) => {
                write!(
                    f,
                    "rule `{name}` already uses TLS: use --suite to estimate the cost of another \
                     cipher suite"
                )
            }
        }
    }
}

impl std::error::Error for ProjectionError {}

impl UnitCosts {
    /// Returns the mean cost of a handshake in the interval, over all rules; `None` if there were
    /// no handshakes.
    #[must_use]
    pub fn measured_handshake_us(costs: &MeasuredCosts) -> Option<f64> {
        let handshakes: u64 = costs.rules.iter().map(|rule| rule.handshakes).sum();
        let usage = costs.rules.iter().map(|rule| rule.cpu_us.of(Component::Handshake).total());
        (handshakes > 0).then(|| usage.sum::<f64>() / handshakes as f64)
    }
}

impl CpuLoad {
    /// Returns the sum of all components. Unmetered CPU time counts as general.
    #[must_use]
    pub fn total(&self) -> PlaceCosts {
        let mut total = self.components.total();
        total.general += self.uncaptured;
        total
    }
}

/// Computes a projection from the costs of an interval.
///
/// # Errors
/// The request does not fit the measurement.
pub fn project(
    costs: &MeasuredCosts,
    question: &ProjectionRequest,
) -> Result<Projection, ProjectionError> {
    if costs.agent_us <= 0.0 || costs.interval_s <= 0.0 {
        return Err(ProjectionError::Nothing);
    }
    let captured = |of: &[Components]| of.iter().map(|cells| cells.total().total()).sum::<f64>();
    let before: Vec<_> = costs.rules.iter().map(|rule| rule.cpu_us.clone()).collect();
    let captured_before = captured(&before);
    if captured_before <= 0.0 {
        return Err(ProjectionError::NoCells);
    }
    for name in question.changes.keys() {
        if costs.rule(name).is_none() {
            let rules = costs.rules.iter().filter(|rule| rule.is_rule());
            let known = rules.map(|rule| rule.name.clone()).collect();
            return Err(ProjectionError::NoSuchRule(name.clone(), known));
        }
    }
    let mut after = Vec::new();
    for rule in &costs.rules {
        let cells = changed(rule, question)?;
        let sets_up = question.engines.is_some_and(|engines| engines > 0)
            && cells.of(Component::Handshake).total() > 0.0;
        after.push(cells.map(|component, cell| match sets_up {
            true if ON_THE_WAY.contains(&component) => eligible(cell),
            _ => cell,
        }));
    }
    let uncaptured_share = costs.uncaptured_us / costs.agent_us;
    let engine_capacity = 100.0 * (1.0 - uncaptured_share);
    let eligible_us = after.iter().map(Components::total).map(|cell| cell.engine + cell.eligible);
    let work = costs.percent(eligible_us.sum());
    let landed = question.engines.map(|engines| land(work, engines, engine_capacity));
    if let Some(landed) = landed {
        for cells in &mut after {
            *cells = cells.map(|_, cell| landing(cell, landed.share()));
        }
    }
    let uncaptured_after = costs.uncaptured_us * captured(&after) / captured_before;
    Ok(Projection {
        before: load(costs, &before, costs.uncaptured_us),
        after: load(costs, &after, uncaptured_after),
        landed,
        engine_capacity,
        programs: costs.percent(costs.programs_us),
    })
}

/// Returns the changed cells of one rule, in microseconds of the same interval.
fn changed(
    rule: &MeasuredRuleCosts,
    question: &ProjectionRequest,
) -> Result<Components, ProjectionError> {
    let mut cells = rule.cpu_us.clone();
    if rule.owner == CostsOwner::Agent {
        return Ok(cells);
    }
    let name = &rule.name;
    for change in question.changes.get(name).into_iter().flatten() {
        cells = match change {
            RuleChange::Suite { .. } | RuleChange::Permit if !rule.has_tls() => {
                return Err(ProjectionError::NoTls(name.clone()));
            }
            RuleChange::Tls(_) if rule.has_tls() => {
                return Err(ProjectionError::IsTls(name.clone()));
            }
            RuleChange::Suite { seal, open } => cells.map(|component, cell| match component {
                Component::Seal => cell.times(*seal),
                Component::Open => cell.times(*open),
                _ => cell,
            }),
            RuleChange::Permit => cells.map(|component, cell| match component {
                Component::Handshake | Component::Seal | Component::Open => PlaceCosts::default(),
                _ => cell,
            }),
            RuleChange::Tls(unit) => with_tls(&cells, rule, unit),
            RuleChange::Engine => cells.map(|_, cell| eligible(cell)),
        };
    }
    let has_engines = question.engines.is_some_and(|engines| engines > 0);
    if rule.owner == CostsOwner::Packets && has_engines {
        let factor = question.packet_factor;
        cells = cells.map(|_, cell| PlaceCosts { eligible: cell.eligible * factor, ..cell });
    }
    Ok(cells.map(|_, cell| cell.times(question.scale)))
}

/// Adds what TLS would have cost. Engines may take handshakes, but not records.
fn with_tls(cells: &Components, rule: &MeasuredRuleCosts, unit: &UnitCosts) -> Components {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    cells.map(|component, cell| match component {
        Component::Handshake => {
            let us = unit.handshake_us * rule.connections as f64;
            cell.plus(PlaceCosts { eligible: us, ..PlaceCosts::default() })
        }
        Component::Seal => {
            let us = unit.seal_us_per_mb * mb(rule.sent_bytes);
            cell.plus(PlaceCosts { general: us, ..PlaceCosts::default() })
        }
        Component::Open => {
            let us = unit.open_us_per_mb * mb(rule.received_bytes);
            cell.plus(PlaceCosts { general: us, ..PlaceCosts::default() })
        }
        _ => cell,
    })
}

/// Makes work on general CPUs eligible.
fn eligible(cell: PlaceCosts) -> PlaceCosts {
    PlaceCosts { general: 0.0, eligible: cell.eligible + cell.general, ..cell }
}

fn landing(cell: PlaceCosts, share: f64) -> PlaceCosts {
    let eligible = cell.engine + cell.eligible;
    let engine = eligible * share;
    PlaceCosts { general: cell.general, engine, eligible: eligible - engine }
}

fn load(costs: &MeasuredCosts, rules: &[Components], uncaptured_us: f64) -> CpuLoad {
    let percent = |cell: PlaceCosts| cell.times(costs.percent(1.0));
    let mut components = Components::default();
    for component in Component::ALL {
        let cells = rules.iter().map(|cells| cells.of(component));
        components.set(component, percent(cells.fold(PlaceCosts::default(), PlaceCosts::plus)));
    }
    let totals = rules.iter().map(|cells| percent(cells.total()));
    CpuLoad { components, rules: totals.collect(), uncaptured: costs.percent(uncaptured_us) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
    }

    fn rule(name: &str, cells: &[(Component, PlaceCosts)]) -> MeasuredRuleCosts {
        let mut cpu_us = Components::default();
        for (component, cell) in cells {
            cpu_us.set(*component, *cell);
        }
        MeasuredRuleCosts {
            name: name.into(),
            owner: match name {
                "agent" => CostsOwner::Agent,
                "packets" => CostsOwner::Packets,
                _ => CostsOwner::Rule,
            },
            connections: 10,
            handshakes: 10,
            messages: 200,
            sent_bytes: 5_000_000,
            received_bytes: 1_000_000,
            cpu_us,
        }
    }

    fn general(us: f64) -> PlaceCosts {
        PlaceCosts { general: us, ..PlaceCosts::default() }
    }

    fn could(us: f64) -> PlaceCosts {
        PlaceCosts { eligible: us, ..PlaceCosts::default() }
    }

    /// A second in which `web` (TLS), `plain` (clear) and the agent itself together cost 100 % of
    /// one CPU; a twentieth of it is uncaptured.
    fn second() -> MeasuredCosts {
        use Component::{Control, Handshake, Open, Receive, Seal, Send};
        let web = [
            (Handshake, could(400_000.0)),
            (Seal, general(100_000.0)),
            (Open, general(50_000.0)),
            (Receive, general(150_000.0)),
            (Send, general(100_000.0)),
        ];
        let mut plain = rule("plain", &[(Receive, general(50_000.0)), (Send, general(50_000.0))]);
        plain.handshakes = 0;
        MeasuredCosts {
            interval_s: 1.0,
            cpus: 4,
            agent_us: 1e6,
            uncaptured_us: 50_000.0,
            rules: vec![rule("agent", &[(Control, general(50_000.0))]), rule("web", &web), plain],
            programs_us: 3e6,
        }
    }

    fn ask(change: &[(&str, RuleChange)]) -> ProjectionRequest {
        let mut changes: BTreeMap<String, Vec<RuleChange>> = BTreeMap::new();
        for (name, change) in change {
            changes.entry((*name).into()).or_default().push(*change);
        }
        ProjectionRequest { engines: None, scale: 1.0, packet_factor: 1.0, changes }
    }

    #[test]
    fn a_question_that_changes_nothing_answers_what_was_measured() {
        let projected = project(&second(), &ask(&[])).unwrap();
        assert_eq!(projected.before, projected.after);
        near(projected.before.total().total(), 100.0);
        near(projected.before.uncaptured, 5.0);
        near(projected.programs, 300.0);
        assert_eq!(projected.landed, None);
    }

    #[test]
    fn engines_take_eligible_work_and_what_does_not_fit_spills() {
        let mut question = ProjectionRequest { engines: Some(1), ..ask(&[]) };
        let projected = project(&second(), &question).unwrap();
        near(projected.after.total().engine, 40.0);
        near(projected.after.total().eligible, 0.0);
        near(projected.after.total().total(), 100.0);
        // With ten times the traffic, handshakes need 400 %; one engine can provide 95 %.
        question.scale = 10.0;
        let projected = project(&second(), &question).unwrap();
        near(projected.engine_capacity, 95.0);
        near(projected.after.total().engine, 95.0);
        near(projected.after.components.of(Component::Handshake).eligible, 305.0);
        assert_eq!(projected.landed, Some(EngineSplit { on_engines: 95.0, spilled: 305.0 }));
        question.engines = Some(0);
        near(project(&second(), &question).unwrap().after.total().engine, 0.0);
    }

    #[test]
    fn what_leads_to_a_handshake_goes_to_the_engine_with_it() {
        let mut costs = second();
        for rule in &mut costs.rules {
            rule.cpu_us.set(Component::Accept, general(10_000.0));
        }
        let question = ProjectionRequest { engines: Some(1), ..ask(&[]) };
        let after = project(&costs, &question).unwrap().after;
        near(after.rules[1].engine, 41.0);
        near(after.rules[2].engine, 0.0);
        near(project(&costs, &ask(&[])).unwrap().after.rules[1].eligible, 40.0);
    }

    #[test]
    fn traffic_scales_rules_and_not_the_agent_itself() {
        let projected = project(&second(), &ProjectionRequest { scale: 2.0, ..ask(&[]) }).unwrap();
        for (rule, percent) in projected.after.rules.iter().zip([5.0, 160.0, 20.0]) {
            near(rule.total(), percent);
        }
        near(projected.after.uncaptured, 5.0 * 185.0 / 95.0);
    }

    #[test]
    fn packets_scale_with_traffic_and_all_of_them_move_to_engines() {
        use Component::{Open, Receive, Seal};
        let mut costs = second();
        let packets = [(Receive, could(100_000.0)), (Seal, could(200_000.0)), (Open, could(0.0))];
        costs.rules.push(rule("packets", &packets));
        let question = ProjectionRequest { engines: Some(2), scale: 2.0, ..ask(&[]) };
        let after = project(&costs, &question).unwrap().after;
        near(after.rules[3].engine, 60.0);
        near(after.rules[3].general + after.rules[3].eligible, 0.0);
        // It is not a rule, so no setting of a rule applies to it.
        assert!(costs.rule("packets").is_none());
    }

    #[test]
    fn packets_cost_their_factor_once_an_engine_processes_them() {
        let mut costs = second();
        let cell = PlaceCosts { general: 10_000.0, engine: 50_000.0, eligible: 100_000.0 };
        costs.rules.push(rule("packets", &[(Component::Open, cell)]));
        let mut question = ProjectionRequest { packet_factor: 1.2, ..ask(&[]) };
        let of = |question: &_| project(&costs, question).unwrap().after;
        near(of(&question).rules[3].total(), 16.0);
        question.engines = Some(0);
        near(of(&question).rules[3].total(), 16.0);
        question.engines = Some(1);
        let after = of(&question);
        near(after.rules[3].engine, 5.0 + 12.0);
        near(after.rules[3].general, 1.0);
        // Handshakes cost the same on an engine.
        near(after.rules[1].total(), 80.0);
        question.scale = 2.0;
        near(of(&question).rules[3].total(), 36.0);
    }

    #[test]
    fn a_suite_scales_records_only() {
        let change = RuleChange::Suite { seal: 2.0, open: 3.0 };
        let after = project(&second(), &ask(&[("web", change)])).unwrap().after;
        near(after.components.of(Component::Seal).total(), 20.0);
        near(after.components.of(Component::Open).total(), 15.0);
        near(after.components.of(Component::Handshake).total(), 40.0);
    }

    #[test]
    fn a_permit_has_neither_handshake_nor_records() {
        let after = project(&second(), &ask(&[("web", RuleChange::Permit)])).unwrap().after;
        near(after.rules[1].total(), 25.0);
        near(after.components.of(Component::Handshake).total(), 0.0);
    }

    #[test]
    fn tls_costs_what_its_units_cost() {
        let unit = UnitCosts { handshake_us: 900.0, seal_us_per_mb: 200.0, open_us_per_mb: 100.0 };
        let after = project(&second(), &ask(&[("plain", RuleChange::Tls(unit))])).unwrap().after;
        // 10 handshakes, 5 MB sealed, 1 MB opened: 9,000 + 1,000 + 100 us of a second.
        near(after.rules[2].total(), 10.0 + 1.01);
        assert_eq!(UnitCosts::measured_handshake_us(&second()), Some(20_000.0));
    }

    #[test]
    fn a_relay_on_an_engine_takes_its_handshakes_along() {
        let question =
            ProjectionRequest { engines: Some(1), ..ask(&[("web", RuleChange::Engine)]) };
        let projected = project(&second(), &question).unwrap();
        near(projected.after.rules[1].engine, 80.0);
        near(projected.after.rules[2].general, 10.0);
        assert_eq!(second().rule("web").unwrap().message_bytes(), Some(30_000.0));
        assert_eq!(second().rule("agent"), None);
    }

    #[test]
    fn questions_that_do_not_fit_are_refused_by_name() {
        let refused = |name, change| project(&second(), &ask(&[(name, change)])).unwrap_err();
        let unit = UnitCosts { handshake_us: 1.0, seal_us_per_mb: 1.0, open_us_per_mb: 1.0 };
        assert_eq!(refused("plain", RuleChange::Permit), ProjectionError::NoTls("plain".into()));
        assert_eq!(refused("web", RuleChange::Tls(unit)), ProjectionError::IsTls("web".into()));
        let known = vec!["web".into(), "plain".into()];
        assert_eq!(
            refused("mail", RuleChange::Permit),
            ProjectionError::NoSuchRule("mail".into(), known)
        );
        let idle = MeasuredCosts { agent_us: 0.0, ..second() };
        assert_eq!(project(&idle, &ask(&[])), Err(ProjectionError::Nothing));
        // The answer of an agent without accounting.
        let mut unaccounted = second();
        unaccounted.rules.iter_mut().for_each(|rule| rule.cpu_us = Components::default());
        unaccounted.uncaptured_us = unaccounted.agent_us;
        assert_eq!(project(&unaccounted, &ask(&[])), Err(ProjectionError::NoCells));
    }
}
