//! Defines the findings of an import: errors, changes and information, each with its file and line.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use tacit_core::message_id::MessageId;
use tacit_core::policy::text::one_line;
use tacit_core::policy::{self, Diagnostic};

/// A line of a file that is imported; lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file, under the name that was given.
    pub file: Arc<str>,
    /// The line.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What a finding means for the import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Nothing is imported.
    Error,
    /// It is imported with a change.
    Changed,
    /// It is imported without a change; the reader may want to know.
    Info,
}

impl Severity {
    /// The word shown before the message.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Changed => "changed",
            Self::Info => "info",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Finding {
    /// Which kind of finding.
    pub id: MessageId,
    /// Its severity.
    pub severity: Severity,
    /// The file, under the name that was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The message, in one line.
    pub message: String,
    /// The fix, if there is one; lines to add to a file are separate lines.
    pub fix: Option<String>,
}

impl Finding {
    /// `file:line: error[id]: message`, the fix indented on lines of its own.
    #[must_use]
    pub fn render(&self) -> String {
        let Self { id, severity, file, line, column, message, fix } = self;
        let at = match column {
            Some(column) => format!("{file}:{line}:{column}"),
            None => format!("{file}:{line}"),
        };
        let mut text = format!("{at}: {}[{id}]: {message}", severity.word());
        if let Some(fix) = fix {
            text.push_str("\n    fix: ");
            text.push_str(&fix.replace('\n', "\n         "));
        }
        text
    }
}

/// Maximum number of errors of one import, and of other findings: more would repeat each other.
pub const FINDINGS_MAX: usize = 10_000;

/// Maximum length of a word of a message, in characters: longer values are shortened.
const WORD_CHARS_MAX: usize = 200;

/// Maximum length of a word of a fix: paths in lines to copy are shorter.
const FIX_WORD_CHARS_MAX: usize = 4096;

/// Maximum number of words of a message or of a line of a fix.
const WORDS_MAX: usize = 500;

/// A text without the middles of its longest words and without its last words.
fn shortened(text: &str, word_chars_max: usize) -> String {
    /// Characters kept at the end of a long word, such as a quote or a colon.
    const END_CHARS: usize = 20;
    if text.len() <= word_chars_max {
        return text.to_owned();
    }
    let short = |word: &str| {
        let chars = word.chars().count();
        if chars <= word_chars_max {
            return word.to_owned();
        }
        let begin: String = word.chars().take(word_chars_max - END_CHARS).collect();
        let end: String = word.chars().skip(chars - END_CHARS).collect();
        format!("{begin}…{end}")
    };
    let mut words = text.split(' ');
    let mut shown = words.by_ref().take(WORDS_MAX).map(short).collect::<Vec<_>>().join(" ");
    if words.next().is_some() {
        shown.push_str(" …");
    }
    shown
}

/// Everything found so far.
#[derive(Debug, Default)]
pub struct Findings {
    found: Vec<Finding>,
    /// The same findings, to skip repeated ones.
    known: HashSet<Finding>,
    errors_reported: usize,
    others_reported: usize,
    /// Counts the errors that are not stored too.
    errors: usize,
}

impl Findings {
    /// Records an error, which stops the import.
    pub fn error(&mut self, at: &Origin, message: impl Into<String>, fix: impl Into<String>) {
        self.push(
            MessageId("cannot-import"),
            Severity::Error,
            at,
            message.into(),
            Some(fix.into()),
        );
    }

    /// Records a change, and how to avoid it.
    pub fn changed(&mut self, at: &Origin, message: impl Into<String>, fix: impl Into<String>) {
        self.push(
            MessageId("imported-changed"),
            Severity::Changed,
            at,
            message.into(),
            Some(fix.into()),
        );
    }

    /// Records information.
    pub fn info(&mut self, at: &Origin, message: impl Into<String>) {
        self.push(MessageId("import-note"), Severity::Info, at, message.into(), None);
    }

    fn push(
        &mut self,
        id: MessageId,
        severity: Severity,
        at: &Origin,
        message: String,
        fix: Option<String>,
    ) {
        let finding = Finding {
            id,
            severity,
            file: at.file.to_string(),
            line: at.line,
            column: None,
            message: shortened(&one_line(message), WORD_CHARS_MAX),
            // A fix may contain lines to copy; each is escaped on its own.
            fix: fix.map(|fix| {
                let harmless = |line| shortened(&one_line(line), FIX_WORD_CHARS_MAX);
                fix.lines().map(harmless).collect::<Vec<_>>().join("\n")
            }),
        };
        self.add(finding);
    }

    fn add(&mut self, finding: Finding) {
        let is_error = finding.severity == Severity::Error;
        self.errors += usize::from(is_error);
        // Errors are reported however many other findings there are.
        let count = if is_error { &mut self.errors_reported } else { &mut self.others_reported };
        if *count < FINDINGS_MAX && self.known.insert(finding.clone()) {
            *count += 1;
            self.found.push(finding);
        }
    }

    /// Adds the diagnostics of a tacit policy; warnings do not stop the import.
    pub fn extend(&mut self, file: &str, diagnostics: Vec<Diagnostic>) {
        for Diagnostic { id, severity, position, message, fix, .. } in diagnostics {
            let severity = match severity {
                policy::DiagnosticSeverity::Error => Severity::Error,
                policy::DiagnosticSeverity::Warning => Severity::Info,
            };
            self.add(Finding {
                id,
                severity,
                file: file.to_owned(),
                line: position.line,
                column: Some(position.column),
                message: shortened(&message, WORD_CHARS_MAX),
                fix: fix.map(|fix| shortened(&fix, FIX_WORD_CHARS_MAX)),
            });
        }
    }

    /// Whether an error stops the import.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Whether a change is reported for that line.
    #[must_use]
    pub fn reports_change(&self, at: &Origin) -> bool {
        let there = |one: &&Finding| one.line == at.line && *one.file == *at.file;
        self.found.iter().filter(there).any(|one| one.severity == Severity::Changed)
    }

    /// All findings in the order of files and lines, errors first on the same line.
    #[must_use]
    pub fn finish(self) -> Vec<Finding> {
        let mut found = self.found;
        let mut files: Vec<String> = Vec::new();
        for finding in &found {
            if !files.contains(&finding.file) {
                files.push(finding.file.clone());
            }
        }
        found.sort_by_cached_key(|finding| {
            let file = files.iter().position(|file| *file == finding.file);
            (file, finding.line, finding.severity)
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_shortened_and_short_ones_are_not() {
        let message = |value: &str| {
            let mut findings = Findings::default();
            let at = Origin { file: "f".into(), line: 1 };
            findings.error(
                &at,
                format!("`Port` cannot be `{value}`: this is not a port"),
                "write a port",
            );
            findings.finish().remove(0).message
        };
        assert_eq!(message("70000"), "`Port` cannot be `70000`: this is not a port");
        for value in ["4", "é"] {
            let long = message(&value.repeat(2_000_000));
            assert!(
                long.starts_with("`Port` cannot be `") && long.ends_with("`: this is not a port"),
                "{long}"
            );
            assert!(long.contains('…') && long.chars().count() < 300, "{long}");
        }
        let many = message(&"4 ".repeat(2_000_000));
        assert!(many.len() < 2000 && many.ends_with('…'), "{many}");
    }

    #[test]
    fn an_error_is_reported_after_any_number_of_others() {
        let mut findings = Findings::default();
        let at = |line| Origin { file: "f".into(), line };
        (1..=FINDINGS_MAX + 10).for_each(|line| findings.info(&at(line), "as it was"));
        findings.error(&at(1), "wrong", "mend it");
        findings.error(&at(1), "wrong", "mend it");
        assert!(findings.has_errors());
        let found = findings.finish();
        let errors = found.iter().filter(|found| found.severity == Severity::Error).count();
        assert_eq!((errors, found.len()), (1, FINDINGS_MAX + 1));
    }
}
