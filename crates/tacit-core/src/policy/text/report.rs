//! Collects errors and warnings about a TOML text, such as a policy, while tacit reads this text.

use std::sync::{Arc, Mutex};

use super::document::TomlDocument;
use super::lines::Lines;
use super::node::ByteSpan;
use crate::message_id::MessageId;
use crate::parallel::lock;
use crate::policy::diagnostic::{Diagnostic, SourcePosition};

/// A text and the diagnostics about it so far.
///
/// It is shared by reference, also by threads. Every value of the text refers to it, so readers
/// need no parameter for it.
#[derive(Debug)]
pub struct Diagnostics<'t> {
    text: &'t str,
    /// The offsets and the names of the files after the first one.
    later_files: Vec<(usize, Arc<str>)>,
    lines: Lines<'t>,
    syntax: Vec<Diagnostic>,
    found: Mutex<Vec<Diagnostic>>,
    /// Parts that were read under a guessed key. Errors in them are not reported.
    silent: Mutex<Vec<ByteSpan>>,
}

impl<'t> Diagnostics<'t> {
    /// Starts with the TOML syntax errors.
    #[must_use]
    pub fn new(document: &TomlDocument<'t>) -> Self {
        Self::of_files(document, Vec::new())
    }

    /// The same for a text that consists of the texts of several files. The first file begins at 0;
    /// `later_files` contains the offsets of the others, each at the start of a line.
    #[must_use]
    pub fn of_files(document: &TomlDocument<'t>, later_files: Vec<(usize, Arc<str>)>) -> Self {
        let text = document.text();
        let mut report = Self {
            text,
            later_files,
            lines: Lines::new(text),
            syntax: Vec::new(),
            found: Mutex::default(),
            silent: Mutex::default(),
        };
        report.syntax = document.errors().iter().map(|error| report.syntax_error(error)).collect();
        report
    }

    /// Returns the file, line and column of a byte.
    pub fn position(&self, offset: usize) -> SourcePosition {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.lines.ended_before(offset) + 1;
        let start = self.text[..offset].rfind('\n').map_or(0, |end| end + 1);
        let column = self.text[start..offset].chars().count() + 1;
        let file = self.later_files.partition_point(|(start, _)| *start <= offset);
        let first_line = file
            .checked_sub(1)
            .map_or(0, |place| self.lines.ended_before(self.later_files[place].0));
        SourcePosition { file, line: line - first_line, column }
    }

    /// Describes the line of a position, for a message about `from`. Includes the file if it
    /// differs from that of `from`.
    pub fn line(&self, position: SourcePosition, from: SourcePosition) -> String {
        let SourcePosition { file, line, .. } = position;
        if file == from.file {
            return line.to_string();
        }
        match file.checked_sub(1).and_then(|place| self.later_files.get(place)) {
            Some((_, name)) => format!("{line} of {name}"),
            None => format!("{line} of the policy that includes this file"),
        }
    }

    /// Records an error. The text can then not be used.
    pub fn error(
        &self,
        id: MessageId,
        at: &ByteSpan,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if lock(&self.silent).iter().any(|silent| silent.contains(&at.start)) {
            return;
        }
        self.error_at(id, self.position(at.start), message, fix);
    }

    /// The same, if only the position is known.
    pub fn error_at(
        &self,
        id: MessageId,
        at: SourcePosition,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        lock(&self.found).push(Diagnostic::error(id, at, message).with_fix(fix));
    }

    /// Suppresses further errors in a part of the text that has an error already.
    pub(super) fn silence(&self, part: ByteSpan) {
        lock(&self.silent).push(part);
    }

    /// Records a warning, if the text is TOML.
    pub fn warning(
        &self,
        id: MessageId,
        at: SourcePosition,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if !self.is_toml() {
            return;
        }
        let warning = Diagnostic::warning(id, at, message);
        lock(&self.found).push(warning.with_fix(fix));
    }

    /// Whether the text is valid TOML. If it is not, a key that seems to be missing may be in the
    /// unreadable part or in the wrong table.
    pub fn is_toml(&self) -> bool {
        self.syntax.is_empty()
    }

    /// Records that a key is missing, if the text is valid TOML.
    pub fn missing(
        &self,
        id: MessageId,
        at: &ByteSpan,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        if self.is_toml() {
            self.error(id, at, message, fix);
        }
    }

    /// Returns all diagnostics, in the order of the text.
    pub fn finish(self) -> Vec<Diagnostic> {
        let Self { mut syntax, found, .. } = self;
        // Other diagnostics in a line with a syntax error would only distract.
        let is_guess = |finding: &Diagnostic| {
            syntax.iter().any(|error| {
                (error.position.file, error.position.line)
                    == (finding.position.file, finding.position.line)
            })
        };
        let sound: Vec<Diagnostic> =
            lock(&found).drain(..).filter(|finding| !is_guess(finding)).collect();
        syntax.extend(sound);
        syntax.sort_by_key(|finding| (finding.position, finding.severity));
        syntax.dedup();
        syntax
    }

    fn syntax_error(&self, error: &toml::de::Error) -> Diagnostic {
        let at = error.span().map_or(0, |span| span.start);
        let line = error.message().lines().next().unwrap_or("unreadable");
        let message = line.trim_end_matches(", expected nothing");
        let fix = match message {
            "duplicate key" => "keep one of the two entries",
            "unexpected leading zero" => {
                "write a number without leading zeros, and permission bits in quotes, such as \
                 \"0600\""
            }
            // The rest of the message contains "printable", which contains "table".
            comment if comment.starts_with("invalid comment character") => {
                "remove the control character from the comment"
            }
            header if header.contains("table") => "write a header such as [limits] or [[rule]]",
            _ => {
                "write each entry as `key = value`, with text in double quotes and lists in \
                 brackets: [ \"a\", \"b\" ]"
            }
        };
        Diagnostic::error(
            MessageId("not-toml"),
            self.position(at),
            format!("not valid TOML: {message}"),
        )
        .with_fix(fix)
    }
}
