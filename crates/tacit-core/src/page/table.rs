//! Formats a table as text and as Markdown.

use std::fmt::Write;

use super::number::number;

/// A table of named columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataTable {
    /// What it shows.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows from the top.
    pub rows: Vec<Vec<TableCell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum TableCell {
    /// Text.
    Text(String),
    /// A number, with the digits that are known.
    Number(f64),
}

impl DataTable {
    /// Formats the table as text. The first column is aligned to the left, the others to the right.
    #[must_use]
    pub fn text(&self) -> String {
        let shown: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(TableCell::shown).collect()).collect();
        let width_of = |at: usize| {
            let cells = shown.iter().filter_map(|row| row.get(at).map(String::len));
            cells.chain(self.columns.get(at).map(String::len)).max().unwrap_or(0)
        };
        let mut out = format!("{}\n", self.title);
        for row in [&self.columns].into_iter().chain(&shown) {
            for (at, cell) in row.iter().enumerate() {
                let width = width_of(at);
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

    /// Formats the table as Markdown, without its title.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(self.columns.clone());
        let rule = |at: usize| if at == 0 { "---" } else { "---:" }.to_owned();
        out.push_str(&line((0..self.columns.len()).map(rule).collect()));
        for row in &self.rows {
            // A vertical bar would end the cell.
            let cells = row.iter().map(|cell| cell.shown().replace('|', "\\|"));
            out.push_str(&line(cells.collect()));
        }
        out
    }
}

impl TableCell {
    /// Returns the text of the cell.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(value) => number(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_text_and_markdown() {
        let table = DataTable {
            title: "CPU".to_owned(),
            columns: vec!["who".to_owned(), "us".to_owned()],
            rows: vec![vec![TableCell::Text("a|b".to_owned()), TableCell::Number(1234.0)]],
        };
        assert_eq!(table.text(), "CPU\nwho     us\na|b  1,234\n");
        assert_eq!(table.markdown(), "| who | us |\n| --- | ---: |\n| a\\|b | 1,234 |\n");
    }
}
