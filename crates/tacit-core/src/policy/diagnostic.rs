//! What is wrong with a policy, where, and what to write instead.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::printable::printable;

/// A place in the policy text; both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourcePosition {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Whether a finding stops the policy from being installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiagnosticSeverity {
    /// Nothing is installed.
    Error,
    /// Installed, but probably not what was meant.
    Warning,
}

impl DiagnosticSeverity {
    /// The word shown before the message.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One finding about a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad.
    pub severity: DiagnosticSeverity,
    /// Where.
    pub position: SourcePosition,
    /// What is wrong, in one line.
    pub message: String,
    /// What to write instead, in one line.
    pub fix: Option<String>,
}

impl Diagnostic {
    /// A finding that stops the policy.
    #[must_use]
    pub fn error(position: SourcePosition, message: impl Into<String>) -> Self {
        Self {
            severity: DiagnosticSeverity::Error,
            position,
            message: one_line(message),
            fix: None,
        }
    }

    /// A finding that does not.
    #[must_use]
    pub fn warning(position: SourcePosition, message: impl Into<String>) -> Self {
        Self {
            severity: DiagnosticSeverity::Warning,
            position,
            message: one_line(message),
            fix: None,
        }
    }

    /// The same with advice.
    #[must_use]
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(one_line(fix));
        self
    }

    /// `file:line:column: error: message`, the fix indented on a line of its own.
    #[must_use]
    pub fn render(&self, file: &str) -> String {
        let Self { severity, position, message, fix } = self;
        let mut text = format!("{file}:{position}: {}: {message}", severity.word());
        if let Some(fix) = fix {
            text.push_str("\n    fix: ");
            text.push_str(fix);
        }
        text
    }
}

/// The text as one line. Findings quote the text they are about; what it holds must neither break
/// the line nor control the terminal.
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

    #[test]
    fn quoted_control_characters_are_escaped() {
        let finding =
            Diagnostic::error(SourcePosition::default(), "no `a\n\u{1b}[31mé`").with_fix("x\ty");
        assert_eq!(finding.message, "no `a\\n\\u{1b}[31mé`");
        assert_eq!(finding.fix.as_deref(), Some("x\\ty"));
    }
}
