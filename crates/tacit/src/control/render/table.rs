//! Formats rows as a table with aligned columns, one line for each row.
//!
//! If a table is wider than the terminal, this module first removes optional columns. Then it cuts
//! long texts at the width of their column. Some tables do not cut long texts. In these tables, the
//! text of the last column, or of every column, continues on the next line. Numbers and times are
//! never cut.

use tacit_core::printable::printable;

use super::column;
use super::width::{LongCells, Narrowing, TextWidth, wrap};

/// A column: its heading, and the function that makes the cell of an entry.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// The cell of a value that is absent.
pub(crate) const ABSENT: &str = "-";

/// Blanks between two columns.
pub(crate) const GAP: usize = 2;

/// The width of a first column that is not broken, if long cells continue on the next line: it has
/// the names of the others.
const FIRST_COLUMN_MOST: usize = 40;
/// The width of a last column whose text continues on the next line, if that is enough for the
/// table to fit.
const LAST_COLUMN_LEAST: usize = 24;
/// The width to which a column of text is cut, if that is necessary: that of its heading, but
/// between these two.
const TEXT_LEAST: usize = 10;
const HEADING_MOST: usize = 16;
/// The longest cell that can be a number, a time or an address.
const NUMBER_MOST: usize = 24;

/// A table of these entries. A column is as wide as its widest cell; two spaces separate columns.
pub(crate) fn table<T>(
    entries: &[T],
    columns: &[Column<T>],
    narrowing: impl Into<Narrowing>,
) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    for entry in entries {
        let cell = |(_, cell): &Column<T>| {
            let text = cell(entry);
            if text.is_empty() { ABSENT.to_owned() } else { text }
        };
        rows.push(columns.iter().map(cell).collect());
    }
    lay_out(&rows, narrowing)
}

/// The rows as aligned lines; the first row has the headings. Cells may hold text from other
/// hosts, so control characters are escaped.
pub(crate) fn lay_out(rows: &[Vec<String>], narrowing: impl Into<Narrowing>) -> String {
    let narrowing = narrowing.into();
    let escaped = |row: &Vec<String>| row.iter().map(|cell| printable(cell).into_owned()).collect();
    let mut rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let mut widths: Vec<usize> = (0..columns).map(|at| widest(&rows, at)).collect();
    if let TextWidth::Terminal(terminal) = narrowing.width {
        narrow(&mut rows, &mut widths, narrowing, terminal);
    }
    let wraps = |at: usize| match narrowing.long_cells {
        LongCells::Cut => false,
        LongCells::LastWraps => at + 1 == widths.len(),
        LongCells::Wrap => true,
    };
    let mut out = String::new();
    for row in &rows {
        let parts = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            let is_short = column::width(cell) <= *width;
            match (is_short, wraps(at)) {
                (true, _) => vec![cell.clone()],
                (false, true) => wrap(cell, *width),
                (false, false) => vec![column::fit(cell, *width)],
            }
        });
        let parts: Vec<Vec<String>> = parts.collect();
        for line in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
            let mut text = String::new();
            for (part, width) in parts.iter().zip(&widths) {
                let cell = part.get(line).map_or("", String::as_str);
                text.push_str(&column::pad(cell, width + GAP));
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
    out
}

/// The width of the widest cell of a column.
fn widest(rows: &[Vec<String>], at: usize) -> usize {
    rows.iter().map(|row| column::width(&row[at])).max().unwrap_or(0)
}

/// Removes optional columns, and reduces widths, until the table fits into the terminal or no more
/// can be removed or cut.
fn narrow(
    rows: &mut [Vec<String>],
    widths: &mut Vec<usize>,
    narrowing: Narrowing,
    terminal: usize,
) {
    let mut limits: Vec<usize> =
        (0..widths.len()).map(|at| limit(rows, at, widths[at], narrowing)).collect();
    for heading in narrowing.optional {
        if limits.iter().map(|limit| limit + GAP).sum::<usize>() <= terminal + GAP {
            break;
        }
        let at = rows.first().and_then(|headings| headings.iter().position(|cell| cell == heading));
        let Some(at) = at else { continue };
        limits.remove(at);
        widths.remove(at);
        for row in &mut *rows {
            row.remove(at);
        }
    }
    let room = terminal.saturating_sub(GAP * widths.len().saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let excess = |at: &usize| widths[*at].saturating_sub(limits[*at]);
        let Some(most) = (0..widths.len()).filter(|at| excess(at) > 0).max_by_key(excess) else {
            break;
        };
        widths[most] -= 1;
    }
}

/// The width that a column has at least.
fn limit(rows: &[Vec<String>], at: usize, width: usize, narrowing: Narrowing) -> usize {
    let heading = rows[0][at].as_str();
    let given = narrowing.limits.iter().find(|(of, _)| *of == heading);
    let limit = match given {
        Some((_, limit)) => *limit,
        None if rows[1..].iter().all(|row| is_number(&row[at])) => width,
        None if at == 0 && narrowing.long_cells == LongCells::Wrap => FIRST_COLUMN_MOST,
        None if at + 1 == rows[0].len() && narrowing.long_cells != LongCells::Cut => {
            LAST_COLUMN_LEAST
        }
        None => column::width(heading).clamp(TEXT_LEAST, HEADING_MOST),
    };
    width.min(limit)
}

/// Whether a cell looks like a number, a time or an address: a part of it would be wrong.
fn is_number(cell: &str) -> bool {
    let starts_as_one = cell.starts_with(|first: char| first.is_ascii_digit());
    cell == ABSENT || starts_as_one && column::width(cell) <= NUMBER_MOST
}

/// The cell of a value that may be absent.
pub(crate) fn optional(value: Option<impl ToString>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |value| value.to_string())
}

/// The cell of a list, separated by commas.
pub(crate) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        let owned = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
        rows.iter().map(owned).collect()
    }

    const FIX: &str = "add a rule with remote = \"loopback\" and remote-ports = 8080";

    fn refused() -> Vec<Vec<String>> {
        let program = "/usr/lib/jvm/java-21-openjdk-amd64/bin/java";
        rows(&[
            &["LAST", "TIMES", "PROGRAM", "NEXT"],
            &["2026-11-28T03:55:07Z", "12345678901", program, FIX],
            &["2026-11-28T03:55:08Z", "1", "-", "-"],
        ])
    }

    #[test]
    fn a_table_fits_into_the_terminal_without_cutting_numbers_or_the_last_column() {
        for columns in [120, 100, 80, 72] {
            let shown = lay_out(&refused(), TextWidth::Terminal(columns));
            assert!(shown.lines().all(|line| line.chars().count() <= columns), "{shown}");
            for whole in ["2026-11-28T03:55:07Z  12345678901  /usr/lib", "TIMES"] {
                assert!(shown.contains(whole), "{shown}");
            }
            let words: Vec<_> = shown.split_whitespace().collect();
            for word in FIX.split(' ') {
                assert!(words.contains(&word), "{columns}: {shown}");
            }
        }
    }

    #[test]
    fn a_table_that_fits_or_that_no_terminal_shows_is_whole() {
        let whole = lay_out(&refused(), TextWidth::Whole);
        assert_eq!(lay_out(&refused(), TextWidth::Terminal(200)), whole);
        assert_eq!(whole.lines().count(), 3);
        assert!(whole.contains(FIX) && whole.contains("/bin/java"), "{whole}");
    }

    #[test]
    fn optional_columns_are_left_out_only_if_cutting_is_not_enough() {
        let narrowing = TextWidth::Terminal(70).without(&["TIMES"]);
        assert!(!lay_out(&refused(), narrowing).contains("TIMES"));
        let narrowing = TextWidth::Terminal(80).without(&["TIMES"]);
        assert!(lay_out(&refused(), narrowing).contains("TIMES"));
        let narrowing = TextWidth::Whole.without(&["TIMES"]);
        assert!(lay_out(&refused(), narrowing).contains("TIMES"));
    }

    #[test]
    fn cells_of_text_are_marked_if_they_are_cut_and_otherwise_continue() {
        let cut = lay_out(&refused(), TextWidth::Terminal(80));
        assert!(cut.lines().nth(1).is_some_and(|line| line.contains("+  ")), "{cut}");
        let program = "/usr/lib/jvm/java-21-openjdk-amd64/bin/java";
        let facts = rows(&[&["id", "17"], &["program", program], &["next", FIX]]);
        let wrapped = lay_out(&facts, TextWidth::Terminal(36).wrapped());
        let values: String =
            wrapped.lines().flat_map(|line| line[9..].split_whitespace()).collect();
        assert_eq!(values, format!("17{program}{}", FIX.replace(' ', "")), "{wrapped}");
    }
}
