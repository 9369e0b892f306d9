//! Holds the data that `tacit top` shows: the latest sample, the sort order, the selected rule and
//! the page.

use super::sample::{Connection, Sample};
use crate::control::client::ClientError;
use crate::control::render::costs::name;
use crate::ledger::costs::{Costs, Kind, RuleCosts};

/// The sort order of rules: descending, except by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Cpu,
    Connections,
    Bytes,
    PerConnection,
    PerMessage,
    PerMb,
    Name,
}

impl Order {
    const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Connections,
        Self::Bytes,
        Self::PerConnection,
        Self::PerMessage,
        Self::PerMb,
        Self::Name,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Connections => "connections",
            Self::Bytes => "MB",
            Self::PerConnection => "us/connection",
            Self::PerMessage => "us/message",
            Self::PerMb => "us/MB",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The sort key of a rule; the largest is first.
    fn key(self, rule: &RuleCosts) -> f64 {
        match self {
            Self::Cpu => rule.total_us(),
            Self::Connections => rule.connections as f64,
            Self::Bytes => (rule.bytes_sent + rule.bytes_received) as f64,
            Self::PerConnection => rule.cpu_us_per_connection.unwrap_or(0.0),
            Self::PerMessage => rule.cpu_us_per_message.unwrap_or(0.0),
            Self::PerMb => rule.cpu_us_per_mb.unwrap_or(0.0),
            Self::Name => 0.0,
        }
    }
}

/// The state of the display.
#[derive(Debug, Default)]
pub(super) struct View {
    sample: Option<Sample>,
    /// Why there is no newer sample.
    lost: Option<String>,
    order: Order,
    /// The name of the selected rule. The name is stable when the order changes.
    selected: Option<String>,
    page: usize,
    help: bool,
}

impl View {
    pub(super) fn take(&mut self, sample: Sample) {
        self.sample = Some(sample);
        self.lost = None;
    }

    pub(super) fn set_lost(&mut self, error: &ClientError) {
        let reason = error.to_string();
        self.lost = reason.lines().next().map(str::to_owned);
    }

    pub(super) fn sort_by_next(&mut self) {
        self.order = self.order.next();
    }

    pub(super) fn toggle_help(&mut self) {
        self.help = !self.help;
    }

    pub(super) fn leave_help(&mut self) {
        self.help = false;
    }

    /// Moves the selection up or down. Above the first rule, all rules are selected.
    pub(super) fn select(&mut self, step: isize) {
        let names: Vec<String> = self.rules().into_iter().map(name).collect();
        let selected = names.iter().position(|name| Some(name) == self.selected.as_ref());
        // No selection is position -1, one before the first rule.
        let at = selected.and_then(|at| isize::try_from(at).ok()).unwrap_or(-1);
        let to = usize::try_from(at.saturating_add(step)).ok();
        self.selected = to.and_then(|to| names.get(to.min(names.len().saturating_sub(1))).cloned());
        self.page = 0;
    }

    pub(super) fn turn_page(&mut self, step: isize) {
        self.page = self.page.saturating_add_signed(step);
    }

    pub(super) fn costs(&self) -> Option<&Costs> {
        self.sample.as_ref().map(|sample| &sample.costs)
    }

    pub(super) fn age_s(&self) -> f64 {
        self.sample.as_ref().map_or(0.0, |sample| sample.age_s)
    }

    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn has_help(&self) -> bool {
        self.help
    }

    pub(super) fn selected(&self) -> Option<&str> {
        self.selected.as_deref()
    }

    pub(super) fn open(&self) -> usize {
        self.sample.as_ref().map_or(0, |sample| sample.connections.len())
    }

    /// The rules in sort order; the agent itself and removed rules are last.
    pub(super) fn rules(&self) -> Vec<&RuleCosts> {
        let mut rules: Vec<_> =
            self.costs().map(|costs| &costs.rules).into_iter().flatten().collect();
        let order = self.order;
        rules.sort_by(|a, b| {
            let other = |rule: &RuleCosts| rule.kind != Kind::Rule;
            (other(a).cmp(&other(b)))
                .then_with(|| order.key(b).total_cmp(&order.key(a)))
                .then_with(|| a.rule.cmp(&b.rule))
        });
        rules
    }

    /// The current page of connections: those of the selected rule or of all rules, by CPU time in
    /// descending order. If the page does not exist any more, the last page.
    pub(super) fn connections(&mut self, lines_max: usize) -> Page<'_> {
        let lines = lines_max.max(1);
        let Some(sample) = &self.sample else { return Page::default() };
        let selected = self.selected.as_deref();
        let of_rule = |one: &&Connection| selected.is_none_or(|rule| one.rule == rule);
        let mut shown: Vec<_> = sample.connections.iter().filter(of_rule).collect();
        shown.sort_by(|a, b| b.cpu_us_lately.total_cmp(&a.cpu_us_lately).then(a.id.cmp(&b.id)));
        let count = shown.len().div_ceil(lines).max(1);
        self.page = self.page.min(count - 1);
        let connections = shown.into_iter().skip(self.page * lines).take(lines).collect();
        Page { connections, at: self.page, count }
    }
}

/// A page of connections.
#[derive(Debug, Default)]
pub(super) struct Page<'a> {
    pub(super) connections: Vec<&'a Connection>,
    /// The number of the page, from 0.
    pub(super) at: usize,
    /// The number of pages.
    pub(super) count: usize,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Two rules in one second: `web` uses 30 % of a CPU, `plain` 10 % but relays more bytes.
    pub(in crate::top) fn sample() -> Sample {
        let rule = |name: Option<&str>, us: f64, connections: u64, bytes: u64| {
            let cell = |us: f64| json!({ "general": us, "engine": 0.0, "eligible": us / 2.0 });
            json!({
                "rule": name, "kind": if name.is_some() { "rule" } else { "agent" },
                "connections": connections, "handshakes": 1, "resumed": 0, "failures": 0,
                "messages-sent": 10, "messages-received": 10,
                "bytes-sent": bytes, "bytes-received": bytes,
                "cpu-us": { "seal": cell(us), "send": cell(us) },
                "cpu-us-per-connection": us, "cpu-us-per-message": us / 20.0,
                "cpu-us-per-mb": us / 1000.0,
            })
        };
        let costs = json!({
            "since": "2025-06-01T12:00:00.000Z", "interval-s": 1.0, "cpus": 2,
            "agent-cpu-us": 410_000.0, "captured-cpu-us": 405_000.0,
            "uncaptured-cpu-us": 5_000.0, "uncaptured-percent": 1.2,
            "accounting": { "stamp-ns": 10.0, "clock-read-ns": 400.0, "stamps": 1,
                            "clock-reads": 1, "cpu-us": 1.0, "percent": 0.4 },
            "percent-of-one-cpu": { "general": 27.0, "engine": 0.0, "eligible": 13.5 },
            "rules": [
                rule(None, 1_000.0, 0, 0),
                rule(Some("plain"), 33_333.0, 5, 9_000_000),
                rule(Some("web"), 100_000.0, 2, 1_000_000),
            ],
        });
        let connection = |id: u64, rule: &str, lately: f64| Connection {
            id,
            rule: rule.into(),
            remote: format!("10.0.0.{id}:40000"),
            tls: "1.3".into(),
            cpu_us_lately: lately,
            ..Connection::default()
        };
        let connections =
            vec![connection(1, "web", 5.0), connection(2, "plain", 9.0), connection(3, "web", 7.0)];
        Sample { costs: serde_json::from_value(costs).unwrap(), age_s: 61.0, connections }
    }

    fn view() -> View {
        let mut view = View::default();
        view.take(sample());
        view
    }

    fn names(view: &View) -> Vec<String> {
        view.rules().into_iter().map(name).collect()
    }

    #[test]
    fn rules_are_sorted_and_the_agent_itself_comes_last() {
        let mut view = view();
        assert_eq!(names(&view), ["web", "plain", "(agent itself)"]);
        view.sort_by_next();
        assert_eq!(view.order(), Order::Connections);
        assert_eq!(names(&view), ["plain", "web", "(agent itself)"]);
        for _ in 1..Order::ALL.len() {
            view.sort_by_next();
        }
        assert_eq!(view.order(), Order::Cpu);
    }

    #[test]
    fn the_selection_moves_within_the_rules_and_survives_sorting() {
        let mut view = view();
        assert_eq!(view.selected(), None);
        view.select(-1);
        assert_eq!(view.selected(), None);
        view.select(1);
        assert_eq!(view.selected(), Some("web"));
        view.sort_by_next();
        assert_eq!(view.selected(), Some("web"));
        view.select(1);
        view.select(1);
        assert_eq!(view.selected(), Some("(agent itself)"));
        for _ in 0..3 {
            view.select(-1);
        }
        assert_eq!(view.selected(), None);
    }

    #[test]
    fn connections_of_the_selected_rule_are_paged() {
        let mut view = view();
        let ids = |view: &mut View, lines| {
            let page = view.connections(lines);
            let ids = page.connections.iter().map(|one| one.id).collect::<Vec<_>>();
            (ids, page.at, page.count)
        };
        assert_eq!(ids(&mut view, 9), (vec![2, 3, 1], 0, 1));
        view.turn_page(1);
        assert_eq!(ids(&mut view, 2), (vec![1], 1, 2));
        view.turn_page(5);
        assert_eq!(ids(&mut view, 2), (vec![1], 1, 2), "there is no page after the last one");
        view.select(1);
        assert_eq!(ids(&mut view, 2), (vec![3, 1], 0, 1));
        view.turn_page(-1);
        assert_eq!(ids(&mut view, 0).0, [3], "a pane must have at least one line");
    }
}
