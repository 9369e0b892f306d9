//! Formats the output of `tacit show` as tables with fixed columns, one line for each entry.

pub(crate) mod column;
pub mod connections;
pub mod costs;
mod filters;
mod identities;
pub mod policy;
mod stats;
pub(crate) mod table;
mod tunnels;
mod unix;
pub mod width;

use serde::Serialize;
use tacit_core::flow::Direction;

use self::table::{Column, list, optional, table};
use self::width::TextWidth;
use super::display::audit::{AuditDisplay, AuditedRule, RepeatedFlow};
use super::display::connections::ConnectionsDisplay;
use super::display::coverage::{CoverageDisplay, CoverageFlows, CoverageTotal, KernelCoverage};
use super::display::engines::{EnginesDisplay, PacketEnginesDisplay, PacketThreadDisplay};
use super::display::limits::{LimitDisplay, LimitValue, LimitsDisplay};
use super::display::metrics::MetricsDisplay;
use super::display::policy::PolicyDisplay;
use super::display::refused::{RefusedDisplay, RefusedEntry};
use super::display::rules::{RuleDisplay, RulesDisplay, TargetState};
use super::display::runs::{RunDisplay, RunsDisplay};
use super::display::traces::TracesDisplay;
use crate::engine::ThreadState;
use crate::ledger::costs::Costs;
use crate::session::trace::TraceState;

/// A display: the agent's answer, which `--json` prints as it is.
pub trait Table: Serialize {
    /// The display as text of this width; ends with a newline.
    fn text(&self, width: TextWidth) -> String;

    /// The display with all facts, for `--wide`; `None` if the text of its full width has them.
    fn wide(&self) -> Option<String> {
        None
    }
}

impl Table for ConnectionsDisplay {
    fn text(&self, width: TextWidth) -> String {
        connections::narrow(&self.connections, width)
    }

    fn wide(&self) -> Option<String> {
        Some(connections::wide(&self.connections))
    }
}

impl Table for PolicyDisplay {
    fn text(&self, width: TextWidth) -> String {
        policy::render(self, width)
    }
}

impl Table for MetricsDisplay {
    fn text(&self, _width: TextWidth) -> String {
        self.text.clone()
    }
}

impl Table for Costs {
    fn text(&self, width: TextWidth) -> String {
        costs::render(self, costs::By::Rule, width)
    }
}

impl Table for RunsDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<RunDisplay>; 10] = [
            ("ID", |run| run.id.to_string()),
            ("RUN", |run| run.name.clone()),
            ("PID", |run| run.pid.to_string()),
            ("USER", |run| run.user.clone()),
            ("OPEN", |run| run.open.to_string()),
            ("PATH", |run| run.path.clone()),
            ("LINK", |run| run.link.text()),
            ("NAMES", |run| run.names.len().to_string()),
            ("LISTEN", outside_addresses),
            ("AGE", |run| format!("{}s", run.age_s)),
        ];
        table(&self.runs, &COLUMNS, width.without(&["AGE", "NAMES", "USER", "PATH", "LINK"]))
    }
}

/// The outside addresses of a run; those that refuse connections are in parentheses.
fn outside_addresses(run: &RunDisplay) -> String {
    let addresses = run.listen.iter().map(|one| match one.open {
        true => one.address.to_string(),
        false => format!("({})", one.address),
    });
    addresses.collect::<Vec<_>>().join(",")
}

impl Table for RulesDisplay {
    fn text(&self, width: TextWidth) -> String {
        /// Only the kernel of a captured host decides about flows.
        const OF_HOST: &str = "KERNEL";
        const COLUMNS: [Column<RuleDisplay>; 10] = [
            ("RULE", |rule| rule.name.clone()),
            ("ACTION", action),
            ("ROLE", |rule| optional(rule.role.as_ref())),
            ("LISTEN", |rule| list(rule.listen.as_deref().unwrap_or_default())),
            ("CONNECT", targets),
            ("OPEN", |rule| rule.open.to_string()),
            ("HITS", |rule| rule.hits.to_string()),
            (OF_HOST, |rule| optional(rule.kernel_hits)),
            ("FAILED", |rule| rule.failures.to_string()),
            ("LAST-HIT", |rule| optional(rule.last_hit)),
        ];
        let generation = self.generation;
        let is_host = self.unmatched.is_some();
        let is_shown = |column: &Column<RuleDisplay>| column.0 != OF_HOST || is_host;
        let columns: Vec<_> = COLUMNS.into_iter().filter(is_shown).collect();
        let rules = table(&self.rules, &columns, width.without(&["LAST-HIT", "ROLE", "OPEN"]));
        let exception = match self.unmatched.as_deref() {
            Some("permit") => ", but connections of programs outside `tacit run` are permitted",
            _ => "",
        };
        let end = format!(
            "(connections that match no rule are rejected{exception}; policy generation \
             {generation})\n"
        );
        rules + &width.prose(&end)
    }
}

/// The action of a rule, marked if the rule is for packets; for a rule in audit mode, the action
/// that is not enforced.
fn action(rule: &RuleDisplay) -> String {
    match &rule.would {
        None if rule.filter => format!("filter:{}", rule.action),
        Some(would) => format!("audit:{would}"),
        None => rule.action.clone(),
    }
}

/// The targets of a rule. If there are several, a target that is down is in parentheses.
fn targets(rule: &RuleDisplay) -> String {
    let Some(targets) = &rule.targets else { return optional(rule.connect.as_ref()) };
    let target = |state: &TargetState| match state.down {
        true => format!("({})", state.connect),
        false => state.connect.clone(),
    };
    targets.states.iter().map(target).collect::<Vec<_>>().join(",")
}

impl Table for EnginesDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<ThreadState>; 15] = [
            ("THREAD", |one| one.thread.clone()),
            ("CPU", |one| one.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
            ("CLASS", |one| optional(one.class.as_ref())),
            ("NICE", |one| optional(one.nice)),
            ("STATE", |one| one.state.clone()),
            ("IN-FLIGHT", |one| optional(one.in_flight)),
            ("OPEN", |one| one.connections.to_string()),
            ("RELAYS", |one| one.relays.to_string()),
            ("HANDSHAKES", |one| one.handshakes.to_string()),
            ("HANDED", |one| one.handed.to_string()),
            ("LEFT", |one| optional(one.left)),
            ("SPILLED", |one| optional(one.spilled)),
            ("CPU-MS", |one| format!("{:.0}", one.cpu_us / 1e3)),
            ("DELAY-MS", |one| optional(one.delay_us.map(|us| format!("{:.0}", us / 1e3)))),
            ("PERCENT", |one| {
                let [all, recent] = [one.percent, one.percent_recent].map(optional);
                format!("{all} ({recent})")
            }),
        ];
        let end = match self.spill {
            None => "no engines: workers do all the work",
            Some(true) => "if all engines are saturated, workers set connections up",
            Some(false) => "if all engines are saturated, connections wait",
        };
        let Self { workers, workers_max, .. } = self;
        let threads = table(&self.threads, &COLUMNS, width.without(&ENGINES_OPTIONAL));
        let packets = self.packets.as_ref().map(|packets| packet_threads(packets, width));
        let end = width.prose(&format!("({end}; workers: {workers}, at most {workers_max})\n"));
        format!("{threads}{end}{}", packets.unwrap_or_default())
    }
}

/// The columns of `tacit show engines` that a small terminal does not have.
const ENGINES_OPTIONAL: [&str; 8] =
    ["CLASS", "NICE", "HANDED", "LEFT", "SPILLED", "HANDSHAKES", "RELAYS", "IN-FLIGHT"];

/// The threads that move packets of tunnels.
fn packet_threads(packets: &PacketEnginesDisplay, width: TextWidth) -> String {
    const COLUMNS: [Column<PacketThreadDisplay>; 9] = [
        ("THREAD", |one| one.thread.clone()),
        ("BY", |one| one.by.word().to_owned()),
        ("CPU", |one| one.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())),
        ("CLASS", |one| optional(one.class.as_ref())),
        ("NICE", |one| optional(one.nice)),
        ("STATE", |one| one.state.clone()),
        ("BUSY%", |one| one.busy_percent.to_string()),
        ("CPU-MS", |one| format!("{:.0}", one.cpu_us / 1e3)),
        ("DELAY-MS", |one| optional(one.delay_us.map(|us| format!("{:.0}", us / 1e3)))),
    ];
    let PacketEnginesDisplay { queue_bytes, queue_bytes_max, queue_drops, spills, .. } = packets;
    let threads = table(&packets.threads, &COLUMNS, width.without(&["CLASS", "NICE"]));
    let end = format!(
        "(receive queue: {queue_bytes} of {queue_bytes_max} bytes, {queue_drops} datagrams \
         dropped; the thread tacit-receive took over from the thread tacit-packet {spills} times)\n"
    );
    format!("\n{threads}{}", width.prose(&end))
}

impl Table for RefusedDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<RefusedEntry>; 8] = [
            ("LAST", |one| one.last.to_string()),
            ("TIMES", |one| one.count.to_string()),
            ("RUN", |one| optional(one.refusal.run.as_ref().map(|run| &run.name))),
            ("KIND", |one| one.refusal.kind.word().to_owned()),
            ("DESTINATION", |one| one.refusal.destination.clone()),
            ("PROGRAM", |one| optional(one.refusal.program.as_ref().map(|path| path.display()))),
            ("WHY", why),
            ("WHAT-WOULD-ALLOW-IT", |one| one.refusal.next.clone()),
        ];
        table(&self.refused, &COLUMNS, width.without(&["LAST", "RUN", "KIND", "PROGRAM"]))
    }
}

impl Table for AuditDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<AuditRow>; 8] = [
            ("RULE", |row| row.rule.clone()),
            ("WOULD", |row| row.would.clone()),
            ("LAST", |row| row.repeated.last.to_string()),
            ("TIMES", |row| row.repeated.count.to_string()),
            ("RUN", |row| row.repeated.flow.run.clone()),
            ("PROGRAM", |row| {
                optional(row.repeated.flow.program.as_ref().map(|path| path.display()))
            }),
            ("PROTOCOL", |row| row.repeated.flow.protocol.word().to_owned()),
            ("DESTINATION", |row| row.repeated.flow.destination.clone()),
        ];
        let rows: Vec<_> = self.rules.iter().flat_map(AuditRow::all).collect();
        match rows.as_slice() {
            [] => {
                format!("{} rules are in audit mode; no flow has matched them\n", self.rules.len())
            }
            rows => table(rows, &COLUMNS, width.without(&["LAST", "RUN", "PROTOCOL"])),
        }
    }
}

impl Table for CoverageDisplay {
    fn text(&self, width: TextWidth) -> String {
        const TOTALS: [Column<CoverageTotal>; 3] = [
            ("PROTECTION", |total| total.protection.word().to_owned()),
            ("NOW", |total| total.counts.now.to_string()),
            ("SEEN", |total| total.counts.seen.to_string()),
        ];
        const COLUMNS: [Column<CoverageFlows>; 11] = [
            ("PROTECTION", |row| row.flow.protection.word().to_owned()),
            ("NOW", |row| row.counts.now.to_string()),
            ("SEEN", |row| row.counts.seen.to_string()),
            ("PROGRAM", |row| optional(row.flow.program.as_ref().map(|path| path.display()))),
            ("UNIT", |row| optional(row.flow.unit.as_ref())),
            ("USER", |row| optional(row.flow.user.as_ref())),
            ("DIRECTION", |row| direction(row.flow.direction).to_owned()),
            ("REMOTE", |row| row.flow.remote.clone()),
            ("PORT", |row| format!("{}/{}", row.flow.protocol.word(), row.flow.port)),
            ("RULE", |row| optional(row.flow.rule.as_ref())),
            ("TLS", |row| match (&row.flow.tls, &row.flow.peer) {
                (Some(version), Some(peer)) => format!("{version} {peer}"),
                (version, _) => optional(version.as_ref()),
            }),
        ];
        const BY_KERNEL: [Column<KernelCoverage>; 3] = [
            ("RULE", |rule| rule.rule.clone()),
            ("ACTION", |rule| rule.action.clone()),
            ("KERNEL", |rule| rule.hits.to_string()),
        ];
        if !self.captured {
            return width.prose(
                "this agent does not capture the connections of this host. If another agent \
                 captures these connections, query it with --control /run/tacit-host/agent.sock\n",
            );
        }
        let totals = table(&self.totals, &TOTALS, width);
        let optional = &["SEEN", "USER", "UNIT", "DIRECTION", "TLS"];
        let flows = table(&self.flows, &COLUMNS, width.without(optional));
        let by_kernel = table(&self.kernel, &BY_KERNEL, width);
        format!("since {}\n{totals}\n{by_kernel}\n{flows}", self.since)
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    }
}

/// A line of `tacit show audit`.
struct AuditRow {
    rule: String,
    would: String,
    repeated: RepeatedFlow,
}

impl AuditRow {
    /// The lines of a rule.
    fn all(rule: &AuditedRule) -> impl Iterator<Item = Self> {
        let row = |repeated: &RepeatedFlow| Self {
            rule: rule.rule.clone(),
            would: rule.would.clone(),
            repeated: repeated.clone(),
        };
        rule.flows.iter().map(row)
    }
}

/// The reason of a refusal, with the rule that decided it, if there is one.
fn why(entry: &RefusedEntry) -> String {
    let why = entry.refusal.why.word();
    match &entry.refusal.rule {
        Some(rule) => format!("{why} by {rule}"),
        None => why.to_owned(),
    }
}

impl Table for TracesDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<TraceState>; 11] = [
            ("ID", |one| one.id.to_string()),
            ("OF", |one| one.of.clone()),
            ("USER", |one| one.user.clone()),
            ("PID", |one| one.pid.to_string()),
            ("PCAP", |one| optional(one.pcap.as_ref())),
            ("KEYLOG", |one| optional(one.keylog.as_ref())),
            ("UNTIL", |one| one.until.to_string()),
            ("CONNECTIONS", |one| one.connections.to_string()),
            ("PACKETS", |one| one.packets.to_string()),
            ("DROPPED", |one| one.dropped.to_string()),
            ("BYTES", |one| one.bytes.to_string()),
        ];
        table(&self.traces, &COLUMNS, width.without(&["USER", "PACKETS", "CONNECTIONS"]))
    }
}

impl Table for LimitsDisplay {
    fn text(&self, width: TextWidth) -> String {
        const COLUMNS: [Column<LimitDisplay>; 4] = [
            ("LIMIT", |limit| limit.name.clone()),
            ("MAX", |limit| match &limit.max {
                LimitValue::None => String::new(),
                LimitValue::Number(max) => max.to_string(),
                LimitValue::Text(max) => max.clone(),
            }),
            ("USED", |limit| optional(limit.used)),
            ("BEYOND", |limit| optional(limit.beyond.as_ref())),
        ];
        table(&self.limits, &COLUMNS, width)
    }
}

/// A count of bytes with three digits and a unit.
fn bytes(count: u64) -> String {
    let (unit, shift) = match count {
        0..1_024 => return count.to_string(),
        1_024..1_048_576 => ("KiB", 10),
        1_048_576..1_073_741_824 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let tenths = ((count >> (shift - 4)) * 10) >> 4;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::super::display::runs::RunLink;
    use super::*;
    use crate::clock::Rfc3339;
    use crate::control::display::VERSION;
    use crate::control::display::connections::example;
    use crate::run::link::choice::LinkLevel;
    use std::time::SystemTime;
    use tacit_core::refusal::{Refusal, RefusalKind, RefusalReason, RunLabel};

    fn limits(first: &str, second: &str) -> LimitsDisplay {
        let limits = vec![
            LimitDisplay::new(first, 9_usize).used(1_usize).beyond("wait"),
            LimitDisplay::new(second, 32_usize),
        ];
        LimitsDisplay { version: VERSION, limits }
    }

    #[test]
    fn columns_line_up_and_absent_values_are_a_dash() {
        assert_eq!(
            limits("connections", "batch-records").text(TextWidth::Whole),
            "LIMIT          MAX  USED  BEYOND\n\
             connections    9    1     wait\n\
             batch-records  32   -     -\n"
        );
    }

    #[test]
    fn columns_line_up_in_every_script() {
        assert_eq!(
            limits("数据库", "cafe\u{301}").text(TextWidth::Whole),
            "LIMIT   MAX  USED  BEYOND\n\
             数据库  9    1     wait\n\
             cafe\u{301}    32   -     -\n"
        );
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        let hostile = "a\nb\x1b[31m\u{202e}";
        let refusal = Refusal {
            kind: RefusalKind::Name,
            run: Some(RunLabel { id: 1, name: hostile.to_owned() }),
            destination: hostile.to_owned(),
            program: Some(format!("/tmp/{hostile}").into()),
            why: RefusalReason::Denied,
            rule: Some(hostile.to_owned()),
            next: hostile.to_owned(),
        };
        let last = Rfc3339(SystemTime::UNIX_EPOCH);
        let refused = vec![RefusedEntry { last, count: 1, refusal }];
        let refused = RefusedDisplay { version: VERSION, refused, totals: Vec::new() };
        let run = RunDisplay {
            id: 1,
            name: hostile.to_owned(),
            pid: 7,
            user: hostile.to_owned(),
            claimed: false,
            since: last,
            age_s: 0,
            open: 0,
            host: false,
            joined: false,
            captured: None,
            cpu: None,
            path: "auto".to_owned(),
            link: RunLink { name: None, path: None, decided_by: LinkLevel::Default },
            names: Vec::new(),
            listen: Vec::new(),
            listening: Vec::new(),
        };
        let runs = RunsDisplay { version: VERSION, runs: vec![run] };
        for shown in [refused.text(TextWidth::Whole), runs.text(TextWidth::Whole)] {
            assert_eq!(shown.lines().count(), 2, "{shown}");
            assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown:?}");
            assert!(shown.contains(r"a\nb\u{1b}[31m\u{202e}"), "{shown}");
        }
        let mut connection = example(1);
        connection.rule = hostile.to_owned();
        let connections = [connection];
        let narrow = connections::narrow(&connections, TextWidth::Terminal(80));
        for shown in [
            connections::wide(&connections),
            narrow,
            costs::connections(&connections, TextWidth::Whole),
        ] {
            assert_eq!(shown.lines().count(), 2, "{shown}");
            assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown:?}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (count, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1536, "1.5KiB"),
            (5 << 20, "5.0MiB"),
            (3_u64 << 30, "3.0GiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
