//! Defines a finding of `cargo xtask tidy`: a violation of a style rule, with its file and line.

use super::source::Source;

/// A violation of a style rule.
pub(crate) struct Finding {
    /// The file, relative to the root.
    pub(super) path: String,
    /// The line, from 1; 0 if the finding concerns the whole file.
    pub(super) line: usize,
    /// What is wrong, and what to do.
    pub(super) message: String,
    /// Whether it is only a suggestion.
    pub(super) note: bool,
}

impl Finding {
    pub(super) fn new(source: &Source, line: usize, message: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, message: message.into(), note: false }
    }

    pub(super) fn note(source: &Source, message: impl Into<String>) -> Self {
        Self { note: true, ..Self::new(source, 0, message) }
    }

    pub(super) fn render(&self) -> String {
        let Self { path, line, message, note } = self;
        let kind = if *note { "note: " } else { "" };
        match line {
            0 => format!("{path}: {kind}{message}"),
            _ => format!("{path}:{line}: {kind}{message}"),
        }
    }
}
