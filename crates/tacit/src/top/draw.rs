//! Draws the screen of `tacit top`: totals, components with bars, rules, connections and a help
//! line for the keyboard.
//!
//! The layout is designed for 80 columns and 24 lines. A larger terminal shows more rules and
//! connections.

use tacit_core::meter::Component;

use super::sample::Connection;
use super::screen::{Line, Size, TextStyle};
use super::view::View;
use crate::control::render::column::{fit, pad};
use crate::control::render::costs::{figure, name, perhaps};
use crate::ledger::costs::{ByCpuPlace, Costs, RuleCosts, percent};

/// Lines of the totals, including a blank line.
const TOTALS_LINES: usize = 3;
/// Lines of the components, two of them in each line.
const COMPONENT_ROWS: usize = 4;
/// Lines that rules and connections cannot use: totals, components, a blank line, headings of
/// connections, key help.
const FIXED_LINES: usize = TOTALS_LINES + COMPONENT_ROWS + 3;
/// Rules use at most the remaining lines divided by this.
const RULES_SHARE: usize = 2;
/// Lines for rules on the smallest terminal: the heading and one rule.
const RULES_LINES_MIN: usize = 2;
/// Lines above the connections: the rule they belong to, and column headings.
const CONNECTIONS_HEAD: usize = 2;
/// Width of a component's bar in character cells.
const BAR_CELLS: usize = 16;

const HELP: &[&str] = &[
    "Percentages are percent of one CPU: two fully used CPUs are 200 %.",
    "",
    "general   work that engines cannot do; CPUs without an engine did this work",
    "engine    work that engines did",
    "eligible  work that engines could have done, but that other CPUs did",
    "",
    "US/CONN   CPU time of a rule per opened connection, in microseconds",
    "US/MSG    microseconds to receive, decrypt, encrypt and send a message",
    "US/MB     microseconds to receive, decrypt, encrypt and send 1 MB (10^6 bytes)",
    "",
    "q  quit                 s  sort rules by the next column",
    "up, down     select a rule; the up key on the first rule selects all rules",
    "left, right  previous and next page of connections",
    "?  this help",
];

/// Draws the frame, at most as many lines as the terminal has.
pub(super) fn frame(view: &mut View, size: Size) -> Vec<Line> {
    let left = size.lines.saturating_sub(FIXED_LINES);
    let rules_max = (left / RULES_SHARE).max(RULES_LINES_MIN);
    let rules_lines = rules_max.min(view.rules().len() + 1);
    let mut lines = Vec::new();
    if let Some(costs) = view.costs() {
        lines.extend(totals(costs, view));
        lines.push(Line::default());
        lines.extend(components(costs));
        lines.push(Line::default());
        lines.extend(rules(costs, view, rules_lines, size.columns));
    }
    lines.resize(TOTALS_LINES + COMPONENT_ROWS + 1 + rules_lines, Line::default());
    let above_keys = size.lines.saturating_sub(1);
    let connections_lines = above_keys.saturating_sub(lines.len());
    lines.extend(connections(view, connections_lines, size.columns));
    lines.resize(above_keys, Line::default());
    lines.push(keys(view));
    if view.has_help() {
        cover_with_help(&mut lines);
    }
    lines.truncate(size.lines);
    lines.iter().map(|line| line.cut(size.columns)).collect()
}

fn totals(costs: &Costs, view: &View) -> Vec<Line> {
    let ByCpuPlace { general, engine, eligible } = costs.percent_of_one_cpu;
    let title = Line::of(TextStyle::Title, "tacit  ");
    let first = match view.lost() {
        Some(reason) => title.and(TextStyle::Alarm, reason),
        None => {
            let state = format!(
                "open connections {open}, agent up {age}, CPUs {cpus}, interval {seconds:.1} s",
                open = view.open(),
                age = duration(view.age_s()),
                cpus = costs.cpus,
                seconds = costs.interval_s,
            );
            title.and(TextStyle::Plain, state)
        }
    };
    let second = format!(
        "CPU%  general {}  engine {}  eligible {}  uncaptured {}  accounting {}",
        figure(general),
        figure(engine),
        figure(eligible),
        figure(percent(costs.uncaptured_cpu_us, costs.interval_s * 1e6)),
        figure(percent(costs.accounting.cpu_us, costs.interval_s * 1e6)),
    );
    vec![first, Line::of(TextStyle::Plain, second)]
}

fn duration(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    let hours = minutes / 60.0;
    let days = hours / 24.0;
    if seconds < 60.0 {
        format!("{:.0}s", seconds.floor())
    } else if minutes < 60.0 {
        format!("{:.0}m", minutes.floor())
    } else if hours < 48.0 {
        format!("{:.0}h", hours.floor())
    } else {
        format!("{:.0}d", days.floor())
    }
}

/// The longest bar is that of the largest component.
fn components(costs: &Costs) -> Vec<Line> {
    let percent_of = |component: Component| {
        let cells = costs.rules.iter().filter_map(|rule| rule.cpu_us.get(&component));
        let sum = cells.fold(ByCpuPlace::default(), |sum, cell| sum.zip(cell, |a, b| a + b));
        sum.zip(&sum, |us, _| percent(us, costs.interval_s * 1e6))
    };
    let sums = Component::ALL.map(percent_of);
    let greatest = sums.iter().map(ByCpuPlace::sum).fold(0.0, f64::max);
    let row = |row: usize| {
        let mut line = Line::default();
        for at in [row, row + COMPONENT_ROWS] {
            let (Some(component), Some(sum)) = (Component::ALL.get(at), sums.get(at)) else {
                continue;
            };
            if at != row {
                line = line.and(TextStyle::Plain, "   ");
            }
            line = with_bar(line, *component, sum, greatest);
        }
        line
    };
    (0..COMPONENT_ROWS).map(row).collect()
}

/// A component: its name, its percentage, and a bar with a shade for each kind of CPU time.
fn with_bar(line: Line, component: Component, places: &ByCpuPlace, greatest: f64) -> Line {
    let cells = |percent: f64| {
        let share = if greatest > 0.0 { percent / greatest } else { 0.0 };
        (1..=BAR_CELLS).take_while(|cell| *cell as f64 <= share * BAR_CELLS as f64 + 0.5).count()
    };
    let general = cells(places.general);
    let engine = cells(places.general + places.engine);
    let all = cells(places.sum());
    line.and(TextStyle::Plain, format!("{:9} {:>6} ", component.word(), figure(places.sum())))
        .and(TextStyle::General, "█".repeat(general))
        .and(TextStyle::Engine, "▒".repeat(engine.saturating_sub(general)))
        .and(TextStyle::Eligible, "▓".repeat(all.saturating_sub(engine)))
        .and(TextStyle::Plain, " ".repeat(BAR_CELLS - all))
}

/// A line of the rules table: the name, then the numbers.
fn rule_line(name: &str, cells: [String; 7]) -> String {
    let [cpu, conn, messages, mb, per_conn, per_msg, per_mb] = cells;
    format!(
        "{name} {cpu:>6} {conn:>7} {messages:>7} {mb:>7} {per_conn:>8} {per_msg:>8} {per_mb:>8}",
        name = fit(name, 20)
    )
}

fn rules(costs: &Costs, view: &View, lines_max: usize, columns: usize) -> Vec<Line> {
    let headings = ["CPU%", "CONN/S", "MSG/S", "MB/S", "US/CONN", "US/MSG", "US/MB"];
    let title = rule_line("RULE", headings.map(str::to_owned));
    let mut lines = vec![Line::of(TextStyle::Heading, pad(&title, columns))];
    let shown = view.rules();
    let room = lines_max.saturating_sub(1);
    let selected = shown.iter().position(|rule| Some(&*name(rule)) == view.selected());
    // Keeps the selected rule visible.
    let skipped = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (at, rule) in shown.into_iter().enumerate().skip(skipped).take(room) {
        let style = if selected == Some(at) { TextStyle::Selected } else { TextStyle::Plain };
        lines.push(Line::of(style, pad(&rule_text(rule, costs), columns)));
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
        "{id:>8} {rule} {remote} {program} {tls:>4} {mb:>8} {cpu:>8}",
        rule = fit(rule, 14),
        remote = fit(remote, 21),
        program = fit(program, 10)
    )
}

fn connections(view: &mut View, lines_max: usize, columns: usize) -> Vec<Line> {
    if lines_max < CONNECTIONS_HEAD {
        return Vec::new();
    }
    let rule = view.selected().map_or_else(|| "all rules".to_owned(), str::to_owned);
    let page = view.connections(lines_max - CONNECTIONS_HEAD);
    let title = connection_line(["ID", "RULE", "REMOTE", "PROGRAM", "TLS", "MB", "CPU-MS"]);
    let number = page.at + 1;
    let count = page.count;
    let heading = format!("Connections of {rule}, page {number} of {count}");
    let mut lines = vec![
        Line::of(TextStyle::Plain, heading),
        Line::of(TextStyle::Heading, pad(&title, columns)),
    ];
    lines.extend(page.connections.into_iter().map(|one| {
        let Connection { id, rule, remote, program, tls, bytes, cpu_us, .. } = one;
        let number = id.to_string();
        let mb = figure(*bytes as f64 / 1e6);
        let cpu_ms = figure(cpu_us / 1000.0);
        Line::of(
            TextStyle::Plain,
            connection_line([&number, rule, remote, program, tls, &mb, &cpu_ms]),
        )
    }));
    lines
}

fn keys(view: &View) -> Line {
    let by = view.order().word();
    let text = format!("q quit   s sort (by {by})   up/down rule   left/right page   ? help");
    Line::of(TextStyle::Hint, text)
}

/// Draws the help over the middle of the frame.
fn cover_with_help(lines: &mut [Line]) {
    let first = lines.len().saturating_sub(HELP.len()) / 2;
    for (line, help) in lines.iter_mut().skip(first).zip(HELP) {
        *line = Line::of(TextStyle::Plain, format!("  {help}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::render::column::width;
    use crate::top::view::tests::sample;

    fn drawn(view: &mut View, columns: usize, lines: usize) -> String {
        let frame = frame(view, Size { columns, lines });
        assert_eq!(frame.len(), lines, "as many lines as the screen has");
        let texts: Vec<_> = frame.iter().map(Line::text).collect();
        assert!(texts.iter().all(|text| width(text) <= columns), "{texts:#?}");
        texts.join("\n")
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
            "tacit  open connections 3, agent up 1m, CPUs 2, interval 1.0 s",
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
        for (columns, lines) in [(0, 0), (1, 1), (10, 3), (20, 12), (79, 23), (300, 100)] {
            let mut view = view();
            view.select(1);
            drawn(&mut view, columns, lines);
            view.toggle_help();
            drawn(&mut view, columns, lines);
        }
        drawn(&mut View::default(), 80, 24);
    }

    #[test]
    fn help_and_a_lost_agent_are_displayed() {
        let mut view = view();
        view.toggle_help();
        assert!(drawn(&mut view, 80, 24).contains("that engines could have done"));
        view.leave_help();
        let gone = crate::control::client::ClientError::NoAgent(
            "/run/x.sock".into(),
            std::io::ErrorKind::NotFound.into(),
        );
        view.set_lost(&gone);
        let shown = drawn(&mut view, 80, 24);
        assert!(shown.contains("no agent answers at /run/x.sock"), "{shown}");
        assert!(shown.contains("web "), "what was seen last stays: {shown}");
    }

    #[test]
    fn columns_are_aligned_with_names_in_any_script() {
        let mut sample = sample();
        sample.connections[0].program = "数据库服务器".to_owned();
        sample.connections[1].program = "\x1b[2Jcafe\u{301}".to_owned();
        sample.connections[2].remote = "a\nb\u{202e}".to_owned();
        let mut view = View::default();
        view.take(sample);
        let shown = drawn(&mut view, 80, 24);
        let end = |id: &str| {
            let start = format!("{id:>8} ");
            width(shown.lines().find(|line| line.starts_with(&start)).unwrap())
        };
        assert_eq!([end("1"), end("2"), end("3")], [end("1"); 3], "{shown}");
        assert!(shown.contains("数据库服+"), "{shown}");
        assert!(!shown.contains(['\x1b', '\u{202e}']), "{shown}");
        assert_eq!(shown.lines().count(), 24, "{shown}");
    }

    #[test]
    fn headings_and_the_selected_rule_are_highlighted_over_the_full_width() {
        let mut view = view();
        view.select(1);
        let frame = frame(&mut view, Size { columns: 100, lines: 24 });
        let looks = |wanted: TextStyle| {
            let across = |line: &&Line| **line == Line::of(wanted, pad(&line.text(), 100));
            frame.iter().filter(across).map(Line::text).collect::<Vec<_>>()
        };
        let selected = looks(TextStyle::Selected);
        assert_eq!(selected.len(), 1, "{frame:#?}");
        assert!(selected[0].starts_with("web ") && width(&selected[0]) == 100, "{selected:?}");
        let headings = looks(TextStyle::Heading);
        assert_eq!(headings.len(), 2, "{frame:#?}");
        assert!(headings.iter().all(|heading| width(heading) == 100), "{headings:?}");
    }

    #[test]
    fn a_duration_has_the_unit_that_fits() {
        assert_eq!([59.0, 61.0, 7_300.0, 1e6].map(duration), ["59s", "1m", "2h", "11d"]);
    }
}
