//! The report as it is printed.

use std::fmt::Write;

use super::{Cell, Report, Table, number};

/// The report in columns.
pub(super) fn text(report: &Report) -> String {
    let mut out = format!("{}: {}\n", report.mode, report.summary);
    if let Some(label) = &report.label {
        let _ = writeln!(out, "label: {label}");
    }
    figures(&mut out, report);
    for table in &report.tables {
        let _ = write!(out, "\n{}", columns(table));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn figures(out: &mut String, report: &Report) {
    let width = report.figures.iter().map(|figure| figure.title.len()).max().unwrap_or(0);
    if let Some(beside) = &report.beside {
        let _ = writeln!(out, "{:width$}  {:>12}      {:>12}  ratio", "", "", beside.label);
    }
    for figure in &report.figures {
        let _ = write!(out, "{:width$}  {:>12}", figure.title, number(figure.value));
        let beside = report.beside.as_ref();
        let Some(value) = beside.and_then(|beside| beside.value(figure)) else {
            let _ = writeln!(out, " {}", figure.unit);
            out.truncate(out.trim_end().len());
            out.push('\n');
            continue;
        };
        let ratio = beside.and_then(|beside| beside.ratio(figure));
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let _ = writeln!(out, " {:<4} {:>12}  {ratio:>5}", figure.unit, number(value));
    }
}

/// A table whose first column is text to the left, and whose others are to the right.
fn columns(table: &Table) -> String {
    let shown: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let width = |at: usize| {
        let cells = shown.iter().filter_map(|row| row.get(at).map(String::len));
        cells.chain(table.columns.get(at).map(String::len)).max().unwrap_or(0)
    };
    let mut out = format!("{}\n", table.title);
    for row in [&table.columns].into_iter().chain(&shown) {
        for (at, cell) in row.iter().enumerate() {
            let width = width(at);
            let _ = match at {
                0 => write!(out, "{cell:width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

pub(super) fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Number(value) => number(*value),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn figures_and_tables_stand_in_columns() {
        let text = text(&report());
        for line in [
            "interactive: 10 connections, 100 bytes & more",
            "exchanges               12,346 /s",
            "latency p50                502 us",
            "component     CPU us  us/exchange  % of one CPU",
            "<agent>      500,000          500          25.0",
            "all        1,500,000        1,500          75.0",
            "note: closed loop",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
