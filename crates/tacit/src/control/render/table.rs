//! Formats rows as a table with aligned columns, one line for each row.

use tacit_core::printable::printable;

use super::column;

/// A column: its heading, and the function that makes the cell of an entry.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// The cell of a value that is absent.
pub(crate) const ABSENT: &str = "-";

/// A table of these entries. A column is as wide as its widest cell; two spaces separate columns.
pub(crate) fn table<T>(entries: &[T], columns: &[Column<T>]) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    for entry in entries {
        let cell = |(_, cell): &Column<T>| {
            let text = cell(entry);
            if text.is_empty() { ABSENT.to_owned() } else { text }
        };
        rows.push(columns.iter().map(cell).collect());
    }
    lay_out(&rows)
}

/// The rows as aligned lines; the first row has the headings. Cells may hold text from other
/// hosts, so control characters are escaped.
pub(crate) fn lay_out(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<_>> =
        rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().map(|row| column::width(&row[at])).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&column::pad(cell, width + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The cell of a value that may be absent.
pub(crate) fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |value| value.to_string())
}

/// The cell of a list, separated by commas.
pub(crate) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
