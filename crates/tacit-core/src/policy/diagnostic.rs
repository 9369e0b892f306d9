//! Defines the errors and warnings about a policy, each with its position and a fix.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::message_id::MessageId;
use crate::printable::{is_printable, printable};

/// A position in the policy text. Lines and columns count from 1; columns are in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourcePosition {
    /// The file: 0 is the policy itself, 1 the first file that it includes.
    #[serde(skip)]
    pub file: usize,
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Whether a diagnostic prevents the installation of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiagnosticSeverity {
    /// The policy is not installed.
    Error,
    /// The policy is installed, but probably has not the intended effect.
    Warning,
}

impl DiagnosticSeverity {
    /// Returns the word before the message.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One error or warning about a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The kind of mistake.
    pub id: MessageId,
    /// Whether it is an error or a warning.
    pub severity: DiagnosticSeverity,
    /// The included file with the mistake; `None`: the policy itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// The position.
    pub position: SourcePosition,
    /// The mistake, in one line.
    pub message: String,
    /// The fix, in one line.
    pub fix: Option<String>,
    /// The line of the text at the position, if it is known.
    #[serde(skip)]
    pub line: Option<Box<QuotedLine>>,
}

/// A line of the text, with the column that a diagnostic is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotedLine {
    /// The part of the line that is shown.
    text: String,
    /// The number of its characters before the column.
    before: usize,
}

/// The largest number of characters of a line that are shown.
const QUOTED_CHARS_MAX: usize = 100;
/// The number of characters that are shown before the column of a longer line.
const QUOTED_CHARS_BEFORE: usize = 60;

impl QuotedLine {
    fn new(line: &str, column: usize) -> Self {
        let before = column.saturating_sub(1);
        let count = line.chars().count();
        let first =
            if count > QUOTED_CHARS_MAX { before.saturating_sub(QUOTED_CHARS_BEFORE) } else { 0 };
        let mut text: String = line.chars().skip(first).take(QUOTED_CHARS_MAX).map(shown).collect();
        if count > first + QUOTED_CHARS_MAX {
            text.push_str("...");
        }
        if first == 0 {
            return Self { text, before };
        }
        Self { text: format!("...{text}"), before: before - first + "...".len() }
    }
}

/// The beginning of a key or a certificate in PEM.
const PEM_BEGIN: &str = "-----BEGIN";

/// Whether a line has the form of a table's header or of `key = value`.
fn is_toml(line: &str) -> bool {
    let line = line.trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_.\"' ".contains(c);
    match line.split_once('=') {
        _ if line.starts_with('[') => true,
        Some((key, value)) => {
            !key.is_empty() && key.chars().all(is_key) && !value.trim_matches('=').is_empty()
        }
        None => false,
    }
}

/// Replaces a character by one that takes one column and has no effect on the terminal.
fn shown(c: char) -> char {
    match c {
        '\t' => ' ',
        c if is_printable(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

impl Diagnostic {
    /// Creates an error, which prevents the installation of the policy.
    #[must_use]
    pub fn error(id: MessageId, position: SourcePosition, message: impl Into<String>) -> Self {
        Self {
            id,
            severity: DiagnosticSeverity::Error,
            file: None,
            position,
            message: one_line(message),
            fix: None,
            line: None,
        }
    }

    /// Creates a warning, which does not prevent the installation.
    #[must_use]
    pub fn warning(id: MessageId, position: SourcePosition, message: impl Into<String>) -> Self {
        Self {
            id,
            severity: DiagnosticSeverity::Warning,
            file: None,
            position,
            message: one_line(message),
            fix: None,
            line: None,
        }
    }

    /// Adds a fix.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(one_line(fix));
        self
    }

    /// Quotes the lines of the text that diagnostics are about. If the text may not be a policy
    /// but, for example, a private key that was given by mistake, no line is quoted.
    pub fn quote<'d>(diagnostics: impl IntoIterator<Item = &'d mut Self>, text: &str) {
        let mut diagnostics = diagnostics.into_iter().peekable();
        if diagnostics.peek().is_none() || text.contains(PEM_BEGIN) {
            return;
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines: Vec<_> = text.lines().collect();
        for Self { position, line, .. } in diagnostics {
            let quoted = lines.get(position.line.wrapping_sub(1)).filter(|line| is_toml(line));
            *line = quoted.map(|quoted| Box::new(QuotedLine::new(quoted, position.column)));
        }
    }

    /// `file:line:column: error[id]: message`; then, indented, the quoted line with a mark below
    /// the column, and the fix. `file` is the policy itself.
    #[must_use]
    pub fn render(&self, file: &str) -> String {
        let Self { id, severity, file: included, position, message, fix, line } = self;
        let file = included.as_deref().unwrap_or(file);
        let mut text = format!("{file}:{position}: {}[{id}]: {message}", severity.word());
        if let Some(QuotedLine { text: quoted, before }) = line.as_deref() {
            let number = position.line.to_string();
            let width = number.len();
            let column = before + 1;
            text.push_str(&format!(
                "\n    {number} | {quoted}\n    {:width$} | {:>column$}",
                "", "^"
            ));
        }
        if let Some(fix) = fix {
            text.push_str("\n    fix: ");
            text.push_str(fix);
        }
        text
    }
}

/// Formats text as one line. Diagnostics quote the policy text, which must not break the line or
/// control the terminal.
#[must_use]
pub fn one_line(text: impl Into<String>) -> String {
    let text = text.into();
    match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(line) => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId("i");

    #[test]
    fn quoted_control_characters_are_escaped() {
        let finding = Diagnostic::error(ID, SourcePosition::default(), "no `a\n\u{1b}[31mé`")
            .with_fix("x\ty");
        assert_eq!(finding.message, "no `a\\n\\u{1b}[31mé`");
        assert_eq!(finding.fix.as_deref(), Some("x\\ty"));
    }

    fn quoted(text: &str, line: usize, column: usize) -> String {
        let error =
            Diagnostic::error(ID, SourcePosition { file: 0, line, column }, "no").with_fix("yes");
        let mut all = [error];
        Diagnostic::quote(&mut all, text);
        all[0].render("f")
    }

    #[test]
    fn the_line_is_quoted_with_a_mark_below_the_column() {
        let text = "\u{feff}a = 1\n\tb = \u{1b}\u{e9}\n";
        assert_eq!(
            quoted(text, 1, 5),
            "f:1:5: error[i]: no\n    1 | a = 1\n      |     ^\n    fix: yes"
        );
        assert_eq!(
            quoted(text, 2, 7),
            "f:2:7: error[i]: no\n    2 |  b = \u{fffd}\u{e9}\n      |       ^\n    fix: yes"
        );
        assert_eq!(
            quoted(text, 3, 1),
            "f:3:1: error[i]: no\n    fix: yes",
            "there is no such line"
        );
    }

    #[test]
    fn a_line_that_may_be_of_a_key_is_not_quoted() {
        let base64 = "MC4CAQAwBQYDK2VwBCIEIA==";
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{base64}\nkey = 1\n");
        for (text, line) in [
            (pem.as_str(), 1),
            (&pem, 2),
            (&pem, 3),
            (base64, 1),
            ("root:$6$salt$hash:1:0::", 1),
            ("{\"kty\":\"EC\",\"d\":\"secret\"}", 1),
        ] {
            assert_eq!(quoted(text, line, 1), format!("f:{line}:1: error[i]: no\n    fix: yes"));
        }
        assert!(quoted("[agent", 1, 7).contains("[agent"));
    }

    #[test]
    fn of_a_long_line_the_part_around_the_column_is_quoted() {
        for column in [3, 99, 100, 101, 150, 999, 1000, 1001] {
            let mut line = format!("k={}", "-".repeat(998));
            line.replace_range(column - 1..column.min(1000), "#");
            let text = quoted(&line, 1, column);
            let [_, quoted, mark, _] = text.lines().collect::<Vec<_>>()[..] else {
                panic!("{text}")
            };
            assert!(quoted.chars().count() <= 8 + 3 + QUOTED_CHARS_MAX + 3, "{text}");
            let at = mark.find('^').unwrap();
            assert!(quoted.find('#').is_none_or(|found| found == at), "{text}");
            assert!(column > 1000 || quoted.contains('#'), "{text}");
        }
    }
}
