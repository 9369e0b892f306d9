//! A frame: totals, components as bars, rules, connections, keys.
//!
//! It is made for 80 columns and 24 lines; what is wider or higher gets more rules and
//! connections, what is smaller loses connections, then rules.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};
use tacit_core::meter::Component;

use super::sample::Connection;
use super::view::View;
use crate::control::render::costs::{figure, name, perhaps};
use crate::ledger::costs::{Costs, Places, RuleCosts, percent};

/// Rows of components: two side by side.
const COMPONENT_ROWS: u16 = 4;
/// Rules get the space they need, up to this part of what is left.
const RULES_SHARE: u16 = 2;
/// Cells of a component's bar.
const BAR_CELLS: usize = 16;

const HELP: &[&str] = &[
    "Percentages are of one CPU; two busy CPUs are 200.",
    "",
    "general   what no engine could have done",
    "engine    what engines did",
    "eligible  what an engine could have done, on a general CPU",
    "",
    "US/CONN   all that a rule cost, for each connection opened",
    "US/MSG    receive, seal, open and send, for each message",
    "US/MB     the same for each MB (10^6 bytes)",
    "",
    "q  quit                 s  sort rules by the next column",
    "up, down  choose a rule; above the first: all",
    "left, right  pages of its connections",
    "?  this help",
];

/// Draws everything.
pub(super) fn frame(frame: &mut Frame<'_>, view: &mut View) {
    let rules = u16::try_from(view.rules().len()).unwrap_or(u16::MAX).saturating_add(1);
    let area = frame.area();
    let left = area.height.saturating_sub(3 + COMPONENT_ROWS + 3);
    let rules = rules.min((left / RULES_SHARE).max(2));
    let [totals, _, components, _, rules, connections, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Length(COMPONENT_ROWS),
        Constraint::Length(1),
        Constraint::Length(rules),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    if let Some(costs) = view.costs() {
        frame.render_widget(Paragraph::new(self::totals(costs, view)), totals);
        frame.render_widget(Paragraph::new(self::components(costs)), components);
        frame.render_widget(Paragraph::new(self::rules(costs, view, rules)), rules);
    }
    let lines = self::connections(view, connections);
    frame.render_widget(Paragraph::new(lines), connections);
    frame.render_widget(Paragraph::new(self::keys(view)), keys);
    if view.has_help() {
        help(frame, area);
    }
}

fn heading() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

fn totals(costs: &Costs, view: &View) -> Vec<Line<'static>> {
    let Places { general, engine, eligible } = costs.percent_of_one_cpu;
    let state = match view.lost() {
        Some(reason) => Span::styled(reason.to_owned(), Style::new().fg(Color::Red)),
        None => Span::raw(format!(
            "{} open, agent up {}, {} CPUs, last {:.1} s",
            view.open(),
            duration(view.age_s()),
            costs.cpus,
            costs.interval_s,
        )),
    };
    vec![
        Line::from(vec![Span::styled("tacit  ", Style::new().add_modifier(Modifier::BOLD)), state]),
        Line::from(format!(
            "CPU%  general {}  engine {}  eligible {}  uncaptured {}  accounting {}",
            figure(general),
            figure(engine),
            figure(eligible),
            figure(percent(costs.uncaptured_cpu_us, costs.interval_s * 1e6)),
            figure(percent(costs.accounting.cpu_us, costs.interval_s * 1e6)),
        )),
    ]
}

fn duration(seconds: f64) -> String {
    let (minutes, hours, days) = (seconds / 60.0, seconds / 3600.0, seconds / 86_400.0);
    match seconds {
        _ if seconds < 60.0 => format!("{:.0}s", seconds.floor()),
        _ if minutes < 60.0 => format!("{:.0}m", minutes.floor()),
        _ if hours < 48.0 => format!("{:.0}h", hours.floor()),
        _ => format!("{:.0}d", days.floor()),
    }
}

/// Bars are as long as the greatest component is.
fn components(costs: &Costs) -> Vec<Line<'static>> {
    let of = |component: Component| {
        let cells = costs.rules.iter().filter_map(|rule| rule.cpu_us.get(&component));
        let sum = cells.fold(Places::default(), |sum, cell| sum.zip(cell, |a, b| a + b));
        sum.zip(&sum, |us, _| percent(us, costs.interval_s * 1e6))
    };
    let sums = Component::ALL.map(|component| (component, of(component)));
    let greatest = sums.iter().map(|(_, places)| places.sum()).fold(0.0, f64::max);
    let (left, right) = sums.split_at(usize::from(COMPONENT_ROWS));
    let both = left.iter().zip(right);
    both.map(|(left, right)| {
        let mut spans = bar(left.0, &left.1, greatest);
        spans.push(Span::raw("   "));
        spans.extend(bar(right.0, &right.1, greatest));
        Line::from(spans)
    })
    .collect()
}

/// A component: its name, its percentage, and a bar in which each place has its own shade.
fn bar(component: Component, places: &Places, greatest: f64) -> Vec<Span<'static>> {
    let cells = |percent: f64| {
        let share = if greatest > 0.0 { percent / greatest } else { 0.0 };
        (1..=BAR_CELLS).take_while(|cell| *cell as f64 <= share * BAR_CELLS as f64 + 0.5).count()
    };
    let (general, engine) = (cells(places.general), cells(places.general + places.engine));
    let all = cells(places.sum());
    let part = |shade: &str, from: usize, to: usize, color: Color| {
        Span::styled(shade.repeat(to.saturating_sub(from)), Style::new().fg(color))
    };
    vec![
        Span::raw(format!("{:9} {:>6} ", component.word(), figure(places.sum()))),
        part("█", 0, general, Color::Green),
        part("▒", general, engine, Color::Cyan),
        part("▓", engine, all, Color::Yellow),
        Span::raw(" ".repeat(BAR_CELLS - all)),
    ]
}

/// The name's column, then numbers.
fn rule_line(name: &str, cells: [String; 7]) -> String {
    let [cpu, conn, messages, mb, per_conn, per_message, per_mb] = cells;
    format!(
        "{} {cpu:>6} {conn:>7} {messages:>7} {mb:>7} {per_conn:>8} {per_message:>8} {per_mb:>8}",
        fitted(name, 20)
    )
}

fn rules(costs: &Costs, view: &View, area: Rect) -> Vec<Line<'static>> {
    let headings = ["CPU%", "CONN/S", "MSG/S", "MB/S", "US/CONN", "US/MSG", "US/MB"];
    let title = wide(&rule_line("RULE", headings.map(str::to_owned)), area);
    let mut lines = vec![Line::styled(title, heading())];
    let shown = view.rules();
    let room = usize::from(area.height.saturating_sub(1));
    let chosen = shown.iter().position(|rule| Some(&*name(rule)) == view.chosen());
    // The choice stays in sight.
    let skipped = chosen.map_or(0, |at| (at + 1).saturating_sub(room));
    for rule in shown.into_iter().skip(skipped).take(room) {
        let text = rule_text(rule, costs);
        let is_chosen = Some(&*name(rule)) == view.chosen();
        let style = match is_chosen {
            true => Style::new().add_modifier(Modifier::BOLD).bg(Color::Blue),
            false => Style::new(),
        };
        lines.push(Line::styled(wide(&text, area), style));
    }
    lines
}

fn rule_text(rule: &RuleCosts, costs: &Costs) -> String {
    let a_second = |count: f64| figure(count / costs.interval_s.max(f64::MIN_POSITIVE));
    let bytes = (rule.bytes_sent + rule.bytes_received) as f64;
    let cells = [
        figure(percent(rule.total_us(), costs.interval_s * 1e6)),
        a_second(rule.connections as f64),
        a_second((rule.messages_sent + rule.messages_received) as f64),
        a_second(bytes / 1e6),
        perhaps(rule.cpu_us_per_connection),
        perhaps(rule.cpu_us_per_message),
        perhaps(rule.cpu_us_per_mb),
    ];
    rule_line(&name(rule), cells)
}

fn connection_line(cells: [&str; 7]) -> String {
    let [id, rule, remote, program, tls, mb, cpu] = cells;
    format!(
        "{id:>8} {} {} {} {tls:>4} {mb:>8} {cpu:>8}",
        fitted(rule, 14),
        fitted(remote, 21),
        fitted(program, 10)
    )
}

fn connections(view: &mut View, area: Rect) -> Vec<Line<'static>> {
    if area.height < 2 {
        return Vec::new();
    }
    let whose = view.chosen().map_or_else(|| "all rules".to_owned(), str::to_owned);
    let (page, at, pages) = view.connections(usize::from(area.height - 2));
    let title = connection_line(["ID", "RULE", "REMOTE", "PROGRAM", "TLS", "MB", "CPU-MS"]);
    let mut lines = vec![
        Line::raw(format!("Connections of {whose}, page {} of {pages}", at + 1)),
        Line::styled(wide(&title, area), heading()),
    ];
    lines.extend(page.into_iter().map(|one| {
        let Connection { id, rule, remote, program, tls, bytes, cpu_us, .. } = one;
        let (mb, cpu_ms) = (figure(*bytes as f64 / 1e6), figure(cpu_us / 1000.0));
        let id = id.to_string();
        Line::raw(connection_line([&id, rule, remote, program, tls, &mb, &cpu_ms]))
    }));
    lines
}

fn keys(view: &View) -> Line<'static> {
    let by = view.order().word();
    Line::styled(
        format!("q quit   s sort (by {by})   up/down rule   left/right page   ? help"),
        Style::new().add_modifier(Modifier::DIM),
    )
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let height = u16::try_from(HELP.len()).unwrap_or(u16::MAX).min(area.height);
    let [_, middle, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(height), Constraint::Fill(1)])
            .areas(area);
    let lines: Vec<_> = HELP.iter().map(|line| Line::raw(format!("  {line}"))).collect();
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines), middle);
}

/// Text in a column of that width; what is cut shows it.
fn fitted(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return format!("{text:width$}");
    }
    text.chars().take(width - 1).chain(['+']).collect()
}

/// A line as wide as the screen, for a background.
fn wide(text: &str, area: Rect) -> String {
    format!("{text:width$}", width = usize::from(area.width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::view::tests::sample;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|area| frame(area, view)).unwrap();
        terminal.backend().to_string()
    }

    fn view() -> View {
        let mut view = View::default();
        view.take(sample());
        view
    }

    #[test]
    fn a_small_screen_has_totals_bars_rules_connections_and_keys() {
        let shown = drawn(&mut view(), 80, 24);
        for line in [
            "tacit  3 open, agent up 1m, 2 CPUs, last 1.0 s",
            "CPU%  general 27.0  engine 0  eligible 13.5  uncaptured 0.50  accounting 0.00",
            "seal        20.1 ███████████▓▓▓▓▓   policy         0",
            "RULE                   CPU%  CONN/S   MSG/S    MB/S  US/CONN   US/MSG    US/MB",
            "web                    30.0    2.00    20.0    2.00   100000     5000      100",
            "plain                  10.0    5.00    20.0    18.0    33333     1667     33.3",
            "(agent itself)         0.30",
            "Connections of all rules, page 1 of 1",
            "       3 web            10.0.0.3:40000                    1.3        0        0",
            "q quit   s sort (by CPU)   up/down rule   left/right page   ? help",
        ] {
            assert!(shown.contains(line), "no {line:?} in\n{shown}");
        }
    }

    #[test]
    fn a_screen_of_any_size_can_be_drawn_on() {
        for (width, height) in [(1, 1), (10, 3), (20, 12), (79, 23), (300, 100)] {
            let mut view = view();
            view.choose(1);
            drawn(&mut view, width, height);
            view.toggle_help();
            drawn(&mut view, width, height);
        }
        drawn(&mut View::default(), 80, 24);
    }

    #[test]
    fn help_and_a_lost_agent_are_seen() {
        let mut view = view();
        view.toggle_help();
        assert!(drawn(&mut view, 80, 24).contains("what an engine could have done"));
        view.leave_help();
        let gone = crate::control::client::ClientError::NoAgent(
            "/run/x.sock".into(),
            std::io::ErrorKind::NotFound.into(),
        );
        view.lose(&gone);
        let shown = drawn(&mut view, 80, 24);
        assert!(shown.contains("no agent answers at /run/x.sock"), "{shown}");
        assert!(shown.contains("web "), "what was seen last stays: {shown}");
    }

    #[test]
    fn long_names_are_cut_where_it_shows() {
        assert_eq!(fitted("orders-db", 12), "orders-db   ");
        assert_eq!(fitted("a-very-long-name", 8), "a-very-+");
        assert_eq!([59.0, 61.0, 7_300.0, 1e6].map(duration), ["59s", "1m", "2h", "11d"]);
    }
}
