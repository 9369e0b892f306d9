//! Computes the maximum width of the output of commands such as `tacit show`, and breaks long lines
//! of prose.
//!
//! On a terminal, the output is at most as wide as the terminal. In a pipe or a file, the output
//! has no maximum width, because programs read the text.

use std::io;

use super::column;

/// How wide a text may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextWidth {
    /// As wide as its content.
    Whole,
    /// At most as wide as this number of columns.
    Terminal(usize),
}

/// How a table becomes narrower.
#[derive(Clone, Copy, Debug)]
pub struct Narrowing {
    pub(super) width: TextWidth,
    /// The headings of the columns that a small terminal does not have, in the order in which they
    /// are left out.
    pub(super) optional: &'static [&'static str],
    /// The widths to which the columns with these headings are cut.
    pub(super) limits: &'static [(&'static str, usize)],
    pub(super) long_cells: LongCells,
}

/// What happens to text that is longer than its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LongCells {
    /// It is cut.
    Cut,
    /// In the last column it continues on the next line; in other columns it is cut.
    LastWraps,
    /// It continues on the next line.
    Wrap,
}

impl TextWidth {
    /// The width of the terminal that shows standard output; the whole text without a terminal.
    #[must_use]
    pub fn of_stdout() -> Self {
        let size = rustix::termios::tcgetwinsize(io::stdout());
        match size.map_or(0, |size| usize::from(size.ws_col)) {
            0 => Self::Whole,
            columns => Self::Terminal(columns),
        }
    }

    /// The width without these columns.
    pub(super) fn minus(self, columns: usize) -> Self {
        match self {
            Self::Whole => Self::Whole,
            Self::Terminal(all) => Self::Terminal(all.saturating_sub(columns)),
        }
    }

    /// A table of this width that leaves out these columns first.
    pub(crate) fn without(self, optional: &'static [&'static str]) -> Narrowing {
        Narrowing { optional, ..self.into() }
    }

    /// A table of this width in which all long cells continue on the next line.
    pub(crate) fn wrapped(self) -> Narrowing {
        Narrowing { long_cells: LongCells::Wrap, ..self.into() }
    }

    /// Lines of prose, broken at blanks.
    pub(crate) fn prose(self, text: &str) -> String {
        let Self::Terminal(columns) = self else { return text.to_owned() };
        let lines = text.split('\n').flat_map(|line| wrap(line, columns));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Narrowing {
    /// The table with columns that are cut to these widths.
    pub(super) fn cut_to(self, limits: &'static [(&'static str, usize)]) -> Self {
        Self { limits, long_cells: LongCells::Cut, ..self }
    }
}

impl From<TextWidth> for Narrowing {
    fn from(width: TextWidth) -> Self {
        Self { width, optional: &[], limits: &[], long_cells: LongCells::LastWraps }
    }
}

/// Breaks a line at blanks and after commas into lines of at most this width. A longer word is
/// broken anywhere.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text;
    while column::width(rest) > columns {
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let fitting = column::cut(rest, columns).len().max(first);
        let (head, tail) = rest.split_at(fitting);
        let end = match tail.starts_with(' ') {
            true => fitting,
            false => {
                let at = head.rfind([' ', ',']).filter(|at| !head[..*at].trim().is_empty());
                at.map_or(fitting, |at| at + 1)
            }
        };
        let (line, after) = rest.split_at(end);
        lines.push(line.trim_end().to_owned());
        rest = after.trim_start();
    }
    if lines.is_empty() || !rest.is_empty() {
        lines.push(rest.to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_blanks_and_commas_and_no_word_is_lost() {
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("one two", 7), ["one two"]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("10.0.0.0/8,10.1.0.0/16", 12), ["10.0.0.0/8,", "10.1.0.0/16"]);
        assert_eq!(wrap("/usr/lib/tacit", 6), ["/usr/l", "ib/tac", "it"]);
        assert_eq!(wrap("  one two", 7), ["  one", "two"]);
        assert_eq!(wrap("数据库", 1), ["数", "据", "库"]);
        assert_eq!(wrap("数据库", 5), ["数据", "库"]);
    }

    #[test]
    fn prose_keeps_its_lines_and_is_unchanged_without_a_terminal() {
        let text = "(one two three)\nfour\n";
        assert_eq!(TextWidth::Terminal(10).prose(text), "(one two\nthree)\nfour\n");
        assert_eq!(TextWidth::Whole.prose(text), text);
    }
}
