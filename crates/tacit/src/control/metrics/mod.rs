//! Collects the metrics of an agent, in the text format of Prometheus.
//!
//! ```text
//!   CPU time, counters, connections ────────> text ──> server.rs: GET /metrics
//!                                                 └──> `tacit show metrics`
//! ```
//!
//! The control thread reads counters that data workers publish, so no worker waits. The value of
//! each label is a name from the policy or a fixed word. So the number of time series depends only
//! on the policy. All removed rules share one time series for their CPU time.

pub(crate) mod exposition;
pub mod server;
mod tunnels;

use std::collections::BTreeMap;
use std::sync::Arc;

use tacit_core::meter::{Component, CpuPlace};

pub use self::exposition::CONTENT_TYPE;
use self::exposition::{Kind, Page};
use super::display::coverage::CoverageDisplay;
use super::display::identities::IdentitiesDisplay;
use super::display::refused::RefusedDisplay;
use super::display::rules::RulesDisplay;
use super::display::tunnels::IkeDisplay;
use super::render::costs::name;
use crate::clock::Rfc3339;
use crate::ike::RefusedByPeer;
use crate::ledger::costs::{ByCpuPlace, Costs, RuleCosts};
use crate::live::{Live, LiveAction, LiveRule, WaivedCheck};
use crate::packet::PacketStatistics;
use crate::session::ConnectionTable;

/// The state of the agent that metrics are computed from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The ledger.
    pub costs: &'a Costs,
    /// The rules, as `tacit show rules` has them.
    pub rules: &'a RulesDisplay,
    /// The policy in force, for the durations of its rules.
    pub live: &'a Live,
    /// Open connections.
    pub table: &'a ConnectionTable,
    /// The certificates and CRLs, as `tacit show identities` has them.
    pub identities: &'a IdentitiesDisplay,
    /// When the agent started.
    pub since: Rfc3339,
    /// Handshakes in progress.
    pub handshakes: usize,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// Programs under `tacit run`.
    pub runs: usize,
    /// Lines of the log that were lost.
    pub log_lines_lost: u64,
    /// Refused requests of programs, as `tacit show refused` has them.
    pub refused: &'a RefusedDisplay,
    /// Packets that were refused because there was no tunnel.
    pub refused_by_peer: &'a RefusedByPeer,
    /// The connections with peers of tunnels.
    pub ike: &'a IkeDisplay,
    /// What the tunnels have processed.
    pub packets: &'a PacketStatistics,
    /// The flows of the captured host, as `tacit show coverage` has them.
    pub coverage: Option<&'a CoverageDisplay>,
}

/// All metrics, as text.
#[must_use]
pub fn text(sources: &Sources<'_>) -> String {
    let mut page = Page::default();
    agent(&mut page, sources);
    connections(&mut page, sources);
    decided(&mut page, sources.rules);
    latencies(&mut page, &sources.live.rules);
    waived(&mut page, &sources.live.rules);
    refused(&mut page, sources.refused);
    covered(&mut page, sources.coverage);
    tunnels::write(&mut page, sources.ike, sources.packets);
    tunnels::refused(&mut page, sources.ike, sources.refused_by_peer);
    traffic(&mut page, &sources.costs.rules);
    cpu_time(&mut page, sources.costs);
    certificates(&mut page, sources.identities);
    page.finish()
}

fn decided(page: &mut Page, display: &RulesDisplay) {
    let rules = &display.rules;
    let mut hits = page.family(
        "tacit_rule_hits_total",
        Kind::Counter,
        "Connections and datagram flows that matched the rule, including those that it denied.",
    );
    for rule in rules {
        hits.sample(&[("rule", &rule.name)], rule.hits as f64);
    }
    let mut by_kernel = page.family(
        "tacit_rule_kernel_hits_total",
        Kind::Counter,
        "Connections and datagrams that the kernel of a captured host handled without the agent, \
         by rule.",
    );
    for rule in rules {
        if let Some(hits) = rule.kernel_hits {
            by_kernel.sample(&[("rule", &rule.name)], hits as f64);
        }
    }
    let mut failures = page.family(
        "tacit_connections_failed_total",
        Kind::Counter,
        "Connections that failed before the first byte was relayed.",
    );
    for rule in rules {
        failures.sample(&[("rule", &rule.name)], rule.failures as f64);
    }
    let mut by_kind = page.family(
        "tacit_failures_total",
        Kind::Counter,
        "Connections that failed before the first byte was relayed, by kind of failure.",
    );
    for rule in rules {
        for (kind, count) in &rule.failures_by_kind {
            by_kind.sample(&[("rule", &rule.name), ("kind", kind)], *count as f64);
        }
    }
    let mut down = page.family(
        "tacit_targets_down",
        Kind::Gauge,
        "Targets that the agent could not connect to in the last attempt, for rules with several \
         targets.",
    );
    for rule in rules {
        if let Some(targets) = &rule.targets {
            let count = targets.states.iter().filter(|target| target.down).count();
            down.sample(&[("rule", &rule.name)], count as f64);
        }
    }
}

fn latencies(page: &mut Page, rules: &[Arc<LiveRule>]) {
    let secured = rules.iter().filter(|rule| rule.action.tls().is_some());
    let mut handshakes = page.family(
        "tacit_handshake_duration_seconds",
        Kind::Histogram,
        "Duration of successful TLS handshakes, including the wait for the handshake limiter.",
    );
    for rule in secured {
        handshakes.histogram(("rule", rule.name()), &rule.counters.handshakes.counts());
    }
    let mut connects = page.family(
        "tacit_connect_duration_seconds",
        Kind::Histogram,
        "Duration of successful connection attempts to the upstream, including name resolution.",
    );
    for rule in rules.iter().filter(|rule| !matches!(rule.action, LiveAction::Deny(_))) {
        connects.histogram(("rule", rule.name()), &rule.counters.connects.counts());
    }
}

fn waived(page: &mut Page, rules: &[Arc<LiveRule>]) {
    let mut waived = page.family(
        "tacit_certificates_waived_total",
        Kind::Counter,
        "Connections that the rule accepted although a check of the peer's certificate failed. \
         The label `check` names the failed check.",
    );
    for rule in rules.iter().filter(|rule| rule.action.tls().is_some()) {
        for check in WaivedCheck::ALL {
            let labels = [("rule", rule.name()), ("check", check.word())];
            waived.sample(&labels, rule.counters.waived(check) as f64);
        }
    }
}

fn agent(page: &mut Page, sources: &Sources<'_>) {
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("commit", env!("TACIT_COMMIT")),
        ("target", env!("TACIT_TARGET")),
    ];
    page.family(
        "tacit_build_info",
        Kind::Gauge,
        "Version, commit and build target of the agent, as labels. The value is always 1.",
    )
    .sample(&build, 1.0);
    page.family(
        "process_start_time_seconds",
        Kind::Gauge,
        "Time at which the agent started, in seconds since the Unix epoch.",
    )
    .sample(&[], sources.since.unix_s());
    page.family(
        "tacit_policy_revision",
        Kind::Gauge,
        "Number of policies that were installed since the agent started.",
    )
    .sample(&[], sources.rules.generation as f64);
    let mut rules = page.family(
        "tacit_rule_info",
        Kind::Gauge,
        "Action of the rule, as a label. The value is always 1.",
    );
    for rule in &sources.rules.rules {
        rules.sample(&[("rule", &rule.name), ("action", &rule.action)], 1.0);
    }
    page.family(
        "tacit_runs_active",
        Kind::Gauge,
        "Number of active runs (programs under tacit run).",
    )
    .sample(&[], sources.runs as f64);
    page.family(
        "tacit_log_lines_lost_total",
        Kind::Counter,
        "Log and audit lines that were lost because they could not be written.",
    )
    .sample(&[], sources.log_lines_lost as f64);
}

fn refused(page: &mut Page, display: &RefusedDisplay) {
    let mut refused = page.family(
        "tacit_refused_total",
        Kind::Counter,
        "DNS names, connections, datagram flows, clients and sockets that tacit refused, by \
         reason.",
    );
    for total in &display.totals {
        refused.sample(&[("why", total.why.word())], total.count as f64);
    }
}

/// An agent that does not capture the host has both families without samples, so that alert rules
/// and dashboards find the metrics of every agent.
fn covered(page: &mut Page, display: Option<&CoverageDisplay>) {
    let totals = || display.into_iter().flat_map(|display| &display.totals);
    let mut now = page.family(
        "tacit_host_flows",
        Kind::Gauge,
        "Open sockets that the captured host uses to communicate with other hosts, by kind of \
         protection.",
    );
    for total in totals() {
        now.sample(&[("protection", total.protection.word())], total.counts.now as f64);
    }
    let mut seen = page.family(
        "tacit_host_flows_total",
        Kind::Counter,
        "Sockets that the captured host used to communicate with other hosts, counted since the \
         agent started, by kind of protection.",
    );
    for total in totals() {
        seen.sample(&[("protection", total.protection.word())], total.counts.seen as f64);
    }
}

fn connections(page: &mut Page, sources: &Sources<'_>) {
    let mut open: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for rule in &sources.live.rules {
        let versions: &[_] = match rule.action {
            LiveAction::Tls(_) => &["none", "1.2", "1.3"],
            LiveAction::Permit => &["none"],
            LiveAction::Deny(_) => &[],
        };
        // Alert rules can watch a series only if it also exists while its value is zero.
        open.extend(versions.iter().map(|version| ((rule.name().to_owned(), *version), 0)));
    }
    for record in sources.table.snapshot() {
        let version = record.tls.get().map_or("none", |tls| tls.agreed.version.word());
        *open.entry((record.rule.name().to_owned(), version)).or_default() += 1;
    }
    let mut active = page.family(
        "tacit_connections_active",
        Kind::Gauge,
        "Open connections and datagram flows, by negotiated TLS version.",
    );
    for ((rule, version), count) in &open {
        active.sample(&[("rule", rule), ("version", version)], *count as f64);
    }
    page.family(
        "tacit_connections_limit",
        Kind::Gauge,
        "Maximum number of open connections that the agent allows.",
    )
    .sample(&[], sources.connections_max as f64);
    page.family("tacit_handshakes_active", Kind::Gauge, "TLS handshakes in progress.")
        .sample(&[], sources.handshakes as f64);
}

/// A metric family with one value for each rule of the ledger.
struct RuleFamily {
    name: &'static str,
    help: &'static str,
    value: fn(&RuleCosts) -> u64,
}

fn traffic(page: &mut Page, rules: &[RuleCosts]) {
    const FAMILIES: [RuleFamily; 5] = [
        RuleFamily {
            name: "tacit_connections_opened_total",
            help: "Connections and datagram flows that were opened.",
            value: |r| r.connections,
        },
        RuleFamily {
            name: "tacit_sent_bytes_total",
            help: "Payload bytes from the client (downstream) to the server (upstream).",
            value: |r| r.bytes_sent,
        },
        RuleFamily {
            name: "tacit_received_bytes_total",
            help: "Payload bytes from the server (upstream) to the client (downstream).",
            value: |r| r.bytes_received,
        },
        RuleFamily {
            name: "tacit_sent_messages_total",
            help: "Messages from the client. A message is all bytes that one side sends until the \
                   other side sends a byte.",
            value: |r| r.messages_sent,
        },
        RuleFamily {
            name: "tacit_received_messages_total",
            help: "Messages from the server. A message is all bytes that one side sends until the \
                   other side sends a byte.",
            value: |r| r.messages_received,
        },
    ];
    for RuleFamily { name: family_name, help, value } in FAMILIES {
        let mut family = page.family(family_name, Kind::Counter, help);
        for rule in rules {
            family.sample(&[("rule", &name(rule))], value(rule) as f64);
        }
    }
    let mut handshakes =
        page.family("tacit_handshakes_total", Kind::Counter, "TLS handshakes that succeeded.");
    for rule in rules {
        let full = rule.handshakes.saturating_sub(rule.resumed);
        for (result, count) in [("full", full), ("resumed", rule.resumed)] {
            handshakes.sample(&[("rule", &name(rule)), ("result", result)], count as f64);
        }
    }
}

fn cpu_time(page: &mut Page, costs: &Costs) {
    let seconds = |us: f64| us / 1e6;
    let mut cells = page.family(
        "tacit_cpu_seconds_total",
        Kind::Counter,
        "CPU time by rule, component and place. The places: `engine` (a CPU with an engine), \
         `eligible` (another CPU, but an engine could have done the work) and `general` (all \
         other work).",
    );
    for rule in &costs.rules {
        let name = name(rule);
        for component in Component::ALL {
            let cell = rule.cpu_us.get(&component).copied().unwrap_or_default();
            let ByCpuPlace { general, engine, eligible } = cell;
            for (place, us) in [
                (CpuPlace::General, general),
                (CpuPlace::Engine, engine),
                (CpuPlace::Eligible, eligible),
            ] {
                let labels =
                    [("rule", &*name), ("component", component.word()), ("place", place.word())];
                cells.sample(&labels, seconds(us));
            }
        }
    }
    page.family("process_cpu_seconds_total", Kind::Counter, "CPU time of the agent's process.")
        .sample(&[], seconds(costs.agent_cpu_us));
    page.family(
        "tacit_cpu_uncaptured_seconds",
        Kind::Gauge,
        "The agent's CPU time that the ledger has assigned to no rule and no component.",
    )
    .sample(&[], seconds(costs.uncaptured_cpu_us));
    page.family(
        "tacit_accounting_cpu_seconds",
        Kind::Gauge,
        "Estimated CPU time that the agent uses to measure its CPU time.",
    )
    .sample(&[], seconds(costs.accounting.cpu_us));
}

fn certificates(page: &mut Page, display: &IdentitiesDisplay) {
    let mut not_after = page.family(
        "tacit_cert_not_after_seconds",
        Kind::Gauge,
        "Expiry time of a certificate, in seconds since the Unix epoch. For [trust.NAME]: the \
         expiry time of the certificate that expires first.",
    );
    for identity in &display.identities {
        let labels = [("kind", identity.kind.as_str()), ("name", identity.name.as_str())];
        not_after.sample(&labels, identity.certificate.not_after.unix_s());
    }
    for trust in &display.trusts {
        if let Some(first) = trust.expires {
            let labels = [("kind", trust.kind.as_str()), ("name", trust.name.as_str())];
            not_after.sample(&labels, first.unix_s());
        }
    }
    let mut next_update = page.family(
        "tacit_crl_next_update_seconds",
        Kind::Gauge,
        "Earliest time at which a CRL of [trust.NAME] becomes outdated (nextUpdate), in seconds \
         since the Unix epoch.",
    );
    for trust in &display.trusts {
        if let Some(first) = trust.crl_until {
            next_update.sample(&[("name", &trust.name)], first.unix_s());
        }
    }
}
