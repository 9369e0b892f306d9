//! Writes the report of a workload as one HTML page without external files.

use tacit_core::page::{DataTable, HtmlPage, PagePart, TableCell, number};

use super::super::threads;
use super::content::{Report, kernel};

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let title = match &report.label {
        Some(label) => format!("tacit workload {}: {label}", report.mode),
        None => format!("tacit workload {}", report.mode),
    };
    let subtitle = format!("{}; Linux {}, {} CPUs", report.summary, kernel(), threads::cpus());
    let mut parts = vec![PagePart::Table(figures(report))];
    parts.extend(report.tables.iter().cloned().map(PagePart::Table));
    let mut charts = report.charts.iter().filter(|chart| !chart.is_empty()).peekable();
    if charts.peek().is_some() {
        parts.push(PagePart::Heading("Charts".to_owned()));
    }
    parts.extend(charts.cloned().map(PagePart::Chart));
    if !report.notes.is_empty() {
        parts.push(PagePart::Heading("Notes".to_owned()));
        parts.push(PagePart::Notes(report.notes.clone()));
    }
    HtmlPage { title, subtitle, parts }.html()
}

fn figures(report: &Report) -> DataTable {
    let mut columns = vec!["figure".to_owned(), "value".to_owned()];
    if let Some(beside) = &report.beside {
        columns.extend([beside.label.clone(), "ratio".to_owned()]);
    }
    let rows = report.figures.iter().map(|figure| {
        let value = format!("{} {}", number(figure.value), figure.unit);
        let mut row = vec![TableCell::Text(figure.title.clone()), TableCell::Text(value)];
        if let Some(beside) = &report.beside {
            let numbers = [beside.value(figure), beside.ratio(figure)];
            row.extend(numbers.map(|number| TableCell::Number(number.unwrap_or(f64::NAN))));
        }
        row
    });
    DataTable { title: "Figures".to_owned(), columns, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::super::content::tests::report;
    use super::*;

    #[test]
    fn a_page_has_the_figures_the_tables_the_charts_and_the_notes() {
        let page = page(&report());
        for part in [
            "<td>exchanges</td><td>12,346 /s</td>",
            "<td>&lt;agent&gt;</td><td>500,000</td>",
            "10 connections, 100 bytes &amp; more",
            "<polyline",
            "<li>closed loop</li>",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }
}
