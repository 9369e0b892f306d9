//! Reports for people: tables, charts and a page, made from what was measured.
//!
//! ```text
//! mod.rs     a table as text and as Markdown; numbers with the digits that are known
//! chart.rs   charts as SVG
//! html.rs    one self-contained page
//! ```
//! For `tacit workload` and for the benchmarks alike. Nothing is written anywhere: all of it is
//! text that somebody else prints or keeps.

mod chart;
mod html;

use std::fmt::Write;

pub use chart::{Bar, Bars, Chart, Mark, Series};
pub use html::{Page, Part};

/// Rows of numbers, each with a name for its columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows from the top.
    pub rows: Vec<Vec<Cell>>,
}

/// What stands in a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number, shown with the digits that are known.
    Number(f64),
}

impl Table {
    /// The table in columns: the first is text to the left, the others are to the right.
    #[must_use]
    pub fn text(&self) -> String {
        let shown: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(Cell::shown).collect()).collect();
        let width = |at: usize| {
            let cells = shown.iter().filter_map(|row| row.get(at).map(String::len));
            cells.chain(self.columns.get(at).map(String::len)).max().unwrap_or(0)
        };
        let mut out = format!("{}\n", self.title);
        for row in [&self.columns].into_iter().chain(&shown) {
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

    /// The table as Markdown, without its title.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(self.columns.clone());
        let rule = |at: usize| if at == 0 { "---" } else { "---:" }.to_owned();
        out.push_str(&line((0..self.columns.len()).map(rule).collect()));
        for row in &self.rows {
            // A line in a cell would end the cell.
            let cells = row.iter().map(|cell| cell.shown().replace('|', "\\|"));
            out.push_str(&line(cells.collect()));
        }
        out
    }
}

impl Cell {
    /// What is read.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value) => number(*value),
        }
    }
}

/// Three digits or more, and not more than are known.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// A whole number with a comma at every thousand.
#[must_use]
pub fn grouped(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let mut out = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_are_known() {
        for (value, wanted) in [
            (0.0, "0"),
            (0.012_34, "0.012"),
            (1.234, "1.23"),
            (99.94, "99.9"),
            (123.4, "123"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), wanted);
        }
    }

    #[test]
    fn a_table_is_text_and_markdown() {
        let table = Table {
            title: "CPU".to_owned(),
            columns: vec!["who".to_owned(), "us".to_owned()],
            rows: vec![vec![Cell::Text("a|b".to_owned()), Cell::Number(1234.0)]],
        };
        assert_eq!(table.text(), "CPU\nwho     us\na|b  1,234\n");
        assert_eq!(table.markdown(), "| who | us |\n| --- | ---: |\n| a\\|b | 1,234 |\n");
    }
}
