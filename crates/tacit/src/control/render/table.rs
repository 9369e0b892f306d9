//! Lays out rows as a table with aligned columns, one line for each row.

use serde_json::Value;
use tacit_core::printable::printable;

use super::column;

/// A column: its heading, and the function that makes the cell of an entry.
pub(super) type Column = (&'static str, fn(&Value) -> String);

/// A table of these entries. A column is as wide as its widest cell; two spaces separate columns.
pub(super) fn table(entries: &Value, columns: &[Column]) -> String {
    let entries = entries.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    for entry in entries {
        rows.push(columns.iter().map(|(_, cell)| cell(entry)).collect());
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

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) if text.is_empty() => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "-".into(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
