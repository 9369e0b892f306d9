//! Writes the report of a workload as text in columns.

use std::fmt::Write;

use tacit_core::page::number;

use super::content::Report;

/// The report as text.
pub(super) fn text(report: &Report) -> String {
    let mut out = format!("{}: {}\n", report.mode, report.summary);
    if let Some(label) = &report.label {
        let _ = writeln!(out, "label: {label}");
    }
    figures(&mut out, report);
    for table in &report.tables {
        let _ = write!(out, "\n{}", table.text());
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
        let ratio = match beside.and_then(|beside| beside.ratio(figure)) {
            Some(ratio) => format!("{ratio:.2}"),
            None => "-".to_owned(),
        };
        let _ = writeln!(out, " {:<4} {:>12}  {ratio:>5}", figure.unit, number(value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::tests::report;
    use super::*;

    #[test]
    fn figures_and_tables_are_aligned_in_columns() {
        let text = text(&report());
        for line in [
            "interactive: 10 connections, 100 bytes & more",
            "exchanges                    12,346 /s",
            "latency p50                     502 us",
            "component     CPU us  us/exchange  % of one CPU",
            "<agent>      500,000          500          25.0",
            "all        1,500,000        1,500          75.0",
            "note: closed loop",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
